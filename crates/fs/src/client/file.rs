//! Files and directories of a server elsewhere.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::lock::Mutex;
use futures::stream::{FuturesOrdered, StreamExt as _};
use ninep::{Qid, Reply, Request, Stat, kind, mode};

use super::connection::{Connection, Frame};
use super::{Held, below, unexpected};
use crate::error::{FsError, Kind};
use crate::server::{Answer, Change, Info, Node, OpenFile, OpenMode};

/// Messages of one read or write under way at once.
const PIECES_MAX: usize = 8;

/// A file or directory of a server elsewhere.
#[derive(Debug)]
pub struct RemoteNode {
    fid: Held,
    /// Where it was found, for messages.
    name: String,
    qid: Qid,
}

impl RemoteNode {
    pub(super) fn new(fid: Held, name: String, qid: Qid) -> Self {
        Self { fid, name, qid }
    }

    /// Which file it is, as of when it was found.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.qid
    }

    async fn call<'c>(&'c self, request: Request<'_>) -> Result<Frame<'c>, FsError> {
        self.fid.connection.call(&self.name, request).await
    }

    /// The file at the end of a path, as its parts; `..` is the directory above.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    pub async fn walk_to(&self, names: &[&str]) -> Result<Self, FsError> {
        let (mut fid, mut name, mut qid) = (None, self.name.clone(), self.qid);
        let mut rest = names;
        loop {
            let (some, later) = rest.split_at(rest.len().min(ninep::FEW));
            let (next, qids) = fid.as_ref().unwrap_or(&self.fid).walk(&name, some).await?;
            name = some.iter().fold(name, |name, part| below(&name, part));
            qid = qids.last().copied().unwrap_or(qid);
            if later.is_empty() {
                return Ok(Self::new(next, name, qid));
            }
            (fid, rest) = (Some(next), later);
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// The server refuses it, or the connection ended.
    pub async fn open_file(&self, how: OpenMode) -> Result<RemoteFile, FsError> {
        let mode = mode_byte(how, &self.name)?;
        // A fid that is open is good for no walk: another one is opened.
        let file = self.walk_to(&[]).await?;
        let frame = file.call(Request::Open { fid: file.fid.fid, mode }).await?;
        let Ok((_, Reply::Open { qid, iounit })) = Reply::decode(&frame) else {
            return Err(unexpected(&self.name));
        };
        drop(frame);
        Ok(RemoteFile::new(file.fid, file.name, qid, iounit))
    }

    /// Makes the entry `name` and opens it.
    ///
    /// # Errors
    /// The server refuses it, or the connection ended.
    pub async fn create_file(
        &self,
        name: &str,
        permissions: u32,
        how: OpenMode,
    ) -> Result<RemoteFile, FsError> {
        let path = below(&self.name, name);
        let mode = mode_byte(how, &path)?;
        let made = self.walk_to(&[]).await?;
        let request = Request::Create { fid: made.fid.fid, name, perm: permissions, mode };
        let frame = made.fid.connection.call(&path, request).await?;
        let Ok((_, Reply::Create { qid, iounit })) = Reply::decode(&frame) else {
            return Err(unexpected(&path));
        };
        drop(frame);
        Ok(RemoteFile::new(made.fid, path, qid, iounit))
    }
}

impl Node for RemoteNode {
    fn stat(&self) -> Answer<'_, Info> {
        Box::pin(stat(&self.fid, &self.name))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            // As names of entries: two mean other files, and one walks nowhere.
            if ["", ".", ".."].contains(&name) {
                return Err(FsError::new(Kind::BadName, name));
            }
            Ok(Arc::new(self.walk_to(&[name]).await?) as Arc<dyn Node>)
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        Box::pin(async move { Ok(Arc::new(self.open_file(mode).await?) as Arc<dyn OpenFile>) })
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        Box::pin(async move {
            let open = self.create_file(name, permissions, mode).await?;
            let node = self.walk_to(&[name]).await?;
            if node.qid.path != open.qid.path {
                let what = "it was made, and replaced by somebody else at once; open it anew";
                return Err(FsError::because(Kind::Busy, node.name, what));
            }
            Ok((Arc::new(node) as Arc<dyn Node>, Arc::new(open) as Arc<dyn OpenFile>))
        })
    }

    fn remove(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            // The fid is gone whatever comes of it, so another one goes.
            let other = self.walk_to(&[]).await?;
            other.call(Request::Remove { fid: other.fid.fid }).await.map(drop)
        })
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        Box::pin(async move {
            let stat = self.stat_of(change)?;
            self.call(Request::Wstat { fid: self.fid.fid, stat }).await.map(drop)
        })
    }
}

