use cellway_kernels::{Histogram, HistogramReport};
use proptest::prelude::*;
use stream::KernelError;

use crate::driver::{Plan, json, reduce, text};

/// A bitmap whose padding is filled too: it must not be counted.
fn bitmap(width: u32, height: i32, fill: impl FnMut() -> u8) -> Vec<u8> {
    let stride_bytes = (width as usize * 3).next_multiple_of(4);
    let size_bytes = stride_bytes * height.unsigned_abs() as usize;
    let mut bmp = b"BM".to_vec();
    for field in [
        54 + size_bytes as u32,
        0,
        54,
        40,
        width,
        height.cast_unsigned(),
        24 << 16 | 1,
        0,
        0,
        0,
        0,
        0,
        0,
    ] {
        bmp.extend(field.to_le_bytes());
    }
    bmp.extend(std::iter::repeat_with(fill).take(size_bytes));
    bmp
}

/// The bitmap with a 32-bit field of its header changed.
fn with_field(bmp: &[u8], offset: usize, value: u32) -> Vec<u8> {
    let mut bmp = bmp.to_vec();
    bmp[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    bmp
}

fn small() -> Vec<u8> {
    bitmap(5, 4, || 9)
}

fn count(bmp: &[u8], plan: Plan) -> Result<HistogramReport, KernelError> {
    reduce(&Histogram, bmp, plan)
}

/// Pixel by pixel.
fn plain_histogram(width: usize, height: usize, pixels: &[u8]) -> HistogramReport {
    let mut report = HistogramReport {
        pixels: (width * height) as u64,
        red: [0; 256],
        green: [0; 256],
        blue: [0; 256],
    };
    for row in pixels.chunks((width * 3).next_multiple_of(4)) {
        for pixel in row[..width * 3].chunks(3) {
            report.blue[usize::from(pixel[0])] += 1;
            report.green[usize::from(pixel[1])] += 1;
            report.red[usize::from(pixel[2])] += 1;
        }
    }
    report
}

#[test]
fn narrow_rows_count_without_their_padding() {
    for width in 1..=5 {
        for height in [1, 2, 7, -7] {
            let mut value = 0_u8;
            let fill = || {
                value = value.wrapping_mul(5).wrapping_add(31);
                value
            };
            let bmp = bitmap(width, height, fill);
            let expected =
                plain_histogram(width as usize, height.unsigned_abs() as usize, &bmp[54..]);
            for block_bytes in 1..40 {
                let plan = Plan { block_bytes, parts: 3, pipe: false };
                assert_eq!(
                    count(&bmp, plan),
                    Ok(expected.clone()),
                    "{width} x {height}, blocks of {block_bytes}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn any_cut_gives_the_counts_of_the_whole(
        (width, height) in (1_u32..60, 1_i32..30),
        top_down in any::<bool>(),
        seed in any::<u64>(),
        block_bytes in 1_usize..3000,
        parts in 1_usize..5,
    ) {
        let mut state = seed;
        let fill = || { state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); (state >> 56) as u8 };
        let bmp = bitmap(width, if top_down { -height } else { height }, fill);
        let expected = plain_histogram(width as usize, height as usize, &bmp[54..]);
        prop_assert_eq!(count(&bmp, Plan { block_bytes, parts, pipe: false }), Ok(expected));
    }
}

#[test]
fn long_headers_and_trailing_profiles_are_passed_over() {
    let plain = small();
    let mut bmp = with_field(&plain[..54], 14, 124);
    bmp.extend([77; 84]);
    bmp.extend(&plain[54..]);
    bmp.extend([88; 10]);
    let len = bmp.len() as u32;
    let bmp = with_field(&with_field(&bmp, 10, 138), 2, len);
    assert_eq!(count(&bmp, Plan::blocks_of(16)), count(&plain, Plan::blocks_of(16)));
}

#[test]
fn a_size_of_the_image_may_be_missing_or_include_padding() {
    let bmp = small();
    let expected = count(&bmp, Plan::blocks_of(16));
    assert_eq!(count(&with_field(&bmp, 34, 64), Plan::blocks_of(16)), expected);
    let mut padded = with_field(&with_field(&bmp, 34, 66), 2, bmp.len() as u32 + 2);
    padded.extend([0; 2]);
    assert_eq!(count(&padded, Plan::blocks_of(16)), expected);
}

#[test]
fn a_bad_header_is_refused_where_it_is_wrong() {
    let bmp = small();
    let png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (bad, offset, what) in [
        (vec![], 0, "54 bytes"),
        (b"B".to_vec(), 1, "54 bytes"),
        (bmp[..53].to_vec(), 53, "54 bytes"),
        (bmp[..54].to_vec(), 54, "end at byte 118"),
        (bmp[..117].to_vec(), 117, "end at byte 118"),
        (png, 0, "not a BMP"),
        (with_field(&bmp, 14, 12), 14, "12 bytes"),
        (with_field(&bmp, 14, 41), 14, "41 bytes"),
        (with_field(&bmp, 10, 53), 10, "inside its header"),
        (with_field(&bmp, 10, 55), 118, "end at byte 119"),
        (with_field(&bmp, 26, 24 << 16 | 2), 26, "2 planes"),
        (with_field(&bmp, 26, 8 << 16 | 1), 28, "8 bits per pixel"),
        (with_field(&bmp, 26, 32 << 16 | 1), 28, "32 bits per pixel"),
        (with_field(&bmp, 30, 1), 30, "compressed"),
        (with_field(&bmp, 18, 0), 18, "width is 0"),
        (with_field(&bmp, 18, u32::MAX), 18, "width is -1"),
        (with_field(&bmp, 22, 0), 22, "height is 0"),
        (with_field(&bmp, 22, 5), 118, "end at byte 134"),
        (with_field(&bmp, 22, 1 << 31), 118, "end at byte"),
        (with_field(&bmp, 18, i32::MAX as u32), 118, "end at byte"),
        (with_field(&bmp, 2, 117), 2, "gives a file size of 117 bytes, the file has 118"),
        (with_field(&bmp, 2, 0), 2, "gives a file size of 0 bytes"),
        (with_field(&bmp, 34, 63), 34, "gives 63 bytes"),
        (with_field(&bmp, 34, 65), 34, "gives 65 bytes"),
        ([bmp.clone(), vec![0]].concat(), 2, "the file has 119"),
    ] {
        let error = count(&bad, Plan::blocks_of(16)).unwrap_err();
        assert_eq!(error.offset, Some(offset), "{error}");
        assert!(error.to_string().contains(what), "{error}, not {what}");
        assert!(!error.cure.is_empty());
    }
}

#[test]
fn a_pipe_is_refused_with_a_cure() {
    let error = count(&small(), Plan { block_bytes: 16, parts: 2, pipe: true }).unwrap_err();
    assert!(error.what.contains("from a pipe") && error.cure.contains("to a file"), "{error}");
}

#[test]
fn the_report_has_a_line_per_value() {
    let mut report = count(&small(), Plan::blocks_of(16)).unwrap();
    let lines = String::from_utf8(text(&mut report)).unwrap();
    let lines: Vec<_> = lines.lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[1], lines[10]),
        (257, "value\tred\tgreen\tblue", "0\t0\t0\t0", "9\t20\t20\t20")
    );
    let object = json(&mut report);
    assert_eq!(object["pixels"], 20);
    for channel in ["red", "green", "blue"] {
        assert_eq!(
            (object[channel].as_array().unwrap().len(), &object[channel][9]),
            (256, &20.into())
        );
    }
}
