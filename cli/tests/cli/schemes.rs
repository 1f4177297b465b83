//! What can go wrong, under every scheme of I/O: there is the old output or the
//! whole new one, and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};

use rustix::process::Signal;

use crate::bad_disk::{on_small_disk, shell};
use crate::bad_input::Held;
use crate::program::{Folder, arguments, cellway_fed, command, finish, noise};
use crate::signals::{pid, with_default_signals};

/// Those that read pipes come first, and those that rewrite.
pub(crate) const SCHEMES: [&str; 7] = ["direct", "1", "3", "staged", "6", "2", "4"];
pub(crate) const PIPING: usize = 5;
pub(crate) const REWRITING: usize = 6;

#[test]
fn pipes_of_all_lengths_go_through() {
    for scheme in &SCHEMES[..PIPING] {
        for len in [0, 1, 4095, 4096, 4097, 100_000, 3_000_000] {
            let (data, line) = (noise(len, len as usize), format!("--scheme {scheme} --block 4K"));
            let through = cellway_fed(&format!("run identity - - {line}"), &[], &data).ok();
            assert!(through == data, "{scheme}, {len} bytes");
            let line = format!("run replace - - --pattern a --with bcd {line}");
            let plain: Vec<u8> = data.iter().flat_map(replaced).copied().collect();
            assert!(cellway_fed(&line, &[], &data).ok() == plain, "{scheme}, {len} bytes");
        }
    }
    for scheme in &SCHEMES[PIPING..] {
        let ran = cellway_fed(&format!("run identity - - --scheme {scheme}"), &[], b"abc");
        ran.failed(2, &["holds all of its input", "take --scheme staged, or name a file"]);
    }
    for scheme in &SCHEMES[REWRITING..] {
        let line = format!("run replace {{}} - --pattern a --with b --scheme {scheme}");
        let folder = Folder::new();
        let ran = finish(command(arguments(&line, &[&folder.file("in", b"a")])).spawn().unwrap());
        ran.failed(2, &["holds all of its output", "take --scheme staged"]);
    }
}

fn replaced(byte: &u8) -> &[u8] {
    if *byte == b'a' { b"bcd" } else { std::slice::from_ref(byte) }
}

#[test]
fn what_does_not_fit_the_memory_is_refused_before_the_run() {
    let folder = Folder::new();
    let input = folder.path("in");
    File::create(&input).unwrap().set_len(1 << 43).unwrap();
    for scheme in ["2", "4"] {
        let line = format!("run crc32c {{}} --scheme {scheme}");
        let ran = finish(command(arguments(&line, &[&input])).spawn().unwrap());
        let sum = if scheme == "2" { "8796093022208 bytes of input" } else { " bytes of input" };
        ran.failed(1, &[sum, "are free", "take --scheme staged"]);
    }
    let line = "run identity - - --block 1 --scheme staged --staging 999999999";
    cellway_fed(line, &[], b"abc").failed(1, &["are free", "take fewer buffers by --staging"]);
}

#[test]
fn a_full_disk_leaves_nothing() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(1, 3 << 20));
    let (identity, replace) = ("run identity", "run replace --pattern a --with bcd");
    for (at, scheme) in SCHEMES.iter().enumerate() {
        let with = format!("--block 64K --scheme {scheme}");
        let mut runs =
            vec![(format!("\"$CELLWAY\" {identity} \"$2\" \"$1/out\" {with}"), "are free")];
        if at < REWRITING {
            runs.push((
                format!("\"$CELLWAY\" {replace} \"$2\" \"$1/out\" {with}"),
                "No space left",
            ));
        }
        if at < PIPING {
            let run = format!("cat \"$2\" | \"$CELLWAY\" {identity} - \"$1/out\" {with}");
            runs.push((run, "No space left"));
        }
        for (run, part) in runs {
            let Some(ran) = on_small_disk(&run, &folder, &input) else { return };
            ran.failed(1, &["disk", "out", part]);
        }
    }
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_crash() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &noise(2, 3 << 20)), folder.file("out", b"old"));
    for (at, scheme) in SCHEMES.iter().enumerate() {
        let from = if at < PIPING { "-" } else { "\"$1\"" };
        // 512 or 1024 KiB, by the shell.
        let run = format!(
            "ulimit -f 1024; \"$CELLWAY\" run identity {from} \"$2\" -f --scheme {scheme} < \"$1\""
        );
        let run = if at < PIPING {
            format!("cat \"$1\" | ({})", run.replace(" < \"$1\"", ""))
        } else {
            run
        };
        shell(&[], &run, &[&input, &out]).failed(1, &["out", "ulimit -f"]);
        assert_eq!((folder.names(), fs::read(&out).unwrap()), (old(), b"old".to_vec()));
    }
}

