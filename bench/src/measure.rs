//! Paired runs: every version once per round, in turn, so that a slow minute
//! of the machine hits all of them alike; ratios are formed round by round.

use std::time::Instant;

use anyhow::Context as _;

use crate::hw::one_cycle_chain;

/// What one run of one version took.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Wall time of the measured part, in seconds.
    pub seconds: f64,
    /// How many items it worked on (hops, probes, bytes).
    pub items: u64,
    /// A sum over the results; versions that compute the same must agree.
    pub check: Option<u64>,
}

impl Sample {
    /// Runs `work`, which handles `items` items and returns its check sum.
    pub fn of(items: u64, work: impl FnOnce() -> u64) -> Self {
        let start = Instant::now();
        let check = std::hint::black_box(work());
        Self { seconds: start.elapsed().as_secs_f64(), items, check: Some(check) }
    }

    /// Runs `work`, which handles `items` items and may fail.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn timed(items: u64, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let start = Instant::now();
        work()?;
        Ok(Self { seconds: start.elapsed().as_secs_f64(), items, check: None })
    }

    /// Cost of one item in nanoseconds.
    #[must_use]
    pub fn item_ns(&self) -> f64 {
        self.seconds * 1e9 / self.items.max(1) as f64
    }
}

/// One way to do the work of an experiment.
pub struct Version<'a> {
    /// As shown in the table.
    pub name: String,
    /// Threads or chains in flight; 1 for a serial version.
    pub depth: usize,
    run: Box<dyn FnMut() -> anyhow::Result<Sample> + 'a>,
}

impl<'a> Version<'a> {
    /// A version that `run` measures once per call.
    pub fn new(
        name: impl Into<String>,
        depth: usize,
        run: impl FnMut() -> anyhow::Result<Sample> + 'a,
    ) -> Self {
        Self { name: name.into(), depth, run: Box::new(run) }
    }

    /// Measures it once.
    ///
    /// # Errors
    /// Whatever keeps it from doing its work.
    pub fn run(&mut self) -> anyhow::Result<Sample> {
        (self.run)().with_context(|| self.label())
    }

    fn label(&self) -> String {
        format!("{}, depth {}", self.name, self.depth)
    }
}

/// The costs of all versions, round by round.
#[derive(Debug)]
pub struct Paired {
    /// `item_ns[version][round]`
    item_ns: Vec<Vec<f64>>,
}

/// Runs each version once to warm up, then all of them in turn `rounds` times.
/// Within a round all must give the same check sum.
///
/// # Errors
/// When a version fails, or two versions disagree about the result.
pub fn paired(rounds: usize, versions: &mut [Version<'_>]) -> anyhow::Result<Paired> {
    let mut agreed: Option<(usize, String, u64)> = None;
    each_round(rounds, versions, |round, label, sample| {
        let Some(check) = sample.check else { return Ok(()) };
        match &agreed {
            Some((of_round, first, wanted)) if *of_round == round => anyhow::ensure!(
                *wanted == check,
                "versions disagree: {first} gives {wanted:#x}, {label} gives {check:#x}; \
                 this is a bug in the benchmark or below it",
            ),
            _ => agreed = Some((round, label, check)),
        }
        Ok(())
    })
}

/// As [`paired`] for versions that work on different stretches of the data,
/// so that their check sums differ.
///
/// # Errors
/// When a version fails.
pub fn paired_on_stretches(rounds: usize, versions: &mut [Version<'_>]) -> anyhow::Result<Paired> {
    each_round(rounds, versions, |_, _, _| Ok(()))
}

fn each_round(
    rounds: usize,
    versions: &mut [Version<'_>],
    mut check: impl FnMut(usize, String, &Sample) -> anyhow::Result<()>,
) -> anyhow::Result<Paired> {
    let mut item_ns = vec![Vec::with_capacity(rounds); versions.len()];
    for round in 0..=rounds.max(1) {
        for (version, costs) in versions.iter_mut().zip(&mut item_ns) {
            let sample = version.run()?;
            check(round, version.label(), &sample)?;
            if round > 0 {
                costs.push(sample.item_ns());
            }
        }
    }
    Ok(Paired { item_ns })
}

impl Paired {
    /// Median, least and greatest cost of one item of a version, in ns.
    #[must_use]
    pub fn item_ns(&self, version: usize) -> Spread {
        Spread::of(self.item_ns[version].iter().copied())
    }

    /// How many times faster `version` is than `base`, round by round.
    #[must_use]
    pub fn speedup(&self, version: usize, base: usize) -> Spread {
        Spread::of(self.speedups(version, base))
    }

    /// Where the median of [`Paired::speedup`] lies with a confidence of 95%,
    /// whatever the ratios' distribution: all of them where rounds are few.
    #[must_use]
    pub fn speedup_interval(&self, version: usize, base: usize) -> (f64, f64) {
        median_interval(self.speedups(version, base).collect())
    }

    fn speedups(&self, version: usize, base: usize) -> impl Iterator<Item = f64> {
        let pairs = self.item_ns[base].iter().zip(&self.item_ns[version]);
        pairs.map(|(base, version)| base / version)
    }
}

/// Median and extremes of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one (mean of the two middle ones).
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of no values: all NaN.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self { median: f64::NAN, min: f64::NAN, max: f64::NAN };
        };
        let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        Self { median, min, max }
    }
}

