//! Names of file servers on the command line, and looking into a run.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;

use crate::program::{Folder, Outcome, arguments, cellway, cellway_fed, command, finish, noise};

/// A program that told where it serves.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// `cellway serve` of a folder, as `d`.
    fn of(folder: &Folder, how: &str) -> Self {
        let address = format!("unix:{}", folder.path("socket").display());
        let export = format!("d={}{how}", folder.path("").display());
        let line = ["serve", "--listen", &address, "--export", &export];
        let mut child = command(line).spawn().unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told.trim_end(), address);
        Self { child, address }
    }

    /// The name of a file of it, for `run`.
    fn name(&self, file: &str) -> String {
        format!("#n/{}/d/{file}", self.address.replace("unix:", "unix!").replace('/', "%2F"))
    }
}

/// A run that waits for a pipe, and where it can be looked into.
fn served(folder: &Folder, line: &str, paths: &[&Path]) -> (Child, String) {
    let address = format!("unix:{}", folder.path("window").display());
    let arguments = arguments(line, paths).into_iter();
    let arguments = arguments.chain(["--serve".into(), address.clone().into()]);
    let mut child = command(arguments).spawn().unwrap();
    let mut told = [0; 1];
    // The first byte of what it says is the sign that it listens.
    std::io::Read::read_exact(child.stderr.as_mut().unwrap(), &mut told).unwrap();
    (child, address)
}

fn fs(line: &str, address: &str) -> Outcome {
    cellway(&line.replace('@', address), &[])
}

#[test]
fn files_of_the_system_and_of_other_servers_are_inputs() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(1, 3_000_001));
    let wanted = cellway("run crc32c {}", &[&input]).ok_text();
    let named = format!("#U{}", input.display());
    assert_eq!(cellway("run crc32c {}", &[Path::new(&named)]).ok_text(), wanted);
    let private = format!("#R{}", input.display());
    assert_eq!(cellway("run crc32c {}", &[Path::new(&private)]).ok_text(), wanted);
    let server = Server::of(&folder, ":ro");
    let remote = server.name("in");
    assert_eq!(cellway("run crc32c {}", &[Path::new(&remote)]).ok_text(), wanted);
}

#[test]
fn an_output_elsewhere_is_whole_or_not_there() {
    let folder = Folder::new();
    let (content, key) = (noise(2, 2_000_003), folder.file("key", &[b'0'; 64]));
    let input = folder.file("in", &content);
    let server = Server::of(&folder, "");
    let output = server.name("out");
    let line = "run aes256-ctr {} {} --key-file {} --iv 000102030405060708090a0b0c0d0e0f";
    let paths: [&Path; 3] = [&input, Path::new(&output), &key];
    cellway(line, &paths).ok();
    let local = folder.path("local");
    cellway(line, &[&input, &local, &key]).ok();
    assert!(std::fs::read(folder.path("out")).unwrap() == std::fs::read(&local).unwrap());
    cellway(line, &paths).failed(1, &["out exists", "--force"]);
    cellway("run identity {} {} --force", &[&input, Path::new(&output)]).ok();
    assert!(std::fs::read(folder.path("out")).unwrap() == content);
    // A line that is too long, after some output: the old file stays.
    let torn =
        folder.file("torn", &[&b"a\n".repeat(1 << 20)[..], &b"x".repeat(1 << 21)[..]].concat());
    let line = "run replace {} {} --force --pattern a --with b";
    cellway(line, &[&torn, Path::new(&output)]).failed(1, &["torn", "65536 bytes"]);
    assert!(std::fs::read(folder.path("out")).unwrap() == content);
    assert_eq!(folder.names(), ["in", "key", "local", "out", "socket", "torn"]);
}

#[test]
fn an_input_that_ends_early_gives_no_result() {
    let folder = Folder::new();
    let input = folder.path("in");
    // Longer than pipe and buffers hold, so the run is under way when its server goes.
    std::fs::File::create(&input).unwrap().set_len(1 << 40).unwrap();
    let mut server = Server::of(&folder, "");
    let name = server.name("in");
    let child = command(["run", "crc32c", &name]).spawn().unwrap();
    server.child.kill().unwrap();
    let ended = finish(child);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), &b""[..]), "{}", ended.stderr);
}

