//! Sorted runs of words in unnamed temporary files, and merging them with a
//! bounded number of readers.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::WORD_BYTES_MAX;
use super::table::Order;

/// Runs read at the same time.
const FAN_IN: usize = 16;
/// Runs kept before they are merged into fewer.
const RUNS_MAX: usize = FAN_IN * FAN_IN;
const READ_BUFFER_BYTES: usize = 32 << 10;
const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// The most memory spilling and merging take, besides the table: a buffer and
/// a word for each reader, for the writer, and for the word in hand, and the list of runs.
pub(super) const SPILL_BYTES: u64 = (FAN_IN * (READ_BUFFER_BYTES + WORD_BYTES_MAX)
    + WRITE_BUFFER_BYTES
    + 2 * WORD_BYTES_MAX
    + 2 * RUNS_MAX * size_of::<Run>()) as u64;

/// A sorted sequence of words in a file: for each its length (4 bytes), its
/// count (8 bytes), both little endian, and its bytes.
#[derive(Clone, Debug)]
pub(super) struct Run {
    file: Arc<File>,
    start: u64,
    end: u64,
}

impl Run {
    /// All of a file of that length.
    pub(super) fn whole(file: Arc<File>, len_bytes: u64) -> Self {
        Self { file, start: 0, end: len_bytes }
    }

    /// Appends a run to `file`: `fill` hands each word, in order, to the writer.
    pub(super) fn write(
        file: &Arc<File>,
        fill: impl FnOnce(&mut RunWriter<'_>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let start = (&**file).stream_position()?;
        let mut writer = RunWriter(BufWriter::with_capacity(WRITE_BUFFER_BYTES, file));
        fill(&mut writer)?;
        writer.0.flush()?;
        drop(writer);
        let end = (&**file).stream_position()?;
        Ok(Self { file: Arc::clone(file), start, end })
    }

    /// Bytes that are not read yet.
    pub(super) fn len_bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Runs of one order, all written to files in one directory. The files have no
/// name and vanish when the last run in them is dropped.
#[derive(Debug)]
pub(super) struct Runs {
    directory: PathBuf,
    order: Order,
    /// Words beyond this many from a run's start are not needed.
    limit: u64,
    current: Option<Arc<File>>,
    runs: Vec<Run>,
}

impl Runs {
    pub(super) fn new(directory: &Path, order: Order, limit: u64) -> Self {
        Self { directory: directory.to_owned(), order, limit, current: None, runs: Vec::new() }
    }

    /// All of them; none are left.
    pub(super) fn take(&mut self) -> Self {
        let none = Self::new(&self.directory, self.order, self.limit);
        std::mem::replace(self, none)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Writes a run: `fill` hands each word, in order, to the function it is given.
    pub(super) fn write(
        &mut self,
        fill: impl FnOnce(&mut RunWriter<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.write_run(fill)?;
        if self.runs.len() >= RUNS_MAX {
            self.merge_until(FAN_IN)?;
        }
        debug_assert!(self.runs.len() < RUNS_MAX);
        Ok(())
    }

    fn write_run(
        &mut self,
        fill: impl FnOnce(&mut RunWriter<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let file = match &self.current {
            Some(file) => file.clone(),
            None => self.current.insert(Arc::new(tempfile::tempfile_in(&self.directory)?)).clone(),
        };
        self.runs.push(Run::write(&file, fill)?);
        Ok(())
    }

    /// Takes over the runs of another accelerator.
    pub(super) fn append(&mut self, mut other: Runs) {
        self.runs.append(&mut other.runs);
    }

    /// Takes over runs of the same order.
    pub(super) fn extend(&mut self, runs: impl Iterator<Item = Run>) {
        self.runs.extend(runs);
    }

    /// Reads all runs as one; equal words follow each other as one with their sum.
    pub(super) fn into_merged(mut self) -> io::Result<Merged> {
        self.merge_until(FAN_IN)?;
        Merged::open(&self.runs, self.order)
    }

    /// Merges groups of runs until there are at most `count`.
    fn merge_until(&mut self, count: usize) -> io::Result<()> {
        while self.runs.len() > count {
            // A new file each time: the old one's space is free as soon as its runs are merged.
            self.current = None;
            let runs = std::mem::take(&mut self.runs);
            for group in runs.chunks(FAN_IN) {
                let mut merged = Merged::open(group, self.order)?;
                let limit = self.limit;
                self.write_run(|writer| merged.write(limit, writer))?;
            }
        }
        Ok(())
    }
}

/// Appends words to a run.
pub(super) struct RunWriter<'a>(BufWriter<&'a File>);

impl RunWriter<'_> {
    pub(super) fn push(&mut self, word: &[u8], count: u64) -> io::Result<()> {
        self.0.write_all(&(word.len() as u32).to_le_bytes())?;
        self.0.write_all(&count.to_le_bytes())?;
        self.0.write_all(word)
    }
}

/// The unread part of a run.
impl Read for Run {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest_bytes = usize::try_from(self.len_bytes()).unwrap_or(usize::MAX);
        let most_bytes = buffer.len().min(rest_bytes);
        let got = self.file.read_at(&mut buffer[..most_bytes], self.start)?;
        self.start += got as u64;
        Ok(got)
    }
}

/// A run's first unread word.
#[derive(Debug)]
struct Front {
    word: Vec<u8>,
    count: u64,
    order: Order,
    rest: BufReader<Run>,
}

impl Front {
    /// Reads the next word; `false` at the run's end.
    fn advance(&mut self) -> io::Result<bool> {
        let mut head = [0; 12];
        if self.rest.buffer().is_empty() && self.rest.get_ref().start == self.rest.get_ref().end {
            return Ok(false);
        }
        self.rest.read_exact(&mut head)?;
        let [a, b, c, d, count @ ..] = head;
        self.count = u64::from_le_bytes(count);
        let len_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if len_bytes > WORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the spilled words were changed",
            ));
        }
        self.word.resize(len_bytes, 0);
        self.rest.read_exact(&mut self.word)?;
        Ok(true)
    }
}

