//! One connection: requests of many callers, and the thread that hands out the replies.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ninep::{CannotAsk, Client, End, Fid, Reply, Request, Tag, frame_bytes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;

use super::socket::Socket;
use crate::address::Address;
use crate::error::{FsError, Kind};
use crate::sync::lock;

/// Longest message that is asked for, in bytes: 256 KiB of data.
const MSIZE: u32 = (256 << 10) + 24;

/// Bytes of all reads and writes under way, at most, unless one alone has more.
/// Servers bound what one client may have them hold.
const UNDER_WAY_BYTES_MAX: usize = 4 << 20;

/// Buffers of replies that are kept for the next.
const SPARE_MAX: usize = 16;

/// What is said of a connection that its own user closed.
const CLOSED_HERE: &str = "the connection was closed here";

/// And of one that its server closed.
const CLOSED_THERE: &str = "the server closed the connection";

/// A connection for as long as anybody has it; the last one to drop it closes it.
#[derive(Debug)]
pub(super) struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    address: Address,
    socket: Socket,
    /// Has the thread look whether there is something to write.
    nudge: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    client: Client,
    out: Vec<u8>,
    /// Bytes of `out` that were written.
    written: usize,
    /// Whether the socket took no more, so that the thread is to write the rest.
    is_full: bool,
    /// Calls until their callers took the reply, which the tag is free before.
    calls: HashMap<u64, Call>,
    by_tag: HashMap<Tag, u64>,
    /// Of reads and writes under way.
    bytes: usize,
    /// Callers for whom there was no room, in the order they came.
    waiting: BTreeMap<u64, Waker>,
    /// Numbers given to calls, under way or waiting.
    tickets: u64,
    spare: Vec<Vec<u8>>,
    lost: Option<String>,
}

/// A request under way.
#[derive(Debug)]
struct Call {
    bytes: usize,
    end: CallEnd,
}

#[derive(Debug)]
enum CallEnd {
    Awaited(Waker),
    Reply(Vec<u8>),
}

impl Connection {
    /// Connects to a server and agrees on the version, all within `patience`.
    pub(super) fn open(address: &Address, patience: Duration) -> Result<Self, FsError> {
        let deadline = Instant::now() + patience;
        let begun = Self::begin(address, deadline);
        let shared = begun.map_err(|error| cannot_connect(address, patience, error))?;
        let shared = Arc::new(shared);
        let reader = Arc::clone(&shared);
        let spawned =
            thread::Builder::new().name("9p".into()).stack_size(128 << 10).spawn(move || {
                let why = reader.serve();
                reader.lose(&why);
            });
        spawned.map_err(|error| cannot_connect(address, patience, error.into()))?;
        Ok(Self(shared))
    }

    fn begin(address: &Address, deadline: Instant) -> Result<Shared, Refused> {
        let socket = Socket::connect(address, deadline)?;
        let (mut client, mut out) = (Client::new(MSIZE), Vec::new());
        let cannot = |error: CannotAsk| Refused::Server(error.to_string());
        client.version(&mut out).map_err(cannot)?;
        // A new connection has room for these few bytes.
        if socket.write(&out)? != out.len() {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
        out.clear();
        let mut frame = vec![0; 4];
        socket.read_until(&mut frame, deadline)?;
        let broken = |error: ninep::Broken| Refused::Server(error.to_string());
        let len = frame_bytes(&frame).unwrap_or(0);
        client.check_size(len).map_err(broken)?;
        frame.resize(len, 0);
        socket.read_until(frame.get_mut(4..).unwrap_or_default(), deadline)?;
        client.on_reply(&frame, &mut out).map_err(broken)?;
        socket.do_not_wait()?;
        Ok(Shared {
            address: address.clone(),
            socket,
            nudge: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(io::Error::from)?,
            state: Mutex::new(State::new(client)),
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.0.address
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0.lock().lost.is_some()
    }

    /// Most bytes of one read or write.
    pub(super) fn io_bytes_max(&self) -> usize {
        self.0.lock().client.io_bytes_max() as usize
    }

    /// A fid that stands for nothing yet.
    pub(super) fn fid(&self) -> Fid {
        self.0.lock().client.fid()
    }

    /// Gives a fid back.
    pub(super) fn release(&self, fid: Fid) {
        let mut state = self.0.lock();
        let State { client, out, .. } = &mut *state;
        client.release(fid, out);
        self.0.write(&mut state);
    }

    /// Asks for something of the file `name`, and gives the reply, which is no error.
    /// Dropped before its end, it is flushed.
    pub(super) async fn call(
        &self,
        name: &str,
        request: Request<'_>,
    ) -> Result<Frame<'_>, FsError> {
        let mut waits = Waits { shared: &self.0, ticket: None };
        let (tag, ticket) = poll_fn(|cx| waits.poll(name, &request, cx)).await?;
        drop(waits);
        let mut under_way = UnderWay { shared: &self.0, tag, ticket, ended: false };
        let frame = poll_fn(|cx| under_way.poll(name, cx)).await?;
        match Reply::decode(&frame) {
            Ok((_, Reply::Error { ename })) => Err(super::refused(name, ename)),
            _ => Ok(frame),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.lose(CLOSED_HERE);
    }
}

/// A reply, whose buffer goes back to its connection.
#[derive(Debug)]
pub(super) struct Frame<'c> {
    bytes: Vec<u8>,
    shared: &'c Shared,
}

impl Deref for Frame<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.shared.lock().keep(bytes);
    }
}

