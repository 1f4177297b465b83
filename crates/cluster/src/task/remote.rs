//! Inputs that a node does not read for itself: what it has to know of them, and a
//! kernel over one or many.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use storage::{Input, InputError, Output, Received, SharedDir, shown};
use stream::{Control, Head, Kernel, KernelError, Options, Plan, Progress, StreamError, plan_lens};

use super::many::{self, Inputs, ManyPlaces, Units};
use super::{
    Adopt, Base, Description, Joined, Own, Part, Place, Places, Reads, Session, Task, Tell, adopt,
    load, merge, merge_saved, merging, save, settle, takes,
};
use crate::{JobSpec, Lease};

/// What a node has to know of an input that it is sent, or of many, which are sent as if they
/// were one: their bytes lie one after the other, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Of many, the length of each.
    #[serde(with = "as_list")]
    pub lens: Arc<[u64]>,
    /// What the kernel reads of it before anything is streamed, by its place.
    pub head: Vec<(u64, ByteBuf)>,
    /// Bytes that are to be seen before and after a unit, of the same input.
    pub around: (u64, u64),
}

/// Shared by all that have the description.
mod as_list {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(lens: &[u64], to: S) -> Result<S::Ok, S::Error> {
        lens.serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u64]>, D::Error> {
        Ok(Vec::deserialize(from)?.into())
    }
}

/// A kernel that wants more of its input before the run reads it where it is.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Nodes are told the lengths of so many inputs at most: they go with the job.
const INPUTS_MAX: usize = 1 << 20;

/// Of an input, what is there at most where it is sent: its length, as it comes and as it is
/// kept by a node and a group's manager, and twice how many units and bytes end with it.
const INPUT_BYTES: u64 = 10 * size_of::<u64>() as u64;

impl Shipped {
    /// Of a kernel's input, or why that is not sent.
    pub(super) fn of<K: Kernel>(
        kernel: &K,
        input: &Input,
    ) -> Result<Result<Self, String>, KernelError> {
        let head = Noted { input, seen: RefCell::default() };
        let cut = kernel.cut(&kernel.open(&head)?.header);
        let head = head.seen.into_inner();
        let head_bytes: usize = head.iter().map(|(_, bytes)| bytes.len()).sum();
        if head_bytes > HEAD_BYTES_MAX {
            return Ok(Err(format!("{} has to read it beforehand", kernel.name())));
        }
        let around = (cut.before_bytes as u64, cut.after_bytes as u64);
        let shipped = |len_bytes| Self { len_bytes, lens: [].into(), head, around };
        Ok(input.len_bytes().map(shipped).ok_or("its length is not known".to_owned()))
    }

    /// Of many inputs with these lengths, or why they are not sent.
    pub(super) fn of_many<K: Kernel>(kernel: &K, lens: Vec<u64>) -> Result<Self, String> {
        if lens.len() > INPUTS_MAX {
            return Err(format!("{} are more than {INPUTS_MAX} inputs", lens.len()));
        }
        let longest = lens.iter().max().copied();
        let around = longest.map_or(Ok((0, 0)), |len| around(kernel, len));
        let around = around.map_err(|error| error.what)?;
        let len_bytes = lens.iter().copied().fold(0, u64::saturating_add);
        Ok(Self { len_bytes, lens: lens.into(), head: Vec::new(), around })
    }

    /// Bytes of memory that the lengths of inputs take in a process that is told of them.
    pub(crate) fn list_bytes(&self) -> u64 {
        INPUT_BYTES * self.lens.len() as u64
    }

    /// Bytes of the lengths as part of a message.
    pub(crate) fn told_bytes(&self) -> u64 {
        let varint = |len: &u64| u64::from((u64::BITS - len.leading_zeros()).max(1).div_ceil(7));
        self.lens.iter().map(varint).sum()
    }

    /// An input of which the head is there.
    pub(crate) fn receive(&self, name: &str) -> Result<Received, InputError> {
        let mut received = Received::new(name, self.len_bytes)?;
        for (offset, bytes) in &self.head {
            received.need(*offset..offset.saturating_add(bytes.len() as u64));
            received.put(*offset, bytes)?;
        }
        Ok(received)
    }

    /// The bytes of a lease, and those around it.
    pub(crate) fn bytes(&self, description: &Description, lease: &Lease) -> Range<u64> {
        let Description { body: (start, len), unit_bytes, .. } = description;
        let end = start.saturating_add(*len).min(self.len_bytes);
        let at = |unit: u64| start.saturating_add(unit.saturating_mul(*unit_bytes)).min(end);
        let (before, after) = self.around;
        let (first, last) = (at(lease.first), at(lease.first.saturating_add(lease.units)));
        first.saturating_sub(before).max(*start).min(first)..last.saturating_add(after).min(end)
    }
}

/// Notes what is read.
struct Noted<'i> {
    input: &'i Input,
    seen: RefCell<Vec<(u64, ByteBuf)>>,
}

