//! `--stats`: the figures are there, and the promised bound is kept.

use std::fs;

use serde_json::Value;

use crate::program::{Folder, bmp_header, cellway, cellway_fed, noise};

/// Every unit's steps are there, under the accelerator and thread that did them.
#[test]
fn a_trace_has_every_step() {
    let folder = Folder::new();
    let (data, out) = (folder.file("data", &noise(7, (3 << 20) + 5)), folder.path("out"));
    let (trace, stats) = (folder.path("trace"), folder.path("stats"));
    let line = "run identity {} {} --trace {} --stats {} --block 64K --accelerators 2 --threads 3";
    cellway(line, &[&data, &out, &trace, &stats]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&data).unwrap());
    let events: Vec<Value> = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    for step in ["get", "compute", "put"] {
        let of_step = events.iter().filter(|event| event["name"] == step && event["ph"] == "X");
        let bytes = of_step.map(|event| event["args"]["bytes"].as_u64().unwrap()).sum::<u64>();
        assert_eq!(bytes, (3 << 20) + 5, "{step}");
    }
    let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(named("accelerator 1") && named("thread 2"));
    let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let engine = &stats["engine"];
    assert!(events.iter().any(|event| event["ph"] == "C" && event["name"] == *engine));
    assert!(["get", "compute", "put"].contains(&stats["bottleneck"].as_str().unwrap()));
    assert!(stats["put_bytes_per_second"].as_f64().unwrap() > 0.0);

    cellway("run crc32c {} --trace {}", &[&data, &data]).failed(2, &["--trace", "INPUT"]);
    let missing = folder.path("none").join("trace");
    cellway("run crc32c {} --trace {}", &[&data, &missing]).failed(1, &["does not exist"]);
}

#[test]
fn figures_are_right_and_the_bound_is_kept() {
    let folder = Folder::new();
    let stats = folder.path("stats");
    let big = noise(5, 9 << 20);
    let text: Vec<u8> =
        big.iter().map(|byte| if byte % 8 == 0 { b' ' } else { b'a' + byte % 4 }).collect();
    let bitmap = [bmp_header(1024, 2048), noise(6, 1024 * 2048 * 3)].concat();
    let (data, text) = (folder.file("data", &big), folder.file("text", &text));
    let (small, bitmap) = (folder.file("small", b"abcd"), folder.file("bitmap", &bitmap));
    let empty = folder.file("empty", b"");
    for (kernel, input, header) in [
        ("identity", &data, 0),
        ("identity", &small, 0),
        ("identity", &empty, 0),
        ("crc32c", &data, 0),
        ("crc32c", &empty, 0),
        ("wordcount", &text, 0),
        ("histogram", &bitmap, 54),
        ("linreg --type f32", &small, 4),
    ] {
        let (kernel, type_) = kernel.split_once(' ').unwrap_or((kernel, ""));
        let transform = kernel == "identity";
        let output =
            if transform { format!("{} -f", folder.path("out").display()) } else { String::new() };
        let run =
            cellway(&format!("run {kernel} {{}} {output} {type_} --stats {{}}"), &[input, &stats]);
        if kernel == "linreg" {
            run.failed(1, &["instead of 8"]);
            continue;
        }
        run.ok();
        let found: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        let size = fs::metadata(input).unwrap().len() - header;
        assert_eq!((&found["kernel"], &found["bytes_in"]), (&kernel.into(), &size.into()));
        assert_eq!(found["bytes_out"], if transform { size } else { 0 });
        let number = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key} in {found}"));
        assert!(number("peak_rss_bytes") <= number("memory_bound_bytes"), "{found}");
        assert!(
            number("seconds") > 0.0 && number("accelerators") >= 1.0 && number("threads") >= 1.0
        );
        let steps = number("get_seconds") + number("compute_seconds") + number("put_seconds");
        assert!(
            steps <= number("seconds") * number("accelerators") * number("threads") * 1.01,
            "{found}"
        );
        let is_mapped = found["scheme"] == "mapped";
        assert!(number("block_bytes") >= 1.0);
        assert_eq!(number("local_store_bytes") == 0.0, is_mapped, "{found}");
        assert!(["uring", "pread"].contains(&found["engine"].as_str().unwrap()));
        assert_eq!(found["output"].is_null(), !transform);
        fs::remove_file(&stats).unwrap();
    }
}

