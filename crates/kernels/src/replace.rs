//! `replace`: each match of a regular expression by a text, as `sed s/../../g`.

use regex::bytes::Match;
use stream::{Block, Cut, Effect, Kernel, KernelError, Out, Saved, Unit, save_bytes};

use crate::pattern::{Lines, Pattern, RECORD_BYTES_MAX};

/// Replaces what matches a pattern.
#[derive(Clone, Debug)]
pub struct Replace {
    pattern: Pattern,
    text: Vec<u8>,
    /// Whether the text has references to groups.
    has_groups: bool,
    record_bytes_max: usize,
}

impl Replace {
    /// Replaces each match of `pattern` by `text`, where `$1`, `${1}` and `${name}`
    /// stand for what a group matched, and `$$` for a dollar.
    #[must_use]
    pub fn new(pattern: Pattern, text: impl Into<Vec<u8>>) -> Self {
        let text = text.into();
        let has_groups = text.contains(&b'$');
        Self { pattern, text, has_groups, record_bytes_max: RECORD_BYTES_MAX }
    }

    /// A line across the end of a block may have `bytes`: so far units read past
    /// their ends. Lines inside a block may have any length.
    #[must_use]
    pub fn record_bytes_max(mut self, bytes: usize) -> Self {
        self.record_bytes_max = bytes;
        self
    }
}

/// What one accelerator works with.
#[derive(Clone, Debug)]
pub struct ReplacePart {
    /// Its own copy, with its own tables: a shared one lends them under a lock.
    pattern: Pattern,
    /// A line that lies across a block's end.
    across: Vec<u8>,
    /// What stands for a match with groups.
    expanded: Vec<u8>,
}

/// Where a block's output stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// In the line across the block's end, behind the whole ones.
    across: bool,
    /// Bytes of those lines that are out.
    copied: usize,
    /// A match ended there: an empty one right behind it is none.
    behind_match: bool,
}

impl Place {
    /// As the number that a call hands to the next.
    fn to_number(self) -> usize {
        self.copied << 2 | usize::from(self.across) << 1 | usize::from(self.behind_match)
    }

    fn of_number(number: usize) -> Self {
        Self { across: number & 2 != 0, copied: number >> 2, behind_match: number & 1 != 0 }
    }
}

/// Either all is out, or the place where it stopped.
type Stopped = Result<(), Place>;

impl Replace {
    /// Writes `lines` from `place` on, and a line end if they have one.
    fn lines(
        &self,
        (lines, ends): (&[u8], bool),
        mut place: Place,
        out: &mut Out<'_>,
        (pattern, expanded): (&Pattern, &mut Vec<u8>),
    ) -> Result<Stopped, KernelError> {
        let copy = |place: &mut Place, until: usize, out: &mut Out<'_>| {
            let copied = out.push_some(&lines[place.copied..until]);
            place.behind_match &= copied == 0;
            place.copied += copied;
            if place.copied < until { Err(*place) } else { Ok(()) }
        };
        let mut from = place.copied;
        while from <= lines.len()
            && let Some(found) = self.find(pattern, lines, from, expanded)
        {
            if found.is_empty() && place.behind_match && found.start() == place.copied {
                from += 1;
                continue;
            }
            if let Err(stopped) = copy(&mut place, found.start(), out) {
                return Ok(Err(stopped));
            }
            let text = if self.has_groups { &expanded[..] } else { &self.text };
            if !out.push(text) {
                return if out.is_empty() { Err(self.too_long(text)) } else { Ok(Err(place)) };
            }
            place = Place { copied: found.end(), behind_match: true, ..place };
            from = found.end();
        }
        if let Err(stopped) = copy(&mut place, lines.len(), out) {
            return Ok(Err(stopped));
        }
        Ok(if !ends || out.push(b"\n") { Ok(()) } else { Err(place) })
    }

    /// The next match; what stands for it goes to `expanded` if it depends on it.
    fn find<'l>(
        &self,
        pattern: &Pattern,
        lines: &'l [u8],
        from: usize,
        expanded: &mut Vec<u8>,
    ) -> Option<Match<'l>> {
        if !self.has_groups {
            return pattern.regex().find_at(lines, from);
        }
        let groups = pattern.regex().captures_at(lines, from)?;
        expanded.clear();
        groups.expand(&self.text, expanded);
        groups.get(0)
    }

    fn too_long(&self, text: &[u8]) -> KernelError {
        let what = format!("a replacement has {} bytes, more than fit at once", text.len());
        KernelError::new(what, "give a larger --block")
    }
}

impl Kernel for Replace {
    type Part = ReplacePart;
    type Header = ();

    fn name(&self) -> &str {
        "replace"
    }

    fn cut(&self, _: &()) -> Cut {
        Lines::cut(self.record_bytes_max)
    }

    fn effect(&self) -> Effect {
        Effect::Rewrite
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        // A replacement as long as a block's room is refused.
        let lines = 4 * self.record_bytes_max as u64;
        let part = size_of::<ReplacePart>() as u64 + Pattern::memory_bytes();
        lines.saturating_add(part).saturating_mul(accelerators as u64)
    }

    fn part(&self, _accelerators: usize) -> ReplacePart {
        let (across, expanded) = (Vec::new(), Vec::new());
        ReplacePart { pattern: self.pattern.clone(), across, expanded }
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        mut block: Block<'_>,
        part: &mut ReplacePart,
    ) -> Result<(), KernelError> {
        let mut out = std::mem::take(&mut block.out);
        let ReplacePart { pattern, across, expanded } = part;
        let lines = Lines::of(&block, unit.offset, self.record_bytes_max)?;
        let mut place = out.goes_on_from().map_or_else(Place::default, Place::of_number);
        if lines.has_whole && !place.across {
            let whole = (lines.whole, true);
            match self.lines(whole, place, &mut out, (pattern, expanded))? {
                Ok(()) => place = Place::default(),
                Err(stopped) => {
                    out.stop_at(stopped.to_number());
                    return Ok(());
                }
            }
        }
        if !lines.open.is_empty() {
            let line = (lines.across(across), lines.ends);
            let place = Place { across: true, ..place };
            if let Err(stopped) = self.lines(line, place, &mut out, (pattern, expanded))? {
                out.stop_at(stopped.to_number());
            }
        }
        Ok(())
    }

    fn merge(&self, _: &mut ReplacePart, _: ReplacePart) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        let mut all = Vec::new();
        save_bytes(self.pattern.regex().as_str().as_bytes(), &mut all);
        save_bytes(&self.text, &mut all);
        all.extend_from_slice(&(self.record_bytes_max as u64).to_le_bytes());
        Ok(all)
    }

    /// Nothing is carried from block to block.
    fn save(&self, _: &ReplacePart, _: &mut Vec<u8>) -> Result<(), KernelError> {
        Ok(())
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<ReplacePart, KernelError> {
        Saved::new(saved).end().map(|()| self.part(accelerators))
    }
}
