//! Where results go: new files, old files, links, devices, pipes.

use std::fs::{self, File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;

use crate::program::{Folder, arguments, cellway, cellway_fed, command, finish, noise};

#[test]
fn an_existing_output_needs_force() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"new"), folder.file("out", b"old"));
    cellway("run identity {} {}", &[&input, &out]).failed(1, &["out", "exists already", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), b"old");
    cellway("run identity {} {} --force", &[&input, &out]).ok();
    assert_eq!(fs::read(&out).unwrap(), b"new");
    assert_eq!(folder.names(), ["in", "out"]);
}

#[test]
fn a_file_can_become_its_own_output() {
    let folder = Folder::new();
    let data = noise(1, 100_001);
    let (file, key) = (folder.file("file", &data), folder.file("key", &[3; 32]));
    let line = "run aes256-ctr {} {} --force --block 4K --key-file {} --iv 000102030405060708090a0b0c0d0e0f";
    cellway(line, &[&file, &file, &key]).ok();
    assert_ne!(fs::read(&file).unwrap(), data);
    cellway(line, &[&file, &file, &key]).ok();
    assert_eq!(fs::read(&file).unwrap(), data);
    cellway("run identity {} {}", &[&file, &file]).failed(1, &["exists already"]);
}

#[test]
fn a_link_stays_and_the_mode_too() {
    let folder = Folder::new();
    let (input, target) = (folder.file("in", b"new"), folder.file("target", b"old"));
    fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
    let link = folder.path("link");
    symlink("target", &link).unwrap();
    cellway("run identity {} {} --force --sync", &[&input, &link]).ok();
    assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("target"));
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o640);
}

#[test]
fn devices_and_pipes_are_written_straight() {
    let folder = Folder::new();
    let data = noise(2, 300_000);
    let input = folder.file("in", &data);
    cellway("run identity {} /dev/null", &[&input]).ok();
    assert_eq!(cellway("run identity {} -", &[&input]).ok(), data);
    assert_eq!(cellway("run identity {} /dev/stdout --block 1000", &[&input]).ok(), data);
    assert_eq!(cellway_fed("run identity - - --block 4K", &[], &data).ok(), data);
    let fifo = folder.fifo("fifo");
    let child = command(arguments("run identity {} {}", &[&input, &fifo])).spawn().unwrap();
    assert_eq!(fs::read(&fifo).unwrap(), data);
    finish(child).ok();
}

#[test]
fn a_reader_of_standard_output_may_leave_early() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(3, 1 << 20));
    let words: String = (0..50_000).map(|number| format!("word{number} ")).collect();
    let words = folder.file("words", words.as_bytes());
    for (line, path) in [
        ("run identity {} - --block 4K", &input),
        ("run wordcount {}", &words),
        ("run wordcount {} --format json", &words),
    ] {
        let mut child = command(arguments(line, &[path])).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 100]).unwrap();
        drop(stdout);
        finish(child).ok();
    }
    let (stats, (reader, writer)) = (folder.path("stats"), std::io::pipe().unwrap());
    drop(reader);
    let line = arguments("run wordcount {} --stats {}", &[&words, &stats]);
    finish(command(line).stdout(writer).spawn().unwrap()).ok();
    assert!(fs::read_to_string(&stats).unwrap().starts_with(r#"{"kernel":"wordcount""#));
    // Nobody reads at all.
    for line in ["kernels", "info", "run crc32c /dev/null", "--help", "kernels --format json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        finish(command(line.split(' ')).stdout(writer).spawn().unwrap()).ok();
    }
}

#[test]
fn a_reader_of_a_named_pipe_may_not() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(4, 1 << 20));
    let fifo = folder.fifo("fifo");
    let child =
        command(arguments("run identity {} {} --block 4K", &[&input, &fifo])).spawn().unwrap();
    let mut reader = File::open(&fifo).unwrap();
    reader.read_exact(&mut [0; 100]).unwrap();
    drop(reader);
    finish(child).failed(1, &["fifo", "Broken pipe"]);
}

#[test]
fn an_output_that_cannot_be_is_refused_at_once() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    fs::create_dir(folder.path("dir")).unwrap();
    cellway("run identity {} {}", &[&input, &folder.path("dir")]).failed(1, &["is a directory"]);
    cellway("run identity {} {}", &[&input, &folder.path("no/out")])
        .failed(1, &["does not exist", "mkdir -p"]);
    cellway(
        "run identity {} {} --stats {}",
        &[&input, &folder.path("out"), &folder.path("no/stats")],
    )
    .failed(1, &["does not exist"]);
    assert_eq!(folder.names(), ["dir", "in"]);
}

#[test]
fn a_closed_standard_input_is_empty() {
    let child = command(["run", "crc32c", "-"]).stdin(Stdio::null()).spawn().unwrap();
    assert_eq!(finish(child).ok(), b"00000000\n");
}
