//! Kernels against the tools people use now, and chains of them.

use std::path::Path;
use std::process::Command;

use crate::program::{Folder, cellway, cellway_fed, noise, skip};

/// What a tool prints of a file's content, the name left out.
fn tool(program: &str, arguments: &[&str], input: &std::path::Path) -> Option<String> {
    let output = Command::new(program).args(arguments).arg(input).env("LC_ALL", "C.UTF-8").output();
    match output {
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            Some(text.split_whitespace().next().unwrap_or_default().to_owned())
        }
        Err(error) => {
            skip(program, &error.to_string());
            None
        }
    }
}

#[test]
fn blake3_is_what_b3sum_says() {
    let folder = Folder::new();
    for len in [0, 1, 1024, 1025, 300_000, 1 << 20, (3 << 20) + 1] {
        let input = folder.file("in", &noise(len as u64 + 1, len));
        let Some(expected) = tool("b3sum", &[], &input) else { return };
        let found = cellway("run blake3 {} --block 100K", &[&input]).ok_text();
        assert_eq!(found.trim_end(), expected, "{len} bytes");
    }
}

#[test]
fn counted_lines_are_those_of_grep() {
    let folder = Folder::new();
    let text: Vec<u8> =
        noise(5, 2 << 20).into_iter().map(|b| b" abcdefg\n"[b as usize % 9]).collect();
    let input = folder.file("in", &text);
    for pattern in ["abc", "^a", "d$", "a.*b", "(ab|ba)[cd]+", "^$", "nothing", ""] {
        let Some(expected) = tool("grep", &["-a", "-c", "-E", pattern], &input) else { return };
        let found = cellway_fed(
            &format!("run count --lines --block 64K --pattern={pattern} {{}}"),
            &[&input],
            b"",
        );
        assert_eq!(found.ok_text().trim_end(), expected, "{pattern}");
    }
}

#[test]
fn replaced_is_what_sed_writes() {
    let folder = Folder::new();
    let text: Vec<u8> =
        noise(8, 2 << 20).into_iter().map(|b| b" abcdefg\n"[b as usize % 9]).collect();
    let (input, out) = (folder.file("in", &text), folder.path("out"));
    for (pattern, with, script) in [
        ("abc", "", "s/abc//g"),
        ("^a", "begin-of-line", "s/^a/begin-of-line/g"),
        ("([ab])([cd]+)", "<$2|$1>", "s/([ab])([cd]+)/<\\2|\\1>/g"),
        (" *$", "${0}.", "s/ *$/&./g"),
        ("x", "y", "s/x/y/g"),
    ] {
        let sed = Command::new("sed").args(["-E", script]).arg(&input).env("LC_ALL", "C").output();
        let expected = match sed {
            Ok(output) => output.stdout,
            Err(error) => return skip("sed", &error.to_string()),
        };
        let line = "run replace {} {} --block 100K --force --pattern {} --with {}";
        cellway(line, &[&input, &out, Path::new(pattern), Path::new(with)]).ok();
        assert!(std::fs::read(&out).unwrap() == expected, "{script}");
    }
    cellway("run replace {} {} --pattern a", &[&input, &out]).failed(2, &["needs --with"]);
    cellway("run replace,identity {} {} --pattern a --with b", &[&input, &out])
        .failed(2, &["let it come last"]);
}

#[test]
fn patterns_that_cannot_be_used_are_refused() {
    let folder = Folder::new();
    let input = folder.file("in", b"abc");
    cellway("run count {}", &[&input]).failed(2, &["count needs --pattern", "regular expression"]);
    cellway("run count {} --pattern \\Aa", &[&input]).failed(2, &["use ^ and $"]);
    cellway("run count {} --pattern a( ", &[&input]).failed(2, &["--pattern"]);
}

#[test]
fn a_chain_hands_blocks_on() {
    let folder = Folder::new();
    let input = folder.file("in", &noise(6, 3_000_001));
    let (key, out) = (folder.file("key", &[b'7'; 64]), folder.path("out"));
    let cipher = "--key-file {} --iv 00000000000000000000000000000001";
    // The same key stream twice: the text again.
    let twice = format!("run identity,aes256-ctr,aes256-ctr {{}} {{}} {cipher}");
    cellway(&twice, &[&input, &out, &key]).ok();
    assert!(std::fs::read(&out).unwrap() == std::fs::read(&input).unwrap());

    let text: Vec<u8> = noise(7, 1 << 20).into_iter().map(|b| b"ab \n"[b as usize % 4]).collect();
    let text = folder.file("text", &text);
    cellway(&format!("run aes256-ctr {{}} {{}} --force {cipher}"), &[&text, &out, &key]).ok();
    let of_hidden = cellway(&format!("run aes256-ctr,wordcount {{}} {cipher}"), &[&out, &key]);
    assert_eq!(of_hidden.ok_text(), cellway("run wordcount {}", &[&text]).ok_text());
}

#[test]
fn chains_that_cannot_be_are_refused() {
    let folder = Folder::new();
    let (input, out) = (folder.file("in", b"abc"), folder.path("out"));
    let paths = [input.as_path(), out.as_path()];
    cellway("run crc32c,identity {} {}", &paths).failed(2, &["crc32c", "let it come last"]);
    for slip in ["identity,", ",identity", "identity,,identity", ","] {
        cellway(&format!("run {slip} {{}} {{}}"), &paths).failed(2, &["<KERNEL>"]);
    }
    cellway("run identity,crc32 {}", &paths[..1]).failed(2, &["'crc32c'"]);
    cellway("run identity,crc32c {} --out-dir {}", &paths)
        .failed(2, &["identity,crc32c takes no --out-dir"]);
    cellway("run identity,crc32c {} --top 1", &paths[..1])
        .failed(2, &["identity,crc32c does not take --top"]);
    assert_eq!(folder.names(), ["in"]);
}
