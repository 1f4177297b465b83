//! Through the page cache or past it: chosen for each side of a run.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use accel::Region;
use storage::{DirectFile, DirectRefused, Input, Kind, Output};

use crate::plan::PlanError;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Input: if most of it is not cached. Output: if it is large. Both: where
    /// the file system has it.
    #[default]
    Auto,
    /// Always; an error where the file system refuses it.
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
    pub(crate) direct: Option<DirectFile>,
    /// Why, for people.
    pub(crate) why: String,
}

impl Path {
    pub(crate) fn of_input(input: &Input, wish: Direct) -> Result<Self, PlanError> {
        let cached = || match input.resident_share() {
            Some(share) if share > CACHED_SHARE => Some(format!("{:.0}% of it is cached", share * 100.0)),
            _ => None,
        };
        choose(input.kind(), input.len_bytes(), wish, cached, || input.open_direct())
    }

    pub(crate) fn of_output(output: &Output, len_bytes: Option<u64>, wish: Direct) -> Result<Self, PlanError> {
        let unsized_output = || len_bytes.is_none().then(|| "its length is not known".to_owned());
        choose(output.kind(), len_bytes, wish, unsized_output, || output.open_direct())
    }

    /// Granularity of transfers, 1 through the page cache.
    pub(crate) fn align_bytes(&self) -> u64 {
        self.direct.as_ref().map_or(1, |file| file.offset_align_bytes.max(file.memory_align_bytes) as u64)
    }

    /// The file's first `len_bytes` bytes as a region.
    pub(crate) fn region(&self, buffered: &Arc<std::fs::File>, len_bytes: u64, name: &str) -> Region<'static> {
        match &self.direct {
            Some(direct) => Region::direct_file(direct.file.clone(), 0..len_bytes, name, self.align_bytes()),
            None => Region::file(buffered.clone(), 0..len_bytes, name),
        }
    }
}

fn choose(
    kind: Kind,
    len_bytes: Option<u64>,
    wish: Direct,
    better_cached: impl FnOnce() -> Option<String>,
    open: impl FnOnce() -> Result<DirectFile, DirectRefused>,
) -> Result<Path, PlanError> {
    let cached = |why: String| Ok(Path { direct: None, why: format!("page cache: {why}") });
    if kind == Kind::Stream {
        return Ok(Path { direct: None, why: "a stream, one byte after the other".into() });
    }
    match wish {
        Direct::Off => return cached("asked for".into()),
        Direct::Auto if len_bytes.is_some_and(|len| len < DIRECT_FROM_BYTES) => return cached("small".into()),
        Direct::Auto => {
            if let Some(why) = better_cached() {
                return cached(why);
            }
        }
        Direct::On => {}
    }
    match open() {
        Ok(direct) => Ok(Path { direct: Some(direct), why: "direct".into() }),
        Err(refused) if wish == Direct::On => Err(PlanError::Direct { why: refused.to_string() }),
        Err(refused) => cached(refused.to_string()),
    }
}
