//! The papers' ways of I/O (I/O prefetching, section 4.2.3; CellStream), which
//! are two machines with different parameters: calls served by the host
//! ([`assisted`]), and host threads around memory ([`staged`]). Which one, and
//! what it takes, is decided here without I/O.

mod ahead;
mod assisted;
mod host;
mod staged;

use std::fmt;
use std::str::FromStr;

use crate::kernel::Effect;
use crate::plan::{Piece, Plan, PlanError, Shape};

pub(crate) use assisted::read_error;
pub(crate) use host::Host;

/// Buffers of [`Scheme::Staged`]: one is read, one computed on, one written.
pub const STAGING_DEFAULT: usize = 3;

/// Memory of [`Scheme::Signalled`], unless a few buffers take more.
const SIGNALLED_BYTES: u64 = 32 << 20;

/// What reads ahead through the page cache reads into, over and over.
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;

/// What is on its way between a host thread and a pipe.
const PIPE_BYTES: usize = 256 << 10;

/// What a host thread touches of its stack, and the like.
const HOST_THREAD_BYTES: u64 = 64 * 1024;

/// Who does a run's I/O, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// [`Scheme::Mapped`] for a reduction that can do with it, if all of its only
    /// input is cached and no option says how to transfer; else [`Scheme::Direct`].
    #[default]
    Auto,
    /// Every accelerator's own threads read and write.
    Direct,
    /// Accelerators look at the page cache's own pages: nothing is transferred.
    Mapped,
    /// Scheme 1: the host serves the accelerators' calls, one at a time.
    Assisted,
    /// Scheme 2: the host first reads all of the input into the page cache.
    ReadAhead,
    /// Scheme 3: a host thread reads ahead into the page cache meanwhile.
    Prefetch,
    /// Scheme 4: the host reads all of the input into memory, then the
    /// accelerators compute from memory to memory, then the host writes.
    Whole,
    /// Scheme 6: a reader and a writer beside the accelerators say how far they
    /// are. The paper's memory held all of a file; this one's is 32 MiB, or what
    /// [`Scheme::Staged`] takes if that is more, and used over and over.
    Signalled,
    /// As scheme 6, through no more than a few buffers in turn (CellStream).
    Staged,
}

/// All schemes, and how the command line calls them.
const NAMES: [(Scheme, &str); 9] = [
    (Scheme::Auto, "auto"),
    (Scheme::Direct, "direct"),
    (Scheme::Mapped, "mapped"),
    (Scheme::Assisted, "1"),
    (Scheme::ReadAhead, "2"),
    (Scheme::Prefetch, "3"),
    (Scheme::Whole, "4"),
    (Scheme::Signalled, "6"),
    (Scheme::Staged, "staged"),
];

impl FromStr for Scheme {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "5" {
            return Err("scheme 5 has no signalling: accelerators that get ahead of the reader \
                        would compute on data that is not there yet; take 6 or staged"
                .into());
        }
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(scheme, _)| *scheme).ok_or_else(|| {
            let names: Vec<_> = NAMES.iter().map(|(_, known)| *known).collect();
            format!("'{name}' is none of {}", names.join(", "))
        })
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = NAMES.iter().find(|(scheme, _)| scheme == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl Scheme {
    /// What is carried out where this is asked for, unless a reduction looks in
    /// place. By itself a run that transfers takes `Direct`: in `cellway bench
    /// schemes` no other was faster by more than its own runs differed.
    #[must_use]
    pub fn resolved(self) -> Self {
        if self == Self::Auto { Self::Direct } else { self }
    }
}

/// When the host does its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Before the accelerators begin.
    Ahead,
    /// While they work.
    Beside,
    /// When they have ended.
    After,
}

/// How a run's bytes move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// By each accelerator's own transfers from and to files.
    Own,
    /// Not at all: the input's pages are looked at.
    Mapped,
    /// By calls that the host serves; schemes 1 to 3 differ in when it reads ahead.
    Assisted { prefetch: Option<When> },
    /// Through memory.
    Staged(Staging),
}

/// Memory between files and accelerators: schemes 4, 6 and staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Staging {
    /// Ahead or beside.
    pub(crate) reader: When,
    /// Beside or after.
    pub(crate) writer: When,
    /// Buffers that are used in turn; scheme 4 has enough for all of the input.
    pub(crate) buffers: u64,
    /// Units of a buffer: one for each thread; of a pipe, whose end shows late, 1.
    pub(crate) buffer_units: u64,
    /// Bytes of each buffer for input, with its surroundings.
    pub(crate) in_bytes: u64,
    /// Places for output that are used in turn; 0 for a reduction.
    pub(crate) out_slots: u64,
    /// Bytes of each.
    pub(crate) out_bytes: u64,
}

/// The units of a run, as far as they matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub(crate) count: Option<u64>,
    pub(crate) bytes: u64,
    /// Most that is put of one at once.
    pub(crate) out_bytes: u64,
    /// Threads of all accelerators.
    pub(crate) threads: u64,
}

