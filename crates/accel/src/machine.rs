//! What the accelerators of one run share: mailboxes, signals, parcels
//! between local stores, and the knowledge of who sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::engine::Kick;
use crate::parcel::Parcel;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks, so a poisoned one is still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything one accelerator can be told from outside.
#[derive(Default)]
pub(crate) struct Post {
    /// Something came since the accelerator last looked.
    news: AtomicBool,
    sleeping: AtomicBool,
    /// The accelerator is gone: what comes now is news to nobody.
    ended: AtomicBool,
    kicker: OnceLock<Arc<dyn Kick>>,
    pub(crate) inbound: Mutex<VecDeque<u32>>,
    pub(crate) outbound: Mutex<VecDeque<u32>>,
    /// One 32-bit register; signals are OR-ed in, as in the SPU's OR mode.
    pub(crate) signals: AtomicU32,
    pub(crate) parcels: Mutex<VecDeque<Parcel>>,
    /// Threads whose wakers were called.
    pub(crate) woken: Mutex<Vec<u32>>,
}

impl Post {
    /// Tells the accelerator to look at what came.
    pub(crate) fn notify(&self) {
        self.news.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst)
            && let Some(kicker) = self.kicker.get()
        {
            kicker.kick();
        }
    }

    pub(crate) fn set_kicker(&self, kicker: Arc<dyn Kick>) {
        // Set once, when the accelerator starts.
        let _ = self.kicker.set(kicker);
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    fn has_reader_of_news(&self) -> bool {
        self.news.load(Ordering::SeqCst) && !self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::SeqCst)
    }

    /// Announces a sleep; `false` if there is news to look at instead.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let quiet = !self.news.load(Ordering::SeqCst);
        if !quiet {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        quiet
    }

    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

/// The accelerators of one run.
pub(crate) struct Machine {
    pub(crate) posts: Vec<Arc<Post>>,
    pub(crate) mailbox_entries: usize,
    census: Mutex<Census>,
    host_news: Condvar,
    over: AtomicBool,
}

struct Census {
    /// Accelerators and host that have not ended.
    live: usize,
    /// Those of them that wait for the others.
    waiting: usize,
    /// Wakers of sleeping threads that somebody outside holds.
    outside_wakers: usize,
    /// A host runs beside the accelerators.
    with_host: bool,
    /// Something for the host to look at.
    host_mail: bool,
    deadlock: bool,
}

/// Who takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Host,
    Accelerator(usize),
}

/// What came of lying down to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Sleep; call `woke_up` afterwards.
    Allowed,
    /// Nobody is left who could ever wake anyone.
    Deadlock,
}

impl Machine {
    pub(crate) fn new(accelerators: usize, with_host: bool, mailbox_entries: usize) -> Self {
        Self {
            posts: (0..accelerators).map(|_| Arc::default()).collect(),
            mailbox_entries: mailbox_entries.max(1),
            census: Mutex::new(Census {
                live: accelerators + usize::from(with_host),
                waiting: 0,
                outside_wakers: 0,
                with_host,
                host_mail: false,
                deadlock: false,
            }),
            host_news: Condvar::new(),
            over: AtomicBool::new(false),
        }
    }

    /// Asks to sleep without I/O in flight, `outside_wakers` of whose wakers others hold.
    pub(crate) fn lie_down(&self, outside_wakers: usize) -> Sleep {
        let mut census = lock(&self.census);
        census.waiting += 1;
        census.outside_wakers += outside_wakers;
        self.judge(&mut census);
        if census.deadlock { Sleep::Deadlock } else { Sleep::Allowed }
    }

    pub(crate) fn woke_up(&self, outside_wakers: usize) -> Sleep {
        let mut census = lock(&self.census);
        census.waiting -= 1;
        census.outside_wakers -= outside_wakers;
        if census.deadlock { Sleep::Deadlock } else { Sleep::Allowed }
    }

    /// An accelerator of its own may be run again after a deadlock, when its
    /// caller has done something about it.
    pub(crate) fn forget_deadlock_of_one(&self) {
        let mut census = lock(&self.census);
        if self.posts.len() == 1 && !census.with_host {
            census.deadlock = false;
        }
    }

    /// Declares a deadlock if all wait, nobody outside can wake, and no news is under way.
    fn judge(&self, census: &mut Census) {
        let stuck = census.live > 0
            && census.waiting == census.live
            && census.outside_wakers == 0
            && !census.host_mail
            && !self.posts.iter().any(|post| post.has_reader_of_news());
        if stuck {
            census.deadlock = true;
            self.rouse();
        }
    }

    /// One accelerator, or the host, ended.
    pub(crate) fn leave(&self, who: Member) {
        let mut census = lock(&self.census);
        census.live -= 1;
        match who {
            Member::Accelerator(number) => {
                self.posts[number].ended.store(true, Ordering::SeqCst);
            }
            Member::Host => (census.with_host, census.host_mail) = (false, false),
        }
        self.judge(&mut census);
        drop(census);
        self.host_news.notify_all();
    }

    /// Ends the run early: an accelerator failed.
    pub(crate) fn call_off(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.rouse();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn rouse(&self) {
        for post in &self.posts {
            post.notify();
        }
        self.host_news.notify_all();
    }

    /// Tells the host that an outbound mailbox or the run changed.
    pub(crate) fn notify_host(&self) {
        let mut census = lock(&self.census);
        // Mail that nobody will look at wakes nobody.
        census.host_mail = census.with_host;
        drop(census);
        self.host_news.notify_all();
    }

    /// Blocks the host until `look` finds something; `None` on deadlock or a failed run.
    pub(crate) fn host_wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut census = lock(&self.census);
        loop {
            census.host_mail = false;
            if let Some(found) = look() {
                return Some(found);
            }
            census.waiting += 1;
            self.judge(&mut census);
            if census.deadlock || self.is_over() || census.live == 1 {
                census.waiting -= 1;
                return None;
            }
            census = self.host_news.wait(census).unwrap_or_else(PoisonError::into_inner);
            census.waiting -= 1;
        }
    }
}
