//! Rewrites that are shared. Where a block goes shows only when those before it were
//! made, so what is made of it goes to a file of this process's own meanwhile, its
//! *spool*, and the result of a lease is where it lies. The manager puts all
//! together in order.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use storage::{Output, OutputError, SequentialWriter, SharedDir, hidden_name};

use crate::gate::lock;
use crate::kernel::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Out, OutState, Unit,
};
use crate::plan::Plan;
use crate::saved::Saved;
use crate::sink::ROOM_FROM;

/// Bytes that are copied at a time.
const COPIED_BYTES: usize = 1 << 20;

/// Where this process writes, in a folder that all have.
#[derive(Debug)]
pub struct Spool {
    /// What the user calls the output.
    name: String,
    dir: OnceLock<SharedDir>,
    file: OnceLock<Result<Own, OutputError>>,
}

/// This process's file.
#[derive(Debug)]
struct Own {
    number: u64,
    output: Output,
    end: AtomicU64,
}

impl Spool {
    /// In a folder that is not known yet, for an output of that `name` in messages.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), dir: OnceLock::new(), file: OnceLock::new() }
    }

    /// It is that one ([`SharedDir::path`]); said once.
    pub fn join(&self, dir: &Path) {
        // Threads that are nodes of one process join in the same way.
        let _ = self.dir.set(SharedDir::join(dir));
    }

    /// Where others join it; `None` before it has joined.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.dir.get().map(SharedDir::path)
    }

    /// Brings what was made in the folder to the disk.
    ///
    /// # Errors
    /// If that fails.
    pub fn settle(&self) -> Result<(), OutputError> {
        self.dir.get().map_or(Ok(()), SharedDir::settle)
    }

    /// Whether that can still be there which a run before made: `saved` are its [`Spans`], as
    /// [`Spooled`] saves them.
    ///
    /// # Errors
    /// Which file is too short or gone.
    pub fn check_there(&self, saved: &[u8]) -> Result<(), KernelError> {
        let Some(dir) = self.dir.get() else { return Ok(()) };
        let mut ends = BTreeMap::new();
        for Span { file, offset, len, .. } in load(saved)?.0 {
            let end = ends.entry(file).or_insert(0);
            *end = (offset + len).max(*end);
        }
        for (file, end) in ends {
            let len_bytes = dir.len_bytes(file);
            if len_bytes.unwrap_or(0) < end {
                let path = dir.path().join(file.to_string());
                let state = match len_bytes {
                    Some(len_bytes) => format!("has {len_bytes} of the"),
                    None => "is gone, with the".to_owned(),
                };
                let (path, name) = (path.display(), &self.name);
                let what = format!("{path} {state} {end} bytes that were made for {name}");
                return Err(KernelError::new(what, "start anew"));
            }
        }
        Ok(())
    }

    fn own(&self) -> Result<&Own, KernelError> {
        let did_not = || KernelError::new("this node did not join", "this is a bug in Cellway");
        let dir = self.dir.get().ok_or_else(did_not)?;
        let made = self.file.get_or_init(|| {
            let number = random();
            let output = dir.open(number, &self.name)?;
            Ok(Own { number, output, end: AtomicU64::new(0) })
        });
        made.as_ref().map_err(|error| error.clone().into())
    }

    /// Appends bytes; where they lie.
    fn append(&self, bytes: &[u8]) -> Result<Span, KernelError> {
        let own = self.own()?;
        let len = bytes.len() as u64;
        let offset = own.end.fetch_add(len, Ordering::Relaxed);
        let written = own.output.file().write_all_at(bytes, offset);
        // Where it lies there tells nothing of where it will be.
        let failed = |error| OutputError::os(own.output.name(), "cannot be written", &error);
        written.map_err(failed)?;
        Ok(Span { file: own.number, offset, len, begins: false })
    }
}

/// A number that no other process has.
fn random() -> u64 {
    let name = hidden_name("spool".as_ref());
    let digits = name.to_str().and_then(|name| name.rsplit_once('-'));
    digits.and_then(|(_, digits)| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// Bytes in a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    file: u64,
    offset: u64,
    len: u64,
    /// It is the first of an input.
    begins: bool,
}

/// Where that lies which was made of some units, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    fn push(&mut self, next: Span) {
        match self.0.last_mut() {
            Some(last)
                if !next.begins
                    && last.file == next.file
                    && last.offset + last.len == next.offset =>
            {
                last.len += next.len;
            }
            _ => self.0.push(next),
        }
    }

    /// Those of each input that has units, one after the other.
    pub fn inputs(&self) -> impl Iterator<Item = Spans> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let behind = rest.iter().skip(1).position(|span| span.begins);
            let (own, others) = rest.split_at(behind.map_or(rest.len(), |at| at + 1));
            rest = others;
            (!own.is_empty()).then(|| Spans(own.to_vec()))
        })
    }

    /// How many bytes they are.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.iter().map(|span| span.len).sum()
    }

    /// Copies them from the spools in `dir`; how many bytes. What is copied is given back
    /// to the disk, unless a run that goes on after this one may have to copy it again.
    ///
    /// # Errors
    /// If they cannot be read, or not be written.
    pub fn copy(&self, dir: &SharedDir, output: &Output) -> Result<u64, OutputError> {
        let (mut writer, mut all) = (output.sequential(), 0);
        let mut buf = vec![0; COPIED_BYTES];
        let mut open: Option<(u64, Output)> = None;
        for span in &self.0 {
            if open.as_ref().is_none_or(|(number, _)| *number != span.file) {
                open = Some((span.file, dir.open(span.file, output.name())?));
            }
            if let Some((_, spool)) = &open {
                copy(span, spool, &mut writer, &mut buf)?;
                if !dir.is_kept() {
                    spool.free(span.offset..span.offset + span.len);
                }
            }
            all += span.len;
        }
        Ok(all)
    }
}

