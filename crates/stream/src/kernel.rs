//! What a kernel is: a function over a block, and how its input may be cut.

use std::ops::Range;

use storage::OutputError;

use crate::journal::Beside;

/// How an input may be cut into blocks. One rule covers records, rows with
/// halo and delimited text: blocks start at multiples of `align` bytes from
/// the start of the body, and a kernel may look a little past either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Blocks start at a multiple of this many bytes from the body's start
    /// (record or row size). At least 1.
    pub align_bytes: usize,
    /// Bytes visible before a block (halo), as far as the body reaches.
    pub before_bytes: usize,
    /// Bytes visible after a block (halo), as far as the body reaches.
    pub after_bytes: usize,
}

impl Cut {
    /// Cut anywhere, no halo.
    pub const ANYWHERE: Cut = Cut { align_bytes: 1, before_bytes: 0, after_bytes: 0 };

    /// Cut between records of `bytes` bytes.
    #[must_use]
    pub const fn records(bytes: usize) -> Cut {
        Cut { align_bytes: bytes, before_bytes: 0, after_bytes: 0 }
    }
}

/// What a kernel does to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Reads blocks and yields a partial result; there is no output.
    Reduce,
    /// Rewrites each block in place; the output has the body's size: a header
    /// that [`Kernel::open`] leaves out of the body is not in it.
    Transform,
    /// Makes another number of bytes of each block ([`Block::out`]); the output
    /// is what the blocks make, in their order.
    Rewrite,
}

impl Effect {
    /// Whether a run has an output.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Effect::Reduce
    }
}

/// In which order partial results are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOrder {
    /// One part per accelerator collects whatever blocks come; parts are
    /// merged at the end in any order.
    Any,
    /// One part per unit, merged strictly in the order of the units, so that
    /// the result depends neither on the number of accelerators nor on timing.
    /// Not for a rewrite. Up to 64 parts wait for an earlier one, besides those of the threads:
    /// keep them small, or declare them ([`Kernel::memory_bytes`]).
    ByUnit,
}

/// The part of an input that is streamed, and what was learned of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body<H = ()> {
    /// Where it lies in the input, in bytes; its end is `u64::MAX` where the
    /// input's length is not known.
    pub range: Range<u64>,
    /// What the kernel wants to know of this input with every block.
    pub header: H,
}

impl<H: Default> Body<H> {
    /// All of an input.
    #[must_use]
    pub fn whole(head: &dyn Head) -> Self {
        Self { range: 0..head.len_bytes().unwrap_or(u64::MAX), header: H::default() }
    }
}

/// A contiguous piece of the input: what one call of [`Kernel::block`] sees.
#[derive(Debug)]
pub struct Unit<'i, H = ()> {
    /// Number of the unit, from 0.
    pub index: u64,
    /// Where the block starts, in bytes from the start of the input file.
    pub offset: u64,
    /// The part of the input file that is streamed.
    pub body: &'i Body<H>,
}

impl<H> Unit<'_, H> {
    /// Where the block starts, in bytes from the start of the body.
    #[must_use]
    pub fn body_offset(&self) -> u64 {
        self.offset - self.body.range.start
    }

    /// The body's length in bytes.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body.range.end - self.body.range.start
    }
}

impl<H> Clone for Unit<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Unit<'_, H> {}

/// The bytes of one unit and its surroundings. All are the kernel's own to
/// change; only a transform's `data`, or what a rewrite puts `out`, goes anywhere.
#[derive(Debug)]
pub struct Block<'a> {
    /// Up to [`Cut::before_bytes`] bytes before the block; shorter only at the body's start.
    pub before: &'a mut [u8],
    /// The block: a transform rewrites it, a reduction reads it.
    pub data: &'a mut [u8],
    /// Up to [`Cut::after_bytes`] bytes after the block; shorter only at the body's end.
    pub after: &'a mut [u8],
    /// Where a rewrite puts what it makes of the block; without room else.
    pub out: Out<'a>,
}

