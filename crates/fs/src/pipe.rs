//! `#p`: named pipes between accelerators, and to other processes (CellFS, Table 1).
//!
//! A pipe is made by create and found by its name. What is written comes out in
//! the order of the writes, to whoever reads first; a pipe holds a bounded number
//! of bytes, so a writer waits for its reader, and a reader for its writer. When all who wrote
//! have closed, reads end; when one has gone without closing it, they fail instead; when nobody is left to read, writes fail. Before the first
//! writer and the first reader come, the others wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use ninep::{Qid, kind};

use crate::error::{FsError, Kind};
use crate::name::{checked_name, only_tree};
use crate::server::{Answer, Change, FileServer, Info, Node, OpenFile, OpenMode, now};
use crate::sync::lock;

/// Most pipes at once.
const PIPES_MAX: usize = 4096;

/// The pipes of a job; clones are the same server.
#[derive(Clone)]
pub struct PipeServer(Arc<Pipes>);

struct Pipes {
    room_bytes: usize,
    pipes: Mutex<BTreeMap<String, Arc<Pipe>>>,
    paths: AtomicU64,
    version: AtomicU64,
}

struct Pipe {
    name: Mutex<String>,
    path: u64,
    mode: u32,
    room_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    version: u32,
    readers: Ends,
    writers: Ends,
    waiting: BTreeMap<u64, Waker>,
    /// The number of the next one that waits.
    next: u64,
}

/// Those who have a pipe open at one end.
#[derive(Default)]
struct Ends {
    open: usize,
    /// Whether anybody ever had.
    came: bool,
    /// Whether somebody has gone without closing it.
    lost: bool,
}

impl Ends {
    fn add(&mut self, comes: bool) {
        self.open += usize::from(comes);
        self.came |= comes;
    }

    fn have_gone(&self) -> bool {
        self.came && self.open == 0
    }
}

impl PipeServer {
    /// Pipes that hold `room_bytes` each (at least one).
    #[must_use]
    pub fn new(room_bytes: usize) -> Self {
        Self(Arc::new(Pipes {
            room_bytes: room_bytes.max(1),
            pipes: Mutex::default(),
            paths: AtomicU64::new(1),
            version: AtomicU64::new(0),
        }))
    }

    /// A pipe to be watched, whatever becomes of its name.
    ///
    /// # Errors
    /// There is no such pipe.
    pub fn watch(&self, name: &str) -> Result<PipeWatch, FsError> {
        let found = self.pipes().get(name).cloned();
        found.map(PipeWatch).ok_or_else(|| FsError::new(Kind::NotFound, name))
    }

    /// Breaks all pipes, as [`PipeWatch::break_off`] does one.
    pub fn break_off(&self) {
        let pipes: Vec<_> = self.pipes().values().cloned().collect();
        pipes.iter().for_each(Pipe::break_off);
    }

    fn pipes(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pipe>>> {
        lock(&self.0.pipes)
    }

    fn make(&self, name: &str, permissions: u32) -> Result<Arc<Pipe>, FsError> {
        checked_name(name)?;
        if permissions & kind::DIRECTORY != 0 {
            let what = "pipes have no directories; make the pipe in #p itself";
            return Err(FsError::because(Kind::Unsupported, name, what));
        }
        let mut pipes = self.pipes();
        if pipes.contains_key(name) {
            return Err(FsError::new(Kind::Exists, name));
        }
        if pipes.len() >= PIPES_MAX {
            let what = format!("there are {PIPES_MAX} pipes; remove those that are done");
            return Err(FsError::because(Kind::NoSpace, name, what));
        }
        let pipe = Arc::new(Pipe {
            name: Mutex::new(name.to_owned()),
            path: self.0.paths.fetch_add(1, Ordering::Relaxed),
            mode: permissions & 0o666,
            room_bytes: self.0.room_bytes,
            state: Mutex::default(),
        });
        pipes.insert(name.to_owned(), pipe.clone());
        self.0.version.fetch_add(1, Ordering::Relaxed);
        Ok(pipe)
    }

    fn node(&self, pipe: Arc<Pipe>) -> Arc<PipeNode> {
        Arc::new(PipeNode { server: self.clone(), pipe })
    }
}

impl FileServer for PipeServer {
    fn attach<'a>(&'a self, _user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(only_tree(tree).map(|()| Arc::new(self.clone()) as Arc<dyn Node>))
    }
}

