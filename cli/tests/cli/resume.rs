//! Runs with a journal: what stays of one that failed, and what it may be
//! gone on with.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::bad_disk::{on_small_disk, shell};
use crate::program::{
    EXE, Folder, Outcome, arguments, bmp_header, cellway, cellway_fed, command, finish, noise,
    skip, wait_until,
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

/// What was counted stands in a hidden folder beside the journal, and goes with it.
#[test]
fn a_stopped_word_count_goes_on() {
    let folder = Folder::new();
    let (input, journal) = (folder.file("in", &text(8 << 20)), folder.path("j"));
    let whole = cellway("run wordcount {}", &[&input]).ok();
    let begin = "run wordcount {} --journal {} --force";
    stop(&folder, begin, &[&input, &journal], &journal);
    let first = hidden(&folder).unwrap();
    assert!(first.starts_with(".j.cellway-"), "{first}");
    stop(&folder, begin, &[&input, &journal], &journal);
    let second = hidden(&folder).unwrap();
    assert!(first != second && folder.names().len() == 3, "{:?}", folder.names());
    let line = "run wordcount {} --resume {}";
    let away = folder.path("away");
    fs::rename(folder.path(&second), &away).unwrap();
    cellway(line, &[&input, &journal])
        .failed(1, &["words kept beside the journal cannot be read back", "start anew"]);
    fs::rename(&away, folder.path(&second)).unwrap();
    assert!(cellway(line, &[&input, &journal]).ok() == whole);
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
    for line in ["run identity {} {} --journal {}", "run identity {} --out-dir {} --journal {}"] {
        cellway(&format!("{line} --scheme 3"), &[&input, &out, &journal])
            .failed(2, &["take --scheme direct, or no journal"]);
    }
    cellway("run crc32c {} {} --journal {}", &[&input, &fifo, &journal])
        .failed(2, &["fifo cannot be read again"]);
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

/// Text whose words come again and again.
fn text(len: usize) -> Vec<u8> {
    let words = noise(8, len / 2).into_iter().map(|byte| format!("w{byte} "));
    words.collect::<String>().into_bytes()
}

/// The program with files limited to `len_bytes`; `None`, with SKIP said, where
/// nothing limits them by the byte.
fn limited(len_bytes: usize, line: &str, paths: &[&Path]) -> Option<Outcome> {
    let mut run = Command::new("prlimit");
    run.arg(format!("--fsize={len_bytes}")).arg(EXE).args(arguments(line, paths));
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match run.spawn() {
        Ok(child) => Some(finish(child)),
        Err(error) => {
            skip("files limited by the byte", &format!("prlimit: {error}"));
            None
        }
    }
}

/// Wherever the journal's file may not grow any more, in its header or in a
/// record, the run ends with an error and goes on from what was recorded.
#[test]
fn a_journal_that_may_not_grow_loses_nothing_at_any_byte() {
    let folder = Folder::new();
    let (input, journal) = (folder.file("in", &noise(7, 5000)), folder.path("j"));
    let whole = cellway("run crc32c {}", &[&input]).ok_text();
    let (mut begun, mut gone_on) = (0, 0);
    for len_bytes in 0..420 {
        let line = format!("run crc32c {{}} --journal {{}} {SLOW}");
        let Some(ran) = limited(len_bytes, &line, &[&input, &journal]) else { return };
        if !journal.exists() {
            ran.failed(1, &["j: cannot be written", "ulimit -f"]);
            begun = len_bytes;
            continue;
        }
        ran.failed(1, &["j: cannot be written", "--resume"]);
        assert_eq!(fs::metadata(&journal).unwrap().len(), len_bytes as u64);
        let found = cellway("run crc32c {} --resume {}", &[&input, &journal]).ok_text();
        assert_eq!(found, whole, "{len_bytes}");
        assert_eq!(folder.names(), ["in"]);
        gone_on += 1;
    }
    assert!(begun > 100 && gone_on > 100, "{begun}, {gone_on}");
}

#[test]
fn a_full_disk_under_kept_words_loses_nothing() {
    let folder = Folder::new();
    let input = folder.file("in", &text(1 << 20));
    let whole = cellway("run wordcount {}", &[&input]).ok();
    let run = "\"$CELLWAY\" run wordcount \"$2\"";
    let every = "--journal-every 0 --block 64K --threads 1 --accelerators 1";
    let fill = "head -c 2M /dev/zero > \"$1/fill\" 2> /dev/null; truncate -s -8192 \"$1/fill\"";
    let script = format!(
        "{fill}; {run} --journal \"$1/j\" {every} 2> \"$1/../told\"; [ $? = 1 ] || exit 7; \
         rm \"$1/fill\"; {run} --resume \"$1/j\""
    );
    let Some(ran) = on_small_disk(&script, &folder, &input) else { return };
    let told = fs::read_to_string(folder.path("told")).unwrap();
    for part in ["cannot be kept beside the journal: No space left", "free space", "--resume"] {
        assert!(told.contains(part), "{part:?} is not in {told:?}");
    }
    assert!(ran.ok() == whole);
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A kill may come between an output's name and the journal's end.
#[test]
fn a_complete_run_has_its_statistics_too() {
    let folder = Folder::new();
    let data = noise(9, 30 << 20);
    let (input, out, journal) = (folder.file("in", &data), folder.path("out"), folder.path("j"));
    stop(&folder, "run identity {} {} --journal {}", &[&input, &out, &journal], &journal);
    // The journal stays under another name, as of a run that was killed then.
    let (killed, stats) = (folder.path("k"), folder.path("stats"));
    fs::hard_link(&journal, &killed).unwrap();
    let line = "run identity {} {} --resume {} --stats {}";
    cellway(line, &[&input, &out, &journal, &stats]).ok();
    assert!(read_json(&stats)["bytes_in"].as_u64().unwrap() > 0);
    fs::remove_file(&stats).unwrap();
    cellway(line, &[&input, &out, &killed, &stats]).ok();
    let found = read_json(&stats);
    assert_eq!((found["bytes_in"].as_u64(), found["bytes_out"].as_u64()), (Some(0), Some(0)));
    assert_eq!(found["output"].as_str().map(Path::new), Some(out.as_path()));
    assert!(fs::read(&out).unwrap() == data);
    assert_eq!(folder.names(), ["in", "out", "stats"]);
}

#[test]
fn a_complete_run_over_many_has_its_statistics_too() {
    let folder = Folder::new();
    fs::create_dir(folder.path("in")).unwrap();
    let name = |number: u64| format!("in/{number:03}");
    for number in 0..100 {
        folder.file(&name(number), &noise(number + 1, 500));
    }
    let large = folder.file("in/050", &noise(1000, 30 << 20));
    let (input, out, journal) = (folder.path("in"), folder.path("out"), folder.path("j"));
    let line = "run identity -r {} --out-dir {}";
    let begin = format!("{line} --journal {{}} {SLOW}");
    let mut run = with_default_signals(&command(arguments(&begin, &[&input, &out, &journal])));
    let child = run.spawn().unwrap();
    // The large one is under way: it is hidden.
    let hidden = || {
        out.read_dir().ok()?.find_map(|entry| {
            entry
                .ok()?
                .file_name()
                .into_string()
                .ok()
                .filter(|name| name.starts_with(".050.cellway-"))
        })
    };
    wait_until("the large file", || hidden().is_some());
    let len = fs::metadata(&journal).unwrap().len();
    wait_until("some records of it", || fs::metadata(&journal).unwrap().len() > len + 2000);
    rustix::process::kill_process(pid(&child), Signal::INT).unwrap();
    finish(child).failed(130, &["SIGINT", "the same command with --resume"]);
    assert!(out.join("049").exists() && !out.join("050").exists() && hidden().is_some());

    let (killed, stats) = (folder.path("k"), folder.path("stats"));
    fs::hard_link(&journal, &killed).unwrap();
    let line = format!("{line} --resume {{}} --stats {{}}");
    cellway(&line, &[&input, &out, &journal, &stats]).ok();
    let found = read_json(&stats);
    assert_eq!(found["inputs"].as_u64(), Some(100));
    // Half of the small ones at least were done.
    assert!(found["bytes_in"].as_u64().unwrap() <= (30 << 20) + 50 * 500, "{found}");
    cellway(&line, &[&input, &out, &killed, &stats]).ok();
    assert!(read_json(&stats)["bytes_in"].as_u64().unwrap() < 1 << 20);
    for number in 0..100 {
        assert!(
            fs::read(folder.path(&name(number))).unwrap()
                == fs::read(out.join(format!("{number:03}"))).unwrap()
        );
    }
    assert_eq!(fs::metadata(large).unwrap().len(), 30 << 20);
    assert_eq!(
        (folder.names(), out.read_dir().unwrap().count()),
        (["in", "out", "stats"].map(str::to_owned).to_vec(), 100)
    );
}

#[test]
fn a_journal_among_the_inputs_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path("in")).unwrap();
    folder.file("in/a", b"abc");
    let (input, out, journal) = (folder.path("in"), folder.path("out"), folder.path("j"));
    let inside = folder.path("in/j");
    cellway("run crc32c -r {} --journal {}", &[&input, &inside])
        .failed(2, &["--journal lies in the INPUT", "another place"]);
    cellway(
        "run identity -r {} --out-dir {} --journal {}",
        &[&input, &folder.path("in/out"), &journal],
    )
    .failed(2, &["--out-dir lies in the INPUT"]);
    let one = folder.path("in/a");
    cellway("run crc32c {} {} --journal {} --force", &[&one, &one, &one])
        .failed(2, &["--journal would replace the INPUT"]);
    cellway("run identity -r {} --out-dir {} --journal {}", &[&input, &out, &out.join("a")])
        .failed(2, &["would replace the journal"]);
    assert_eq!(folder.names(), ["in"]);
}
