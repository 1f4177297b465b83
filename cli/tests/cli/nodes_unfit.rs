//! Processes of an `mpirun` that cannot do what the others do, who go on without them.

use crate::nodes::{MPIS, bin, mpirun, text};
use crate::program::{EXE, Folder, arguments, cellway, finish};

/// One of four, which manages another one, does not see what it is to read.
#[test]
fn a_process_that_cannot_begin_leaves_it_to_the_others() {
    let Some(bin) = bin(MPIS[0].0) else { return };
    let (here, elsewhere) = (Folder::new(), Folder::new());
    let paths = [here.file("in", &text(3 << 20)), here.file("in2", &text(1 << 20))];
    let [words, both] = ["run wordcount {}", "run wordcount {} {}"]
        .map(|line| cellway(line, &[&*paths[0], &*paths[1]][..line.matches("{}").count()]).ok());
    for (line, wanted) in [
        ("run wordcount in --ship locators --tree 2", words.clone()),
        ("run wordcount in in2 --ship locators --tree 2", both.clone()),
        ("run wordcount in in2 --ship locators --manager-only --tree 2", both),
        ("run wordcount in --ship locators --mode single", words),
    ] {
        let line = arguments(&format!("{line} --cluster mpi --block 64K"), &[]);
        let mut command = mpirun(&bin, MPIS[0].1, 1);
        command.current_dir(here.path("")).args(&line);
        for (dir, count) in [(&elsewhere, "1"), (&here, "2")] {
            command.args([":", "-n", count, "--wdir"]).arg(dir.path("")).arg(EXE).args(&line);
        }
        let found = finish(command.spawn().unwrap());
        let is_single = line.contains(&"single".into());
        let said = "cellway: process 1: on ";
        let why = "in: no such file; check the name; the others do without this node";
        let is_right = found.code == Some(0) && found.stdout == wanted;
        assert!(is_right, "{line:?}: {:?}, {}", found.code, found.stderr);
        let is_told = found.stderr.contains(said) && found.stderr.contains(why);
        assert_eq!(is_told, !is_single, "{line:?}: {}", found.stderr);
    }
}

/// However little there is to do, and whichever of both ends first.
#[test]
fn processes_that_would_do_something_else_are_refused_by_name() {
    for (name, options) in MPIS {
        let Some(bin) = bin(name) else { continue };
        let folder = Folder::new();
        let input = folder.file("in", b"a b a\n");
        for (theirs, why) in [
            ("count --pattern b {}", "count has other parameters at the manager"),
            ("crc32c {}", "the manager's kernel is count, this node's crc32c"),
        ] {
            let mut command = mpirun(&bin, options, 1);
            command.args(arguments("run count --pattern a {} --cluster mpi", &[&input]));
            command.args([":", "-n", "1", EXE]);
            let theirs = arguments(&format!("run {theirs} --cluster mpi"), &[&input]);
            let found = finish(command.args(theirs).spawn().unwrap());
            assert_eq!(found.code, Some(0), "{name}: {}", found.stderr);
            for said in ["goes on without node 1: ", "cellway: process 1: "] {
                assert!(found.stderr.contains(&format!("{said}{why}")), "{name}: {}", found.stderr);
            }
        }
    }
}
