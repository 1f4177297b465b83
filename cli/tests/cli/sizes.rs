//! Every kernel on sizes around every boundary, by every engine and path,
//! against a plain reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::{Folder, bmp_header, cellway, cellway_fed, noise, skip};

const BLOCK: usize = 4096;
const SIZES: [usize; 11] =
    [0, 1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 5 * BLOCK, 40 * BLOCK + 17];

/// The ways to lay a run out that work here.
fn layouts() -> Vec<String> {
    let mut layouts = Vec::new();
    let folder = Folder::new();
    let file = folder.file("file", &[0; BLOCK]);
    for way in ["--engine uring", "--engine pread", "--direct on", "--direct off"] {
        let probe = cellway(&format!("run identity {{}} {{}} {way}"), &[&file, &folder.path(way)]);
        match probe.code {
            Some(0) => layouts.push(way.to_owned()),
            _ => skip(way, probe.stderr.trim()),
        }
    }
    let both = |direct: &String| format!("--engine pread {direct}");
    let more: Vec<_> = layouts.iter().filter(|way| way.starts_with("--direct")).map(both).collect();
    layouts.extend(more);
    layouts
        .extend(["1", "2", "3", "4", "6", "staged --staging 2"].map(|s| format!("--scheme {s}")));
    layouts.push("--accelerators 3 --threads 2".to_owned());
    layouts.push("--accelerators 1 --threads 1".to_owned());
    layouts.iter().map(|way| format!("{way} --block {BLOCK}")).chain([String::new()]).collect()
}

#[test]
fn transforms_keep_every_byte() {
    let openssl = Command::new("openssl").arg("version").output().is_ok();
    if !openssl {
        skip("aes256-ctr against openssl", "no openssl");
    }
    let (key, iv) = ("07".repeat(32), "00112233445566778899aabbfffffffe");
    let folder = Folder::new();
    let key_file = folder.file("key", key.as_bytes());
    let layouts = layouts();
    for size in SIZES {
        let input = folder.file("in", &noise(size as u64, size));
        let out = folder.path("out");
        if openssl {
            let mut openssl = Command::new("openssl");
            openssl.args(["enc", "-aes-256-ctr", "-K", &key, "-iv", iv, "-in"]).arg(&input);
            assert!(openssl.arg("-out").arg(folder.path("peer")).status().unwrap().success());
        }
        for layout in &layouts {
            cellway(&format!("run identity {{}} {{}} -f {layout}"), &[&input, &out]).ok();
            assert!(fs::read(&out).unwrap() == fs::read(&input).unwrap(), "{size} bytes, {layout}");
            if openssl {
                let line =
                    format!("run aes256-ctr {{}} {{}} --key-file {{}} --iv {iv} -f {layout}");
                cellway(&line, &[&input, &out, &key_file]).ok();
                assert!(
                    fs::read(&out).unwrap() == fs::read(folder.path("peer")).unwrap(),
                    "{size} bytes, {layout}"
                );
            }
        }
    }
}