/// The output of one block of a rewrite. It has the room of a block; where that
/// is not enough, the kernel stops ([`Out::stop_at`]) and is called again with
/// the same block once the bytes are on their way.
#[derive(Debug, Default)]
pub struct Out<'a> {
    room: &'a mut [u8],
    /// `None` for who writes nothing.
    state: Option<&'a mut OutState>,
}

/// How one call of a rewrite begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutState {
    /// Where the kernel stopped in the call before.
    pub goes_on_from: Option<usize>,
    /// Bytes made in this call.
    pub len: usize,
    /// Where it stopped in this one.
    pub stopped: Option<usize>,
}

impl<'a> Out<'a> {
    /// Room for what one call of [`Kernel::block`] makes.
    #[must_use]
    pub fn new(room: &'a mut [u8], state: &'a mut OutState) -> Self {
        Self { room, state: Some(state) }
    }

    /// Where the kernel stopped in the call before, if this is not the first
    /// one for its block.
    #[must_use]
    pub fn goes_on_from(&self) -> Option<usize> {
        self.state.as_ref().and_then(|state| state.goes_on_from)
    }

    /// Appends `bytes`; `false`, and none of them, if they do not fit.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let Some(state) = &mut self.state else { return false };
        let Some(room) = self.room.get_mut(state.len..state.len + bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        state.len += bytes.len();
        true
    }

    /// Appends as many of `bytes` as fit; how many.
    #[must_use]
    pub fn push_some(&mut self, bytes: &[u8]) -> usize {
        let left = self.state.as_ref().map_or(0, |state| self.room.len() - state.len);
        let some = &bytes[..left.min(bytes.len())];
        if self.push(some) { some.len() } else { 0 }
    }

    /// Whether nothing was appended in this call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.len == 0)
    }

    /// Ends this call before the block's end: there was no room. `at` is the
    /// kernel's own, for the next call.
    pub fn stop_at(self, at: usize) {
        if let Some(state) = self.state {
            state.stopped = Some(at);
        }
    }
}

/// Reads the first bytes of an input, for kernels with a header.
pub trait Head {
    /// The input's length in bytes, if it is known (not for pipes).
    fn len_bytes(&self) -> Option<u64>;
    /// Fills `buf` from `offset`; fewer bytes only at the input's end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize>;
}

/// Why a kernel refuses its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}{}; {cure}", .offset.map(|o| format!(" at byte {o}")).unwrap_or_default())]
pub struct KernelError {
    /// What is wrong, without the file's name.
    pub what: String,
    /// Where in the input file, in bytes, if there is one place.
    pub offset: Option<u64>,
    /// What the user can do about it.
    pub cure: String,
}

impl KernelError {
    /// An error about the input as a whole.
    pub fn new(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what: what.into(), offset: None, cure: cure.into() }
    }

    /// The same error, at a byte offset of the input file.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }
}

/// So that kernels over records need not say it again.
impl From<record::RecordError> for KernelError {
    fn from(error: record::RecordError) -> Self {
        Self::new(error.what, error.cure)
    }
}

/// Of a kernel that writes beside its output.
impl From<OutputError> for KernelError {
    fn from(error: OutputError) -> Self {
        let (what, cure) = error.into_parts();
        Self::new(what, cure)
    }
}

/// A function over blocks. The stream layer owns the loop: it cuts the input
/// into units, keeps transfers in flight on every accelerator, calls
/// [`Kernel::block`] for each unit exactly once, and merges the parts. One
/// kernel serves any number of inputs, several at a time.
pub trait Kernel: Send + Sync {
    /// The partial result one accelerator (or one unit) collects. `()` for a transform.
    type Part: Send;

    /// What [`Kernel::open`] learns of an input. `()` for most.
    type Header: Default + Send + Sync;

    /// The kernel's name, as on the command line.
    fn name(&self) -> &str;

    /// Looks at the input before anything is streamed: checks a header and
    /// says which bytes are the body. The default streams everything.
    fn open(&self, head: &dyn Head) -> Result<Body<Self::Header>, KernelError> {
        Ok(Body::whole(head))
    }

