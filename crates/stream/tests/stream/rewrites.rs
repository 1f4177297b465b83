//! Outputs of other lengths than their blocks.

use std::num::Wrapping;

use accel::{EngineChoice, Faults};
use cellway_stream::{
    Block, Cut, Direct, Effect, Kernel, KernelError, Options, Saved, Scheme, StreamError, Unit,
};
use proptest::prelude::*;

use crate::probe::content;
use crate::setting::{Disk, From, Setting, To, fd_path, has_direct, has_uring, names};
use crate::spread::behind;

/// Those that take outputs of any length.
const REWRITING: [Scheme; 5] =
    [Scheme::Direct, Scheme::Assisted, Scheme::ReadAhead, Scheme::Prefetch, Scheme::Staged];

/// Repeats each byte as often as its value says, up to `repeats_max` times.
pub(crate) struct Repeat {
    pub(crate) repeats_max: u16,
    /// The offset of a unit that is refused.
    pub(crate) refused: Option<u64>,
}

impl Repeat {
    fn times(&self, byte: u8) -> usize {
        (u16::from(byte) % (self.repeats_max + 1)).into()
    }

    pub(crate) fn plain(&self, input: &[u8]) -> Vec<u8> {
        input.iter().flat_map(|byte| std::iter::repeat_n(*byte, self.times(*byte))).collect()
    }
}

impl Kernel for Repeat {
    type Part = Wrapping<u64>;
    type Header = ();

    fn name(&self) -> &str {
        "repeat"
    }

    fn effect(&self) -> Effect {
        Effect::Rewrite
    }

    fn cut(&self, _: &()) -> Cut {
        Cut { align_bytes: 1, before_bytes: 3, after_bytes: 5 }
    }

    fn part(&self, _accelerators: usize) -> Wrapping<u64> {
        Wrapping(0)
    }

    fn block(
        &self,
        unit: &Unit<'_>,
        block: Block<'_>,
        part: &mut Wrapping<u64>,
    ) -> Result<(), KernelError> {
        if self.refused.is_some_and(|offset| offset <= unit.offset) {
            return Err(KernelError::new("refused", "none").at(unit.offset));
        }
        let mut out = block.out;
        let from = out.goes_on_from().unwrap_or(0);
        for (at, byte) in block.data.iter().enumerate().skip(from) {
            if !out.push(&vec![*byte; self.times(*byte)]) {
                out.stop_at(at);
                return Ok(());
            }
            *part += u64::from(*byte);
        }
        Ok(())
    }

    fn merge(&self, part: &mut Wrapping<u64>, later: Wrapping<u64>) -> Result<(), KernelError> {
        *part += later;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(self.repeats_max.to_le_bytes().to_vec())
    }

    fn save(&self, part: &Wrapping<u64>, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend_from_slice(&part.0.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Wrapping<u64>, KernelError> {
        Saved::new(saved).u64().map(Wrapping)
    }
}

fn settings() -> impl Strategy<Value = Setting> {
    let places = (
        prop::sample::select(&[From::File, From::Pipe]),
        prop::sample::select(&[To::File, To::File, To::Pipe, To::Null]),
        prop::sample::select(&[Disk::Memory, Disk::Real]),
    );
    let layout = (1_usize..4, 1_usize..6, 1_u64..70_000);
    let path = (
        prop::sample::select(&[Direct::Auto, Direct::On, Direct::Off]),
        prop::sample::select(&[EngineChoice::Uring, EngineChoice::Pread]),
        prop::option::of(any::<u64>()),
        prop::sample::select(&REWRITING),
    );
    (places, layout, path, 0_u64..200_000, any::<u64>()).prop_map(
        |(
            (from, to, disk),
            (accelerators, threads, block),
            (direct, engine, faults, scheme),
            len,
            seed,
        )| {
            // What is written past the cache lies on a real disk, from a file to a file.
            let is_file = from == From::File && to == To::File && disk == Disk::Real;
            let direct = if direct == Direct::On && !is_file { Direct::Auto } else { direct };
            let options = Options {
                accelerators: Some(accelerators),
                threads: Some(threads),
                block_bytes: Some(block),
                engine,
                direct,
                faults: faults.map(Faults::survivable),
                scheme,
                ..Options::default()
            };
            Setting { seed, sizes: (0, len, 0), disk, from, to, options }.suited()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn blocks_follow_one_another_whatever_their_lengths(
        setting in settings(), repeats_max in prop::sample::select(&[0_u16, 1, 2, 9, 255]),
        early in prop::sample::select(&[0_usize, 0, 1, 2]),
    ) {
        let skipped = setting.options.engine == EngineChoice::Uring && !has_uring()
            || setting.options.direct == Direct::On && !has_direct();
        if skipped {
            return Ok(());
        }
        let kernel = Repeat { repeats_max, refused: None };
        let setting = setting.spread(early);
        let Some(ran) = setting.run(&behind(early, kernel)) else { return Ok(()) };
        let input = content(setting.seed, 0..setting.sizes.1);
        let plain = Repeat { repeats_max, refused: None }.plain(&input);
        let outcome = ran.outcome.unwrap();
        prop_assert_eq!(outcome.stats.bytes_in, input.len() as u64);
        prop_assert_eq!(outcome.stats.bytes_out, plain.len() as u64);
        if setting.to == To::Null {
            prop_assert_eq!(ran.written, None);
        } else {
            prop_assert!(ran.written.unwrap() == plain);
        }
        let sum: Wrapping<u64> = input.iter().map(|byte| Wrapping(u64::from(*byte))).sum();
        prop_assert_eq!(outcome.part, sum);
    }

    /// A pipe's reader gets what comes before the unit that failed, a file nothing.
    #[test]
    fn a_failure_ends_the_output(
        len in 1_u64..300_000, block in 1_u64..20_000, refused in 0_u64..300_000,
        threads in 1_usize..6, to in prop::sample::select(&[To::File, To::Pipe]),
        scheme in prop::sample::select(&REWRITING), early in 0_usize..3,
    ) {
        let early = if scheme == Scheme::Direct { early } else { 0 };
        let setting = Setting::of_file(len, block, to).at(2, threads).scheme(scheme).spread(early);
        let first = refused.div_ceil(block) * block;
        let kernel = behind(early, Repeat { repeats_max: 9, refused: Some(refused) });
        let ran = setting.run(&kernel).unwrap();
        if first >= len {
            prop_assert!(ran.outcome.is_ok());
            return Ok(());
        }
        match ran.outcome.unwrap_err() {
            StreamError::Kernel { error, .. } => prop_assert_eq!(error.offset, Some(first)),
            other => prop_assert!(false, "{other}"),
        }
        match to {
            To::Pipe => prop_assert!(ran.written.unwrap() == kernel.last().plain(&content(len, 0..first))),
            _ => prop_assert_eq!(names(ran.dir.path()), ["in"]),
        }
    }
}

/// Nothing is written behind what a full device takes.
#[test]
fn a_full_device_ends_the_run() {
    for scheme in REWRITING {
        let setting = Setting::of_file(100_000, 4096, To::File).at(2, 3).scheme(scheme);
        let dir = setting.disk.folder().unwrap();
        let (input, _) = setting.input(dir.path());
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = storage::Output::create(&fd_path(&full), &Default::default()).unwrap();
        let kernel = Repeat { repeats_max: 9, refused: None };
        let (options, progress) = (&setting.options, &Default::default());
        let error = cellway_stream::run(&kernel, &input, Some(&output), options, progress);
        assert!(matches!(error, Err(StreamError::Output(_))), "{scheme}: {error:?}");
    }
}