#[test]
fn aes128_ecb_takes_whole_records() {
    let folder = Folder::new();
    let out = folder.path("out");
    for size in SIZES {
        let input = folder.file("in", &noise(size as u64, size));
        let run = cellway(&format!("run aes128-ecb {{}} {{}} -f --block {BLOCK}"), &[&input, &out]);
        if size % 16 != 0 {
            run.failed(1, &["in: ", &format!("at byte {};", size - size % 16)]);
            assert!(!out.exists());
            continue;
        }
        run.ok();
        // The benchmark's key, which is published in FIPS-197.
        let mut openssl = Command::new("openssl");
        openssl.args([
            "enc",
            "-aes-128-ecb",
            "-nopad",
            "-K",
            "2b7e151628aed2a6abf7158809cf4f3c",
            "-in",
        ]);
        match openssl.arg(&input).output() {
            Ok(peer) => assert!(peer.stdout == fs::read(&out).unwrap(), "{size} bytes"),
            Err(error) => skip("aes128-ecb against openssl", &error.to_string()),
        }
        fs::remove_file(&out).unwrap();
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[test]
fn checksums_are_right() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the reference, by RFC 3720");
    let folder = Folder::new();
    let layouts = layouts();
    for size in SIZES {
        let data = noise(size as u64, size);
        let input = folder.file("in", &data);
        let expected = format!("{:08x}\n", crc32c(&data));
        for layout in &layouts {
            assert_eq!(
                cellway(&format!("run crc32c {{}} {layout}"), &[&input]).ok_text(),
                expected,
                "{layout}"
            );
        }
        assert_eq!(
            cellway_fed(&format!("run crc32c - --block {BLOCK}"), &[], &data).ok_text(),
            expected
        );
    }
}

/// Words by count and then by bytes, as `COUNT<TAB>WORD` lines.
fn count_words(text: &[u8]) -> Vec<u8> {
    let mut counts = BTreeMap::<&[u8], u64>::new();
    let words =
        text.split(|byte| b" \t\n\x0b\x0c\r".contains(byte)).filter(|word| !word.is_empty());
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
        .iter()
        .flat_map(|(word, count)| [format!("{count}\t").as_bytes(), word, b"\n"].concat())
        .collect()
}

#[test]
fn words_are_counted_wherever_they_are_cut() {
    let folder = Folder::new();
    for size in SIZES {
        // Few different bytes: many words, some of them equal.
        let text: Vec<u8> = noise(size as u64, size)
            .iter()
            .map(|byte| b"abc \n\te\xffz"[usize::from(byte % 9)])
            .collect();
        let input = folder.file("in", &text);
        let expected = count_words(&text);
        for layout in [
            format!("--block {BLOCK}"),
            "--block 7 --threads 9".to_owned(),
            "--direct on".to_owned(),
        ] {
            let run = cellway(&format!("run wordcount {{}} {layout}"), &[&input]);
            if run.stderr.contains("direct I/O was asked for") {
                skip("--direct on", run.stderr.trim());
                continue;
            }
            assert!(run.ok() == expected, "{size} bytes, {layout}");
        }
    }
}

#[test]
fn words_that_do_not_fit_the_table_are_spilled() {
    let folder = Folder::new();
    let text: String =
        (0..60_000u64).map(|number| format!("{} ", number * number % 40_009)).collect();
    let input = folder.file("in", text.as_bytes());
    let expected = count_words(text.as_bytes());
    let line = "run wordcount {} --block 64K --table-bytes 256K";
    assert!(cellway(line, &[&input]).ok() == expected);
    let top = cellway(&format!("{line} --top 10"), &[&input]).ok_text();
    assert!(expected.starts_with(top.as_bytes()) && top.lines().count() == 10, "{top}");
}

fn json(line: &str, path: &Path) -> Value {
    serde_json::from_slice(&cellway(line, &[path]).ok()).unwrap()
}

#[test]
fn histograms_skip_the_padding() {
    let folder = Folder::new();
    // Widths with every padding, and images of about a block.
    for (width, height) in
        [(1, 1), (2, -3), (3, 5), (4, 2), (5, 7), (1, 1023), (1, -1024), (341, 4), (1366, 3)]
    {
        let (row, stride) = (width as usize * 3, (width as usize * 3).next_multiple_of(4));
        let pixels = noise(row as u64, stride * i32::unsigned_abs(height) as usize);
        let input = folder.file("in.bmp", &[bmp_header(width, height), pixels.clone()].concat());
        let mut bins = vec![[0u64; 256]; 3];
        for line in pixels.chunks(stride) {
            line[..row]
                .iter()
                .enumerate()
                .for_each(|(at, byte)| bins[at % 3][usize::from(*byte)] += 1);
        }
        for layout in ["", "--block 4096", "--block 13 --threads 3"] {
            let found = json(&format!("run histogram {{}} --format json {layout}"), &input);
            assert_eq!(found["pixels"], width as u64 * u64::from(height.unsigned_abs()));
            for (channel, bins) in ["blue", "green", "red"].iter().zip(&bins) {
                assert_eq!(
                    found[channel],
                    serde_json::json!(bins[..]),
                    "{channel} of {width} x {height}"
                );
            }
        }
    }
}

#[test]
fn lines_are_fitted() {
    let folder = Folder::new();
    for size in SIZES {
        let data = noise(size as u64, size);
        let input = folder.file("in", &data);
        let line = format!("run linreg {{}} --type u8 --format json --block {BLOCK}");
        if size % 2 != 0 {
            cellway(&line, &[&input])
                .failed(1, &["in: ", "instead of 2", &format!("at byte {};", size - 1)]);
            continue;
        }
        let found = json(&line, &input);
        assert_eq!(found["n"], size / 2);
        if size < 16 {
            assert_eq!(found["slope"], Value::Null);
            continue;
        }
        let sum = |term: fn(f64, f64) -> f64| -> f64 {
            data.chunks(2).map(|pair| term(f64::from(pair[0]), f64::from(pair[1]))).sum()
        };
        let n = size as f64 / 2.0;
        let (x, y, xx, xy) = (sum(|x, _| x), sum(|_, y| y), sum(|x, _| x * x), sum(|x, y| x * y));
        let slope = (n * xy - x * y) / (n * xx - x * x);
        let near = |key: &str, expected: f64| {
            (found[key].as_f64().unwrap() - expected).abs() < 1e-9 * (1.0 + expected.abs())
        };
        assert!(near("slope", slope) && near("intercept", (y - slope * x) / n), "{found}, {slope}");
    }
}