    /// How the body of an input with that header may be cut.
    fn cut(&self, _header: &Self::Header) -> Cut {
        Cut::ANYWHERE
    }

    /// Reduction, transform or rewrite.
    fn effect(&self) -> Effect;

    /// Whether one run may go over several inputs. A reduction's parts are merged
    /// in the order of the inputs; units of two inputs have nothing else to do
    /// with each other: each input has its own offsets, header and ends. The
    /// default takes them.
    fn check_many(&self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Whether blocks may be the page cache's own pages ([`Scheme::Mapped`]): for
    /// a reduction that reads its blocks and never writes to them, and that is
    /// content with any bytes, also with some that another process changes
    /// while it looks at them. The run ends with an error then.
    ///
    /// [`Scheme::Mapped`]: crate::Scheme::Mapped
    fn looks_in_place(&self) -> bool {
        false
    }

    /// In which order parts are merged.
    fn merge_order(&self) -> MergeOrder {
        MergeOrder::Any
    }

    /// The most memory all parts of a run hold at once, in bytes, when
    /// `accelerators` of them work; it is added to the run's memory bound.
    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (std::mem::size_of::<Self::Part>() * accelerators) as u64
    }

    /// A fresh, empty part. `accelerators` is how many share [`Kernel::memory_bytes`].
    fn part(&self, accelerators: usize) -> Self::Part;

    /// Computes one unit. A transform in a [`Chain`](crate::Chain) also gets the
    /// bytes around a block, each time they are needed: what it makes of a byte
    /// may depend on offsets and bytes only.
    fn block(
        &self,
        unit: &Unit<'_, Self::Header>,
        block: Block<'_>,
        part: &mut Self::Part,
    ) -> Result<(), KernelError>;

    /// Kernels that a block goes through one after the other: more than one in
    /// a [`Chain`](crate::Chain), whose stages can be on different accelerators.
    fn stages(&self) -> usize {
        1
    }

    /// Computes one stage of a unit, by its number from 0: one before the last,
    /// of which the default has none.
    fn early_stage(
        &self,
        _stage: usize,
        _unit: &Unit<'_, Self::Header>,
        _block: Block<'_>,
    ) -> Result<(), KernelError> {
        Ok(())
    }

    /// Computes the last stage of a unit that went through those before.
    fn last_stage(
        &self,
        unit: &Unit<'_, Self::Header>,
        block: Block<'_>,
        part: &mut Self::Part,
    ) -> Result<(), KernelError> {
        self.block(unit, block, part)
    }

    /// Merges `later` into `part`; with [`MergeOrder::ByUnit`] `later` covers
    /// the bytes right after those of `part`, or the inputs after its.
    fn merge(&self, part: &mut Self::Part, later: Self::Part) -> Result<(), KernelError>;

