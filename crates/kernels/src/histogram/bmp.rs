//! The header of a BMP file: where the pixels are, or why they cannot be used.

use std::ops::Range;

use stream::{Body, Head, KernelError};

/// The file header (14 bytes) and the part of the information header that all
/// versions since Windows 3 share (40 bytes).
const HEADER_BYTES: usize = 54;
const FILE_HEADER_BYTES: u32 = 14;
/// BITMAPINFOHEADER, its V2, V3, V4 and V5, and the long OS/2 header: all begin alike.
pub(super) const INFO_HEADER_BYTES: [u32; 6] = [40, 52, 56, 64, 108, 124];

/// How the rows of a 24-bit uncompressed bitmap lie. Whether they go up or
/// down makes no difference to a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapRows {
    /// Bytes of pixels in a row: 3 per pixel.
    pub(super) row_bytes: u64,
    /// Bytes from row to row, padding included: a multiple of 4.
    pub(super) stride_bytes: u64,
}

impl Default for BitmapRows {
    /// No pixels.
    fn default() -> Self {
        Self { row_bytes: 0, stride_bytes: 4 }
    }
}

/// The pixels of a bitmap.
pub(super) type Pixels = Body<BitmapRows>;

/// Reads and checks a bitmap's header.
pub(super) fn read(head: &dyn Head) -> Result<Pixels, KernelError> {
    let Some(len_bytes) = head.len_bytes() else {
        let what = "a bitmap cannot be read from a pipe, whose length is not known beforehand";
        return Err(KernelError::new(what, "save it to a file first"));
    };
    let mut bytes = [0; HEADER_BYTES];
    let found = head.read_at(0, &mut bytes).map_err(|error| {
        KernelError::new(format!("cannot read the bitmap's header: {error}"), "check the input")
            .at(0)
    })?;
    if found >= 2 && &bytes[..2] != b"BM" {
        let cure = "give a 24-bit uncompressed BMP, for example from `convert IN -type TrueColor BMP3:OUT.bmp`";
        let what = "this is not a BMP file: it does not begin with \"BM\"";
        return Err(KernelError::new(what, cure).at(0));
    }
    if found < HEADER_BYTES {
        let what =
            format!("a bitmap's header has {HEADER_BYTES} bytes or more, but the input ends");
        return Err(KernelError::new(what, CUT_SHORT).at(found as u64));
    }
    let header = Header(bytes);
    let pixels = header.pixels()?;
    header.check_length(&pixels, len_bytes)?;
    Ok(pixels)
}

/// Whether a size in the header can stand for `bytes`. Sizes have 32 bits; for
/// what does not fit, programs write 0 or the lower 32 bits.
fn says(claimed: u32, bytes: u64) -> bool {
    claimed == bytes as u32 || (claimed == 0 && bytes > u64::from(u32::MAX))
}

const CUT_SHORT: &str = "the file is cut short: fetch it again";
const DAMAGED: &str = "the header is damaged: write the file anew with the program it came from";
const CONVERT: &str = "convert it to 24-bit uncompressed BMP, for example with `convert IN -type TrueColor BMP3:OUT.bmp`";

struct Header([u8; HEADER_BYTES]);

impl Header {
    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_le_bytes([self.0[offset], self.0[offset + 1]])
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from(self.u16_at(offset)) | u32::from(self.u16_at(offset + 2)) << 16
    }

    fn i32_at(&self, offset: usize) -> i32 {
        self.u32_at(offset).cast_signed()
    }

    /// Where they lie, by their sizes.
    fn pixels(&self) -> Result<Pixels, KernelError> {
        self.check_format()?;
        let (width, height) = (self.i32_at(18), self.i32_at(22));
        if width <= 0 {
            return Err(KernelError::new(format!("the bitmap's width is {width}"), DAMAGED).at(18));
        }
        if height == 0 {
            return Err(KernelError::new("the bitmap's height is 0", DAMAGED).at(22));
        }
        let row_bytes = u64::from(width.unsigned_abs()) * 3;
        let stride_bytes = row_bytes.next_multiple_of(4);
        // At most (3 * 2^31) * 2^31 bytes plus a 32-bit offset: fits.
        let size_bytes = stride_bytes * u64::from(height.unsigned_abs());
        let start = u64::from(self.u32_at(10));
        let header = BitmapRows { row_bytes, stride_bytes };
        Ok(Body { range: start..start + size_bytes, header })
    }

    /// Compares what the header says with what is there.
    fn check_length(&self, pixels: &Pixels, len_bytes: u64) -> Result<(), KernelError> {
        let &Range { start, end } = &pixels.range;
        if len_bytes < end {
            let what = format!("the bitmap's pixels end at byte {end}, but the input ends");
            return Err(KernelError::new(what, CUT_SHORT).at(len_bytes));
        }
        let claimed = self.u32_at(2);
        if !says(claimed, len_bytes) {
            let what = format!(
                "the bitmap's header gives a file size of {claimed} bytes, the file has {len_bytes}"
            );
            return Err(KernelError::new(what, DAMAGED).at(2));
        }
        let (claimed, size_bytes) = (self.u32_at(34), end - start);
        // 0 is usual; some programs count the padding they put after the last row.
        let most_bytes = len_bytes - start;
        let padded = (size_bytes..=most_bytes).contains(&claimed.into());
        if claimed != 0 && !padded && !says(claimed, size_bytes) {
            let what = format!(
                "the bitmap's header gives {claimed} bytes of pixels, its width and height {size_bytes}"
            );
            return Err(KernelError::new(what, DAMAGED).at(34));
        }
        Ok(())
    }

    /// Everything but sizes.
    fn check_format(&self) -> Result<(), KernelError> {
        let info_bytes = self.u32_at(14);
        if !INFO_HEADER_BYTES.contains(&info_bytes) {
            let what = format!(
                "the bitmap's information header has {info_bytes} bytes, which is no known version"
            );
            return Err(KernelError::new(what, CONVERT).at(14));
        }
        if self.u32_at(10) < FILE_HEADER_BYTES + info_bytes {
            let what =
                format!("the bitmap's pixels begin at byte {}, inside its header", self.u32_at(10));
            return Err(KernelError::new(what, DAMAGED).at(10));
        }
        if self.u16_at(26) != 1 {
            let what = format!("the bitmap has {} planes instead of 1", self.u16_at(26));
            return Err(KernelError::new(what, DAMAGED).at(26));
        }
        if self.u16_at(28) != 24 {
            let what = format!("the bitmap has {} bits per pixel instead of 24", self.u16_at(28));
            return Err(KernelError::new(what, CONVERT).at(28));
        }
        if self.u32_at(30) != 0 {
            let what = format!("the bitmap is compressed (method {})", self.u32_at(30));
            return Err(KernelError::new(what, CONVERT).at(30));
        }
        Ok(())
    }
}
