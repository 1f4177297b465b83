//! `cellway serve`, and `cellway fs` against it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Child;

use rustix::process::Signal;
use serde_json::Value;

use crate::program::{Folder, Outcome, Watchdog, cellway, command, finish, noise};
use crate::signals::{pid, with_default_signals};

/// A server that runs until the end.
pub(crate) struct Served {
    child: Option<Child>,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn new(listen: &str, exports: &[(&str, &Path)]) -> Self {
        let mut arguments = vec!["serve".to_owned(), "--listen".to_owned(), listen.to_owned()];
        for (name, dir) in exports {
            arguments.extend(["--export".to_owned(), format!("{name}={}", dir.display())]);
        }
        let mut child = with_default_signals(&command(arguments)).spawn().unwrap();
        let _watchdog = Watchdog::of(&child);
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
        if address.is_empty() {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("{why}");
        }
        Self { child: Some(child), address: address.trim_end().to_owned() }
    }

    /// `cellway fs WHAT` at this server.
    pub(crate) fn fs(&self, what: &str, arguments: &[&str]) -> Outcome {
        let all = ["fs", what, &self.address].into_iter().chain(arguments.iter().copied());
        finish(command(all).spawn().unwrap())
    }

    /// Ends it as its user would.
    pub(crate) fn end(mut self) {
        let child = self.child.take().unwrap();
        rustix::process::kill_process(pid(&child), Signal::INT).unwrap();
        let ended = finish(child);
        assert_eq!(ended.code, Some(130), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("cellway: stopped by SIGINT; "), "{}", ended.stderr);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Only where the test has failed.
            let _ = child.kill();
        }
    }
}

/// Two directories: `one`, and `two` for reading only.
fn served(folder: &Folder, listen: &str) -> Served {
    fs::create_dir(folder.path("one")).unwrap();
    fs::create_dir(folder.path("two")).unwrap();
    folder.file("two/kept", b"kept");
    let two = format!("{}:ro", folder.path("two").display());
    Served::new(listen, &[("one", &folder.path("one")), ("two", Path::new(&two))])
}