    /// What must be the same, besides the name, for a run to be resumed: the
    /// kernel's parameters as bytes of its own choice. They are kept in a file:
    /// of a secret give a value that only checks it. The default cannot be resumed.
    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Err(not_saved(self.name()))
    }

    /// This kernel with the parameters of a manager, as [`Kernel::parameters`] gave them
    /// there: a node computes with those, whatever it was started with. It takes the same
    /// body of an input as this one, cut in the same way. None, the default, where a node is
    /// to be started with the same ones.
    ///
    /// # Errors
    /// If they are none of this kernel's.
    fn with_parameters(&self, _parameters: &[u8]) -> Result<Option<Self>, KernelError>
    where
        Self: Sized,
    {
        Ok(None)
    }

    /// Appends what [`Kernel::load`] makes the same part of. The default knows
    /// parts of no bytes, as those of transforms.
    fn save(&self, _part: &Self::Part, _out: &mut Vec<u8>) -> Result<(), KernelError> {
        if size_of::<Self::Part>() == 0 { Ok(()) } else { Err(not_saved(self.name())) }
    }

    /// The part that was saved, perhaps on another number of accelerators.
    fn load(&self, saved: &[u8], accelerators: usize) -> Result<Self::Part, KernelError> {
        match saved.is_empty() && size_of::<Self::Part>() == 0 {
            true => Ok(self.part(accelerators)),
            false => Err(not_saved(self.name())),
        }
    }

    /// Merges a later part of one accelerator, as [saved](Kernel::save), into `part`, which is of
    /// no use after an error. The default loads it first: parts that are large do without that.
    fn merge_saved(&self, part: &mut Self::Part, later: &[u8]) -> Result<(), KernelError> {
        self.merge(part, self.load(later, 1)?)
    }

    /// As [`Kernel::save`], for parts that are too large for a record: what is
    /// in files `beside` it, synced, need not be in `out`. Files that an earlier
    /// record tells of stay as they are until this one is told.
    fn save_beside(
        &self,
        part: &mut Self::Part,
        out: &mut Vec<u8>,
        _beside: &Beside,
    ) -> Result<(), KernelError> {
        self.save(part, out)
    }

    /// What [`Kernel::save_beside`] saved.
    fn load_beside(
        &self,
        saved: &[u8],
        accelerators: usize,
        _beside: &Beside,
    ) -> Result<Self::Part, KernelError> {
        self.load(saved, accelerators)
    }
}

fn not_saved(name: &str) -> KernelError {
    let what = format!("{name} cannot be resumed: it does not save what it has found");
    KernelError::new(what, "run it without a journal")
}

impl<K: Kernel + ?Sized> Kernel for Box<K> {
    type Part = K::Part;
    type Header = K::Header;

    fn name(&self) -> &str {
        (**self).name()
    }

    fn open(&self, head: &dyn Head) -> Result<Body<K::Header>, KernelError> {
        (**self).open(head)
    }

    fn cut(&self, header: &K::Header) -> Cut {
        (**self).cut(header)
    }

    fn effect(&self) -> Effect {
        (**self).effect()
    }

    fn check_many(&self) -> Result<(), KernelError> {
        (**self).check_many()
    }

    fn looks_in_place(&self) -> bool {
        (**self).looks_in_place()
    }

    fn merge_order(&self) -> MergeOrder {
        (**self).merge_order()
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (**self).memory_bytes(accelerators)
    }

    fn part(&self, accelerators: usize) -> K::Part {
        (**self).part(accelerators)
    }

    fn block(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        part: &mut K::Part,
    ) -> Result<(), KernelError> {
        (**self).block(unit, block, part)
    }

    fn stages(&self) -> usize {
        (**self).stages()
    }

    fn early_stage(
        &self,
        stage: usize,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
    ) -> Result<(), KernelError> {
        (**self).early_stage(stage, unit, block)
    }

    fn last_stage(
        &self,
        unit: &Unit<'_, K::Header>,
        block: Block<'_>,
        part: &mut K::Part,
    ) -> Result<(), KernelError> {
        (**self).last_stage(unit, block, part)
    }

    fn merge(&self, part: &mut K::Part, later: K::Part) -> Result<(), KernelError> {
        (**self).merge(part, later)
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        (**self).parameters()
    }

    fn save(&self, part: &K::Part, out: &mut Vec<u8>) -> Result<(), KernelError> {
        (**self).save(part, out)
    }

    fn load(&self, saved: &[u8], accelerators: usize) -> Result<K::Part, KernelError> {
        (**self).load(saved, accelerators)
    }

    fn merge_saved(&self, part: &mut K::Part, later: &[u8]) -> Result<(), KernelError> {
        (**self).merge_saved(part, later)
    }

    fn save_beside(
        &self,
        part: &mut K::Part,
        out: &mut Vec<u8>,
        beside: &Beside,
    ) -> Result<(), KernelError> {
        (**self).save_beside(part, out, beside)
    }

    fn load_beside(
        &self,
        saved: &[u8],
        accelerators: usize,
        beside: &Beside,
    ) -> Result<K::Part, KernelError> {
        (**self).load_beside(saved, accelerators, beside)
    }
}