#[test]
fn what_was_asked_for_is_what_was_done() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(7, 1 << 20));
    let line = "run crc32c {} --accelerators 2 --threads 3 --block 16K --local-store 64K --engine pread --direct off --stats -";
    let text = cellway(line, &[&input]).ok_text();
    let (result, stats) = text.split_once('\n').unwrap();
    assert_eq!(result.len(), 8);
    let stats: Value = serde_json::from_str(stats).unwrap();
    for (key, value) in [
        ("accelerators", 2),
        ("threads", 3),
        ("block_bytes", 16 << 10),
        ("local_store_bytes", 48 << 10),
    ] {
        assert_eq!(stats[key], value, "{key}");
    }
    assert_eq!(
        (&stats["engine"], &stats["input_path"]),
        (&"pread".into(), &"page cache: asked for".into())
    );
}

#[test]
fn a_transform_prints_statistics_as_json() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    let stats = cellway("run identity {} {} --format json", &[&input, &folder.path("out")]).ok();
    let stats: Value = serde_json::from_slice(&stats).unwrap();
    assert_eq!((&stats["bytes_in"], &stats["bytes_out"]), (&3.into(), &3.into()));
    // Asked for twice, printed once.
    let stats =
        cellway("run identity {} {} --format json --stats - -f", &[&input, &folder.path("out")])
            .ok_text();
    assert_eq!(stats.lines().count(), 1);
    let piped = cellway_fed("run crc32c - --format json --stats -", &[], b"abc").ok_text();
    let lines: Vec<Value> = piped.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&lines[0]["crc32c"], &lines[1]["input"]),
        (&"364b3fb7".into(), &"standard input".into())
    );
}

#[test]
fn the_bound_of_a_small_input_counts_what_works_on_it() {
    let folder = Folder::new();
    let input = folder.file("in", b"a ");
    let bound = |line: &str| {
        let stats = cellway(&format!("run {line} --stats -"), &[&input]).ok_text();
        let stats: Value = serde_json::from_str(stats.lines().last().unwrap()).unwrap();
        stats["memory_bound_bytes"].as_u64().unwrap()
    };
    // What the program itself takes is in both.
    let of_words = bound("wordcount {} --accelerators 64 --top 0") - bound("crc32c {}");
    assert!(of_words < 48 << 20, "{of_words}");
}

#[test]
fn verbose_says_how_and_how_much() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(8, 100_000));
    let run = cellway("run identity {} {} -v --block 4K", &[&input, &folder.path("out")]);
    assert_eq!((run.code, run.stdout.len()), (Some(0), 0));
    let lines: Vec<_> = run.stderr.lines().collect();
    assert!(
        lines[0].contains("blocks of 4 KiB") && lines[0].contains("memory at most"),
        "{}",
        run.stderr
    );
    assert!(lines[1].contains("97.7 KiB in") && lines[1].contains("peak"), "{}", run.stderr);
    assert_eq!(lines.len(), 2);
}

#[test]
fn statistics_replace_a_file_and_only_after_success() {
    let folder = Folder::new();
    let (input, stats) = (folder.file("in", b"abc"), folder.file("stats", b"old"));
    cellway("run linreg {} --type f64 --stats {}", &[&input, &stats]).failed(1, &["in"]);
    assert_eq!(fs::read(&stats).unwrap(), b"old");
    cellway("run crc32c {} --stats {}", &[&input, &stats]).ok();
    assert!(fs::read_to_string(&stats).unwrap().starts_with(r#"{"kernel":"crc32c""#));
}
