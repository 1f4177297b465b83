//! `--nodes N`, and `--cluster mpi` under each mpirun.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::kills::{Moments, take_away_what_a_kill_left};
use crate::program::{CIPHER, EXE, Folder, Outcome, arguments, cellway, finish, noise, skip};

/// Nodes and leases of all kinds, among which the same units go in other ways.
pub(crate) const SHAPES: [&str; 5] = [
    "--nodes 2",
    "--nodes 5",
    "--nodes 3 --unit 12K",
    "--nodes 2 --mode basic",
    "--nodes 7 --tree 2",
];

/// Text with words, and lines.
pub(crate) fn text(len: usize) -> Vec<u8> {
    noise(9, len).into_iter().map(|byte| b"ab c\nde f gh"[byte as usize % 12]).collect()
}

#[test]
fn nodes_find_what_one_machine_finds() {
    let folder = Folder::new();
    let (key, out) = (folder.file("key", &[b'7'; 64]), folder.path("out"));
    let text = text((1 << 20) + 77);
    for size in [0, 1, text.len()] {
        let input = folder.file("in", &text[..size]);
        let (one, pair, with_key): ([&Path; 1], [&Path; 2], [&Path; 3]) =
            ([&input], [&input, &out], [&input, &out, &key]);
        for (line, paths) in [
            ("blake3 {}".to_owned(), &one[..]),
            ("crc32c {}".to_owned(), &one),
            ("wordcount {}".to_owned(), &one),
            ("count {} --pattern a+b".to_owned(), &one),
            ("count {} --pattern a+b --lines".to_owned(), &one),
            ("identity,blake3 {}".to_owned(), &one),
            ("identity {} {} -f".to_owned(), &pair),
            (format!("aes256-ctr {{}} {{}} {CIPHER} -f"), &with_key),
            (format!("aes256-ctr,identity {{}} {{}} {CIPHER} -f"), &with_key),
            ("replace {} {} --pattern ab* --with <$0-$0> -f".to_owned(), &pair),
            ("replace {} {} --pattern [^c] --with= -f".to_owned(), &pair),
            (format!("aes256-ctr,replace {{}} {{}} {CIPHER} --pattern a --with bcd -f"), &with_key),
        ] {
            let run = |nodes: &str| {
                let printed = cellway(&format!("run {line} {nodes}"), paths).ok();
                (printed, line.ends_with("-f").then(|| fs::read(&out).unwrap()))
            };
            let alone = run("");
            for nodes in [
                "--nodes 1",
                "--nodes 2 --block 16K",
                "--nodes 5 --block 4K",
                "--nodes 3 --block 4K --unit 64K",
                "--nodes 7 --block 4K --tree 2",
                "--nodes 13 --block 4K --tree 3 --unit 16K",
                "--nodes 3 --block 4K --mode basic",
                "--nodes 3 --mode single",
                "--nodes 3 --block 4K --ship bytes",
                "--nodes 2 --block 16K --ship bytes --mode basic",
                "--nodes 2 --ship auto",
                "--nodes 2 --block 16K --direct on --accelerators 2 --threads 3",
            ] {
                if nodes.contains("--ship bytes") && line.contains("replace") {
                    let line = format!("run {line} {nodes}");
                    cellway(&line, paths).failed(2, &["--ship bytes", "places"]);
                    continue;
                }
                assert!(run(nodes) == alone, "{line} of {size} bytes, {nodes}");
            }
        }
    }
}

/// Sums of floats do not depend on the nodes.
#[test]
fn a_line_has_the_same_bits_whatever_the_nodes() {
    let folder = Folder::new();
    let pairs =
        noise(4, 400_000).into_iter().flat_map(|byte| (f64::from(byte) / 7.0).to_le_bytes());
    let input = folder.file("in", &pairs.collect::<Vec<_>>());
    let run = |nodes: &str| {
        cellway(&format!("run linreg {{}} --type f64 --block 4K --format json {nodes}"), &[&input])
            .ok()
    };
    let one = run("--nodes 1");
    for nodes in SHAPES {
        assert_eq!(run(nodes), one, "{nodes}");
    }
}

