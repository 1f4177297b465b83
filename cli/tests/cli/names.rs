//! Names of file servers on the command line, and looking into a run.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Child;

use crate::program::{
    Folder, Outcome, Watchdog, arguments, cellway, cellway_fed, command, finish, noise,
};

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
        let _watchdog = Watchdog::of(&child);
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
    let _watchdog = Watchdog::of(&child);
    let mut told = [0; 1];
    // The first byte of what it says is the sign that it listens.
    child.stderr.as_mut().unwrap().read_exact(&mut told).unwrap();
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
    assert_eq!(finish(child).code, Some(0));
}

const IV: &str = "000102030405060708090a0b0c0d0e0f";

#[test]
fn keys_statistics_and_traces_are_files_of_servers() {
    let folder = Folder::new();
    let (input, key) = (folder.file("in", &noise(5, 300_000)), folder.file("key", &[b'1'; 64]));
    let plain = folder.path("plain");
    let line = format!("run aes256-ctr {{}} {{}} --key-file {{}} --iv {IV}");
    cellway(&line, &[&input, &plain, &key]).ok();
    let wanted = std::fs::read(&plain).unwrap();
    let server = Server::of(&folder, "");
    let written = format!("{line} --force --stats {{}} --trace {{}}");
    let out = folder.path("out");
    // Made, then replaced; other forms of names lead to the same.
    for (key, stats, trace) in [
        (server.name("key"), server.name("stats"), server.name("trace")),
        (format!("#U{}", key.display()), server.name("stats"), server.name("trace")),
        (format!("#R{}", key.display()), format!("#U{}", folder.path("stats").display()), {
            folder.path("trace").to_str().unwrap().to_owned()
        }),
    ] {
        let names = [&*key, &*stats, &*trace].map(Path::new);
        cellway(&written, &[&input, &out, names[0], names[1], names[2]]).ok();
        assert!(std::fs::read(&out).unwrap() == wanted, "{key}");
        let told = |name: &str| -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(folder.path(name)).unwrap()).unwrap()
        };
        assert_eq!(told("stats")["bytes_in"], 300_000, "{stats}");
        assert!(told("trace").as_array().unwrap().len() > 3, "{trace}");
        let all = ["in", "key", "out", "plain", "socket", "stats", "trace"];
        assert_eq!(folder.names(), all, "{stats} {trace}");
    }
    // More than a key can be is not read.
    folder.file("long", &vec![b'1'; 1 << 20]);
    let names = [server.name("long"), server.name("none/stats"), server.name("none/trace")];
    let [long, stats, trace] = &names.each_ref().map(Path::new);
    let new = folder.path("new");
    cellway(&line, &[&input, &new, long]).failed(1, &["long", "64"]);
    // A wrong name shows before anything is written.
    cellway("run identity {} {} --stats {}", &[&input, &new, stats]).failed(1, &["none"]);
    cellway("run identity {} {} --trace {}", &[&input, &new, trace]).failed(1, &["none"]);
    assert!(!new.exists());
    // What a run leaves that fails: a trace of how far it got.
    let torn = folder.file("torn", &b"x".repeat(1 << 21));
    let names = [server.name("stats-2"), server.name("trace-2")];
    let [stats, trace] = names.each_ref().map(Path::new);
    let line = "run replace {} {} --pattern a --with b --stats {} --trace {}";
    cellway(line, &[&torn, &new, stats, trace]).failed(1, &["torn", "65536 bytes"]);
    let all = ["in", "key", "long", "out", "plain", "socket", "stats", "torn", "trace", "trace-2"];
    assert_eq!(folder.names(), all);
}

#[test]
fn a_key_comes_and_statistics_go_by_pipes() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &noise(6, 100_000)), folder.path("out"));
    let key = folder.file("key", &[b'2'; 64]);
    let line = format!("run aes256-ctr {{}} {{}} --iv {IV}");
    let local = folder.path("local");
    cellway(&format!("{line} --key-file {{}}"), &[&input, &local, &key]).ok();
    let piped = format!("{line} --key-file #p/key --stats #p/stats --trace #p/trace");
    let (child, address) = served(&folder, &piped, &[&input, &out]);
    cellway(&format!("fs put {address} /p/key {{}}"), &[&key]).ok();
    for (name, part) in [("trace", "\"compute\""), ("stats", "\"bytes_in\":100000")] {
        let mut read = fs(&format!("fs cat @ /p/{name}"), &address);
        while read.code != Some(0) {
            // The run makes the pipe once it has the key.
            assert!(read.stderr.contains("does not exist"), "{}", read.stderr);
            read = fs(&format!("fs cat @ /p/{name}"), &address);
        }
        let text = String::from_utf8(read.stdout).unwrap();
        assert!(text.contains(part), "{name}: {text}");
    }
    let ended = finish(child);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&local).unwrap());
}

