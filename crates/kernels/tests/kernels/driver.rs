//! Runs a kernel over bytes in memory as the stream layer does, one unit after
//! the other: cut, dealt out to the parts in turn, merged in the kernel's order.

use std::io;
use std::path::Path;

use cellway_kernels::{Finish, Report};
use stream::{
    Beside, Block, Body, Effect, Head, Kernel, KernelError, MergeOrder, Out, OutState, Unit,
};

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
pub(crate) fn open<K: Kernel>(kernel: &K, input: &[u8]) -> Result<Body<K::Header>, KernelError> {
    kernel.open(&Bytes { bytes: input, pipe: false })
}

/// Runs the kernel; returns the output of a transform or rewrite and the merged part.
pub(crate) fn run<K: Kernel>(
    kernel: &K,
    input: &[u8],
    plan: Plan,
) -> Result<(Vec<u8>, K::Part), KernelError> {
    run_in_room(kernel, input, plan, plan.block_bytes.max(64))
}

/// The same; a rewrite has room for so many bytes in one call.
pub(crate) fn run_in_room<K: Kernel>(
    kernel: &K,
    input: &[u8],
    plan: Plan,
    room_bytes: usize,
) -> Result<(Vec<u8>, K::Part), KernelError> {
    let body = kernel.open(&Bytes { bytes: input, pipe: plan.pipe })?;
    let cut = kernel.cut(&body.header);
    let block_bytes = (plan.block_bytes / cut.align_bytes).max(1) * cut.align_bytes;
    let (start, end) = (body.range.start as usize, body.range.end.min(input.len() as u64) as usize);
    let mut output = input.to_vec();
    let (mut room, mut made) = (vec![0; room_bytes], Vec::new());
    let mut parts: Vec<_> = (0..plan.parts).map(|_| kernel.part(plan.parts)).collect();
    let beside = tempfile::tempdir().expect("there is a folder for temporary files");
    for (index, at) in (start..end).step_by(block_bytes).enumerate() {
        if index.is_power_of_two() {
            parts = reloaded(kernel, parts, plan.parts, beside.path())?;
        }
        let next = (at + block_bytes).min(end);
        let before = &mut input[at.saturating_sub(cut.before_bytes).max(start)..at].to_vec();
        let after = &mut input[next..(next + cut.after_bytes).min(end)].to_vec();
        let unit = Unit { index: index as u64, offset: at as u64, body: &body };
        if kernel.effect() == Effect::Rewrite {
            let (part, data) = (&mut parts[index % plan.parts], &mut output[at..next]);
            let mut state = OutState::default();
            loop {
                let out = Out::new(&mut room, &mut state);
                kernel.block(&unit, Block { before, data, after, out }, part)?;
                made.extend_from_slice(&room[..state.len]);
                if state.stopped.is_none() {
                    break;
                }
                assert!(state.len > 0, "a call that makes nothing must not stop");
                state = OutState { goes_on_from: state.stopped, ..OutState::default() };
            }
            continue;
        }
        let block = Block { before, data: &mut output[at..next], after, out: Out::default() };
        match kernel.merge_order() {
            MergeOrder::Any => kernel.block(&unit, block, &mut parts[index % plan.parts])?,
            MergeOrder::ByUnit => {
                let mut part = kernel.part(plan.parts);
                kernel.block(&unit, block, &mut part)?;
                kernel.merge(&mut parts[0], part)?;
            }
        }
    }
    if kernel.effect() == Effect::Rewrite {
        output = made;
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

/// The parts as they come back after a crash.
fn reloaded<K: Kernel>(
    kernel: &K,
    parts: Vec<K::Part>,
    accelerators: usize,
    folder: &Path,
) -> Result<Vec<K::Part>, KernelError> {
    let reload = |(number, mut part): (usize, K::Part)| {
        let beside = Beside::new(folder.join(number.to_string()));
        let (mut saved, mut again) = (Vec::new(), Vec::new());
        kernel.save_beside(&mut part, &mut saved, &beside)?;
        drop(part);
        let mut part = kernel.load_beside(&saved, accelerators, &beside)?;
        kernel.save_beside(&mut part, &mut again, &beside)?;
        assert!(saved == again, "{} loads another part than it saved", kernel.name());
        for len in 0..saved.len().min(200) {
            // Perhaps another part, but no panic.
            let _ = kernel.load_beside(&saved[..len], accelerators, &beside);
        }
        Ok(part)
    };
    parts.into_iter().enumerate().map(reload).collect()
}

/// The output of a transform or rewrite.
pub(crate) fn transform<K: Kernel>(
    kernel: &K,
    input: &[u8],
    plan: Plan,
) -> Result<Vec<u8>, KernelError> {
    run(kernel, input, plan).map(|(output, _)| output)
}

/// The result of a reduction, which must leave its input as it is.
pub(crate) fn reduce<K: Finish>(
    kernel: &K,
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
