//! Runs with a journal: what stays of one that failed, and what it may be
//! gone on with.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::bad_disk::{on_small_disk, shell};
use crate::program::{
    Folder, arguments, bmp_header, cellway, cellway_fed, command, finish, noise, wait_until,
};
use crate::signals::{pid, with_default_signals};

/// Each record is synced, so a run of thousands takes long enough to be caught.
const SLOW: &str = "--journal-every 0 --block 1K --threads 1 --accelerators 1";

/// A run in `folder` that was stopped by Ctrl-C when some of it was recorded.
fn stop(folder: &Folder, line: &str, paths: &[&Path], journal: &Path) {
    let before = hidden(folder);
    let mut run = with_default_signals(&command(arguments(&format!("{line} {SLOW}"), paths)));
    let child = run.spawn().unwrap();
    // An older run's journal and file are there until this one begins.
    let has_begun = || before.is_none() || hidden(folder).is_some_and(|now| Some(now) != before);
    let len = || fs::metadata(journal).map_or(0, |found| found.len());
    wait_until("some records", || has_begun() && len() > 2000);
    rustix::process::kill_process(pid(&child), Signal::INT).unwrap();
    let journal = journal.to_str().unwrap();
    finish(child).failed(130, &["SIGINT", "the same command with --resume", journal]);
}

fn hidden(folder: &Folder) -> Option<String> {
    folder.names().into_iter().find(|name| name.starts_with('.'))
}

#[test]
fn a_stopped_transform_goes_on() {
    let folder = Folder::new();
    let data = noise(1, 30 << 20);
    let (input, out, journal) = (folder.file("in", &data), folder.path("out"), folder.path("j"));
    stop(&folder, "run identity {} {} --journal {}", &[&input, &out, &journal], &journal);
    assert!(!out.exists());
    assert!(hidden(&folder).is_some_and(|name| name.starts_with(".out.cellway-")));
    cellway("run identity {} {} --journal {}", &[&input, &out, &journal])
        .failed(1, &["j: exists already", "--resume", "--force"]);
    cellway("run identity {} {} --resume {}", &[&input, &out, &journal]).ok();
    assert!(fs::read(&out).unwrap() == data);
    assert_eq!(folder.names(), ["in", "out"]);
}

/// How the kernels of a chain work is no part of the run.
#[test]
fn a_stopped_chain_goes_on_spread() {
    let folder = Folder::new();
    let data = noise(8, 30 << 20);
    let (input, out, journal) = (folder.file("in", &data), folder.path("out"), folder.path("j"));
    let paths: [&Path; 3] = [&input, &out, &journal];
    stop(&folder, "run identity,identity {} {} --journal {}", &paths, &journal);
    cellway("run identity,identity {} {} --resume {} --pipeline spread", &paths).ok();
    assert!(fs::read(&out).unwrap() == data);
    assert_eq!(folder.names(), ["in", "out"]);
}

