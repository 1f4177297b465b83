use cellway_kernels::Crc32c;
use proptest::prelude::*;

use crate::driver::{Plan, json, reduce, text};

/// Bit by bit, from the definition.
fn plain_crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

#[test]
fn the_published_vectors() {
    // RFC 3720, B.4, whose sums are printed as bytes in the order they are sent.
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    for (data, crc) in [
        (vec![0; 32], 0x8a91_36aa),
        (vec![0xff; 32], 0x62a8_ab43),
        (ascending, 0x46dd_794e),
        (descending, 0x113f_db5c),
        (b"123456789".to_vec(), 0xe306_9283),
        (vec![], 0),
    ] {
        for block_bytes in [1, 5, 100] {
            let report = reduce(&Crc32c::new(), &data, Plan::blocks_of(block_bytes)).unwrap();
            assert_eq!(report.crc, crc, "blocks of {block_bytes} bytes");
        }
    }
}

#[test]
fn the_report_has_eight_lower_case_digits() {
    let mut report = reduce(&Crc32c::new(), b"hello", Plan::blocks_of(4)).unwrap();
    assert_eq!(text(&mut report), b"9a71bb4c\n");
    assert_eq!(json(&mut report), serde_json::json!({"crc32c": "9a71bb4c"}));
    report.crc = 0xab;
    assert_eq!(text(&mut report), b"000000ab\n");
}

proptest! {
    #[test]
    fn any_cut_gives_the_sum_of_the_whole(
        data in prop::collection::vec(any::<u8>(), 0..10_000),
        block_bytes in 1_usize..3000,
        parts in 1_usize..5,
        pipe in any::<bool>(),
    ) {
        let report = reduce(&Crc32c::new(), &data, Plan { block_bytes, parts, pipe }).unwrap();
        prop_assert_eq!(report.crc, plain_crc32c(&data));
    }
}
