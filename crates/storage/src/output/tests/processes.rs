//! What needs a process of its own: full disks, limits, signals, devices.

use std::process::Command;

use super::*;
use crate::testing::{child, child_dir, child_of};
use crate::unfinished::remove_unfinished;

/// Runs `test` again with a file system of 1 MiB at a fresh folder, on which
/// nothing else is, in a mount namespace of its own.
fn on_a_small_disk(test: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$DIR\"";
    // The second is for everybody but root.
    let wrappers: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-rm"]];
    let works = |wrapper: &&&[&str]| {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(["sh", "-c", mount]).env("DIR", dir.path());
        command.output().is_ok_and(|output| output.status.success())
    };
    let Some(wrapper) = wrappers.iter().find(works) else {
        return skip(test, "no mount namespace can be made");
    };
    must_pass(child(test, dir.path(), wrapper, &format!("{mount} &&")));
}

fn must_pass(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.lines().filter(|line| line.starts_with("SKIP")).for_each(|line| println!("{line}"));
}

/// Writes until it fails, over an old output and beside none, and checks that
/// nothing but the old one remains.
fn write_until_full(dir: &Path, limit_bytes: u64) -> OutputError {
    let old = dir.join("old");
    fs::write(&old, b"old").unwrap();
    let mut last = None;
    for unnamed in [true, false] {
        for path in [&old, &dir.join("new")] {
            let output = Output::create_by(path, &FORCE, unnamed).unwrap();
            let mut writer = output.sequential();
            let error = loop {
                match writer.write_all(&[1; 1000]) {
                    Ok(()) => assert!(writer.offset() <= limit_bytes),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), OutputErrorKind::NoSpace, "{error}");
            assert_eq!(error.offset(), Some(writer.offset()));
            drop(output);
            assert_eq!(fs::read(&old).unwrap(), b"old");
            assert_eq!(names(dir), ["old"]);
            last = Some(error);
        }
    }
    last.unwrap()
}

#[test]
fn a_full_disk_leaves_nothing() {
    let Some(dir) = child_dir() else {
        return on_a_small_disk("output::tests::processes::a_full_disk_leaves_nothing");
    };
    let error = write_until_full(&dir, 1 << 20);
    assert!(error.to_string().contains("No space left on device"), "{error}");

    let free = crate::free_bytes(&dir).unwrap();
    assert!(free > 0 && free < 1 << 20, "{free}");
    let options = Options { force: false, len_bytes: Some(free + 1) };
    let error = refused(&dir.join("new"), &options);
    let message = format!("needs {} bytes, {free} are free in {}", free + 1, dir.display());
    assert!(error.to_string().contains(&message), "{error}");
    let options = Options { force: false, len_bytes: Some(free) };
    Output::create(&dir.join("new"), &options).unwrap().commit(true).unwrap();
    assert_eq!(names(&dir), ["new", "old"]);
}

#[test]
fn a_mount_point_is_refused_at_the_start() {
    let Some(dir) = child_dir() else {
        return on_a_small_disk("output::tests::processes::a_mount_point_is_refused_at_the_start");
    };
    let (from, to) = (dir.join("from"), dir.join("to"));
    fs::write(&from, b"old").unwrap();
    fs::write(&to, b"").unwrap();
    let status = Command::new("mount").arg("--bind").args([&from, &to]).status().unwrap();
    assert!(status.success());
    let error = refused(&to, &FORCE);
    assert_eq!(error.kind(), OutputErrorKind::Unwritable);
    assert!(error.to_string().contains("is a mount point"), "{error}");
    assert_eq!(fs::read(&from).unwrap(), b"old");
    assert_eq!(names(&dir), ["from", "to"]);
}

