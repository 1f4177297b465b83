//! `cellway serve`: directories of this machine, for 9P2000 clients.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use cellway::fs::{Address, Exports, FileServer, FsError, ServeOptions, UnixServer};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::Usage;
use crate::signals;
use crate::stdout::Stdout;

/// Serve directories to other programs and machines, by 9P2000
///
/// Clients attach to all exports, each a directory under its NAME, or to one of them
/// as the tree NAME. Says on standard output where it listens, and
/// ends at a signal. Nobody is asked who they are: a socket is its owner's only, a
/// port is open to every user of this machine.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Where to listen: unix:PATH or tcp:HOST:PORT; of port 0 any that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,
    /// Serve the files below DIR as NAME; with :ro they can be read only. May be
    /// given several times
    #[arg(long = "export", value_name = "NAME=DIR[:ro]", required = true)]
    exports: Vec<Export>,
    /// Listen where other machines come in too, all of which may do everything
    #[arg(long)]
    allow_remote: bool,
}

/// One directory, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Export {
    name: String,
    dir: PathBuf,
    read_only: bool,
}

impl FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write NAME=DIR or NAME=DIR:ro";
        let (name, dir) =
            text.split_once('=').ok_or_else(|| format!("the = is missing; {form}"))?;
        let (dir, read_only) = match dir.strip_suffix(":ro") {
            Some(dir) => (dir, true),
            None => (dir, false),
        };
        if name.is_empty() || dir.is_empty() {
            return Err(format!("a part is missing; {form}"));
        }
        Ok(Self { name: name.to_owned(), dir: dir.into(), read_only })
    }
}

pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<()> {
    raise_open_files();
    let mut trees: Vec<(String, Arc<dyn FileServer>)> = Vec::new();
    for export in &args.exports {
        trees.push((export.name.clone(), Arc::new(open(&export.dir, export.read_only)?)));
    }
    let exports = Exports::new(trees).map_err(|error| Usage(format!("--export {error}")))?;
    if !args.listen.is_local() && !args.allow_remote {
        let what = "other machines can come in there, and nobody is asked who they are";
        let cure = "listen at 127.0.0.1, or give --allow-remote";
        bail!(Usage(format!("--listen {}: {what}; {cure}", args.listen)));
    }
    let options = ServeOptions { remote: args.allow_remote, ..ServeOptions::default() };
    let serving =
        cellway::fs::serve(&args.listen, Arc::new(exports), options).map_err(cannot_listen)?;
    let address = serving.address().clone();
    // Its socket goes with it.
    signals::end_at_exit(move || drop(serving));
    signals::say_at_exit(Some(format!("{address} is served no more")));
    let mut out = Stdout::lock();
    writeln!(out, "{address}")?;
    out.flush()?;
    drop(out);
    loop {
        std::thread::park();
    }
}

/// As many open files as may be had; each that clients use is one.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // With fewer it serves too, and says what is short.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn open(dir: &Path, read_only: bool) -> anyhow::Result<UnixServer> {
    UnixServer::new(dir, read_only).map_err(|error| {
        anyhow::anyhow!("--export: {error}; name a directory that is there and that you may read")
    })
}

fn cannot_listen(error: FsError) -> anyhow::Error {
    anyhow::anyhow!("--listen: {error}; take another address, or end what has this one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_have_a_name_and_a_directory() {
        let export = |name: &str, dir: &str, read_only| {
            Ok(Export { name: name.into(), dir: dir.into(), read_only })
        };
        assert_eq!("a=/b".parse(), export("a", "/b", false));
        assert_eq!("a=b=c:ro".parse(), export("a", "b=c", true));
        for text in ["a", "=b", "a=", "a=:ro"] {
            let error = text.parse::<Export>().unwrap_err();
            assert!(error.ends_with("; write NAME=DIR or NAME=DIR:ro"), "{error}");
        }
    }
}
