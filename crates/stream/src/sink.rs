//! Where a run's blocks go: by offset into a file, in order into a stream.

use std::sync::Mutex;

use accel::{Buf, Cx, Region, Tag, TransferError, TransferResult};
use storage::{Kind, Output, OutputError, SequentialWriter};

use crate::error::as_io;
use crate::gate::{Gate, lock};
use crate::paths::{Direct, Path};
use crate::plan::{BUF_ALIGN_BYTES, Plan, PlanError};
use crate::scheme::Host;

/// An output, and the way to it.
pub(crate) struct Sink<'o> {
    output: &'o Output,
    way: Way<'o>,
    /// Lets what is written in order through.
    gate: Gate,
    /// Where a rewrite's next block goes.
    end: Mutex<End>,
    /// Why that way, for people.
    pub(crate) why: String,
}

enum Way<'o> {
    /// By offset, in multiples of `align_bytes`; a last piece that is none
    /// goes through the page cache.
    Offsets { main: Region<'static>, tail: Region<'static>, align_bytes: u64 },
    /// One after the other.
    Stream(Mutex<SequentialWriter>),
    /// By the host.
    Host(&'o Host<'o>),
}

/// The end of an output of which each block's length shows when it is made.
#[derive(Default)]
struct End {
    /// Bytes on their way, a multiple of the alignment.
    offset: u64,
    /// What comes after them: fewer bytes than the alignment.
    rest: Vec<u8>,
}

impl<'o> Sink<'o> {
    /// With a `host` that writes.
    pub(crate) fn open(
        output: &'o Output,
        plan: &Plan,
        wish: Direct,
        host: Option<&'o Host<'o>>,
    ) -> Result<Self, PlanError> {
        let (gate, end) = (Gate::default(), Mutex::default());
        if let Some(host) = host {
            let why = Path::by_host(output.kind(), "writes", plan.scheme).why;
            return Ok(Self { output, way: Way::Host(host), gate, end, why });
        }
        let path = Path::of_output(output, plan, wish)?;
        let len = plan.output_bytes().unwrap_or(u64::MAX);
        let way = match output.kind() {
            Kind::Stream => Way::Stream(Mutex::new(output.sequential())),
            Kind::File | Kind::BlockDevice => Way::Offsets {
                main: path.region(output.file(), 0..len, output.name()),
                tail: Region::file(output.file().clone(), 0..len, output.name()),
                align_bytes: path.align_bytes,
            },
        };
        Ok(Self { output, way, gate, end, why: path.why })
    }

