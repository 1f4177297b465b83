//! How fast a node is at a job, and how long its next lease is to be.

use std::f64::consts::SQRT_2;
use std::time::Duration;

/// A longer lease is tried while it brings so much more bytes per second.
const GAIN: f64 = 1.05;

/// The most of its time that the manager spends on giving and taking leases.
const MANAGER_SHARE: f64 = 0.02;

/// The most of the time that merges take, of which each lease makes one.
const MERGE_SHARE: f64 = 0.5;

/// The most of a node's time that leases cost it, if there is enough left to do.
const LEASE_SHARE: f64 = 0.02;

/// No lease is wished for that takes less than so often what it costs, if there is as much to do.
const SHORTEST: f64 = 8.0;

/// At the end leases are so much shorter than what keeps giving cheap, for nodes to end together.
const TAIL: f64 = 8.0;

/// A node that failed at so many leases in a row gets none while another works.
const FAILED_IN_ROW_MAX: u32 = 4;

/// One node at one job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    probe: Probe,
    best: f64,
    /// Of all its leases but the first.
    line: Line,
    /// Sums that forget half at each result.
    bytes: f64,
    seconds: f64,
    /// Leases that failed since one did not.
    failed_in_row: u32,
}

/// The straight line nearest to leases, by their bytes and seconds.
#[derive(Clone, Debug, Default)]
struct Line {
    leases: f64,
    bytes: f64,
    seconds: f64,
    squares: f64,
    products: f64,
    /// Of the last one, and the least mean of two in a row: one may come right after another.
    last_seconds: f64,
    least_seconds: f64,
}

impl Line {
    fn add(&mut self, bytes: f64, seconds: f64) {
        let mean = f64::midpoint(self.last_seconds, seconds);
        self.least_seconds = match self.leases {
            0.0 => f64::INFINITY,
            _ => mean.min(self.least_seconds),
        };
        self.last_seconds = seconds;
        self.leases += 1.0;
        self.bytes += bytes;
        self.seconds += seconds;
        self.squares += bytes * bytes;
        self.products += bytes * seconds;
    }

    /// What a lease costs however short it is; nothing while that is not known, for all were
    /// about equally long.
    fn cost_seconds(&self) -> f64 {
        let spread = self.leases * self.squares - self.bytes * self.bytes;
        // As that of one lease and one of three quarters of its length, or more.
        if spread <= 0.05 * self.squares {
            return 0.0;
        }
        let cost = (self.seconds * self.squares - self.bytes * self.products) / spread;
        cost.clamp(0.0, self.least_seconds)
    }
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    /// Of leases of so many units or more, as a power of two.
    Level(u8),
    /// Longer ones were no faster.
    Settled,
}

impl Default for Probe {
    fn default() -> Self {
        Self::Level(0)
    }
}

/// What the length of a lease depends on besides the node's pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Units that nobody has, those that nodes have, and of these its own.
    pub(crate) free: u64,
    pub(crate) out: u64,
    pub(crate) has: u64,
    pub(crate) unit_bytes: u64,
    /// The most bytes of a lease.
    pub(crate) lease_bytes_max: u64,
    /// Nodes that work, and their bytes per second together, as far as known.
    pub(crate) nodes: usize,
    pub(crate) known: usize,
    pub(crate) rate: f64,
    /// A lease has one `factor`-th of a node's share of what is free.
    pub(crate) factor: f64,
    pub(crate) lease_cost: Duration,
    /// Of a merge.
    pub(crate) merge_seconds: f64,
}

