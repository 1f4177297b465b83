//! What must hold of the bitmap's reader whatever it reads: run by cargo-fuzz,
//! and by proptests beside it.

use std::io;

use stream::{Block, Body, Head, Kernel as _, Out, Unit};

use super::{BitmapRows, Histogram};
use crate::Finish as _;

/// The first 54 bytes of a file count; it may be longer than what is there.
struct File<'a> {
    bytes: &'a [u8],
    len_bytes: u64,
}

impl Head for File<'_> {
    fn len_bytes(&self) -> Option<u64> {
        Some(self.len_bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let some = buf.len().min(self.bytes.len() - from);
        buf[..some].copy_from_slice(&self.bytes[from..from + some]);
        Ok(some)
    }
}

/// Takes any bytes for a bitmap, and for the shape of one that is valid.
///
/// # Panics
/// Where something does not hold.
pub fn bitmap(data: &[u8]) {
    read(&File { bytes: data, len_bytes: data.len() as u64 });
    let Some((shape, rest)) = data.split_first_chunk::<12>() else { return };
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| shape[at + i]));
    // With a length of its own, which headers of large images need.
    read(&File { bytes: rest, len_bytes: u64::from(number(0)) << (shape[4] % 40) });
    let (width, height) = (number(0) % i32::MAX as u32 + 1, number(4).cast_signed());
    let known = super::bmp::INFO_HEADER_BYTES;
    let info_bytes = known[usize::from(shape[8]) % known.len()];
    let (gap_bytes, more_bytes) = (u32::from(shape[9]), u64::from(shape[10]));
    let mut bmp = valid(width, height, info_bytes, gap_bytes);
    let row_bytes = u64::from(width) * 3;
    let stride_bytes = row_bytes.next_multiple_of(4);
    let rows = u64::from(height.unsigned_abs());
    let start = u64::from(14 + info_bytes + gap_bytes);
    let end = start + stride_bytes * rows;
    let len_bytes = end + more_bytes;
    bmp[2..6].copy_from_slice(&(len_bytes as u32).to_le_bytes());
    let found = read(&File { bytes: &bmp, len_bytes });
    let header = BitmapRows { row_bytes, stride_bytes };
    assert_eq!(found, (rows > 0).then_some(Body { range: start..end, header }));
    // The same with some bytes changed.
    for change in rest.chunks_exact(2) {
        let at = usize::from(change[0]) % bmp.len();
        bmp[at] ^= change[1];
    }
    read(&File { bytes: &bmp, len_bytes });
}

fn valid(width: u32, height: i32, info_bytes: u32, gap_bytes: u32) -> Vec<u8> {
    let mut bmp = b"BM".to_vec();
    let start = 14 + info_bytes + gap_bytes;
    let fields = [0, 0, start, info_bytes, width, height.cast_unsigned(), 24 << 16 | 1];
    for field in fields.into_iter().chain([0; 6]) {
        bmp.extend(field.to_le_bytes());
    }
    bmp
}

/// Reads a header; what it says lies inside the file, and is what is counted.
fn read(file: &File<'_>) -> Option<Body<BitmapRows>> {
    let body = match Histogram.open(file) {
        Ok(body) => body,
        Err(error) => {
            assert!(!error.what.is_empty() && !error.cure.is_empty());
            return None;
        }
    };
    let BitmapRows { row_bytes, stride_bytes } = body.header;
    let (start, size_bytes) = (body.range.start, body.range.end - body.range.start);
    assert!(start >= 54 && body.range.end <= file.len_bytes, "{body:?}");
    assert!(row_bytes > 0 && row_bytes.next_multiple_of(4) == stride_bytes, "{body:?}");
    assert!(size_bytes > 0 && size_bytes.is_multiple_of(stride_bytes), "{body:?}");
    if file.bytes.len() as u64 == file.len_bytes {
        let mut data = file.bytes[start as usize..body.range.end as usize].to_vec();
        let unit = Unit { index: 0, offset: start, body: &body };
        let (mut part, out) = (Histogram.part(1), Out::default());
        let block = Block { before: &mut [], data: &mut data, after: &mut [], out };
        Histogram.block(&unit, block, &mut part).expect("every byte can be counted");
        let report = Histogram.finish(part).expect("every count can be told");
        assert_eq!(report.pixels, size_bytes / stride_bytes * (row_bytes / 3));
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]
        #[test]
        fn any_bytes_are_a_bitmap_or_refused(data in prop::collection::vec(any::<u8>(), 0..200)) {
            bitmap(&data);
        }

        /// Small ones, whose pixels are there.
        #[test]
        fn small_bitmaps_are_counted(
            width in 1u32..30, height in -9i32..9, data in prop::collection::vec(any::<u8>(), 0..1000),
            changes in prop::collection::vec((0usize..54, any::<u8>()), 0..3),
        ) {
            let mut bmp = valid(width, height, 40, 0);
            bmp.extend(data);
            let len_bytes = bmp.len() as u32;
            bmp[2..6].copy_from_slice(&len_bytes.to_le_bytes());
            let pixel_bytes = (width * 3).next_multiple_of(4) * height.unsigned_abs();
            let is_whole = height != 0 && 54 + pixel_bytes <= len_bytes;
            prop_assert_eq!(read(&File { bytes: &bmp, len_bytes: len_bytes.into() }).is_some(), is_whole);
            changes.into_iter().for_each(|(at, change)| bmp[at] ^= change);
            bitmap(&bmp);
        }
    }
}
