//! The pipeline people write today: a thread reads, a thread writes, and
//! buffers rotate between them.

use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;

use anyhow::{Context as _, anyhow};
use cellway::storage::{Input, Output};
use cellway::stream::Plan;

/// Direct I/O wants buffers on such borders.
const ALIGN_BYTES: usize = 4096;

/// A buffer that starts on a border.
struct Rotating {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
    /// Where its content belongs.
    at: u64,
}

impl Rotating {
    fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity + ALIGN_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES);
        Self { bytes, start, len: capacity, at: 0 }
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    fn fill(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Copies `input` with as many buffers as `plan` has blocks under way.
pub(super) fn copy(input: &Input, output: &Output, plan: &Plan) -> anyhow::Result<()> {
    let len_bytes = input.len_bytes().context("the pipeline by hand copies files")?;
    let block_bytes = plan.block_bytes as usize;
    let direct = output.open_direct().ok();
    let (to_reader, free) = mpsc::channel();
    let (to_writer, full) = mpsc::channel::<Rotating>();
    for _ in 0..super::depth(plan) {
        to_reader.send(Rotating::new(block_bytes)).map_err(|_| anyhow!("the reader is gone"))?;
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || -> anyhow::Result<()> {
            for at in (0..len_bytes).step_by(block_bytes) {
                // The writer has failed, and says why.
                let Ok(mut buffer) = free.recv() else { return Ok(()) };
                buffer.at = at;
                buffer.len = block_bytes.min((len_bytes - at) as usize);
                input.file().read_exact_at(buffer.fill(), at)?;
                if to_writer.send(buffer).is_err() {
                    return Ok(());
                }
            }
            Ok(())
        });
        let writer = scope.spawn(move || -> anyhow::Result<()> {
            for buffer in full {
                let is_whole = buffer.len.is_multiple_of(ALIGN_BYTES);
                let file = match &direct {
                    Some(direct) if is_whole => &direct.file,
                    _ => output.file(),
                };
                file.write_all_at(buffer.content(), buffer.at)?;
                // The reader has read all.
                let _ = to_reader.send(buffer);
            }
            Ok(())
        });
        let ended = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<()>>| {
            thread.join().map_err(|_| anyhow!("a thread of the pipeline by hand panicked"))?
        };
        ended(reader).and(ended(writer))
    })
}
