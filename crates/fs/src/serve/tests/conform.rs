//! The table of what is answered (`conformance.rs`), and what is served under it.

use std::cell::RefCell;

use stream::Progress;

use super::*;
use crate::conformance::{Case, Kept, Line, cases, is_awaited};
use crate::job::JobServer;
use crate::log::LogServer;
use crate::pipe::PipeServer;

/// A tree that is served to one client.
trait Served {
    fn send(&mut self, frame: &[u8]);

    /// The next message.
    fn receive(&mut self) -> Result<Vec<u8>, String>;

    fn is_hung_up(&mut self) -> bool;

    /// That nothing else was answered.
    fn end(&mut self) -> Result<(), String>;
}

/// Without a stream.
struct Bare {
    bell: Arc<Bell>,
    conversation: Conversation,
    sent: Vec<u8>,
    hung_up: bool,
}

impl Bare {
    fn serving(tree: Arc<dyn FileServer>) -> Self {
        let bell = Bell::new().unwrap();
        let conversation = Conversation::new(tree, ninep::Limits::default(), &bell);
        Self { bell, conversation, sent: Vec::new(), hung_up: false }
    }

    fn take_replies(&mut self) {
        let replies = &mut self.conversation.replies;
        while replies.bytes() > 0 {
            let new: Vec<u8> = replies.slices().iter().flat_map(|part| part.to_vec()).collect();
            replies.sent(new.len());
            self.sent.extend(new);
        }
    }
}

impl Served for Bare {
    fn send(&mut self, frame: &[u8]) {
        let fits = self.conversation.session().frame(frame).is_ok();
        self.hung_up = !fits || self.conversation.take(frame).is_err();
    }

    fn receive(&mut self) -> Result<Vec<u8>, String> {
        loop {
            self.take_replies();
            if let Some(len) = ninep::frame_bytes(&self.sent) {
                return Ok(self.sent.drain(..len).collect());
            }
            let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
            let waits = self.conversation.is_waiting();
            if !waits || !poll_until(&mut fds, Some(Instant::now() + LATE)).unwrap() {
                return Err("no reply".into());
            }
            self.conversation.woken(self.bell.answer().calls);
        }
    }

    fn is_hung_up(&mut self) -> bool {
        self.hung_up
    }

    fn end(&mut self) -> Result<(), String> {
        self.conversation.woken(self.bell.answer().calls);
        self.take_replies();
        match (&self.sent[..], self.conversation.is_waiting()) {
            ([], false) => Ok(()),
            (sent, waits) => Err(format!("{sent:02x?} too many, calls wait: {waits}")),
        }
    }
}

/// Over a stream: what is sent before a reply is awaited goes together.
struct Streamed {
    _connection: Connection,
    client: Client<UnixStream>,
    unsent: Vec<u8>,
    over: bool,
}

impl Streamed {
    fn serving(tree: Arc<dyn FileServer>) -> Self {
        let (stream, _connection) = Connection::pair(tree, ServeOptions::default()).unwrap();
        Self { _connection, client: Client::of(stream), unsent: Vec::new(), over: false }
    }

    fn flush(&mut self) {
        self.client.stream.write_all(&std::mem::take(&mut self.unsent)).unwrap();
    }
}

impl Served for Streamed {
    fn send(&mut self, frame: &[u8]) {
        self.unsent.extend(frame);
    }

    fn receive(&mut self) -> Result<Vec<u8>, String> {
        self.flush();
        self.client.try_receive().map(<[u8]>::to_vec).map_err(|error| format!("no reply: {error}"))
    }

    fn is_hung_up(&mut self) -> bool {
        self.flush();
        self.over = self.client.ends();
        self.over
    }

    fn end(&mut self) -> Result<(), String> {
        if self.over {
            return Ok(());
        }
        // Nothing else has come when this is answered.
        self.client.send(Tag(999), Request::Flush { oldtag: Tag(998) });
        match self.receive()? {
            reply if ninep::frame_tag(&reply) == Some(Tag(999)) => Ok(()),
            reply => Err(format!("{reply:02x?} too many")),
        }
    }
}

fn run(case: &Case, mut served: impl Served) -> Result<(), String> {
    let mut kept = Kept::new();
    for (number, line) in &case.lines {
        let wrong = |what: String| format!("{}, line {number}: {what}", case.name);
        match line {
            Line::Send(frame) => served.send(frame),
            Line::HangUp if served.is_hung_up() => {}
            Line::HangUp => return Err(wrong("not hung up".into())),
            Line::Await(fields) => {
                let reply = served.receive().map_err(wrong)?;
                if !is_awaited(&reply, fields, &mut kept) {
                    let what = format!("{reply:02x?}, not {fields:02x?}, of {kept:02x?}");
                    return Err(wrong(what));
                }
            }
        }
    }
    served.end().map_err(|what| format!("{}, at its end: {what}", case.name))
}

/// Runs what the table says of `tree` against those that `make` gives: without
/// a stream, and over one. `files` are trees with an empty root that `u` may write to.
#[track_caller]
pub(crate) fn conforms(tree: &str, make: impl Fn() -> Arc<dyn FileServer>) {
    let cases = cases(tree);
    assert!(cases.len() >= 60, "{tree}: {}", cases.len());
    let failed = cases.iter().flat_map(|case| {
        let bare = run(case, Bare::serving(make())).err();
        let streamed = run(case, Streamed::serving(make())).err();
        [bare, streamed.map(|what| format!("over a stream: {what}"))].into_iter().flatten()
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{tree}:\n{}", failed.join("\n"));
}

#[test]
fn files_in_memory_conform() {
    conforms("files", ram);
}

#[test]
fn pipes_conform() {
    conforms("#p", || Arc::new(PipeServer::new(16)));
}

#[test]
fn the_log_conforms() {
    conforms("#l", || Arc::new(LogServer::new(4096, |_| ())));
}

#[test]
fn jobs_conform_to_steer_and_to_look_at() {
    let shown = RefCell::new(Vec::new());
    let job = || {
        let job = JobServer::new();
        job.register("hello-world", |_| Ok(()));
        let parameters = serde_json::json!({ "kernel": "crc32c" });
        shown.borrow_mut().push(job.show(Arc::new(Progress::default()), None, parameters, || ()));
        job
    };
    conforms("#job", || Arc::new(job()));
    conforms("#look", || job().read_only());
}
