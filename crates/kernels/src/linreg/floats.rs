//! Means and squared deviations of float pairs: in a chunk that fits the L1
//! cache first the mean, then the deviations from it (in fixed lanes, so that
//! the order of additions never changes), and chunks are merged with Chan's
//! formula, pairwise: rounding depends on which are merged first, so that is
//! decided by their numbers in the input and not by how it was cut.

use stream::{KernelError, Saved};

use super::{LinRegReport, Spread};

/// Means, squared deviations from them, and bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    n: u64,
    mean: [f64; 2],
    xx: f64,
    xy: f64,
    yy: f64,
    /// Least x and y: equal to the greatest where rounding hides that all are equal.
    least: [f64; 2],
    greatest: [f64; 2],
}

impl Moments {
    /// Adds the pairs that come right after these.
    pub(super) fn append(&mut self, later: &Moments) {
        if self.n == 0 || later.n == 0 {
            if self.n == 0 {
                *self = *later;
            }
            return;
        }
        let share = later.n as f64 / (self.n + later.n) as f64;
        let delta = [later.mean[0] - self.mean[0], later.mean[1] - self.mean[1]];
        let weight = self.n as f64 * share;
        self.xx += later.xx + delta[0] * delta[0] * weight;
        self.xy += later.xy + delta[0] * delta[1] * weight;
        self.yy += later.yy + delta[1] * delta[1] * weight;
        self.mean = [self.mean[0] + delta[0] * share, self.mean[1] + delta[1] * share];
        self.least = both(self.least, later.least, f64::min);
        self.greatest = both(self.greatest, later.greatest, f64::max);
        self.n += later.n;
    }

    /// Bit by bit: rounding goes on as if nothing had happened.
    fn save(&self, out: &mut Vec<u8>) {
        let Self { n, mean, xx, xy, yy, least, greatest } = self;
        out.extend_from_slice(&n.to_le_bytes());
        for figures in [&mean[..], &[*xx, *xy, *yy], least, greatest] {
            out.extend(figures.iter().flat_map(|figure| figure.to_le_bytes()));
        }
    }

    fn load(saved: &mut Saved<'_>) -> Result<Self, KernelError> {
        let n = saved.u64()?;
        let mut figure = || saved.f64();
        Ok(Self {
            n,
            mean: [figure()?, figure()?],
            xx: figure()?,
            xy: figure()?,
            yy: figure()?,
            least: [figure()?, figure()?],
            greatest: [figure()?, figure()?],
        })
    }

    pub(super) fn fit(&self) -> LinRegReport {
        LinRegReport::from_spread(&Spread {
            n: self.n,
            mean_x: self.mean[0],
            mean_y: self.mean[1],
            xx: self.xx,
            xy: self.xy,
            yy: self.yy,
            x_varies: self.least[0] < self.greatest[0],
            y_varies: self.least[1] < self.greatest[1],
        })
    }
}

/// Pairs looked at twice: 8 KiB of them, in the L1 cache and on a small stack.
pub(super) const CHUNK_PAIRS: usize = 512;
const LANES: usize = 4;

/// A full binary tree of chunks: `2^level` of them, of which the first has the
/// number `index * 2^level`.
#[derive(Clone, Copy, Debug)]
struct Tree {
    level: u32,
    index: u64,
    moments: Moments,
}

/// Trees that lie side by side, of the last of some inputs, and the moments of
/// those before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Forest {
    before: Moments,
    trees: Vec<Tree>,
}

/// Trees grow towards the middle of a forest and shrink again, and a level
/// occurs once on each side; the vector may have doubled.
pub(super) const FOREST_BYTES_MAX: u64 = 2 * 2 * 64 * size_of::<Tree>() as u64;

impl Forest {
    /// Adds the trees that come right after these, or those of the inputs after
    /// this one: the first chunk of an input has the number 0.
    pub(super) fn append(&mut self, later: &Forest) {
        let another = later.trees.first().is_some_and(|tree| tree.index == 0);
        if another || later.before.n > 0 {
            self.before = self.moments();
            self.trees.clear();
            self.before.append(&later.before);
        }
        later.trees.iter().for_each(|tree| self.push(*tree));
    }

    fn push(&mut self, mut tree: Tree) {
        let is_left = |left: &Tree, tree: &Tree| left.level == tree.level && tree.index % 2 == 1;
        while let Some(left) = self.trees.pop_if(|left| is_left(left, &tree)) {
            let mut moments = left.moments;
            moments.append(&tree.moments);
            tree = Tree { level: left.level + 1, index: left.index / 2, moments };
        }
        self.trees.push(tree);
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        self.before.save(out);
        for Tree { level, index, moments } in &self.trees {
            out.extend_from_slice(&level.to_le_bytes());
            out.extend_from_slice(&index.to_le_bytes());
            moments.save(out);
        }
    }

