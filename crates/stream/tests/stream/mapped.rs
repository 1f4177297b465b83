//! Reductions that look at the page cache's own pages.

use std::fs::File;
use std::sync::Once;

use accel::EngineChoice;
use cellway_stream::{
    Direct, Effect, MergeOrder, Options, PlanError, Progress, Scheme, StreamError, run,
};
use storage::InputErrorKind;

use crate::probe::{Probe, expected};
use crate::setting::{Setting, To};

const BLOCK_BYTES: u64 = 64 << 10;
const LEN_BYTES: u64 = 40 * BLOCK_BYTES + 17;

fn setting() -> Setting {
    Setting::of_file(LEN_BYTES, BLOCK_BYTES, To::Nothing)
}

/// The scheme that a run of `setting` takes, which must see what is there.
fn taken(setting: &Setting, kernel: &Probe) -> Option<Scheme> {
    let outcome = setting.run(kernel)?.outcome.unwrap();
    let mut seen = outcome.part;
    seen.sort();
    assert_eq!(seen, expected(setting.seed, setting.body(), BLOCK_BYTES));
    Some(outcome.stats.plan.scheme)
}

#[test]
fn what_is_cached_is_looked_at_unless_an_option_says_how_to_transfer() {
    let reduce = setting().probe(MergeOrder::Any);
    if let Some(scheme) = taken(&setting(), &reduce) {
        assert_eq!(scheme, Scheme::Mapped);
    }
    let asked: [fn(&mut Options); 4] = [
        |options| options.direct = Direct::Off,
        |options| options.engine = EngineChoice::Pread,
        |options| options.threads = Some(2),
        |options| options.local_store_bytes = Some(4 * BLOCK_BYTES),
    ];
    for ask in asked {
        let mut setting = setting();
        ask(&mut setting.options);
        if let Some(scheme) = taken(&setting, &reduce) {
            assert_eq!(scheme, Scheme::Direct);
        }
    }
}

#[test]
fn who_writes_to_its_blocks_does_not_look_in_place() {
    let mut setting = setting();
    setting.to = To::File;
    let kernel = setting.probe(MergeOrder::Any);
    assert_eq!(kernel.effect, Effect::Transform);
    let Some(ran) = setting.scheme(Scheme::Mapped).run(&kernel) else { return };
    let error = ran.outcome.unwrap_err();
    assert!(matches!(error, StreamError::Plan(PlanError::Scheme { .. })), "{error}");
    assert!(error.to_string().ends_with("take --scheme direct"), "{error}");
}

#[test]
fn an_input_that_is_cut_short_meanwhile_ends_the_run_where_it_ends() {
    for order in [MergeOrder::Any, MergeOrder::ByUnit] {
        let setting = setting().at(1, 1).scheme(Scheme::Mapped);
        let Some(dir) = setting.disk.folder() else { return };
        let (input, _) = setting.input(dir.path());
        let mut kernel = setting.probe(order);
        let (once, new_len) = (Once::new(), 3 * BLOCK_BYTES + 5000);
        let at = dir.path().join("in");
        kernel.at_block = Box::new(move |offset| {
            if offset == 3 * BLOCK_BYTES {
                // The pages of this very block.
                let cut = || File::options().write(true).open(&at).unwrap().set_len(new_len);
                once.call_once(|| cut().unwrap());
            }
            Ok(())
        });
        let outcome = run(&kernel, &input, None, &setting.options, &Progress::default());
        let error = outcome.map(drop).unwrap_err();
        let StreamError::Input(error) = error else { panic!("{error}") };
        assert_eq!((error.kind(), error.offset()), (InputErrorKind::Changed, Some(new_len)));
    }
}
