//! Runs that outlive their process, in files beside a journal.
//!
//! What was counted since the last record becomes a run of level 0; four runs
//! of a level become one of the next. So each word is written once for each
//! level, and there are few runs, however many records.

use std::io::{self, BufReader, Read as _};
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use stream::{Beside, KernelError, Saved};

use super::WORD_BYTES_MAX;
use super::runs::{Merged, Run, RunWriter};
use super::table::Order;

/// Runs of a level that are merged into one of the next.
const FAN_IN: usize = 4;

/// A run that has a file for itself.
#[derive(Debug)]
struct KeptRun {
    number: u64,
    level: u64,
    crc: u64,
    run: Run,
}

/// The runs beside a journal that belong to a part, the longest first.
#[derive(Debug, Default)]
pub(super) struct Kept {
    runs: Vec<KeptRun>,
    /// The next file's number.
    next: u64,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.runs.append(&mut other.runs);
        self.next = self.next.max(other.next);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().map(|kept| &kept.run)
    }

    pub(super) fn into_runs(self) -> impl Iterator<Item = Run> {
        self.runs.into_iter().map(|kept| kept.run)
    }

    /// Removes what no record tells of: runs that were merged, or never ended.
    pub(super) fn tidy(&self, beside: &Beside) -> io::Result<()> {
        let numbers: Vec<u64> = self.runs.iter().map(|kept| kept.number).collect();
        beside.retain(&numbers)
    }

    /// Adds a run that `fill` writes, and merges as many as are due.
    pub(super) fn add(
        &mut self,
        beside: &Beside,
        fill: impl FnOnce(&mut RunWriter<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.write(beside, 0, fill)?;
        while let Some(from) = self.runs.len().checked_sub(FAN_IN)
            && let level = self.runs[from].level
            && self.runs[from..].iter().all(|kept| kept.level == level)
        {
            let runs: Vec<Run> = self.runs.drain(from..).map(|kept| kept.run).collect();
            let mut merged = Merged::open(&runs, Order::Word)?;
            self.write(beside, level + 1, |writer| merged.write(u64::MAX, writer))?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        beside: &Beside,
        level: u64,
        fill: impl FnOnce(&mut RunWriter<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let number = self.next;
        let file = Arc::new(beside.create(number)?);
        let run = Run::write(&file, fill)?;
        file.sync_data()?;
        self.next += 1;
        self.runs.push(KeptRun { number, level, crc: checksum(&run)?, run });
        Ok(())
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        let each = self.runs.iter();
        let each = each.flat_map(|kept| [kept.number, kept.level, kept.run.len_bytes(), kept.crc]);
        for number in [self.next, self.runs.len() as u64].into_iter().chain(each) {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Opens the runs again; all that follows in `saved` is theirs.
    pub(super) fn load(mut saved: Saved<'_>, beside: &Beside) -> Result<Self, KernelError> {
        let (next, count) = (saved.u64()?, saved.u64()?);
        let mut told = Vec::new();
        for _ in 0..count {
            told.push([saved.u64()?, saved.u64()?, saved.u64()?, saved.u64()?]);
        }
        saved.end()?;
        let open = |[number, level, len_bytes, crc]: [u64; 4]| {
            let run = Run::whole(Arc::new(beside.open(number)?), len_bytes);
            match checksum(&run)? == crc {
                true => Ok(KeptRun { number, level, crc, run }),
                false => Err(io::Error::other("they are not what was written")),
            }
        };
        let runs: io::Result<_> = told.into_iter().map(open).collect();
        let lost = |error: io::Error| {
            let what = format!("the words kept beside the journal cannot be read back: {error}");
            KernelError::new(what, "start anew with --journal and --force")
        };
        Ok(Self { runs: runs.map_err(lost)?, next })
    }
}

/// Of a run's bytes; an error if it has fewer than it should.
fn checksum(run: &Run) -> io::Result<u64> {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut rest = BufReader::with_capacity(WORD_BYTES_MAX, run.clone()).take(run.len_bytes());
    let copied = io::copy(&mut rest, &mut DigestWriter(&mut digest))?;
    match copied == run.len_bytes() {
        true => Ok(digest.finalize()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

struct DigestWriter<'d>(&'d mut Digest);

impl io::Write for DigestWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
