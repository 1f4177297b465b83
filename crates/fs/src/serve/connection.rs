//! One client over a stream.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ninep::{HangUp, Session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

use super::ServeOptions;
use super::bell::Bell;
use super::conversation::Conversation;
use crate::server::FileServer;

/// What is read at once, in bytes, until longer messages come.
const INPUT_BYTES: usize = 16 << 10;

/// How long the next request is looked for after an answer, before the thread
/// sleeps: to be woken on another core takes as long as all of a short read.
const LINGER: Duration = Duration::from_micros(20);

/// A client that is served, by a thread of its own. Dropped, it is hung up.
pub struct Connection {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Connection {
    /// Serves whoever is at the other end of `stream`, a socket, until that hangs up.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn over(
        stream: impl Into<OwnedFd>,
        root: Arc<dyn FileServer>,
        options: ServeOptions,
    ) -> io::Result<Self> {
        let (stream, bell) = (stream.into(), Bell::new()?);
        let conversation = Conversation::new(root, options.client, &bell);
        let rung = Arc::clone(&bell);
        let thread = thread::Builder::new().name("9p connection".into()).spawn(move || {
            let mut client = Client {
                stream,
                conversation,
                bell: rung,
                options,
                input: Input::new(),
                has_answered: false,
                half_a_frame: None,
            };
            let Err(Over) = client.serve();
            client.end();
        })?;
        Ok(Self { bell, thread: Some(thread) })
    }

    /// Serves within the process: the client's end of a stream.
    ///
    /// # Errors
    /// The system gives no thread or descriptor.
    pub fn pair(
        root: Arc<dyn FileServer>,
        options: ServeOptions,
    ) -> io::Result<(UnixStream, Self)> {
        let (client, server) = UnixStream::pair()?;
        Ok((client, Self::over(server, root, options)?))
    }

    /// Whether the client was hung up, or has.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Begins to hang up; dropping it waits for the end.
    pub(super) fn stop(&self) {
        self.bell.stop();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the tree has ended this client, and no other.
            let _ = thread.join();
        }
    }
}

/// A client is served no more: it left, sent what cannot be answered, or was
/// too slow, or the server stops. It learns that by the end of the stream.
struct Over;

impl From<Errno> for Over {
    fn from(_: Errno) -> Self {
        Self
    }
}

impl From<HangUp> for Over {
    fn from(_: HangUp) -> Self {
        Self
    }
}

struct Client {
    stream: OwnedFd,
    conversation: Conversation,
    bell: Arc<Bell>,
    options: ServeOptions,
    input: Input,
    /// Since it was waited last.
    has_answered: bool,
    /// Since when a message has begun and none was completed.
    half_a_frame: Option<Instant>,
}

impl Client {
    fn serve(&mut self) -> Result<Infallible, Over> {
        let mut no_session = None;
        loop {
            let whole = self.take_frames()?;
            self.send()?;
            // While replies wait to be read by the client, it is asked no more.
            let reading = !is_full(&self.conversation);
            if reading && whole {
                continue;
            }
            let handshake = !self.conversation.session().is_open();
            let half = reading && self.input.is_partial();
            let ends = [
                since(handshake, &mut no_session, self.options.handshake),
                since(half, &mut self.half_a_frame, self.options.frame),
            ];
            if self.wait(reading, ends.into_iter().flatten().min())? {
                self.input.fill(&self.stream)?;
            }
        }
    }

    /// Takes whole messages until there is enough to send. Whether some are left.
    fn take_frames(&mut self) -> Result<bool, Over> {
        while let Some(frame) = self.input.frame(self.conversation.session())? {
            if is_full(&self.conversation) {
                return Ok(true);
            }
            self.conversation.take(frame)?;
            self.input.start += frame.len();
            self.half_a_frame = None;
        }
        Ok(false)
    }

