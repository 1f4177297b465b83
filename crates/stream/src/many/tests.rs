use super::*;
use proptest::prelude::*;
use std::fs::File;

/// A folder with a file of each length, listed. They are all hole.
fn listed(lens: &[u64]) -> (tempfile::TempDir, Vec<Listed>) {
    let dir = tempfile::tempdir().unwrap();
    for (number, len) in lens.iter().enumerate() {
        let file = File::create(dir.path().join(format!("{number:04}"))).unwrap();
        file.set_len(*len).unwrap();
    }
    let listed = storage::list(&[dir.path().to_owned()], true).unwrap();
    (dir, listed)
}

fn lens() -> impl Strategy<Value = Vec<u64>> {
    let len = prop_oneof![
        4 => 0..10_000u64,
        1 => SMALL_BYTES_MAX - 1..=SMALL_BYTES_MAX + 1,
        1 => Just(1 << 40),
    ];
    prop::collection::vec(len, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn segments_are_the_list_in_order(lens in lens(), named in any::<bool>()) {
        let (_dir, inputs) = listed(&lens);
        let engine = if named { EngineChoice::Uring } else { EngineChoice::Auto };
        let options = Options { engine, ..Options::default() };
        let segments: Vec<_> = segments(&inputs, &options).collect();
        let mut next = 0;
        for segment in &segments {
            match segment.clone() {
                Segment::Alone(number) => {
                    prop_assert_eq!(number, next);
                    prop_assert!(named || lens[number] > SMALL_BYTES_MAX);
                    next += 1;
                }
                Segment::Batch(range) => {
                    prop_assert_eq!(range.start, next);
                    prop_assert!(!named || lens.is_empty());
                    prop_assert!(lens[range.clone()].iter().all(|len| *len <= SMALL_BYTES_MAX));
                    next = range.end;
                }
            }
        }
        prop_assert_eq!(next, lens.len());
        // As few batches as can be.
        let is_batch = |segment: &Segment| matches!(segment, Segment::Batch(_));
        prop_assert!(!segments.windows(2).any(|two| is_batch(&two[0]) && is_batch(&two[1])));
        prop_assert!(!segments.is_empty());
    }
}

#[test]
fn ways_are_told_once_and_not_without_end() {
    let mut ways = Vec::new();
    for number in [1, 1, 2, 3, 2, 4, 5, 6, 7, 1] {
        add_way(&mut ways, Some(format!("way {number}")));
        add_way(&mut ways, None);
    }
    assert_eq!(ways, ["way 1", "way 2", "way 3", "way 4", "and others"]);
}