#[test]
fn who_reads_what_a_run_leaves_keeps_nobody_else_waiting() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(8, 100_000));
    let read = |name: &str, address: &str| loop {
        let read = fs(&format!("fs cat @ /p/{name}"), address);
        if read.code == Some(0) {
            return String::from_utf8(read.stdout).unwrap();
        }
        assert!(read.stderr.contains("does not exist"), "{}", read.stderr);
    };
    // In any order.
    let mut names = [("trace", "\"compute\""), ("stats", "\"bytes_in\":100000")];
    for _ in 0..2 {
        let line = "run crc32c {} --stats #p/stats --trace #p/trace";
        let (child, address) = served(&folder, line, &[&input]);
        for (name, part) in names {
            let text = read(name, &address);
            assert!(text.contains(part), "{name}: {text}");
        }
        assert_eq!(finish(child).code, Some(0));
        names.reverse();
    }
    // Why a run failed is said before its trace is read.
    let torn = folder.file("torn", &[&b"a\n".repeat(1000)[..], &b"x".repeat(1 << 21)].concat());
    let line = "run count {} --pattern a --lines --trace #p/trace --max-record 1K";
    let (mut child, address) = served(&folder, line, &[&torn]);
    let _watchdog = Watchdog::of(&child);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    for _ in 0..2 {
        said.read_line(&mut lines).unwrap();
    }
    assert!(lines.contains("torn: ") && lines.ends_with('\n'), "{lines}");
    assert!(read("trace", &address).contains("\"get\""));
    assert_eq!(finish(child).code, Some(1));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn names_of_the_system_are_paths_wherever_a_run_takes_one() {
    let folder = Folder::new();
    let (one, two) = (folder.file("one", &noise(7, 70_000)), folder.file("two", b"abc"));
    let wanted = cellway("run crc32c {} {}", &[&one, &two]).ok_text();
    let read_only = |path: &Path| format!("#R{}", path.display());
    let names = [read_only(&one), format!("#U{}", two.display())];
    let [first, second] = names.each_ref().map(Path::new);
    assert_eq!(cellway("run crc32c {} {}", &[first, second]).ok_text(), wanted);
    let dir = folder.path("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(&one, dir.join("one")).unwrap();
    let below = read_only(&dir);
    let all = cellway("run crc32c --recursive {} {}", &[Path::new(&below), second]);
    assert_eq!(all.ok_text(), wanted);
    // Neither an input of #R nor a plain one is written over.
    cellway("run crc32c {} --stats {}", &[first, &one]).failed(2, &["--stats", "INPUT"]);
    let (out, journal) = (folder.path("out"), folder.path("journal"));
    let names = [&out, &journal].map(|path| format!("#U{}", path.display()));
    let [out_name, journal_name] = names.each_ref().map(Path::new);
    let line = "run identity {} {} --out-dir {} --journal {}";
    cellway(line, &[first, second, out_name, journal_name]).ok();
    assert!(std::fs::read(out.join("one")).unwrap() == std::fs::read(&one).unwrap());
    assert_eq!(folder.names(), ["dir", "one", "out", "two"]);
}

/// All of it is read, twice, with `CELLWAY_BIG_FILES` set: some fifteen seconds.
#[test]
fn a_file_of_more_than_four_gibibytes_is_the_same_by_each_way() {
    const LEN: u64 = (1 << 32) + (16 << 20);
    const PARTS: [(u64, &[u8]); 3] = [(0, b"head"), ((1 << 32) - 3, b"middle"), (LEN - 4, b"tail")];
    // Zeros by the powers of its matrix, as crc32_combine of zlib has them; not by this program.
    const CRC32C: &[u8] = b"6d623cd0\n";
    let folder = Folder::in_memory();
    let path = folder.path("big");
    let file =
        std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(LEN).unwrap();
    PARTS.iter().for_each(|(at, part)| file.write_all_at(part, *at).unwrap());
    let server = Server::of(&folder, ":ro");
    let told = fs("fs stat @ d/big --format json", &server.address).ok();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["length"], LEN);
    if std::env::var_os("CELLWAY_BIG_FILES").is_none() {
        return;
    }
    let mut cat = command(["fs", "cat", &server.address, "d/big"]).spawn().unwrap();
    let (mut read, mut expected) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for start in (0..LEN).step_by(1 << 20) {
        cat.stdout.as_mut().unwrap().read_exact(&mut read).unwrap();
        file.read_exact_at(&mut expected, start).unwrap();
        assert!(read == expected, "from {start}");
    }
    assert_eq!(finish(cat).ok(), b"");
    assert_eq!(cellway("run crc32c {}", &[Path::new(&server.name("big"))]).ok(), CRC32C);
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
    run("run identity #p/a #p/a --serve unix:s").failed(2, &["#p/a", "twice"]);
    run("run crc32c {} --stats #p/a --trace #p/a --serve unix:s").failed(2, &["#p/a", "twice"]);
    run("run crc32c {} --stats #p/a").failed(2, &["#p/a", "--serve"]);
    run("run crc32c {} --trace #r/a").failed(2, &["#r/a", "gone with the run"]);
    run("run crc32c {} --stats #R/a").failed(2, &["#R/a", "gone with the run"]);
    run("run crc32c {} --trace #n/x/t --stats #n/x/t").failed(2, &["--trace", "statistics"]);
    run("run crc32c #n/x/t --stats #n/x/t").failed(2, &["--stats", "INPUT"]);
    run("run crc32c {} --stats #Rx").failed(2, &["#R/", "./#"]);
    for option in ["--journal", "--resume"] {
        let line = format!("run crc32c {{}} {option} #n/tcp!h!1/j");
        run(&line).failed(2, &[option, "no lock", "#U/PATH"]);
    }
    for option in ["--out-dir", "--stats", "--trace", "--journal"] {
        let line = format!("run identity {{}} {option} {{}}");
        cellway(&line, &[&input, Path::new("")]).failed(2, &[option, "value"]);
    }
    run("run identity {} --out-dir #n/tcp!h!1/d").failed(2, &["--out-dir", "no lock", "#U/PATH"]);
    run("run crc32c #p/a --journal j --serve unix:s").failed(2, &["#p/a", "journal"]);
    run("run identity {} #r/out").failed(2, &["gone with the run"]);
    run("run crc32c #z/a").failed(1, &["#z", "#n", "#p"]);
    run("run crc32c {} --serve nowhere").failed(2, &["nowhere", "unix:PATH"]);
}
