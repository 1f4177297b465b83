//! The command line: what it refuses before anything is touched, and help.

use std::path::Path;

use crate::program::{Folder, cellway, cellway_fed, command, finish};

#[test]
fn slips_of_the_keyboard_are_refused_with_a_suggestion() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    let input = &[input.as_path()];
    for (line, paths, part) in [
        ("rum", &[][..], "'run'"),
        ("run crc32 {}", input, "'crc32c'"),
        ("run crc32c", &[], "<INPUT>..."),
        ("run crc32c {} --thread 2", input, "'--threads'"),
        ("run crc32c {} --engine urin", input, "'uring'"),
        ("run crc32c {} --direct maybe", input, "auto, on, off"),
        ("run crc32c {} --scheme 7", input, "auto, direct, mapped, 1, 2, 3, 4, 6, staged"),
        ("run crc32c {} --scheme 5", input, "no signalling"),
        ("run crc32c {} --staging 2", input, "--scheme staged"),
        ("run crc32c {} --scheme staged --staging 0", input, "--staging"),
        ("run crc32c {} --scheme 4 --direct on", input, "--direct auto"),
        ("run crc32c - --scheme 4", &[], "where a pipe ends"),
        ("run crc32c {} --pipeline both", input, "fused, spread"),
        ("run crc32c {} --pipeline spread", input, "crc32c is one kernel"),
        ("run identity,crc32c - --pipeline spread --accelerators 3", &[], "a multiple of 2"),
        ("run identity,crc32c {} --pipeline spread --accelerators 1", input, "to the 2 kernels"),
        ("run crc32c {} --block 0", input, "out of range"),
        ("run crc32c {} --block 1MB", input, "powers of 1024"),
        ("run crc32c {} --block 99999999999999999999", input, "--block"),
        ("run crc32c {} --threads 0", input, "--threads"),
        ("run crc32c {} --accelerators 70000", input, "--accelerators is 70000"),
        ("run crc32c {} --format xml", input, "text, json"),
        ("run linreg {} --type u9", input, "u8, i16, f32 or f64"),
        ("bench wlk", &[], "'walk'"),
        ("demo --bytes lots", &[], "K, M, G or T"),
    ] {
        cellway(line, paths).failed(2, &[part]);
    }
}

#[test]
fn kernels_are_told_what_they_need_and_nothing_else() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"abc"), folder.path("out"));
    let key = folder.file("key", &[b'7'; 64]);
    let iv = "--iv 00000000000000000000000000000001";
    let (input, out, key) = (input.as_path(), out.as_path(), key.as_path());
    let refused =
        |line: &str, paths: &[&Path], parts: &[&str]| cellway(line, paths).failed(2, parts);
    refused(&format!("run aes256-ctr {{}} {{}} {iv}"), &[input, out], &["needs --key-file"]);
    refused("run aes256-ctr {} {} --key-file {}", &[input, out, key], &["needs --iv"]);
    refused(
        "run aes256-ctr {} {} --key-file {} --iv 01",
        &[input, out, key],
        &["2 bytes long", "32 hexadecimal"],
    );
    refused("run linreg {}", &[input], &["needs --type", "f64"]);
    refused(
        "run identity {} {} --top 3",
        &[input, out],
        &["identity does not take --top", "no parameters"],
    );
    refused(
        "run linreg {} --type u8 --table-bytes 1M",
        &[input],
        &["linreg does not take --table-bytes", "--type"],
    );
    refused("run wordcount {} --type u8", &[input], &["--table-bytes and --top"]);
    refused("run identity {}", &[input], &["OUTPUT"]);
    refused("run crc32c {} --out-dir {}", &[input, out], &["takes no --out-dir", "> "]);
    refused("run identity {} {} {}", &[input, key, out], &["--out-dir"]);
    assert_eq!(folder.names(), ["in", "key"]);
}

