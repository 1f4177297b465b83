//! A run in leases: for a while units are taken as ever, then what they came
//! to is put together, brought to the disk and recorded.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use storage::OutputError;

use crate::error::StreamError;
use crate::job::Job;
use crate::journal::{Journal, JournalError, JournalErrorKind, NO_FILE, Record};
use crate::kernel::Kernel;
use crate::merge::Parts;
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

/// Takes up what the last record holds: the part of all before unit `unit` of
/// the input that is worked on.
pub(crate) fn take_up<K: Kernel>(
    kernel: &K,
    parts: &Parts<K::Part>,
    accelerators: usize,
    journal: &Journal,
    unit: u64,
) -> Result<(), StreamError> {
    let Some(last) = journal.last() else { return Ok(()) };
    let refused = |error| StreamError::Kernel { input: journal.name().to_owned(), error };
    let part = kernel.load_beside(&last.part, accelerators, &journal.beside()).map_err(refused)?;
    parts.start_from(unit, part);
    Ok(())
}

/// Appends `record` with the part of all that was computed.
pub(crate) fn record<K: Kernel>(
    kernel: &K,
    parts: &Parts<K::Part>,
    journal: &mut Journal,
    record: Record,
) -> Result<(), StreamError> {
    let refused = |error| StreamError::Kernel { input: journal.name().to_owned(), error };
    let (mut part, beside) = (Vec::new(), journal.beside());
    let save = |merged: &mut K::Part| kernel.save_beside(merged, &mut part, &beside);
    parts.look(kernel, save).map_err(refused)?;
    journal.sync_beside()?;
    Ok(journal.append(Record { part, ..record })?)
}

/// Goes on where the journal ends, lease by lease. A failure is the job's to tell.
pub(crate) fn stream<K: Kernel>(
    job: &mut Job<'_, K>,
    options: &Options,
    journal: &mut Journal,
    parts: &Parts<K::Part>,
) -> Result<Tally, StreamError> {
    let units = job.plan.units.ok_or_else(|| unfit(journal, "a pipe has no leases"))?;
    let output = match &job.sink {
        Some(sink) => sink.identity()?,
        None => NO_FILE,
    };
    // An output that is complete already has a record, and is opened no more.
    let known = |last: &&Record| job.sink.is_none() || last.output != NO_FILE;
    let mut from = match journal.of_input().filter(known) {
        Some(last) if last.units > units || job.sink.is_some() && last.output != output => {
            return Err(unfit(journal, "its last record is of another output or input").into());
        }
        Some(last) if job.sink.is_none() && last.output != NO_FILE && last.units < units => {
            return Err(unfit(journal, "its output got its name before it was whole").into());
        }
        Some(last) => {
            job.start_from(last.units, last.output_bytes)?;
            last.units
        }
        None if job.sink.is_some() => {
            // From now on the file is known, so that it is found again, or taken away.
            job.record(journal, parts, 0, output)?;
            0
        }
        None => 0,
    };
    let mut all = Tally::default();
    loop {
        job.lease = Some(Lease { from, until: journal.due() });
        all += job.stream(options)?;
        let done = job.taken().min(units);
        if job.has_failed() {
            return Ok(all);
        }
        // Of a reduction only its result is left to do, which the journal does
        // not hold; of one of many inputs the next record tells.
        let is_told = done == units && job.sink.is_none();
        if done > from && !is_told {
            job.record(journal, parts, done, output)?;
        }
        if done == units {
            return Ok(all);
        }
        from = done;
    }
}

pub(crate) fn unfit(journal: &Journal, what: &str) -> JournalError {
    let cure = "start anew with --journal and --force";
    JournalError::new(JournalErrorKind::Unfit, journal.name(), what, cure)
}

impl<K: Kernel> Job<'_, K> {
    /// Goes on behind what was done before unit `from`.
    fn start_from(&mut self, from: u64, output_bytes: u64) -> Result<(), StreamError> {
        if let Some(sink) = &mut self.sink {
            sink.start_from(from, output_bytes)?;
        }
        self.take_from(from);
        let done_bytes = (from * self.plan.block_bytes).min(self.plan.body_bytes().unwrap_or(0));
        self.progress.add_done(done_bytes);
        Ok(())
    }

    /// Records that all units before `units` are done, once that is so on the disk.
    fn record(
        &mut self,
        journal: &mut Journal,
        parts: &Parts<K::Part>,
        units: u64,
        output: (u64, u64),
    ) -> Result<(), StreamError> {
        let since = Instant::now();
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
        let of_units = Record { units, output_bytes, output, ..journal.blank() };
        record(self.kernel, parts, journal, of_units)?;
        journal.recorded(since);
        Ok(())
    }
}

/// Device and inode of an output's file.
pub(crate) fn identity(output: &storage::Output) -> Result<(u64, u64), OutputError> {
    let found = output.file().metadata();
    let found = found.map_err(|error| OutputError::write(output.name(), 0, &error))?;
    Ok((found.dev(), found.ino()))
}