/// A call that waits for room.
struct Waits<'c> {
    shared: &'c Shared,
    ticket: Option<u64>,
}

impl Waits<'_> {
    fn poll(
        &mut self,
        name: &str,
        request: &Request<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(Tag, u64), FsError>> {
        let mut state = self.shared.lock();
        if let Some(why) = &state.lost {
            return Poll::Ready(Err(self.shared.lost(name, why)));
        }
        let bytes = match request {
            Request::Read { count, .. } => *count as usize,
            Request::Write { data, .. } => data.len(),
            _ => 0,
        };
        let has_room = state.bytes == 0 || state.bytes + bytes <= UNDER_WAY_BYTES_MAX;
        let asked = if has_room {
            let State { client, out, .. } = &mut *state;
            client.ask(request, out)
        } else {
            Err(CannotAsk::Busy)
        };
        match asked {
            Ok(tag) => {
                let ticket = state.ticket();
                let end = CallEnd::Awaited(cx.waker().clone());
                state.bytes += bytes;
                state.by_tag.insert(tag, ticket);
                state.calls.insert(ticket, Call { bytes, end });
                self.shared.write(&mut state);
                Poll::Ready(Ok((tag, ticket)))
            }
            Err(CannotAsk::Busy) => {
                let ticket = *self.ticket.get_or_insert_with(|| state.ticket());
                state.waiting.insert(ticket, cx.waker().clone());
                Poll::Pending
            }
            Err(CannotAsk::TooLong { .. } | CannotAsk::Malformed(_)) => {
                let what = "too long for a message to this server; take shorter names";
                Poll::Ready(Err(FsError::because(Kind::BadName, name, what)))
            }
            Err(error) => Poll::Ready(Err(FsError::because(Kind::Io, name, error.to_string()))),
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.lock().waiting.remove(&ticket);
        }
    }
}

/// A call that waits for its reply.
struct UnderWay<'c> {
    shared: &'c Shared,
    tag: Tag,
    ticket: u64,
    ended: bool,
}