impl Pace {
    /// In bytes per second.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.bytes / self.seconds)
    }

    /// A lease failed.
    pub(crate) fn failed(&mut self) {
        self.failed_in_row = self.failed_in_row.saturating_add(1);
    }

    /// Whether the node is to blame rather than the units.
    pub(crate) fn fails(&self) -> bool {
        self.failed_in_row >= FAILED_IN_ROW_MAX
    }

    /// A lease of `level` came back, `took` after it was given or after the one
    /// before it came back, whichever was later.
    pub(crate) fn measured(&mut self, level: u8, bytes: u64, took: Duration) {
        self.failed_in_row = 0;
        let seconds = took.as_secs_f64().max(1e-9);
        let bytes = (bytes as f64).max(1.0);
        // The first one begins what computes all of them.
        if self.bytes > 0.0 {
            self.line.add(bytes, seconds);
        }
        self.bytes = self.bytes / 2.0 + bytes;
        self.seconds = self.seconds / 2.0 + seconds;
        if let Probe::Level(probed) = self.probe
            && level >= probed
        {
            let rate = bytes / seconds;
            self.probe = if rate >= GAIN * self.best {
                Probe::Level(level.saturating_add(1).min(62))
            } else {
                Probe::Settled
            };
            self.best = self.best.max(rate);
        }
    }

    /// How long the next lease is, as a power of two of units: probing doubles
    /// it where short ones are cheap, guided self-scheduling (Polychronopoulos and Kuck, 1987)
    /// lets it shrink with what is left. Leases that cost much are half of a node's share
    /// of that, and none is so short that its cost would be much of it.
    pub(crate) fn level(&self, shares: &Shares) -> u8 {
        let nodes = shares.nodes.max(1) as f64;
        let weight = match self.rate() {
            Some(rate) if shares.known > 0 => rate * shares.known as f64 / shares.rate,
            _ => 1.0,
        };
        let unit_bytes = shares.unit_bytes.max(1);
        let rate = shares.rate * nodes / shares.known.max(1) as f64 / unit_bytes as f64;
        let of_free = shares.free as f64 * weight / nodes;
        // Half of what is out is done, as it comes: nodes are to end together, whatever each has.
        let of_out = (shares.out as f64 * weight / nodes - shares.has as f64) / 2.0;
        let share = (of_free + of_out).max(0.0);
        // The manager's merge of its result takes a core as well, and to make one takes no less.
        let cost_seconds =
            self.line.cost_seconds().max(shares.merge_seconds) + shares.merge_seconds;
        let cost = cost_seconds * rate * weight / nodes;
        let cheap = cost / LEASE_SHARE;
        let guided = (share / shares.factor).max(cheap.min(share / 2.0));
        let wished = match self.probe {
            Probe::Level(level) => guided.min(cheap.max((1_u64 << level) as f64)),
            Probe::Settled => guided,
        };
        let wished = wished.max((SHORTEST * cost).min(share.max(of_free)));
        let giving = shares.lease_cost.as_secs_f64() / MANAGER_SHARE * rate;
        let giving = giving.min((of_free / 2.0).max(giving / TAIL));
        let floor = giving.max(shares.merge_seconds / MERGE_SHARE * rate);
        let ceiling = shares.lease_bytes_max / unit_bytes;
        nearest(wished.max(floor)).min(level_of(ceiling))
    }
}

/// The power of two that `units` is fewest times more or less than.
fn nearest(units: f64) -> u8 {
    let level = level_of(units as u64);
    let is_nearer_next = units > (1_u64 << level) as f64 * SQRT_2;
    (level + u8::from(is_nearer_next)).min(62)
}

