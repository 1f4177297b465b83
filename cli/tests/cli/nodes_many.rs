//! Many inputs on `--nodes N`, and on processes of MPI.

use std::fs;
use std::path::{Path, PathBuf};

use crate::nodes::{MPIS, SHAPES, bin, mpirun, run_mpi, text};
use crate::program::{CIPHER, EXE, Folder, arguments, cellway, finish, noise};

/// Empty, tiny, of some blocks, and of many, in folders.
fn inputs(folder: &Folder) -> PathBuf {
    let dir = folder.path("in");
    for (number, len) in [70_001, 0, 1, 300_000, 4096, 9, 12_288, 0, 50_000].iter().enumerate() {
        let below = dir.join(format!("d{}", number % 3));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(format!("f{number}")), text(*len)).unwrap();
    }
    for number in 0..150 {
        fs::write(dir.join(format!("small{number:03}")), text(number * 7)).unwrap();
    }
    dir
}

/// All files below a folder, by name, with what is in them.
fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_owned();
                    all.push((name, fs::read(&path).unwrap()));
                }
            }
        }
    }
    all.sort();
    all
}

const NODES: [&str; 9] = [
    "--nodes 1",
    "--nodes 2 --block 16K",
    "--nodes 5 --block 4K",
    "--nodes 3 --block 4K --unit 64K",
    "--nodes 7 --block 4K --tree 2",
    "--nodes 3 --block 4K --mode basic",
    "--nodes 3 --block 8K --accelerators 2 --mode single",
    "--nodes 4 --block 4K --tree 2 --ship bytes",
    "--nodes 2 --block 16K --ship bytes --mode basic",
];

#[test]
fn nodes_find_in_many_inputs_what_one_machine_finds() {
    let folder = Folder::new();
    let dir = inputs(&folder);
    for line in [
        "crc32c {} -r",
        "wordcount {} -r",
        "count {} -r --pattern a+b",
        "count {} -r --pattern a+b --lines",
        "identity,crc32c {} -r",
    ] {
        let run = |nodes: &str| cellway(&format!("run {line} {nodes}"), &[&dir]).ok();
        let alone = run("");
        for nodes in NODES {
            assert_eq!(run(nodes), alone, "{line} {nodes}");
        }
    }
}

#[test]
fn nodes_make_of_many_inputs_what_one_machine_makes() {
    let folder = Folder::new();
    let (dir, out) = (inputs(&folder), folder.path("out"));
    let all = tree(&dir);
    for nodes in NODES {
        let line = format!("run identity,identity {{}} -r --out-dir {{}} {nodes}");
        cellway(&line, &[&dir, &out]).ok();
        assert!(tree(&out) == all, "{nodes}");
        fs::remove_dir_all(&out).unwrap();
    }
    for nodes in NODES {
        let line = "run identity,replace {} -r --out-dir {} --pattern c --with";
        if nodes.contains("--ship bytes") {
            let refused = cellway(&format!("{line} long {nodes}"), &[&dir, &out]);
            refused.failed(2, &["--ship bytes", "places"]);
            continue;
        }
        let made = [format!("{line} long {nodes}"), format!("{line} long")].map(|line| {
            cellway(&line, &[&dir, &out]).ok();
            let made = tree(&out);
            fs::remove_dir_all(&out).unwrap();
            made
        });
        assert!(made[0] == made[1] && made[0] != all, "{nodes}");
    }
    // An output may take its own input's place.
    cellway("run identity {} -r --out-dir {} -f --nodes 3 --block 4K", &[&dir, &dir]).ok();
    assert!(tree(&dir) == all);
}

#[test]
fn sums_of_many_inputs_have_the_same_bits_whatever_the_nodes() {
    let folder = Folder::new();
    let dir = folder.path("in");
    fs::create_dir(&dir).unwrap();
    for number in 0..40 {
        let pairs = noise(number, 200 + 800 * (number as usize % 5)).into_iter();
        let pairs: Vec<_> = pairs.flat_map(|byte| (f64::from(byte) / 7.0).to_le_bytes()).collect();
        let whole = pairs.len() / 16 * 16;
        fs::write(dir.join(format!("f{number:02}")), &pairs[..whole]).unwrap();
    }
    let run = |nodes: &str| {
        let line = format!("run linreg {{}} -r --type f64 --block 4K --format json {nodes}");
        cellway(&line, &[&dir]).ok()
    };
    let one = run("--nodes 1");
    for nodes in SHAPES {
        assert_eq!(run(nodes), one, "{nodes}");
    }
}

