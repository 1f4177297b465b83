//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What `mutex` keeps. A panic under it would be a bug in this crate, which keeps
/// what it locks whole at each step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