#[test]
fn basic_gives_all_the_same_and_nothing_twice() {
    let folder = Folder::new();
    for (blocks, nodes, leases) in [(65, 2, 5), (1025, 8, 17), (64, 2, 4), (100, 2, 7), (3, 2, 3)] {
        let input = folder.file("in", &text(blocks * 4096));
        let line = format!("run crc32c {{}} --nodes {nodes} --block 4K --mode basic --verbose");
        let said = cellway(&line, &[&input]).stderr;
        assert!(said.contains(&format!("work given {leases} times,")), "{said}");
        assert!(said.contains("to a second node 0,"), "{said}");
    }
}

#[test]
fn any_bound_can_be_said() {
    let folder = Folder::new();
    let input = folder.file("in", b"a b");
    for how in [
        "--nodes 256 --table-bytes 100000T",
        "--nodes 2 --table-bytes 1048576T",
        "--nodes 2 --table-bytes 8388608T",
        "--nodes 3 --table-bytes 16777215T",
        "--table-bytes 16777215T",
    ] {
        let journal = folder.path("journal");
        let line = format!("run wordcount {{}} --verbose {how} --journal {}", journal.display());
        let ran = cellway(&line, &[&input]);
        // It may be more than there is.
        assert!(
            matches!(ran.code, Some(0 | 1)) && !ran.stderr.contains("panic"),
            "{how}: {}",
            ran.stderr
        );
        let _ = fs::remove_file(journal);
    }
}

#[test]
fn what_nodes_cannot_do_is_said() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"abc"), folder.path("out"));
    for (line, parts) in [
        ("crc32c {} --nodes 0", &["--nodes"][..]),
        ("crc32c {} --nodes 2 --cluster mpi", &["--cluster"]),
        ("crc32c {} --cluster tcp", &["mpi"]),
        ("crc32c {} --unit 1M", &["--unit", "--nodes"]),
        ("crc32c {} --mode basic", &["--mode", "--nodes"]),
        ("crc32c {} --ship bytes", &["--ship", "--nodes"]),
        ("crc32c {} --nodes 2 --ship bytes --direct on", &["--direct on", "in memory"]),
        ("crc32c {} --manager-only", &["--cluster"]),
        ("crc32c {} --nodes 2 --manager-only", &["--nodes", "--manager-only"]),
        ("crc32c {} --nodes 257", &["256"]),
        ("crc32c {} --nodes 2 --trace t", &["--trace"]),
        ("crc32c {} --tree 2", &["--tree", "--nodes"]),
        ("crc32c {} --nodes 4 --tree 0", &["--tree 0", "two or more"]),
        ("crc32c {} --cluster mpi --tree 1", &["--tree 1", "two or more"]),
        ("crc32c {} --nodes 4 --tree 2 --mode basic", &["--tree", "--mode connector"]),
    ] {
        cellway(&format!("run {line}"), &[&input, &input]).failed(2, parts);
    }
    cellway("run crc32c {} --nodes 2 --scheme staged", &[&input]).failed(2, &["--scheme direct"]);
    cellway("run crc32c - --nodes 2", &[]).failed(2, &["pipe", "name files"]);
    let replace = "run replace {} - --pattern a --with b --nodes 2";
    cellway(replace, &[&input]).failed(2, &["standard output", "name a file"]);
    assert!(!out.exists());
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn a_unit_that_fails_is_named() {
    let folder = Folder::new();
    let mut text = text(300_000);
    text[150_000..220_000].fill(b'x');
    let input = folder.file("in", &text);
    let run = cellway("run wordcount {} --nodes 3 --block 4K", &[&input]);
    run.failed(1, &["unit 36", "a word is longer", "3 times"]);
}

#[test]
fn another_run_s_journal_is_refused_by_what_differs() {
    let folder = Folder::new();
    let mut text = text(300_000);
    text[150_000..220_000].fill(b'x');
    let (input, journal) = (folder.file("in", &text), folder.path("journal"));
    for (begun, differs) in [("--nodes 2", "on nodes"), ("", "without nodes")] {
        let run = |kernel: &str, more: &str| {
            let line = format!("run {kernel} {{}} --block 4K {more} {}", journal.display());
            cellway(&line, &[&input])
        };
        run("wordcount", &format!("{begun} --journal")).failed(1, &["with --resume"]);
        run("wordcount", &format!("{begun} --resume")).failed(1, &["with --resume"]);
        let other = if begun.is_empty() { "--nodes 2" } else { "" };
        run("wordcount", &format!("{other} --resume")).failed(2, &["begun", differs]);
        run("blake3", &format!("{begun} --resume")).failed(2, &["wordcount, not of blake3"]);
        run("wordcount", &format!("{begun} --journal")).failed(1, &["exists already"]);
        let was = fs::metadata(&input).unwrap().modified().unwrap();
        let file = fs::File::options().write(true).open(&input).unwrap();
        file.set_modified(was + std::time::Duration::from_secs(1)).unwrap();
        run("wordcount", &format!("{begun} --resume")).failed(1, &["in was changed"]);
        fs::remove_file(&journal).unwrap();
    }
    assert!(folder.names().iter().all(|name| name == "in" || name.starts_with(".journal.")));
}

