//! Several inputs, and those that are found in directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{EXE, Folder, bmp_header, cellway, cellway_fed, finish, noise};

/// Files of many lengths in `in` and below, by path; a path is its own name.
fn tree(folder: &Folder, count: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for number in 0..count {
        let parent = ["", "b/", "b.c/", "b/d/", "z/"][number % 5];
        let len = [0, 1, 700, 4096, 20_000, 3][number % 6] + number;
        let len = if number % 13 == 0 { 0 } else { len };
        let text =
            noise(number as u64 + 1, len).into_iter().map(|byte| b"ab c\nd"[byte as usize % 6]);
        let path = PathBuf::from(format!("in/{parent}{number}"));
        fs::create_dir_all(folder.path("").join(&path).parent().unwrap()).unwrap();
        let content: Vec<u8> = text.collect();
        fs::write(folder.path("").join(&path), &content).unwrap();
        files.push((path, content));
    }
    use std::os::unix::ffi::OsStrExt as _;
    files.sort_by(|a, b| a.0.as_os_str().as_bytes().cmp(b.0.as_os_str().as_bytes()));
    files
}

/// All of them one after the other, in a file.
fn joined(folder: &Folder, files: &[(PathBuf, Vec<u8>)]) -> PathBuf {
    let content: Vec<u8> = files.iter().flat_map(|(_, content)| content.clone()).collect();
    folder.file("joined", &content)
}

#[test]
fn several_inputs_are_summed_as_one_behind_the_other() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a", &noise(1, 100_001)), folder.file("b", &noise(2, 5 << 20)));
    let (c, joined) = (folder.file("c", b"c"), folder.path("joined"));
    for order in [[&a, &b, &c], [&c, &a, &b], [&b, &a, &b], [&a, &a, &c]] {
        fs::write(&joined, order.map(|path| fs::read(path).unwrap()).concat()).unwrap();
        let expected = cellway("run crc32c {}", &[&joined]).ok();
        for layout in ["", "--accelerators 1", "--engine pread", "--block 4K --accelerators 3"] {
            let line = format!("run crc32c {{}} {{}} {{}} {layout}");
            assert_eq!(
                cellway(&line, &order.map(|path| path.as_path())).ok(),
                expected,
                "{layout}"
            );
        }
    }
}

#[test]
fn directories_are_read_in_the_order_of_their_paths() {
    let folder = Folder::new();
    let files = tree(&folder, 100);
    std::os::unix::fs::symlink("1", folder.path("in/link")).unwrap();
    std::os::unix::fs::symlink("b", folder.path("in/dir-link")).unwrap();
    folder.fifo("in/fifo");
    let joined = joined(&folder, &files);
    let crc = cellway("run crc32c {}", &[&joined]).ok();
    assert_eq!(cellway("run crc32c -r {}", &[&folder.path("in")]).ok(), crc);
    assert_eq!(cellway("run crc32c --recursive {}", &[&folder.path("in/")]).ok(), crc);

    // Words and lines end where their files do.
    let spaced: Vec<u8> = files.iter().flat_map(|(_, text)| [text, &b"\n"[..]].concat()).collect();
    let spaced = folder.file("spaced", &spaced);
    let words = cellway("run wordcount {}", &[&spaced]).ok();
    assert!(cellway("run wordcount -r {}", &[&folder.path("in")]).ok() == words);
    for pattern in ["a", "^", "c$", "b.*a"] {
        let lines = |text: &[u8]| -> usize {
            let whole = text.strip_suffix(b"\n").unwrap_or(text);
            let each = whole.split(|byte| *byte == b'\n');
            let has = |line: &[u8]| match pattern {
                "a" => line.contains(&b'a'),
                "c$" => line.ends_with(b"c"),
                "^" => true,
                _ => line
                    .iter()
                    .position(|b| *b == b'b')
                    .is_some_and(|at| line[at..].contains(&b'a')),
            };
            if text.is_empty() { 0 } else { each.filter(|line| has(line)).count() }
        };
        let expected: usize = files.iter().map(|(_, text)| lines(text)).sum();
        let line = format!("run count --lines --pattern {pattern} -r {{}}");
        assert_eq!(
            cellway(&line, &[&folder.path("in")]).ok_text(),
            format!("{expected}\n"),
            "{pattern}"
        );
    }
}

