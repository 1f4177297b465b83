//! A file that is open.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use ninep::Qid;

use crate::caller::{Caller, Host};
use crate::error::{FsError, Kind};
use crate::handle::{Handle, Handles};
use crate::memory::{FileMemory, Stretch};
use crate::pread::Pread;
use crate::server::{Change, Info, Node, OpenFile, OpenMode};

/// What was opened; those who have it open share it.
pub(crate) struct Opened {
    node: Arc<dyn Node>,
    open: Arc<dyn OpenFile>,
    memory: Option<Arc<dyn FileMemory>>,
    is_for_reads: bool,
    is_for_writes: bool,
    name: String,
    handle: Option<Handle>,
    handles: Arc<Handles>,
}

impl Opened {
    pub(crate) fn new(
        node: Arc<dyn Node>,
        open: Arc<dyn OpenFile>,
        mode: OpenMode,
        name: String,
        handles: &Arc<Handles>,
    ) -> Arc<Self> {
        let memory = open.memory();
        let handles = handles.clone();
        Arc::new_cyclic(|this: &Weak<Self>| {
            let memory_generation = memory.as_ref().map(|memory| memory.generation());
            let handle = memory_generation.and_then(|number| handles.enter(this, number));
            let (is_for_reads, is_for_writes) = (mode.read || mode.execute, mode.write);
            Self { node, open, memory, is_for_reads, is_for_writes, name, handle, handles }
        })
    }

    /// Whether its memory was neither cut nor removed since it had this generation.
    pub(crate) fn is_of(&self, generation: u64) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.generation() == generation)
    }

    #[cold]
    fn failed(&self, error: FsError) -> FsError {
        error.named(&*self.name)
    }

    #[cold]
    fn not_open_for(&self, what: &str) -> FsError {
        FsError::because(Kind::BadMode, &*self.name, format!("was not opened for {what}"))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            self.handles.leave(handle);
        }
    }
}

/// An open file or directory, at a place where its next bytes are read or
/// written. Dropped, it is closed.
pub struct File<C = Host> {
    opened: Arc<Opened>,
    caller: C,
    /// Changed by calls that have the file to themselves only.
    offset: AtomicU64,
    /// Where the last read ended.
    read_until: AtomicU64,
}

impl<C: Caller> File<C> {
    pub(crate) fn new(opened: Arc<Opened>, caller: C) -> Self {
        Self { opened, caller, offset: AtomicU64::new(0), read_until: AtomicU64::new(0) }
    }

