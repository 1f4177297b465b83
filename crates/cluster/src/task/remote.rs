//! Inputs that a node does not read for itself: what it has to know of them, and a
//! kernel over one.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use storage::{Input, InputError, Output, Received};
use stream::{Control, Head, Kernel, KernelError, Options, Progress};

use super::{
    Adopt, Base, Description, Joined, KernelSession, Own, Part, Place, Reads, Session, Task, Tell,
    adopt, load, merge, merging, save, settle, takes,
};
use crate::{JobSpec, Lease};

/// What a node has to know of an input that it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    /// Its length in bytes.
    pub len_bytes: u64,
    /// What the kernel reads of it before anything is streamed, by its place.
    pub head: Vec<(u64, ByteBuf)>,
    /// Bytes that are to be seen before and after a unit.
    pub around: (u64, u64),
}

/// A kernel that wants more of its input before the run reads it where it is.
const HEAD_BYTES_MAX: usize = 64 << 10;

impl Shipped {
    /// Of a kernel's input, unless the kernel reads too much of it beforehand.
    pub(super) fn of<K: Kernel>(kernel: &K, input: &Input) -> Result<Option<Self>, KernelError> {
        let head = Noted { input, seen: RefCell::default() };
        let cut = kernel.cut(&kernel.open(&head)?.header);
        let head = head.seen.into_inner();
        let head_bytes: usize = head.iter().map(|(_, bytes)| bytes.len()).sum();
        let Some(len_bytes) = input.len_bytes() else { return Ok(None) };
        let around = (cut.before_bytes as u64, cut.after_bytes as u64);
        Ok((head_bytes <= HEAD_BYTES_MAX).then_some(Self { len_bytes, head, around }))
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
        let read = self.input.file().read_at(buf, offset)?;
        let bytes = buf.get(..read).unwrap_or_default();
        self.seen.borrow_mut().push((offset, ByteBuf::from(bytes)));
        Ok(read)
    }
}

/// A kernel over a file that this node cannot open, or is not to: its units are sent by
/// the manager.
#[derive(Debug)]
pub struct RemoteTask<'a, K: Kernel> {
    kernel: &'a K,
    description: Description,
    options: Options,
    progress: &'a Progress,
    /// Once it has joined.
    joined: OnceLock<Joined>,
}

impl<'a, K: Kernel> RemoteTask<'a, K> {
    /// `name` is what the file is called here.
    ///
    /// # Errors
    /// A kernel that does not tell its parameters.
    pub fn new(
        kernel: &'a K,
        name: &str,
        options: &Options,
        progress: &'a Progress,
    ) -> Result<Self, KernelError> {
        let description = Description {
            kernel: kernel.name().to_owned(),
            parameters: kernel.parameters()?,
            input: name.to_owned(),
            body: (0, 0),
            modified: (0, 0),
            // Those of the manager, if all are started alike.
            unit_bytes: options.block_bytes.unwrap_or(0),
            lease_units: None,
            output: None,
            shipped: None,
            list: None,
        };
        let (options, joined) = (options.clone(), OnceLock::new());
        Ok(Self { kernel, description, options, progress, joined })
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
        let output = description.output.as_deref().map(Output::join).transpose();
        let output = output.map_err(|error| {
            format!("{error}; units are sent to nodes, but what is made of them goes to OUTPUT, which each must reach")
        })?;
        if output.is_none() && self.kernel.effect().writes() {
            return Err(format!(
                "{} writes an OUTPUT that this node cannot reach",
                self.kernel.name()
            ));
        }
        let _ = self.joined.set(Joined { output, unit_bytes: description.unit_bytes, plan: None });
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

    fn save(&self, part: &Part) -> Result<Vec<u8>, String> {
        save(self.kernel, &self.description.input, part)
    }

    fn settle(&self) -> Result<(), String> {
        settle(self.joined.get().and_then(|joined| joined.output.as_ref()))
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
        Box::new(KernelSession::new(Own::Lent(self.kernel), self.place(sent), tell))
    }
}

impl<K: Kernel<Part: 'static>> Base for RemoteTask<'_, K> {
    fn place(&self, sent: Option<Input>) -> Place<'_> {
        let joined = self.joined.get();
        let mut options = self.options.clone();
        options.block_bytes = joined.map(|joined| joined.unit_bytes);
        let reads = sent.map(|sent| Reads::Sent(Box::new(sent)));
        let output = joined.and_then(|joined| joined.output.as_ref());
        Place { reads, output, options, progress: self.progress, plan: None }
    }
}