#[test]
fn what_is_too_large_to_be_recorded_ends_no_run() {
    let folder = Folder::new();
    let words = (0..500_000).map(|number| format!("{number:012} ")).collect::<String>();
    let (input, journal) = (folder.file("in", words.as_bytes()), folder.path("journal"));
    let wanted = cellway("run wordcount {} --top 9", &[&input]).ok();
    let line = "run wordcount {} --top 9 --nodes 2 --block 64K --unit 64K --table-bytes 256K \
                --journal-every 0 --journal";
    let found = cellway(&format!("{line} {}", journal.display()), &[&input]);
    assert!(found.stderr.contains("the journal lacks records that were due: "), "{}", found.stderr);
    assert!(found.code == Some(0) && found.stdout == wanted);
    assert_eq!(folder.names(), ["in"]);
}

/// What was damaged helps nobody who goes on.
#[test]
fn damaged_results_beside_a_journal_are_not_gone_on_from() {
    let folder = Folder::new();
    let words = (0..60_000).map(|number| format!("{number:09} ")).collect::<String>();
    let input = folder.file("in", &[words.as_bytes(), &[b'x'; 70_000]].concat());
    let journal = folder.path("journal");
    let run = |more: &str| {
        let line = format!("run wordcount {{}} --nodes 2 --block 4K {more} {}", journal.display());
        cellway(&line, &[&input])
    };
    run("--journal-every 0 --journal").failed(1, &["a word is longer", "with --resume"]);
    let beside = folder.names().into_iter().find(|name| name.starts_with(".journal.cellway-"));
    let beside = folder.path(&beside.unwrap());
    for file in fs::read_dir(beside).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(path, bytes).unwrap();
    }
    let resumed = run("--resume");
    assert!(!resumed.stderr.contains("go on by"), "{}", resumed.stderr);
    resumed.failed(2, &["not what was written", "start anew with --journal"]);
}

/// The MPIs below the build folder, each with options of its mpirun.
pub(crate) const MPIS: [(&str, &[&str]); 3] = [
    ("openmpi5", &["--oversubscribe", "--bind-to", "none"]),
    ("openmpi4", &["--oversubscribe", "--bind-to", "none"]),
    ("mpich", &[]),
];

pub(crate) fn bin(mpi: &str) -> Option<PathBuf> {
    let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("peers");
    let bin = peers.join(mpi).join("bin");
    if !bin.join("mpirun").exists() {
        skip(mpi, &format!("{} is not there; run cargo xtask test, which makes it", bin.display()));
        return None;
    }
    Some(bin)
}

pub(crate) fn mpirun(bin: &Path, options: &[&str], processes: usize) -> Command {
    let mut command = beside(bin, &bin.join("mpirun"));
    command.args(options).args(["-n", &processes.to_string(), EXE]);
    command
}