impl Head for Noted<'_> {
    fn len_bytes(&self) -> Option<u64> {
        self.input.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read_at(buf, offset)?;
        let bytes = buf.get(..read).unwrap_or_default();
        self.seen.borrow_mut().push((offset, ByteBuf::from(bytes)));
        Ok(read)
    }
}

/// An input of many of which nothing is there beforehand.
struct Unread {
    len_bytes: u64,
    asked: Cell<bool>,
}

impl Head for Unread {
    fn len_bytes(&self) -> Option<u64> {
        Some(self.len_bytes)
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        self.asked.set(true);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Bytes that `kernel` sees before and after the units of one of many inputs, which it has to
/// take as it is: else it would compute over what is not there.
///
/// # Errors
/// If it looks at the input beforehand, or refuses one of that length.
pub(super) fn around<K: Kernel>(kernel: &K, len_bytes: u64) -> Result<(u64, u64), KernelError> {
    let head = Unread { len_bytes, asked: Cell::new(false) };
    let opened = kernel.open(&head);
    let refused = |why: &str| {
        let what = format!("{} {why} of each input", kernel.name());
        Err(KernelError::new(what, "let nodes read for themselves: --ship locators"))
    };
    match opened {
        _ if head.asked.get() => refused("has to read a header"),
        Ok(body) if body.range != (0..len_bytes) => refused("wants a part only"),
        Ok(body) => {
            let cut = kernel.cut(&body.header);
            Ok((cut.before_bytes as u64, cut.after_bytes as u64))
        }
        Err(error) => Err(error),
    }
}

/// A kernel over a file, or many, that this node cannot open, or is not to: units are sent by
/// the manager.
#[derive(Debug)]
pub struct RemoteTask<'a, K: Kernel> {
    kernel: &'a K,
    description: Description,
    options: Options,
    progress: &'a Progress,
    /// Once it has joined.
    joined: OnceLock<There>,
}

/// What its manager has.
#[derive(Debug)]
enum There {
    One(Box<Joined>),
    Many(many::Joined, Box<Plan>),
}

impl<'a, K: Kernel> RemoteTask<'a, K> {
    /// `name` is what the file is called here, or the files are together.
    ///
    /// # Errors
    /// A kernel that does not tell its parameters.
    pub fn new(
        kernel: &'a K,
        name: &str,
        options: &Options,
        progress: &'a Progress,
    ) -> Result<Self, KernelError> {
        let record_bytes = (kernel.cut(&K::Header::default()).align_bytes as u64).max(1);
        let block_bytes = options.block_bytes.unwrap_or(0);
        let description = Description {
            kernel: kernel.name().to_owned(),
            parameters: kernel.parameters()?,
            input: name.to_owned(),
            host: super::host(),
            body: (0, 0),
            modified: (0, 0),
            // Those of the manager, if all are started alike: one that is sent is taken, however
            // little may be.
            unit_bytes: block_bytes.checked_next_multiple_of(record_bytes).unwrap_or(u64::MAX),
            lease_units: None,
            output: None,
            shipped: Err("it is not open here".to_owned()),
            list: None,
        };
        let (options, joined) = (options.clone(), OnceLock::new());
        Ok(Self { kernel, description, options, progress, joined })
    }
}

/// What is added where what is made has to be reached.
const REACH: &str =
    "units are sent to nodes, but what is made of them goes to OUTPUT, which each must reach";

fn join_one(description: &Description) -> Result<Joined, String> {
    let output = description.output.as_deref().map(Output::join).transpose();
    let output = output.map_err(|error| format!("{error}; {REACH}"))?;
    Ok(Joined { output, unit_bytes: description.unit_bytes, plan: None })
}

impl<K: Kernel> RemoteTask<'_, K> {
    fn join_many(&self, description: &Description, shipped: &Shipped) -> Result<There, String> {
        let Description { unit_bytes, output, .. } = description;
        if let Some(path) = output.as_deref().filter(|path| !path.is_dir()) {
            return Err(format!("{} is no folder here; {REACH}", shown(path)));
        }
        let said = |error: StreamError| error.to_string();
        let mut options = self.options.clone();
        options.block_bytes = Some(*unit_bytes);
        let mut plan = plan_lens(self.kernel, &shipped.lens, &options).map_err(said)?;
        if let Some(longest) = shipped.lens.iter().max() {
            let name = &self.description.input;
            let refused = |error| format!("{name}: {error}");
            around(self.kernel, *longest).map_err(refused)?;
            let input = Received::new(name, *longest).and_then(|received| received.input());
            let input = input.map_err(|error| error.to_string())?;
            many::share(self.kernel, (&input, None), &options, &mut plan).map_err(said)?;
        }
        let units = Arc::new(Units::new(shipped.lens.iter().copied(), *unit_bytes));
        // A node is told of its memory by what it is sent.
        plan.units = Some(units.count());
        plan.memory_bytes = plan.memory_bytes.saturating_add(shipped.list_bytes());
        let outputs = output.as_deref().map(SharedDir::join);
        let joined = many::Joined { outputs, units, around: shipped.around };
        Ok(There::Many(joined, Box::new(plan)))
    }
}

