//! Leases of one input on this machine.

use storage::Input;
use stream::{
    Direct, Drive, Kernel, Options, PlanError, Shares, Stats, StreamError, Unfound, run_shares,
    step_shares,
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
        let (name, lanes, saves) = (name.to_owned(), place.lanes, kernel.clone());
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
