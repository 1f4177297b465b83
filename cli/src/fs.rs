//! `cellway fs`: files of a 9P2000 server, looked at and changed.

mod list;

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cellway::fs::{
    Address, FsError, Info, Kind, Node as _, OpenMode, Remote, RemoteFile, RemoteNode, kind,
};
use cellway_bench::Format;
use clap::{Args, Subcommand};
use pollster::block_on;

use crate::signals;
use crate::stdout::Stdout;

/// List, read, write and remove the files of a 9P2000 server
///
/// ADDRESS is unix:PATH or tcp:HOST:PORT. A PATH begins at the root of the server's tree.
#[derive(Args, Debug)]
pub(crate) struct FsArgs {
    #[command(subcommand)]
    command: FsCommand,
}

#[derive(Subcommand, Debug)]
enum FsCommand {
    /// List a directory: mode, owner, group, length, time of the last write, name
    Ls {
        #[command(flatten)]
        server: Server,
        /// What to list [default: the root]
        #[arg(default_value = "", hide_default_value = true)]
        path: String,
        /// How it is printed
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        format: Format,
    },
    /// Write files to standard output, one after the other
    Cat {
        #[command(flatten)]
        server: Server,
        /// What to read
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Make a file of what is in FILE
    Put {
        #[command(flatten)]
        server: Server,
        /// The file to make
        path: String,
        /// What to read; `-` is standard input
        #[arg(default_value = "-")]
        file: PathBuf,
        /// Write to PATH if it exists and is not empty; its old content is gone
        /// then, whatever comes of it
        #[arg(short, long)]
        force: bool,
    },
    /// Show what is known of a file
    Stat {
        #[command(flatten)]
        server: Server,
        /// The file
        path: String,
        /// How it is printed
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
        format: Format,
    },
    /// Remove files, and directories that are empty
    Rm {
        #[command(flatten)]
        server: Server,
        /// What to remove
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Make directories
    Mkdir {
        #[command(flatten)]
        server: Server,
        /// What to make, in a directory that is there
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
}

#[derive(Args, Debug)]
struct Server {
    /// Where the server is: unix:PATH or tcp:HOST:PORT
    address: Address,
    /// Which of its trees
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tree: String,
    /// Whom to attach as [default: $USER]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Seconds to wait for a connection
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };
const WRITE: OpenMode = OpenMode { read: false, write: true, ..READ };

/// Bytes read or written by one call, which is several messages.
const CALL_BYTES: usize = 2 << 20;

/// Entries of a directory asked for at once.
const ENTRIES_MAX: usize = 1024;

/// Entries among which one is looked for that may have been meant, and how long names are there.
const NEAR_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;

pub(crate) fn fs(args: &FsArgs) -> anyhow::Result<()> {
    match &args.command {
        FsCommand::Ls { server, path, format } => {
            let root = server.attach()?;
            let node = root.find(path)?;
            let info = block_on(node.stat()).map_err(|error| told(&error))?;
            let infos =
                if list::is_directory(&info) { entries(&node, usize::MAX)? } else { vec![info] };
            list::print(&infos, *format)
        }
        FsCommand::Cat { server, paths } => {
            let root = server.attach()?;
            paths.iter().try_for_each(|path| cat(&root.find(path)?, path))
        }
        FsCommand::Put { server, path, file, force } => put(&server.attach()?, path, file, *force),
        FsCommand::Stat { server, path, format } => {
            let node = server.attach()?.find(path)?;
            list::print_one(&block_on(node.stat()).map_err(|error| told(&error))?, *format)
        }
        FsCommand::Rm { server, paths } => {
            let root = server.attach()?;
            paths.iter().try_for_each(|path| {
                block_on(root.find(path)?.remove()).map_err(|error| told(&error))
            })
        }
        FsCommand::Mkdir { server, paths } => {
            let root = server.attach()?;
            paths.iter().try_for_each(|path| mkdir(&root, path))
        }
    }
}

impl Server {
    fn attach(&self) -> anyhow::Result<Tree> {
        let patience = Duration::from_secs(self.timeout);
        // What is wrong with a connection comes with its cure.
        let remote = Remote::connect(&self.address, patience)?;
        let user = self.user.clone().or_else(|| std::env::var("USER").ok());
        let user = user.as_deref().unwrap_or("nobody");
        let root = block_on(remote.root(user, &self.tree)).map_err(|error| {
            let what = if self.tree.is_empty() { String::new() } else { format!(" {}", self.tree) };
            anyhow::anyhow!("attach to tree{what}: {error}; mend --tree or --user")
        })?;
        Ok(Tree(root))
    }
}

/// A server's tree.
struct Tree(RemoteNode);

/// A path's parts. What a path has twice or at its ends says nothing.
fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect()
}

impl Tree {
    fn find(&self, path: &str) -> anyhow::Result<RemoteNode> {
        let parts = parts(path);
        block_on(self.0.walk_to(&parts)).map_err(|error| match error.kind() {
            Kind::NotFound => self.not_found(&parts, &error),
            _ => told(&error),
        })
    }

    /// The directory that a new file is to be made in, and the file's name.
    fn place<'p>(&self, path: &'p str) -> anyhow::Result<(RemoteNode, &'p str)> {
        let parts = parts(path);
        let Some((name, above)) = parts.split_last() else {
            anyhow::bail!("{path:?}: names no file; write DIRECTORY/NAME");
        };
        Ok((self.find(&above.join("/"))?, name))
    }

    /// Which part of a path is not there, and what there is instead.
    fn not_found(&self, parts: &[&str], error: &FsError) -> anyhow::Error {
        for (count, part) in parts.iter().enumerate() {
            let above = parts.get(..count).unwrap_or_default();
            let Ok(directory) = block_on(self.0.walk_to(above)) else { break };
            if block_on(directory.walk_to(&[part])).is_ok() {
                continue;
            }
            let Ok(entries) = entries(&directory, NEAR_MAX) else { break };
            let distance = |info: &Info| strsim::damerau_levenshtein(part, &info.name);
            let short = entries.iter().filter(|info| info.name.len() <= NAME_BYTES_MAX);
            let near = short.min_by_key(|info| distance(info));
            let near = near.filter(|info| distance(info) <= 2.max(part.len() / 4));
            let path = parts.get(..=count).unwrap_or_default().join("/");
            let cure = match near {
                Some(info) => format!("there is {:?}", info.name),
                None => "see 'cellway fs ls'".to_owned(),
            };
            return anyhow::anyhow!("{path}: {}; {cure}", error.kind());
        }
        told(error)
    }
}

/// A server's error, with what to do about it.
pub(crate) fn told(error: &FsError) -> anyhow::Error {
    let cure = match error.kind() {
        _ if error.has_cure() => return anyhow::anyhow!("{error}"),
        Kind::NotFound => "see 'cellway fs ls'",
        Kind::Permission => {
            "see its mode with 'cellway fs stat', or whether it is served read only"
        }
        Kind::Exists => "take another name, or --force",
        Kind::NotDirectory => "leave out what comes behind it",
        Kind::IsDirectory => "name a file in it",
        Kind::NotEmpty => "remove what is in it first",
        Kind::NoSpace => "make room on the server's disk",
        Kind::Closed => return anyhow::anyhow!("{error}"),
        _ => "ask who runs the server if that is not plain",
    };
    anyhow::anyhow!("{error}; {cure}")
}

/// At least as many as `max`, where there are so many.
fn entries(directory: &RemoteNode, max: usize) -> anyhow::Result<Vec<Info>> {
    let mut all = Vec::new();
    block_on(async {
        let open = directory.open_file(READ).await?;
        loop {
            let some = open.entries_from(all.len() as u64, ENTRIES_MAX).await?;
            let is_end = some.is_empty();
            all.extend(some);
            if is_end || all.len() >= max {
                return Ok(());
            }
        }
    })
    .map_err(|error| told(&error))?;
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

fn cat(node: &RemoteNode, path: &str) -> anyhow::Result<()> {
    if u32::from(node.qid().kind) << 24 & kind::DIRECTORY != 0 {
        return Err(told(&FsError::new(Kind::IsDirectory, path)));
    }
    let open = block_on(node.open_file(READ)).map_err(|error| told(&error))?;
    let (mut out, mut offset, mut bytes) = (Stdout::lock(), 0, vec![0; CALL_BYTES]);
    loop {
        let len = block_on(open.read_at(offset, &mut bytes)).map_err(|error| told(&error))?;
        if len == 0 {
            return Ok(out.flush()?);
        }
        out.write_all(bytes.get(..len).unwrap_or_default())?;
        offset += len as u64;
    }
}

fn put(root: &Tree, path: &str, file: &Path, force: bool) -> anyhow::Result<()> {
    let (mut source, source_name) = source(file)?;
    let (directory, name) = root.place(path)?;
    signals::say_at_exit(Some(format!("{path} may be there in part; remove it or put it again")));
    let made = block_on(async {
        match directory.create_file(name, 0o644, WRITE).await {
            Ok(open) => Ok((open, true)),
            Err(refused) => match directory.walk_to(&[name]).await {
                Ok(node) => Ok((open_again(&node, refused, force).await?, false)),
                Err(_) => Err(refused),
            },
        }
    });
    let (open, is_new) = made.map_err(|error| told(&error))?;
    let done = copy(&mut source, &source_name, &open, path);
    if done.is_err() && is_new {
        // A part of a file is of no use; the error says what led to it.
        let _ = block_on(async { directory.walk_to(&[name]).await?.remove().await });
    }
    done
}

/// Opens a file that is there: by `force` it is cut; else it must have nothing to lose, as a
/// pipe, a log, a file of commands.
async fn open_again(
    node: &RemoteNode,
    refused: FsError,
    force: bool,
) -> Result<RemoteFile, FsError> {
    let info = node.stat().await?;
    match force {
        _ if info.length == 0 || info.mode & kind::APPEND != 0 => node.open_file(WRITE).await,
        true => node.open_file(OpenMode { truncate: true, ..WRITE }).await,
        false => Err(refused),
    }
}

fn source(file: &Path) -> anyhow::Result<(Box<dyn Read>, String)> {
    if file == Path::new("-") {
        return Ok((Box::new(io::stdin()), "standard input".to_owned()));
    }
    let name = file.display().to_string();
    let opened = File::open(file).with_context(|| format!("{name}: cannot be read; mend FILE"))?;
    Ok((Box::new(opened), name))
}

fn copy(
    source: &mut dyn Read,
    source_name: &str,
    open: &RemoteFile,
    path: &str,
) -> anyhow::Result<()> {
    let (mut bytes, mut offset) = (Vec::new(), 0);
    loop {
        bytes.clear();
        let read = source.take(CALL_BYTES as u64).read_to_end(&mut bytes);
        read.with_context(|| format!("{source_name}: cannot be read; check the disk"))?;
        let mut rest = &bytes[..];
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            let len = block_on(open.write_at(offset, rest)).map_err(|error| told(&error))?;
            if len == 0 {
                return Err(told(&FsError::new(Kind::NoSpace, path)));
            }
            offset += len as u64;
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

fn mkdir(root: &Tree, path: &str) -> anyhow::Result<()> {
    let (directory, name) = root.place(path)?;
    let made = block_on(directory.create_file(name, kind::DIRECTORY | 0o755, READ));
    made.map(drop).map_err(|error| told(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_comes_with_one_cure() {
        let missing = told(&FsError::new(Kind::NotFound, "a; b")).to_string();
        assert_eq!(missing, "a; b: file does not exist; see 'cellway fs ls'");
        let held = told(&FsError::because(Kind::Busy, "a", "is held; try again")).to_string();
        assert_eq!(held, "a: is held; try again");
    }
}
