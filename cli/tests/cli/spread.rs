//! `--pipeline spread`: each kernel of a chain on cores of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{CIPHER, Folder, cellway, cellway_fed, noise};

/// The ways to spread two kernels.
const LAYOUTS: [&str; 7] = [
    "",
    "--accelerators 4 --threads 1 --block 4K",
    "--accelerators 2 --threads 7 --block 10000",
    "--engine pread --direct off",
    "--direct on",
    "--scheme 3",
    "--scheme staged --staging 2 --block 4K",
];

/// What a chain gives fused, it gives spread, whatever its last kernel.
#[test]
fn a_spread_chain_gives_what_a_fused_one_gives() {
    let folder = Folder::new();
    let text = noise(3, (1 << 20) + 77).into_iter().map(|byte| b"ab c\nd"[byte as usize % 6]);
    let (key, out) = (folder.file("key", &[b'7'; 64]), folder.path("out"));
    let text: Vec<u8> = text.collect();
    for size in [0, 1, text.len()] {
        let input = folder.file("in", &text[..size]);
        let (pair, with_key): ([&Path; 2], [&Path; 3]) = ([&input, &out], [&input, &out, &key]);
        for (chain, paths) in [
            (format!("aes256-ctr,aes256-ctr {{}} {{}} {CIPHER} -f"), &with_key[..]),
            (format!("aes256-ctr,identity {{}} {{}} {CIPHER} -f"), &with_key),
            (format!("aes256-ctr,crc32c {{}} {CIPHER}"), &[&input, &key]),
            ("identity,count {} --pattern a+b".to_owned(), &pair[..1]),
            ("identity,blake3 {}".to_owned(), &pair[..1]),
            ("identity,wordcount {}".to_owned(), &pair[..1]),
            ("identity,replace {} {} --pattern a+b --with <$0> -f".to_owned(), &pair),
        ] {
            let run = |layout: &str| {
                let printed = cellway(&format!("run {chain} {layout}"), paths).ok();
                (printed, chain.ends_with("-f").then(|| fs::read(&out).unwrap()))
            };
            let fused = run("");
            for layout in LAYOUTS {
                let spread = run(&format!("--pipeline spread {layout}"));
                assert!(spread == fused, "{chain} of {size} bytes, {layout}");
            }
        }
    }
}

#[test]
fn pipes_are_read_and_written_in_order() {
    let folder = Folder::new();
    let (data, key) = (noise(4, 3_000_001), folder.file("key", &[b'7'; 64]));
    let line = format!("run aes256-ctr,identity,aes256-ctr - - {CIPHER} --pipeline spread");
    for layout in ["", "--accelerators 6 --threads 2 --block 1K"] {
        assert!(cellway_fed(&format!("{line} {layout}"), &[&key], &data).ok() == data, "{layout}");
    }
}

#[test]
fn several_inputs_go_through_the_same_stages() {
    let folder = Folder::new();
    let files = [0, 10, 100_000].map(|len| folder.file(&len.to_string(), &noise(len as u64, len)));
    let paths = files.each_ref().map(|file| file.as_path());
    let fused = cellway("run identity,crc32c {} {} {}", &paths).ok();
    assert_eq!(cellway("run identity,crc32c {} {} {} --pipeline spread", &paths).ok(), fused);
    let dir = folder.path("dir");
    let line = "run identity,identity {} {} {} --out-dir {} --pipeline spread --accelerators 6";
    cellway(line, &[paths[0], paths[1], paths[2], &dir]).ok();
    for file in &files {
        let made = dir.join(file.file_name().unwrap());
        assert!(fs::read(made).unwrap() == fs::read(file).unwrap());
    }
}

#[test]
fn a_journal_is_kept() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &noise(5, 4 << 20)), folder.path("out"));
    let (journal, stats) = (folder.path("journal"), folder.path("stats"));
    let line = "run identity,identity {} {} --journal {} --journal-every 0 --block 64K \
                --pipeline spread --stats {}";
    cellway(line, &[&input, &out, &journal, &stats]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&input).unwrap());
    let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    assert_eq!((&stats["bytes_in"], &stats["bytes_out"]), (&(4 << 20).into(), &(4 << 20).into()));
    assert_eq!(folder.names(), ["in", "out", "stats"]);
}

#[test]
fn a_stage_that_fails_leaves_nothing() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", &noise(6, 1_000_001)), folder.path("out"));
    // Its last block ends within a record.
    let chain = "run identity,aes128-ecb,identity {} {} --pipeline spread --block 4K";
    cellway(chain, &[&input, &out]).failed(1, &["in", "16"]);
    cellway("run identity,linreg {} --type f64 --pipeline spread", &[&input]).failed(1, &["16"]);
    let full = Path::new("/dev/full");
    let chain = "run identity,identity {} {} --pipeline spread --block 4K --force";
    cellway(chain, &[&input, full]).failed(1, &["/dev/full"]);
    assert_eq!(folder.names(), ["in"]);
}

/// Statistics and trace tell the stages apart, and count each byte once.
#[test]
fn stages_are_told() {
    let folder = Folder::new();
    let (data, out) = (folder.file("data", &noise(7, (3 << 20) + 5)), folder.path("out"));
    let (trace, stats) = (folder.path("trace"), folder.path("stats"));
    let line = "run identity,aes128-ecb,identity {} {} --trace {} --stats {} --block 64K \
                --accelerators 6 --threads 3 --pipeline spread";
    let data = folder.file("data", &[&fs::read(data).unwrap()[..], &[0; 11]].concat());
    cellway(line, &[&data, &out, &trace, &stats]).ok();
    let size = (3 << 20) + 16;
    let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    for (key, value) in
        [("accelerators", 6), ("stages", 3), ("bytes_in", size), ("bytes_out", size)]
    {
        assert_eq!(stats[key], value, "{key}");
    }
    assert_eq!(stats["pipeline"], "spread");
    let number = |key: &str| stats[key].as_f64().unwrap();
    let by_stage = stats["stage_compute_seconds"].as_array().unwrap();
    let sum: f64 = by_stage.iter().map(|seconds| seconds.as_f64().unwrap()).sum();
    assert!(by_stage.len() == 3 && (sum - number("compute_seconds")).abs() < 1e-6, "{stats}");
    assert!(number("receive_seconds") > 0.0 && number("send_seconds") > 0.0, "{stats}");
    assert!(number("peak_rss_bytes") <= number("memory_bound_bytes"), "{stats}");

    let events: Vec<Value> = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    for (step, times, stages) in [
        ("get", 1, vec![0]),
        ("send", 2, vec![0, 1]),
        ("receive", 2, vec![1, 2]),
        ("compute", 3, vec![0, 1, 2]),
        ("put", 1, vec![2]),
    ] {
        let of_step = events.iter().filter(|event| event["name"] == step && event["ph"] == "X");
        let bytes: u64 =
            of_step.clone().map(|event| event["args"]["bytes"].as_u64().unwrap()).sum();
        assert_eq!(bytes, times * size, "{step}");
        let found: BTreeSet<_> = of_step.map(|event| event["pid"].as_u64().unwrap() % 3).collect();
        assert!(found.into_iter().eq(stages), "{step}");
    }
    let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
    assert!(named("accelerator 0, stage 1 of 3") && named("accelerator 5, stage 3 of 3"));

    let run = cellway("run identity,crc32c {} -v --pipeline spread --accelerators 4", &[&data]);
    assert!(run.stderr.contains("accelerators 4 (2 for each kernel), threads"), "{}", run.stderr);
}