#[test]
fn an_input_that_fails_is_named_and_nothing_is_left() {
    let folder = Folder::new();
    let (dir, out) = (inputs(&folder), folder.path("out"));
    fs::write(dir.join("d1/f4"), vec![b'x'; 300_000]).unwrap();
    let run = cellway("run wordcount {} -r --nodes 3 --block 4K", &[&dir]);
    run.failed(1, &["d1/f4", "a word is longer"]);
    let records = folder.path("records");
    fs::create_dir(&records).unwrap();
    for number in 0..20 {
        let len = 16 * 77 * number + usize::from(number == 7);
        fs::write(records.join(format!("r{number:02}")), text(len)).unwrap();
    }
    let line = "run aes128-ecb {} -r --out-dir {} --nodes 3 --block 4K";
    cellway(line, &[&records, &out]).failed(1, &["r07", "the last record"]);
    assert!(tree(&out).is_empty());
    let line = format!("run aes256-ctr {{}} {{}} --out-dir {{}} {CIPHER} --nodes 2");
    let (a, key) = (dir.join("small001"), folder.file("key", &[b'7'; 64]));
    cellway(&line, &[&a, &a, &out, &key]).failed(2, &["one"]);
}

#[test]
fn processes_of_each_mpi_share_many_inputs() {
    let folder = Folder::new();
    let (dir, out) = (inputs(&folder), folder.path("out"));
    let words = cellway("run wordcount {} -r", &[&dir]).ok();
    for mpi in MPIS {
        let line = "run wordcount {} -r --cluster mpi --block 4K";
        let Some(found) = run_mpi(mpi, 3, line, &[&dir]) else { continue };
        assert!(found.ok() == words, "{}", mpi.0);
        for kernel in ["identity", "replace --pattern Q --with q"] {
            let line = format!("run {kernel} {{}} -r --out-dir {{}} --cluster mpi --block 4K");
            run_mpi(mpi, 3, &line, &[&dir, &out]).unwrap().ok();
            assert!(tree(&out) == tree(&dir), "{} {kernel}", mpi.0);
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

/// Two of three see none of them, nor the directory they are in.
#[test]
fn processes_that_cannot_open_many_inputs_are_sent_them() {
    for (name, options) in MPIS {
        let Some(bin) = bin(name) else { continue };
        let (here, elsewhere) = (Folder::new(), Folder::new());
        let dir = inputs(&here);
        let words = cellway("run wordcount {} -r", &[&dir]).ok();
        let run = |line: &str| {
            let line = arguments(&format!("run {line} --cluster mpi --manager-only"), &[]);
            let mut command = mpirun(&bin, options, 1);
            let wdir = if name == "mpich" { "-wdir" } else { "--wdir" };
            command.current_dir(here.path("")).args(&line);
            command.args([":", "-n", "2", wdir]).arg(elsewhere.path("")).arg(EXE).args(&line);
            finish(command.spawn().unwrap())
        };
        // As one directory, and as several inputs.
        let small = (0..150).map(|number| format!("in/small{number:03} ")).collect::<String>();
        let several = format!("in/d0 in/d1 in/d2 {small}");
        for (what, how) in [
            ("in", "--journal journal"),
            ("in", "--ship bytes --mode basic"),
            (&*several, ""),
            (&*several, "--ship bytes"),
        ] {
            let found = run(&format!("wordcount {what} -r --block 4K --verbose {how}"));
            assert!(found.stdout == words, "{name} {how}: {}", found.stderr);
            let told = found.stderr.matches(": blocks are sent to this node").count();
            assert_eq!(told, 2, "{name} {how}: {}", found.stderr);
        }
        run("identity in -r --out-dir out --block 4K").ok();
        assert!(tree(&here.path("out")) == tree(&dir), "{name}");
        assert!(elsewhere.names().is_empty(), "{name}");
        let found = run("wordcount in -r --ship locators");
        assert!(found.code != Some(0) && found.stderr.contains("no such file"), "{name}");
        let found = run("replace in -r --out-dir made --pattern a --with b");
        assert!(found.code != Some(0), "{name}: {}", found.stderr);
        let why = "cannot be sent: where a block goes of what replace makes shows at the end";
        assert!(found.stderr.contains(why), "{name}: {}", found.stderr);
        // By its name, which nodes do not know.
        fs::write(dir.join("d1/f4"), vec![b'x'; 300_000]).unwrap();
        let found = run("wordcount in -r --block 4K");
        assert_ne!(found.code, Some(0), "{name}");
        assert!(found.stderr.contains("in/d1/f4: a word is longer"), "{name}: {}", found.stderr);
    }
}

#[test]
fn what_reads_a_header_of_each_input_is_not_sent() {
    let folder = Folder::new();
    let header = |len: u32| {
        let mut bytes = b"BM".to_vec();
        bytes.extend([54 + len, 0, 54, 40, 2, 2].map(u32::to_le_bytes).concat());
        bytes.extend([1_u16, 24].map(u16::to_le_bytes).concat());
        bytes.extend(vec![0; 24 + len as usize]);
        bytes
    };
    let [a, b] = ["a", "b"].map(|name| folder.file(name, &header(16)));
    let alone = cellway("run histogram {} {}", &[&a, &b]).ok();
    assert_eq!(cellway("run histogram {} {} --nodes 3", &[&a, &b]).ok(), alone);
    let sent = cellway("run histogram {} {} --nodes 3 --ship bytes", &[&a, &b]);
    sent.failed(2, &["a and 1 more cannot be sent: histogram", "header", "--ship locators"]);
}
