use super::*;
use proptest::prelude::*;

fn shape(len: u64, cut: Cut) -> Shape {
    Shape {
        body: 0..len,
        len_bytes: Some(len),
        cut,
        direct_align_bytes: 1,
        effect: Effect::Transform,
        cores: 2,
        stages: 1,
        batch: None,
        mapped: false,
    }
}

fn effects() -> impl Strategy<Value = Effect> {
    prop::sample::select(&[Effect::Reduce, Effect::Transform, Effect::Rewrite])
}

fn plan(options: &Options, shape: Shape) -> Result<Plan, PlanError> {
    Plan::new(options, shape, |_| 0)
}

#[test]
fn short_blocks_are_mapped_together_where_they_have_room() {
    let buffer_bytes = |body_bytes, block_bytes, local_store_bytes| {
        let options = Options {
            block_bytes: Some(block_bytes),
            threads: Some(2),
            local_store_bytes,
            ..Options::default()
        };
        let shape =
            Shape { mapped: true, effect: Effect::Reduce, ..shape(body_bytes, Cut::ANYWHERE) };
        plan(&options, shape).map(|plan| plan.buffer_bytes)
    };
    const KIB: u64 = 1024;
    assert_eq!(buffer_bytes(1 << 30, 4 * KIB, None), Ok(256 * KIB));
    assert_eq!(buffer_bytes(1 << 30, 4096 * KIB, None), Ok(4096 * KIB));
    assert_eq!(buffer_bytes(10_000, 4 * KIB, None), Ok(12 * KIB));
    assert_eq!(buffer_bytes(1 << 30, 4 * KIB, Some(128 * KIB)), Ok(64 * KIB));
    assert_eq!(buffer_bytes(1 << 30, 4 * KIB, Some(8 * KIB)), Ok(4 * KIB));
    assert!(buffer_bytes(1 << 30, 8 * KIB, Some(8 * KIB)).is_err());
}

#[test]
fn the_sum_that_does_not_fit_is_shown() {
    let options = Options {
        block_bytes: Some(65536),
        threads: Some(8),
        local_store_bytes: Some(262_144),
        ..Options::default()
    };
    let message = plan(&options, shape(1 << 30, Cut::ANYWHERE)).unwrap_err().to_string();
    assert!(message.starts_with("8 threads x 65536 bytes"), "{message}");
    let sum = "= 524288 bytes do not fit a local store of 262144";
    assert!(message.contains(sum), "{message}");
}

#[test]
fn zeros_are_refused() {
    for (options, what) in [
        (Options { threads: Some(0), ..Options::default() }, "--threads"),
        (Options { accelerators: Some(0), ..Options::default() }, "--accelerators"),
        (Options { block_bytes: Some(0), ..Options::default() }, "--block"),
        (Options { local_store_bytes: Some(0), ..Options::default() }, "--local-store"),
    ] {
        let error = plan(&options, shape(100, Cut::ANYWHERE)).unwrap_err();
        assert_eq!(error, PlanError::Zero { what });
    }
}

#[test]
fn more_accelerators_than_any_machine_has_are_refused() {
    let options = |accelerators| Options { accelerators: Some(accelerators), ..Options::default() };
    let error = plan(&options(4097), shape(100, Cut::ANYWHERE)).unwrap_err();
    assert_eq!(error, PlanError::Accelerators { accelerators: 4097 });
    assert!(plan(&options(4096), shape(100, Cut::ANYWHERE)).is_ok());
}

#[test]
fn each_stage_of_a_chain_has_as_many_accelerators() {
    let accelerators = |wanted, cores, stages| {
        let options = Options { accelerators: wanted, ..Options::default() };
        let shape = Shape { cores, stages, ..shape(1 << 40, Cut::ANYWHERE) };
        Plan::new(&options, shape, |lanes| lanes as u64 * (1 << 40))
            .map(|plan| (plan.accelerators, plan.memory_bytes >> 40))
    };
    for (cores, stages, all) in [(2, 2, 2), (8, 2, 8), (8, 3, 6), (2, 3, 3), (1, 5, 5)] {
        // Only those of the last stage have parts.
        assert_eq!(accelerators(None, cores, stages), Ok((all, (all / stages) as u64)));
    }
    assert_eq!(accelerators(Some(9), 2, 3), Ok((9, 3)));
    for wanted in [1, 2, 4, 10] {
        let error = accelerators(Some(wanted), 8, 3).unwrap_err();
        assert!(matches!(error, PlanError::Pipeline { .. }), "{error}");
    }
}

