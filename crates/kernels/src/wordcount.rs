//! `wordcount`: how often each word occurs, most frequent first, in bounded
//! memory however many different words there are.
//!
//! Words are maximal runs of bytes other than space, `\t`, `\n`, `\v`, `\f` and
//! `\r`; what is neither is part of a word, whatever the encoding. A unit owns
//! the words that start in it and reads on past its end to finish the last.
//! Each accelerator counts in a table of fixed size; when it is full, its words
//! are written as a sorted run to an unnamed temporary file. At the end runs are
//! merged by word, and their sums sorted anew by count, in the same memory.

mod kept;
mod runs;
mod scan;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stream::{Beside, Block, Cut, Effect, Kernel, KernelError, Saved, Unit};

use crate::{Finish, Report};
use kept::Kept;
use runs::{Merged, Runs, SPILL_BYTES};
use table::{BATCH_WORDS, Order, TABLE_BYTES_MIN, Table, Word};

/// The longest word, in bytes: so far a unit reads past its end.
const WORD_BYTES_MAX: usize = 64 << 10;

/// Counts words.
#[derive(Clone, Debug)]
pub struct WordCount {
    table_bytes: Option<u64>,
    top: Option<u64>,
    directory: PathBuf,
    /// Different words of the part that was saved last: the next one begins with room for as
    /// many, instead of growing to that lease after lease.
    saved_words: Arc<AtomicUsize>,
}

impl WordCount {
    /// Table memory of each accelerator that works, unless
    /// [`WordCount::table_bytes`] says otherwise: some 400 000 different words.
    pub const TABLE_BYTES_PER_ACCELERATOR: u64 = 32 << 20;

    /// Words that do not fit the tables are spilled to `directory`.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            table_bytes: None,
            top: None,
            directory: directory.into(),
            saved_words: Arc::default(),
        }
    }

    /// Tables of `bytes` in all, shared evenly by the accelerators, but at
    /// least 256 KiB for each.
    #[must_use]
    pub fn table_bytes(mut self, bytes: u64) -> Self {
        self.table_bytes = Some(bytes);
        self
    }

    /// Reports only the `count` most frequent words.
    #[must_use]
    pub fn top(mut self, count: u64) -> Self {
        self.top = Some(count);
        self
    }

    fn part_table_bytes(&self, accelerators: usize) -> u64 {
        let share = |bytes: u64| (bytes / accelerators.max(1) as u64).max(TABLE_BYTES_MIN);
        self.table_bytes.map_or(Self::TABLE_BYTES_PER_ACCELERATOR, share)
    }

    /// Merges the spilled runs and sorts the sums by count, with the part's table.
    fn sort_spilled(&self, mut part: WordCountPart) -> io::Result<WordCountReport> {
        spill(&mut part.table, &mut part.runs)?;
        part.runs.extend(part.kept.into_runs());
        let mut merged = part.runs.into_merged()?;
        let mut by_count = Runs::new(&self.directory, Order::Count, self.top.unwrap_or(u64::MAX));
        let (mut distinct, mut word) = (0, Vec::with_capacity(WORD_BYTES_MAX));
        while let Some(count) = merged.next(&mut word)? {
            distinct += 1;
            add_or_spill(
                &mut part.table,
                &mut by_count,
                &Word::in_text(&word, 0, word.len()),
                count,
            )?;
        }
        drop(merged);
        let source = if by_count.is_empty() {
            Source::Table(part.table)
        } else {
            spill(&mut part.table, &mut by_count)?;
            drop(part.table);
            Source::Runs(by_count.into_merged()?)
        };
        Ok(WordCountReport { words: part.words, distinct, top: self.top, source })
    }
}

/// The words one accelerator has counted.
#[derive(Debug)]
pub struct WordCountPart {
    table: Table,
    runs: Runs,
    /// What the last record tells of, if there is a journal.
    kept: Kept,
    words: u64,
    /// A word that lies across a block's end.
    across: Vec<u8>,
}

impl Kernel for WordCount {
    type Part = WordCountPart;
    type Header = ();

    fn name(&self) -> &str {
        "wordcount"
    }

