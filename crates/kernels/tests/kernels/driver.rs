//! Runs a kernel over bytes in memory as the stream layer does, one unit after
//! the other: cut, dealt out to the parts in turn, merged in the kernel's order.

use std::io;
use std::ops::Range;

use cellway_kernels::{Finish, Report};
use stream::{Block, Head, Kernel, KernelError, MergeOrder, Unit};

/// How an input is presented and cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Rounded down to a multiple of the kernel's alignment, but not to 0.
    pub(crate) block_bytes: usize,
    /// Accelerators.
    pub(crate) parts: usize,
    /// Whether the input's length is unknown beforehand.
    pub(crate) pipe: bool,
}

impl Plan {
    /// A file on one accelerator.
    pub(crate) fn blocks_of(block_bytes: usize) -> Self {
        Self { block_bytes, parts: 1, pipe: false }
    }
}

struct Bytes<'a> {
    bytes: &'a [u8],
    pipe: bool,
}

impl Head for Bytes<'_> {
    fn len_bytes(&self) -> Option<u64> {
        (!self.pipe).then_some(self.bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        let got = rest.len().min(buf.len());
        buf[..got].copy_from_slice(&rest[..got]);
        Ok(got)
    }
}

/// What the kernel takes for the body of a file, before any of it is streamed.
pub(crate) fn open<K: Kernel>(kernel: &mut K, input: &[u8]) -> Result<Range<u64>, KernelError> {
    kernel.open(&Bytes { bytes: input, pipe: false })
}

/// Runs the kernel; returns the output of a transform and the merged part.
pub(crate) fn run<K: Kernel>(
    kernel: &mut K,
    input: &[u8],
    plan: Plan,
) -> Result<(Vec<u8>, K::Part), KernelError> {
    let body = kernel.open(&Bytes { bytes: input, pipe: plan.pipe })?;
    let cut = kernel.cut();
    let block_bytes = (plan.block_bytes / cut.align_bytes).max(1) * cut.align_bytes;
    let (start, end) = (body.start as usize, body.end.min(input.len() as u64) as usize);
    let mut output = input.to_vec();
    let mut parts: Vec<_> = (0..plan.parts).map(|_| kernel.part(plan.parts)).collect();
    for (index, at) in (start..end).step_by(block_bytes).enumerate() {
        let next = (at + block_bytes).min(end);
        let block = Block {
            before: &mut input[at.saturating_sub(cut.before_bytes).max(start)..at].to_vec(),
            data: &mut output[at..next],
            after: &mut input[next..(next + cut.after_bytes).min(end)].to_vec(),
        };
        let unit = Unit { index: index as u64, offset: at as u64, body: (body.start, body.end) };
        match kernel.merge_order() {
            MergeOrder::Any => kernel.block(&unit, block, &mut parts[index % plan.parts])?,
            MergeOrder::ByUnit => {
                let mut part = kernel.part(plan.parts);
                kernel.block(&unit, block, &mut part)?;
                kernel.merge(&mut parts[0], part)?;
            }
        }
    }
    // From the last to the first: any order must do.
    let mut merged = parts.pop().expect("a plan has parts");
    while let Some(part) = parts.pop() {
        match kernel.merge_order() {
            MergeOrder::Any => kernel.merge(&mut merged, part)?,
            MergeOrder::ByUnit => {
                let later = std::mem::replace(&mut merged, part);
                kernel.merge(&mut merged, later)?;
            }
        }
    }
    Ok((output, merged))
}

/// The output of a transform.
pub(crate) fn transform<K: Kernel>(
    kernel: &mut K,
    input: &[u8],
    plan: Plan,
) -> Result<Vec<u8>, KernelError> {
    run(kernel, input, plan).map(|(output, _)| output)
}

/// The result of a reduction, which must leave its input as it is.
pub(crate) fn reduce<K: Finish>(
    kernel: &mut K,
    input: &[u8],
    plan: Plan,
) -> Result<K::Report, KernelError> {
    let (output, part) = run(kernel, input, plan)?;
    assert!(output == input, "a reduction has changed its input");
    kernel.finish(part)
}

pub(crate) fn text(report: &mut impl Report) -> Vec<u8> {
    let mut out = Vec::new();
    report.write_text(&mut out).expect("memory takes any text");
    out
}

pub(crate) fn json(report: &mut impl Report) -> serde_json::Value {
    let mut out = Vec::new();
    report.write_json(&mut out).expect("memory takes any text");
    assert_eq!(out.pop(), Some(b'\n'));
    serde_json::from_slice(&out).expect("a report writes JSON")
}