#[test]
fn each_input_has_its_own_header_and_ends() {
    let folder = Folder::new();
    let bitmap = |name: &str, width: i32, height: i32| {
        let bytes = (width * 3).unsigned_abs().next_multiple_of(4) * height.unsigned_abs();
        folder
            .file(name, &[bmp_header(width, height), noise(width as u64, bytes as usize)].concat())
    };
    let (a, b) = (bitmap("a", 3, 5), bitmap("b", 64, -9));
    let json = |line: &str, paths: &[&Path]| -> Value {
        serde_json::from_slice(&cellway(line, paths).ok()).unwrap()
    };
    let found = [&a, &b].map(|path| json("run histogram {} --format json", &[path]));
    let both = json("run histogram {} {} --format json", &[&a, &b]);
    for channel in ["red", "green", "blue"] {
        for value in 0..256 {
            let count = |from: &Value| from[channel][value].as_u64().unwrap();
            assert_eq!(count(&both), count(&found[0]) + count(&found[1]));
        }
    }
    let odd = folder.file("odd", b"123");
    cellway("run linreg --type u8 {} {}", &[&a, &odd])
        .failed(1, &["odd: ", "instead of 2 at byte 2;"]);
    cellway("run histogram {} {} {}", &[&a, &odd, &b]).failed(1, &["odd: ", "not a BMP"]);
}

/// Sums of floats depend on their order, which is that of the files.
#[test]
fn lines_are_fitted_through_all_inputs() {
    let folder = Folder::new();
    fs::create_dir(folder.path("in")).unwrap();
    let (mut all, mut files) = (Vec::new(), Vec::new());
    for number in 0..300u32 {
        let pairs = (0..number * 7 % 1500)
            .map(|n| [(n * 31 % 977) as f32, (n * 17 % 1009 + number) as f32]);
        let bytes: Vec<u8> = pairs.flatten().flat_map(f32::to_le_bytes).collect();
        files.push(folder.file(&format!("in/{number:03}"), &bytes));
        all.extend(bytes);
    }
    let joined = folder.file("joined", &all);
    let fit = |layout: &str, path: &Path| -> Value {
        let line = format!("run linreg --type f32 --format json -r {{}} {layout}");
        serde_json::from_slice(&cellway(&line, &[path]).ok()).unwrap()
    };
    let expected = fit("", &joined);
    let first = fit("", &folder.path("in"));
    assert_eq!(first["n"], expected["n"]);
    for figure in ["slope", "intercept", "correlation"] {
        if let (Some(found), Some(expected)) = (first[figure].as_f64(), expected[figure].as_f64()) {
            assert!((found - expected).abs() < 1e-9 * (1.0 + expected.abs()), "{figure}");
        }
    }
    assert!(first["slope"].is_f64(), "{first}");
    for layout in
        ["--accelerators 1", "--accelerators 3", "--block 8K", "--block 64K --accelerators 2"]
    {
        assert_eq!(fit(layout, &folder.path("in")), first, "{layout}");
    }
}

#[test]
fn outputs_lie_as_their_inputs_do() {
    let folder = Folder::new();
    let files = tree(&folder, 60);
    let big = folder.file("big", &noise(3, (4 << 20) + 1));
    let (tree, out) = (folder.path("in"), folder.path("new/out"));
    cellway("run identity -r {} {} --out-dir {} --sync", &[&tree, &big, &out]).ok();
    for (path, content) in &files {
        assert!(
            &fs::read(out.join(path.strip_prefix("in").unwrap())).unwrap() == content,
            "{path:?}"
        );
    }
    assert!(fs::read(out.join("big")).unwrap() == fs::read(&big).unwrap());
    assert_eq!(found(&out), files.len() + 1);

    cellway("run identity -r {} --out-dir {}", &[&tree, &out])
        .failed(1, &["exists already", "--force"]);
    let line = "run replace -r {} --out-dir {} --force --pattern a --with xyz --block 1K";
    cellway(line, &[&tree, &out]).ok();
    for (path, content) in &files {
        let written = fs::read_to_string(out.join(path.strip_prefix("in").unwrap())).unwrap();
        assert_eq!(written, String::from_utf8_lossy(content).replace('a', "xyz"));
    }
    assert_eq!(found(&out), files.len() + 1);
    // Into themselves.
    cellway(line, &[&out, &out]).ok();
    assert!(!fs::read_to_string(out.join("b/d/28")).unwrap().contains('a'));
}

/// Files in a folder and below, hidden ones too.
fn found(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { found(&path) } else { 1 }).sum()
}

