use cellway_kernels::Blake3;
use proptest::prelude::*;

use crate::driver::{Plan, json, reduce, text};

/// Data as the BLAKE3 test vectors have it.
fn counting(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// The hash by the library itself, which sees the input whole.
fn plain(data: &[u8]) -> [u8; 32] {
    *blake3::hash(data).as_bytes()
}

#[test]
fn sizes_around_every_boundary() {
    for chunks in [0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33] {
        for len in [(chunks * 1024_usize).saturating_sub(1), chunks * 1024, chunks * 1024 + 1] {
            let data = counting(len);
            for block_bytes in [1024, 2048, 3072, 5 * 1024, 8192, 1 << 20] {
                let report = reduce(&Blake3::new(), &data, Plan::blocks_of(block_bytes));
                assert_eq!(report.unwrap().hash, plain(&data), "{len} by {block_bytes} bytes");
            }
        }
    }
}

#[test]
fn the_report_is_what_b3sum_prints() {
    let mut report = reduce(&Blake3::new(), b"", Plan::blocks_of(1024)).unwrap();
    let published = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
    assert_eq!(text(&mut report), format!("{published}\n").into_bytes());
    assert_eq!(json(&mut report), serde_json::json!({ "blake3": published }));
}

proptest! {
    #[test]
    fn any_cut_gives_the_hash_of_the_whole(
        data in prop::collection::vec(any::<u8>(), 0..60_000),
        block_bytes in 1_usize..20_000,
        parts in 1_usize..5,
        pipe in any::<bool>(),
    ) {
        let report = reduce(&Blake3::new(), &data, Plan { block_bytes, parts, pipe }).unwrap();
        prop_assert_eq!(report.hash, plain(&data));
    }
}
