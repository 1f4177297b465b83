//! Where a transform's blocks go: by offset into a file, in order into a stream.

use std::sync::Mutex;

use accel::{Buf, Cx, Region, Tag, TransferResult};
use storage::{Kind, Output, OutputError, SequentialWriter};

use crate::error::as_io;
use crate::gate::{Gate, lock};
use crate::kernel::Unit;
use crate::paths::{Direct, Path};
use crate::plan::{Plan, PlanError};

/// An output, and the way to it.
pub(crate) struct Sink<'o> {
    output: &'o Output,
    way: Way,
    /// Why that way, for people.
    pub(crate) why: String,
}

enum Way {
    /// By offset, in multiples of `align_bytes`; a last piece that is none
    /// goes through the page cache.
    Offsets { main: Region<'static>, tail: Region<'static>, align_bytes: u64 },
    /// One after the other.
    Stream { writer: Mutex<SequentialWriter>, gate: Gate },
}

impl<'o> Sink<'o> {
    pub(crate) fn open(output: &'o Output, plan: &Plan, wish: Direct) -> Result<Self, PlanError> {
        let path = Path::of_output(output, plan, wish)?;
        let len = plan.output_bytes().unwrap_or(u64::MAX);
        let way = match output.kind() {
            Kind::Stream => {
                Way::Stream { writer: Mutex::new(output.sequential()), gate: Gate::default() }
            }
            Kind::File | Kind::BlockDevice => Way::Offsets {
                main: path.region(output.file(), len, output.name()),
                tail: Region::file(output.file().clone(), 0..len, output.name()),
                align_bytes: path.align_bytes,
            },
        };
        Ok(Self { output, way, why: path.why })
    }

    /// Puts the buffer's view, which is the whole of `unit`.
    pub(crate) async fn put<'env>(
        &'env self,
        cx: &Cx<'env>,
        unit: &Unit,
        mut buf: Buf,
    ) -> Result<Buf, OutputError> {
        let (main, tail, align_bytes) = match &self.way {
            Way::Offsets { main, tail, align_bytes } => (main, tail, *align_bytes),
            Way::Stream { writer, gate } => {
                if gate.turn(unit.index).await {
                    lock(writer).write_all(&buf)?;
                    gate.pass_on(unit.index);
                }
                return Ok(buf);
            }
        };
        align(&mut buf, align_bytes);
        let (at, tag) = (unit.body_offset(), Tag::new(0));
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
        put.map_err(|error| OutputError::write(self.output.name(), error.offset, &as_io(&error)))
    }

    /// Unit `index` failed: nothing from it on will be written in order.
    pub(crate) fn close_from(&self, index: u64) {
        if let Way::Stream { gate, .. } = &self.way {
            gate.close_from(index);
        }
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