impl Ord for Front {
    /// Reversed: a heap's top is its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.compare((&other.word, other.count), (&self.word, self.count))
    }
}

impl PartialOrd for Front {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Front {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Front {}

/// Some runs read as one.
#[derive(Debug)]
pub(super) struct Merged {
    fronts: BinaryHeap<Front>,
}

impl Merged {
    pub(super) fn open(runs: &[Run], order: Order) -> io::Result<Self> {
        debug_assert!(runs.len() <= FAN_IN);
        let mut fronts = BinaryHeap::with_capacity(runs.len());
        for run in runs {
            let rest = BufReader::with_capacity(READ_BUFFER_BYTES, run.clone());
            let mut front = Front { word: Vec::new(), count: 0, order, rest };
            if front.advance()? {
                fronts.push(front);
            }
        }
        Ok(Self { fronts })
    }

    /// Puts the next word into `word` and returns its count; `None` at the end.
    pub(super) fn next(&mut self, word: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let Some(mut front) = self.fronts.peek_mut() else { return Ok(None) };
        std::mem::swap(&mut front.word, word);
        let mut count = front.count;
        Self::advance(front)?;
        while let Some(front) = self.fronts.peek_mut() {
            // Ordered by count a word occurs once, so this adds nothing then.
            if front.word != *word {
                break;
            }
            count += front.count;
            Self::advance(front)?;
        }
        Ok(Some(count))
    }

    /// Writes the first `limit` words.
    pub(super) fn write(&mut self, limit: u64, writer: &mut RunWriter<'_>) -> io::Result<()> {
        let mut word = Vec::with_capacity(WORD_BYTES_MAX);
        for _ in 0..limit {
            let Some(count) = self.next(&mut word)? else { break };
            writer.push(&word, count)?;
        }
        Ok(())
    }

    fn advance(mut front: PeekMut<'_, Front>) -> io::Result<()> {
        if !front.advance()? {
            PeekMut::pop(front);
        }
        Ok(())
    }
}