/// A program that finds the MPI in `bin`.
fn beside(bin: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    let path = env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", bin.display()));
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn run_mpi(
    mpi: (&str, &[&str]),
    processes: usize,
    line: &str,
    paths: &[&Path],
) -> Option<Outcome> {
    let bin = bin(mpi.0)?;
    let mut command = mpirun(&bin, mpi.1, processes);
    Some(finish(command.args(arguments(line, paths)).spawn().unwrap()))
}

#[test]
fn processes_of_each_mpi_find_what_one_machine_finds() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &text(3 << 20)), folder.path("out"));
    let words = cellway("run wordcount {}", &[&input]).ok();
    let hash = cellway("run blake3 {}", &[&input]).ok();
    for mpi in MPIS {
        let run = |processes, line: &str, paths: &[&Path]| run_mpi(mpi, processes, line, paths);
        let line = "run wordcount {} --cluster mpi --block 64K --verbose";
        let Some(found) = run(3, line, &[&input]) else { continue };
        assert!(found.stdout == words && !found.stderr.contains("; ;"), "{}", found.stderr);
        let line = "run blake3 {} --cluster mpi --manager-only --block 64K";
        assert!(run(4, line, &[&input]).unwrap().ok() == hash, "{}", mpi.0);
        let line = "run blake3 {} --cluster mpi --mode single --verbose";
        let single = run(3, line, &[&input]).unwrap();
        assert!(single.stdout == hash && single.stderr.contains("joined 1"), "{}", single.stderr);
        let line = "run blake3 {} --cluster mpi --manager-only";
        let alone = run(1, line, &[&input]).unwrap();
        assert_eq!(alone.code, Some(2), "{}: {}", mpi.0, alone.stderr);
        assert!(alone.stderr.contains("start more processes by mpirun"), "{}", alone.stderr);
        let line = "run wordcount {} --cluster mpi --tree 2 --block 64K --verbose";
        let tree = run(5, line, &[&input]).unwrap();
        assert!(tree.stdout == words && tree.stderr.contains("joined 3"), "{}", tree.stderr);
        run(3, "run identity {} {} --cluster mpi --block 64K", &[&input, &out]).unwrap().ok();
        assert!(fs::read(&out).unwrap() == fs::read(&input).unwrap(), "{}", mpi.0);
        fs::remove_file(&out).unwrap();
        assert_eq!(folder.names(), ["in"], "{}", mpi.0);
    }
}

/// Each process says what it takes at most, and keeps to it.
#[test]
fn processes_keep_to_the_memory_that_they_say() {
    let folder = Folder::new();
    let input = folder.file("in", &text(24 << 20));
    for line in [
        "run wordcount {} --cluster mpi --table-bytes 1M -v",
        "run crc32c {} --cluster mpi --ship bytes -v",
        "run crc32c {} {} --cluster mpi --ship bytes -v",
        "run crc32c {} --cluster mpi --ship bytes --mode basic --manager-only -v",
    ] {
        let paths = &[&*input, &*input][..line.matches("{}").count()];
        let Some(run) = run_mpi(MPIS[0], 3, line, paths) else { return };
        for process in 0..3 {
            let start = format!("process {process}: memory ");
            let said = run.stderr.lines().find_map(|line| line.strip_prefix(&start));
            let said = said.unwrap_or_else(|| panic!("{line}: {}", run.stderr));
            let sizes: Vec<f64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
            assert_eq!(said.matches("MiB").count(), sizes.len(), "{said}");
            let [begun, peak, bound] = match sizes[..] {
                // Another one did all, of those that are sent what they do.
                [begun, peak] if line.contains("--ship") && process > 0 => {
                    assert!(said.ends_with("no units"), "{said}");
                    [begun, peak, f64::INFINITY]
                }
                _ => sizes.try_into().unwrap_or_else(|_| panic!("{line}: {said}")),
            };
            assert!(begun <= peak && peak <= bound, "{line}: {said}");
        }
    }
}

/// Nobody waits for a manager that fails, alone or before it met anybody.
#[test]
fn a_manager_that_fails_ends_the_others() {
    for mpi in [SURVIVING, SURVIVING_BY_SILENCE] {
        let folder = Folder::new();
        let (input, out) = (folder.file("in", &[b'x'; 70_000]), folder.file("out", b""));
        for (line, paths, why) in [
            ("wordcount {} --mode single", &[&*input][..], "a word is longer"),
            ("identity {} {}", &[&*input, &*out], "exists"),
        ] {
            let line = format!("run {line} --cluster mpi --block 4K");
            let Some(found) = run_mpi(mpi, 2, &line, paths) else { continue };
            assert!(found.stdout.is_empty() && found.stderr.contains(why), "{}", found.stderr);
            assert!(!found.stderr.contains("cannot be reached"), "{}: {}", mpi.0, found.stderr);
        }
    }
}

/// Experiments that start processes, or say why they cannot.
#[test]
fn a_bench_starts_processes_itself() {
    let Some(bin) = bin("openmpi5") else { return };
    let mut command = beside(&bin, EXE.as_ref());
    command.args(arguments("bench cluster --parts limit,kills --quick --format json", &[]));
    let ran = finish(command.spawn().unwrap());
    let has_limits = ran.stderr.contains("SKIP a limit of memory: no control group")
        || String::from_utf8_lossy(&ran.stdout).contains("in a group of 64M");
    // What a slow run said is there too.
    assert!(ran.code == Some(0) && has_limits, "{ran:?}");
    let tables = String::from_utf8_lossy(&ran.stdout);
    assert!(tables.contains("2 runs, 2 right answers"), "{tables}");
}

