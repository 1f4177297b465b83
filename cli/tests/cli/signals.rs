//! Signals in the middle of a run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::program::{Folder, arguments, command, finish};

/// More than a pipe holds: once it is written, most of it was read.
const WRITTEN_BYTES: usize = 512 << 10;

/// With what it is given: each block goes through three cores.
const CHAIN: &str = "identity,identity,identity --pipeline spread --block 4K";

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// The same program as nobody ignores signals: whoever runs the tests may.
pub(crate) fn with_default_signals(program: &Command) -> Command {
    env(program, "--default-signal=INT,TERM,HUP")
}

fn env(program: &Command, how: &str) -> Command {
    let mut command = Command::new("env");
    command.arg(how).arg(program.get_program()).args(program.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_stopped_run_leaves_the_folder_as_it_was() {
    for (signal, code, name) in
        [(Signal::INT, 130, "SIGINT"), (Signal::TERM, 143, "SIGTERM"), (Signal::HUP, 129, "SIGHUP")]
    {
        for (kernel, old) in
            [("identity", false), ("identity", true), ("crc32c", false), (CHAIN, true)]
        {
            let folder = Folder::new();
            let (fifo, out) = (folder.fifo("fifo"), folder.path("out"));
            if old {
                folder.file("out", b"old");
            }
            let before = folder.names();
            let run = match kernel {
                CHAIN => arguments(&format!("run {CHAIN} {{}} {{}} --force"), &[&fifo, &out]),
                "crc32c" => arguments("run crc32c {} --block 4K", &[&fifo]),
                _ => arguments("run identity {} {} --block 4K --force", &[&fifo, &out]),
            };
            let mut run = with_default_signals(&command(run));
            let child = run.spawn().unwrap();
            let mut writer = File::options().write(true).open(&fifo).unwrap();
            writer.write_all(&vec![7; WRITTEN_BYTES]).unwrap();
            rustix::process::kill_process(pid(&child), signal).unwrap();
            finish(child).failed(code, &[name]);
            drop(writer);
            assert_eq!(folder.names(), before);
            assert!(!old || fs::read(&out).unwrap() == b"old");
        }
    }
}

#[test]
fn a_signal_ignored_from_the_start_stays_ignored() {
    let folder = Folder::new();
    let (fifo, out) = (folder.fifo("fifo"), folder.path("out"));
    let run = command(
        ["run", "identity"].iter().map(OsStr::new).chain([fifo.as_os_str(), out.as_os_str()]),
    );
    let child = env(&run, "--ignore-signal=HUP").spawn().unwrap();
    let mut writer = File::options().write(true).open(&fifo).unwrap();
    writer.write_all(&vec![7; WRITTEN_BYTES]).unwrap();
    rustix::process::kill_process(pid(&child), Signal::HUP).unwrap();
    writer.write_all(b"end").unwrap();
    drop(writer);
    assert_eq!(finish(child).ok(), b"");
    assert_eq!(fs::metadata(&out).unwrap().len(), WRITTEN_BYTES as u64 + 3);
}
