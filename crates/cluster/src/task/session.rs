//! Leases of one input on this machine.

use storage::Input;
use stream::{
    Direct, Drive, Kernel, Options, PlanError, Shares, Stats, StreamError, Unfound, plan_shares,
    run_shares, step_shares,
};

use super::of::{Own, Place};
use super::{Ended, Session, Tell};
use crate::{Failure, Lease, LeaseId};

/// Where a session's units are.
pub(super) enum Reads<'t> {
    Own(&'t Input),
    Sent(Box<Input>),
}

pub(super) struct KernelSession<'t, K: Kernel> {
    kernel: Own<'t, K>,
    place: Place<'t>,
    shares: Shares<'t, K::Part>,
}

impl<'t, K: Kernel> KernelSession<'t, K> {
    /// Without anything to read it computes nothing.
    pub(super) fn new(kernel: Own<'t, K>, place: Place<'t>, tell: Tell<'t>) -> Self {
        let name = match &place.reads {
            Some(Reads::Own(input)) => input.name(),
            Some(Reads::Sent(input)) => input.name(),
            None => kernel.name(),
        };
        // What does not step is not asked how long one thread takes.
        let lanes = place.plan.map_or(1, |plan| plan.accelerators as u32);
        let (name, lanes, saves) = (name.to_owned(), lanes, kernel.clone());
        let shares = Shares::new(move |number, found: Result<stream::Part<_>, _>| {
            let found = found.map(|found| stream::Part { took: found.took * lanes, ..found });
            tell(LeaseId(number), ended(&*saves, &name, found));
        });
        Self { kernel, place, shares }
    }

    /// Where it reads, and how.
    fn input(&self) -> Result<(&Input, Options), StreamError> {
        let mut options = self.place.options.clone();
        let input = match &self.place.reads {
            Some(Reads::Own(input)) => *input,
            Some(Reads::Sent(input)) => {
                // It is in memory.
                if options.direct == Direct::Auto {
                    options.direct = Direct::Off;
                }
                &**input
            }
            None => {
                let why = "the input was neither opened nor sent".to_owned();
                return Err(PlanError::Shares { why, cure: "this is a bug in Cellway" }.into());
            }
        };
        // What is cached may have changed, but not what this may take.
        if let Some(promised) = self.place.plan {
            let plan = plan_shares(&*self.kernel, input, self.place.output, &options)?;
            if plan.memory_bytes > promised.memory_bytes {
                options.threads = Some(promised.threads);
            }
        }
        Ok((input, options))
    }
}

impl<K: Kernel> Session for KernelSession<'_, K> {
    fn give(&self, lease: &Lease) {
        self.shares.give(lease.id.0, lease.first..lease.first + lease.units);
    }

    fn stop(&self, lease: LeaseId) {
        self.shares.stop(lease.0);
    }

    fn shorten(&self, lease: LeaseId, units: u64) -> bool {
        self.shares.shorten(lease.0, units)
    }

    fn close(&self) {
        self.shares.close();
    }

    fn run(&self) -> Result<Stats, StreamError> {
        let (input, options) = self.input()?;
        let Self { kernel, place, shares } = self;
        run_shares(&**kernel, input, place.output, &options, place.progress, shares)
    }

    fn step(&self, drive: &mut Drive<'_>) -> Result<Stats, StreamError> {
        let (input, options) = self.input()?;
        let Self { kernel, place, shares } = self;
        step_shares(&**kernel, input, place.output, &options, place.progress, shares, drive)
    }
}

/// What became of a lease of which `found` was found.
pub(super) fn ended<K: Kernel>(
    kernel: &K,
    input: &str,
    found: Result<stream::Part<K::Part>, Unfound>,
) -> Ended {
    match found {
        Ok(stream::Part { part, took }) => {
            let mut saved = Vec::new();
            match kernel.save(&part, &mut saved) {
                Ok(()) => Ended::Computed(saved, took),
                Err(error) => {
                    let what = format!("{input}: {error}");
                    Ended::Failed(Failure { unit: None, offset: error.offset, what })
                }
            }
        }
        Err(Unfound::Stopped) => Ended::Stopped,
        Err(Unfound::Failed { unit, error }) => {
            let offset = match &error {
                StreamError::Kernel { error, .. } => error.offset,
                StreamError::Input(error) => error.offset(),
                _ => None,
            };
            Ended::Failed(Failure { unit: Some(unit), offset, what: error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use accel::EngineChoice;
    use kernels::Crc32c;
    use stream::Progress;

    use super::super::{KernelTask, Task as _};
    use super::*;
    use crate::JobId;

    /// The memory of a session over 1 MiB, and that of one with as many threads as are best.
    fn session_bytes(promised_threads: usize, is_joined: bool) -> (u64, u64) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        let input = Input::open(file.path()).unwrap();
        let (kernel, progress) = (Crc32c::new(), Progress::default());
        let options = Options {
            accelerators: Some(1),
            block_bytes: Some(1 << 16),
            engine: EngineChoice::Pread,
            ..Options::default()
        };
        let task = || KernelTask::new(&kernel, &input, None, &options, &progress).unwrap();
        let (mut promised, best) = (task(), task().plan.memory_bytes);
        let fewer = Options { threads: Some(promised_threads), ..options.clone() };
        promised.plan = plan_shares(&kernel, &input, None, &fewer).unwrap();
        if is_joined {
            let description = promised.description().clone();
            promised.join(&description).unwrap();
        }
        let found = Mutex::new(0);
        let tell = |_, ended| {
            assert!(matches!(ended, Ended::Computed(..)), "{ended:?}");
            *found.lock().unwrap() += 1;
        };
        let session = promised.session(None, Box::new(tell));
        session.give(&Lease { id: LeaseId(1), job: JobId(0), first: 0, units: 16 });
        session.close();
        let stats = session.run().unwrap();
        drop(session);
        assert_eq!(found.into_inner().unwrap(), 1);
        (stats.plan.memory_bytes, best)
    }

    #[test]
    fn a_session_takes_what_was_promised_and_no_more() {
        let (taken, best) = session_bytes(1, false);
        assert!(taken < best, "{taken} of {best}");
        // More than is best is no reason to take it.
        let (taken, best) = session_bytes(16, false);
        assert_eq!(taken, best);
        // By the blocks of its manager, what is promised is decided anew.
        let (taken, best) = session_bytes(1, true);
        assert_eq!(taken, best);
    }
}