fn copy(
    span: &Span,
    spool: &Output,
    writer: &mut SequentialWriter,
    buf: &mut [u8],
) -> Result<(), OutputError> {
    let mut at = span.offset;
    let end = span.offset + span.len;
    while at < end {
        let part = &mut buf[..COPIED_BYTES.min((end - at) as usize)];
        spool.read_exact_at(part, at)?;
        writer.write_all(part)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// What a block is computed with.
struct Bench<P> {
    part: P,
    room: Vec<u8>,
}

/// A rewrite as a reduction, whose parts are [`Spans`]. What the rewrite itself collects
/// in its parts is dropped.
pub struct Spooled<'k, K: Kernel> {
    kernel: &'k K,
    spool: &'k Spool,
    room_bytes: usize,
    units: u64,
    /// Those nobody works at.
    benches: Mutex<Vec<Bench<K::Part>>>,
}

impl<K: Kernel> std::fmt::Debug for Spooled<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spooled {}", self.kernel.name())
    }
}

impl<'k, K: Kernel> Spooled<'k, K> {
    /// `plan` is that of the rewrite: blocks have the same room here. In all there are
    /// so many units.
    #[must_use]
    pub fn new(kernel: &'k K, spool: &'k Spool, plan: &Plan, units: u64) -> Self {
        let room_bytes = plan.out_bytes as usize - ROOM_FROM.min(plan.out_bytes as usize);
        Self { kernel, spool, room_bytes, units, benches: Mutex::default() }
    }

    /// In place of what the rewrite collected.
    #[must_use]
    pub fn dropped(&self) -> K::Part {
        self.kernel.part(1)
    }

    /// Has `compute` make what it makes of a block, in as many calls as that takes.
    fn spooled(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        spans: &mut Spans,
        compute: impl Fn(Block<'_>, &mut K::Part) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        let known = lock(&self.benches).pop();
        let mut bench = known
            .unwrap_or_else(|| Bench { part: self.kernel.part(1), room: vec![0; self.room_bytes] });
        let Block { before, data, after, .. } = block;
        let mut begins = unit.index == 0;
        let mut goes_on_from = None;
        loop {
            let mut state = OutState { goes_on_from, ..OutState::default() };
            let out = Out::new(&mut bench.room, &mut state);
            compute(Block { before, data, after, out }, &mut bench.part)?;
            let made = bench.room.get(..state.len).unwrap_or_default();
            if begins || !made.is_empty() {
                spans.push(Span { begins, ..self.spool.append(made)? });
            }
            begins = false;
            if state.stopped.is_none() {
                break;
            }
            goes_on_from = state.stopped;
        }
        lock(&self.benches).push(bench);
        Ok(())
    }
}

impl<K: Kernel> Kernel for Spooled<'_, K> {
    type Part = Spans;
    type Header = K::Header;

    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn open(&self, head: &dyn Head) -> Result<Body<K::Header>, KernelError> {
        self.kernel.open(head)
    }

    fn cut(&self, header: &K::Header) -> Cut {
        self.kernel.cut(header)
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn check_many(&self) -> Result<(), KernelError> {
        self.kernel.check_many()
    }

    fn merge_order(&self) -> MergeOrder {
        MergeOrder::ByUnit
    }

    /// The spans of all units, and what each accelerator computes with.
    fn memory_bytes(&self, accelerators: usize) -> u64 {
        let rooms = (accelerators as u64).saturating_mul(self.room_bytes as u64);
        let spans = self.units.saturating_mul(2 * size_of::<Span>() as u64);
        self.kernel.memory_bytes(accelerators).saturating_add(rooms).saturating_add(spans)
    }

    fn part(&self, _accelerators: usize) -> Spans {
        Spans::default()
    }

    fn block(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        spans: &mut Spans,
    ) -> Result<(), KernelError> {
        self.spooled(unit, block, spans, |block, part| self.kernel.block(unit, block, part))
    }

    fn stages(&self) -> usize {
        self.kernel.stages()
    }

    fn early_stage(
        &self,
        stage: usize,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
    ) -> Result<(), KernelError> {
        self.kernel.early_stage(stage, unit, block)
    }

    fn last_stage(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        spans: &mut Spans,
    ) -> Result<(), KernelError> {
        self.spooled(unit, block, spans, |block, part| self.kernel.last_stage(unit, block, part))
    }

    fn merge(&self, spans: &mut Spans, later: Spans) -> Result<(), KernelError> {
        later.0.into_iter().for_each(|span| spans.push(span));
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        self.kernel.parameters()
    }

    fn save(&self, spans: &Spans, out: &mut Vec<u8>) -> Result<(), KernelError> {
        for Span { file, offset, len, begins } in &spans.0 {
            for number in [*file, *offset, *len, u64::from(*begins)] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Spans, KernelError> {
        load(saved)
    }
}

fn load(saved: &[u8]) -> Result<Spans, KernelError> {
    let count = saved.len() / (4 * size_of::<u64>());
    let mut saved = Saved::new(saved);
    let mut spans = Vec::with_capacity(count);
    for _ in 0..count {
        let (file, offset, len) = (saved.u64()?, saved.u64()?, saved.u64()?);
        let begins = saved.u64()? != 0;
        let end = offset.checked_add(len);
        if end.is_none() {
            return Err(KernelError::new("a span has no end", "start anew"));
        }
        spans.push(Span { file, offset, len, begins });
    }
    saved.end()?;
    Ok(Spans(spans))
}
