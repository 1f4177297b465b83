//! Files in place: the page cache's own pages, mapped some blocks at a time or for
//! as long as a file is open.
//!
//! A get copies, which is as long as computing where the file is in memory and
//! a kernel reads each byte once. A [`FileWindow`] shows the pages themselves.
//! A [`MappedFile`] is read as memory is, without a call of the system.
//! A file that gets shorter meanwhile takes its pages with it: what is read of
//! them then are zeros, and the window tells.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::engine::host::HostFault;
use crate::region::Region;

/// What the handler knows of a window. Never freed, used again.
struct Slot {
    /// The mapping that is looked at; of no length between two.
    start: AtomicUsize,
    len_bytes: AtomicUsize,
    /// A page of it was gone.
    broken: AtomicBool,
    claimed: AtomicBool,
    next: *const Slot,
}

impl Slot {
    /// What is mapped. While another thread changes it, nothing: its pages are
    /// not what this thread asks about.
    fn range(&self) -> Range<usize> {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        let is_same = self.len_bytes.load(Ordering::Relaxed) == len_bytes;
        start..if is_same { start + len_bytes } else { start }
    }

    /// Has the handler look after a mapping that was just made.
    fn watch(&self, start: *const u8, len_bytes: usize) {
        self.start.store(start as usize, Ordering::Relaxed);
        self.len_bytes.store(len_bytes, Ordering::Release);
    }

    /// Whether `bytes`, seen at `offset` of the mapped `file`, are its own: it was not cut before
    /// their end.
    fn counts(&self, file: impl AsFd, offset: u64, bytes: &[u8]) -> bool {
        // Where a file ends within a page, zeros follow and nothing is raised.
        let may_be_cut = bytes.last() == Some(&0);
        let end = offset.saturating_add(bytes.len() as u64);
        let is_whole = || rustix::fs::fstat(file).is_ok_and(|now| now.st_size as u64 >= end);
        !self.broken.load(Ordering::Acquire) && (!may_be_cut || is_whole())
    }

    /// Ends that, before the mapping goes.
    fn forget(&self) {
        self.len_bytes.store(0, Ordering::Release);
        self.broken.store(false, Ordering::Relaxed);
    }
}

// SAFETY: `next` is written before a slot is shared, and slots are never freed.
unsafe impl Sync for Slot {}

static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// What was done about SIGBUS before; nothing if the handler could not be set.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next = SLOTS.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null or a slot, none of which is ever freed.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

/// A slot of one's own. The first one of a process has SIGBUS handled.
fn claim() -> io::Result<&'static Slot> {
    if BEFORE.get_or_init(handle_sigbus).is_none() {
        return Err(io::Error::other("SIGBUS cannot be handled"));
    }
    let is_free = |slot: &&Slot| !slot.claimed.swap(true, Ordering::AcqRel);
    if let Some(slot) = slots().find(is_free) {
        return Ok(slot);
    }
    let slot = Box::leak(Box::new(Slot {
        start: AtomicUsize::new(0),
        len_bytes: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
        claimed: AtomicBool::new(true),
        next: SLOTS.load(Ordering::Acquire),
    }));
    loop {
        let next = slot.next.cast_mut();
        match SLOTS.compare_exchange(next, slot, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(slot),
            Err(newer) => slot.next = newer,
        }
    }
}

/// Shows parts of a file, one at a time.
pub struct FileWindow<'f> {
    file: &'f File,
    together_bytes: usize,
    slot: &'static Slot,
    shown: Option<Shown>,
}

impl<'f> FileWindow<'f> {
    /// On `file`. To map a part takes some 10 us, so those that follow each other closely
    /// are mapped together, up to so many bytes; of a longer one all is. The first window of
    /// a process has SIGBUS handled: for windows as [`FileWindow::look`] says, for other
    /// faults as before.
    ///
    /// # Errors
    /// The kernel does not have it handled.
    pub fn new(file: &'f File, together_bytes: usize) -> io::Result<Self> {
        Ok(Self { file, together_bytes, slot: claim()?, shown: None })
    }

