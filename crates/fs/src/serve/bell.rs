//! What wakes the thread of a connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Wake;

use crate::sync::lock;
use ninep::CallId;
use rustix::event::{EventfdFlags, eventfd};

/// Calls that are to be polled again, or that it is time to stop; a thread
/// sleeps on its descriptor until it is rung.
pub(super) struct Bell {
    rung: Mutex<Rung>,
    event: OwnedFd,
}

/// What the bell was rung for.
#[derive(Default)]
pub(super) struct Rung {
    pub(super) calls: Vec<CallId>,
    pub(super) stop: bool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { rung: Mutex::default(), event }))
    }

    /// For good: later looks say so too.
    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.ring();
    }

    /// What it was rung for since it was asked last.
    pub(super) fn answer(&self) -> Rung {
        // First, so that what is added from now on rings again.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let mut rung = self.lock();
        let stop = rung.stop;
        std::mem::replace(&mut rung, Rung { calls: Vec::new(), stop })
    }

    fn lock(&self) -> MutexGuard<'_, Rung> {
        lock(&self.rung)
    }

    fn ring(&self) {
        // Full, it is rung already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Rings for one call, once until it is polled again.
pub(super) struct CallWaker {
    id: CallId,
    bell: Arc<Bell>,
    woken: AtomicBool,
}

impl CallWaker {
    pub(super) fn new(id: CallId, bell: &Arc<Bell>) -> Arc<Self> {
        Arc::new(Self { id, bell: Arc::clone(bell), woken: AtomicBool::new(false) })
    }

    /// The call is about to be polled.
    pub(super) fn polled(&self) {
        self.woken.store(false, Ordering::Release);
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.bell.lock().calls.push(self.id);
            self.bell.ring();
        }
    }
}