impl Io {
    /// `buffers`: what was asked for.
    pub(crate) fn decide(
        scheme: Scheme,
        buffers: Option<usize>,
        shape: &Shape,
        units: Units,
    ) -> Result<Self, PlanError> {
        let refused = |why: &str, cure| {
            Err(PlanError::Scheme { scheme: scheme.resolved(), why: why.to_owned(), cure })
        };
        if buffers.is_some() && scheme != Scheme::Staged {
            return refused("--staging is the number of other buffers", "take --scheme staged");
        }
        let (reader, writer) = match scheme.resolved() {
            Scheme::Auto | Scheme::Direct => return Ok(Self::Own),
            Scheme::Mapped if units.count.is_some() => return Ok(Self::Mapped),
            Scheme::Mapped => {
                return refused("a pipe has no pages to look at", "name a file, or take another");
            }
            Scheme::Assisted | Scheme::ReadAhead | Scheme::Prefetch => (None, When::Beside),
            Scheme::Whole => (Some(When::Ahead), When::After),
            Scheme::Signalled | Scheme::Staged => (Some(When::Beside), When::Beside),
        };
        let holds_all = matches!(scheme, Scheme::ReadAhead | Scheme::Whole);
        if holds_all && units.count.is_none() {
            return refused(
                "it holds all of its input, and where a pipe ends shows at its end: memory would \
                 have no bound",
                "take --scheme staged, or name a file",
            );
        }
        if shape.effect == Effect::Rewrite && holds_all && reader.is_some() {
            return refused(
                "it holds all of its output, whose length shows at its end: memory would have no \
                 bound",
                "take --scheme staged",
            );
        }
        let Some(reader) = reader else {
            let prefetch = match scheme {
                Scheme::ReadAhead => Some(When::Ahead),
                Scheme::Prefetch => Some(When::Beside),
                _ => None,
            };
            return Ok(Self::Assisted { prefetch });
        };
        let threads = units.threads.max(1);
        let buffer_units = if units.count.is_some() { threads } else { 1 };
        let count = units.count.unwrap_or(u64::MAX);
        let in_bytes = units.bytes.saturating_mul(buffer_units.min(count));
        let in_bytes = in_bytes.saturating_add(shape.halo_bytes());
        let staging = |buffers: u64| {
            let places = buffers.saturating_mul(buffer_units);
            let out_slots = match shape.effect {
                Effect::Reduce => 0,
                Effect::Transform => places.min(count.max(1)),
                // Made of one block may be several.
                Effect::Rewrite => places,
            };
            let out_bytes = units.out_bytes;
            Staging { reader, writer, buffers, buffer_units, in_bytes, out_slots, out_bytes }
        };
        let few =
            (buffers.unwrap_or(STAGING_DEFAULT) as u64).saturating_mul(threads / buffer_units);
        let few = match scheme {
            Scheme::Signalled => {
                let (in_bytes, out_bytes) = staging(1).held_bytes();
                few.max(SIGNALLED_BYTES / in_bytes.saturating_add(out_bytes))
            }
            _ => few,
        };
        let needed = count.div_ceil(buffer_units).max(1);
        Ok(Self::Staged(staging(if scheme == Scheme::Whole { needed } else { needed.min(few) })))
    }

    /// Whether what the scheme holds fits the memory; asks only where that is much.
    pub(crate) fn check(
        &self,
        plan: &Plan,
        free_bytes: impl FnOnce() -> Option<u64>,
    ) -> Result<(), PlanError> {
        let scheme = plan.scheme;
        let (in_bytes, out_bytes) = match self {
            // The page cache is to hold it.
            Self::Assisted { prefetch: Some(When::Ahead) } => (plan.body_bytes().unwrap_or(0), 0),
            Self::Staged(staging) => staging.held_bytes(),
            _ => return Ok(()),
        };
        let cure = match scheme {
            Scheme::Staged => "take fewer buffers by --staging, or smaller blocks",
            _ => "take --scheme staged",
        };
        match free_bytes() {
            Some(free_bytes) if free_bytes < in_bytes.saturating_add(out_bytes) => {
                Err(PlanError::Memory { scheme, in_bytes, out_bytes, free_bytes, cure })
            }
            _ => Ok(()),
        }
    }

    /// Whether the host has a part in it.
    pub(crate) fn is_by_host(&self) -> bool {
        matches!(self, Self::Assisted { .. } | Self::Staged(_))
    }

    /// What the host's part takes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Own | Self::Mapped => 0,
            Self::Assisted { prefetch } => {
                2 * HOST_THREAD_BYTES + prefetch.map_or(0, |_| SCRATCH_BYTES as u64)
            }
            Self::Staged(staging) => {
                let (in_bytes, out_bytes) = staging.held_bytes();
                // A pipe's units go through one more buffer.
                in_bytes
                    .saturating_add(out_bytes)
                    .saturating_add(if staging.buffer_units == 1 { staging.in_bytes } else { 0 })
                    .saturating_add(PIPE_BYTES as u64 + 2 * HOST_THREAD_BYTES)
            }
        }
    }
}

impl Staging {
    /// Memory for all buffers, and for all places for output, with what is noted of each.
    pub(crate) fn held_bytes(&self) -> (u64, u64) {
        let of_pipe = if self.buffer_units == 1 { size_of::<Option<Piece>>() } else { 0 };
        let in_bytes = self.in_bytes.saturating_add((size_of::<u64>() + of_pipe) as u64);
        let out_bytes = self.out_bytes.saturating_add(size_of::<Option<staged::Put>>() as u64);
        (self.buffers.saturating_mul(in_bytes), self.out_slots.saturating_mul(out_bytes))
    }
}

#[cfg(test)]
mod tests;
