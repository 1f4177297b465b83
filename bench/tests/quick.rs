//! Every experiment with tiny parameters: benchmarks are smoke tests too.

use cellway_bench::{Bench, tables};
use clap::Parser;

#[derive(Parser)]
struct CommandLine {
    #[command(subcommand)]
    bench: Bench,
}

/// Runs an experiment and checks what all tables promise.
fn check(arguments: &str, tables_at_least: usize) {
    let line = format!("bench {arguments} --quick");
    let bench = CommandLine::try_parse_from(line.split(' ')).unwrap().bench;
    let tables = match tables(&bench) {
        Err(error) if error.to_string().starts_with("cannot make a test file") => {
            println!("SKIP {arguments}: {error:#}");
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{error:#}");
            return;
        }
        tables => tables.unwrap(),
    };
    assert!(tables.len() >= tables_at_least, "{} tables", tables.len());
    for table in tables {
        let text = table.to_text();
        assert!(!table.rows.is_empty(), "{text}");
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = serde_json::to_value(&table).unwrap();
        assert_eq!(json["rows"].as_array().unwrap().len(), table.rows.len());
        for name in ["title", "command", "machine", "columns", "notes"] {
            assert!(!json[name].is_null(), "{name}");
        }
    }
}

#[test]
fn threads() {
    check("threads", 4);
}

#[test]
fn walk() {
    check("walk --pages 4k", 1);
}

#[test]
fn listrank() {
    check("listrank", 1);
}

#[test]
fn probe() {
    check("probe", 1);
}

#[test]
fn search() {
    check("search", 1);
}

#[test]
fn synthetic_in_memory() {
    // Four settings per discipline, each with rates and speedups; calibration; summary.
    check("synthetic --medium memory", 2 * 4 * 4 + 2);
}

#[test]
fn synthetic_in_a_file() {
    check("synthetic --medium file --order random --mode read", 4);
}

#[test]
fn aes() {
    check("aes", 2);
}

#[test]
fn schemes() {
    check("schemes", 1);
}

#[test]
fn fs_bandwidth() {
    // Small and huge pages; in #U; the cost of one read; by a socket; what it all takes.
    check("fs-bandwidth --accelerators 1,3", 6);
}

#[test]
fn matmul() {
    check("matmul --accelerators 1,3", 1);
}

#[test]
fn observer() {
    // One for each kernel.
    check("observer", 3);
}

#[test]
fn cluster() {
    check("cluster", 8);
}

#[test]
fn senseless_arguments_are_refused() {
    for line in [
        "walk --threads 0",
        "walk --bytes 0",
        "walk --bytes 1Q",
        "synthetic --cycles 3",
        "synthetic --sizes 48",
        "synthetic --threads many",
        "aes --pages 3k",
        "fs-bandwidth --block 48",
        "cluster --nodes 1",
        "cluster --parts all",
        "cluster --limit 1M",
        "cluster --kills 0",
    ] {
        let line = format!("bench {line}");
        assert!(CommandLine::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
    for line in ["synthetic --bytes 16K", "aes --bytes 16K", "aes --sizes 8", "threads --bytes 16K"]
    {
        let line = format!("bench {line}");
        let bench = CommandLine::try_parse_from(line.split(' ')).unwrap().bench;
        let error = tables(&bench).unwrap_err().to_string();
        assert!(error.contains("--"), "{error}");
    }
}
