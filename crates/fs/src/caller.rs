//! Who makes a file call: the host, or a program on an accelerator.

use std::future::{Future, Ready, ready};
use std::io;

use accel::{CopyTo, Cx, Region};

/// Who makes file calls, and how what is in memory is copied for it.
pub trait Caller: Clone {
    /// A copy under way; gives back what it fills.
    type Copy<'c>: Future<Output = io::Result<&'c mut [u8]>> + Unpin
    where
        Self: 'c;

    /// Copies from `at` in `region` on to `into`; with `goes_on` that is where
    /// the last copy of the same file ended.
    fn copy<'c>(
        &'c self,
        region: &'c Region<'c>,
        at: u64,
        into: &'c mut [u8],
        goes_on: bool,
    ) -> Self::Copy<'c>;
}

/// The host: copies at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Caller for Host {
    type Copy<'c> = Ready<io::Result<&'c mut [u8]>>;

    #[inline]
    fn copy<'c>(
        &'c self,
        region: &'c Region<'c>,
        at: u64,
        into: &'c mut [u8],
        _: bool,
    ) -> Self::Copy<'c> {
        ready(region.drain(at, into).map(|()| into))
    }
}

/// An accelerator: short irregular copies give its other threads a turn.
impl<'env> Caller for Cx<'env> {
    type Copy<'c>
        = CopyTo<'c, 'env>
    where
        'env: 'c;

    #[inline]
    fn copy<'c>(
        &'c self,
        region: &'c Region<'c>,
        at: u64,
        into: &'c mut [u8],
        goes_on: bool,
    ) -> Self::Copy<'c> {
        Cx::copy(self, region, at, into, goes_on)
    }
}

/// Waits for a call on the host: nothing else runs on this OS thread meanwhile.
/// A program on an accelerator awaits instead, or, on a stack of its own, calls
/// [`StackCx::wait`](accel::StackCx::wait).
pub fn wait<F: Future>(call: F) -> F::Output {
    pollster::block_on(call)
}
