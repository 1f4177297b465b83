//! The programs that tests and benchmarks compare Cellway with.

use std::path::PathBuf;

use crate::step::Report;

/// Each peer and what it is for. Debian's package has the program's name, but
/// `cat` and `dd` are in coreutils.
const PEERS: &[(&str, &str)] = &[
    ("openssl", "what aes256-ctr must equal byte for byte"),
    ("fio", "what direct reads are measured against"),
    ("valgrind", "the checks of memory safety"),
    ("dd", "what a direct copy is measured against"),
    ("cat", "what cached reads are measured against"),
    ("grep", "what counted lines must equal"),
    ("sed", "what replace must equal"),
    ("b3sum", "what blake3 must equal"),
];

/// Says where each peer is, and notes those that are missing.
pub(crate) fn prepare(report: &mut Report) {
    for (name, purpose) in PEERS {
        match find(name) {
            Some(path) => println!("{name}: {}", path.display()),
            None => {
                let reason = "not found in PATH; install the package of that name";
                report.skipped.insert(format!("{name} ({purpose}): {reason}"));
            }
        }
    }
}

/// Where a program is, if PATH leads to it.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}
