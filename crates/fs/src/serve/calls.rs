//! The calls of a session, made on a tree.

use std::sync::Arc;

use ninep::{Call, FEW, Qid, Qids, Stat, kind, mode};

use crate::error::{FsError, Kind};
use crate::name::checked_user;
use crate::server::{FileServer, Info, Node, OpenFile, OpenMode};

/// What a directory's entry takes at least that is not called by a letter, in bytes.
const ENTRY_BYTES: u32 = 64;

/// Entries that are asked for at once.
const ENTRIES_MAX: u32 = 1024;

/// A file, and how it was reached: `..` is where it was walked from.
pub(super) struct Place {
    node: Arc<dyn Node>,
    up: Option<Arc<Place>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // One after the other: a path is as deep as its client likes.
        let mut up = self.up.take();
        while let Some(mut place) = up.and_then(Arc::into_inner) {
            up = place.up.take();
        }
    }
}

/// How a call ended well.
pub(super) enum Ended {
    Attach(Arc<Place>, Qid),
    Walk(Qids, Option<Arc<Place>>),
    Open(Arc<dyn OpenFile>),
    Create(Arc<Place>, Arc<dyn OpenFile>),
    /// So many bytes of the buffer.
    Read(Vec<u8>, usize),
    /// Encoded, and how many.
    Entries(Vec<u8>, u64),
    Write(usize),
    Stat(Info),
    Changed,
}

/// Carries out `call`. A read goes into `buffer`, which is as long as it at least.
pub(super) async fn perform(
    root: Arc<dyn FileServer>,
    call: Call<Arc<Place>, Arc<dyn OpenFile>>,
    mut buffer: Vec<u8>,
) -> Result<Ended, FsError> {
    Ok(match call {
        Call::Attach { user, tree } => {
            checked_user(&user)?;
            let node = root.attach(&user, &tree).await?;
            let qid = node.stat().await?.qid;
            Ended::Attach(Arc::new(Place { node, up: None }), qid)
        }
        Call::Walk { from, names } => walk(from, &names).await?,
        Call::Open { node, mode } => Ended::Open(node.node.open(open_mode(mode)).await?),
        Call::Create { parent, name, permissions, mode } => {
            let created = parent.node.create(&name, permissions, open_mode(mode)).await?;
            let (node, open) = created;
            Ended::Create(Arc::new(Place { node, up: Some(parent) }), open)
        }
        Call::Read { open, offset, count } => {
            let into = buffer.get_mut(..count as usize).unwrap_or_default();
            let read = open.read(offset, into).await?.min(into.len());
            Ended::Read(buffer, read)
        }
        Call::Entries { open, from, count } => entries(&*open, from, count).await?,
        Call::Write { open, offset, data } => Ended::Write(open.write(offset, &data).await?),
        Call::Remove { node } => {
            node.node.remove().await?;
            Ended::Changed
        }
        Call::Stat { node } => Ended::Stat(node.node.stat().await?),
        Call::Wstat { node, change } => {
            node.node.wstat(&change).await?;
            Ended::Changed
        }
    })
}

/// As far as it goes; an error only where nothing was found: walk(5).
async fn walk(from: Arc<Place>, names: &[String]) -> Result<Ended, FsError> {
    let (mut at, mut qids) = (from, Vec::with_capacity(FEW));
    for name in names {
        match step(&at, name).await {
            Ok((place, qid)) => {
                qids.push(qid);
                at = place;
                if qid.kind & kind::of(kind::DIRECTORY) == 0 {
                    break;
                }
            }
            Err(error) if qids.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    let all = qids.len() == names.len();
    let qids = Qids::of(&qids).map_err(|error| io(error.to_string()))?;
    Ok(Ended::Walk(qids, all.then_some(at)))
}

async fn step(at: &Arc<Place>, name: &str) -> Result<(Arc<Place>, Qid), FsError> {
    let next = match (name, &at.up) {
        ("..", Some(up)) => Arc::clone(up),
        ("..", None) => Arc::clone(at),
        _ => {
            let node = at.node.walk(name).await?;
            Arc::new(Place { node, up: Some(Arc::clone(at)) })
        }
    };
    let qid = next.node.stat().await?.qid;
    Ok((next, qid))
}

/// Whole entries, `count` bytes of them at most.
async fn entries(open: &dyn OpenFile, from: u64, count: u32) -> Result<Ended, FsError> {
    let infos = open.entries(from, (count / ENTRY_BYTES).clamp(1, ENTRIES_MAX) as usize).await?;
    let (mut bytes, mut taken) = (Vec::new(), 0);
    for info in &infos {
        let stat = stat(info);
        if bytes.len() + stat.encoded_bytes() > count as usize {
            break;
        }
        stat.encode(&mut bytes).map_err(|error| io(format!("{:?}: {error}", info.name)))?;
        taken += 1;
    }
    match infos.first() {
        Some(first) if taken == 0 => {
            let needed = stat(first).encoded_bytes();
            Err(io(format!("the next entry has {needed} bytes, read at least so many")))
        }
        _ => Ok(Ended::Entries(bytes, taken)),
    }
}

fn io(what: String) -> FsError {
    FsError::because(Kind::Io, "read", what)
}

/// As the protocol has it.
pub(super) fn stat(info: &Info) -> Stat<'_> {
    Stat {
        kernel_type: 0,
        kernel_dev: 0,
        qid: info.qid,
        mode: info.mode,
        atime: info.atime,
        mtime: info.mtime,
        length: info.length,
        name: &info.name,
        uid: &info.uid,
        gid: &info.gid,
        muid: &info.muid,
    }
}

fn open_mode(byte: u8) -> OpenMode {
    let execute = byte & mode::ACCESS == mode::EXECUTE;
    OpenMode {
        read: mode::reads(byte) && !execute,
        write: mode::writes(byte),
        execute,
        truncate: byte & mode::TRUNCATE != 0,
    }
}
