//! Through the page cache or past it: chosen for each side of a run.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use accel::Region;
use storage::{DirectFile, Input, Kind, Output};

use crate::kernel::Effect;
use crate::plan::{BUF_ALIGN_BYTES, Plan, PlanError};
use crate::scheme::Scheme;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Input: if most of it is not cached. Output: if it is large. Both: where
    /// the file system has it.
    #[default]
    Auto,
    /// Always; an error where the file system refuses it, and for pipes, but a
    /// transform may read one.
    On,
    /// Never.
    Off,
}

impl FromStr for Direct {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(format!("'{other}' is none of auto, on, off")),
        }
    }
}

impl fmt::Display for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Below this, the page cache is the shorter way whatever it holds.
const DIRECT_FROM_BYTES: u64 = 1 << 20;

/// With a larger share of the input cached, reading past the cache loses.
const CACHED_SHARE: f64 = 0.5;

/// One side of a run: the file, and its direct descriptor if that is the way.
pub(crate) struct Path {
    direct: Option<DirectFile>,
    /// Granularity of transfers, 1 through the page cache.
    pub(crate) align_bytes: u64,
    /// Why, for people.
    pub(crate) why: String,
    /// All of an input that was looked at for it is in the page cache.
    pub(crate) all_cached: bool,
}

impl Path {
    pub(crate) fn of_input(input: &Input, wish: Direct, effect: Effect) -> Result<Self, PlanError> {
        // What a pipe brings can still be written past the cache: see there.
        let piped = input.kind() == Kind::Stream && effect == Effect::Transform;
        let wish = if piped { Direct::Auto } else { wish };
        let mut all_cached = false;
        let cached = || match input.resident_share() {
            Some(share) if share > CACHED_SHARE => {
                all_cached = share >= 1.0;
                Some(format!("{:.0}% of it is cached", share * 100.0))
            }
            _ => None,
        };
        let open = || input.open_direct().map_err(|refused| refused.to_string());
        let path = choose(input.kind(), input.len_bytes(), wish, cached, open)?;
        Ok(Self { all_cached, ..path })
    }

    pub(crate) fn of_output(output: &Output, plan: &Plan, wish: Direct) -> Result<Self, PlanError> {
        // What a rewrite makes is taken to be about as long.
        let len_bytes = plan.body_bytes();
        let unsized_output = || len_bytes.is_none().then(|| "its length is not known".to_owned());
        let open = || {
            if plan.out_bytes == 0
                && plan.units.is_none_or(|units| units > 1)
                && !plan.block_bytes.is_multiple_of(BUF_ALIGN_BYTES)
            {
                let (name, block_bytes) = (output.name(), plan.block_bytes);
                return Err(format!(
                    "{name}: blocks of {block_bytes} bytes are no multiple of {BUF_ALIGN_BYTES}"
                ));
            }
            output.open_direct().map_err(|refused| refused.to_string())
        };
        let mut path = choose(output.kind(), len_bytes, wish, unsized_output, open)?;
        if path.direct.is_some() {
            // A last piece goes through the page cache. It must not share a page
            // with direct output: that page would bring old bytes back.
            path.align_bytes = BUF_ALIGN_BYTES;
        }
        Ok(path)
    }

    /// Through the page cache, because `why`.
    pub(crate) fn cached(why: &str) -> Self {
        Self::new(format!("page cache: {why}"))
    }

    /// With no direct descriptor.
    fn new(why: String) -> Self {
        Self { direct: None, align_bytes: 1, why, all_cached: false }
    }

    /// As the host goes, which `reads` or `writes`.
    pub(crate) fn by_host(kind: Kind, does: &str, scheme: Scheme) -> Self {
        let by_host = format!("the host {does}, by scheme {scheme}");
        match kind {
            Kind::Stream => Self::new(format!("a stream, which {by_host}")),
            Kind::File | Kind::BlockDevice => Self::cached(&by_host),
        }
    }

    /// Bytes `range` of the file as a region.
    pub(crate) fn region(
        &self,
        buffered: &Arc<std::fs::File>,
        range: Range<u64>,
        name: &str,
    ) -> Region<'static> {
        match &self.direct {
            Some(direct) => Region::direct_file(direct.file.clone(), range, name, self.align_bytes),
            None => Region::file(buffered.clone(), range, name),
        }
    }
}

fn choose(
    kind: Kind,
    len_bytes: Option<u64>,
    wish: Direct,
    better_cached: impl FnOnce() -> Option<String>,
    open: impl FnOnce() -> Result<DirectFile, String>,
) -> Result<Path, PlanError> {
    let cached = |why: String| Ok(Path::cached(&why));
    // A stream has no direct I/O, which is said below if that was asked for.
    if kind == Kind::Stream && wish != Direct::On {
        return Ok(Path::new("a stream, one byte after the other".into()));
    }
    match wish {
        Direct::Off => return cached("asked for".into()),
        Direct::Auto if len_bytes.is_some_and(|len| len < DIRECT_FROM_BYTES) => {
            return cached("small".into());
        }
        Direct::Auto => {
            if let Some(why) = better_cached() {
                return cached(why);
            }
        }
        Direct::On => {}
    }
    let opened = open().and_then(|direct| {
        match direct.offset_align_bytes.max(direct.memory_align_bytes) as u64 {
            align_bytes if align_bytes <= BUF_ALIGN_BYTES => Ok((direct, align_bytes)),
            align_bytes => Err(format!(
                "it wants {align_bytes} bytes of alignment, buffers have {BUF_ALIGN_BYTES}"
            )),
        }
    });
    match opened {
        Ok((direct, align_bytes)) => {
            Ok(Path { direct: Some(direct), align_bytes, why: "direct".into(), all_cached: false })
        }
        Err(why) if wish == Direct::On => Err(PlanError::Direct { why }),
        Err(why) => cached(why),
    }
}
