//! What nodes have done, as their manager records it: units in any order.

use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use crc_fast::CrcAlgorithm::Crc64Nvme;
use storage::{Output, SharedDir};

use super::file::NO_FILE;
use super::{Journal, JournalError, JournalErrorKind, Record, save_numbers};
use crate::error::StreamError;
use crate::kernel::KernelError;
use crate::leases::{identity, unfit};
use crate::saved::{Saved, save_bytes};

/// What more pieces take than this goes beside the journal, which else would grow by it
/// with each record.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// What a record holds: the pieces, or
const INLINE: u8 = 0;
/// the number, length and checksum of a file that does.
const IN_FILE: u8 = 1;

/// Units of a job that are done, and the one result they came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The number of the job.
    pub job: u64,
    /// None of them in two pieces.
    pub units: Vec<Range<u64>>,
    /// As the kernel saved it.
    pub part: Vec<u8>,
}

/// The journal of a run on nodes.
#[derive(Debug)]
pub struct Pieces<'j> {
    journal: &'j mut Journal,
    output: (u64, u64),
    /// Bytes of a unit in it, and in all.
    placed_bytes: (u64, u64),
    /// All outputs have their names.
    is_named: bool,
}

impl<'j> Pieces<'j> {
    /// Of a run over `units` of `unit_bytes`, whose blocks go to `output`, where they
    /// were read, `output_bytes` in all.
    ///
    /// # Errors
    /// If the journal is of another output, or cannot be written.
    pub fn new(
        journal: &'j mut Journal,
        output: Option<&Output>,
        (units, unit_bytes): (u64, u64),
        output_bytes: u64,
    ) -> Result<Self, StreamError> {
        let is_of = output.map_or(Ok(NO_FILE), identity)?;
        let placed_bytes = (unit_bytes, output_bytes);
        let known = journal.last().map(|last| (last.output, last.units));
        let has_name = known.is_some_and(|(known, _)| output.is_none() && known != NO_FILE);
        let is_named = has_name || journal.inputs_done() > 0;
        journal.go_on();
        let mut new = Self { journal, output: is_of, placed_bytes, is_named };
        match known {
            // From now on the file is known, so that it is found again, or taken away.
            None if output.is_some() => new.record(&[])?,
            Some((_, done)) if has_name && done < units => {
                let what = "its output got its name before it was whole";
                return Err(unfit(new.journal, what).into());
            }
            Some((known, _)) if output.is_some() && known != is_of => {
                return Err(unfit(new.journal, "its last record is of another output").into());
            }
            // A complete one that is there already is opened no more.
            Some((known, _)) => new.output = known,
            None => {}
        }
        Ok(new)
    }