    /// Its qid now; the version changes with the contents.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.opened.open.qid()
    }

    /// Its number, if it lies in memory; see [`Files::adopt`](crate::Files::adopt).
    #[must_use]
    pub fn handle(&self) -> Option<Handle> {
        self.opened.handle
    }

    /// Reads up to `into.len()` bytes from where it is, and goes on behind them:
    /// 0 at the file's end. May wait.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    #[inline]
    pub fn read<'f>(
        &'f mut self,
        into: &'f mut [u8],
    ) -> impl Future<Output = Result<usize, FsError>> + use<'f, C> {
        Pread::new(&*self, self.offset(), into, true, Self::ask)
    }

    /// Reads up to `into.len()` bytes at `offset`, and stays where it is.
    ///
    /// # Errors
    /// As [`File::read`].
    #[inline]
    pub fn pread<'f>(
        &'f self,
        offset: u64,
        into: &'f mut [u8],
    ) -> impl Future<Output = Result<usize, FsError>> + use<'f, C> {
        Pread::new(self, offset, into, false, Self::ask)
    }

    /// The file's memory, if it has some and was opened for reads.
    #[inline]
    pub(crate) fn readable_memory(&self) -> Option<&dyn FileMemory> {
        self.opened.memory.as_deref().filter(|_| self.opened.is_for_reads)
    }

    pub(crate) fn caller(&self) -> &C {
        &self.caller
    }

    #[cold]
    pub(crate) fn not_copied(&self, error: &io::Error) -> FsError {
        self.opened.failed(FsError::io("read", error))
    }

    fn offset(&self) -> u64 {
        self.offset.load(Relaxed)
    }

    pub(crate) fn move_to(&self, offset: u64) {
        self.offset.store(offset, Relaxed);
    }

    /// Reads what does not lie in memory in one piece.
    #[cold]
    async fn ask(&self, offset: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let opened = &*self.opened;
        if !opened.is_for_reads {
            return Err(opened.not_open_for("reads"));
        }
        if let Some(memory) = &opened.memory {
            let first = memory.stretch(offset);
            if !matches!(first, Stretch::Elsewhere)
                && let Some(count) = self.pieces(&**memory, first, offset, into).await
            {
                return Ok(count);
            }
        }
        opened.open.read(offset, into).await.map_err(|error| opened.failed(error))
    }

    /// Whether the last read ended where this one begins, whose end is remembered.
    #[inline]
    pub(crate) fn goes_on(&self, offset: u64, len: usize) -> bool {
        let goes_on = self.read_until.load(Relaxed) == offset;
        self.read_until.store(offset.wrapping_add(len as u64), Relaxed);
        goes_on
    }

    /// Copies what lies in memory at `offset`, `first` and what follows; `None`
    /// if that does not count.
    #[cold]
    async fn pieces(
        &self,
        memory: &dyn FileMemory,
        first: Stretch<'_>,
        offset: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let goes_on = self.goes_on(offset, into.len());
        let (mut stretch, mut done, mut since) = (first, 0, None);
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let room = |len: u64| usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            match stretch {
                Stretch::Bytes { region, at, len_bytes, generation } => {
                    let piece = rest.get_mut(..room(len_bytes))?;
                    since = since.or(Some(generation));
                    done += piece.len();
                    self.caller.copy(region, at, piece, goes_on).await.ok()?;
                }
                Stretch::Zeros(len_bytes) => {
                    let piece = rest.get_mut(..room(len_bytes))?;
                    done += piece.len();
                    piece.fill(0);
                }
                Stretch::End | Stretch::Elsewhere => break,
            }
            stretch = memory.stretch(offset.saturating_add(done as u64));
        }
        let copied = into.get(..done)?;
        let counts = since.is_none_or(|generation| memory.counts(generation, offset, copied));
        counts.then_some(done)
    }

    /// Reads until `into` is full.
    ///
    /// # Errors
    /// As [`File::read`], and [`Kind::Closed`] where the file ends before.
    pub async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), FsError> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read(rest).await? {
                0 => {
                    let what = format!("ends at {}, {} bytes too soon", self.offset(), rest.len());
                    return Err(FsError::because(Kind::Closed, &*self.opened.name, what));
                }
                count => done += count,
            }
        }
        Ok(())
    }

    /// Writes `data` where it is, of an append-only file at its end, and goes on
    /// behind it. How many bytes were written: less than all only of a pipe or
    /// a full disk. May wait.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    #[inline]
    pub async fn write(&mut self, data: &[u8]) -> Result<usize, FsError> {
        let offset = self.offset();
        let count = self.pwrite(offset, data).await?;
        self.move_to(offset.saturating_add(count as u64));
        Ok(count)
    }

    /// Writes `data` at `offset`, and stays where it is.
    ///
    /// # Errors
    /// As [`File::write`].
    #[inline]
    pub async fn pwrite(&self, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        let opened = &*self.opened;
        if !opened.is_for_writes {
            return Err(opened.not_open_for("writes"));
        }
        let at_once = opened.memory.as_ref().and_then(|memory| memory.write(offset, data));
        let written = match at_once {
            Some(written) => written,
            None => opened.open.write(offset, data).await,
        };
        written.map_err(|error| opened.failed(error))
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// As [`File::write`], and [`Kind::NoSpace`] where nothing more is taken.
    pub async fn write_all(&mut self, mut data: &[u8]) -> Result<(), FsError> {
        while !data.is_empty() {
            match self.write(data).await? {
                0 => return Err(FsError::new(Kind::NoSpace, &*self.opened.name)),
                count => data = data.get(count..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    /// Goes to a place, and tells it.
    ///
    /// # Errors
    /// A place before the file's beginning; what its server says of its end.
    pub async fn seek(&mut self, to: SeekFrom) -> Result<u64, FsError> {
        let (from, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(by) => (self.offset(), by),
            SeekFrom::End(by) => (self.stat().await?.length, by),
        };
        let outside = || FsError::because(Kind::TooLarge, &*self.opened.name, "no such place");
        let offset = from.checked_add_signed(by).ok_or_else(outside)?;
        self.move_to(offset);
        Ok(offset)
    }

    /// What is known of it.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn stat(&self) -> Result<Info, FsError> {
        self.opened.node.stat().await.map_err(|error| self.opened.failed(error))
    }

    /// Changes what is known of it.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn wstat(&self, change: &Change) -> Result<(), FsError> {
        self.opened.node.wstat(change).await.map_err(|error| self.opened.failed(error))
    }

    /// The next entries of a directory, `max` at most: none at its end.
    ///
    /// # Errors
    /// What its server says, with the directory's name.
    pub async fn readdir(&mut self, max: usize) -> Result<Vec<Info>, FsError> {
        let offset = self.offset();
        let entries = self.opened.open.entries(offset, max).await;
        let entries = entries.map_err(|error| self.opened.failed(error))?;
        self.move_to(offset.saturating_add(entries.len() as u64));
        Ok(entries)
    }

    /// Closes it; what was written is with its server already.
    pub fn close(self) {}
}