impl RemoteNode {
    /// A change as 9P has it, where the largest numbers and empty texts change nothing.
    fn stat_of<'c>(&self, change: &'c Change) -> Result<Stat<'c>, FsError> {
        let Change { name, length, mode, mtime, gid } = change;
        let (name, gid) = (name.as_deref(), gid.as_deref());
        let untouched = Stat::DONT_TOUCH;
        if *length == Some(untouched.length) || *mtime == Some(untouched.mtime) {
            return Err(FsError::new(Kind::TooLarge, &self.name));
        }
        if name == Some("") || gid == Some("") || *mode == Some(untouched.mode) {
            return Err(FsError::new(Kind::BadName, &self.name));
        }
        let directory = u32::from(self.qid.kind) << 24 & kind::DIRECTORY;
        Ok(Stat {
            name: name.unwrap_or(untouched.name),
            length: length.unwrap_or(untouched.length),
            mode: mode.map_or(untouched.mode, |mode| mode | directory),
            mtime: mtime.unwrap_or(untouched.mtime),
            gid: gid.unwrap_or(untouched.gid),
            ..untouched
        })
    }
}

/// A file or directory of a server elsewhere, open.
#[derive(Debug)]
pub struct RemoteFile {
    fid: Held,
    name: String,
    qid: Qid,
    /// Most bytes of one message, whole or not at all.
    piece_bytes: usize,
    /// Whether pieces may be under way together: what is no stream tells its length.
    is_plain: AtomicBool,
    entries: Mutex<Entries>,
}

/// What was read of a directory.
#[derive(Debug, Default)]
struct Entries {
    offset: u64,
    /// Number of the first of `read`.
    from: u64,
    read: VecDeque<Info>,
}

impl RemoteFile {
    fn new(fid: Held, name: String, qid: Qid, iounit: u32) -> Self {
        let most = fid.connection.io_bytes_max();
        let piece_bytes = if iounit == 0 { most } else { most.min(iounit as usize) };
        let (is_plain, entries) = (AtomicBool::new(false), Mutex::default());
        Self { fid, name, qid, piece_bytes, is_plain, entries }
    }

    fn is_directory(&self) -> bool {
        u32::from(self.qid.kind) << 24 & kind::DIRECTORY != 0
    }

    fn connection(&self) -> &Connection {
        &self.fid.connection
    }