    /// Of a run over many inputs.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn of_many(journal: &'j mut Journal) -> Result<Self, StreamError> {
        Self::new(journal, None, (0, 0), 0)
    }

    /// The hidden folder, in `dir`, of what nodes make that has no place in an output yet;
    /// it stays until the journal is removed.
    ///
    /// # Errors
    /// If it cannot be made, or what was in it is gone.
    pub fn shared_dir(&mut self, dir: &Path) -> Result<SharedDir, StreamError> {
        let folder = match self.journal.folder() {
            Some(known) => known.to_owned(),
            None => {
                let chosen = SharedDir::choose(dir)?;
                self.journal.keep_folder(&chosen);
                // From now on it is known, so that it is found again, or taken away.
                self.record(&self.done()?)?;
                chosen
            }
        };
        let may_be_new = self.journal.last().is_none_or(|last| last.units == 0);
        Ok(SharedDir::keep(&folder, may_be_new)?)
    }

    /// Whether all outputs have their names: nothing is left to be done.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// What the last record tells.
    ///
    /// # Errors
    /// If that is not what was recorded.
    pub fn done(&self) -> Result<Vec<Piece>, JournalError> {
        let Some(last) = self.journal.last() else { return Ok(Vec::new()) };
        let damaged = |error: KernelError| {
            let kind = JournalErrorKind::Unreadable;
            JournalError::new(kind, self.journal.name(), error.what, error.cure)
        };
        let mut saved = Saved::new(&last.part);
        let [place] = saved.array().map_err(damaged)?;
        if place == INLINE {
            return load(saved).map_err(damaged);
        }
        let mut told = || Ok((saved.u64()?, saved.u64()?, saved.u64()?));
        let (number, len_bytes, crc) = told().map_err(damaged)?;
        let bytes = self.read(number, len_bytes).map_err(|error| {
            let doing = "has results beside it that cannot be read back";
            JournalError::io(self.journal.name(), doing, &error)
        })?;
        if crc_fast::checksum(Crc64Nvme, &bytes) != crc {
            let what = "has results beside it that are not what was written";
            return Err(unfit(self.journal, what));
        }
        load(Saved::new(&bytes)).map_err(damaged)
    }

    /// An error that only another journal helps against.
    #[must_use]
    pub fn unfit(&self, what: &str) -> JournalError {
        unfit(self.journal, what)
    }

    fn read(&self, number: u64, len_bytes: u64) -> std::io::Result<Vec<u8>> {
        let file = self.journal.beside().open(number)?;
        // What was damaged is no reason to take all memory.
        let len_bytes = len_bytes.min(file.metadata()?.len());
        let mut bytes = vec![0; usize::try_from(len_bytes).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Records all that is done, which is on the disk but for this.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn record(&mut self, pieces: &[Piece]) -> Result<(), JournalError> {
        let since = Instant::now();
        let all = || pieces.iter().flat_map(|piece| &piece.units);
        let units = all().map(|units| units.end - units.start).sum();
        let (unit_bytes, output_bytes) = self.placed_bytes;
        let end = all().map(|units| units.end).max().unwrap_or(0);
        let output_bytes = end.saturating_mul(unit_bytes).min(output_bytes);
        let parts: usize = pieces.iter().map(|piece| piece.part.len()).sum();
        // They are here once more, and not twice while it grows.
        let mut part = Vec::with_capacity(parts + INLINE_BYTES_MAX);
        part.push(INLINE);
        save(pieces, &mut part);
        let mut kept = None;
        if part.len() > INLINE_BYTES_MAX {
            let number = self.journal.last().map_or(0, |last| last.sequence + 1);
            let bytes = part.get(1..).unwrap_or_default();
            self.write(number, bytes)?;
            let told = [number, bytes.len() as u64, crc_fast::checksum(Crc64Nvme, bytes)];
            part = vec![IN_FILE];
            save_numbers(&told, &mut part);
            kept = Some(number);
        }
        let (output, of) = (self.output, self.journal.blank());
        self.journal.append(Record { units, output_bytes, output, part, ..of })?;
        // The one before told of others.
        let retained = self.journal.beside().retain(kept.as_slice());
        retained.map_err(|error| self.journal.failed(&error))?;
        self.journal.recorded(since);
        Ok(())
    }

    fn write(&self, number: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let written = self.journal.beside().create(number).and_then(|file| {
            file.write_all_at(bytes, 0)?;
            file.sync_data()
        });
        written.map_err(|error| self.journal.failed(&error))?;
        self.journal.sync_beside()
    }

    /// When the next record is due.
    pub fn due(&mut self) -> Instant {
        self.journal.due()
    }
}

fn save(pieces: &[Piece], out: &mut Vec<u8>) {
    save_numbers(&[pieces.len() as u64], out);
    for Piece { job, units, part } in pieces {
        save_numbers(&[*job, units.len() as u64], out);
        for range in units {
            save_numbers(&[range.start, range.end], out);
        }
        save_bytes(part, out);
    }
}

/// Allocates no more than was saved.
fn load(mut saved: Saved<'_>) -> Result<Vec<Piece>, KernelError> {
    let mut pieces = Vec::new();
    for _ in 0..saved.u64()? {
        let (job, mut units) = (saved.u64()?, Vec::new());
        for _ in 0..saved.u64()? {
            units.push(saved.u64()?..saved.u64()?);
        }
        pieces.push(Piece { job, units, part: saved.bytes()?.to_vec() });
    }
    saved.end()?;
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let units = prop::collection::vec(any::<(u64, u64)>(), 0..4);
        let part = prop::collection::vec(any::<u8>(), 0..20);
        let piece = (any::<u64>(), units, part).prop_map(|(job, units, part)| {
            let units = units.into_iter().map(|(start, end)| start..end).collect();
            Piece { job, units, part }
        });
        prop::collection::vec(piece, 0..5)
    }

    proptest! {
        #[test]
        fn pieces_are_read_back_and_nothing_else_is(
            pieces in pieces(), at in any::<prop::sample::Index>(), more in any::<u8>(),
        ) {
            let mut saved = Vec::new();
            save(&pieces, &mut saved);
            prop_assert_eq!(load(Saved::new(&saved)).ok(), Some(pieces));
            prop_assert!(load(Saved::new(&saved[..at.index(saved.len())])).is_err());
            saved.push(more);
            prop_assert!(load(Saved::new(&saved)).is_err());
        }

        #[test]
        fn any_bytes_are_pieces_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = load(Saved::new(&bytes));
        }
    }
}
