use cellway_kernels::{LinReg, LinRegReport, PairType};
use proptest::prelude::*;
use stream::KernelError;

use crate::driver::{Plan, json, open, reduce, text};

const TYPES: [PairType; 4] = [PairType::U8, PairType::I16, PairType::F32, PairType::F64];

/// The pairs as bytes of a type.
fn encode(pair_type: PairType, pairs: &[[f64; 2]]) -> Vec<u8> {
    let bytes = |value: f64| match pair_type {
        PairType::U8 => vec![value as u8],
        PairType::I16 => (value as i16).to_le_bytes().to_vec(),
        PairType::F32 => (value as f32).to_le_bytes().to_vec(),
        PairType::F64 => value.to_le_bytes().to_vec(),
    };
    pairs.as_flattened().iter().flat_map(|value| bytes(*value)).collect()
}

fn fit(pair_type: PairType, pairs: &[[f64; 2]], plan: Plan) -> LinRegReport {
    reduce(&LinReg::new(pair_type), &encode(pair_type, pairs), plan).unwrap()
}

/// Slope, intercept and correlation of integer pairs; exact up to the last division.
fn plain_fit(pairs: &[[i64; 2]]) -> Option<(f64, f64, Option<f64>)> {
    let n = pairs.len() as i128;
    let sum = |term: fn(i128, i128) -> i128| {
        pairs.iter().map(|[x, y]| term((*x).into(), (*y).into())).sum::<i128>()
    };
    let (x, y) = (sum(|x, _| x), sum(|_, y| y));
    let (xx, xy, yy) = (sum(|x, _| x * x), sum(|x, y| x * y), sum(|_, y| y * y));
    let (dxx, dxy, dyy) = (n * xx - x * x, n * xy - x * y, n * yy - y * y);
    (n >= 2 && dxx != 0).then(|| {
        let correlation =
            (dyy != 0).then(|| dxy as f64 / ((dxx as f64).sqrt() * (dyy as f64).sqrt()));
        (dxy as f64 / dxx as f64, (y * dxx - x * dxy) as f64 / (n * dxx) as f64, correlation)
    })
}

fn assert_near(found: Option<f64>, expected: Option<f64>, scale: f64, what: &str) {
    match (found, expected) {
        (None, None) => {}
        (Some(found), Some(expected))
            if (found - expected).abs() <= 1e-12 * scale.max(expected.abs()) => {}
        _ => panic!("{what}: {found:?} instead of {expected:?}"),
    }
}

fn assert_fits(report: LinRegReport, pairs: &[[i64; 2]]) {
    assert_eq!(report.n, pairs.len() as u64);
    let expected = plain_fit(pairs);
    // An intercept near 0 is a difference of larger numbers.
    let most_y = pairs.iter().map(|pair| pair[1].unsigned_abs()).max().unwrap_or(0) as f64;
    let most_x = pairs.iter().map(|pair| pair[0].unsigned_abs()).max().unwrap_or(0) as f64;
    let slope_scale = expected.map_or(0.0, |(slope, ..)| slope.abs() * most_x);
    assert_near(report.slope, expected.map(|(slope, ..)| slope), 1e-3, "slope");
    assert_near(
        report.intercept,
        expected.map(|(_, intercept, _)| intercept),
        most_y + slope_scale,
        "intercept",
    );
    assert_near(
        report.correlation,
        expected.and_then(|(.., correlation)| correlation),
        1.0,
        "correlation",
    );
    assert_eq!(report.note.is_some(), report.correlation.is_none());
}

fn as_floats(pairs: &[[i64; 2]]) -> Vec<[f64; 2]> {
    pairs.iter().map(|pair| pair.map(|value| value as f64)).collect()
}

fn plans() -> impl Strategy<Value = Plan> {
    (1_usize..5000, 1_usize..5, any::<bool>()).prop_map(|(block_bytes, parts, pipe)| Plan {
        block_bytes,
        parts,
        pipe,
    })
}

fn pairs_of(values: std::ops::RangeInclusive<i64>) -> impl Strategy<Value = Vec<[i64; 2]>> {
    prop::collection::vec([values.clone(), values], 0..3000)
}

proptest! {
    #[test]
    fn bytes_fit_as_by_hand(pairs in pairs_of(0..=255), plan in plans()) {
        assert_fits(fit(PairType::U8, &as_floats(&pairs), plan), &pairs);
    }

    #[test]
    fn short_integers_fit_as_by_hand(pairs in pairs_of(-32768..=32767), plan in plans()) {
        assert_fits(fit(PairType::I16, &as_floats(&pairs), plan), &pairs);
    }

    #[test]
    fn floats_fit_as_by_hand(pairs in pairs_of(-60000..=60000), plan in plans()) {
        // Whole numbers, so that the reference is exact.
        assert_fits(fit(PairType::F32, &as_floats(&pairs), plan), &pairs);
        assert_fits(fit(PairType::F64, &as_floats(&pairs), plan), &pairs);
    }

    #[test]
    fn neither_blocks_nor_accelerators_change_a_bit(
        pairs in prop_oneof![
            prop::collection::vec([-1.0_f32..1.0, 0.0_f32..1e6], 0..8000),
            prop::collection::vec(any::<[f32; 2]>(), 0..8000),
        ],
        plan in plans(), chunks in 1_usize..9
    ) {
        let pairs: Vec<_> = pairs.iter().map(|pair| pair.map(f64::from)).collect();
        for pair_type in TYPES {
            let whole = fit(pair_type, &pairs, Plan::blocks_of(1 << 20));
            let block_bytes = plan.block_bytes * chunks;
            prop_assert_eq!(fit(pair_type, &pairs, Plan { block_bytes, ..plan }), whole);
        }
    }

    #[test]
    fn a_line_far_from_zero_is_found(slope in -100_i32..100, offset in -1_000_000_i64..1_000_000) {
        // The sums of squares of such numbers differ in their last digits only.
        let pairs: Vec<_> = (0..5000).map(|i| {
            let x = 1e9 + f64::from(i) * 0.25;
            [x, f64::from(slope) * x + offset as f64]
        }).collect();
        let report = fit(PairType::F64, &pairs, Plan::blocks_of(4096));
        assert_near(report.slope, Some(slope.into()), 1.0, "slope");
        assert_near(report.intercept.map(|found| found - offset as f64), Some(0.0), 1e9, "intercept");
    }
}