    /// Most bytes that the server takes or gives at once.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Reads up to `into.len()` bytes at `offset`: 0 at the end of the file.
    ///
    /// # Errors
    /// The server refuses it, or the connection ended.
    pub async fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        if self.is_directory() {
            return Err(FsError::new(Kind::IsDirectory, &self.name));
        }
        let len = self.read_piece(offset, into).await?;
        let asked = self.piece_bytes.min(into.len());
        let Some(rest) = into.get_mut(len..).filter(|rest| len == asked && !rest.is_empty()) else {
            return Ok(len);
        };
        if !self.is_plain(offset.saturating_add(len as u64)).await? {
            return Ok(len);
        }
        let start = offset.saturating_add(len as u64);
        let mut pieces = rest.chunks_mut(self.piece_bytes);
        let (mut under_way, mut at, mut read) = (FuturesOrdered::new(), start, len);
        loop {
            while under_way.len() < PIECES_MAX
                && let Some(piece) = pieces.next()
            {
                let from = at;
                at = at.saturating_add(piece.len() as u64);
                under_way.push_back(async move {
                    let len = self.read_piece(from, piece).await;
                    len.map(|len| (len, len == piece.len()))
                });
            }
            match under_way.next().await {
                Some(Ok((len, whole))) => {
                    read += len;
                    if !whole {
                        return Ok(read);
                    }
                }
                // What was read before is told; who reads on meets the error.
                Some(Err(_)) | None => return Ok(read),
            }
        }
    }

    /// Reads into the first piece of `into`.
    async fn read_piece(&self, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        // Servers refuse what ends beyond all offsets; nothing is there to be read.
        let most = usize::try_from(u64::MAX - offset).unwrap_or(usize::MAX);
        let count = into.len().min(self.piece_bytes).min(most) as u32;
        let request = Request::Read { fid: self.fid.fid, offset, count };
        let frame = self.connection().call(&self.name, request).await?;
        let Ok((_, Reply::Read { data })) = Reply::decode(&frame) else {
            return Err(unexpected(&self.name));
        };
        // No more comes than was asked for: the session checks it.
        let place = into.get_mut(..data.len()).ok_or_else(|| unexpected(&self.name))?;
        place.copy_from_slice(data);
        Ok(data.len())
    }

    /// Writes `data` at `offset`, of an append-only file at its end; says how many bytes were
    /// written: less than all only of a pipe or a full disk.
    ///
    /// # Errors
    /// The server refuses the first of it, or the connection ended.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let mut written = self.write_piece(offset, data).await?;
        while written % self.piece_bytes == 0 && written > 0 && written < data.len() {
            let at = offset.saturating_add(written as u64);
            let wave = match self.is_plain(at).await {
                Ok(true) => PIECES_MAX,
                Ok(false) => 1,
                Err(_) => break,
            };
            let from = written;
            let wave = from..data.len().min(from + wave * self.piece_bytes);
            written += self.write_wave(offset, data, wave.clone()).await;
            if written < wave.end {
                break;
            }
        }
        Ok(written)
    }

    /// Writes the pieces of a part of `data` together; says how much of it
    /// was written without a gap.
    async fn write_wave(&self, offset: u64, data: &[u8], part: Range<usize>) -> usize {
        let mut under_way = FuturesOrdered::new();
        for start in part.clone().step_by(self.piece_bytes) {
            let piece = data.get(start..part.end).unwrap_or_default();
            let at = offset.saturating_add(start as u64);
            under_way.push_back(async move {
                let len = self.write_piece(at, piece).await;
                len.map(|len| (len, len == piece.len().min(self.piece_bytes)))
            });
        }
        let mut written = 0;
        while let Some(Ok((len, whole))) = under_way.next().await {
            written += len;
            if !whole {
                break;
            }
        }
        written
    }

    /// Writes the first piece of `data`.
    async fn write_piece(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let data = data.get(..self.piece_bytes).unwrap_or(data);
        let request = Request::Write { fid: self.fid.fid, offset, data };
        let frame = self.connection().call(&self.name, request).await?;
        match Reply::decode(&frame) {
            Ok((_, Reply::Write { count })) => Ok(count as usize),
            _ => Err(unexpected(&self.name)),
        }
    }

    /// Whether the file has a length that reaches `end`, as streams do not: then the order
    /// in which its pieces are read and written is of no matter.
    async fn is_plain(&self, end: u64) -> Result<bool, FsError> {
        let special = (kind::DIRECTORY | kind::APPEND) >> 24;
        if u32::from(self.qid.kind) & special != 0 {
            return Ok(false);
        }
        if !self.is_plain.load(Ordering::Relaxed) {
            let length = stat(&self.fid, &self.name).await?.length;
            self.is_plain.store(length >= end, Ordering::Relaxed);
        }
        Ok(self.is_plain.load(Ordering::Relaxed))
    }

    /// Reads on in the directory, none of which is left; whether there was more. Where it
    /// fails or is dropped the server may have gone on: then it begins anew.
    async fn read_entries(&self, entries: &mut Entries) -> Result<bool, FsError> {
        let Entries { offset, from, .. } = std::mem::take(entries);
        let count = self.piece_bytes as u32;
        let request = Request::Read { fid: self.fid.fid, offset, count };
        let frame = self.connection().call(&self.name, request).await?;
        let Ok((_, Reply::Read { data })) = Reply::decode(&frame) else {
            return Err(unexpected(&self.name));
        };
        let (mut rest, mut read) = (data, VecDeque::new());
        while !rest.is_empty() {
            let stat = Stat::decode(&mut rest).map_err(|error| {
                let what = format!("the server sent what is no directory entry: {error}");
                FsError::because(Kind::Io, &self.name, what)
            })?;
            read.push_back(info(&stat));
        }
        *entries = Entries { offset: offset.saturating_add(data.len() as u64), from, read };
        Ok(!data.is_empty())
    }

    /// Up to `max` entries of a directory from the `from`-th on; none at the end.
    ///
    /// # Errors
    /// The server refuses it, or the connection ended.
    pub async fn entries_from(&self, from: u64, max: usize) -> Result<Vec<Info>, FsError> {
        if !self.is_directory() {
            return Err(FsError::new(Kind::NotDirectory, &self.name));
        }
        let mut entries = self.entries.lock().await;
        if from < entries.from {
            *entries = Entries::default();
        }
        let mut some = Vec::new();
        while some.len() < max {
            match entries.read.pop_front() {
                Some(info) => {
                    entries.from += 1;
                    if entries.from > from {
                        some.push(info);
                    }
                }
                // What is there is given before more is waited for.
                None if !some.is_empty() => break,
                None if self.read_entries(&mut entries).await? => {}
                None => break,
            }
        }
        Ok(some)
    }
}

impl OpenFile for RemoteFile {
    /// As of the open: what it is now, only a stat tells.
    fn qid(&self) -> Qid {
        self.qid
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        Box::pin(self.read_at(offset, into))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        Box::pin(self.write_at(offset, data))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        Box::pin(self.entries_from(from, max))
    }
}

async fn stat(fid: &Held, name: &str) -> Result<Info, FsError> {
    let frame = fid.connection.call(name, Request::Stat { fid: fid.fid }).await?;
    match Reply::decode(&frame) {
        Ok((_, Reply::Stat { stat })) => Ok(info(&stat)),
        _ => Err(unexpected(name)),
    }
}

fn info(stat: &Stat<'_>) -> Info {
    Info {
        qid: stat.qid,
        mode: stat.mode,
        atime: stat.atime,
        mtime: stat.mtime,
        length: stat.length,
        name: stat.name.to_owned(),
        uid: stat.uid.to_owned(),
        gid: stat.gid.to_owned(),
        muid: stat.muid.to_owned(),
    }
}

/// A way of opening the file `name` as 9P has it.
fn mode_byte(how: OpenMode, name: &str) -> Result<u8, FsError> {
    let access = match (how.execute, how.read, how.write) {
        (true, _, false) => mode::EXECUTE,
        (false, true, true) => mode::READ_WRITE,
        (false, false, true) => mode::WRITE,
        (false, true, false) => mode::READ,
        (true, _, true) | (false, false, false) => {
            return Err(FsError::new(Kind::BadMode, name));
        }
    };
    Ok(access | if how.truncate { mode::TRUNCATE } else { 0 })
}
