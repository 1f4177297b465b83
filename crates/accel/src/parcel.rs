//! A buffer that leaves its thread: on its way to another local store, or
//! handed over to the host.

use std::fs::File;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::arena::Arena;
use crate::engine::copy::copy_racing;
use crate::engine::host::{HostFault, HostIo};
use crate::machine::lock;
use crate::queue::Direction;
use crate::store::Buf;

/// A buffer offered by another accelerator; copied out under the lock of the
/// parcels, so that taking an offer back is a matter of removing it.
pub(crate) struct Parcel {
    pub(crate) from: usize,
    pub(crate) number: u64,
    pub(crate) channel: u32,
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    /// Keeps the bytes mapped even if the sender is gone.
    pub(crate) _arena: Arc<Arena>,
    pub(crate) taken: Arc<AtomicBool>,
}

// SAFETY: the bytes belong to a buffer its sender does not touch before
// `taken` is set or the parcel is removed, both under the parcels' lock.
unsafe impl Send for Parcel {}

impl Parcel {
    /// Copies the parcel into `buf`, which is large enough.
    pub(crate) fn open(&self, buf: &mut Buf) {
        buf.set_view(0..self.len);
        // SAFETY: the sender keeps the bytes mapped (`arena`) and untouched
        // until `taken`; another local store's bytes cannot be this buffer's
        // unless an accelerator sends to itself, from another buffer.
        unsafe { copy_racing(self.start.as_ptr(), buf.as_mut_ptr(), self.len) };
        self.taken.store(true, Ordering::SeqCst);
    }
}

impl Buf {
    /// Hands the buffer over to the host, which transfers its view between a
    /// file and the local store (the papers' assisted calls): what the host
    /// gets, and the future of the buffer.
    pub fn hand_over(mut self) -> (HandedOver, GivenBack) {
        let back = Arc::<Back>::default();
        let handed = HandedOver {
            start: NonNull::from(&mut self[..]).cast(),
            len: self.len(),
            _arena: self.arena().clone(),
            back: back.clone(),
            result: None,
        };
        (handed, GivenBack { buf: Some(self), back })
    }
}

/// A buffer in the host's hands. Dropped, it goes back with an error.
#[derive(Debug)]
pub struct HandedOver {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes mapped even if the accelerator is gone.
    _arena: Arc<Arena>,
    back: Arc<Back>,
    result: Option<Result<(), HostFault>>,
}

// SAFETY: until it is given back the bytes are this owner's alone: the thread's
// `GivenBack` has the buffer, and shows it only then, or never lends its slot again.
unsafe impl Send for HandedOver {}

impl HandedOver {
    /// Fills the view from `file` at `offset`.
    ///
    /// # Errors
    /// What fails, and where in the file.
    pub fn read_from(
        &mut self,
        io: &mut HostIo,
        file: &File,
        offset: u64,
    ) -> Result<(), HostFault> {
        // SAFETY: the view is mapped, and this owner's alone.
        unsafe { io.transfer(Direction::Get, file, offset, self.start.as_ptr(), self.len) }
    }

    /// Writes the view to `file` at `offset`.
    ///
    /// # Errors
    /// What fails, and where in the file.
    pub fn write_to(&mut self, io: &mut HostIo, file: &File, offset: u64) -> Result<(), HostFault> {
        // SAFETY: as above.
        unsafe { io.transfer(Direction::Put, file, offset, self.start.as_ptr(), self.len) }
    }

    /// The view, for what is no file with offsets.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the view is mapped, initialized as all of a local store is, and
        // this owner's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives the buffer back to its thread, which sees `result`.
    pub fn give_back(mut self, result: Result<(), HostFault>) {
        self.result = Some(result);
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let gone = || HostFault { offset: 0, error: io::Error::other("the host has gone") };
        let result = self.result.take().unwrap_or_else(|| Err(gone()));
        let waker = {
            let mut state = lock(&self.back.state);
            state.result = Some(result);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// What a buffer's thread and the host share of it.
#[derive(Debug, Default)]
struct Back {
    state: Mutex<BackState>,
}

#[derive(Debug, Default)]
struct BackState {
    /// Set once the host does not touch the buffer any more.
    result: Option<Result<(), HostFault>>,
    waker: Option<Waker>,
}

/// The future of a buffer that was handed over, and of what became of it.
/// Dropped before, the buffer's slot is not lent again.
#[derive(Debug)]
#[must_use = "a buffer that is not waited for is lost to its local store"]
pub struct GivenBack {
    buf: Option<Buf>,
    back: Arc<Back>,
}

impl Future for GivenBack {
    type Output = (Buf, Result<(), HostFault>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.back.state);
        let Some(result) = state.result.take() else {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        let buf = self.buf.take().expect("the host gives a buffer back once");
        Poll::Ready((buf, result))
    }
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take()
            && lock(&self.back.state).result.is_none()
        {
            buf.abandon();
        }
    }
}