impl<K: Kernel<Part: 'static>> Task for RemoteTask<'_, K> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn join(&self, description: &Description) -> Result<(), String> {
        self.has().check(description, |_| false)?;
        if self.joined.get().is_some() {
            return Ok(());
        }
        if description.output.is_none() && self.kernel.effect().writes() {
            return Err(format!(
                "{} writes an OUTPUT that this node cannot reach",
                self.kernel.name()
            ));
        }
        let there = match &description.shipped {
            // Who is not sent it is told why.
            Err(_) => return Ok(()),
            Ok(shipped) if description.list.is_some() => self.join_many(description, shipped)?,
            Ok(_) => There::One(Box::new(join_one(description)?)),
        };
        let _ = self.joined.set(there);
        Ok(())
    }

    fn reads(&self) -> bool {
        false
    }

    fn bytes(&self, _: Range<u64>) -> Result<Vec<u8>, String> {
        Err(format!("{} is not open here; this is a bug in Cellway", self.description.input))
    }

    fn spec(&self) -> JobSpec {
        // A node does not cut.
        JobSpec { units: 0, unit_bytes: 0, merging: merging(self.kernel), lease_units: None }
    }

    fn part_bytes(&self) -> u64 {
        self.kernel.memory_bytes(1)
    }

    fn load(&self, saved: &[u8]) -> Result<Part, String> {
        load(self.kernel, &self.description.input, saved)
    }

    fn merge(&self, part: Part, later: Part) -> Result<Part, String> {
        merge(self.kernel, &self.description.input, part, later)
    }

    fn merge_saved(&self, part: Part, later: &[u8]) -> Result<Part, String> {
        merge_saved(self.kernel, &self.description.input, part, later)
    }

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        save(self.kernel, &self.description.input, part)
    }

    fn settle(&self) -> Result<(), String> {
        match self.joined.get() {
            None => Ok(()),
            Some(There::One(joined)) => settle(joined.output.as_ref()),
            Some(There::Many(joined, _)) => joined.settle(),
        }
    }

    /// A manager has the input.
    fn done(&self, _: Range<u64>) {}

    fn control(&self) -> Option<&Control> {
        Some(self.progress.control())
    }

    fn takes(&self, parameters: &[u8]) -> bool {
        takes(self.kernel, parameters)
    }

    fn adopt<'t>(&'t self, parameters: &[u8]) -> Result<Option<Arc<dyn Adopt + 't>>, String> {
        adopt(self, self.kernel, parameters)
    }

    fn session<'t>(&'t self, sent: Option<Input>, tell: Tell<'t>) -> Box<dyn Session + 't> {
        self.place(sent).session(Own::Lent(self.kernel), tell)
    }
}

impl<K: Kernel<Part: 'static>> Base for RemoteTask<'_, K> {
    fn place(&self, sent: Option<Input>) -> Places<'_> {
        let (mut options, progress) = (self.options.clone(), self.progress);
        let joined = match self.joined.get() {
            Some(There::Many(joined, plan)) => {
                let inputs = Inputs::sent(sent, None);
                let (joined, names) = (Some(joined), &*self.description.input);
                let outputs = joined.and_then(|joined| joined.outputs.as_ref());
                let places = ManyPlaces { inputs, joined, outputs, names, options, plan, progress };
                return Places::Many(places);
            }
            Some(There::One(joined)) => Some(&**joined),
            None => None,
        };
        options.block_bytes = joined.map(|joined| joined.unit_bytes);
        let reads = sent.map(|sent| Reads::Sent(Box::new(sent)));
        let output = joined.and_then(|joined| joined.output.as_ref());
        Places::One(Place { reads, output, options, progress, plan: None })
    }
}

#[cfg(test)]
mod tests {
    use kernels::Crc32c;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_told_of_a_list_is_counted(lens in prop::collection::vec(0..u64::MAX >> 9, 0..90)) {
            let shipped = Shipped::of_many(&Crc32c::new(), lens.clone()).unwrap();
            let told_bytes = postcard::to_stdvec(&lens).unwrap().len() as u64 - 1;
            prop_assert_eq!(shipped.told_bytes(), told_bytes);
            prop_assert!(told_bytes <= shipped.list_bytes());
            prop_assert_eq!(shipped.len_bytes, lens.iter().sum::<u64>());
        }
    }

    #[test]
    fn a_list_without_end_is_not_told() {
        let why = Shipped::of_many(&Crc32c::new(), vec![1; INPUTS_MAX + 1]).unwrap_err();
        assert_eq!(why, "1048577 are more than 1048576 inputs");
    }
}