/// The ranks around the middle between which a median lies in 95 of 100 samples
/// (the normal approximation of the sign test).
fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let rank = ((count - 1.96 * count.sqrt()) / 2.0).floor().max(0.0) as usize;
    match values.len().checked_sub(1 + rank) {
        Some(last) => (values[rank], values[last]),
        None => (f64::NAN, f64::NAN),
    }
}

/// The length of a core's clock cycle in ns while it is busy: a chain of
/// one-cycle instructions, best of three short runs, so that an interruption
/// does not count.
#[must_use]
pub fn clock_ns() -> f64 {
    const ROUNDS: u64 = 4000;
    let run = |_| Sample::of(64 * ROUNDS, || one_cycle_chain(ROUNDS)).item_ns();
    (0..3).map(run).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn a_median_lies_between_ranks_around_the_middle() {
        let values = |count: u32| (0..count).map(f64::from).collect();
        assert_eq!(median_interval(values(3)), (0.0, 2.0));
        // 50 - 9.8 = 40.2 from either end.
        assert_eq!(median_interval(values(100)), (40.0, 59.0));
        assert!(median_interval(vec![]).0.is_nan());
    }

    #[test]
    fn versions_alternate_and_ratios_are_formed_round_by_round() {
        let order = std::cell::RefCell::new(Vec::new());
        let run = |name: char, times: [f64; 4]| {
            let mut next = 0;
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                next += 1;
                Ok(Sample { seconds: times[next - 1], items: 1, check: Some(7) })
            }
        };
        let mut versions = [
            Version::new("a", 1, run('a', [9.0, 2.0, 4.0, 6.0])),
            Version::new("b", 1, run('b', [9.0, 1.0, 1.0, 2.0])),
        ];
        let paired = paired(3, &mut versions).unwrap();
        assert_eq!(paired.speedup(1, 0), Spread { median: 3.0, min: 2.0, max: 4.0 });
        assert_eq!(paired.item_ns(0).median, 4.0e9);
        drop(versions);
        assert_eq!(order.into_inner().iter().collect::<String>(), "abababab");
    }

    #[test]
    fn versions_that_disagree_are_an_error() {
        let run = |check| move || Ok(Sample { seconds: 1.0, items: 1, check: Some(check) });
        let mut versions = [Version::new("a", 1, run(1)), Version::new("b", 4, run(2))];
        let error = paired(1, &mut versions).unwrap_err().to_string();
        assert!(error.contains("a, depth 1") && error.contains("b, depth 4"), "{error}");
    }
}
