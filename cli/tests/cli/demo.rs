//! The demo: what it says, and that it leaves nothing.

use std::io::Write as _;
use std::process::Stdio;

use rustix::process::Signal;

use crate::program::{Folder, arguments, cellway, command, finish, names, wait_until};
use crate::signals::{pid, with_default_signals};

#[test]
fn the_demo_verifies_and_cleans_up() {
    for bytes in ["1", "511K", "3M"] {
        let folder = Folder::new();
        let text =
            cellway(&format!("demo --bytes {bytes} --dir {{}}"), &[&folder.path("")]).ok_text();
        for part in ["Verified", "Memory will stay under", "at the peak", "threads", "Engine:"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().count() <= 20, "{text}");
        assert_eq!(text.contains("threads add up"), bytes == "3M", "{text}");
        // Names of folders and reasons are as long as they are.
        let wide =
            |line: &&str| !line.starts_with("Made ") && !line.contains(": ") && line.len() > 80;
        assert_eq!(text.lines().find(wide), None);
        assert_eq!(folder.names(), [""; 0]);
    }
}

#[test]
fn the_demo_needs_a_folder() {
    cellway("demo --dir /nowhere/at/all", &[]).failed(1, &["/nowhere/at/all", "--dir"]);
}

#[test]
fn a_stopped_demo_leaves_nothing() {
    let folder = Folder::new();
    let bytes = 1u64 << 20;
    // A full pipe: the demo cannot get past its first line.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b' '; 64 << 10]).unwrap();
    let demo = command(arguments(&format!("demo --bytes {bytes} --dir {{}}"), &[&folder.path("")]));
    let child = with_default_signals(&demo).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the data is made", || {
        let made = |name: &String| {
            folder.path(name).join("made").metadata().is_ok_and(|made| made.len() == bytes)
        };
        names(&folder.path("")).iter().any(made)
    });
    rustix::process::kill_process(pid(&child), Signal::INT).unwrap();
    finish(child).failed(130, &["SIGINT"]);
    drop(reader);
    assert_eq!(folder.names(), [""; 0]);
}
