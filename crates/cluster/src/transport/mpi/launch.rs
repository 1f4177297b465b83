//! What mpirun tells the processes it starts, by their environment.

use std::fmt;

/// Variables that say how many it started on this machine.
pub(super) const LOCAL_SIZE: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];

/// Variables that every mpirun sets one of: how many it started, which of them this is.
pub(super) const STARTED: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"];

/// Variables that say which of them this is.
pub(super) const RANK: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

/// What becomes of the others when a process is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenLost {
    /// They are told, and go on: Open MPI 5 with `mpirun --with-ft ulfm`.
    Reported,
    /// They go on, but only its silence tells: Open MPI 4.1 with `mpirun --enable-recovery`.
    ByDeadline,
    /// They are ended: all other MPIs, and those without these options.
    EndsAll,
}

impl WhenLost {
    /// `can_report`: whether this MPI reports losses if it is asked to.
    pub(super) fn new(variable: impl Fn(&str) -> Option<String>, can_report: bool) -> Self {
        let is_on = |name| variable(name).is_some_and(|value| value != "0" && value != "false");
        match () {
            () if can_report && is_on("OMPI_MCA_mpi_ft_enable") => Self::Reported,
            () if is_on("OMPI_MCA_orte_enable_recovery") => Self::ByDeadline,
            () => Self::EndsAll,
        }
    }
}

impl fmt::Display for WhenLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reported => "a lost process is reported, and the others go on",
            Self::ByDeadline => "a lost process is known by its silence, and the others go on",
            Self::EndsAll => {
                "a lost process ends all; they go on with Open MPI 5 and mpirun --with-ft ulfm, \
                 or 4.1 and --enable-recovery"
            }
        })
    }
}

/// What is wrong before the start already: MPICH ends the process below Open MPI's mpirun.
pub(super) fn foreign(variable: impl Fn(&str) -> Option<String>, library: &str) -> Option<String> {
    let started = variable("OMPI_COMM_WORLD_SIZE").filter(|_| !library.starts_with("Open MPI"))?;
    Some(format!("the mpirun of Open MPI started {started} processes (OMPI_COMM_WORLD_SIZE)"))
}

/// What is wrong if mpirun started another number of processes than MPI knows of: it is
/// not the mpirun of this MPI, so each process is alone.
pub(super) fn mismatch(
    variable: impl Fn(&str) -> Option<String>,
    own: u32,
    peers: u32,
) -> Option<String> {
    let number = |name| variable(name)?.trim().parse::<u32>().ok();
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        if let Some(started) = number(name).filter(|started| *started != peers) {
            return Some(format!(
                "mpirun started {started} processes ({name}), MPI knows of {peers}"
            ));
        }
    }
    let rank = number("PMIX_RANK").filter(|rank| *rank != own && peers == 1)?;
    Some(format!("mpirun started this as process {rank} (PMIX_RANK), MPI knows of one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'s>(set: &'s [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 's {
        |name| set.iter().find(|one| one.0 == name).map(|one| one.1.to_owned())
    }

    #[test]
    fn options_of_mpirun_are_seen() {
        for (set, can_report, when_lost) in [
            (&[][..], true, WhenLost::EndsAll),
            (&[("OMPI_MCA_mpi_ft_enable", "1")], true, WhenLost::Reported),
            (&[("OMPI_MCA_mpi_ft_enable", "1")], false, WhenLost::EndsAll),
            (&[("OMPI_MCA_mpi_ft_enable", "0")], true, WhenLost::EndsAll),
            (&[("OMPI_MCA_orte_enable_recovery", "1")], false, WhenLost::ByDeadline),
        ] {
            assert_eq!(WhenLost::new(of(set), can_report), when_lost, "{set:?}");
        }
    }

    #[test]
    fn open_mpi_starts_its_own_only() {
        let mpirun = &[("OMPI_COMM_WORLD_SIZE", "2")];
        assert!(foreign(of(mpirun), "MPICH Version: 5.0.2").is_some());
        assert_eq!(foreign(of(mpirun), "Open MPI v5.0.11"), None);
        assert_eq!(foreign(of(&[("PMI_SIZE", "2")]), "MPICH Version: 5.0.2"), None);
    }

    #[test]
    fn the_mpirun_of_another_mpi_is_seen() {
        for (set, own, peers, is_wrong) in [
            (&[][..], 0, 1, false),
            (&[("OMPI_COMM_WORLD_SIZE", "3"), ("PMIX_RANK", "2")], 2, 3, false),
            (&[("OMPI_COMM_WORLD_SIZE", "3"), ("PMIX_RANK", "0")], 0, 1, true),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "0")], 0, 2, false),
            (&[("PMI_SIZE", "2"), ("PMI_RANK", "0")], 0, 1, true),
            (&[("PMIX_RANK", "0")], 0, 1, false),
            (&[("PMIX_RANK", "4")], 0, 1, true),
            (&[("PMI_SIZE", "many")], 0, 1, false),
        ] {
            let said = mismatch(of(set), own, peers);
            assert_eq!(said.is_some(), is_wrong, "{set:?} {own} {peers}: {said:?}");
        }
    }
}
