//! Processes of an `mpirun` that are stopped, and go on when they are no members any more.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::nodes::{SURVIVING, SURVIVING_BY_SILENCE, bin, mpirun, running, text};
use crate::program::{Folder, Outcome, Watchdog, arguments, cellway, finish};

/// Goes on when it is dropped, for the others wait for its end.
struct Stopped(Pid);

impl Stopped {
    fn new(process: Pid) -> Option<Self> {
        kill_process(process, Signal::STOP).ok().map(|()| Self(process))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// What the run says until it has said one of these, or to its end; and what it says then.
fn said_until(child: &mut Child, words: &[&str]) -> (String, JoinHandle<String>) {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = String::new();
    for line in lines.by_ref() {
        said += &line;
        said += "\n";
        if words.iter().any(|word| line.contains(word)) {
            break;
        }
    }
    // It is read on while the run ends.
    let rest = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    (said, rest)
}

/// A worker is stopped until the manager has declared it lost. In mode basic nobody else gets
/// what it has before, so the run waits for that.
#[test]
fn a_process_that_is_stopped_is_lost_and_goes_on() {
    let folder = Folder::new();
    let input = folder.file("in", &text(1 << 20).repeat(64));
    let words = cellway("run wordcount {} --top 9", &[&input]).ok();
    for mpi in [SURVIVING, SURVIVING_BY_SILENCE] {
        let Some(bin) = bin(mpi.0) else { continue };
        let line = "run wordcount {} --top 9 --cluster mpi --mode basic --block 64K --accelerators 1 --verbose";
        // It may have had no work at that moment; then nobody is lost.
        let is_lost = (0..20).any(|round| {
            let mut child =
                mpirun(&bin, mpi.1, 3).args(arguments(line, &[&input])).spawn().unwrap();
            let watchdog = Watchdog::of(&child);
            let victim = running(child.id(), 3, round, |which| 1 + which % 2);
            let stopped = victim.and_then(Stopped::new);
            // mpirun waits for one that is stopped, also when the others have ended.
            let (said, rest) = said_until(&mut child, &["is lost", "nodes joined"]);
            drop(stopped);
            let Outcome { code, stdout, .. } = finish(child);
            drop(watchdog);
            let said = said + &rest.join().unwrap();
            assert!(
                (code, &stdout) == (Some(0), &words),
                "{} {line}, round {round}: {said}",
                mpi.0
            );
            said.contains("is lost, 1 so far") && said.contains("lost 1,")
        });
        assert!(is_lost, "{}: nobody was lost", mpi.0);
    }
}