    /// Puts the buffer's view, which is the whole of unit `index` and starts
    /// `at` bytes into the output.
    pub(crate) async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        index: u64,
        at: u64,
        mut buf: Buf,
    ) -> Result<Buf, OutputError> {
        let (main, tail, align_bytes) = match &self.way {
            Way::Offsets { main, tail, align_bytes } => (main, tail, *align_bytes),
            Way::Stream(writer) => {
                if self.gate.turn(index).await {
                    lock(writer).write_all(&buf)?;
                    self.gate.pass_on(index);
                }
                return Ok(buf);
            }
            Way::Host(host) => {
                let in_order = host.writes_in_order();
                if in_order && !self.gate.turn(index).await {
                    return Ok(buf);
                }
                let buf = host.put(cx, (index, index), at, buf).await?;
                if in_order {
                    self.gate.pass_on(index);
                }
                return Ok(buf);
            }
        };
        align(&mut buf, align_bytes);
        let tag = Tag::new(0);
        let odd = (buf.len() as u64 % align_bytes) as usize;
        let even = buf.len() - odd;
        let put: TransferResult = if odd == 0 {
            cx.put(buf, main.at(at), tag).await
        } else if even == 0 {
            cx.put(buf, tail.at(at), tag).await
        } else {
            let list = [(main.at(at), even), (tail.at(at + even as u64), odd)];
            cx.put_list(buf, &list, tag).await
        };
        put.map_err(|error| self.failed(&error))
    }

    /// Appends what a rewrite made of unit `index`, or of a part of it that is
    /// not the `last`: `len` bytes of the buffer, from [`ROOM_FROM`] on. Waits
    /// until the units before it were appended.
    pub(crate) async fn append<'env>(
        &'env self,
        cx: &Cx<'env>,
        index: u64,
        mut buf: Buf,
        len: usize,
        last: bool,
    ) -> Result<Buf, OutputError> {
        if !self.gate.turn(index).await {
            return Ok(buf);
        }
        buf.set_view(ROOM_FROM..ROOM_FROM + len);
        let (main, at) = match &self.way {
            Way::Offsets { main, align_bytes, .. } => {
                (main, lock(&self.end).take(&mut buf, *align_bytes))
            }
            Way::Stream(writer) => {
                lock(writer).write_all(&buf)?;
                if last {
                    self.gate.pass_on(index);
                }
                return Ok(buf);
            }
            Way::Host(host) => {
                let at = lock(&self.end).take(&mut buf, 1);
                let place = (!buf.is_empty()).then(|| host.next_place());
                let in_order = host.writes_in_order();
                if last && !in_order {
                    self.gate.pass_on(index);
                }
                if let Some(place) = place {
                    buf = host.put(cx, (index, place), at, buf).await?;
                }
                if last && in_order {
                    self.gate.pass_on(index);
                }
                return Ok(buf);
            }
        };
        if last {
            self.gate.pass_on(index);
        }
        if buf.is_empty() {
            return Ok(buf);
        }
        cx.put(buf, main.at(at), Tag::new(0)).await.map_err(|error| self.failed(&error))
    }

    /// Goes on with an output of which `len_bytes` bytes are written, and all of
    /// the units before `unit`.
    pub(crate) fn start_from(&mut self, unit: u64, len_bytes: u64) -> Result<(), OutputError> {
        use std::os::unix::fs::FileExt as _;
        self.gate.open_until(unit);
        let Way::Offsets { align_bytes, .. } = &self.way else { return Ok(()) };
        let odd = len_bytes % align_bytes;
        let (offset, mut rest) = (len_bytes - odd, vec![0; odd as usize]);
        let read = self.output.file().read_exact_at(&mut rest, offset);
        read.map_err(|error| OutputError::write(self.output.name(), offset, &error))?;
        self.end = Mutex::new(End { offset, rest });
        Ok(())
    }

    /// Brings all that was put or appended to the disk, what is left over too,
    /// which the next block brings again. Bytes that were appended.
    pub(crate) fn settle(&self) -> Result<u64, OutputError> {
        use std::os::unix::fs::FileExt as _;
        let (file, end) = (self.output.file(), lock(&self.end));
        let written = file.write_all_at(&end.rest, end.offset).and_then(|()| file.sync_data());
        written.map_err(|error| OutputError::write(self.output.name(), end.offset, &error))?;
        Ok(end.offset + end.rest.len() as u64)
    }

    /// Device and inode of the output.
    pub(crate) fn identity(&self) -> Result<(u64, u64), OutputError> {
        crate::leases::identity(self.output)
    }

    /// Writes what is left once all units were appended. Bytes in all.
    pub(crate) fn finish(&self) -> Result<u64, OutputError> {
        use std::os::unix::fs::FileExt as _;
        let End { offset, rest } = std::mem::take(&mut *lock(&self.end));
        let written = self.output.file().write_all_at(&rest, offset);
        written.map_err(|error| OutputError::write(self.output.name(), offset, &error))?;
        Ok(offset + rest.len() as u64)
    }

    fn failed(&self, error: &TransferError) -> OutputError {
        OutputError::write(self.output.name(), error.offset, &as_io(error))
    }

    /// Unit `index` failed: nothing from it on will be written in order.
    pub(crate) fn close_from(&self, index: u64) {
        self.gate.close_from(index);
    }
}

/// Where the room of a rewrite's buffer begins: before it lies what was left
/// over from the block before.
pub(crate) const ROOM_FROM: usize = BUF_ALIGN_BYTES as usize;

impl End {
    /// Takes the view's bytes in: what is left over goes before them, and what is
    /// less than `align_bytes` is kept. The view becomes what is to be written, at
    /// the buffer's start; the result is where.
    fn take(&mut self, buf: &mut Buf, align_bytes: u64) -> u64 {
        let view = buf.view();
        let start = view.start - self.rest.len();
        buf.set_view(start..view.end);
        buf[..self.rest.len()].copy_from_slice(&self.rest);
        let odd = (buf.len() as u64 % align_bytes) as usize;
        let even = buf.len() - odd;
        self.rest.clear();
        self.rest.extend_from_slice(&buf[even..]);
        let at = self.offset;
        self.offset += even as u64;
        buf.set_view(start..start + even);
        align(buf, align_bytes);
        at
    }
}

/// Moves the view to the buffer's start, which is aligned, unless it is so already.
fn align(buf: &mut Buf, align_bytes: u64) {
    let view = buf.view();
    if (view.start as u64).is_multiple_of(align_bytes) {
        return;
    }
    buf.set_view(0..view.end);
    buf.copy_within(view.clone(), 0);
    buf.set_view(0..view.len());
}
