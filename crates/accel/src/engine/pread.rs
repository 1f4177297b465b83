//! A pool of threads that call preadv2 and pwritev2: works everywhere.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::io::{ReadWriteFlags, preadv2, pwritev2};

use super::{Done, Engine, IoOp, Kick, Wait};
use crate::machine::lock;
use crate::queue::Direction;

/// More threads than this only queue up in the kernel.
const THREADS_MAX: usize = 32;

pub(crate) struct PreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
    why: String,
    /// Taken by `reap`, empty between two calls.
    reaped: VecDeque<(u32, io::Result<usize>)>,
}

struct Shared {
    jobs: Mutex<Jobs>,
    job_came: Condvar,
    landed: Mutex<Landed>,
    something_landed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<IoOp>,
    idle_threads: usize,
    stop: bool,
}

#[derive(Default)]
struct Landed {
    results: VecDeque<(u32, io::Result<usize>)>,
    kicked: bool,
}

impl PreadPool {
    /// A pool for `depth` operations at a time; threads start when needed.
    pub(crate) fn open(depth: usize, why: &str) -> Self {
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            job_came: Condvar::new(),
            landed: Mutex::default(),
            something_landed: Condvar::new(),
        });
        Self {
            shared,
            threads: Vec::new(),
            threads_max: depth.clamp(1, THREADS_MAX),
            why: why.into(),
            reaped: VecDeque::new(),
        }
    }

    fn hand_over(&mut self, op: IoOp) {
        let start_thread = {
            let mut jobs = lock(&self.shared.jobs);
            jobs.waiting.push_back(op);
            self.shared.job_came.notify_one();
            jobs.idle_threads < jobs.waiting.len() && self.threads.len() < self.threads_max
        };
        if !start_thread {
            return;
        }
        let shared = self.shared.clone();
        match std::thread::Builder::new()
            .name("pread".into())
            .stack_size(64 * 1024)
            .spawn(move || shared.work())
        {
            Ok(thread) => self.threads.push(thread),
            // With at least one thread the job only waits longer.
            Err(_) if !self.threads.is_empty() => {}
            Err(error) => self.fail_waiting(&error),
        }
    }

    fn fail_waiting(&self, error: &io::Error) {
        for op in lock(&self.shared.jobs).waiting.drain(..) {
            self.shared
                .land(op.id, Err(io::Error::new(error.kind(), "no thread for file transfers")));
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let op = {
                let mut jobs = lock(&self.jobs);
                jobs.idle_threads += 1;
                while jobs.waiting.is_empty() && !jobs.stop {
                    jobs = self.job_came.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                }
                jobs.idle_threads -= 1;
                match jobs.waiting.pop_front() {
                    Some(op) => op,
                    None => return,
                }
            };
            let result = transfer(&op, ReadWriteFlags::empty());
            self.land(op.id, result);
        }
    }

    fn land(&self, id: u32, result: io::Result<usize>) {
        lock(&self.landed).results.push_back((id, result));
        self.something_landed.notify_one();
    }
}

impl Kick for Shared {
    fn kick(&self) {
        lock(&self.landed).kicked = true;
        self.something_landed.notify_one();
    }
}

/// Carries one operation out on this thread.
fn transfer(op: &IoOp, flags: ReadWriteFlags) -> io::Result<usize> {
    Ok(match op.direction {
        Direction::Get => {
            // SAFETY: by `submit`'s contract the range is valid and this
            // operation's alone until its completion is reported.
            let memory = unsafe { std::slice::from_raw_parts_mut(op.memory.as_ptr(), op.len) };
            preadv2(&op.file, &mut [IoSliceMut::new(memory)], op.offset, flags)?
        }
        Direction::Put => {
            // SAFETY: as above; the range is only read.
            let memory = unsafe { std::slice::from_raw_parts(op.memory.as_ptr(), op.len) };
            pwritev2(&op.file, &[IoSlice::new(memory)], op.offset, flags)?
        }
    })
}

// SAFETY: only `transfer` touches memory, between hand-over and landing;
// `stop` joins the threads that call it.
unsafe impl Engine for PreadPool {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn describe(&self) -> String {
        format!("pool of up to {} threads with preadv2/pwritev2 ({})", self.threads_max, self.why)
    }

    unsafe fn submit(&mut self, op: IoOp) {
        // What the page cache holds is copied here and now: a hand-over to
        // another thread would cost more than the copy.
        if op.direction == Direction::Get && op.align_bytes == 1 {
            match transfer(&op, ReadWriteFlags::NOWAIT) {
                // Nobody waits for it: who would, submits.
                Ok(moved) if moved > 0 => {
                    return lock(&self.shared.landed).results.push_back((op.id, Ok(moved)));
                }
                _ => {}
            }
        }
        self.hand_over(op);
    }

    fn reap(&mut self, wait: Wait, done: Done<'_>) -> io::Result<()> {
        let mut landed = lock(&self.shared.landed);
        while wait == Wait::Block && landed.results.is_empty() && !landed.kicked {
            landed =
                self.shared.something_landed.wait(landed).unwrap_or_else(PoisonError::into_inner);
        }
        landed.kicked = false;
        std::mem::swap(&mut landed.results, &mut self.reaped);
        drop(landed);
        for (id, result) in self.reaped.drain(..) {
            done(id, result);
        }
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.shared.clone()
    }

    fn stop(&mut self) {
        lock(&self.shared.jobs).stop = true;
        self.shared.job_came.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has stopped as well.
            let _ = thread.join();
        }
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        self.stop();
    }
}