impl Node for PipeServer {
    fn stat(&self) -> Answer<'_, Info> {
        let Qid { path, version, .. } = OpenFile::qid(self);
        now(Ok(Info::made_up("/", (path, version), kind::DIRECTORY | 0o755, 0)))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        let found = self.pipes().get(name).cloned();
        now(match found {
            Some(pipe) => Ok(self.node(pipe)),
            None => Err(FsError::new(Kind::NotFound, name)),
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        now(mode.only_reads("#p").map(|()| Arc::new(self.clone()) as Arc<dyn OpenFile>))
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        permissions: u32,
        mode: OpenMode,
    ) -> Answer<'a, (Arc<dyn Node>, Arc<dyn OpenFile>)> {
        now(self.make(name, permissions).map(|pipe| {
            let end: Arc<dyn OpenFile> = Arc::new(End::open(pipe.clone(), mode));
            (self.node(pipe) as Arc<dyn Node>, end)
        }))
    }
}

impl OpenFile for PipeServer {
    fn qid(&self) -> Qid {
        let version = self.0.version.load(Ordering::Relaxed) as u32;
        Qid { kind: (kind::DIRECTORY >> 24) as u8, version, path: 0 }
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, "#p")))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let pipes = self.pipes();
        now(Ok(pipes.values().skip(from).take(max).map(|pipe| pipe.info()).collect()))
    }
}

impl Pipe {
    fn qid(&self) -> Qid {
        Qid { kind: 0, version: self.lock().version, path: self.path }
    }

    fn info(&self) -> Info {
        let version = self.lock().version;
        // No length: a reader that believed one would read at several offsets at once.
        Info::made_up(&lock(&self.name), (self.path, version), self.mode, 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A pipe that is watched.
pub struct PipeWatch(Arc<Pipe>);

impl PipeWatch {
    /// Waits until what was written is read and its readers have closed it.
    ///
    /// # Errors
    /// They have gone before they had read all.
    pub async fn finished(&self) -> Result<(), FsError> {
        let pipe = &self.0;
        pipe.when(|state| state.readers.have_gone().then_some(())).await;
        let state = pipe.lock();
        match (state.bytes.len(), state.readers.lost) {
            (0, false) => Ok(()),
            (left, _) => {
                let what = format!("its readers have gone, {left} bytes before the end");
                Err(FsError::because(Kind::Closed, lock(&pipe.name).clone(), what))
            }
        }
    }

    /// What is written will not be all: reads fail once they have what there is, writes at once.
    pub fn break_off(&self) {
        self.0.break_off();
    }
}

impl Pipe {
    fn break_off(self: &Arc<Self>) {
        let mut state = self.lock();
        state.writers.lost = true;
        changed(state);
    }

    /// Waits until `look` finds what it looks for, which may change the pipe.
    fn when<'p, T>(
        &'p self,
        mut look: impl FnMut(&mut State) -> Option<T> + 'p,
    ) -> impl Future<Output = T> + 'p {
        let mut waits = Waits { pipe: self, number: None };
        poll_fn(move |cx| {
            let mut state = self.lock();
            if let Some(found) = look(&mut state) {
                changed(state);
                return Poll::Ready(found);
            }
            waits.enter(&mut state, cx.waker());
            Poll::Pending
        })
    }
}

/// Somebody who waits; called off, nobody wakes them any more.
struct Waits<'p> {
    pipe: &'p Pipe,
    number: Option<u64>,
}

impl Waits<'_> {
    fn enter(&mut self, state: &mut State, waker: &Waker) {
        let number = *self.number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.waiting.insert(number, waker.clone());
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.pipe.lock().waiting.remove(&number);
        }
    }
}

/// The state was changed: everybody who waits looks again.
fn changed(mut state: MutexGuard<'_, State>) {
    state.version = state.version.wrapping_add(1);
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_values().for_each(Waker::wake);
}

/// A pipe that was walked to.
struct PipeNode {
    server: PipeServer,
    pipe: Arc<Pipe>,
}

impl PipeNode {
    /// Whether the name still is this pipe's.
    fn is_there(&self, pipes: &BTreeMap<String, Arc<Pipe>>, name: &str) -> Result<(), FsError> {
        match pipes.get(name) {
            Some(pipe) if Arc::ptr_eq(pipe, &self.pipe) => Ok(()),
            _ => Err(FsError::new(Kind::NotFound, name)),
        }
    }

