//! Journals of rewrites and of many inputs on nodes: runs that a limit on the length of
//! files ends on the way, and what they may be gone on with.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bad_disk::shell;
use crate::nodes::{MPIS, run_mpi};
use crate::program::{Folder, Outcome, cellway, names, noise};

const HOW: &str = "--block 64K --journal-every 0";
const REPLACE: &str = "--pattern [a-f] --with <g>";

/// Runs to where a file would have more than 4 MiB.
fn limited(line: &str, paths: &[&Path]) -> Outcome {
    let mut numbers = 1..=paths.len();
    let words = line.split(' ').map(|word| match word {
        "{}" => format!("\"${}\"", numbers.next().unwrap()),
        word => format!("'{word}'"),
    });
    let words: Vec<_> = words.collect();
    shell(&[], &format!("ulimit -f 4096; \"$CELLWAY\" {}", words.join(" ")), paths)
}

fn hidden(folder: &Path, of: &str) -> Vec<PathBuf> {
    let names = names(folder).into_iter();
    let own = names.filter(|name| name.starts_with(&format!(".{of}.cellway-")));
    own.map(|name| folder.join(name)).collect()
}

/// As if written anew.
fn touch(path: &Path, by: i64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let was = file.metadata().unwrap().modified().unwrap();
    let by_seconds = Duration::from_secs(by.unsigned_abs());
    let now = if by > 0 { was + by_seconds } else { was - by_seconds };
    file.set_modified(now).unwrap();
}

#[test]
fn a_rewrite_that_ended_on_the_way_goes_on() {
    let folder = Folder::new();
    let (input, out, journal) =
        (folder.file("in", &noise(4, 6 << 20)), folder.path("out"), folder.path("j"));
    let dir = folder.path("");
    let run = format!("run replace {{}} {{}} {REPLACE}");
    cellway(&run, &[&input, &folder.path("whole")]).ok();
    let whole = fs::read(folder.path("whole")).unwrap();
    let run = format!("{run} {HOW}");
    let paths: [&Path; 3] = [&input, &out, &journal];
    let how_to_go_on =
        format!("then go on by the same command with --resume {}", journal.display());
    let begin = |more: &str| {
        limited(&format!("{run} --nodes 3 --journal {{}}{more}"), &paths)
            .failed(1, &["cannot be written", &how_to_go_on]);
    };
    let resume = |nodes: &str| cellway(&format!("{run} {nodes} --resume {{}}"), &paths);
    begin("");
    let old = hidden(&dir, "outputs");
    begin(" --force");
    let made = hidden(&dir, "outputs");
    assert!(old.len() == 1 && made.len() == 1 && old != made, "{old:?} {made:?}");

    resume("").failed(2, &["begun on nodes"]);
    touch(&input, 1);
    resume("--nodes 2").failed(1, &["in was changed since", "start anew"]);
    touch(&input, -1);
    fs::rename(&made[0], folder.path("away")).unwrap();
    resume("--nodes 2").failed(1, &["is gone, with what was written", "start anew"]);
    fs::rename(folder.path("away"), &made[0]).unwrap();
    assert!(!out.exists());
    resume("--nodes 2").ok();
    assert!(fs::read(&out).unwrap() == whole);
    assert_eq!(folder.names(), ["in", "out", "whole"]);
}

#[test]
fn outputs_of_many_inputs_that_ended_on_the_way_go_on() {
    let folder = Folder::new();
    let (dir, out, journal) = (folder.path("in"), folder.path("out"), folder.path("j"));
    fs::create_dir_all(dir.join("b")).unwrap();
    for (name, len) in [("a", 70_001), ("b/a", 0), ("b/b", 6 << 20), ("c", 16), ("d", 300_000)] {
        fs::write(dir.join(name), noise(len as u64, len)).unwrap();
    }
    let paths: [&Path; 3] = [&dir, &out, &journal];
    for kernel in ["identity".to_owned(), format!("replace {REPLACE}")] {
        let run = format!("run {kernel} -r {{}} --out-dir {{}}");
        let whole = folder.path("whole");
        cellway(&run, &[&dir, &whole]).ok();
        let run = format!("{run} {HOW}");
        limited(&format!("{run} --nodes 3 --journal {{}}"), &paths)
            .failed(1, &["File too large", "with --resume"]);
        let resume = |nodes: &str| cellway(&format!("{run} {nodes} --resume {{}}"), &paths);
        assert_eq!(hidden(&out, "outputs").len(), 1);

        resume("").failed(2, &["begun on nodes"]);
        touch(&dir.join("c"), 1);
        resume("--nodes 2").failed(1, &["one of the 5 inputs was changed since", "start anew"]);
        touch(&dir.join("c"), -1);
        fs::write(dir.join("e"), "").unwrap();
        resume("--nodes 2").failed(2, &["5 inputs", "now there are 6", "the same INPUTs"]);
        fs::remove_file(dir.join("e")).unwrap();
        // Somebody else's, whatever is in it.
        fs::write(out.join("c"), "other").unwrap();
        resume("--nodes 2").failed(1, &["c: exists already, and holds something else"]);
        fs::remove_file(out.join("c")).unwrap();
        resume("--nodes 2 --tree 2").ok();
        for name in ["a", "b/a", "b/b", "c", "d"] {
            let found = [&out, &whole].map(|dir| fs::read(dir.join(name)).unwrap());
            assert!(found[0] == found[1], "{kernel} {name}");
        }
        assert_eq!(names(&out), ["a", "b", "c", "d"]);
        assert_eq!(folder.names(), ["in", "out", "whole"]);
        fs::remove_dir_all(&out).unwrap();
        fs::remove_dir_all(&whole).unwrap();
    }
}

