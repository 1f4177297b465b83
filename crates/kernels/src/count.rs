//! `count`: how often a regular expression matches, or in how many lines.
//!
//! A match lies within one line, as with grep. A unit owns the lines that start
//! in it and reads on past its end to finish the last, so whatever the cut each
//! match is counted once.

use std::io::{self, Write};
use std::ops::Range;

use memchr::{memchr, memrchr};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::Look;
use stream::{Block, Cut, Effect, Kernel, KernelError, Unit};

use crate::{Finish, Report};

/// What a lazily built automaton may take, in bytes; forwards and backwards.
const AUTOMATON_BYTES: usize = 2 << 20;

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is no regular expression, or too large a one.
    #[error("{0}")]
    Regex(String),
    /// It looks for the input's start or end, which a line does not have.
    #[error(r"\A and \z are not line by line; use ^ and $")]
    TextAnchor,
}

/// A regular expression that matches within lines.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    /// Reads the syntax of crate `regex`; `^` and `$` are the ends of a line.
    ///
    /// # Errors
    /// [`PatternError`] says what is wrong with it.
    pub fn new(pattern: &str) -> Result<Self, PatternError> {
        let wrong = |error: &dyn std::fmt::Display| PatternError::Regex(error.to_string());
        let mut parser = regex_syntax::ParserBuilder::new().utf8(false).multi_line(true).build();
        let syntax = parser.parse(pattern).map_err(|error| wrong(&error))?;
        let looks = syntax.properties().look_set();
        if looks.contains(Look::Start) || looks.contains(Look::End) {
            return Err(PatternError::TextAnchor);
        }
        let regex = RegexBuilder::new(pattern)
            .multi_line(true)
            .dfa_size_limit(AUTOMATON_BYTES)
            .build()
            .map_err(|error| wrong(&error))?;
        Ok(Self { regex })
    }

    /// The first match from `from` on in `lines`, which are whole lines. A match
    /// that crosses the end of its line is none: that line is searched alone.
    fn next(&self, lines: &[u8], mut from: usize) -> Option<Range<usize>> {
        while from <= lines.len() {
            let hit = self.regex.find_at(lines, from)?.range();
            if hit.start == lines.len() && lines.last().is_none_or(|last| *last == b'\n') {
                // Behind the last line.
                return None;
            }
            let Some(within) = memchr(b'\n', &lines[hit.clone()]) else { return Some(hit) };
            let line_end = hit.start + within;
            if let Some(hit) = self.regex.find_at(&lines[..line_end], from) {
                return Some(hit.range());
            }
            from = line_end + 1;
        }
        None
    }

    fn count_matches(&self, lines: &[u8]) -> u64 {
        let (mut count, mut from, mut behind) = (0, 0, None);
        while let Some(hit) = self.next(lines, from) {
            from = hit.end.max(hit.start + 1);
            // As everywhere, an empty match right behind another is none.
            if hit.is_empty() && behind == Some(hit.start) {
                continue;
            }
            count += 1;
            behind = Some(hit.end);
        }
        count
    }

    fn count_lines(&self, lines: &[u8]) -> u64 {
        let (mut count, mut from) = (0, 0);
        while let Some(hit) = self.next(lines, from) {
            count += 1;
            let rest = &lines[hit.end..];
            from = hit.end + memchr(b'\n', rest).unwrap_or(rest.len()) + 1;
        }
        count
    }
}

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
    /// How far units read past their ends, unless [`Count::record_bytes_max`] says otherwise.
    pub const RECORD_BYTES_MAX: usize = 64 << 10;

    /// Counts `counted` of `pattern`.
    #[must_use]
    pub fn new(pattern: Pattern, counted: Counted) -> Self {
        Self { pattern, counted, record_bytes_max: Self::RECORD_BYTES_MAX }
    }

    /// A line may go on for `bytes` behind the block it starts in: so far units
    /// read past their ends. Lines inside a block may have any length.
    #[must_use]
    pub fn record_bytes_max(mut self, bytes: usize) -> Self {
        self.record_bytes_max = bytes;
        self
    }

    /// One more than a line may still take: what has no end there is too long.
    fn after_bytes(&self) -> usize {
        self.record_bytes_max.saturating_add(1)
    }

    fn too_long(&self, offset: u64) -> KernelError {
        let what = format!("a line goes on for more than {} bytes", self.record_bytes_max);
        KernelError::new(what, "give a larger --max-record").at(offset)
    }

    fn count(&self, lines: &[u8]) -> u64 {
        match self.counted {
            Counted::Matches => self.pattern.count_matches(lines),
            Counted::Lines => self.pattern.count_lines(lines),
        }
    }
}

/// What one accelerator has counted.
#[derive(Clone, Debug, Default)]
pub struct CountPart {
    count: u64,
    /// A line that lies across a block's end.
    across: Vec<u8>,
}

impl Kernel for Count {
    type Part = CountPart;

    fn name(&self) -> &str {
        "count"
    }

    fn cut(&self) -> Cut {
        Cut { align_bytes: 1, before_bytes: 1, after_bytes: self.after_bytes() }
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let part = size_of::<CountPart>() + 2 * self.record_bytes_max + 2 * AUTOMATON_BYTES;
        (part * accelerators) as u64
    }

    fn part(&self, _accelerators: usize) -> CountPart {
        CountPart::default()
    }

    fn block(
        &self,
        unit: &Unit,
        block: Block<'_>,
        part: &mut CountPart,
    ) -> Result<(), KernelError> {
        let data = &*block.data;
        let starts = match block.before.last() {
            None | Some(b'\n') => 0,
            Some(_) => match memchr(b'\n', data) {
                Some(end) => end + 1,
                None => return Ok(()),
            },
        };
        let whole = memrchr(b'\n', data).map_or(starts, |end| end + 1);
        part.count += self.count(&data[starts..whole]);
        let open = &data[whole..];
        if open.is_empty() {
            return Ok(());
        }
        let rest = match memchr(b'\n', block.after) {
            Some(end) => &block.after[..end],
            None if block.after.len() < self.after_bytes() => &*block.after,
            None => return Err(self.too_long(unit.offset + whole as u64)),
        };
        part.across.clear();
        part.across.extend_from_slice(open);
        part.across.extend_from_slice(rest);
        part.count += self.count(&part.across);
        Ok(())
    }

    fn merge(&self, part: &mut CountPart, later: CountPart) -> Result<(), KernelError> {
        part.count += later.count;
        Ok(())
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