impl<'c> UnderWay<'c> {
    fn poll(&mut self, name: &str, cx: &mut Context<'_>) -> Poll<Result<Frame<'c>, FsError>> {
        let mut state = self.shared.lock();
        let State { calls, lost, .. } = &mut *state;
        match calls.get_mut(&self.ticket).map(|call| &mut call.end) {
            Some(CallEnd::Reply(bytes)) => {
                let bytes = std::mem::take(bytes);
                calls.remove(&self.ticket);
                self.ended = true;
                Poll::Ready(Ok(Frame { bytes, shared: self.shared }))
            }
            Some(CallEnd::Awaited(waker)) if lost.is_none() => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            _ => {
                calls.remove(&self.ticket);
                self.ended = true;
                let why = lost.as_deref().unwrap_or_default();
                Poll::Ready(Err(self.shared.lost(name, why)))
            }
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut state = self.shared.lock();
        let Some(call) = state.calls.remove(&self.ticket) else { return };
        if let CallEnd::Awaited(_) = call.end {
            // It is no longer under way here; the server has its flush right behind it.
            state.bytes -= call.bytes;
            state.by_tag.remove(&self.tag);
            let State { client, out, .. } = &mut *state;
            client.flush(self.tag, out);
            self.shared.write(&mut state);
            let woken = std::mem::take(&mut state.waiting);
            drop(state);
            woken.into_values().for_each(Waker::wake);
        }
    }
}

impl State {
    fn new(client: Client) -> Self {
        Self {
            client,
            out: Vec::new(),
            written: 0,
            is_full: false,
            calls: HashMap::new(),
            by_tag: HashMap::new(),
            bytes: 0,
            waiting: BTreeMap::new(),
            tickets: 0,
            spare: Vec::new(),
            lost: None,
        }
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn keep(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
    }

    /// Takes a whole message; `woken` are those to be told.
    fn hear(&mut self, frame: &[u8], woken: &mut Vec<Waker>) -> Result<(), ninep::Broken> {
        let ended = self.client.on_reply(frame, &mut self.out)?;
        if let Some((tag, End::Done(_) | End::Refused(_))) = ended
            && let Some(ticket) = self.by_tag.remove(&tag)
            && let Some(call) = self.calls.get_mut(&ticket)
        {
            self.bytes -= call.bytes;
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            if let CallEnd::Awaited(waker) = std::mem::replace(&mut call.end, CallEnd::Reply(bytes))
            {
                woken.push(waker);
            }
        }
        woken.extend(std::mem::take(&mut self.waiting).into_values());
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Writes what the socket takes at once; the thread does the rest.
    fn write(&self, state: &mut State) {
        while !state.is_full && state.lost.is_none() {
            let State { out, written, .. } = state;
            let rest = out.get(*written..).unwrap_or_default();
            if rest.is_empty() {
                out.clear();
                *written = 0;
                return;
            }
            match self.socket.write(rest) {
                Ok(len) => *written += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.is_full = true;
                    let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
                }
                // The thread reads the end of it, and tells everybody.
                Err(_) => return self.socket.close(),
            }
        }
    }

    /// Hands out replies, and writes what the socket did not take, until the
    /// connection ends. Says why it did.
    fn serve(&self) -> String {
        let mut incoming = Incoming { bytes: vec![0; MSIZE as usize], filled: 0 };
        loop {
            let is_full = {
                let state = self.lock();
                if let Some(why) = &state.lost {
                    return why.clone();
                }
                state.is_full
            };
            let wanted = if is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut fds =
                [PollFd::new(&self.socket, wanted), PollFd::new(&self.nudge, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return error.to_string(),
            }
            let [socket, nudge] = fds.map(|fd| fd.revents());
            if !nudge.is_empty() {
                let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
            }
            if socket.contains(PollFlags::OUT) {
                let mut state = self.lock();
                state.is_full = false;
                self.write(&mut state);
            }
            if socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
                && let Err(why) = self.read(&mut incoming)
            {
                return why;
            }
        }
    }

    fn read(&self, incoming: &mut Incoming) -> Result<(), String> {
        match self.socket.read(incoming.room()) {
            Ok(0) => return Err(CLOSED_THERE.to_owned()),
            Ok(len) => incoming.filled += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            // It did not read all that was sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(CLOSED_THERE.to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
        let mut woken = Vec::new();
        let mut state = self.lock();
        let heard = incoming.frames(&mut state, &mut woken);
        self.write(&mut state);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        heard.map_err(|error| error.to_string())
    }

    /// Ends it: every call fails with `why`, unless its reply is there.
    fn lose(&self, why: &str) {
        let mut state = self.lock();
        state.lost.get_or_insert_with(|| why.to_owned());
        state.out = Vec::new();
        let mut woken = std::mem::take(&mut state.waiting).into_values().collect::<Vec<_>>();
        woken.extend(state.calls.values().filter_map(|call| match &call.end {
            CallEnd::Awaited(waker) => Some(waker.clone()),
            CallEnd::Reply(_) => None,
        }));
        drop(state);
        self.socket.close();
        woken.into_iter().for_each(Waker::wake);
    }

    fn lost(&self, name: &str, why: &str) -> FsError {
        let what = format!("no connection to {} any more: {why}; connect again", self.address);
        FsError::because(Kind::Closed, name, what)
    }
}

/// What came and is no whole message yet.
struct Incoming {
    bytes: Vec<u8>,
    filled: usize,
}

impl Incoming {
    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// Has `state` hear all that is whole.
    fn frames(&mut self, state: &mut State, woken: &mut Vec<Waker>) -> Result<(), ninep::Broken> {
        let mut start = 0;
        while let Some(rest) = self.bytes.get(start..self.filled)
            && let Some(len) = frame_bytes(rest)
        {
            state.client.check_size(len)?;
            let Some(frame) = rest.get(..len) else { break };
            state.hear(frame, woken)?;
            start += len;
        }
        self.bytes.copy_within(start..self.filled, 0);
        self.filled -= start;
        Ok(())
    }
}

/// Why there is no connection.
enum Refused {
    System(io::Error),
    Server(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<rustix::io::Errno> for Refused {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

fn cannot_connect(address: &Address, patience: Duration, refused: Refused) -> FsError {
    use io::ErrorKind as E;
    let (kind, what) = match refused {
        Refused::Server(what) => (Kind::Io, format!("{what}; is that a 9P2000 server?")),
        Refused::System(error) => match error.kind() {
            E::NotFound => (
                Kind::NotFound,
                format!("there is no server: {error}; start it or mend the address"),
            ),
            E::ConnectionRefused => {
                (Kind::Closed, "nobody listens there; start the server or mend the address".into())
            }
            E::TimedOut => {
                (Kind::Closed, format!("no answer within {patience:?}; is that a 9P2000 server?"))
            }
            E::UnexpectedEof | E::ConnectionReset | E::BrokenPipe => {
                (Kind::Closed, "closed before the session began; is that a 9P2000 server?".into())
            }
            E::PermissionDenied => {
                (Kind::Permission, "permission denied; ask who runs the server for access".into())
            }
            _ => (Kind::Io, format!("{error}; check the address")),
        },
    };
    FsError::because(kind, address.to_string(), what)
}
