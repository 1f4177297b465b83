//! Files in memory that experiments read both ways: by file calls, and by
//! transfers from the memory they lie in.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use cellway::accel::Ea;
use fs::{FileMemory, FileServer, Files, OpenFile, OpenMode, RamServer, Stretch, UnixServer, wait};

use crate::hw::Pages;

const USER: &str = "bench";

/// Bytes written at once when a file is made.
const WRITE_BYTES: usize = 1 << 20;

/// Files of `#r`, and where they lie.
pub(crate) struct Ram {
    pub(crate) files: Files,
    server: Arc<RamServer>,
}

impl Ram {
    /// In pages of that size, with room for `bytes` of them.
    pub(crate) fn new(pages: Pages, bytes: u64) -> anyhow::Result<Self> {
        // What files cost besides their bytes, and a huge page more for each.
        let room = bytes + (64 << 20);
        let server = Arc::new(match pages {
            Pages::Small => RamServer::new(room),
            Pages::Huge => RamServer::in_huge_pages(room),
        });
        Ok(Self { files: Files::new(USER).with("#r", server.clone())?, server })
    }

    pub(crate) fn server(&self) -> Arc<RamServer> {
        self.server.clone()
    }

    /// The file `name`, without its server, open for reads.
    pub(crate) fn open(&self, name: &str) -> anyhow::Result<Arc<dyn OpenFile>> {
        open(&*self.server, name)
    }

    /// Where that file lies.
    pub(crate) fn memory(&self, name: &str) -> anyhow::Result<Arc<dyn FileMemory>> {
        memory(&*self.server, name)
    }
}

/// Files of `#U`, and where they lie.
pub(crate) struct Unix {
    pub(crate) files: Files,
    server: Arc<UnixServer>,
}

impl Unix {
    /// Those in a folder, to read.
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        let server = Arc::new(UnixServer::new(folder, true)?);
        Ok(Self { files: Files::new(USER).with("#U", server.clone())?, server })
    }

    /// A mapping of the file `name`.
    pub(crate) fn memory(&self, name: &str) -> anyhow::Result<Arc<dyn FileMemory>> {
        memory(&*self.server, name)
    }
}

fn open(server: &dyn FileServer, name: &str) -> anyhow::Result<Arc<dyn OpenFile>> {
    Ok(wait(async {
        let root = server.attach(USER, "").await?;
        root.walk(name).await?.open(OpenMode::READ).await
    })?)
}

fn memory(server: &dyn FileServer, name: &str) -> anyhow::Result<Arc<dyn FileMemory>> {
    open(server, name)?.memory().context("the file does not tell where it lies")
}

/// Makes the file `name` of `len_bytes` bytes, each as `byte` says.
pub(crate) fn make(
    files: &Files,
    name: &str,
    len_bytes: u64,
    byte: impl Fn(u64) -> u8,
) -> anyhow::Result<()> {
    wait(async {
        let mut file = files.create(name, 0o644, OpenMode::WRITE).await?;
        let mut data = Vec::with_capacity(WRITE_BYTES);
        for start in (0..len_bytes).step_by(WRITE_BYTES) {
            data.clear();
            data.extend((start..len_bytes.min(start + WRITE_BYTES as u64)).map(&byte));
            file.write_all(&data).await?;
        }
        anyhow::Ok(())
    })
    .with_context(|| format!("cannot make {name}"))
}

/// Where the blocks of a file lie, for transfers; none of them crosses a gap.
pub(crate) fn places(
    memory: &dyn FileMemory,
    len_bytes: u64,
    block_bytes: u64,
) -> anyhow::Result<Vec<Ea<'_>>> {
    let place = |block: u64| match memory.stretch(block * block_bytes) {
        Stretch::Bytes { region, at, len_bytes, .. } if len_bytes >= block_bytes => {
            Ok(region.at(at))
        }
        other => anyhow::bail!("block {block} does not lie in memory in one piece: {other:?}"),
    };
    (0..len_bytes / block_bytes).map(place).collect()
}
