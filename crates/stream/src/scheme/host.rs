//! The host's part of a run: its threads beside the accelerators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, Scope, scope};
use std::time::{Duration, Instant};

use accel::{Buf, Cx, Faults, HostIo, RunError};
use storage::{Input, Output, OutputError};

use super::assisted::Assisted;
use super::staged::Staged;
use super::{Io, When};
use crate::error::{Failure, StreamError};
use crate::plan::{Piece, Plan, PlanError};
use crate::stats::Spent;

/// What the host does beside the accelerators, and what they ask of it.
pub(crate) enum Host<'j> {
    /// Nothing: each accelerator does its own I/O.
    Own,
    Assisted(Box<Assisted<'j>>),
    Staged(Box<Staged<'j>>),
}

/// Takes the failure of a host thread.
pub(crate) type Fail<'f> = &'f (dyn Fn(Failure) + Sync);

impl<'j> Host<'j> {
    pub(crate) fn of(
        plan: &'j Plan,
        input: &'j Input,
        output: Option<&'j Output>,
    ) -> Result<Self, PlanError> {
        Ok(match &plan.io {
            Io::Own | Io::Mapped => Self::Own,
            Io::Assisted { prefetch } => {
                Self::Assisted(Box::new(Assisted::new(plan, input, output, *prefetch)))
            }
            Io::Staged(staging) => {
                Self::Staged(Box::new(Staged::new(plan, staging, input, output)?))
            }
        })
    }

    /// Does `work`, which runs the accelerators, and the host's part before,
    /// beside and after it.
    pub(crate) fn beside<R>(
        &self,
        faults: Option<Faults>,
        fail: Fail<'_>,
        work: impl FnOnce() -> Result<R, RunError>,
    ) -> Result<R, StreamError> {
        let io = move || HostIo::new(faults);
        // The writer's faults are not the reader's.
        let other = faults.map(|faults| Faults { seed: faults.seed.wrapping_add(1), ..faults });
        let write = move |staged: &Staged<'_>| {
            staged.write(&mut HostIo::new(other).write_behind()).unwrap_or_else(fail);
        };
        match self {
            Self::Own => return Ok(work()?),
            Self::Assisted(assisted) if assisted.prefetch == Some(When::Ahead) => {
                assisted.read_ahead();
            }
            Self::Staged(staged) if staged.layout.reader == When::Ahead => staged.read(&mut io()),
            Self::Assisted(_) | Self::Staged(_) => {}
        }
        let done = scope(|scope| {
            let mut ender = Ender { host: self, is_fine: false };
            match self {
                Self::Own => {}
                Self::Assisted(assisted) => {
                    self.start(scope, "host-calls", move || assisted.serve(&mut io()))?;
                    if assisted.prefetch == Some(When::Beside) {
                        self.start(scope, "host-prefetch", || assisted.read_ahead())?;
                    }
                }
                Self::Staged(staged) => {
                    if staged.layout.reader == When::Beside {
                        self.start(scope, "host-reader", move || staged.read(&mut io()))?;
                    }
                    if staged.layout.writer == When::Beside {
                        self.start(scope, "host-writer", move || write(staged))?;
                    }
                }
            }
            let done = work()?;
            if let Self::Staged(staged) = self {
                staged.no_more_is_put();
                ender.is_fine = true;
            }
            Ok::<_, StreamError>(done)
        })?;
        if let Self::Staged(staged) = self
            && staged.layout.writer == When::After
        {
            write(staged);
        }
        Ok(done)
    }

    /// Starts a host thread, whose panic ends the run.
    fn start<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        name: &str,
        body: impl FnOnce() + Send + 's,
    ) -> Result<(), StreamError> {
        let guarded = move || {
            let mut ender = Ender { host: self, is_fine: false };
            body();
            ender.is_fine = true;
        };
        let started = Builder::new().name(name.to_owned()).spawn_scoped(scope, guarded);
        started
            .map(drop)
            .map_err(|source| StreamError::HostThread { name: name.to_owned(), source })
    }

    /// Gets unit `index`, surroundings included; `None` at the end, or if it or
    /// an earlier one failed elsewhere. Of a pipe it may be another unit.
    pub(crate) async fn get<'env>(
        &'env self,
        cx: &Cx<'env>,
        index: u64,
        buf: Buf,
    ) -> Result<(Buf, Option<Piece>), Failure> {
        match self {
            Self::Own => Ok((buf, None)),
            Self::Assisted(assisted) => assisted.get(index, buf).await,
            Self::Staged(staged) => staged.get(cx, index, buf).await,
        }
    }

    /// Whether each put must have ended before the next one in the output starts.
    pub(crate) fn writes_in_order(&self) -> bool {
        matches!(self, Self::Assisted(assisted) if assisted.writes_in_order())
    }

    /// The place of what a rewrite puts next, in the order of the output.
    pub(crate) fn next_place(&self) -> u64 {
        match self {
            Self::Staged(staged) => staged.next_place(),
            Self::Own | Self::Assisted(_) => 0,
        }
    }

    /// Puts the buffer's view, which starts `at` bytes into the output: what was
    /// made of unit `index`, or some of it. Its place is its number in the output's order.
    pub(crate) async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        (index, place): (u64, u64),
        at: u64,
        buf: Buf,
    ) -> Result<Buf, OutputError> {
        match self {
            Self::Own => Ok(buf),
            Self::Assisted(assisted) => assisted.put(at, buf).await,
            Self::Staged(staged) => staged.put(cx, (index, place), at, buf).await,
        }
    }

    /// Unit `index` failed: nothing from it on is wanted.
    pub(crate) fn close_from(&self, index: u64) {
        if let Self::Staged(staged) = self {
            staged.close_from(index);
        }
    }

    /// What the host's part took, and what was waited for it.
    pub(crate) fn spent(&self) -> Spent {
        match self {
            Self::Own => Spent::default(),
            Self::Assisted(assisted) => {
                let Spent { host_read, host_write, wait, .. } = assisted.clock.spent();
                // Of a call's time, what it waited for its turn.
                let wait = wait.saturating_sub(assisted.served.spent().wait);
                Spent { host_read, host_write, wait, ..Spent::default() }
            }
            Self::Staged(staged) => staged.clock.spent(),
        }
    }

    fn end(&self) {
        match self {
            Self::Own => {}
            Self::Assisted(assisted) => assisted.end(),
            Self::Staged(staged) => staged.end(),
        }
    }
}

/// Ends the host's part with its scope, unless it ends by itself.
struct Ender<'h, 'j> {
    host: &'h Host<'j>,
    is_fine: bool,
}

impl Drop for Ender<'_, '_> {
    fn drop(&mut self) {
        if !self.is_fine {
            self.host.end();
        }
    }
}

/// Sums of time that several threads add to.
#[derive(Debug, Default)]
pub(super) struct Clock {
    pub(super) read: Sum,
    pub(super) write: Sum,
    pub(super) wait: Sum,
}

#[derive(Debug, Default)]
pub(super) struct Sum(AtomicU64);

impl Sum {
    pub(super) fn add_since(&self, started: Instant) {
        self.0.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Clock {
    fn spent(&self) -> Spent {
        let (host_read, host_write) = (self.read.get(), self.write.get());
        Spent { host_read, host_write, wait: self.wait.get(), ..Spent::default() }
    }
}