#[test]
fn the_kernels_parts_are_counted_for_the_accelerators_that_work() {
    const PART_BYTES: u64 = 1 << 40;
    let options = Options { accelerators: Some(100), ..Options::default() };
    let parts = |len| {
        let bytes = |accelerators| accelerators as u64 * PART_BYTES;
        Plan::new(&options, shape(len, Cut::ANYWHERE), bytes).unwrap().memory_bytes / PART_BYTES
    };
    assert_eq!((parts(1), parts(3 * DEVICE.block_bytes), parts(1 << 50)), (1, 3, 100));
}

#[test]
fn the_memory_does_not_depend_on_the_length() {
    let bound = |len| plan(&Options::default(), shape(len, Cut::ANYWHERE)).unwrap().memory_bytes;
    assert_eq!(bound(64 << 20), bound(1 << 50));
    assert!(bound(1 << 10) < bound(64 << 20));
}

fn cuts() -> impl Strategy<Value = Cut> {
    let cut =
        |(align_bytes, before_bytes, after_bytes)| Cut { align_bytes, before_bytes, after_bytes };
    any::<(usize, usize, usize)>().prop_map(cut)
}

proptest! {
    #[test]
    fn units_cover_the_body_once_in_order(
        start in 0u64..100_000, len in 0u64..3_000_000, align in 1usize..5000,
        block in prop::option::of(1u64..400_000), store in prop::option::of(4_096u64..8_000_000),
        threads in 1usize..9, lanes in 1usize..5, stages in 1usize..4, effect in effects(),
    ) {
        let mut shape = shape(0, Cut::records(align));
        shape.effect = effect;
        shape.stages = stages;
        shape.body = start..start + len;
        shape.len_bytes = Some(start + len);
        let options = Options {
            block_bytes: block, local_store_bytes: store, threads: Some(threads),
            accelerators: Some(lanes * stages), ..Options::default()
        };
        let Ok(plan) = plan(&options, shape) else { return Ok(()) };
        let each = plan.buffer_bytes + plan.out_bytes;
        prop_assert_eq!(plan.threads as u64 * each, plan.local_store_bytes);
        prop_assert_eq!(plan.out_bytes > 0, effect == Effect::Rewrite);
        prop_assert_eq!((plan.stages, plan.accelerators % stages), (stages, 0));
        prop_assert!(plan.memory_bytes > plan.accelerators as u64 * plan.local_store_bytes);
        let carried = if stages > 1 { TRAILER_BYTES as u64 } else { 0 };
        prop_assert!(plan.local_store_bytes <= store.unwrap_or(u64::MAX));
        let mut at = start;
        let mut index = 0;
        while let Some(piece) = plan.piece(index) {
            prop_assert_eq!(piece.offset, at);
            prop_assert!(piece.data > 0 && piece.len() as u64 + carried <= plan.buffer_bytes);
            prop_assert_eq!((piece.offset - start) % align as u64, 0);
            at += piece.data as u64;
            index += 1;
        }
        prop_assert_eq!(at, start + len);
    }

    /// Whatever a command line or a kernel says: a plan that holds, or an error.
    #[test]
    fn absurd_numbers_are_refused(
        numbers in any::<(Option<usize>, Option<usize>, Option<u64>, Option<u64>)>(),
        cut in prop_oneof![Just(Cut::ANYWHERE), cuts()], body in any::<(u64, u64)>(),
        len_bytes in any::<Option<u64>>(), whole in any::<bool>(), direct in any::<bool>(),
        effect in effects(), stages in prop_oneof![Just(1), any::<usize>().prop_map(|n| n.max(1))],
    ) {
        let (accelerators, threads, block_bytes, local_store_bytes) = numbers;
        let accelerators = accelerators.map(|number| number % 6000);
        let options =
            Options { accelerators, threads, block_bytes, local_store_bytes, ..Options::default() };
        let body = if whole { 0..len_bytes.unwrap_or(u64::MAX) } else { body.0..body.1 };
        let direct_align_bytes = if direct { 4096 } else { 1 };
        let shape = Shape { body, len_bytes, cut, direct_align_bytes, effect, cores: 2, stages, batch: None, mapped: false };
        match Plan::new(&options, shape, |_| u64::MAX) {
            Ok(plan) => {
                let around = cut.before_bytes as u64 + cut.after_bytes as u64;
                let longest = plan.block_bytes.min(plan.body_bytes().unwrap_or(u64::MAX));
                prop_assert!(plan.buffer_bytes >= longest + around);
                let each = plan.buffer_bytes + plan.out_bytes;
                prop_assert!(plan.threads as u64 * each <= STORE_BYTES_MAX);
                let whole = plan.block_bytes.is_multiple_of(cut.align_bytes.max(1) as u64);
                prop_assert!(whole || plan.units == Some(1));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