#[test]
fn what_does_not_go_with_several_inputs_is_refused() {
    let folder = Folder::new();
    let (a, b) = (folder.file("a", b"one"), folder.file("b", b"two"));
    let (key, out) = (folder.file("key", &[b'7'; 64]), folder.path("out"));
    fs::create_dir(folder.path("dir")).unwrap();
    let (dir, again) = (folder.path("dir"), folder.file("dir/a", b"again"));
    cellway("run blake3 {} {}", &[&a, &b]).failed(2, &["blake3", "one by one", "cat"]);
    let aes =
        "run aes256-ctr {} {} --out-dir {} --iv 00000000000000000000000000000001 --key-file {}";
    cellway(aes, &[&a, &b, &out, &key]).failed(2, &["aes256-ctr", "--iv of its own"]);
    cellway_fed("run crc32c {} -", &[&a], b"abc").failed(2, &["standard input"]);
    cellway_fed("run identity - --out-dir {}", &[&out], b"abc").failed(2, &["standard input"]);
    cellway("run crc32c {}", &[&dir]).failed(1, &["dir: is a directory", "--recursive"]);
    cellway("run crc32c {} {}", &[&a, &dir]).failed(1, &["dir: is a directory", "--recursive"]);
    cellway("run identity {} {}", &[&dir, &out]).failed(1, &["dir: is a directory"]);
    cellway("run identity {} {} {}", &[&a, &b, &out]).failed(2, &["--out-dir"]);
    cellway("run identity {} {} --out-dir {}", &[&a, &again, &out]).failed(1, &["out/a", "dir/a"]);
    cellway("run identity {} {} --out-dir {}", &[&a, &b, &key])
        .failed(1, &["key: is no directory"]);
    cellway("run crc32c {} {} --stats {}", &[&a, &b, &b])
        .failed(2, &["--stats would replace the INPUT"]);
    cellway("run crc32c -r {} --stats {}", &[&dir, &again])
        .failed(2, &["--stats would replace the INPUT"]);
    let line = "run identity {} --out-dir {} --stats {} --force";
    cellway(line, &[&a, &dir, &again]).failed(2, &["dir/a would replace the statistics"]);
    assert_eq!(folder.names(), ["a", "b", "dir", "key"]);
    assert_eq!(fs::read(&again).unwrap(), b"again");
}

#[test]
fn a_missing_input_among_many_is_named_before_anything_is_done() {
    let folder = Folder::new();
    let (a, out) = (folder.file("file-a", b"one"), folder.path("out"));
    cellway("run crc32c {} {} {}", &[&a, &folder.path("file-b"), &a])
        .failed(1, &["file-b: no such file", "did you mean"]);
    cellway("run identity {} {} --out-dir {}", &[&a, &folder.path("none"), &out])
        .failed(1, &["none: no such file"]);
    assert_eq!(folder.names(), ["file-a"]);
}

#[test]
fn files_without_a_length_are_read_to_their_end() {
    let folder = Folder::new();
    let a = folder.file("a", b"one");
    let version = fs::read("/proc/version").unwrap();
    let joined = folder.file("joined", &[b"one", &version[..], b"one"].concat());
    let expected = cellway("run crc32c {}", &[&joined]).ok();
    assert_eq!(cellway("run crc32c {} /proc/version {}", &[&a, &a]).ok(), expected);
    let fifo = folder.fifo("fifo");
    let child =
        crate::program::command(crate::program::arguments("run crc32c {} {} {}", &[&a, &fifo, &a]));
    let child = {
        let mut child = child;
        child.spawn().unwrap()
    };
    fs::write(&fifo, &version).unwrap();
    assert_eq!(finish(child).ok(), expected);
}

#[test]
fn statistics_tell_of_all_inputs() {
    let folder = Folder::new();
    let files = tree(&folder, 200);
    let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
    let (tree, out) = (folder.path("in"), folder.path("out"));
    let stats = |line: &str, paths: &[&Path]| -> Value {
        let text = cellway(line, paths).ok_text();
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    };
    let found = stats("run crc32c -r {} --stats -", &[&tree]);
    assert_eq!((&found["inputs"], &found["bytes_in"]), (&200.into(), &bytes.into()));
    assert_eq!((&found["input"], &found["output"]), (&tree.to_str().unwrap().into(), &Value::Null));
    let found = stats("run identity -r {} --out-dir {} --format json", &[&tree, &out]);
    assert_eq!((&found["inputs"], &found["bytes_out"]), (&200.into(), &bytes.into()));
    assert_eq!(found["output"], out.to_str().unwrap());
    let bound = found["memory_bound_bytes"].as_u64().unwrap();
    assert!(found["peak_rss_bytes"].as_u64().unwrap() <= bound, "{found}");
    let one = stats("run crc32c {} --stats -", &[&out.join("b/1")]);
    assert_eq!(one["inputs"], 1);
}

#[test]
fn few_files_are_open_at_once() {
    let folder = Folder::new();
    let files = tree(&folder, 2000);
    let joined = joined(&folder, &files);
    let script = "ulimit -n 64; \"$0\" run crc32c --accelerators 2 -r \"$1\" && \
                  \"$0\" run identity --accelerators 2 -r \"$1\" --out-dir \"$2\"";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, EXE]).args([folder.path("in"), folder.path("out")]);
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let expected = cellway("run crc32c {}", &[&joined]).ok();
    assert_eq!(finish(limited.spawn().unwrap()).ok(), expected);
    assert_eq!(cellway("run crc32c -r {}", &[&folder.path("out")]).ok(), expected);
}

#[test]
fn an_empty_directory_has_no_bytes() {
    let folder = Folder::new();
    fs::create_dir(folder.path("in")).unwrap();
    assert_eq!(cellway("run crc32c -r {}", &[&folder.path("in")]).ok(), b"00000000\n");
    cellway("run identity -r {} --out-dir {}", &[&folder.path("in"), &folder.path("out")]).ok();
    assert_eq!(found(&folder.path("out")), 0);
}
