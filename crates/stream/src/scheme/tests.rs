use super::*;
use crate::kernel::Cut;
use crate::plan::{Options, Plan};
use proptest::prelude::*;

const SCHEMES: [Scheme; 6] = [
    Scheme::Assisted,
    Scheme::ReadAhead,
    Scheme::Prefetch,
    Scheme::Whole,
    Scheme::Signalled,
    Scheme::Staged,
];

const LEN_BYTES: u64 = 100 << 20;
const BLOCK_BYTES: u64 = 64 << 10;

fn shape(effect: Effect, len_bytes: Option<u64>) -> Shape {
    Shape {
        body: 0..len_bytes.unwrap_or(u64::MAX),
        len_bytes,
        cut: Cut { align_bytes: 1, before_bytes: 100, after_bytes: 28 },
        direct_align_bytes: 1,
        effect,
        cores: 2,
        stages: 1,
        batch: None,
        mapped: false,
    }
}

fn options(scheme: Scheme) -> Options {
    let (threads, block_bytes) = (Some(4), Some(BLOCK_BYTES));
    Options { scheme, threads, block_bytes, ..Options::default() }
}

fn plan(options: &Options, effect: Effect) -> Plan {
    Plan::new(options, shape(effect, Some(LEN_BYTES)), |_| 0).unwrap()
}

/// What a scheme adds to the memory of direct I/O.
fn added(scheme: Scheme, effect: Effect) -> u64 {
    let direct = plan(&options(Scheme::Direct), effect).memory_bytes;
    plan(&options(scheme), effect).memory_bytes - direct
}

#[test]
fn names_are_read_as_they_are_shown() {
    for (scheme, name) in NAMES {
        assert_eq!((name.parse(), scheme.to_string()), (Ok(scheme), name.to_owned()));
    }
    let error = "7".parse::<Scheme>().unwrap_err();
    assert_eq!(error, "'7' is none of auto, direct, mapped, 1, 2, 3, 4, 6, staged");
}

#[test]
fn scheme_5_is_refused_with_its_reason() {
    let error = "5".parse::<Scheme>().unwrap_err();
    assert!(error.contains("no signalling") && error.ends_with("take 6 or staged"), "{error}");
}

#[test]
fn two_machines_carry_all_schemes_out() {
    let io = |scheme| plan(&options(scheme), Effect::Transform).io;
    assert_eq!((io(Scheme::Auto), io(Scheme::Direct)), (Io::Own, Io::Own));
    for (scheme, prefetch) in [
        (Scheme::Assisted, None),
        (Scheme::ReadAhead, Some(When::Ahead)),
        (Scheme::Prefetch, Some(When::Beside)),
    ] {
        assert_eq!(io(scheme), Io::Assisted { prefetch });
    }
    // 2 accelerators of 4 threads: buffers of 512 KiB, one for input, one for output.
    let all = LEN_BYTES / BLOCK_BYTES / 8;
    for (scheme, reader, writer, buffers) in [
        (Scheme::Whole, When::Ahead, When::After, all),
        (Scheme::Signalled, When::Beside, When::Beside, 31),
        (Scheme::Staged, When::Beside, When::Beside, STAGING_DEFAULT as u64),
    ] {
        let (in_bytes, out_bytes) = (8 * BLOCK_BYTES + 128, BLOCK_BYTES);
        let out_slots = 8 * buffers;
        let staging =
            Staging { reader, writer, buffers, buffer_units: 8, in_bytes, out_slots, out_bytes };
        assert_eq!(io(scheme), Io::Staged(staging));
    }
}

#[test]
fn memory_holds_what_the_scheme_says() {
    for scheme in [Scheme::Assisted, Scheme::ReadAhead, Scheme::Prefetch] {
        assert!(added(scheme, Effect::Transform) <= 2 << 20, "{scheme}");
    }
    let around = added(Scheme::Whole, Effect::Reduce) - LEN_BYTES;
    assert!(around < 1 << 20, "{around}");
    let around = added(Scheme::Whole, Effect::Transform) - 2 * LEN_BYTES;
    assert!(around < 1 << 20, "{around}");
    for effect in [Effect::Reduce, Effect::Transform] {
        let bytes = added(Scheme::Signalled, effect);
        assert!(bytes.abs_diff(SIGNALLED_BYTES) < 1 << 20, "{bytes}");
    }
    let buffers = STAGING_DEFAULT as u64 * 8 * BLOCK_BYTES;
    let around = added(Scheme::Staged, Effect::Transform) - 2 * buffers;
    assert!(around < 1 << 20, "{around}");
}

