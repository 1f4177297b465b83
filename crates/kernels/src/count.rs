//! `count`: how often a regular expression matches, or in how many lines.
//!
//! A match lies within one line, as with grep. A unit owns the lines that start
//! in it and reads on past its end to finish the last, so whatever the cut each
//! match is counted once.

use std::io::{self, Write};

use memchr::{memchr, memrchr};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{
    Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look,
    Repetition,
};
use stream::{Block, Cut, Effect, Kernel, KernelError, Unit};

use crate::{Finish, Report};

/// What each lazily built automaton may take, in bytes; a search has up to
/// three of them, and smaller tables besides.
const AUTOMATON_BYTES: usize = 2 << 20;
const AUTOMATA_MAX: usize = 4;

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It is no regular expression, or too large a one.
    #[error("{0}")]
    Regex(String),
    /// It looks for other ends than those of a line.
    #[error(r"\A, \z, (?-m) and (?R) do not go with lines; use ^ and $")]
    Anchor,
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
        let anchors = [Look::Start, Look::End, Look::StartCRLF, Look::EndCRLF];
        if anchors.into_iter().any(|look| syntax.properties().look_set().contains(look)) {
            return Err(PatternError::Anchor);
        }
        let regex = RegexBuilder::new(&without_line_ends(syntax).to_string())
            .dfa_size_limit(AUTOMATON_BYTES)
            .build()
            .map_err(|error| wrong(&error))?;
        Ok(Self { regex })
    }

    fn count_matches(&self, lines: &[u8]) -> u64 {
        self.regex.find_iter(lines).count() as u64
    }

    fn count_lines(&self, lines: &[u8]) -> u64 {
        let (mut count, mut from) = (0, 0);
        while from <= lines.len()
            && let Some(hit) = self.regex.find_at(lines, from)
        {
            count += 1;
            let rest = &lines[hit.end()..];
            from = hit.end() + memchr(b'\n', rest).unwrap_or(rest.len()) + 1;
        }
        count
    }
}

/// The same but for `\n`, which nothing matches any more: inside a line it makes
/// no difference, and many lines can be searched at once.
fn without_line_ends(syntax: Hir) -> Hir {
    let each = |parts: Vec<Hir>| parts.into_iter().map(without_line_ends).collect();
    match syntax.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Literal(literal) if literal.0.contains(&b'\n') => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(Class::Unicode(mut class)) => {
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\n', '\n')]));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(mut class)) => {
            class.difference(&ClassBytes::new([ClassBytesRange::new(b'\n', b'\n')]));
            Hir::class(Class::Bytes(class))
        }
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
            let sub = Box::new(without_line_ends(*sub));
            Hir::repetition(Repetition { min, max, greedy, sub })
        }
        HirKind::Capture(capture) => without_line_ends(*capture.sub),
        HirKind::Concat(parts) => Hir::concat(each(parts)),
        HirKind::Alternation(parts) => Hir::alternation(each(parts)),
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
    /// The longest line that may lie across the end of a block, in bytes, unless
    /// [`Count::record_bytes_max`] says otherwise.
    pub const RECORD_BYTES_MAX: usize = 64 << 10;

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

    fn too_long(&self, offset: u64) -> KernelError {
        let what = format!("a line has more than {} bytes", self.record_bytes_max);
        KernelError::new(what, "give a larger --max-record").at(offset)
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
    /// Counts in whole lines; whether the last one ends in a line end does not matter.
    fn add(&mut self, lines: &[u8]) {
        let Some(last) = lines.last() else { return };
        // Behind the last line's end there is no line.
        let lines = if *last == b'\n' { &lines[..lines.len() - 1] } else { lines };
        self.count += match self.counted {
            Counted::Matches => self.pattern.count_matches(lines),
            Counted::Lines => self.pattern.count_lines(lines),
        };
    }
}

impl Kernel for Count {
    type Part = CountPart;

    fn name(&self) -> &str {
        "count"
    }

    fn cut(&self) -> Cut {
        Cut { align_bytes: 1, before_bytes: 1, after_bytes: self.record_bytes_max }
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let across = 2 * self.record_bytes_max as u64;
        let part = size_of::<CountPart>() + AUTOMATA_MAX * AUTOMATON_BYTES;
        across.saturating_add(part as u64).saturating_mul(accelerators as u64)
    }

    fn part(&self, _accelerators: usize) -> CountPart {
        let (pattern, counted) = (self.pattern.clone(), self.counted);
        CountPart { pattern, counted, count: 0, across: Vec::new() }
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
        part.add(&data[starts..whole]);
        let open = &data[whole..];
        if open.is_empty() {
            return Ok(());
        }
        let end = memchr(b'\n', block.after).unwrap_or(block.after.len());
        if end == 0 {
            part.add(open);
            return Ok(());
        }
        if open.len() + end > self.record_bytes_max {
            return Err(self.too_long(unit.offset + whole as u64));
        }
        let mut across = std::mem::take(&mut part.across);
        across.clear();
        across.extend_from_slice(open);
        across.extend_from_slice(&block.after[..end]);
        part.add(&across);
        part.across = across;
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