/// Nodes that do not see INPUT where they are started, which write to OUTPUT all the same.
#[test]
fn processes_that_cannot_open_the_input_are_sent_it() {
    for (name, options) in MPIS {
        let Some(bin) = bin(name) else { continue };
        let (here, elsewhere) = (Folder::new(), Folder::new());
        let input = here.file("in", &text(3 << 20));
        let words = cellway("run wordcount {}", &[&input]).ok();
        let run = |line: &str| {
            let mut command = mpirun(&bin, options, 1);
            let wdir = if name == "mpich" { "-wdir" } else { "--wdir" };
            command.current_dir(here.path("")).args(arguments(line, &[]));
            command.args([":", "-n", "2", wdir]).arg(elsewhere.path("")).arg(EXE);
            finish(command.args(arguments(line, &[])).spawn().unwrap())
        };
        for how in ["", "--ship bytes", "--ship bytes --mode basic"] {
            let line = "run wordcount in --cluster mpi --manager-only --block 64K --verbose";
            let found = run(&format!("{line} {how}"));
            assert!(found.stdout == words, "{name} {how}: {}", found.stderr);
            assert!(found.stderr.contains("in: blocks are sent to this node"), "{}", found.stderr);
        }
        run("run identity in out --cluster mpi --manager-only --block 64K").ok();
        assert!(fs::read(here.path("out")).unwrap() == fs::read(&input).unwrap(), "{name}");
        assert!(elsewhere.names().is_empty(), "{name}");
        let found = run("run wordcount in --cluster mpi --manager-only --ship locators");
        assert!(found.code != Some(0) && found.stderr.contains("no such file"), "{name}");
        assert!(found.stderr.contains("the last that left said"), "{name}: {}", found.stderr);
        // The manager is the one to tell of what nobody has.
        let found = run("run wordcount none --cluster mpi");
        assert!(found.code != Some(0) && found.stderr.contains("no such file"), "{name}");
    }
}

/// How often a process is killed, at some moment.
fn kills() -> u64 {
    let times = env::var("CELLWAY_KILLS").ok().and_then(|times| times.parse().ok());
    times.unwrap_or(5)
}

#[test]
fn a_run_outlives_a_process_that_is_killed() {
    let folder = Folder::new();
    // As long as it takes to be killed.
    let (input, out) = (folder.file("in", &text(1 << 20).repeat(64)), folder.path("out"));
    let words = cellway("run wordcount {} --top 9", &[&input]).ok();
    let told = [
        "run wordcount {} --top 9",
        "run identity {} {} --ship bytes",
        // One that manages two others is killed.
        "run wordcount {} --top 9 --tree 2",
    ];
    // That one loses a node by a deadline of 10 s.
    for (mpi, lines, kills) in
        [(SURVIVING, &told[..], kills()), (SURVIVING_BY_SILENCE, &told[1..2], kills().div_ceil(5))]
    {
        let Some(bin) = bin(mpi.0) else { continue };
        let (mut left, mut rounds) = (kills, 0..20 + 5 * kills);
        while left > 0 {
            let round = rounds.next();
            let round = round.unwrap_or_else(|| panic!("{}: runs end before a kill", mpi.0));
            let line = lines[round as usize % lines.len()];
            let writes = line.contains("identity");
            let paths = [&*input, &*out];
            let paths = &paths[..1 + usize::from(writes)];
            let line = format!("{line} --cluster mpi --block 64K --accelerators 2 --verbose");
            let (processes, victims) = if line.contains("--tree") { (5, 1) } else { (4, 3) };
            let mut command = mpirun(&bin, mpi.1, processes);
            let child = command.args(arguments(&line, paths)).spawn().unwrap();
            let victim = running(child.id(), processes, round, |which| 1 + which % victims);
            // It may have ended meanwhile.
            let is_there = victim.filter(|victim| computes(victim.as_raw_nonzero().get()));
            let killed = is_there.map(|victim| kill_process(victim, Signal::KILL));
            let outcome = finish(child);
            // What mpirun says of one that was killed is nothing.
            let what = format!("{} {line}, round {round}: {}", mpi.0, outcome.stderr);
            left -= u64::from(killed == Some(Ok(())));
            assert!(outcome.stderr.contains("nodes joined"), "{what}");
            if writes {
                assert!(fs::read(&out).ok() == fs::read(&input).ok(), "{what}");
                fs::remove_file(&out).unwrap();
                assert_eq!(folder.names(), ["in"], "{what}");
            } else {
                assert!(outcome.stdout == words, "{what}");
            }
        }
    }
}

