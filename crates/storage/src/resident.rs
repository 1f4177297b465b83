//! How much of a file is in the page cache.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::IoSliceMut;

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Pages looked at.
const SAMPLES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The share of `file`'s pages that are cached, 0 to 1, from a sample of 64;
/// `None` where the kernel does not tell.
pub(crate) fn share(file: &File, len_bytes: u64) -> Option<f64> {
    if len_bytes == 0 {
        return None;
    }
    let kind = rustix::fs::fstatfs(file).ok()?.f_type as u64;
    if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind) {
        return Some(1.0);
    }
    // A sample that misses starts to read its page, and without the advice those
    // after it. A descriptor of its own leaves the caller's read-ahead as it was;
    // pages drawn anew each time keep what was read for one estimate out of the next.
    let file = crate::direct::reopen(file, OFlags::RDONLY).ok()?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random).ok()?;
    let pages = len_bytes.div_ceil(PAGE_BYTES);
    let samples = pages.min(SAMPLES);
    let random = RandomState::new();
    let mut cached = 0;
    for sample in 0..samples {
        let first = part(pages, sample, samples);
        let width = part(pages, sample + 1, samples) - first;
        let page = first + random.hash_one(sample) % width;
        let mut byte = [0];
        let mut bufs = [IoSliceMut::new(&mut byte)];
        match rustix::io::preadv2(&file, &mut bufs, page * PAGE_BYTES, ReadWriteFlags::NOWAIT) {
            Ok(_) => cached += 1,
            Err(Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    Some(f64::from(cached) / samples as f64)
}

/// Where part `index` of `parts` of `whole` starts.
fn part(whole: u64, index: u64, parts: u64) -> u64 {
    (u128::from(whole) * u128::from(index) / u128::from(parts)) as u64
}
