//! What tests of the driver begin with.

use std::sync::mpsc::{self, Receiver};
use std::task::Waker;

use kernels::Crc32c;
use storage::Input;
use stream::{Options, Progress};

use super::{Bring, Brought};
use crate::task::KernelTask;

/// A task over nine units, with a lease for each.
pub(super) fn nine_units(test: impl FnOnce(&KernelTask<'_, Crc32c>)) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [7; 9 * 4096]).unwrap();
    let input = Input::open(file.path()).unwrap();
    let (kernel, progress) = (Crc32c::new(), Progress::default());
    let options = Options { block_bytes: Some(4096), accelerators: Some(1), ..Options::default() };
    let task = KernelTask::new(&kernel, &input, None, &options, &progress).unwrap();
    test(&task.lease_units(Some(1)));
}

/// What threads bring to nobody who waits.
pub(super) fn bringing() -> (Bring, Receiver<Brought>) {
    let (to, brought) = mpsc::channel();
    (Bring { to, waker: Waker::noop().clone() }, brought)
}