/// The greatest power of two that is no more than `units`, or one.
pub(crate) fn level_of(units: u64) -> u8 {
    units.checked_ilog2().unwrap_or(0).min(62) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares {
        free: 1 << 20,
        out: 0,
        has: 0,
        unit_bytes: 1000,
        lease_bytes_max: u64::MAX,
        nodes: 4,
        known: 0,
        rate: 0.0,
        factor: 2.0,
        lease_cost: Duration::ZERO,
        merge_seconds: 0.0,
    };

    /// Of a node that takes 1 ms per lease and 10 us per unit.
    fn probed() -> Pace {
        let mut pace = Pace::default();
        for level in 0..20 {
            if matches!(pace.probe, Probe::Settled) {
                break;
            }
            assert_eq!(pace.level(&SHARES), level);
            let took = Duration::from_micros(1000 + (10 << level));
            pace.measured(level, 1000 << level, took);
        }
        pace
    }

    #[test]
    fn leases_double_while_that_pays_and_then_shrink_with_the_rest() {
        let pace = probed();
        assert!(matches!(pace.probe, Probe::Settled));
        // 2^11 units are 21.5 ms, 2^12 42 ms: 4.9% faster.
        assert!((9e7..1e8).contains(&pace.best), "{}", pace.best);
        let levels: Vec<_> =
            [1 << 20, 1 << 10, 64, 8, 1].map(|free| pace.level(&Shares { free, ..SHARES })).into();
        assert_eq!(levels, [17, 7, 3, 0, 0]);
    }

    #[test]
    fn leases_that_had_to_be_longer_are_tries_too() {
        let mut pace = Pace::default();
        pace.measured(3, 8000, Duration::from_millis(8));
        assert!(matches!(pace.probe, Probe::Level(4)));
        pace.measured(5, 32_000, Duration::from_millis(32));
        assert!(matches!(pace.probe, Probe::Settled));
    }

    #[test]
    fn a_slow_node_gets_less() {
        let pace = probed();
        let rate = pace.rate().unwrap();
        let shares = Shares { known: 4, rate: 13.0 * rate, ..SHARES };
        assert_eq!(pace.level(&shares), 15);
    }

    #[test]
    fn what_a_lease_costs_makes_it_longer() {
        let pace = probed();
        let cost = pace.line.cost_seconds();
        assert!((0.0009..0.0011).contains(&cost), "{cost}");
        // 1 ms is 2% of 50 ms, or 5000 units at 1e8 bytes per second.
        let shares = Shares { known: 4, rate: 4e8, factor: 16.0, ..SHARES };
        assert_eq!(pace.level(&Shares { free: 1 << 16, ..shares }), nearest(5000.0));
        // Half of what there is for each node.
        assert_eq!(pace.level(&Shares { free: 20_000, ..shares }), 11);
        // 800 units take eight times what a lease costs.
        assert_eq!(pace.level(&Shares { free: 4000, ..shares }), nearest(800.0));
        assert_eq!(pace.level(&Shares { free: 20, ..shares }), 2);
    }

    #[test]
    fn lengths_that_are_known_to_cost_too_much_are_not_tried() {
        let mut pace = Pace::default();
        let of = |pace: &Pace| Shares { nodes: 1, known: 1, rate: pace.rate().unwrap(), ..SHARES };
        // The first one tells nothing of what the others cost.
        pace.measured(0, 1000, Duration::from_micros(9000));
        pace.measured(0, 1000, Duration::from_micros(1010));
        assert_eq!(pace.level(&of(&pace)), 1);
        pace.measured(1, 2000, Duration::from_micros(1020));
        assert!(matches!(pace.probe, Probe::Level(2)));
        // 1 ms is 2% of 50 ms, in which it did 36 units so far.
        let shares = of(&pace);
        assert_eq!(pace.level(&shares), nearest(36.0));
        // Half of what there is.
        assert_eq!(pace.level(&Shares { free: 40, ..shares }), nearest(20.0));
    }

    #[test]
    fn the_nearest_power_of_two_is_that_of_the_least_ratio() {
        let found = [0.0, 0.3, 1.0, 1.5, 5.6, 5.7, 8.0, 1e30].map(nearest);
        assert_eq!(found, [0, 0, 0, 1, 2, 3, 3, 62]);
    }

    #[test]
    fn no_lease_is_too_short_for_the_manager_or_too_long_for_a_buffer() {
        let pace = probed();
        // 4e8 bytes per second are 4e5 units; of 1 ms per lease 2% is a lease each 50 ms.
        let lease_cost = Duration::from_millis(1);
        let shares = Shares { lease_cost, known: 4, rate: 4e8, factor: 16.0, ..SHARES };
        let shares = Shares { free: 1 << 18, ..shares };
        assert_eq!(pace.level(&shares), level_of(20_000));
        // At the end an eighth.
        let shares = Shares { free: 9, ..shares };
        assert_eq!(pace.level(&shares), level_of(2500));
        let merges = Shares { merge_seconds: 0.1, ..shares };
        assert_eq!(pace.level(&merges), level_of(80_000));
        assert_eq!(pace.level(&Shares { lease_bytes_max: 70_000, ..shares }), level_of(70));
        assert_eq!(pace.level(&Shares { lease_bytes_max: 0, ..shares }), 0);
    }
}
