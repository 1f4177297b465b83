//! Who makes a file call: the host, or a program on an accelerator.

use std::future::Future;
use std::io;

use accel::{Cx, Region};

/// Who makes file calls, and how what is in memory is copied for it.
pub trait Caller: Clone {
    /// Copies from `at` in `region` on to `into`; with `goes_on` that is where
    /// the last copy of the same file ended.
    fn copy<'a>(
        &'a self,
        region: &'a Region<'a>,
        at: u64,
        into: &'a mut [u8],
        goes_on: bool,
    ) -> impl Future<Output = io::Result<()>>;
}

/// The host: copies at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Caller for Host {
    #[inline]
    fn copy<'a>(
        &'a self,
        region: &'a Region<'a>,
        at: u64,
        into: &'a mut [u8],
        _: bool,
    ) -> impl Future<Output = io::Result<()>> {
        std::future::ready(region.drain(at, into))
    }
}

/// An accelerator: short irregular copies give its other threads a turn.
impl<'env> Caller for Cx<'env> {
    #[inline]
    fn copy<'a>(
        &'a self,
        region: &'a Region<'a>,
        at: u64,
        into: &'a mut [u8],
        goes_on: bool,
    ) -> impl Future<Output = io::Result<()>> {
        Cx::copy(self, region, at, into, goes_on)
    }
}

/// Waits for a call on the host: nothing else runs on this OS thread meanwhile.
/// A program on an accelerator awaits instead, or, on a stack of its own, calls
/// [`StackCx::wait`](accel::StackCx::wait).
pub fn wait<F: Future>(call: F) -> F::Output {
    pollster::block_on(call)
}
