//! What a journal holds, and what can be read back of one that was torn.
//!
//! ```text
//! "cellway journal 3\n"
//! frame: CRC-32C of the rest of the frame (4 bytes), length of the payload (4), payload
//! ```
//!
//! The first frame's payload is the [`Header`], every other one's a [`Record`];
//! numbers are little endian. A record tells all that came before it, so only
//! the last whole one counts, and whatever follows it is ignored: a crash may
//! leave any part of a frame, or zeros. No file is touched here.

mod begun;
mod beside;
mod error;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod pieces;
mod run;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::ops::Range;

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use crate::kernel::KernelError;
use crate::saved::{Saved, save_bytes};
pub use begun::{Begun, Keep};
pub use beside::Beside;
pub use error::{JournalError, JournalErrorKind};
pub use file::Journal;
pub(crate) use file::NO_FILE;
pub use pieces::{Piece, Pieces};

const MAGIC: &[u8] = b"cellway journal 3\n";
/// What journals of all versions start with.
const MAGIC_BYTES: usize = b"cellway journal ".len();
const CRC_BYTES: usize = 4;
const FRAME_HEAD_BYTES: usize = 8;
/// A longer payload is a damaged length.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// What must be the same for a run to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kernel: String,
    /// As [`Kernel::parameters`](crate::Kernel::parameters) gives them.
    pub(crate) parameters: Vec<u8>,
    pub(crate) inputs: Inputs,
    pub(crate) block_bytes: u64,
    /// Whether nodes do the units, in any order: records hold [`Piece`]s then.
    pub(crate) on_nodes: bool,
    /// The name of the folder for what is too large for records, beside the journal.
    pub(crate) beside: Vec<u8>,
    pub(crate) output: Option<OutputMark>,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// One, and the part of it that is streamed.
    One(InputMark, Range<u64>),
    Many(ListMark),
}

/// What tells a list of inputs from another, or from what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListMark {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Checksum of their names, as outputs have them.
    pub(crate) names: u64,
    /// Checksum of what an [`InputMark`] tells of each.
    pub(crate) state: u64,
    /// Whether small ones are streamed in batches.
    pub(crate) batches: bool,
}

/// What tells an input from another, or from what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InputMark {
    /// For people: one file may have many.
    pub(crate) name: String,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    pub(crate) len_bytes: u64,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
}

/// Where an output goes; of many inputs' outputs the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputMark {
    /// The name it will have, absolute.
    pub(crate) path: Vec<u8>,
    /// The name it has till then, in the same folder; a folder has none.
    pub(crate) partial: Vec<u8>,
}

/// How far a run has come: the first `inputs` inputs are done, and of the next
/// one all units before `units`, or with nodes so many, are computed, written and on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// From 0, without gaps.
    pub(crate) sequence: u64,
    /// 0 if there is only one.
    pub(crate) inputs: u64,
    pub(crate) units: u64,
    /// Bytes of the output that are whole.
    pub(crate) output_bytes: u64,
    /// The output's device and inode; zeros if there is none yet.
    pub(crate) output: (u64, u64),
    /// Where that of one of many inputs goes; with nodes the folder of what has no place in
    /// an output yet.
    pub(crate) unfinished: Option<OutputMark>,
    /// The merged part of those units, as the kernel saved it; with nodes their pieces.
    pub(crate) part: Vec<u8>,
}

/// What is left of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) header: Header,
    pub(crate) last: Option<Record>,
    /// Bytes up to the last whole record's end: the next one goes there.
    pub(crate) whole_bytes: u64,
}

/// Why nothing can be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Something else than a journal.
    NoJournal,
    /// A journal of another version.
    Version,
    /// It was torn before the header was whole: no unit was recorded.
    NoHeader,
}

/// The start of a journal.
pub(crate) fn start(header: &Header) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    frame(&mut out, |out| header.save(out));
    out
}

/// A record as it is appended.
pub(crate) fn entry(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, |out| record.save(out));
    out
}