#[test]
fn files_of_others_are_replaced_where_the_folder_lets_one() {
    let Some(dir) = child_dir() else {
        if !rustix::process::geteuid().is_root() {
            // Not a failure in CI either: only root can act for two users.
            println!("SKIP files of others: needs root");
            return;
        }
        // Nobody may perhaps not reach the folder of the build.
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let exe = dir.path().join("exe");
        fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
        for (folder, mode) in [("sticky", 0o1777), ("plain", 0o777)] {
            let folder = dir.path().join(folder);
            fs::create_dir(&folder).unwrap();
            set_mode(&folder, mode);
            fs::write(folder.join("out"), b"old").unwrap();
            set_mode(&folder.join("out"), 0o6755);
        }
        let test = "output::tests::processes::\
                    files_of_others_are_replaced_where_the_folder_lets_one";
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        return must_pass(child_of(&exe, test, dir.path(), &nobody, ""));
    };
    let error = refused(&dir.join("sticky/out"), &FORCE);
    assert_eq!(error.kind(), OutputErrorKind::Unwritable);
    assert!(error.to_string().contains("belongs to somebody else"), "{error}");
    for unnamed in [true, false] {
        write(&dir.join("plain/out"), &FORCE, unnamed, b"new").unwrap();
        let meta = fs::metadata(dir.join("plain/out")).unwrap();
        let ids = (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        assert_eq!(ids, (65534, 65534, 0o755));
        assert_eq!(names(&dir.join("plain")), ["out"]);
    }
}

#[test]
fn a_size_limit_leaves_nothing() {
    let Some(dir) = child_dir() else {
        let dir = disk_dir();
        let test = "output::tests::processes::a_size_limit_leaves_nothing";
        return must_pass(child(test, dir.path(), &[], "trap '' XFSZ; ulimit -f 8;"));
    };
    // Units of `ulimit -f` are 512 or 1024 bytes, as the shell likes.
    let error = write_until_full(&dir, 8 * 1024);
    assert!(error.to_string().contains("; raise `ulimit -f`, "), "{error}");
    let options = Options { force: false, len_bytes: Some(1 << 20) };
    let error = refused(&dir.join("new"), &options);
    assert_eq!(error.kind(), OutputErrorKind::NoSpace);
    assert!(error.to_string().contains("cannot be given 1048576 bytes"), "{error}");
    assert_eq!(names(&dir), ["old"]);
}

#[test]
fn a_killed_run_leaves_nothing() {
    let Some(dir) = child_dir() else {
        let dir = disk_dir();
        fs::write(dir.path().join("out"), b"old").unwrap();
        let test = "output::tests::processes::a_killed_run_leaves_nothing";
        let mut command = child(test, dir.path(), &[], "");
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
        let ready = lines.into_iter().find(|line| line.contains("ready")).unwrap();
        let during = names(dir.path());
        run.kill().unwrap();
        run.wait().unwrap();
        if ready.contains("hidden") {
            return skip("killed run", "the file system has no files without a name");
        }
        assert_eq!(during, ["out"]);
        assert_eq!(names(dir.path()), ["out"]);
        assert_eq!(fs::read(dir.path().join("out")).unwrap(), b"old");
        return;
    };
    let output = Output::create(&dir.join("out"), &FORCE).unwrap();
    output.file().write_all_at(&[1; 10_000], 0).unwrap();
    let hidden = output.pending.as_ref().unwrap().hidden.is_some();
    println!("\nready{}", if hidden { ", hidden" } else { "" });
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_signal_takes_hidden_files_away_and_stops_commits() {
    let Some(dir) = child_dir() else {
        let dir = disk_dir();
        let test = "output::tests::processes::a_signal_takes_hidden_files_away_and_stops_commits";
        return must_pass(child(test, dir.path(), &[], ""));
    };
    let path = dir.join("out");
    let hidden: Vec<_> = (0..3).map(|_| Output::create_by(&path, &NEW, false).unwrap()).collect();
    Output::create_by(&dir.join("done"), &NEW, false).unwrap().commit(false).unwrap();
    assert_eq!(names(&dir).len(), 4);
    let halted = remove_unfinished();
    assert_eq!(names(&dir), ["done"]);
    assert!(crate::unfinished::is_locked());
    drop(halted);
    for output in hidden {
        let error = output.commit(false).unwrap_err();
        assert!(error.to_string().contains("cannot be given its name"), "{error}");
    }
    assert_eq!(names(&dir), ["done"]);
}

#[test]
fn standard_streams_are_used_as_they_are() {
    let Some(_) = child_dir() else {
        let dir = disk_dir();
        let test = "output::tests::processes::standard_streams_are_used_as_they_are";
        let from = dir.path().join("from");
        fs::write(&from, b"from a file").unwrap();
        for (setup, expected) in [
            ("exec <\"$DIR/from\";", "<File from a file>"),
            ("exec <\"$DIR/from\"; dd bs=1 count=5 of=/dev/null status=none;", "<Stream a file>"),
            ("cat \"$DIR/from\" |", "<Stream from a file>"),
        ] {
            let output = child(test, dir.path(), &[], setup).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && text.contains(expected), "{setup}: {text}");
        }
        return;
    };
    let input = Input::open(Path::new("-")).unwrap();
    assert_eq!(input.name(), "standard input");
    assert_eq!(input.changed().unwrap(), None);
    let mut buf = [0; 100];
    let filled = input.sequential().fill(&mut buf).unwrap();
    let output = Output::create(Path::new("-"), &NEW).unwrap();
    assert_eq!((output.name(), output.kind()), ("standard output", Kind::Stream));
    let mut writer = output.sequential();
    writer.write_all(format!("<{:?} ", input.kind()).as_bytes()).unwrap();
    writer.write_all(&buf[..filled]).unwrap();
    writer.write_all(b">").unwrap();
    output.commit(true).unwrap();
}

/// A block device over a file of 1 MiB.
struct Loop(PathBuf);

impl Loop {
    fn over(image: &Path) -> Option<Self> {
        fs::write(image, vec![5; 1 << 20]).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output().ok()?;
        let device = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| Self(device.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").arg("-d").arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

#[test]
fn a_block_device_is_written_straight_with_force() {
    // A process that another test is just starting would hold the device too.
    let Some(dir) = child_dir() else {
        let dir = disk_dir();
        let test = "output::tests::processes::a_block_device_is_written_straight_with_force";
        return must_pass(child(test, dir.path(), &[], ""));
    };
    let Some(device) = Loop::over(&dir.join("image")) else {
        // Not a failure in CI either: only root may, and tests run without root.
        println!("SKIP block device: no loop device can be made");
        return;
    };
    let error = refused(&device.0, &NEW);
    assert_eq!(error.kind(), OutputErrorKind::Exists);
    assert!(error.to_string().contains("is a block device, whose content would"), "{error}");
    let options = Options { force: true, len_bytes: Some((1 << 20) + 1) };
    let error = refused(&device.0, &options);
    assert!(error.to_string().contains("has 1048576 bytes, 1048577 are needed"), "{error}");

    let output = Output::create(&device.0, &FORCE).unwrap();
    assert_eq!(output.kind(), Kind::BlockDevice);
    let error = refused(&device.0, &FORCE);
    assert!(error.to_string().contains("is in use"), "{error}");
    output.file().write_all_at(b"written", 512).unwrap();
    output.open_direct().unwrap();
    output.commit(true).unwrap();

    let input = Input::open(&device.0).unwrap();
    assert_eq!((input.kind(), input.len_bytes()), (Kind::BlockDevice, Some(1 << 20)));
    assert_eq!(input.changed().unwrap(), None);
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(input.sequential().fill(&mut bytes).unwrap(), bytes.len());
    let mut expected = vec![5; 1 << 20];
    expected[512..519].copy_from_slice(b"written");
    assert!(bytes == expected);
    input.open_direct().unwrap();
    assert!(input.resident_share().unwrap() > 0.9);
}
