//! The programs that tests and benchmarks compare Cellway with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step::Report;
use crate::workspace::Workspace;

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
    if let Err(error) = Workspace::read().map(|workspace| prepare_made(&workspace, report)) {
        report.skipped.insert(format!("9P2000 and MPI peers: {error:#}"));
    }
}

/// Makes 9P2000 peers of other languages and MPIs, below the build folder, where the
/// tests look for them; none needs root. What is there already is kept.
fn prepare_made(workspace: &Workspace, report: &mut Report) {
    let interop = workspace.root.join("cli/tests/interop");
    let mpis = workspace.root.join("crates/cluster/tests/transports/peers");
    let into = workspace.target.join("peers");
    let python9p = interop.join("python/requirements.txt");
    for (name, made) in [
        ("python-9p (what 9P2000 messages must equal)", python(&python9p, &into.join("python"))),
        ("9fans.net/go (a 9P2000 client)", go(&interop.join("go"), &into)),
        ("Open MPI 5", python(&mpis.join("openmpi5.txt"), &into.join("openmpi5"))),
        ("Open MPI 4.1", python(&mpis.join("openmpi4.txt"), &into.join("openmpi4"))),
        ("MPICH", python(&mpis.join("mpich.txt"), &into.join("mpich"))),
    ] {
        match made {
            Ok(path) => println!("{name}: {}", path.display()),
            Err(error) => _ = report.skipped.insert(format!("{name}: {error:#}")),
        }
    }
}

/// A Python in `dir` with the packages that `wanted` pins by their hashes, and their programs.
fn python(wanted: &Path, dir: &Path) -> Result<PathBuf> {
    let (python, stamp) = (dir.join("bin/python"), dir.join("requirements.txt"));
    let is_there = fs::read(&stamp).is_ok_and(|there| fs::read(wanted).is_ok_and(|w| w == there));
    if !is_there {
        make(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir))?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--require-hashes", "-r"]).arg(wanted);
        make(pip.args(["--disable-pip-version-check", "--only-binary", ":all:"]))?;
        fs::copy(wanted, &stamp)?;
    }
    Ok(python)
}

/// The program of the module `source`, whose go.sum pins what it is made of.
fn go(source: &Path, into: &Path) -> Result<PathBuf> {
    let program = into.join("go-9p");
    let mut go = Command::new("go");
    make(go.args(["build", "-mod=readonly", "-o"]).arg(&program).arg(".").current_dir(source))?;
    Ok(program)
}

fn make(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} is not there; install it"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", said.trim().replace('\n', " "));
    }
    Ok(())
}

/// Where a program is, if PATH leads to it.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}