#[test]
fn a_stopped_reduction_goes_on() {
    let folder = Folder::new();
    let data = noise(2, 30 << 20);
    let (input, journal) = (folder.file("in", &data), folder.path("j"));
    let whole = cellway("run blake3 {}", &[&input]).ok_text();
    stop(&folder, "run blake3 {} --journal {}", &[&input, &journal], &journal);
    assert_eq!(cellway("run blake3 {} --resume {}", &[&input, &journal]).ok_text(), whole);
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn an_old_output_stays_until_the_new_one_is_whole() {
    let folder = Folder::new();
    let data = noise(3, 30 << 20);
    let (input, out, journal) =
        (folder.file("in", &data), folder.file("out", b"old"), folder.path("j"));
    cellway("run identity {} {} --journal {}", &[&input, &out, &journal])
        .failed(1, &["out: exists already", "--force"]);
    assert_eq!(folder.names(), ["in", "out"]);
    stop(&folder, "run identity {} {} --force --journal {}", &[&input, &out, &journal], &journal);
    assert_eq!(fs::read(&out).unwrap(), b"old");
    // Anew, with the old journal and its file taken away.
    let first = hidden(&folder);
    stop(&folder, "run identity {} {} --force --journal {}", &[&input, &out, &journal], &journal);
    assert!(first != hidden(&folder) && folder.names().len() == 4, "{:?}", folder.names());
    cellway("run identity {} {} --resume {}", &[&input, &out, &journal])
        .failed(1, &["out: exists already"]);
    cellway("run identity {} {} --force --resume {}", &[&input, &out, &journal]).ok();
    assert!(fs::read(&out).unwrap() == data);
    assert_eq!(folder.names(), ["in", "out"]);
}

#[test]
fn a_limit_met_on_the_way_is_told_with_how_to_go_on() {
    let folder = Folder::new();
    let (input, out, journal) =
        (folder.file("in", &noise(4, 6 << 20)), folder.path("out"), folder.path("j"));
    let run = "run replace {} {} --pattern [a-f] --with <g>";
    cellway(run, &[&input, &folder.path("whole")]).ok();
    let whole = fs::read(folder.path("whole")).unwrap();
    let script = "ulimit -f 4096; \"$CELLWAY\" run replace \"$1\" \"$2\" --pattern '[a-f]' \
                  --with '<g>' --journal \"$3\" --journal-every 0";
    let told = format!("then go on by the same command with --resume {}\n", journal.display());
    shell(&[], script, &[&input, &out, &journal]).failed(1, &["out", "ulimit -f", &told]);
    assert!(!out.exists() && hidden(&folder).is_some());
    cellway(&format!("{run} --resume {{}}"), &[&input, &out, &journal]).ok();
    assert!(fs::read(&out).unwrap() == whole);
    assert_eq!(folder.names(), ["in", "out", "whole"]);
}

#[test]
fn what_is_not_the_same_is_refused() {
    let folder = Folder::new();
    let (input, out, journal) =
        (folder.file("in", &noise(5, 30 << 20)), folder.path("out"), folder.path("j"));
    let key = folder.file("key", &[3; 32]);
    let (run, iv) = ("run aes256-ctr {} {} --key-file {} --resume {}", "0".repeat(32));
    let begin = format!("run aes256-ctr {{}} {{}} --key-file {{}} --journal {{}} --iv {iv}");
    stop(&folder, &begin, &[&input, &out, &key, &journal], &journal);
    let before = fs::read(&journal).unwrap();
    assert!(!before.windows(8).any(|bytes| bytes == [3; 8]), "the key is in the journal");

    let (other_key, other_in) = (folder.file("key2", &[4; 32]), folder.file("in2", b"abc"));
    let other_out = folder.path("out2");
    let iv = format!(" --iv {iv}");
    for (line, paths, code, parts) in [
        (
            "run identity {} {} --resume {}",
            vec![&input, &out, &journal],
            2,
            ["journal of aes256-ctr", "not of identity"],
        ),
        (run, vec![&input, &out, &other_key, &journal], 2, ["other parameters", "begun with"]),
        (run, vec![&other_in, &out, &key, &journal], 2, ["another file", "the same INPUT"]),
        (
            run,
            vec![&input, &other_out, &key, &journal],
            2,
            ["of a run that writes", "the same OUTPUT"],
        ),
        (run, vec![&input, &out, &key, &input], 2, ["--resume would replace the INPUT", ""]),
        (run, vec![&input, &out, &key, &other_in], 1, ["in2", "is no journal"]),
        (run, vec![&input, &out, &key, &other_out], 1, ["out2", "No such file"]),
    ] {
        let paths: Vec<&Path> = paths.into_iter().map(|path| path.as_path()).collect();
        let iv = if line == run { iv.as_str() } else { "" };
        cellway(&format!("{line}{iv}"), &paths).failed(code, &parts);
    }
    assert!(fs::read(&journal).unwrap() == before, "a refused run changed the journal");

    let partial = folder.path(&hidden(&folder).unwrap());
    fs::rename(&partial, folder.path("away")).unwrap();
    let all: [&Path; 4] = [&input, &out, &key, &journal];
    let run = format!("{run}{iv}");
    cellway(&run, &all).failed(1, &["unfinished file", "is missing", "start anew"]);
    fs::write(&partial, vec![0; 30 << 20]).unwrap();
    cellway(&run, &all).failed(1, &["is another file", "start anew"]);
    fs::rename(folder.path("away"), &partial).unwrap();
    let len = fs::metadata(&partial).unwrap().len();
    fs::File::options().write(true).open(&partial).unwrap().set_len(0).unwrap();
    cellway(&run, &all).failed(1, &["is shorter than it was"]);
    fs::File::options().write(true).open(&partial).unwrap().set_len(len).unwrap();

    fs::File::options().append(true).open(&input).unwrap().set_len(5 << 20).unwrap();
    cellway(&run, &all).failed(1, &["was changed since", "start anew"]);
    fs::write(&journal, &before[..20]).unwrap();
    cellway(&run, &all).failed(1, &["ends before its first record", "--force"]);
    fs::write(&journal, b"cellway journal 9\n").unwrap();
    cellway(&run, &all).failed(1, &["another version"]);
}

#[test]
fn what_can_never_be_resumed_is_refused_at_once() {
    let folder = Folder::new();
    let (input, journal) = (folder.file("in", b"some words"), folder.path("j"));
    let (fifo, out) = (folder.fifo("fifo"), folder.path("out"));
    cellway_fed("run crc32c - --journal {}", &[&journal], b"abc")
        .failed(2, &["standard input cannot be read again"]);
    cellway("run identity {} - --journal {}", &[&input, &journal])
        .failed(1, &["written straight", "cannot be resumed"]);
    cellway("run identity {} {} --journal {}", &[&input, &fifo, &journal])
        .failed(1, &["written straight"]);
    cellway("run identity {} {} --journal {}", &[&input, &out, &out])
        .failed(2, &["--journal would replace the OUTPUT"]);
    cellway("run crc32c {} --journal -", &[&input]).failed(2, &["must be a file"]);
    cellway("run crc32c {} --journal-every 1", &[&input]).failed(2, &["needs a journal"]);
    cellway("run crc32c {} --journal {} --resume {}", &[&input, &journal, &journal])
        .failed(2, &["cannot be used with"]);
    cellway("run crc32c {} --journal {} --force", &[&input, &input])
        .failed(2, &["would replace the INPUT"]);
    let text = folder.file("text", b"somebody's");
    cellway("run crc32c {} --journal {} --force", &[&input, &text]).failed(1, &["is no journal"]);
    cellway("run crc32c {} --journal {}", &[&input, &folder.path("no/j")])
        .failed(1, &["No such file"]);
    assert_eq!(folder.names(), ["fifo", "in", "text"]);
}

#[test]
fn a_full_disk_under_the_journal_loses_nothing() {
    let folder = Folder::new();
    let pixels = [bmp_header(512, 512), noise(6, 3 * 512 * 512)].concat();
    let input = folder.file("in", &pixels);
    // All but a page or two is taken: a record or some find room.
    let fill = "head -c 2M /dev/zero > \"$1/fill\" 2> /dev/null; truncate -s -8192 \"$1/fill\"";
    let every = "--journal-every 0 --block 4K --threads 1 --accelerators 1";
    for (kernel, output) in [("histogram", ""), ("identity", "\"$1/../out\" --force")] {
        let whole = cellway("run histogram {}", &[&input]).ok();
        folder.file("out", b"old");
        let run = format!("\"$CELLWAY\" run {kernel} \"$2\" {output}");
        let script = format!(
            "{fill}; {run} --journal \"$1/j\" {every} 2> \"$1/../told\"; [ $? = 1 ] || exit 7; \
             cmp \"$1/../out\" \"$1/../old\" >&2 || exit 8; rm \"$1/fill\"; {run} --resume \"$1/j\""
        );
        folder.file("old", b"old");
        let Some(ran) = on_small_disk(&script, &folder, &input) else { return };
        let told = fs::read_to_string(folder.path("told")).unwrap();
        for part in ["/j: cannot be written: No space left", "free some space", "--resume"] {
            assert!(told.contains(part), "{part:?} is not in {told:?}");
        }
        let printed = ran.ok();
        if kernel == "histogram" {
            assert!(printed == whole);
        } else {
            assert!(fs::read(folder.path("out")).unwrap() == pixels);
        }
        assert_eq!(folder.names(), ["disk", "in", "old", "out", "told"]);
    }
}