#[test]
fn files_are_put_listed_read_and_removed() {
    for tcp in [false, true] {
        let folder = Folder::new();
        let socket = folder.path("socket");
        let listen = format!("unix:{}", socket.display());
        let server = served(&folder, if tcp { "tcp:127.0.0.1:0" } else { &listen });
        assert_eq!(tcp, server.address != listen);
        let big = noise(1, 5 << 20);
        let input = folder.file("input", &big);
        let input = input.to_str().unwrap();
        let names = |path: &str| -> Vec<String> {
            let text = server.fs("ls", &[path]).ok_text();
            text.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(names(""), ["one", "two"]);
        assert_eq!(server.fs("mkdir", &["one/dir", "/one/dir/below/"]).ok_text(), "");
        assert_eq!(server.fs("put", &["one/dir/big", input]).ok_text(), "");
        assert!(fs::read(folder.path("one/dir/big")).unwrap() == big);
        assert!(
            server.fs("cat", &["one/dir/big", "two/kept"]).ok() == [&big[..], b"kept"].concat()
        );
        assert_eq!(names("one/dir"), ["below", "big"]);
        let json: Value =
            serde_json::from_slice(&server.fs("ls", &["one/dir", "--format", "json"]).ok())
                .unwrap();
        assert_eq!((&json[1]["name"], &json[1]["length"]), (&"big".into(), &(5 << 20).into()));
        assert_eq!((&json[0]["directory"], &json[1]["directory"]), (&true.into(), &false.into()));
        // A tree by its name.
        assert_eq!(server.fs("cat", &["--tree", "two", "kept"]).ok(), b"kept");
        // What is there is replaced only where that is asked for.
        let put = |arguments: &[&str]| server.fs("put", arguments);
        put(&["one/dir/big", input]).failed(1, &["already exists", "--force"]);
        assert_eq!(put(&["--force", "one/dir/big", "/dev/null"]).ok_text(), "");
        assert_eq!(fs::read(folder.path("one/dir/big")).unwrap(), b"");
        let stat = server.fs("stat", &["one/dir/big"]).ok_text();
        assert!(stat.contains("length   0\n") && stat.contains("mode     -rw-"), "{stat}");
        server.fs("rm", &["one/dir"]).failed(1, &["not empty"]);
        let all = ["one/dir/big", "one/dir/below", "one/dir"];
        assert_eq!(server.fs("rm", &all).ok_text(), "");
        assert_eq!(folder.names().contains(&"socket".to_owned()), !tcp);
        assert_eq!(fs::read_dir(folder.path("one")).unwrap().count(), 0);
        server.end();
        assert!(!socket.exists());
    }
}

#[test]
fn what_cannot_be_done_is_told_with_its_cure() {
    let folder = Folder::new();
    let server = served(&folder, &format!("unix:{}", folder.path("socket").display()));
    let failed = |what: &str, arguments: &[&str], parts: &[&str]| {
        server.fs(what, arguments).failed(1, parts);
    };
    failed("cat", &["two/kep"], &["two/kep: file does not exist", "there is \"kept\""]);
    failed("cat", &["tow/kept"], &["tow: file does not exist", "there is \"two\""]);
    failed("cat", &["one/nothing"], &["one/nothing", "cellway fs ls"]);
    failed("cat", &["two"], &["two: is a directory"]);
    failed("ls", &["two/kept/below"], &["two/kept/below"]);
    failed("put", &["two/new", "/dev/null"], &["permission denied"]);
    failed("put", &["two/kept", "/dev/null", "-f"], &["permission denied"]);
    failed("put", &["one/new", "/nowhere"], &["/nowhere", "mend FILE"]);
    failed("put", &["", "/dev/null"], &["names no file"]);
    failed("rm", &["two/kept"], &["permission denied"]);
    failed("mkdir", &["one/a/b"], &["one/a: file does not exist"]);
    failed("ls", &["--tree", "tow"], &["tree tow", "mend --tree"]);
    server.end();
    // Nobody is there any more.
    let gone = folder.path("socket");
    cellway(&format!("fs ls unix:{}", gone.display()), &[]).failed(1, &["there is no server"]);
    assert_eq!(fs::read(folder.path("two/kept")).unwrap(), b"kept");
}

#[test]
fn what_cannot_be_served_is_refused_before_anything_is_touched() {
    let folder = Folder::new();
    let (dir, socket) = (folder.path("dir"), folder.path("socket"));
    fs::create_dir(&dir).unwrap();
    let (dir, socket) = (dir.display(), socket.display());
    for (line, code, part) in [
        (format!("--listen unix:{socket} --export a={dir} --export a={dir}"), 2, "two exports"),
        (format!("--listen unix:{socket} --export a/b={dir}"), 2, "without /"),
        (format!("--listen unix:{socket} --export ..={dir}"), 2, "no name for a directory"),
        (format!("--listen unix:{socket} --export {dir}"), 2, "NAME=DIR"),
        (format!("--listen unix:{socket}"), 2, "--export"),
        (format!("--listen unix:{socket} --export a={dir}x"), 1, "file does not exist"),
        (format!("--listen {socket} --export a={dir}"), 2, "write unix:/"),
        (format!("--listen localhost:564 --export a={dir}"), 2, "write tcp:localhost:564"),
        (format!("--listen tcp:0.0.0.0:0 --export a={dir}"), 2, "--allow-remote"),
        (format!("--listen unix:{dir} --export a={dir}"), 1, "no socket"),
    ] {
        cellway(&format!("serve {line}"), &[]).failed(code, &[part]);
    }
    assert_eq!(folder.names(), ["dir"]);
    let server = Served::new(&format!("unix:{socket}"), &[("a", &folder.path("dir"))]);
    let second = format!("serve --listen unix:{socket} --export a={dir}");
    cellway(&second, &[]).failed(1, &["listens there already"]);
    server.end();
}