fn old() -> Vec<String> {
    ["in", "out"].map(String::from).to_vec()
}

#[test]
fn a_folder_that_is_read_only_is_refused() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    for scheme in SCHEMES {
        let run = format!(
            "mount -o remount,ro none \"$1\" && \"$CELLWAY\" run identity \"$2\" \"$1/out\" --scheme {scheme}"
        );
        let Some(ran) = on_small_disk(&run, &folder, &input) else { return };
        ran.failed(1, &["out", "Read-only file system", "write to a folder you may write to"]);
    }
}

#[test]
fn an_input_that_changes_is_noticed() {
    const HALF: u64 = Held::INPUT_BYTES / 2;
    for scheme in &SCHEMES {
        let folder = Folder::new();
        let held = || Held::new(&folder, &format!("--scheme {scheme}"));

        let run = held();
        OpenOptions::new().write(true).open(&run.input).unwrap().set_len(HALF).unwrap();
        // Of these 4 and 6 may have read all before.
        let may_be_ahead = ["4", "6"].contains(scheme);
        let part = if may_be_ahead { "in" } else { "in at byte 1048576" };
        run.go_on().failed(1, &[part, "while it was read"]);

        let run = held();
        OpenOptions::new().append(true).open(&run.input).unwrap().write_all(b"more").unwrap();
        run.go_on().failed(1, &["in", "from 2097152 to 2097156 bytes while it was read"]);

        let run = held();
        fs::rename(folder.file("other", b"x"), &run.input).unwrap();
        run.go_on().failed(1, &["in", "replaced by another file"]);
    }
}

#[test]
fn a_reader_of_standard_output_may_leave_early() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(3, 1 << 20));
    for scheme in SCHEMES {
        let line = format!("run identity {{}} - --block 4K --scheme {scheme}");
        let mut child = command(arguments(&line, &[&input])).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 100]).unwrap();
        drop(stdout);
        finish(child).ok();
    }
}

#[test]
fn a_stopped_run_leaves_the_folder_as_it_was() {
    for (at, scheme) in SCHEMES.iter().enumerate() {
        let folder = Folder::new();
        // Held up by an output that nobody reads on.
        let held = Held::new(&folder, &format!("--scheme {scheme}"));
        rustix::process::kill_process(pid(&held.child), Signal::INT).unwrap();
        finish(held.child).failed(130, &["SIGINT"]);
        if at < PIPING {
            // By an input that does not end.
            let (fifo, out) = (folder.fifo("fifo"), folder.file("out", b"old"));
            let before = folder.names();
            let line = format!("run identity {{}} {{}} --block 4K --force --scheme {scheme}");
            let mut run = with_default_signals(&command(arguments(&line, &[&fifo, &out])));
            let child = run.spawn().unwrap();
            let mut writer = File::options().write(true).open(&fifo).unwrap();
            writer.write_all(&vec![7; 512 << 10]).unwrap();
            rustix::process::kill_process(pid(&child), Signal::INT).unwrap();
            finish(child).failed(130, &["SIGINT"]);
            assert_eq!((folder.names(), fs::read(&out).unwrap()), (before, b"old".to_vec()));
        }
    }
}
