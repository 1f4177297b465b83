//! `histogram`: how often each red, green and blue value occurs in a 24-bit
//! uncompressed BMP. Row padding does not count, and rows may be cut anywhere.

mod bmp;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;

use std::io::{self, Write};

use stream::{Block, Body, Effect, Head, Kernel, KernelError, Saved, Unit};

use crate::{Finish, Report};
pub use bmp::BitmapRows;

/// Counts the colours of a bitmap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Histogram;

/// Counts per value of one channel.
type Bins = [u64; 256];

/// Pixels that are counted side by side in tables of their own, so that equal
/// neighbours do not wait for each other's count to reach memory.
const LANES: usize = 4;
const PIXEL_BYTES: usize = 3;

/// The counts of some bytes of the image.
#[derive(Clone, Debug)]
pub struct HistogramPart {
    /// `recent[lane * 3 + channel][value]`, small enough for the L1 cache.
    recent: Box<[[u32; 256]; LANES * PIXEL_BYTES]>,
    /// Bytes counted in `recent`, kept below what a bin can hold.
    recent_bytes: u64,
    /// Blue, green, red: the order in the file.
    bins: Box<[Bins; PIXEL_BYTES]>,
}

const PART_BYTES: u64 =
    (LANES * PIXEL_BYTES * 256 * size_of::<u32>() + PIXEL_BYTES * size_of::<Bins>()) as u64;

impl HistogramPart {
    fn new() -> Self {
        Self {
            recent: Box::new([[0; 256]; LANES * PIXEL_BYTES]),
            recent_bytes: 0,
            bins: Box::new([[0; 256]; PIXEL_BYTES]),
        }
    }

    /// Counts bytes of one row, the first of which belongs to `channel`.
    fn count(&mut self, channel: usize, bytes: &[u8]) {
        self.make_room(bytes.len());
        let (first, bytes) = bytes.split_at(bytes.len().min((PIXEL_BYTES - channel) % PIXEL_BYTES));
        for (table, value) in self.recent[channel..].iter_mut().zip(first) {
            table[usize::from(*value)] += 1;
        }
        let (groups, rest) = bytes.as_chunks::<{ LANES * PIXEL_BYTES }>();
        for group in groups {
            for (table, value) in self.recent.iter_mut().zip(group) {
                table[usize::from(*value)] += 1;
            }
        }
        for (table, value) in self.recent.iter_mut().zip(rest) {
            table[usize::from(*value)] += 1;
        }
    }

    fn make_room(&mut self, bytes: usize) {
        self.recent_bytes += bytes as u64;
        if self.recent_bytes > u64::from(u32::MAX) {
            self.settle();
            self.recent_bytes = bytes as u64;
        }
    }

    /// Moves the recent counts to the bins.
    fn settle(&mut self) {
        for (i, table) in self.recent.iter_mut().enumerate() {
            for (bin, count) in self.bins[i % PIXEL_BYTES].iter_mut().zip(table) {
                *bin += u64::from(std::mem::take(count));
            }
        }
        self.recent_bytes = 0;
    }
}

impl Kernel for Histogram {
    type Part = HistogramPart;
    type Header = BitmapRows;

    fn name(&self) -> &str {
        "histogram"
    }

    fn open(&self, head: &dyn Head) -> Result<Body<BitmapRows>, KernelError> {
        bmp::read(head)
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn looks_in_place(&self) -> bool {
        true
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (PART_BYTES + size_of::<HistogramPart>() as u64) * accelerators as u64
    }

    fn part(&self, _accelerators: usize) -> HistogramPart {
        HistogramPart::new()
    }

    fn block(
        &self,
        unit: &Unit<'_, BitmapRows>,
        block: Block<'_>,
        part: &mut HistogramPart,
    ) -> Result<(), KernelError> {
        let BitmapRows { row_bytes, stride_bytes } = unit.body.header;
        let mut column = unit.body_offset() % stride_bytes;
        let mut bytes: &[u8] = block.data;
        while !bytes.is_empty() {
            // A row never reaches 2^64 bytes, and `min` makes it fit a usize.
            let row_rest = (stride_bytes - column).min(bytes.len() as u64) as usize;
            let (row, rest) = bytes.split_at(row_rest);
            if column < row_bytes {
                let used = (row_bytes - column).min(row.len() as u64) as usize;
                part.count((column % PIXEL_BYTES as u64) as usize, &row[..used]);
            }
            column = 0;
            bytes = rest;
        }
        Ok(())
    }

    fn merge(&self, part: &mut HistogramPart, mut later: HistogramPart) -> Result<(), KernelError> {
        later.settle();
        for (bins, more) in part.bins.iter_mut().zip(later.bins.iter()) {
            for (bin, count) in bins.iter_mut().zip(more) {
                *bin += count;
            }
        }
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Vec::new())
    }

    fn save(&self, part: &HistogramPart, out: &mut Vec<u8>) -> Result<(), KernelError> {
        let mut settled = part.clone();
        settled.settle();
        let bins = settled.bins.iter().flatten();
        out.extend(bins.flat_map(|count| count.to_le_bytes()));
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<HistogramPart, KernelError> {
        let (mut saved, mut part) = (Saved::new(saved), HistogramPart::new());
        for bin in part.bins.iter_mut().flatten() {
            *bin = saved.u64()?;
        }
        saved.end().map(|()| part)
    }
}

impl Finish for Histogram {
    type Report = HistogramReport;

    fn finish(&self, mut part: HistogramPart) -> Result<HistogramReport, KernelError> {
        part.settle();
        let [blue, green, red] = *part.bins;
        Ok(HistogramReport { pixels: red.iter().sum(), red, green, blue })
    }
}

/// The counts of the whole image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramReport {
    /// How many pixels were counted.
    pub pixels: u64,
    /// How often each red value occurs.
    pub red: [u64; 256],
    /// How often each green value occurs.
    pub green: [u64; 256],
    /// How often each blue value occurs.
    pub blue: [u64; 256],
}

impl Report for HistogramReport {
    fn write_text(&mut self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "value\tred\tgreen\tblue")?;
        for value in 0..256 {
            writeln!(
                out,
                "{value}\t{}\t{}\t{}",
                self.red[value], self.green[value], self.blue[value]
            )?;
        }
        Ok(())
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, r#"{{"pixels":{}"#, self.pixels)?;
        for (name, bins) in [("red", &self.red), ("green", &self.green), ("blue", &self.blue)] {
            write!(out, r#","{name}":"#)?;
            serde_json::to_writer(&mut *out, bins.as_slice())?;
        }
        writeln!(out, "}}")
    }
}