    /// Sends what the stream takes now.
    fn send(&mut self) -> Result<(), Over> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.conversation.replies.bytes() > 0 {
            let slices = self.conversation.replies.slices();
            match sendmsg(&self.stream, &slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    self.conversation.replies.sent(sent);
                    self.has_answered = true;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the stream, for calls to poll, which it does, and for the end.
    /// Whether the stream has something to read.
    fn wait(&mut self, reading: bool, deadline: Option<Instant>) -> Result<bool, Over> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, reading);
        wanted.set(PollFlags::OUT, self.conversation.replies.bytes() > 0);
        let mut both = [PollFd::new(&self.stream, wanted), PollFd::new(&self.bell, PollFlags::IN)];
        let lingers = std::mem::take(&mut self.has_answered) && !wanted.contains(PollFlags::OUT);
        let ready = lingers && linger(&mut both)? || poll_until(&mut both, deadline)?;
        let [stream, bell] = both.map(|fd| fd.revents());
        if !ready {
            return Err(Over);
        }
        if !bell.is_empty() {
            let rung = self.bell.answer();
            if rung.stop {
                return Err(Over);
            }
            self.conversation.woken(rung.calls);
        }
        Ok(reading && stream.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    /// Carries out what is to be done when a client has gone.
    fn end(&mut self) {
        // What was answered before the client broke a rule is not kept from it.
        let _ = self.send();
        let _ = shutdown(&self.stream, Shutdown::Both);
        self.conversation.end();
        let deadline = Instant::now() + self.options.frame;
        while self.conversation.is_waiting() {
            let mut bell = [PollFd::new(&self.bell, PollFlags::IN)];
            if !matches!(poll_until(&mut bell, Some(deadline)), Ok(true)) {
                return;
            }
            self.conversation.woken(self.bell.answer().calls);
        }
    }
}

/// Whether there is enough to send before more is taken: of long replies one at
/// a time, which is still in the cache then.
fn is_full(conversation: &Conversation) -> bool {
    conversation.replies.bytes() >= conversation.session().message_bytes() / 2
}

/// When that which began at `begun` is late, as long as it lasts.
fn since(lasts: bool, begun: &mut Option<Instant>, limit: Duration) -> Option<Instant> {
    if !lasts {
        *begun = None;
        return None;
    }
    Some(*begun.get_or_insert_with(Instant::now) + limit)
}

/// Whether one is ready soon. Others run meanwhile.
fn linger(fds: &mut [PollFd<'_>]) -> Result<bool, Errno> {
    let begun = Instant::now();
    while begun.elapsed() < LINGER {
        match poll(fds, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => thread::yield_now(),
            ready => return ready.map(|_| true),
        }
    }
    Ok(false)
}

/// Whether one is ready, or it is late.
pub(super) fn poll_until(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<bool, Errno> {
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// What has come in.
struct Input {
    bytes: Vec<u8>,
    /// Where the first message that was not taken begins.
    start: usize,
    /// Where what has come in ends.
    end: usize,
    /// The length of the message that has begun, as far as it is known.
    message_bytes: usize,
}

impl Input {
    fn new() -> Self {
        Self { bytes: vec![0; INPUT_BYTES], start: 0, end: 0, message_bytes: 0 }
    }

    fn is_partial(&self) -> bool {
        self.start < self.end
    }

    /// The next whole message.
    fn frame<N: Clone, O: Clone>(
        &mut self,
        session: &Session<N, O>,
    ) -> Result<Option<&[u8]>, HangUp> {
        let there = self.bytes.get(self.start..self.end).unwrap_or_default();
        self.message_bytes = session.frame(there)?.unwrap_or(0);
        Ok(there.get(..self.message_bytes).filter(|frame| !frame.is_empty()))
    }

    /// Reads once, with room for all of the message that has begun.
    fn fill(&mut self, stream: &OwnedFd) -> Result<(), Over> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < self.message_bytes {
            self.bytes.resize(self.message_bytes, 0);
        }
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        match recv(stream, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Over),
            Ok((read, _)) => {
                self.end += read;
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ninep::{Request, Tag};

    use super::*;
    use crate::ram::RamServer;

    #[test]
    fn a_message_that_was_completed_begins_the_time_of_the_next() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (bell, options) = (Bell::new().unwrap(), ServeOptions::default());
        let conversation = Conversation::new(Arc::new(RamServer::new(0)), options.client, &bell);
        let mut client = Client {
            stream: ours.into(),
            conversation,
            bell,
            options,
            input: Input::new(),
            has_answered: false,
            half_a_frame: Some(Instant::now()),
        };
        let mut message = Vec::new();
        let version = Request::Version { msize: 8192, version: "9P2000" };
        version.encode(Tag::NONE, &mut message).unwrap();
        let (half, rest) = message.split_at(10);
        let mut come = |bytes: &[u8]| {
            std::io::Write::write_all(&mut &theirs, bytes).unwrap();
            assert!(client.input.fill(&client.stream).is_ok());
            assert!(matches!(client.take_frames(), Ok(false)));
            client.half_a_frame
        };
        assert!(come(half).is_some());
        assert!(come(&[rest, half].concat()).is_none());
    }
}