#[test]
fn a_journal_of_a_reduction_of_many_inputs_is_of_these_alone() {
    let folder = Folder::new();
    let (dir, journal) = (folder.path("in"), folder.path("j"));
    fs::create_dir(&dir).unwrap();
    for number in 0..9 {
        let word = format!("word{number} ").into_bytes();
        fs::write(dir.join(format!("f{number}")), word.repeat(9000)).unwrap();
    }
    fs::write(dir.join("f5"), vec![b'x'; 300_000]).unwrap();
    let run = |kernel: &str, nodes: &str, keep: &str| {
        let line = format!("run {kernel} -r {{}} {HOW} {nodes} {keep} {{}}");
        cellway(&line, &[&dir, &journal])
    };
    run("wordcount", "--nodes 3", "--journal").failed(1, &["f5", "longer", "with --resume"]);
    run("wordcount", "--nodes 2", "--resume").failed(1, &["f5", "longer", "with --resume"]);
    run("wordcount", "", "--resume").failed(2, &["begun on nodes"]);
    run("crc32c", "--nodes 2", "--resume").failed(2, &["wordcount, not of crc32c"]);
    touch(&dir.join("f8"), 1);
    let changed = ["one of the 9 inputs", "was changed since", "start anew"];
    run("wordcount", "--nodes 2", "--resume").failed(1, &changed);
    fs::write(dir.join("f5"), "fit").unwrap();
    run("wordcount", "--nodes 2", "--resume").failed(1, &changed);
    let found = run("wordcount", "--nodes 2", "--force --journal").ok();
    assert!(found == cellway("run wordcount -r {}", &[&dir]).ok());
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn processes_of_each_mpi_keep_journals_of_many_inputs_and_of_rewrites() {
    let folder = Folder::new();
    let (input, out, journal) =
        (folder.file("in", &noise(6, 300_000)), folder.path("out"), folder.path("j"));
    let whole = folder.path("whole");
    cellway(&format!("run replace {{}} {{}} {REPLACE}"), &[&input, &whole]).ok();
    let words = cellway("run wordcount {} {}", &[&input, &whole]).ok();
    for mpi in MPIS {
        let line = format!("run wordcount {{}} {{}} {HOW} --cluster mpi --journal {{}}");
        let Some(found) = run_mpi(mpi, 3, &line, &[&input, &whole, &journal]) else { continue };
        assert!(found.ok() == words, "{}", mpi.0);
        let line = format!("run replace {{}} {{}} {REPLACE} {HOW} --cluster mpi --journal {{}}");
        run_mpi(mpi, 3, &line, &[&input, &out, &journal]).unwrap().ok();
        assert!(fs::read(&out).unwrap() == fs::read(&whole).unwrap(), "{}", mpi.0);
        fs::remove_file(&out).unwrap();
        let line =
            format!("run replace {{}} --out-dir {{}} {REPLACE} {HOW} --cluster mpi --journal {{}}");
        run_mpi(mpi, 3, &line, &[&input, &out, &journal]).unwrap().ok();
        assert!(fs::read(out.join("in")).unwrap() == fs::read(&whole).unwrap(), "{}", mpi.0);
        fs::remove_dir_all(&out).unwrap();
        assert_eq!(folder.names(), ["in", "whole"], "{}", mpi.0);
    }
}
