//! Disks that are full, by themselves or by a limit.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{EXE, Folder, Outcome, noise, skip};

/// A shell script in which `$CELLWAY` is the program and `$1`.. are paths.
pub(crate) fn shell(wrapper: &[&str], script: &str, paths: &[&Path]) -> Outcome {
    let (first, wrapper) = wrapper.split_first().unwrap_or((&"env", &[]));
    let mut command = Command::new(first);
    command.args(wrapper).args(["sh", "-c", script, "sh"]).args(paths).env("CELLWAY", EXE);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    crate::program::finish(command.spawn().unwrap())
}

/// Runs a script with a file system of 1 MiB on `$1`, which is listed at the
/// end: it must be empty. `None`, with SKIP said, where that cannot be made.
pub(crate) fn on_small_disk(script: &str, folder: &Folder, input: &Path) -> Option<Outcome> {
    let mount = format!(
        "mount -t tmpfs -o size=1m none \"$1\" || exit 99; {script}; code=$?; ls -A \"$1\"; exit $code"
    );
    std::fs::create_dir_all(folder.path("disk")).unwrap();
    let run = shell(
        &["unshare", "--user", "--map-root-user", "--mount"],
        &mount,
        &[&folder.path("disk"), input],
    );
    if run.code == Some(99) || run.stderr.starts_with("unshare:") {
        skip("a full disk", run.stderr.trim());
        return None;
    }
    Some(run)
}

#[test]
fn a_full_disk_leaves_nothing() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(1, 3 << 20));
    for (run, part) in [
        // Known before the work.
        ("\"$CELLWAY\" run identity \"$2\" \"$1/out\"", "needs 3145728 bytes, 1048576 are free"),
        // Only met on the way, by each engine.
        ("\"$CELLWAY\" run identity - \"$1/out\" --block 64K < \"$2\"", "bytes"),
        ("cat \"$2\" | \"$CELLWAY\" run identity - \"$1/out\" --block 64K", "No space left"),
        ("cat \"$2\" | \"$CELLWAY\" run identity - \"$1/out\" --engine pread", "No space left"),
        ("\"$CELLWAY\" demo --dir \"$1\" --bytes 400K", "are needed"),
    ] {
        let Some(run) = on_small_disk(run, &folder, &input) else { return };
        run.failed(1, &[part, "disk"]);
    }
}

/// What nodes make is hidden until all of it is there: what fails is OUTPUT all the same.
#[test]
fn a_full_disk_is_told_of_the_output_that_nodes_make() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(1, 3 << 20));
    let hidden = format!("(hidden in {} until it is whole)", folder.path("disk").display());
    let cure = "free some space, or write to another disk";
    for (output, name) in [("\"$1/out\"", "disk/out"), ("--out-dir \"$1\"", "an output in ")] {
        let run = format!(
            "\"$CELLWAY\" run replace \"$2\" {output} --pattern '[a-f]' --with '<g>' --nodes 2"
        );
        let Some(run) = on_small_disk(&run, &folder, &input) else { return };
        run.failed(1, &[name, &hidden, "cannot be written: No space left", cure]);
    }
}

#[test]
fn a_full_disk_for_spilled_words_is_named() {
    let folder = Folder::new();
    let text: String = (0..200_000).map(|number| format!("{number:07} ")).collect();
    let input = folder.file("in", text.as_bytes());
    let run = "TMPDIR=\"$1\" \"$CELLWAY\" run wordcount \"$2\" --table-bytes 256K --accelerators 1";
    if let Some(run) = on_small_disk(run, &folder, &input) {
        run.failed(1, &["spilling", "No space left", "TMPDIR"]);
    }
}

#[test]
fn a_limit_on_memory_is_an_error_and_no_crash() {
    let folder = Folder::new();
    let input = folder.file("in", b"a few words");
    let script = "ulimit -v 1000000; \"$CELLWAY\" run wordcount \"$1\" --table-bytes 8G";
    shell(&[], script, &[&input]).failed(1, &["in: ", "bytes of a word table", "--table-bytes"]);
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_crash() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &noise(2, 3 << 20)), folder.path("out"));
    for run in [
        "\"$CELLWAY\" run identity \"$1\" \"$2\"",
        "cat \"$1\" | \"$CELLWAY\" run identity - \"$2\" --block 64K",
        "cat \"$1\" | \"$CELLWAY\" run identity - \"$2\" --engine pread",
    ] {
        // 512 or 1024 KiB, by the shell.
        shell(&[], &format!("ulimit -f 1024; {run}"), &[&input, &out])
            .failed(1, &["out", "ulimit -f"]);
        assert_eq!(folder.names(), ["in"]);
    }
}

#[test]
fn a_device_that_takes_nothing_is_an_error() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(3, 100_000));
    let script = "\"$CELLWAY\" run identity \"$1\" /dev/full";
    shell(&[], script, &[&input]).failed(1, &["/dev/full at byte 0", "No space left"]);
    for run in ["crc32c", "crc32c --format json", "wordcount --top 5"] {
        let script = format!("\"$CELLWAY\" run {run} \"$1\" > /dev/full");
        shell(&[], &script, &[&input])
            .failed(1, &["standard output: cannot be written: No space left"]);
    }
    for run in ["kernels", "info", "info --format json", "demo --bytes 1K"] {
        let script = format!("\"$CELLWAY\" {run} > /dev/full");
        shell(&[], &script, &[]).failed(1, &["standard output: cannot be written: No space left"]);
    }
}
