//! One client's session on a tree, without a stream.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ninep::{Call, CallId, Done, HangUp, Limits, Session, Step};

use super::bell::{Bell, CallWaker};
use super::calls::{Ended, Place, perform, stat};
use super::replies::Replies;
use crate::error::{FsError, Kind};
use crate::server::{FileServer, OpenFile};

type TreeCall = Call<Arc<Place>, Arc<dyn OpenFile>>;
type Running = Pin<Box<dyn Future<Output = Result<Ended, FsError>> + Send>>;

/// A call that waits.
struct Waiting {
    running: Running,
    waker: Arc<CallWaker>,
}

/// Messages in, replies out. Calls are polled at once, and again when their
/// waker rings the bell; one that is dropped is called off.
pub(super) struct Conversation {
    session: Session<Arc<Place>, Arc<dyn OpenFile>>,
    root: Arc<dyn FileServer>,
    bell: Arc<Bell>,
    calls: HashMap<CallId, Waiting>,
    pub(super) replies: Replies,
}

impl Conversation {
    pub(super) fn new(root: Arc<dyn FileServer>, limits: Limits, bell: &Arc<Bell>) -> Self {
        Self {
            session: Session::new(limits),
            root,
            bell: Arc::clone(bell),
            calls: HashMap::new(),
            replies: Replies::default(),
        }
    }

    /// Of which the frames are.
    pub(super) fn session(&self) -> &Session<Arc<Place>, Arc<dyn OpenFile>> {
        &self.session
    }

    /// Takes a whole message.
    pub(super) fn take(&mut self, frame: &[u8]) -> Result<(), HangUp> {
        match self.session.request(frame, self.replies.tail())? {
            Step::Replied => {}
            Step::Call(id, call) => self.start(id, call),
            Step::Cancel(id) => drop(self.calls.remove(&id)),
            Step::Reset(removals) => self.reset(removals),
        }
        Ok(())
    }

    /// Polls calls that were woken.
    pub(super) fn woken(&mut self, calls: Vec<CallId>) {
        for id in calls {
            // One that has ended may be woken too.
            if let Some(waiting) = self.calls.remove(&id) {
                self.poll(id, waiting);
            }
        }
    }

    /// Nobody is there any more. What is to be removed may still wait.
    pub(super) fn end(&mut self) {
        self.session.opened().for_each(|open| open.lost());
        let removals = self.session.reset();
        self.reset(removals);
    }

    /// Whether calls wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.calls.is_empty()
    }

    fn reset(&mut self, removals: Vec<(CallId, TreeCall)>) {
        self.calls.clear();
        for (id, call) in removals {
            self.start(id, call);
        }
    }

    fn start(&mut self, id: CallId, call: TreeCall) {
        let buffer = match &call {
            Call::Read { count, .. } => self.replies.buffer(*count as usize),
            _ => Vec::new(),
        };
        let running = Box::pin(perform(Arc::clone(&self.root), call, buffer));
        self.poll(id, Waiting { running, waker: CallWaker::new(id, &self.bell) });
    }

    fn poll(&mut self, id: CallId, mut waiting: Waiting) {
        waiting.waker.polled();
        let waker = Waker::from(Arc::clone(&waiting.waker));
        match waiting.running.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => drop(self.calls.insert(id, waiting)),
            Poll::Ready(end) => self.ended(id, end),
        }
    }

    fn ended(&mut self, id: CallId, end: Result<Ended, FsError>) {
        let (session, out) = (&mut self.session, self.replies.tail());
        let done = match &end {
            Err(error) => {
                // What ends without data appends none.
                let _none = session.done(id, Err(&ename(error)), out);
                return;
            }
            Ok(Ended::Attach(place, qid)) => Done::Attach(Arc::clone(place), *qid),
            Ok(Ended::Walk(qids, place)) => Done::Walk(*qids, place.clone()),
            Ok(Ended::Open(open)) => Done::Open(Arc::clone(open), open.qid()),
            Ok(Ended::Create(place, open)) => {
                Done::Create(Arc::clone(place), Arc::clone(open), open.qid())
            }
            Ok(Ended::Read(_, read)) => Done::Read(u32::try_from(*read).unwrap_or(u32::MAX)),
            Ok(Ended::Entries(bytes, entries)) => Done::Entries(bytes, *entries),
            Ok(Ended::Write(written)) => Done::Write(u32::try_from(*written).unwrap_or(u32::MAX)),
            Ok(Ended::Stat(info)) => Done::Stat(stat(info)),
            Ok(Ended::Changed) => Done::Changed,
        };
        let data = session.done(id, Ok(done), out);
        if let Ok(Ended::Read(buffer, _)) = end {
            self.replies.append(buffer, data);
        }
    }
}

/// What a client is told. It knows the name it asked for, and looks for the
/// text of the kind.
fn ename(error: &FsError) -> String {
    let (text, kind) = (error.to_string(), error.kind());
    let reason = kind.to_string();
    if text.ends_with(&reason) {
        reason
    } else if kind == Kind::Io {
        text
    } else {
        format!("{reason}: {text}")
    }
}