    /// Lets `see` look at `len_bytes` bytes from `offset` on. What it changes there the
    /// file does not get, but a later look may. Another process that writes to the file
    /// changes them while they are looked at.
    ///
    /// # Errors
    /// Bytes that cannot be read, or are not there any more once `see` is done:
    /// it may have seen zeros in their place.
    pub fn look<R>(
        &mut self,
        offset: u64,
        len_bytes: usize,
        see: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, HostFault> {
        if len_bytes == 0 {
            return Ok(see(&mut []));
        }
        let mut shown = match self.shown.take() {
            Some(shown) if shown.has(offset, len_bytes) => shown,
            before => self.show(before, offset, len_bytes)?,
        };
        // SAFETY: the mapping is readable and writable, this window's own, and has these
        // bytes; it stays until `shown` is dropped: where the file's pages go, the handler
        // puts others. Who writes to the file meanwhile changes bytes, which are
        // valid whatever they are.
        let bytes = unsafe {
            let from = shown.start.add((offset - shown.offset) as usize);
            slice::from_raw_parts_mut(from, len_bytes)
        };
        let seen = see(bytes);
        if !self.slot.counts(self.file, offset, bytes) {
            return Err(lost(self.file, offset, len_bytes));
        }
        shown.looked = offset;
        self.shown = Some(shown);
        Ok(seen)
    }

    /// Maps these bytes, and twice as many as before where some of them are likely next.
    fn show(
        &self,
        before: Option<Shown>,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Shown, HostFault> {
        let lead_bytes = offset as usize % rustix::param::page_size();
        let (from, needed_bytes) = (offset - lead_bytes as u64, lead_bytes + len_bytes);
        let wished_bytes = match &before {
            Some(before) if before.is_followed_by(offset, self.together_bytes) => {
                self.together_bytes.min(2 * before.mapped_bytes)
            }
            _ => 0,
        };
        // The slot is for one mapping.
        drop(before);
        let mut mapped_bytes = needed_bytes;
        if wished_bytes > needed_bytes {
            let there_bytes = self.file.metadata().map_or(0, |now| now.len().saturating_sub(from));
            mapped_bytes = needed_bytes.max(there_bytes.min(wished_bytes as u64) as usize);
        }
        let shown = Shown::new(self.slot, self.file, from, mapped_bytes);
        let shown = match shown {
            // It may be for what follows them.
            Err(_) if mapped_bytes > needed_bytes => {
                Shown::new(self.slot, self.file, from, needed_bytes)
            }
            shown => shown,
        };
        shown.map_err(|error| match error {
            Errno::FAULT => lost(self.file, offset, len_bytes),
            error => HostFault { offset, error: error.into() },
        })
    }
}

/// Why pages cannot be brought or are not there any more: the file ends before
/// them, or else its device failed.
fn lost(file: &File, offset: u64, len_bytes: usize) -> HostFault {
    match file.metadata() {
        Ok(now) if now.len() < offset.saturating_add(len_bytes as u64) => {
            let offset = now.len().max(offset);
            HostFault { offset, error: io::ErrorKind::UnexpectedEof.into() }
        }
        Ok(_) => HostFault { offset, error: Errno::IO.into() },
        Err(error) => HostFault { offset, error },
    }
}

impl Drop for FileWindow<'_> {
    fn drop(&mut self) {
        self.shown = None;
        self.slot.claimed.store(false, Ordering::Release);
    }
}

/// A mapping that is looked at.
struct Shown {
    slot: &'static Slot,
    start: *mut u8,
    mapped_bytes: usize,
    /// Where in the file it starts, and where it was looked at last.
    offset: u64,
    looked: u64,
}

impl Shown {
    /// Pages of `file` from `offset` on, a page's start, for a slot that has no others.
    fn new(
        slot: &'static Slot,
        file: &File,
        offset: u64,
        mapped_bytes: usize,
    ) -> Result<Self, Errno> {
        // SAFETY: a new private mapping at an address of the kernel's choice
        // touches no existing memory.
        let start = unsafe {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            rustix::mm::mmap(ptr::null_mut(), mapped_bytes, prot, flags, file.as_fd(), offset)?
        };
        let shown = Self { slot, start: start.cast(), mapped_bytes, offset, looked: offset };
        slot.watch(shown.start, mapped_bytes);
        // SAFETY: the mapping made above; its pages are read, not changed.
        let brought =
            unsafe { rustix::mm::madvise(start, mapped_bytes, Advice::LinuxPopulateRead) };
        match brought {
            // An older kernel brings each page when it is looked at.
            Ok(()) | Err(Errno::INVAL) => Ok(shown),
            Err(error) => Err(error),
        }
    }