fn frame(out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    payload(out);
    // A part of more than 4 GiB is no part: the length is cut and the record never read back.
    let len = (out.len() - start - FRAME_HEAD_BYTES) as u32;
    out[start + CRC_BYTES..start + FRAME_HEAD_BYTES].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(&out[start + CRC_BYTES..]);
    out[start..start + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// Reads a journal up to its last whole record, in the memory of one record.
///
/// # Errors
/// Those of `from`.
pub(crate) fn recover(from: &mut impl Read) -> io::Result<Result<Recovered, Unreadable>> {
    let mut magic = Vec::new();
    from.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    if magic != MAGIC {
        let common = magic.len().min(MAGIC_BYTES);
        return Ok(Err(match magic[..common] == MAGIC[..common] {
            false => Unreadable::NoJournal,
            true if MAGIC.starts_with(&magic) => Unreadable::NoHeader,
            true => Unreadable::Version,
        }));
    }
    let Some(payload) = next_payload(from)? else { return Ok(Err(Unreadable::NoHeader)) };
    let Ok(header) = Header::load(&payload) else { return Ok(Err(Unreadable::NoHeader)) };
    let frame_bytes = |payload: &[u8]| (FRAME_HEAD_BYTES + payload.len()) as u64;
    let whole_bytes = MAGIC.len() as u64 + frame_bytes(&payload);
    let mut recovered = Recovered { header, last: None, whole_bytes };
    while let Some(payload) = next_payload(from)? {
        let Ok(record) = Record::load(&payload) else { break };
        if !record.follows(recovered.last.as_ref()) {
            break;
        }
        recovered.last = Some(record);
        recovered.whole_bytes += frame_bytes(&payload);
    }
    Ok(Ok(recovered))
}

/// Whether a whole frame follows a header that cannot be read: it was damaged,
/// not torn, for what it tells of was written after it.
pub(crate) fn has_records(from: &mut impl Read) -> io::Result<bool> {
    let mut head = [0; MAGIC.len() + FRAME_HEAD_BYTES];
    match from.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let (_, len) = head.split_last_chunk().expect("it has more than four bytes");
    io::copy(&mut from.by_ref().take(u32::from_le_bytes(*len).into()), &mut io::sink())?;
    Ok(next_payload(from)?.is_some())
}

/// The next frame's payload; `None` at the end, or where it is damaged.
fn next_payload(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    from.by_ref().take(FRAME_HEAD_BYTES as u64).read_to_end(&mut head)?;
    let Some((crc, len)) = head.split_first_chunk::<CRC_BYTES>() else { return Ok(None) };
    let Ok(len) = <[u8; 4]>::try_from(len) else { return Ok(None) };
    let len_bytes = u32::from_le_bytes(len) as usize;
    if len_bytes > PAYLOAD_BYTES_MAX {
        return Ok(None);
    }
    let mut checked = len.to_vec();
    from.by_ref().take(len_bytes as u64).read_to_end(&mut checked)?;
    let is_whole = checked.len() == len.len() + len_bytes;
    if !is_whole || checksum(&checked) != u32::from_le_bytes(*crc) {
        return Ok(None);
    }
    Ok(Some(checked.split_off(len.len())))
}

impl Header {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { kernel, parameters, inputs, block_bytes, on_nodes, beside, output } = self;
        save_bytes(kernel.as_bytes(), out);
        save_bytes(parameters, out);
        inputs.save(out);
        save_numbers(&[*block_bytes, u64::from(*on_nodes)], out);
        save_bytes(beside, out);
        if let Some(output) = output {
            output.save(out);
        }
    }

    fn load(payload: &[u8]) -> Result<Self, KernelError> {
        let mut saved = Saved::new(payload);
        let (kernel, parameters) = (text(saved.bytes()?), saved.bytes()?.to_vec());
        let (inputs, block_bytes) = (Inputs::load(&mut saved)?, saved.u64()?);
        let on_nodes = saved.u64()? == 1;
        let beside = saved.bytes()?.to_vec();
        let output = if saved.is_empty() { None } else { Some(OutputMark::load(&mut saved)?) };
        saved.end()?;
        Ok(Self { kernel, parameters, inputs, block_bytes, on_nodes, beside, output })
    }
}

impl Inputs {
    fn save(&self, out: &mut Vec<u8>) {
        match self {
            Self::One(mark, body) => {
                out.push(1);
                save_bytes(mark.name.as_bytes(), out);
                let (identity, modified) = (mark.identity, mark.modified);
                save_numbers(&[identity.0, identity.1, mark.len_bytes], out);
                save_numbers(&[modified.0, modified.1].map(i64::cast_unsigned), out);
                save_numbers(&[body.start, body.end], out);
            }
            Self::Many(ListMark { count, bytes, names, state, batches }) => {
                out.push(2);
                save_numbers(&[*count, *bytes, *names, *state, u64::from(*batches)], out);
            }
        }
    }

    fn load(saved: &mut Saved<'_>) -> Result<Self, KernelError> {
        let [kind] = saved.array()?;
        if kind == 1 {
            let mark = InputMark {
                name: text(saved.bytes()?),
                identity: (saved.u64()?, saved.u64()?),
                len_bytes: saved.u64()?,
                modified: (saved.u64()?.cast_signed(), saved.u64()?.cast_signed()),
            };
            return Ok(Self::One(mark, saved.u64()?..saved.u64()?));
        }
        Ok(Self::Many(ListMark {
            count: saved.u64()?,
            bytes: saved.u64()?,
            names: saved.u64()?,
            state: saved.u64()?,
            batches: saved.u64()? == 1,
        }))
    }
}

impl OutputMark {
    fn save(&self, out: &mut Vec<u8>) {
        save_bytes(&self.path, out);
        save_bytes(&self.partial, out);
    }

    fn load(saved: &mut Saved<'_>) -> Result<Self, KernelError> {
        Ok(Self { path: saved.bytes()?.to_vec(), partial: saved.bytes()?.to_vec() })
    }
}

fn save_numbers(numbers: &[u64], out: &mut Vec<u8>) {
    for number in numbers {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Record {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { sequence, inputs, units, output_bytes, output, unfinished, part } = self;
        save_numbers(&[*sequence, *inputs, *units, *output_bytes, output.0, output.1], out);
        unfinished.clone().unwrap_or_default().save(out);
        out.extend_from_slice(part);
    }

    fn load(payload: &[u8]) -> Result<Self, KernelError> {
        let mut saved = Saved::new(payload);
        Ok(Self {
            sequence: saved.u64()?,
            inputs: saved.u64()?,
            units: saved.u64()?,
            output_bytes: saved.u64()?,
            output: (saved.u64()?, saved.u64()?),
            unfinished: Some(OutputMark::load(&mut saved)?).filter(|mark| !mark.path.is_empty()),
            part: saved.rest().to_vec(),
        })
    }

    /// Whether it can stand behind `last`.
    fn follows(&self, last: Option<&Record>) -> bool {
        match last {
            None => self.sequence == 0,
            Some(last) => {
                let is_further = (self.inputs, self.units) >= (last.inputs, last.units);
                self.sequence == last.sequence + 1 && is_further
            }
        }
    }
}