/// An MPI with options by which the others go on when a process is lost.
pub(crate) const SURVIVING: (&str, &[&str]) =
    ("openmpi5", &["--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm"]);
/// One that tells nobody of it.
pub(crate) const SURVIVING_BY_SILENCE: (&str, &[&str]) =
    ("openmpi4", &["--oversubscribe", "--bind-to", "none", "--enable-recovery"]);

/// The first process is killed, and all are started anew, until a run ends by itself.
#[test]
fn a_manager_that_is_killed_goes_on_from_its_journal() {
    let Some(bin) = bin("openmpi5") else { return };
    let (folder, mut moments) = (Folder::new(), Moments::new());
    let input = folder.file("in", &text(6 << 20));
    let (out, journal) = (folder.path("out"), folder.path("journal"));
    let words = cellway("run wordcount {} --top 9", &[&input]).ok();
    let hash = cellway("run blake3 {}", &[&input]).ok();
    let mut kills = kills();
    for (line, printed) in [
        ("run identity {} {}", &vec![]),
        ("run replace --pattern Q --with q {} {}", &vec![]),
        ("run wordcount {} --top 9", &words),
        ("run blake3 {}", &hash),
    ]
    .iter()
    .cycle()
    {
        let writes = line.ends_with("{} {}");
        loop {
            let keep = if journal.exists() { "--resume" } else { "--journal" };
            // Who goes on may be of another shape.
            let (processes, tree) = if kills.is_multiple_of(2) { (3, "") } else { (5, "--tree 2") };
            let mut command = mpirun(&bin, SURVIVING.1, processes);
            let more = "--journal-every 0 --cluster mpi --block 16K --accelerators 1";
            let line = format!("{line} {keep} {} {more} {tree}", journal.display());
            let paths: [&Path; 2] = [&input, &out];
            let paths = &paths[..if writes { 2 } else { 1 }];
            let child = command.args(arguments(&line, paths)).spawn().unwrap();
            let victim =
                running(child.id(), processes, moments.number(), |_| 0).filter(|_| kills > 0);
            if let Some(victim) = victim {
                let _ = kill_process(victim, Signal::KILL);
            }
            let outcome = finish(child);
            take_away_what_a_kill_left(&folder, &journal);
            // What mpirun says of one that was killed is nothing: a journal that is gone
            // tells that all is done, or that nothing was begun.
            let has_ended = if writes { out.exists() } else { !outcome.stdout.is_empty() };
            if has_ended && !journal.exists() {
                assert!(outcome.stdout == **printed, "{line}");
                break;
            }
            assert!(victim.is_some(), "{line}: {}", outcome.stderr);
            kills = kills.saturating_sub(1);
        }
        if writes {
            assert!(fs::read(&out).unwrap() == fs::read(&input).unwrap());
            fs::remove_file(&out).unwrap();
        }
        assert_eq!(folder.names(), ["in"], "{line}");
        if kills == 0 {
            return;
        }
    }
}

/// A process that `mpirun` has started, of so many, once its run is under way.
pub(crate) fn running(
    mpirun: u32,
    processes: usize,
    round: u64,
    which: impl Fn(usize) -> usize,
) -> Option<Pid> {
    let seed = noise(round, 8);
    loop {
        // Some have a thread of mpirun's own start them.
        let threads = fs::read_dir(format!("/proc/{mpirun}/task")).ok()?.flatten();
        let lists =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let mut children: Vec<i32> = lists
            .flat_map(|list| {
                list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
            })
            .collect();
        // In the order in which they were started.
        children.sort_unstable();
        if children.is_empty() && !Path::new(&format!("/proc/{mpirun}/cwd")).exists() {
            return None;
        }
        if children.len() == processes && children[1..].iter().all(|pid| computes(*pid)) {
            let victim = children[which(seed[1].into())];
            // How far it is then is up to the machine.
            (0..u32::from(seed[2]) * 256).for_each(|_| std::thread::yield_now());
            return Pid::from_raw(victim);
        }
        std::thread::yield_now();
    }
}

/// Whether a process has accelerators at work.
fn computes(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.any(|name| name.starts_with("accel-"))
}