    fn cut(&self, _: &()) -> Cut {
        Cut { align_bytes: 1, before_bytes: 1, after_bytes: WORD_BYTES_MAX }
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let part_bytes =
            self.part_table_bytes(accelerators) + SPILL_BYTES + size_of::<WordCountPart>() as u64;
        part_bytes * accelerators as u64
    }

    fn part(&self, accelerators: usize) -> WordCountPart {
        WordCountPart {
            table: Table::new(self.part_table_bytes(accelerators)),
            runs: Runs::new(&self.directory, Order::Word, u64::MAX),
            kept: Kept::default(),
            words: 0,
            across: Vec::new(),
        }
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut WordCountPart,
    ) -> Result<(), KernelError> {
        self.reserve(part)?;
        let data: &[u8] = block.data;
        let inside = block.before.last().is_some_and(|byte| !scan::is_space(*byte));
        let mut batch = Batch::default();
        let open = scan::words(data, inside, |start, end| {
            if end - start > WORD_BYTES_MAX {
                return Err(too_long(unit.offset + start as u64));
            }
            if batch.push(Word::in_text(data, start, end)) {
                return Ok(());
            }
            self.count(&mut batch, part)
        })?;
        self.count(&mut batch, part)?;
        let Some(start) = open else { return Ok(()) };
        let rest_bytes =
            block.after.iter().position(|byte| scan::is_space(*byte)).unwrap_or(block.after.len());
        if data.len() - start + rest_bytes > WORD_BYTES_MAX {
            return Err(too_long(unit.offset + start as u64));
        }
        let mut across = std::mem::take(&mut part.across);
        across.clear();
        across.extend_from_slice(&data[start..]);
        across.extend_from_slice(&block.after[..rest_bytes]);
        let mut batch = Batch::default();
        batch.push(Word::in_text(&across, 0, across.len()));
        let counted = self.count(&mut batch, part);
        part.across = across;
        counted
    }

    fn merge(&self, part: &mut WordCountPart, later: WordCountPart) -> Result<(), KernelError> {
        self.reserve(part)?;
        part.words += later.words;
        part.runs.append(later.runs);
        part.kept.append(later.kept);
        let WordCountPart { table, runs, .. } = part;
        let added = later.table.for_each(|word, count| add_or_spill(table, runs, word, count));
        added.map_err(|error| self.spill_failed(&error))
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        // How large the tables are changes nothing.
        Ok(self.top.unwrap_or(u64::MAX).to_le_bytes().to_vec())
    }