#[test]
fn statistics_do_not_overwrite_the_data() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"abc"), folder.path("out"));
    let stats = |line: &str, paths: &[&Path], part: &str| cellway(line, paths).failed(2, &[part]);
    stats("run crc32c {} --stats {}", &[&input, &input], "the INPUT");
    stats("run identity {} {} --stats {}", &[&input, &out, &out], "the OUTPUT");
    let link = folder.path("link");
    std::os::unix::fs::symlink("./out", &link).unwrap();
    stats("run identity {} {} --stats {}", &[&input, &out, &link], "the OUTPUT");
    stats("run identity {} - --stats -", &[&input], "standard output");
    stats("run identity {} - --format json", &[&input], "standard output");
    assert_eq!(
        (folder.names(), std::fs::read(&input).unwrap()),
        (vec!["in".to_owned(), "link".to_owned()], b"abc".to_vec())
    );
}

#[test]
fn the_key_is_not_overwritten() {
    let folder = Folder::new();
    let (input, key) = (folder.file("in", b"abc"), folder.file("key", &[b'7'; 64]));
    let run = |line: &str, paths: &[&Path], part: &str| {
        let line = format!("run aes256-ctr {line} --iv 00000000000000000000000000000001");
        cellway(&line, paths).failed(2, &[part]);
    };
    let out = folder.path("out");
    run("{} {} --key-file {} --stats {}", &[&input, &out, &key, &key], "--stats would replace");
    run("{} {} -f --key-file {}", &[&input, &key, &key], "OUTPUT would replace the key file");
    run("- {} --key-file /dev/stdin", &[&out], "both come from standard input");
    assert_eq!(std::fs::read(&key).unwrap(), [b'7'; 64]);
    assert_eq!(folder.names(), ["in", "key"]);
}

#[test]
fn layouts_that_do_not_fit_show_the_sum() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &[0; 1 << 20]), folder.path("out"));
    cellway("run crc32c {} --accelerators 1 --threads 8 --block 64K --local-store 256K", &[&input])
        .failed(2, &["8 threads x 65536 bytes", "= 524288 bytes", "262144"]);
    for too_much in ["--block 8G", "--block 16777215T", "--threads 4294967295", "--threads 70000"] {
        let line = format!("run crc32c - --local-store 16777215T {too_much}");
        cellway_fed(&line, &[], b"abc").failed(2, &["do not fit a local store"]);
        let line = format!("run identity - {{}} {too_much} --local-store 1M");
        cellway_fed(&line, &[&out], b"abc").failed(2, &["do not fit a local store"]);
    }
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn every_help_page_fits_80_columns() {
    let experiments =
        ["walk", "listrank", "probe", "search", "synthetic"].map(|name| format!("bench {name}"));
    let commands = ["", "demo", "run", "kernels", "info", "bench"].map(str::to_owned);
    for command in commands.iter().chain(&experiments) {
        for flag in ["--help", "-h"] {
            let page = cellway(&format!("{command} {flag}"), &[]).ok_text();
            let widest = page.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(widest.chars().count() <= 80, "{command}: {widest}");
        }
    }
    let page = cellway("run --help", &[]).ok_text();
    for part in ["Exit codes", "130", "aes256-ctr", "--key-file", "clear", "fsync"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn arguments_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = Folder::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n");
    let missing = finish(command([odd]).spawn().unwrap());
    missing.failed(2, &["unrecognized subcommand"]);
    let input = folder.path("").join(odd);
    let run =
        || finish(command(["run".as_ref(), "crc32c".as_ref(), input.as_os_str()]).spawn().unwrap());
    run().failed(1, &["no such file", "\\xFF\\n"]);
    std::fs::write(&input, b"abc").unwrap();
    assert_eq!(run().ok(), b"364b3fb7\n");
}

#[test]
fn version_and_no_command() {
    let version = format!("cellway {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(cellway("-V", &[]).ok_text(), version);
    let none = cellway("", &[]);
    assert_eq!(none.code, Some(2));
    assert!(none.stderr.contains("Usage: cellway"), "{}", none.stderr);
}
