//! `info` and `kernels`.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{EXE, Folder, cellway, finish};

#[test]
fn info_agrees_with_the_run() {
    let info: Value = serde_json::from_slice(&cellway("info --format json", &[]).ok()).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let allowed = info["cores_allowed"].as_array().unwrap().len();
    // A quota lowers what std counts, and only that.
    assert!(allowed >= cores, "{allowed} and {cores}");
    let (uring, auto) = (&info["io_uring"]["works"], &info["engine"]);
    assert_eq!(auto == "uring", uring == &Value::Bool(true), "{info}");
    let refused = cellway("run crc32c /dev/null --engine uring", &[]).code != Some(0);
    assert_eq!(uring, &Value::Bool(!refused), "{info}");
    for key in ["io_uring", "fixed_buffers"] {
        assert!(!info[key]["why"].as_str().unwrap().is_empty());
    }
    let text = cellway("info", &[]).ok_text();
    for name in ["cores", "caches", "memory", "huge pages", "io_uring", "fixed buffers", "engine"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}: {text}");
    }
}

#[test]
fn kernels_lists_each_with_its_parameters() {
    let text = cellway("kernels", &[]).ok_text();
    let json: Value = serde_json::from_slice(&cellway("kernels --format json", &[]).ok()).unwrap();
    let kernels = json.as_array().unwrap();
    assert_eq!(kernels.len(), cellway::kernels::CATALOGUE.len());
    for kernel in kernels {
        let name = kernel["name"].as_str().unwrap();
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}");
        for parameter in kernel["parameters"].as_array().unwrap() {
            assert!(text.contains(&format!("--{}", parameter["name"].as_str().unwrap())));
        }
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// With too few descriptors no ring can be set up.
#[test]
fn an_engine_asked_for_by_name_is_not_replaced() {
    let folder = Folder::new();
    let (input, stats) = (folder.file("in", b"abc"), folder.path("stats"));
    let run = |descriptors: u32, engine: &str| {
        let script = format!(
            "ulimit -n {descriptors}; exec {EXE} run crc32c \"$1\" --engine {engine} --stats \"$2\""
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh"]).args([&input, &stats]).stdin(Stdio::null());
        finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut replaced = 0;
    for descriptors in 6..12 {
        let (uring, auto) = (run(descriptors, "uring"), run(descriptors, "auto"));
        if auto.code != Some(0) {
            continue;
        }
        let used: Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        if uring.code == Some(0) {
            assert_eq!(used["engine"], "uring");
        } else {
            uring.failed(1, &["engine uring does not work here", "--engine pread"]);
            assert_eq!(used["engine"], "pread", "{used}");
            replaced += 1;
        }
    }
    assert!(replaced > 0, "auto was never short of a ring");
}
