//! Runs of `cellway run` in processes of their own, alone or by Open MPI's `mpirun`, and what
//! they say of themselves.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// Its options where there are fewer cores than processes.
const SHARED_CORES: [&str; 3] = ["--oversubscribe", "--bind-to", "none"];

/// Open MPI's, the first in `PATH`.
pub(super) struct Mpirun {
    /// The first number of its version.
    pub(super) major: u32,
}

impl Mpirun {
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn find() -> anyhow::Result<Self> {
        let said = Command::new("mpirun").arg("--version").stdin(Stdio::null()).output();
        let said = said.context("mpirun, which is looked for in PATH, does not start")?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = said.split_once("(Open MPI) ").map(|(_, version)| version);
        let major = version.and_then(|version| version.split('.').next()?.trim().parse().ok());
        let line = said.lines().next().unwrap_or_default();
        Ok(Self { major: major.with_context(|| format!("mpirun is not Open MPI's: {line}"))? })
    }

    /// So many processes of what is added; with `options` of its own.
    pub(super) fn command(&self, processes: u32, options: &[&str]) -> Command {
        let mut command = Command::new("mpirun");
        command.args(SHARED_CORES).args(options).args(["-n", &processes.to_string()]);
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        command
    }
}

/// One that was started. Its output goes to files, so that it never waits for a reader.
pub(super) struct Running {
    pub(super) child: Child,
    output: File,
    said: File,
}

/// One that has ended.
pub(super) struct Ran {
    status: ExitStatus,
    pub(super) output: Vec<u8>,
    /// What it and those that it started said on standard error.
    pub(super) said: String,
}

impl Running {
    pub(super) fn start(mut command: Command) -> anyhow::Result<Self> {
        let (output, said) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(said.try_clone()?);
        let name = command.get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("{name} does not start"))?;
        Ok(Self { child, output, said })
    }

    /// Waits for its end, and does `meanwhile` every millisecond.
    pub(super) fn end(mut self, mut meanwhile: impl FnMut()) -> anyhow::Result<Ran> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            meanwhile();
            std::thread::sleep(Duration::from_millis(1));
        };
        let (mut output, mut said) = (Vec::new(), Vec::new());
        for (file, bytes) in [(&mut self.output, &mut output), (&mut self.said, &mut said)] {
            file.rewind()?;
            file.read_to_end(bytes)?;
        }
        Ok(Ran { status, output, said: String::from_utf8_lossy(&said).into_owned() })
    }
}

impl Ran {
    pub(super) fn is_done(&self) -> bool {
        self.status.success()
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        let status = match self.status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("{}", self.status),
        };
        ensure!(self.is_done(), "a run ended with {status}: {}", self.said.trim());
        Ok(())
    }

    /// How long its work took.
    pub(super) fn seconds(&self) -> anyhow::Result<f64> {
        let line = self.said.lines().find(|line| line.contains("; peak "));
        let seconds = line.and_then(|line| number(between(line, " in ", " s, ")?));
        seconds.with_context(|| format!("a run did not say how long it took: {}", self.said))
    }

    /// What its processes say of their memory.
    pub(super) fn memory(&self) -> Vec<Memory> {
        let mut all: Vec<_> = self.said.lines().filter_map(Memory::read).collect();
        all.sort_by_key(|one| one.process);
        all
    }
}

/// Of one process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) process: u32,
    /// Resident when MPI had started, and at most.
    pub(super) begun: u64,
    pub(super) peak: u64,
    /// What it said to take at most.
    pub(super) bound: u64,
}

impl Memory {
    fn read(line: &str) -> Option<Self> {
        let (process, rest) = line.strip_prefix("process ")?.split_once(": memory ")?;
        Some(Self {
            process: process.parse().ok()?,
            begun: size(rest.split_once(" when")?.0)?,
            peak: size(between(rest, "peak ", ",")?)?,
            bound: size(rest.rsplit_once("at most ")?.1)?,
        })
    }
}

/// What is between the first `from` and the next `to`.
pub(super) fn between<'t>(text: &'t str, from: &str, to: &str) -> Option<&'t str> {
    Some(text.split_once(from)?.1.split_once(to)?.0)
}

pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok()
}

/// Reads `12.6 MiB`, as `cellway run` writes it.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|name| *name == unit)?;
    Some((number.parse::<f64>().ok()? * 1024_f64.powi(power as i32)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_says_is_read() {
        let said = "process 2: memory 19.5 MiB when MPI had started, peak 64 MiB, at most 1.5 GiB";
        let memory = Memory { process: 2, begun: 20_447_232, peak: 64 << 20, bound: 3 << 29 };
        assert_eq!(Memory::read(said), Some(memory));
        assert_eq!(Memory::read("nodes joined 3"), None);
        let said = "in: blocks are sent\n64 MiB in 0.250 s, 256 MiB/s; peak 9 MiB of memory; x\n";
        let output = Vec::new();
        let ran = Ran { status: ExitStatus::from_raw(0), output, said: said.to_owned() };
        assert!(ran.is_done());
        assert_eq!(ran.seconds().unwrap(), 0.25);
        let ran = Ran { status: ExitStatus::from_raw(9), ..ran };
        assert!(ran.check().unwrap_err().to_string().starts_with("a run ended with signal 9: in:"));
    }

    #[test]
    fn what_a_run_prints_is_kept_and_its_end_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let looked = dir.path().join("looked");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; until [ -e \"$0\" ]; do :; done; exit 3"]);
        command.arg(&looked);
        // It ends only if something is done meanwhile.
        let ran = Running::start(command).unwrap();
        let ran = ran.end(|| drop(File::create(&looked).unwrap())).unwrap();
        assert_eq!(
            (&ran.output[..], &ran.said[..], ran.is_done()),
            (&b"one\n"[..], "two\n", false)
        );
    }
}
