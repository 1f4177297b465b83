//! Drop-in kernels: functions over a block that [`stream`] runs over files of
//! any size in bounded memory.
//!
//! A *transform* rewrites each block in place ([`Identity`], [`Aes128Ecb`],
//! [`Aes256Ctr`]); a *rewrite* makes blocks of other lengths ([`Replace`]); a *reduction* collects a part per accelerator or per unit
//! ([`Blake3`], [`Count`], [`Crc32c`], [`Histogram`], [`LinReg`], [`WordCount`]), and
//! [`Finish`] turns the merged part into a [`Report`]. How the parts are merged is each kernel's
//! own decision: a sum does not care about order, a checksum and a sum of
//! floats do.
//!
//! ```
//! use cellway_kernels::{Crc32c, Finish, Report};
//! use stream::{Block, Body, Kernel, Out, Unit};
//!
//! let kernel = Crc32c::new();
//! let mut part = kernel.part(1);
//! let (mut data, out) = (b"123456789".to_vec(), Out::default());
//! let unit = Unit { index: 0, offset: 0, body: &Body { range: 0..9, header: () } };
//! let block = Block { before: &mut [], data: &mut data, after: &mut [], out };
//! kernel.block(&unit, block, &mut part)?;
//!
//! let mut text = Vec::new();
//! kernel.finish(part)?.write_text(&mut text)?;
//! assert_eq!(text, b"e3069283\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The kernels only compute. Reading, cutting, keeping transfers in flight and
//! writing belong to the layers below; the one exception is [`WordCount`], which
//! spills to unnamed temporary files what its table cannot hold.
#![forbid(unsafe_code)]

mod aes128_ecb;
mod aes256_ctr;
mod blake3;
mod catalogue;
mod count;
mod crc32c;
mod histogram;
mod identity;
mod key;
mod linreg;
mod pattern;
mod replace;
mod report;
mod wordcount;

pub use aes128_ecb::Aes128Ecb;
pub use aes256_ctr::Aes256Ctr;
pub use blake3::{Blake3, Blake3Part, Blake3Report};
pub use catalogue::{CATALOGUE, Entry, Parameter};
pub use count::{Count, CountPart, CountReport, Counted};
pub use crc32c::{Crc32c, Crc32cPart, Crc32cReport};
#[cfg(any(test, fuzzing))]
pub use histogram::fuzzed;
pub use histogram::{BitmapRows, Histogram, HistogramPart, HistogramReport};
pub use identity::Identity;
pub use key::{Iv128, Key256};
pub use linreg::{LinReg, LinRegPart, LinRegReport, PairType};
pub use pattern::{Pattern, PatternError};
pub use replace::{Replace, ReplacePart};
pub use report::{Finish, Report};
pub use wordcount::{WordCount, WordCountPart, WordCountReport};