#[test]
fn an_input_that_ends_within_a_pair_is_refused_where_the_pair_begins() {
    for (pair_type, pair_bytes) in TYPES.into_iter().zip([2, 4, 8, 16]) {
        for len in [1, pair_bytes + 1, 10 * pair_bytes - 1, 1000 * pair_bytes + 1] {
            for pipe in [false, true] {
                let input = vec![0; len];
                let error = reduce(
                    &LinReg::new(pair_type),
                    &input,
                    Plan { block_bytes: 64, parts: 2, pipe },
                );
                let error: KernelError = error.unwrap_err();
                assert_eq!(
                    error.offset,
                    Some((len / pair_bytes * pair_bytes) as u64),
                    "{pair_type:?}: {error}"
                );
                let what = format!("{} bytes instead of {pair_bytes}", len % pair_bytes);
                assert!(error.to_string().contains(&what), "{error}");
            }
        }
    }
}

#[test]
fn a_file_that_ends_within_a_pair_is_refused_before_it_is_read() {
    assert_eq!(open(&LinReg::new(PairType::F64), &[0; 33]).unwrap_err().offset, Some(32));
}

#[test]
fn x_may_vary_from_unit_to_unit_only() {
    for pairs in [
        [[5.0, 1.0], [5.0, 3.0], [3.0, 1.0], [3.0, 7.0]],
        [[3.0, 1.0], [3.0, 3.0], [5.0, 1.0], [5.0, 7.0]],
    ] {
        // Floats are cut into chunks of 512 pairs: each x fills two.
        let pairs: Vec<_> = pairs.chunks(2).flat_map(|same_x| same_x.repeat(512)).collect();
        for pair_type in TYPES {
            let pair_bytes = encode(pair_type, &[[0.0; 2]]).len();
            let whole = fit(pair_type, &pairs, Plan::blocks_of(1 << 20));
            assert!(whole.slope.is_some());
            for block_pairs in [512, 1024] {
                let plan = Plan::blocks_of(block_pairs * pair_bytes);
                assert_eq!(fit(pair_type, &pairs, plan), whole);
            }
        }
    }
}

#[test]
fn what_has_no_line_is_said_plainly() {
    let plan = Plan { block_bytes: 64, parts: 2, pipe: false };
    for pair_type in TYPES {
        let mut cases = vec![
            (vec![], "two pairs"),
            (vec![[3.0, 4.0]], "two pairs"),
            (vec![[3.0, 1.0], [3.0, 2.0], [3.0, 9.0]], "all x"),
        ];
        if matches!(pair_type, PairType::F32 | PairType::F64) {
            // A mean of these is not exact, and yet they are equal.
            cases.push(((0..999).map(|i| [0.1, f64::from(i)]).collect(), "all x"));
            cases.push((vec![[1.0, 1.0], [f64::NAN, 2.0], [3.0, 3.0]], "NaN"));
            cases.push((vec![[1.0, f64::INFINITY], [2.0, 2.0]], "NaN"));
        }
        for (pairs, note) in cases {
            let mut report = fit(pair_type, &pairs, plan);
            assert_eq!(
                (report.n, report.slope, report.intercept),
                (pairs.len() as u64, None, None)
            );
            assert!(report.note.unwrap().contains(note), "{report:?}");
            let object = json(&mut report);
            assert!(
                object["slope"].is_null()
                    && object["intercept"].is_null()
                    && object["correlation"].is_null()
            );
            let lines = String::from_utf8(text(&mut report)).unwrap();
            assert!(lines.contains("slope\tnone (") && !lines.contains("NaN\n"), "{lines}");
        }
        let report = fit(pair_type, &[[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]], plan);
        assert_eq!(
            (report.slope, report.intercept, report.correlation),
            (Some(0.0), Some(7.0), None)
        );
        assert_eq!(report.note, Some("all y are equal"));
    }
}

#[test]
fn the_report_gives_four_figures() {
    let mut report = fit(PairType::U8, &[[1.0, 5.0], [2.0, 7.0], [3.0, 9.0]], Plan::blocks_of(64));
    assert_eq!(text(&mut report), b"n\t3\nslope\t2\nintercept\t3\ncorrelation\t1\n");
    let object = json(&mut report);
    let expected = serde_json::json!({"n": 3, "slope": 2.0, "intercept": 3.0, "correlation": 1.0, "note": null});
    assert_eq!(object, expected);
}

#[test]
fn types_have_names() {
    for (name, pair_type) in ["u8", "i16", "f32", "f64"].into_iter().zip(TYPES) {
        assert_eq!(name.parse::<PairType>(), Ok(pair_type));
    }
    let error = "i32".parse::<PairType>().unwrap_err().to_string();
    assert!(error.contains("i32") && error.contains("u8, i16, f32 or f64"), "{error}");
}
