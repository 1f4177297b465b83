//! Processes that have no part in a run, or end before the others let go of it.

use std::cell::RefCell;
use std::time::Duration;

use cellway::cluster::drive::{ClusterError, Config, Farewell, LINGER_MAX, Ran};
use cellway::cluster::task::Part;
use cellway::cluster::transport::Endpoint;
use cellway::storage;

use super::{Mode, Nodes, Peer, Print, Rank, leave, meet, tell_refused};
use crate::exit::{self, Exit};
use crate::run::RunArgs;

impl Nodes {
    /// The first one does all, and the others end after it.
    pub(super) fn stay_alone(&self, linger: Duration) -> anyhow::Result<()> {
        let Self::Peer(peer, rank) = self else { return Ok(()) };
        let endpoint = begun(peer)?;
        // The first takes as long as it takes.
        let linger = if rank.manages { linger } else { LINGER_MAX };
        peer.replace(Peer::Ends(Farewell::new(endpoint, linger)));
        if !rank.manages {
            self.end()?;
        }
        Ok(())
    }

    /// Leaves the work to the others, if this process is not the first and could not begin:
    /// they do without it, and are not to be ended by it.
    pub(in crate::run) fn decline(
        &self,
        args: &RunArgs,
        error: anyhow::Error,
    ) -> anyhow::Result<()> {
        let Self::Peer(peer, Rank { manages: false, .. }) = self else { return Err(error) };
        if !matches!(*peer.borrow(), Peer::Begins(_)) {
            return Err(error);
        }
        let config = args.cluster.config();
        if args.cluster.mode == Some(Mode::Single) {
            return self.stay_alone(config.linger);
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.as_deref().map_or("its host", str::trim);
        let error = exit::reasons(&error);
        let cure = "the others do without this node; let it have what they have";
        let unfit = Some(format!("on {host}, {error}; {cure}"));
        meet(peer, &[], &Config { unfit, ..config }, (None, Into::into), None).map(drop)
    }
}

/// A process that has met nobody yet.
pub(super) fn begun(peer: &RefCell<Peer>) -> anyhow::Result<Box<dyn Endpoint>> {
    match peer.replace(Peer::Runs) {
        Peer::Begins(endpoint) => Ok(endpoint),
        _ => anyhow::bail!("the processes have met already; this is a bug in Cellway"),
    }
}

/// Ends this process, in which something hangs that nobody waits for, with the result if there
/// is one to print, or with why there is none. An output cannot get its name while somebody may
/// put something to it.
pub(super) fn end_though_hung(
    hangs: &str,
    ran: Result<Ran, ClusterError>,
    (print, has_journal): (Print<'_, Option<Part>>, bool),
    failed: impl FnOnce(ClusterError) -> anyhow::Error,
) -> Ran {
    let (ended, farewell) = match ran {
        Err(error) => (Err(failed(error)), None),
        Ok(mut ran) => {
            let results = ran.report.as_mut().map(|report| &mut report.results);
            if print.is_none() && results.as_ref().is_some_and(|all| matches!(all[..], [Ok(_)])) {
                let waits = "OUTPUT waits for it: stop this run to give it up";
                exit::complain(&format!("{hangs}; {waits}"));
                return ran;
            }
            tell_refused(&ran.refused);
            let ended = match (results.and_then(Vec::pop), print) {
                (Some(Ok(part)), Some(print)) => print(part),
                (Some(Err(error)), _) => Err(error.into()),
                _ => Ok(()),
            };
            (ended, Some(ran.farewell))
        }
    };
    let journal = match has_journal && ended.is_ok() {
        true => "; its journal stays, and is of no use any more",
        false => "",
    };
    exit::complain(&format!(
        "{hangs}; this process ends without it, and without statistics{journal}"
    ));
    let said = farewell.map_or(Ok(()), Farewell::say);
    let exit = match ended.and(said.map_err(Into::into)) {
        Ok(()) => Exit::Done,
        Err(error) => exit::of_failure(&error),
    };
    // Nothing is dropped any more, as the output of a run that failed.
    let _halted = storage::remove_unfinished();
    leave(exit.code());
    std::process::exit(exit.code().into())
}