    fn save(&self, part: &WordCountPart, out: &mut Vec<u8>) -> Result<(), KernelError> {
        let words = if part.is_in_table() { part.table.len() } else { usize::MAX };
        self.saved_words.store(words, Ordering::Relaxed);
        out.extend_from_slice(&part.words.to_le_bytes());
        part.table.for_each(|word, count| self.save_word(part.words, word, count, out))?;
        let failed = |error| self.spill_failed(&error);
        let mut text = Vec::with_capacity(WORD_BYTES_MAX);
        for run in part.runs.iter().chain(part.kept.iter()) {
            let mut run = Merged::open(std::slice::from_ref(run), Order::Word).map_err(failed)?;
            while let Some(count) = run.next(&mut text).map_err(failed)? {
                let word = Word::in_text(&text, 0, text.len());
                self.save_word(part.words, &word, count, out)?;
            }
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<WordCountPart, KernelError> {
        let mut part = self.part(accelerators);
        self.merge_saved(&mut part, saved)?;
        Ok(part)
    }

    /// Into the same table: a part of its own would be as large.
    fn merge_saved(&self, part: &mut WordCountPart, later: &[u8]) -> Result<(), KernelError> {
        self.reserve(part)?;
        let mut saved = Saved::new(later);
        part.words += saved.u64()?;
        let (mut batch, mut counts) = (Batch::default(), [0; BATCH_WORDS]);
        while !saved.is_empty() {
            let (count, len_bytes) = (saved.u64()?, saved.bytes()?.len());
            if len_bytes == 0 || len_bytes > WORD_BYTES_MAX {
                let what = format!("a word of {len_bytes} bytes was saved");
                return Err(KernelError::new(what, "let all nodes be of the same build"));
            }
            counts[batch.len] = count;
            let end = later.len() - saved.rest().len();
            if !batch.push(Word::in_text(later, end - len_bytes, end)) || saved.is_empty() {
                self.add(batch.take(), |at| counts[at], part)?;
            }
        }
        Ok(())
    }

    fn save_beside(
        &self,
        part: &mut WordCountPart,
        out: &mut Vec<u8>,
        beside: &Beside,
    ) -> Result<(), KernelError> {
        part.keep(beside).map_err(|error| {
            let what = format!("the words cannot be kept beside the journal: {error}");
            KernelError::new(what, "free space there, or put the journal on another disk")
        })?;
        out.extend_from_slice(&part.words.to_le_bytes());
        part.kept.save(out);
        Ok(())
    }

    fn load_beside(
        &self,
        saved: &[u8],
        accelerators: usize,
        beside: &Beside,
    ) -> Result<WordCountPart, KernelError> {
        let mut saved = Saved::new(saved);
        let words = saved.u64()?;
        let kept = Kept::load(saved, beside)?;
        Ok(WordCountPart { words, kept, ..self.part(accelerators) })
    }
}

impl WordCountPart {
    /// Leaves all that was counted beside the journal.
    fn keep(&mut self, beside: &Beside) -> io::Result<()> {
        let Self { table, runs, kept, .. } = self;
        kept.tidy(beside)?;
        if runs.is_empty() && table.len() > 0 {
            return kept.add(beside, |writer| {
                table.drain(Order::Word, u64::MAX, |word, count| writer.push(word, count))
            });
        }
        if !runs.is_empty() {
            spill(table, runs)?;
            let mut merged = runs.take().into_merged()?;
            kept.add(beside, |writer| merged.write(u64::MAX, writer))?;
        }
        Ok(())
    }

    fn is_in_table(&self) -> bool {
        self.runs.is_empty() && self.kept.is_empty()
    }
}

/// Words that wait to be counted together.
#[derive(Default)]
struct Batch<'a> {
    words: [Word<'a>; BATCH_WORDS],
    len: usize,
}

impl<'a> Batch<'a> {
    /// Takes a word into a batch that is not full; `false` if it is full then.
    #[inline(always)]
    fn push(&mut self, word: Word<'a>) -> bool {
        self.words[self.len] = word;
        self.len += 1;
        self.len < BATCH_WORDS
    }

    /// What it has; it is empty then.
    fn take(&mut self) -> &[Word<'a>] {
        &self.words[..std::mem::take(&mut self.len)]
    }
}

impl WordCount {
    /// Counts a batch and empties it.
    fn count(&self, batch: &mut Batch<'_>, part: &mut WordCountPart) -> Result<(), KernelError> {
        let words = batch.take();
        part.words += words.len() as u64;
        self.add(words, |_| 1, part)
    }

    /// Counts each word of a batch as often more as its number says.
    #[inline(always)]
    fn add(
        &self,
        words: &[Word<'_>],
        count: impl Fn(usize) -> u64,
        part: &mut WordCountPart,
    ) -> Result<(), KernelError> {
        let added = part.table.add_each(words, &count);
        for (at, word) in words.iter().enumerate().skip(added) {
            add_or_spill(&mut part.table, &mut part.runs, word, count(at))
                .map_err(|error| self.spill_failed(&error))?;
        }
        Ok(())
    }

    /// Gives a part its table's memory.
    fn reserve(&self, part: &mut WordCountPart) -> Result<(), KernelError> {
        part.table.reserve(self.saved_words.load(Ordering::Relaxed)).map_err(|bytes| {
            KernelError::new(
                format!("there is no memory for {bytes} bytes of a word table"),
                "give fewer --table-bytes or use fewer accelerators",
            )
        })
    }

    /// Into no more than a part takes: it goes from node to node in one piece.
    fn save_word(
        &self,
        words: u64,
        word: &Word<'_>,
        count: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), KernelError> {
        let bytes_max = self.memory_bytes(1);
        if (out.len() + word.len()) as u64 > bytes_max {
            let what = format!(
                "the different ones of {words} words take more than {} MiB",
                bytes_max >> 20
            );
            let cure = "let nodes compute less at a time by --unit, or give more --table-bytes";
            return Err(KernelError::new(what, cure));
        }
        word.save(count, out);
        Ok(())
    }

    fn spill_failed(&self, error: &io::Error) -> KernelError {
        let what = format!(
            "the words do not fit the table, and spilling them to {} failed: {error}",
            self.directory.display()
        );
        KernelError::new(
            what,
            "free space there, set TMPDIR to another directory, or give more --table-bytes",
        )
    }
}

fn too_long(offset: u64) -> KernelError {
    KernelError::new(
        format!("a word is longer than {} KiB", WORD_BYTES_MAX >> 10),
        "check that the input is text: words end with white space",
    )
    .at(offset)
}

/// Counts a word; a full table is spilled first.
fn add_or_spill(table: &mut Table, runs: &mut Runs, word: &Word<'_>, count: u64) -> io::Result<()> {
    if table.add(word, count).is_err() {
        spill(table, runs)?;
        // An empty table has room for any word.
        let added = table.add(word, count);
        debug_assert_eq!(added, Ok(()));
    }
    Ok(())
}

fn spill(table: &mut Table, runs: &mut Runs) -> io::Result<()> {
    let (order, limit) = (runs.order(), runs.limit());
    runs.write(|writer| table.drain(order, limit, |word, count| writer.push(word, count)))
}

impl Finish for WordCount {
    type Report = WordCountReport;

    fn finish(&self, mut part: WordCountPart) -> Result<WordCountReport, KernelError> {
        part.across = Vec::new();
        if !part.is_in_table() {
            // One that was resumed may have counted nothing since.
            self.reserve(&mut part)?;
            return self.sort_spilled(part).map_err(|error| self.spill_failed(&error));
        }
        let distinct = part.table.len() as u64;
        Ok(WordCountReport {
            words: part.words,
            distinct,
            top: self.top,
            source: Source::Table(part.table),
        })
    }
}

/// The words, most frequent first, ties by the words' bytes. Writing it empties it.
#[derive(Debug)]
pub struct WordCountReport {
    /// How many words the input has.
    pub words: u64,
    /// How many different ones.
    pub distinct: u64,
    top: Option<u64>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Table(Table),
    Runs(Merged),
}

impl WordCountReport {
    /// Hands each word and its count to `emit`, and forgets them.
    ///
    /// # Errors
    /// Those of `emit`, and of reading the spilled words.
    pub fn for_each(
        &mut self,
        mut emit: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let limit = self.top.unwrap_or(u64::MAX);
        match &mut self.source {
            Source::Table(table) => table.drain(Order::Count, limit, emit),
            Source::Runs(merged) => {
                let mut word = Vec::with_capacity(WORD_BYTES_MAX);
                let failed =
                    |error| io::Error::other(format!("cannot read the spilled words: {error}"));
                for _ in 0..limit {
                    let Some(count) = merged.next(&mut word).map_err(failed)? else { break };
                    emit(&word, count)?;
                }
                Ok(())
            }
        }
    }
}

impl Report for WordCountReport {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.for_each(|word, count| {
            write!(out, "{count}\t")?;
            out.write_all(word)?;
            out.write_all(b"\n")
        })
    }

    /// A word that is not UTF-8 stands as its bytes in hexadecimal, under `word_hex`.
    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, r#"{{"words":{},"distinct":{},"counts":["#, self.words, self.distinct)?;
        let mut separator = "";
        self.for_each(|word, count| {
            write!(out, r#"{separator}{{"count":{count},"#)?;
            separator = ",";
            match str::from_utf8(word) {
                Ok(word) => {
                    out.write_all(br#""word":"#)?;
                    serde_json::to_writer(&mut *out, word)?;
                }
                Err(_) => {
                    out.write_all(br#""word_hex":""#)?;
                    word.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
                    out.write_all(b"\"")?;
                }
            }
            out.write_all(b"}")
        })?;
        out.write_all(b"]}\n")
    }
}