    pub(super) fn load(saved: &mut Saved<'_>) -> Result<Self, KernelError> {
        let (before, mut trees) = (Moments::load(saved)?, Vec::new());
        while !saved.is_empty() {
            let (level, index) = (saved.u32()?, saved.u64()?);
            trees.push(Tree { level, index, moments: Moments::load(saved)? });
        }
        Ok(Self { before, trees })
    }

    /// The moments of all of them.
    pub(super) fn moments(&self) -> Moments {
        let mut moments = self.before;
        self.trees.iter().for_each(|tree| moments.append(&tree.moments));
        moments
    }
}

/// The pairs of f32 that begin `at` bytes from the body's start, where a chunk
/// does; an incomplete pair at the end does not count.
pub(super) fn sum_f32(bytes: &[u8], at: u64) -> Forest {
    sum(bytes, at, |&[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        [f32::from_le_bytes([a, b, c, d]), f32::from_le_bytes([e, f, g, h])].map(f64::from)
    })
}

/// As [`sum_f32`] for f64.
pub(super) fn sum_f64(bytes: &[u8], at: u64) -> Forest {
    sum(bytes, at, |pair: &[u8; 16]| {
        let (axes, _) = pair.as_chunks::<8>();
        [f64::from_le_bytes(axes[0]), f64::from_le_bytes(axes[1])]
    })
}

fn sum<const BYTES: usize>(
    bytes: &[u8],
    at: u64,
    read: impl Fn(&[u8; BYTES]) -> [f64; 2],
) -> Forest {
    let mut forest = Forest::default();
    let mut values = [[0.0; 2]; CHUNK_PAIRS];
    let first = at / (BYTES * CHUNK_PAIRS) as u64;
    for (chunk, index) in bytes.as_chunks::<BYTES>().0.chunks(CHUNK_PAIRS).zip(first..) {
        for (value, pair) in values.iter_mut().zip(chunk) {
            *value = read(pair);
        }
        let moments = moments_of_chunk(&values[..chunk.len()]);
        forest.push(Tree { level: 0, index, moments });
    }
    forest
}

/// The moments of 1 to [`CHUNK_PAIRS`] pairs.
fn moments_of_chunk(pairs: &[[f64; 2]]) -> Moments {
    let (groups, rest) = pairs.as_chunks::<LANES>();
    let mut sums = [[0.0; 2]; LANES];
    let (mut least, mut greatest) = ([pairs[0]; LANES], [pairs[0]; LANES]);
    let mut bound = |lane: usize, pair: &[f64; 2]| {
        sums[lane] = both(sums[lane], *pair, |sum, value| sum + value);
        // Not `f64::min`: this is one instruction, and NaN shows in the sums.
        least[lane] =
            both(least[lane], *pair, |least, value| if value < least { value } else { least });
        greatest[lane] =
            both(greatest[lane], *pair, |most, value| if value > most { value } else { most });
    };
    for group in groups {
        group.iter().enumerate().for_each(|(lane, pair)| bound(lane, pair));
    }
    rest.iter().enumerate().for_each(|(lane, pair)| bound(lane, pair));
    let n = pairs.len() as f64;
    let mean = sums
        .iter()
        .fold([0.0; 2], |total, sum| both(total, *sum, |a, b| a + b))
        .map(|total| total / n);
    let [xx, xy, yy] = deviations(groups, rest, mean);
    Moments {
        n: pairs.len() as u64,
        mean,
        xx,
        xy,
        yy,
        least: least.iter().fold(least[0], |a, b| both(a, *b, f64::min)),
        greatest: greatest.iter().fold(greatest[0], |a, b| both(a, *b, f64::max)),
    }
}

/// Sums of squared deviations from the mean: of x, of x and y, of y.
fn deviations(groups: &[[[f64; 2]; LANES]], rest: &[[f64; 2]], mean: [f64; 2]) -> [f64; 3] {
    let mut lanes = [[0.0; 3]; LANES];
    let mut square = |lane: usize, pair: &[f64; 2]| {
        let [x, y] = both(*pair, mean, |value, mean| value - mean);
        let [xx, xy, yy] = lanes[lane];
        lanes[lane] = [xx + x * x, xy + x * y, yy + y * y];
    };
    for group in groups {
        group.iter().enumerate().for_each(|(lane, pair)| square(lane, pair));
    }
    rest.iter().enumerate().for_each(|(lane, pair)| square(lane, pair));
    lanes.iter().fold([0.0; 3], |sum, lane| [sum[0] + lane[0], sum[1] + lane[1], sum[2] + lane[2]])
}

#[inline(always)]
fn both(a: [f64; 2], b: [f64; 2], pick: impl Fn(f64, f64) -> f64) -> [f64; 2] {
    [pick(a[0], b[0]), pick(a[1], b[1])]
}