#[test]
fn what_a_scheme_cannot_do_is_refused() {
    let refused =
        |options: &Options, shape: Shape| Plan::new(options, shape, |_| 0).unwrap_err().to_string();
    let holds_all = [Scheme::ReadAhead, Scheme::Whole];
    for scheme in SCHEMES {
        let options = options(scheme);
        for effect in [Effect::Reduce, Effect::Transform] {
            Plan::new(&options, shape(effect, Some(LEN_BYTES)), |_| 0).unwrap();
            if !holds_all.contains(&scheme) {
                Plan::new(&options, shape(effect, None), |_| 0).unwrap();
                continue;
            }
            let error = refused(&options, shape(effect, None));
            let wanted = format!("--scheme {scheme}: it holds all of its input, and where a pipe");
            assert!(error.starts_with(&wanted), "{error}");
            assert!(error.ends_with("no bound; take --scheme staged, or name a file"), "{error}");
        }
        let rewrite = shape(Effect::Rewrite, Some(LEN_BYTES));
        if holds_all[1..].contains(&scheme) {
            let error = refused(&options, rewrite);
            assert!(error.ends_with("would have no bound; take --scheme staged"), "{error}");
        } else {
            Plan::new(&options, rewrite, |_| 0).unwrap();
        }
    }
    let error = refused(&options(Scheme::Mapped), shape(Effect::Reduce, None));
    assert!(error.starts_with("--scheme mapped: a pipe has no pages"), "{error}");
    for effect in [Effect::Transform, Effect::Rewrite] {
        Plan::new(&options(Scheme::Direct), shape(effect, None), |_| 0).unwrap();
    }
    let staging = |scheme, staging| Options { staging: Some(staging), ..options(scheme) };
    let some = || shape(Effect::Reduce, Some(LEN_BYTES));
    let error = refused(&staging(Scheme::Signalled, 2), some());
    assert!(error.ends_with("take --scheme staged"), "{error}");
    assert_eq!(refused(&staging(Scheme::Staged, 0), some()), "--staging must be at least 1");
}

#[test]
fn what_does_not_fit_the_memory_is_refused_with_the_sum() {
    for scheme in [Scheme::Direct].into_iter().chain(SCHEMES) {
        let plan = plan(&options(scheme), Effect::Transform);
        let check = |free| plan.io.check(&plan, || free);
        assert_eq!((check(None), check(Some(3 * LEN_BYTES))), (Ok(()), Ok(())));
        let (units, notes) = (LEN_BYTES / BLOCK_BYTES, size_of::<Option<staged::Put>>() as u64);
        let (buffers, out_slots) = match scheme {
            Scheme::Whole => (units / 8, units),
            Scheme::Signalled => (31, 31 * 8),
            _ => (3, 24),
        };
        let out_bytes = out_slots * (BLOCK_BYTES + notes);
        let (in_bytes, out_bytes) = match scheme {
            Scheme::ReadAhead => (LEN_BYTES, 0),
            Scheme::Whole | Scheme::Signalled | Scheme::Staged => {
                (buffers * (8 * BLOCK_BYTES + 128 + 8), out_bytes)
            }
            _ => {
                assert_eq!(check(Some(0)), Ok(()));
                continue;
            }
        };
        assert_eq!(check(Some(in_bytes + out_bytes)), Ok(()));
        let error = check(Some(in_bytes + out_bytes - 1)).unwrap_err().to_string();
        let sum = format!("{in_bytes} bytes of input and {out_bytes} of output");
        assert!(error.contains(&sum), "{error}");
        let cure = if scheme == Scheme::Staged { "or smaller blocks" } else { "--scheme staged" };
        assert!(error.ends_with(cure), "{error}");
    }
}

proptest! {
    /// Whatever is asked for: buffers are enough, and no more than the input needs.
    #[test]
    fn buffers_hold_their_units(
        scheme in prop::sample::select(&SCHEMES), staging in 1usize..9, block in 1u64..100_000,
        threads in 1usize..9, accelerators in 1usize..5, len in 0u64..3_000_000,
    ) {
        let options = Options {
            scheme, staging: (scheme == Scheme::Staged).then_some(staging), threads: Some(threads),
            block_bytes: Some(block), accelerators: Some(accelerators), ..Options::default()
        };
        let plan = Plan::new(&options, shape(Effect::Transform, Some(len)), |_| 0).unwrap();
        let Io::Staged(layout) = &plan.io else { return Ok(()) };
        let places = layout.buffers * layout.buffer_units;
        prop_assert!(layout.buffers >= 1 && layout.out_slots >= 1);
        prop_assert!(layout.out_slots <= places && layout.out_slots <= plan.units.unwrap().max(1));
        prop_assert!(layout.buffers == 1 || places < len / block + 1 + layout.buffer_units);
        if scheme == Scheme::Staged {
            prop_assert!(layout.buffers <= staging as u64);
        } else if scheme == Scheme::Whole {
            prop_assert!(places >= plan.units.unwrap());
        }
        for index in 0..plan.units.unwrap() {
            let piece = plan.piece(index).unwrap();
            let first = plan.piece(index / layout.buffer_units * layout.buffer_units).unwrap();
            let end = piece.start() + piece.len() as u64;
            prop_assert!(end - first.start() <= layout.in_bytes);
            prop_assert!(piece.data as u64 <= layout.out_bytes);
        }
    }
}
