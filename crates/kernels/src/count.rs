//! `count`: how often a regular expression matches, or in how many lines.

use std::io::{self, Write};

use memchr::memchr;
use stream::{Block, Cut, Effect, Kernel, KernelError, Saved, Unit, save_bytes};

use crate::pattern::{Lines, Pattern, RECORD_BYTES_MAX};
use crate::{Finish, Report};

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// Every match.
    #[default]
    Matches,
    /// Lines with a match, as `grep -c` does.
    Lines,
}

/// Counts what matches a pattern.
#[derive(Clone, Debug)]
pub struct Count {
    pattern: Pattern,
    counted: Counted,
    record_bytes_max: usize,
}

impl Count {
    /// The longest line that may lie across the end of a block, in bytes, unless
    /// [`Count::record_bytes_max`] says otherwise.
    pub const RECORD_BYTES_MAX: usize = RECORD_BYTES_MAX;

    /// Counts `counted` of `pattern`.
    #[must_use]
    pub fn new(pattern: Pattern, counted: Counted) -> Self {
        Self { pattern, counted, record_bytes_max: Self::RECORD_BYTES_MAX }
    }

    /// A line across the end of a block may have `bytes`: so far units read past
    /// their ends. Lines inside a block may have any length.
    #[must_use]
    pub fn record_bytes_max(mut self, bytes: usize) -> Self {
        self.record_bytes_max = bytes;
        self
    }
}

/// What one accelerator has counted.
#[derive(Clone, Debug)]
pub struct CountPart {
    /// Its own copy, with its own tables: a shared one lends them under a lock.
    pattern: Pattern,
    counted: Counted,
    count: u64,
    /// A line that lies across a block's end.
    across: Vec<u8>,
}

impl CountPart {
    /// Counts in whole lines, the last one without its end: behind that there is no line.
    fn add(&mut self, lines: &[u8]) {
        self.count += match self.counted {
            Counted::Matches => self.matches(lines),
            Counted::Lines => self.lines(lines),
        };
    }

    fn matches(&self, lines: &[u8]) -> u64 {
        self.pattern.regex().find_iter(lines).count() as u64
    }

    fn lines(&self, lines: &[u8]) -> u64 {
        let (mut count, mut from) = (0, 0);
        while from <= lines.len()
            && let Some(hit) = self.pattern.regex().find_at(lines, from)
        {
            count += 1;
            let rest = &lines[hit.end()..];
            from = hit.end() + memchr(b'\n', rest).unwrap_or(rest.len()) + 1;
        }
        count
    }
}

impl Kernel for Count {
    type Part = CountPart;
    type Header = ();

    fn name(&self) -> &str {
        "count"
    }

    fn cut(&self, _: &()) -> Cut {
        Lines::cut(self.record_bytes_max)
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let across = 2 * self.record_bytes_max as u64;
        let part = size_of::<CountPart>() as u64 + Pattern::memory_bytes();
        across.saturating_add(part).saturating_mul(accelerators as u64)
    }

    fn part(&self, _accelerators: usize) -> CountPart {
        let (pattern, counted) = (self.pattern.clone(), self.counted);
        CountPart { pattern, counted, count: 0, across: Vec::new() }
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut CountPart,
    ) -> Result<(), KernelError> {
        let lines = Lines::of(&block, unit.offset, self.record_bytes_max)?;
        if lines.has_whole {
            part.add(lines.whole);
        }
        if !lines.open.is_empty() {
            let mut across = std::mem::take(&mut part.across);
            part.add(lines.across(&mut across));
            part.across = across;
        }
        Ok(())
    }

    fn merge(&self, part: &mut CountPart, later: CountPart) -> Result<(), KernelError> {
        part.count += later.count;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        let mut all = Vec::new();
        save_bytes(self.pattern.regex().as_str().as_bytes(), &mut all);
        all.push(u8::from(self.counted == Counted::Lines));
        all.extend_from_slice(&(self.record_bytes_max as u64).to_le_bytes());
        Ok(all)
    }

    fn save(&self, part: &CountPart, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend_from_slice(&part.count.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<CountPart, KernelError> {
        let mut saved = Saved::new(saved);
        let part = CountPart { count: saved.u64()?, ..self.part(accelerators) };
        saved.end().map(|()| part)
    }
}

impl Finish for Count {
    type Report = CountReport;

    fn finish(&self, part: CountPart) -> Result<CountReport, KernelError> {
        Ok(CountReport { count: part.count, counted: self.counted })
    }
}

/// The count; as text a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountReport {
    /// How many there are in the whole input.
    pub count: u64,
    /// Of what.
    pub counted: Counted,
}

impl Report for CountReport {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.count)
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let counted = match self.counted {
            Counted::Matches => "matches",
            Counted::Lines => "lines",
        };
        writeln!(out, r#"{{"{counted}":{}}}"#, self.count)
    }
}
