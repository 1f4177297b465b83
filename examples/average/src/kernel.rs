//! One round of k-means: the kernel of Cell Connector's thesis (figures 4.4, 4.8 and 4.9).

use cellway::record::{Record, Records};
use cellway::{Block, Body, Cut, Effect, Head, Kernel, KernelError, Unit};

/// A unit holds these.
#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C)]
pub(crate) struct Point {
    pub(crate) coord: [f32; 3],
}

/// A mean as a parameter; the points nearest to it, summed, as a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Record)]
#[repr(C)]
pub(crate) struct Average {
    pub(crate) id: u32,
    pub(crate) count: u64,
    pub(crate) coord: [f64; 3],
}

/// Sums the points nearest to each mean.
pub(crate) struct Averages {
    /// The parameter, the same for every unit.
    pub(crate) means: Vec<Average>,
}

impl Averages {
    fn nearest(&self, point: &Point) -> usize {
        let distance = |mean: &Average| {
            let pairs = mean.coord.iter().zip(&point.coord);
            pairs.map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>()
        };
        let distances = self.means.iter().map(distance).enumerate();
        distances.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(nearest, _)| nearest)
    }
}

impl Kernel for Averages {
    type Part = Vec<Average>;
    type Header = ();

    fn name(&self) -> &str {
        "averages"
    }

    fn open(&self, head: &dyn Head) -> Result<Body, KernelError> {
        let (len, each) = (head.len_bytes().unwrap_or(0), Point::LAYOUT.size_bytes() as u64);
        if len % each != 0 {
            let what = format!("{len} bytes are no whole points of {each} bytes");
            return Err(KernelError::new(what, format!("give points: {}", Point::LAYOUT)));
        }
        Ok(Body::whole(head))
    }

    fn cut(&self, _: &()) -> Cut {
        Cut::records(Point::LAYOUT.size_bytes())
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn memory_bytes(&self, accelerators: usize) -> u64 {
        (accelerators * self.means.len() * size_of::<Average>()) as u64
    }

    fn part(&self, _accelerators: usize) -> Vec<Average> {
        self.means.iter().map(|mean| Average { id: mean.id, ..Average::default() }).collect()
    }

    fn block(
        &self,
        _: &Unit<'_>,
        block: Block<'_>,
        sums: &mut Vec<Average>,
    ) -> Result<(), KernelError> {
        for point in Point::all(block.data)? {
            let Some(sum) = sums.get_mut(self.nearest(&point)) else { continue };
            sum.count += 1;
            sum.coord.iter_mut().zip(point.coord).for_each(|(sum, x)| *sum += f64::from(x));
        }
        Ok(())
    }

    fn merge(&self, sums: &mut Vec<Average>, later: Vec<Average>) -> Result<(), KernelError> {
        for (sum, more) in sums.iter_mut().zip(later) {
            sum.count += more.count;
            sum.coord.iter_mut().zip(more.coord).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }

    /// Nodes compute with the means of the manager.
    fn with_parameters(&self, parameters: &[u8]) -> Result<Option<Self>, KernelError> {
        Ok(Some(Self { means: Records::from_bytes(parameters)?.get()? }))
    }

    // With these three a run can be resumed, and nodes tell what they found: layouts go with it,
    // and are checked.

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(Records::of(&self.means).to_bytes())
    }

    fn save(&self, sums: &Vec<Average>, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend(Records::of(sums).to_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Vec<Average>, KernelError> {
        Ok(Records::from_bytes(saved)?.get()?)
    }
}
