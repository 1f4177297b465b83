//! Inputs that are missing, wrong, or change while they are read.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::program::{
    EXE, Folder, arguments, bmp_header, cellway, cellway_fed, command, finish, noise, skip,
    wait_until,
};
use crate::schemes::{PIPING, SCHEMES};
use crate::signals::with_default_signals;

#[test]
fn missing_and_impossible_inputs() {
    let folder = Folder::new();
    folder.file("data.txt", b"abc");
    fs::create_dir(folder.path("dir")).unwrap();
    std::os::unix::fs::symlink("gone", folder.path("link")).unwrap();
    let _socket = UnixListener::bind(folder.path("socket")).unwrap();
    let before = folder.names();
    for (name, part) in [
        ("data.tx", "did you mean"),
        ("nothing", "no such file"),
        ("dir", "is a directory"),
        ("link", "which does not exist"),
        ("socket", "is a socket"),
        ("data.txt/more", "Not a directory"),
    ] {
        let (input, out) = (folder.path(name), folder.path("out"));
        cellway("run identity {} {}", &[&input, &out]).failed(1, &[name, part]);
        cellway("run crc32c {}", &[&input]).failed(1, &[name, part]);
    }
    assert_eq!(folder.names(), before);
}

#[test]
fn an_unreadable_input_names_the_right_that_is_missing() {
    let folder = Folder::new();
    let input = folder.file("secret", b"abc");
    fs::set_permissions(&input, Permissions::from_mode(0o000)).unwrap();
    // Root may read everything, but not as nobody in a namespace of its own.
    let run = if File::open(&input).is_ok() {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", EXE, "run", "crc32c"]).arg(&input);
        unshare.output()
    } else {
        command(arguments("run crc32c {}", &[&input])).output()
    };
    let run = run.unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    if stderr.starts_with("unshare:") {
        return skip("an unreadable input as root", stderr.trim());
    }
    assert_eq!(run.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("secret: permission denied") && stderr.contains("; "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn bad_keys_show_their_length_and_not_themselves() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"abc"), folder.path("out"));
    let line = "run aes256-ctr {} {} --key-file {} --iv 00000000000000000000000000000001";
    let hex = "c0ffee".repeat(11);
    for (content, part) in [
        (&[7; 31][..], "31 bytes"),
        (&[7; 33], "33 bytes"),
        (b"", "0 bytes"),
        (&hex.as_bytes()[..62], "62 bytes"),
        (&hex.as_bytes()[..66], "66 bytes"),
        (&[b'g'; 64], "position 1"),
        (&noise(1, 1 << 20), "4096 bytes"),
    ] {
        let run = cellway(line, &[&input, &out, &folder.file("key", content)]);
        assert!(!run.stderr.contains("c0ffee"), "{}", run.stderr);
        run.failed(1, &["key", part, "openssl rand -hex 32"]);
    }
    cellway(line, &[&input, &out, &folder.path("no-key")]).failed(1, &["no-key", "no such file"]);
    cellway(line, &[&input, &out, &folder.path("kye")]).failed(1, &["did you mean", "key?"]);
    cellway(line, &[&input, &out, &folder.path("")]).failed(1, &["is a directory"]);
    assert_eq!(folder.names(), ["in", "key"]);
}

#[test]
fn bad_bitmaps_are_refused_by_the_byte() {
    let folder = Folder::new();
    let good = [bmp_header(3, 2), vec![9; 24]].concat();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    for (bytes, part) in [
        (Vec::new(), "the input ends"),
        (good[..53].to_vec(), "at byte 53"),
        (good[..77].to_vec(), "pixels end at byte 78, but the input ends at byte 77"),
        (b"GIF89a".to_vec(), "not a BMP"),
        (with(30, &[1]), "compressed"),
        (with(28, &[8]), "8 bits per pixel"),
        (with(2, &[99]), "file size of 99"),
        (with(18, &[255]), "pixels end at byte"),
        (with(18, &(-1i32).to_le_bytes()), "width is -1"),
        (with(22, &[0]), "height is 0"),
        (with(10, &[0]), "inside its header"),
        (with(34, &[7]), "7 bytes of pixels"),
        (with(14, &[12]), "no known version"),
    ] {
        let file = folder.file("in.bmp", &bytes);
        cellway("run histogram {}", &[&file]).failed(1, &["in.bmp", part]);
    }
    // A pipe cannot be read out of order, and says so.
    cellway_fed("run histogram -", &[], &good).failed(1, &["standard input"]);
}

#[test]
fn points_that_end_in_a_record_are_refused() {
    let folder = Folder::new();
    for (kind, bytes) in [("u8", 2), ("i16", 4), ("f32", 8), ("f64", 16)] {
        let data = vec![1; 1000 * bytes + bytes - 1];
        let input = folder.file("in", &data);
        let (at, size) = (format!("at byte {}", 1000 * bytes), format!("instead of {bytes}"));
        cellway(&format!("run linreg {{}} --type {kind}"), &[&input])
            .failed(1, &["in", &at, &size]);
        let fed = cellway_fed(&format!("run linreg - --type {kind} --block 4K"), &[], &data);
        fed.failed(1, &["standard input", &at, &size]);
    }
}