    fn end(&self) -> u64 {
        self.offset + self.mapped_bytes as u64
    }

    fn has(&self, offset: u64, len_bytes: usize) -> bool {
        self.offset <= offset && offset.saturating_add(len_bytes as u64) <= self.end()
    }

    /// Whether, where looks go on in such steps, two are in so many bytes: others may look at
    /// what is between.
    fn is_followed_by(&self, offset: u64, together_bytes: usize) -> bool {
        offset > self.looked && offset - self.looked <= together_bytes as u64 / 2
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.slot.forget();
        // SAFETY: mapped by `new`; the references that `look` made to it have ended.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a window cannot fail");
    }
}

/// A file mapped for as long as it is open.
pub struct MappedFile {
    slot: &'static Slot,
    start: *mut u8,
    len_bytes: usize,
    /// The same.
    region: Region<'static>,
    /// Reads begun in each piece of `PIECE_BYTES`, up to two.
    touched: Box<[AtomicU8]>,
}

// SAFETY: the mapping is only read, by copies that may race with whoever writes
// to the file, and stays until the value is dropped; the rest is atomic.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

/// What is brought into memory at once.
const PIECE_BYTES: usize = 4 << 20;

impl MappedFile {
    /// The first `len_bytes` bytes of `file`, which is open for reading. SIGBUS
    /// is handled as for a [`FileWindow`].
    ///
    /// # Errors
    /// The file cannot be mapped, no bytes of it not either, or SIGBUS not handled.
    pub fn new(file: impl AsFd, len_bytes: u64) -> io::Result<Self> {
        let len_bytes = usize::try_from(len_bytes).map_err(|_| Errno::OVERFLOW)?;
        let slot = claim()?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // existing memory.
        let start = unsafe {
            let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
            rustix::mm::mmap(ptr::null_mut(), len_bytes, prot, flags, file.as_fd(), 0)
        };
        let start: *mut u8 = match start {
            Ok(start) => start.cast(),
            Err(error) => {
                slot.claimed.store(false, Ordering::Release);
                return Err(error.into());
            }
        };
        slot.watch(start, len_bytes);
        // SAFETY: the mapping stays as long as the value, which lends the region
        // no longer than it is borrowed; where pages go, the handler puts others.
        let region = unsafe { Region::watched(start, len_bytes) };
        let pieces = len_bytes.div_ceil(PIECE_BYTES);
        let touched = std::iter::repeat_with(|| AtomicU8::new(0)).take(pieces).collect();
        Ok(Self { slot, start, len_bytes, region, touched })
    }

    /// The bytes, to be copied by others than [`MappedFile::read`]: they say before
    /// where they [`begin`](Self::begin), and ask afterwards whether the copy
    /// [counts](Self::counts).
    #[must_use]
    pub fn region(&self) -> &Region<'_> {
        &self.region
    }

