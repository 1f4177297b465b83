//! A run in leases: for a while units are taken as ever, then what they came
//! to is put together, brought to the disk and recorded.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use storage::OutputError;

use crate::error::StreamError;
use crate::job::Job;
use crate::journal::{Beside, Journal, JournalError, JournalErrorKind, Record};
use crate::kernel::Kernel;
use crate::plan::Options;
use crate::stats::Tally;

/// How long units are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    /// The first unit that is not recorded yet.
    pub(crate) from: u64,
    pub(crate) until: Instant,
}

impl Lease {
    /// Whether unit `next` is left to the next lease; none is empty.
    pub(crate) fn is_over(&self, next: u64) -> bool {
        next > self.from && Instant::now() >= self.until
    }
}

/// Goes on where the journal ends, lease by lease. A failure is the job's to tell.
pub(crate) fn stream<K: Kernel>(
    job: &mut Job<'_, K>,
    options: &Options,
    journal: &mut Journal,
) -> Result<Tally, StreamError> {
    let units = job.plan.units.ok_or_else(|| unfit(journal, "a pipe has no leases"))?;
    let output = match &job.sink {
        Some(sink) => sink.identity()?,
        None => (0, 0),
    };
    let mut from = match journal.last() {
        Some(last) if last.output != output || last.units > units => {
            return Err(unfit(journal, "its last record is of another output or input").into());
        }
        Some(last) => {
            job.start_from(last, &journal.beside())?;
            last.units
        }
        None if job.sink.is_some() => {
            // From now on the file is known, so that it is found again, or taken away.
            job.record(journal, 0, output)?;
            0
        }
        None => 0,
    };
    let mut all = Tally::default();
    loop {
        job.lease = Some(Lease { from, until: Instant::now() + journal.every });
        all += job.stream(options)?;
        let done = job.taken().min(units);
        if job.has_failed() {
            return Ok(all);
        }
        // Of a reduction only its result is left to do, which the journal does not hold.
        let is_told = done == units && job.sink.is_none();
        if done > from && !is_told {
            job.record(journal, done, output)?;
        }
        if done == units {
            return Ok(all);
        }
        from = done;
    }
}

fn unfit(journal: &Journal, what: &str) -> JournalError {
    let cure = "start anew with --journal and --force";
    JournalError::new(JournalErrorKind::Unfit, journal.name(), what, cure)
}

impl<K: Kernel> Job<'_, K> {
    /// Takes up what was recorded before unit `from`.
    fn start_from(&mut self, last: &Record, beside: &Beside) -> Result<(), StreamError> {
        let Record { units: from, output_bytes, ref part, .. } = *last;
        let refused = |error| StreamError::Kernel { input: self.input.name().to_owned(), error };
        let part =
            self.kernel.load_beside(part, self.plan.accelerators, beside).map_err(refused)?;
        self.parts.start_from(from, part);
        if let Some(sink) = &mut self.sink {
            sink.start_from(from, output_bytes)?;
        }
        self.take_from(from);
        let done_bytes = (from * self.plan.block_bytes).min(self.plan.body_bytes().unwrap_or(0));
        self.progress.start_at(done_bytes);
        Ok(())
    }

    /// Records that all units before `units` are done, once that is so on the disk.
    fn record(
        &mut self,
        journal: &mut Journal,
        units: u64,
        output: (u64, u64),
    ) -> Result<(), StreamError> {
        let name = self.input.name();
        if let Some(what) = self.input.changed()? {
            return Err(storage::InputError::changed(name, what).into());
        }
        let made_bytes = match &self.sink {
            Some(sink) => sink.settle()?,
            None => 0,
        };
        // What is no rewrite's is put where it belongs, so it ends with the units.
        let placed_bytes = units * self.plan.block_bytes;
        let output_bytes = match self.plan.output_bytes() {
            Some(len_bytes) if self.sink.is_some() => placed_bytes.min(len_bytes),
            Some(_) => 0,
            None => made_bytes,
        };
        let refused = |error| StreamError::Kernel { input: name.to_owned(), error };
        let (mut part, beside) = (Vec::new(), journal.beside());
        let save = |merged: &mut K::Part| self.kernel.save_beside(merged, &mut part, &beside);
        self.parts.look(self.kernel, self.plan.accelerators, save).map_err(refused)?;
        journal.sync_beside()?;
        journal.append(Record { sequence: 0, units, output_bytes, output, part })?;
        Ok(())
    }
}

/// Device and inode of an output's file.
pub(crate) fn identity(output: &storage::Output) -> Result<(u64, u64), OutputError> {
    let found = output.file().metadata();
    let found = found.map_err(|error| OutputError::write(output.name(), 0, &error))?;
    Ok((found.dev(), found.ino()))
}
