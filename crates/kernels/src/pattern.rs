//! Regular expressions that match within lines, and the lines a unit owns.
//!
//! A match lies within one line, as with grep. A unit owns the lines that start
//! in it and reads on past its end to finish the last, so whatever the cut each
//! match is found once.

use memchr::{memchr, memrchr};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{
    Capture, Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind,
    Look, Repetition,
};
use stream::{Block, Cut, KernelError};

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

    /// Finds within lines; a stretch of them may be searched at once.
    pub(crate) fn regex(&self) -> &Regex {
        &self.regex
    }

    /// Most memory that a copy with tables of its own takes, in bytes.
    pub(crate) const fn memory_bytes() -> u64 {
        (AUTOMATA_MAX * AUTOMATON_BYTES) as u64
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
        HirKind::Capture(Capture { index, name, sub }) => {
            let sub = Box::new(without_line_ends(*sub));
            Hir::capture(Capture { index, name, sub })
        }
        HirKind::Concat(parts) => Hir::concat(each(parts)),
        HirKind::Alternation(parts) => Hir::alternation(each(parts)),
    }
}

/// The lines that start in a unit.
pub(crate) struct Lines<'b> {
    /// Those that end in it too, without the last one's end.
    pub(crate) whole: &'b [u8],
    /// Whether there are any.
    pub(crate) has_whole: bool,
    /// The start of one that goes on behind the unit.
    pub(crate) open: &'b [u8],
    /// The rest of it, without its end.
    pub(crate) rest: &'b [u8],
    /// Whether it has an end: the input's last line may have none.
    pub(crate) ends: bool,
}

impl<'b> Lines<'b> {
    /// How blocks are cut if a line across a block's end has `record_bytes_max`.
    pub(crate) fn cut(record_bytes_max: usize) -> Cut {
        Cut { align_bytes: 1, before_bytes: 1, after_bytes: record_bytes_max }
    }

    /// The lines of a block cut that way, which starts at `offset`.
    pub(crate) fn of(
        block: &'b Block<'_>,
        offset: u64,
        record_bytes_max: usize,
    ) -> Result<Self, KernelError> {
        let data = &*block.data;
        let starts = match block.before.last() {
            None | Some(b'\n') => 0,
            Some(_) => memchr(b'\n', data).map_or(data.len(), |end| end + 1),
        };
        let owned = &data[starts..];
        let (whole, open) = match memrchr(b'\n', owned) {
            Some(end) => (Some(&owned[..end]), &owned[end + 1..]),
            None => (None, owned),
        };
        let (rest, ends) = match memchr(b'\n', block.after) {
            _ if open.is_empty() => (&[][..], false),
            Some(end) => (&block.after[..end], true),
            None => (&*block.after, false),
        };
        if !rest.is_empty() && open.len() + rest.len() > record_bytes_max {
            let what = format!("a line has more than {record_bytes_max} bytes");
            let start = offset + (data.len() - open.len()) as u64;
            return Err(KernelError::new(what, "give a larger --max-record").at(start));
        }
        Ok(Self { whole: whole.unwrap_or_default(), has_whole: whole.is_some(), open, rest, ends })
    }

    /// The line across the unit's end; put together in `room` if it must be.
    pub(crate) fn across<'r>(&'r self, room: &'r mut Vec<u8>) -> &'r [u8] {
        if self.rest.is_empty() {
            return self.open;
        }
        room.clear();
        room.extend_from_slice(self.open);
        room.extend_from_slice(self.rest);
        room
    }
}

/// The longest line that may lie across the end of a block, in bytes, unless
/// more are asked for.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 10;