#[test]
fn a_pipe_of_the_run_is_fed_from_outside() {
    let folder = Folder::new();
    let (child, address) = served(&folder, "run wordcount #p/words", &[]);
    let parameters = fs("fs cat @ /job/0/parameters", &address).ok_text();
    assert!(parameters.contains("\"kernel\":\"wordcount\""), "{parameters}");
    let text = "a b a c a b\n".repeat(100_000);
    cellway_fed(&format!("fs put {address} /p/words -"), &[], text.as_bytes()).ok();
    let ended = finish(child);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), &b"300000\ta\n200000\tb\n100000\tc\n"[..]));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn a_pipe_of_the_run_is_read_outside_to_its_end() {
    let folder = Folder::new();
    let content = noise(3, 5_000_000);
    let input = folder.file("in", &content);
    let (child, address) = served(&folder, "run identity {} #p/out", &[&input]);
    let mut read = fs("fs cat @ /p/out", &address);
    while read.code != Some(0) {
        // The run makes the pipe once it listens.
        assert!(read.stderr.contains("does not exist"), "{}", read.stderr);
        read = fs("fs cat @ /p/out", &address);
    }
    assert!(read.stdout == content);
    assert_eq!(finish(child).code, Some(0));
}

#[test]
fn a_run_is_paused_resumed_and_cancelled_from_outside() {
    let folder = Folder::new();
    let (child, address) = served(&folder, "run crc32c #p/never", &[]);
    let state = || {
        let told = fs("fs cat @ /job/0/progress", &address).ok();
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        told["state"].as_str().unwrap().to_owned()
    };
    let tell =
        |line: &str| cellway_fed(&format!("fs put {address} /job/0/ctl -"), &[], line.as_bytes());
    assert_eq!(state(), "running");
    tell("pause\n").ok();
    assert_eq!(state(), "paused");
    tell("resume\n").ok();
    assert_eq!(state(), "running");
    assert_eq!(tell("stop\n").code, Some(1));
    tell("cancel\n").ok();
    let ended = finish(child);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cancelled"), "{}", ended.stderr);
}

#[test]
fn a_reader_is_told_that_the_run_failed() {
    let folder = Folder::new();
    let lines = folder.file("in", &[&b"a\n".repeat(3 << 20)[..], &b"x".repeat(1 << 21)].concat());
    let (child, address) = served(&folder, "run replace {} #p/out --pattern a --with b", &[&lines]);
    let mut read = fs("fs cat @ /p/out", &address);
    while read.stderr.contains("does not exist") {
        read = fs("fs cat @ /p/out", &address);
    }
    assert_eq!(finish(child).code, Some(1));
    assert_eq!(read.code, Some(1), "{} bytes", read.stdout.len());
}

#[test]
fn a_writer_that_is_killed_gives_no_result() {
    let folder = Folder::new();
    let (child, address) = served(&folder, "run wordcount #p/words", &[]);
    let mut put = command(["fs", "put", &address, "/p/words", "-"]);
    let mut put = put.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(put.stdin.as_mut().unwrap(), &b"a b\n".repeat(1 << 20)).unwrap();
    put.kill().unwrap();
    put.wait().unwrap();
    let ended = finish(child);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), &b""[..]), "{}", ended.stderr);
}

#[test]
fn a_signal_takes_the_window_away() {
    let folder = Folder::new();
    let (child, _) = served(&folder, "run crc32c #p/never", &[]);
    rustix::process::kill_process(crate::signals::pid(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(finish(child).code, Some(143));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn over_tcp_one_only_looks() {
    let folder = Folder::new();
    let input = folder.fifo("fifo");
    let line = ["run", "crc32c", input.to_str().unwrap(), "--serve", "tcp:127.0.0.1:0"];
    let mut child = command(line).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    let address = told.split_whitespace().find(|word| word.starts_with("tcp:")).unwrap();
    // The FIFO's reader waits for this writer, then shows the run.
    let writer = std::fs::File::options().write(true).open(&input).unwrap();
    while fs("fs stat @ /job/0/progress", address).code != Some(0) {
        std::thread::yield_now();
    }
    assert!(fs("fs ls @ /job/0", address).ok_text().contains("ctl"));
    let refused = cellway_fed(&format!("fs put {address} /job/0/ctl -"), &[], b"cancel");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert_eq!(fs("fs ls @ /p", address).code, Some(1));
    drop(writer);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn names_that_cannot_be_are_refused() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    let run = |line: &str| cellway(line, &[&input]);
    run("run crc32c #U {}").failed(2, &["#U/PATH"]);
    run("run crc32c #Ux {}").failed(2, &["./#"]);
    run("run crc32c #p/a {}").failed(2, &["#p/a", "alone"]);
    run("run crc32c #p/a").failed(2, &["#p/a", "--serve"]);
    run("run crc32c #p/a --serve tcp:127.0.0.1:0").failed(2, &["#p/a", "unix:"]);
    run("run identity #p/a #p/a --serve unix:s").failed(2, &["both"]);
    run("run crc32c #p/a --journal j --serve unix:s").failed(2, &["#p/a", "journal"]);
    run("run identity {} #r/out").failed(2, &["gone with the run"]);
    run("run crc32c #z/a").failed(1, &["#z", "#n", "#p"]);
    run("run crc32c {} --serve nowhere").failed(2, &["nowhere", "unix:PATH"]);
}
