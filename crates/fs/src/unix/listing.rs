//! A directory that is open.

use std::sync::Mutex;

use ninep::{Qid, kind};
use rustix::fs::{FileType, RawDir};

use super::held::Held;
use super::node::UnixNode;
use super::step::told;
use crate::error::{FsError, Kind};
use crate::server::{Answer, Info, OpenFile, now};
use crate::sync::lock;

/// What the names of one listing may take.
const NAMES_BYTES_MAX: usize = 64 << 20;

/// How much the kernel tells at once.
const BUFFER_BYTES: usize = 32 << 10;

/// The names in a directory when it was read, in an order that stays: positions
/// in the directory itself move on some file systems when entries go.
#[derive(Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(super) fn read(name: &str, directory: &Held) -> Result<Vec<String>, FsError> {
        let mut names = Vec::new();
        let mut bytes = 0;
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|error| told(name, error))?;
            let is_shown = matches!(
                entry.file_type(),
                FileType::RegularFile | FileType::Directory | FileType::Unknown
            );
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !is_shown || matches!(name, "." | "..") {
                continue;
            }
            bytes += name.len() + size_of::<String>();
            if bytes > NAMES_BYTES_MAX {
                let what = format!("has too many entries to list: {} so far", names.len());
                return Err(FsError::because(Kind::TooLarge, name, what));
            }
            names.push(name.into());
        }
        Ok(names)
    }

    pub(crate) fn of(names: Vec<String>) -> Self {
        Self(names)
    }

    /// What `look` tells of up to `max` entries from the `from`-th on. Those of
    /// which it tells nothing are not counted any more.
    pub(crate) fn entries(
        &mut self,
        from: u64,
        max: usize,
        mut look: impl FnMut(&str) -> Result<Option<Info>, FsError>,
    ) -> Result<Vec<Info>, FsError> {
        let mut kept = usize::try_from(from).unwrap_or(usize::MAX);
        let mut at = kept;
        let mut entries = Vec::new();
        while entries.len() < max {
            let Some(name) = self.0.get(at) else { break };
            if let Some(info) = look(name)? {
                entries.push(info);
                self.0.swap(kept, at);
                kept += 1;
            }
            at += 1;
        }
        if kept < at {
            self.0.drain(kept..at);
        }
        Ok(entries)
    }
}

/// An open directory: names, as its node has its descriptor.
pub(super) struct Listing {
    node: UnixNode,
    names: Mutex<Names>,
}

impl Listing {
    pub(super) fn of(node: UnixNode) -> Result<Self, FsError> {
        let names = Mutex::new(Names::of(node.names()?));
        Ok(Self { node, names })
    }
}

impl OpenFile for Listing {
    fn qid(&self) -> Qid {
        let unknown = Qid { kind: (kind::DIRECTORY >> 24) as u8, version: 0, path: self.node.path };
        self.node.info().map_or(unknown, |info| info.qid)
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, self.node.name())))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let mut names = lock(&self.names);
        now(names.entries(from, max, |name| self.node.look_at(name)))
    }
}