#[test]
fn a_word_that_is_too_long_is_named_by_its_place() {
    let folder = Folder::new();
    let text = [&b"short "[..], &[b'x'; (64 << 10) + 1], b" end"].concat();
    let input = folder.file("in", &text);
    for layout in ["", "--block 100", "--block 64K"] {
        cellway(&format!("run wordcount {{}} {layout}"), &[&input])
            .failed(1, &["in: a word", "64 KiB", "at byte 6;"]);
    }
}

/// A run whose output is a FIFO, stopped by that in the middle of its input.
pub(crate) struct Held {
    pub(crate) child: Child,
    output: File,
    pub(crate) input: PathBuf,
}

impl Held {
    pub(crate) const INPUT_BYTES: u64 = 2 << 20;

    pub(crate) fn new(folder: &Folder, how: &str) -> Self {
        let input = folder.file("in", &noise(9, Self::INPUT_BYTES as usize));
        // Of a run before there may be one.
        let _ = fs::remove_file(folder.path("held"));
        let fifo = folder.fifo("held");
        let line = format!(
            "run identity {{}} {{}} --accelerators 1 --threads 2 --block 4K --direct off {how}"
        );
        let mut run = with_default_signals(&command(arguments(&line, &[&input, &fifo])));
        let child = run.spawn().unwrap();
        let mut output = File::open(&fifo).unwrap();
        // The run has begun; what the FIFO holds keeps it far from the end.
        output.read_exact(&mut [0; 4096]).unwrap();
        Self { child, output, input }
    }

    pub(crate) fn go_on(mut self) -> crate::program::Outcome {
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        finish(self.child)
    }
}

#[test]
fn an_input_that_changes_while_it_is_read_is_noticed() {
    let folder = Folder::new();
    for engine in ["--engine auto", "--engine pread"] {
        let held = Held::new(&folder, engine);
        OpenOptions::new()
            .write(true)
            .open(&held.input)
            .unwrap()
            .set_len(Held::INPUT_BYTES / 2)
            .unwrap();
        held.go_on().failed(1, &["in at byte 1048576", "cut short while it was read"]);

        let held = Held::new(&folder, engine);
        OpenOptions::new().append(true).open(&held.input).unwrap().write_all(b"more").unwrap();
        held.go_on().failed(1, &["in", "from 2097152 to 2097156 bytes while it was read"]);

        let held = Held::new(&folder, engine);
        fs::rename(folder.file("other", b"x"), &held.input).unwrap();
        held.go_on().failed(1, &["in", "replaced by another file"]);
    }
}

/// Whether a process has a file open.
fn has_open(child: &Child, path: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    files.flatten().any(|file| file.path().read_link().is_ok_and(|target| target == path))
}

/// Whether a process waits for something.
fn is_asleep(child: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

#[test]
fn an_input_cut_short_leaves_no_output() {
    for (direct, engine) in [("off", "auto"), ("off", "pread"), ("auto", "auto")] {
        let folder = Folder::new();
        let input = folder.file("in", &noise(10, 2 << 20)).canonicalize().unwrap();
        let out = folder.file("out", b"old");
        // The run opens its input, then waits for a reader of its statistics.
        let stats = folder.fifo("stats");
        let line = format!(
            "run identity {{}} {{}} -f --stats {{}} --block 4K --direct {direct} --engine {engine}"
        );
        let child = command(arguments(&line, &[&input, &out, &stats])).spawn().unwrap();
        // Asleep, it has looked at its input's length too.
        wait_until("the input is open", || has_open(&child, &input) && is_asleep(&child));
        OpenOptions::new().write(true).open(&input).unwrap().set_len(1 << 20).unwrap();
        let mut reader = File::open(&stats).unwrap();
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        finish(child).failed(1, &["in at byte 1048576", "cut short while it was read"]);
        assert_eq!(
            (folder.names(), fs::read(&out).unwrap()),
            (["in", "out", "stats"].map(String::from).to_vec(), b"old".to_vec())
        );
    }
}

/// A stream that delivers its bytes and then an error.
fn broken_stream(bytes: &[u8]) -> OwnedFd {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(b"never read").unwrap();
    far.peek(&mut [0]).unwrap();
    far.write_all(bytes).unwrap();
    // Closing a socket with unread bytes in it resets the connection.
    drop(far);
    near.into()
}

#[test]
fn a_read_error_half_way_leaves_no_output() {
    let folder = Folder::new();
    let out = folder.path("out");
    let bytes = noise(11, 20_000);
    for scheme in &SCHEMES[..PIPING] {
        let with = format!("--block 4K --scheme {scheme}");
        let line = format!("run identity - {{}} {with}");
        let mut run = command(arguments(&line, &[&out]));
        let child = run.stdin(Stdio::from(broken_stream(&bytes))).spawn().unwrap();
        finish(child).failed(1, &["standard input at byte 20000", "cannot be read", "reset"]);
        let mut run = command(arguments(&format!("run crc32c - {with}"), &[]));
        let child = run.stdin(Stdio::from(broken_stream(&bytes))).spawn().unwrap();
        finish(child).failed(1, &["standard input at byte 20000"]);
        assert_eq!(folder.names(), [""; 0]);
    }
    // A file that cannot be read at all.
    cellway("run crc32c /proc/self/mem", &[]).failed(1, &["/proc/self/mem", "cannot be read"]);
}