    /// Whether bytes from `offset` on can be copied; those about it are brought.
    #[inline]
    #[must_use]
    pub fn begin(&self, offset: u64) -> bool {
        let is_there = offset < self.len_bytes as u64 && !self.is_broken();
        if is_there {
            self.touch(offset as usize / PIECE_BYTES);
        }
        is_there
    }

    /// Whether `bytes`, copied from `offset`, are those of `file`, which was
    /// mapped: it was not cut before their end.
    #[must_use]
    pub fn counts(&self, file: impl AsFd, offset: u64, bytes: &[u8]) -> bool {
        self.slot.counts(file, offset, bytes)
    }

    /// Fills `into` from `offset` on; whether it could. It cannot beyond what is
    /// mapped, nor once `file`, which was mapped, was found shorter than
    /// that: then the file itself is to be read, and `into` holds anything.
    #[must_use]
    pub fn read(&self, file: impl AsFd, offset: u64, into: &mut [u8]) -> bool {
        let end = offset.saturating_add(into.len() as u64);
        if end > self.len_bytes as u64 || self.is_broken() {
            return false;
        }
        let Some(last) = into.len().checked_sub(1) else { return true };
        let first = offset as usize;
        (first / PIECE_BYTES..=(first + last) / PIECE_BYTES).for_each(|piece| self.touch(piece));
        self.region.drain(offset, into).is_ok() && self.counts(file, offset, into)
    }

    #[inline]
    fn is_broken(&self) -> bool {
        self.slot.broken.load(Ordering::Acquire)
    }

    /// Has a piece brought as a whole, by the second read in it: one read is no
    /// reason to read all of it.
    #[inline]
    fn touch(&self, piece: usize) {
        if let Some(touched) = self.touched.get(piece)
            && touched.load(Ordering::Relaxed) < 2
            && touched.fetch_add(1, Ordering::Relaxed) == 1
        {
            self.bring(piece);
        }
    }

    #[cold]
    fn bring(&self, piece: usize) {
        let from = piece * PIECE_BYTES;
        let len = PIECE_BYTES.min(self.len_bytes - from);
        for advice in [Advice::WillNeed, Advice::LinuxPopulateRead] {
            // SAFETY: a part of the mapping; its pages are read, not
            // changed. What cannot be brought is met by the copy.
            let _ = unsafe { rustix::mm::madvise(self.start.add(from).cast(), len, advice) };
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.slot.forget();
        // SAFETY: mapped by `new`, and nobody reads it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.len_bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a file cannot fail");
        self.slot.claimed.store(false, Ordering::Release);
    }
}

fn handle_sigbus() -> Option<libc::sigaction> {
    // SAFETY: plain data, for which zeros are a value: no flags, an empty mask.
    let (mut new, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = on_sigbus as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler only does what a signal handler may: atomics and system calls.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const new, &raw mut before) };
    (set == 0).then_some(before)
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the signal's description.
    let at = unsafe { (*info).si_addr() } as usize;
    let found = slots().find_map(|slot| {
        let range = slot.range();
        range.contains(&at).then_some((slot, range.end))
    });
    match found {
        Some((slot, end)) => {
            // First: who sees the zeros sees this.
            slot.broken.store(true, Ordering::Release);
            if !replace(at, end) {
                pass_on(signal, info, context);
            }
        }
        None => pass_on(signal, info, context),
    }
}

/// Puts zeros in the place of a window's page at `at` and those after it.
fn replace(at: usize, end: usize) -> bool {
    let page = at - at % rustix::param::page_size();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: pages of the window's own mapping, which has no others to lose.
    let put = unsafe { rustix::mm::mmap_anonymous(page as *mut _, end - page, prot, flags) };
    put.is_ok()
}

/// Does what was done before about a signal that is no window's.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().and_then(Option::as_ref);
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let takes_info = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: a handler that was installed for this signal, called as its flags
    // say; or the default action, which the same access will meet again.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::signal(signal, libc::SIG_DFL);
        } else if takes_info {
            type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal);
        }
    }
}

#[cfg(test)]
mod tests;
