//! io_uring: one ring per accelerator, the local store registered as one
//! fixed buffer where the kernel allows it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};

use super::{Done, Engine, EngineError, IoOp, Kick, Wait};
use crate::arena::Arena;
use crate::queue::Direction;

/// User data of the poll on the kick descriptor; operation ids are 32-bit.
const KICK: u64 = u64::MAX;

pub(crate) struct Uring {
    ring: IoUring,
    kick: Arc<EventFd>,
    kick_armed: bool,
    /// Why fixed buffers are not used, if they are not.
    unfixed: Option<io::Error>,
    /// Keeps the registered memory, and what runs, mapped and open.
    flying: Vec<Option<IoOp>>,
    flying_count: usize,
    /// Operations the kernel would not take, to be reported as failed.
    refused: Vec<(u32, io::Error)>,
    arena: Arc<Arena>,
}

impl Uring {
    /// Sets a ring up and proves it by a no-op.
    pub(crate) fn open(depth: usize, arena: &Arc<Arena>) -> Result<Self, EngineError> {
        let fail = |what| move |source| EngineError { engine: "uring", what, source };
        // Room for the kick's poll beside every transfer.
        let entries = (depth + 1).next_power_of_two().clamp(2, 4096) as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .map_err(fail("io_uring_setup"))?;
        let kick = Arc::new(EventFd::new().map_err(fail("eventfd"))?);
        let mut engine = Self {
            ring,
            kick,
            kick_armed: false,
            unfixed: None,
            flying: Vec::new(),
            flying_count: 0,
            refused: Vec::new(),
            arena: arena.clone(),
        };
        engine.no_op().map_err(fail("a no-op"))?;
        engine.unfixed = engine.register().err();
        Ok(engine)
    }

    fn no_op(&mut self) -> io::Result<()> {
        // SAFETY: a no-op refers to no memory.
        unsafe { self.ring.submission().push(&opcode::Nop::new().build()) }
            .map_err(|_| io::ErrorKind::WouldBlock)?;
        self.ring.submit_and_wait(1)?;
        let result = self.ring.completion().next().map_or(-libc::EIO, |entry| entry.result());
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    fn register(&mut self) -> io::Result<()> {
        let whole = libc::iovec {
            iov_base: self.arena.start().as_ptr().cast(),
            iov_len: self.arena.len_bytes(),
        };
        // SAFETY: the arena stays mapped as long as this ring: it is a field
        // of the same struct, dropped after `Drop::drop` stopped the ring.
        unsafe { self.ring.submitter().register_buffers(&[whole]) }
    }

    fn entry(&self, op: &IoOp) -> io_uring::squeue::Entry {
        let fd = types::Fd(op.file.as_raw_fd());
        let memory = op.memory.as_ptr();
        let len = op.len as u32;
        let entry = match (op.direction, self.unfixed.is_none()) {
            (Direction::Get, true) => {
                opcode::ReadFixed::new(fd, memory, len, 0).offset(op.offset).build()
            }
            (Direction::Get, false) => opcode::Read::new(fd, memory, len).offset(op.offset).build(),
            (Direction::Put, true) => {
                opcode::WriteFixed::new(fd, memory, len, 0).offset(op.offset).build()
            }
            (Direction::Put, false) => {
                opcode::Write::new(fd, memory, len).offset(op.offset).build()
            }
        };
        entry.user_data(u64::from(op.id))
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller of `submit` keeps the operation's memory valid;
        // its descriptor is kept open in `flying`, the kick's by `self.kick`.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn arm_kick(&mut self) -> io::Result<()> {
        if !self.kick_armed {
            let poll =
                opcode::PollAdd::new(types::Fd(self.kick.0.as_raw_fd()), libc::POLLIN as u32);
            self.push(&poll.build().user_data(KICK))?;
            self.kick_armed = true;
        }
        Ok(())
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let (pending, taskrun, landed) = {
            let queue = self.ring.submission();
            let (pending, taskrun) = (!queue.is_empty(), queue.taskrun());
            drop(queue);
            (pending, taskrun, !self.ring.completion().is_empty())
        };
        let block = wait == Wait::Block && !landed && self.refused.is_empty();
        if !(block || pending || taskrun) {
            return Ok(());
        }
        let entered = if block {
            self.ring.submit_and_wait(1)
        } else if taskrun {
            // Entering with GETEVENTS runs the completions that wait for us.
            self.ring.submit_and_wait(0)
        } else {
            self.ring.submit()
        };
        match entered {
            Ok(_) => Ok(()),
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    fn collect(&mut self, done: Done<'_>) {
        for (id, error) in self.refused.drain(..) {
            self.flying[id as usize] = None;
            self.flying_count -= 1;
            done(id, Err(error));
        }
        while let Some(entry) = self.ring.completion().next() {
            if entry.user_data() == KICK {
                self.kick_armed = false;
                self.kick.clear();
                continue;
            }
            let id = entry.user_data() as u32;
            self.flying[id as usize] = None;
            self.flying_count -= 1;
            let result = entry.result();
            done(
                id,
                if result < 0 {
                    Err(io::Error::from_raw_os_error(-result))
                } else {
                    Ok(result as usize)
                },
            );
        }
    }
}

// SAFETY: the kernel touches an operation's memory from its submission to its
// completion entry; `stop` waits for all of them. Each entry is pushed once.
unsafe impl Engine for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn describe(&self) -> String {
        match &self.unfixed {
            None => "io_uring, local store registered as a fixed buffer".into(),
            Some(why) => format!("io_uring, plain opcodes (fixed buffers: {why})"),
        }
    }

    fn fixed_buffers(&self) -> Option<Result<(), String>> {
        Some(self.unfixed.as_ref().map_or(Ok(()), |why| Err(why.to_string())))
    }

    unsafe fn submit(&mut self, op: IoOp) {
        let entry = self.entry(&op);
        let index = op.id as usize;
        if self.flying.len() <= index {
            self.flying.resize_with(index + 1, || None);
        }
        self.flying[index] = Some(op);
        self.flying_count += 1;
        if let Err(error) = self.push(&entry) {
            self.refused.push((index as u32, error));
            return;
        }
        // At once: the device works while the other threads have their turns.
        // What it does not take now, or why, comes up at the next `enter`.
        let _ = self.ring.submit();
    }

    fn reap(&mut self, wait: Wait, done: Done<'_>) -> io::Result<()> {
        if wait == Wait::Block {
            self.arm_kick()?;
        }
        self.enter(wait)?;
        self.collect(done);
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.kick.clone()
    }

    fn stop(&mut self) {
        while self.flying_count > 0 {
            if self.reap(Wait::Block, &mut |_, _| ()).is_err() {
                // The ring is broken and the kernel may still write: leaving
                // the memory mapped for good is all that is safe.
                std::mem::forget(self.arena.clone());
                return;
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.stop();
    }
}

struct EventFd(OwnedFd);

impl EventFd {
    fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn clear(&self) {
        let mut count = [0u8; 8];
        // Nothing to clear is fine.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl Kick for EventFd {
    fn kick(&self) {
        // A full counter is as loud as one more.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