    fn rename(&self, to: &str) -> Result<(), FsError> {
        checked_name(to)?;
        let mut pipes = self.server.pipes();
        let mut name = lock(&self.pipe.name);
        self.is_there(&pipes, &name)?;
        if *name == to {
            return Ok(());
        }
        if pipes.contains_key(to) {
            return Err(FsError::new(Kind::Exists, to));
        }
        pipes.remove(&*name);
        pipes.insert(to.to_owned(), self.pipe.clone());
        to.clone_into(&mut name);
        self.server.0.version.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Node for PipeNode {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(self.pipe.info()))
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let granted = self.pipe.mode;
        let may = (!mode.read || granted & 0o444 != 0)
            && (!(mode.write || mode.truncate) || granted & 0o222 != 0)
            && !mode.execute;
        now(if may {
            Ok(Arc::new(End::open(self.pipe.clone(), mode)))
        } else {
            Err(FsError::new(Kind::Permission, lock(&self.pipe.name).clone()))
        })
    }

    fn remove(&self) -> Answer<'_, ()> {
        let mut pipes = self.server.pipes();
        let name = lock(&self.pipe.name);
        let removed = self.is_there(&pipes, &name).map(|()| {
            pipes.remove(&*name);
            self.server.0.version.fetch_add(1, Ordering::Relaxed);
        });
        now(removed)
    }

    fn wstat<'a>(&'a self, change: &'a Change) -> Answer<'a, ()> {
        let Change { name, length, mode, mtime, gid } = change;
        // A length of 0 is what `>` of a shell asks for.
        let other = length.is_some_and(|length| length != 0)
            || mode.is_some()
            || mtime.is_some()
            || gid.is_some();
        now(match name {
            _ if other => {
                let what = "of a pipe only the name can be changed";
                Err(FsError::because(Kind::Unsupported, lock(&self.pipe.name).clone(), what))
            }
            Some(name) => self.rename(name),
            None => Ok(()),
        })
    }
}

/// A pipe that is open.
struct End {
    pipe: Arc<Pipe>,
    mode: OpenMode,
}

impl End {
    fn open(pipe: Arc<Pipe>, mode: OpenMode) -> Self {
        let mut state = pipe.lock();
        state.readers.add(mode.read);
        state.writers.add(mode.write);
        changed(state);
        Self { pipe, mode }
    }

    fn broken(&self) -> FsError {
        let what = "those at the other end have gone before the end";
        FsError::because(Kind::Closed, lock(&self.pipe.name).clone(), what)
    }

    fn bad_mode(&self) -> FsError {
        FsError::new(Kind::BadMode, lock(&self.pipe.name).clone())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.readers.open -= usize::from(self.mode.read);
        state.writers.open -= usize::from(self.mode.write);
        changed(state);
    }
}

impl OpenFile for End {
    fn qid(&self) -> Qid {
        self.pipe.qid()
    }

    /// Waits until there is something to read, or nobody to write any more.
    fn read<'a>(&'a self, _offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        if !self.mode.read {
            return now(Err(self.bad_mode()));
        }
        let read = self.pipe.when(move |state| {
            if state.bytes.is_empty() && !into.is_empty() {
                if state.writers.lost {
                    return Some(None);
                }
                if !state.writers.have_gone() {
                    return None;
                }
            }
            let len = into.len().min(state.bytes.len());
            for (to, byte) in into.iter_mut().zip(state.bytes.drain(..len)) {
                *to = byte;
            }
            Some(Some(len))
        });
        Box::pin(async move { read.await.ok_or_else(|| self.broken()) })
    }

    /// Waits until there is room for a part of it.
    fn write<'a>(&'a self, _offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        if !self.mode.write {
            return now(Err(self.bad_mode()));
        }
        let write = self.pipe.when(move |state| {
            if state.readers.have_gone() || state.writers.lost {
                return Some(None);
            }
            let room = self.pipe.room_bytes - state.bytes.len();
            if room == 0 && !data.is_empty() {
                return None;
            }
            let part = data.get(..room.min(data.len())).unwrap_or(data);
            state.bytes.extend(part);
            Some(Some(part.len()))
        });
        Box::pin(async move { write.await.ok_or_else(|| self.broken()) })
    }

    fn lost(&self) {
        let mut state = self.pipe.lock();
        state.readers.lost |= self.mode.read;
        state.writers.lost |= self.mode.write;
        changed(state);
    }
}

#[cfg(test)]
mod tests;
