//! Puts parts together: one per accelerator, or in the order of their units.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::gate::{Gate, lock};
use crate::kernel::{Effect, Kernel, KernelError, MergeOrder};

/// Parts that wait for those before them ([`MergeOrder::ByUnit`]), at most,
/// before their threads wait as well. A kernel whose parts hold memory outside
/// themselves counts so many in [`Kernel::memory_bytes`].
pub const EARLY_PARTS_MAX: usize = 64;

/// The partial results of a run, of one input or of several.
pub(crate) enum Parts<P> {
    /// One per accelerator, merged at the end.
    Any(Vec<Mutex<P>>),
    ByUnit(InOrder<P>),
}

/// A part that grows by the parts of unit 0, then 1, then 2, ...
pub(crate) struct InOrder<P> {
    state: Mutex<Merged<P>>,
    gate: Gate,
}

struct Merged<P> {
    part: P,
    next: u64,
    early: BTreeMap<u64, P>,
}

impl<P> Merged<P> {
    /// Merges those whose turn it is.
    fn catch_up<K: Kernel<Part = P>>(&mut self, kernel: &K) -> Result<(), (u64, KernelError)> {
        while let Some(part) = self.early.remove(&self.next) {
            kernel.merge(&mut self.part, part).map_err(|error| (self.next, error))?;
            self.next += 1;
        }
        Ok(())
    }
}

/// The order that parts of this kernel are merged in: a rewrite may see a unit
/// several times, so it has no part for each.
pub(crate) fn merge_order<K: Kernel>(kernel: &K) -> MergeOrder {
    match kernel.effect() {
        Effect::Rewrite => MergeOrder::Any,
        Effect::Reduce | Effect::Transform => kernel.merge_order(),
    }
}

impl<P> Parts<P> {
    pub(crate) fn new<K: Kernel<Part = P>>(kernel: &K, accelerators: usize) -> Self {
        let part = || kernel.part(accelerators);
        match merge_order(kernel) {
            MergeOrder::Any => Self::Any((0..accelerators).map(|_| Mutex::new(part())).collect()),
            MergeOrder::ByUnit => {
                let merged = Merged { part: part(), next: 0, early: BTreeMap::new() };
                Self::ByUnit(InOrder { state: Mutex::new(merged), gate: Gate::default() })
            }
        }
    }

    /// Before another input, whose units are numbered from 0 again.
    pub(crate) fn restart(&mut self) {
        if let Self::ByUnit(in_order) = self {
            in_order.gate = Gate::default();
            let state = in_order.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            debug_assert!(state.early.is_empty(), "the parts of the input before are merged");
            state.next = 0;
        }
    }

    /// Unit `index` and those after it will not come.
    pub(crate) fn close_from(&self, index: u64) {
        if let Self::ByUnit(in_order) = self {
            in_order.gate.close_from(index);
        }
    }

    /// Takes the part of all units before `unit`.
    pub(crate) fn start_from(&self, unit: u64, part: P) {
        match self {
            Self::Any(parts) => {
                if let Some(first) = parts.first() {
                    *lock(first) = part;
                }
            }
            Self::ByUnit(in_order) => {
                let mut state = lock(&in_order.state);
                (state.part, state.next) = (part, unit);
                in_order.gate.open_until(unit);
            }
        }
    }

    /// Puts what there is together and shows it; more may be added afterwards.
    pub(crate) fn look<K: Kernel<Part = P>>(
        &self,
        kernel: &K,
        show: impl FnOnce(&mut P) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        match self {
            Self::Any(parts) => {
                let accelerators = parts.len();
                let Some((first, others)) = parts.split_first() else { return Ok(()) };
                let mut first = lock(first);
                for other in others {
                    let other = std::mem::replace(&mut *lock(other), kernel.part(accelerators));
                    kernel.merge(&mut first, other)?;
                }
                show(&mut first)
            }
            Self::ByUnit(in_order) => show(&mut lock(&in_order.state).part),
        }
    }

    /// The whole input's part.
    pub(crate) fn end<K: Kernel<Part = P>>(self, kernel: &K) -> Result<P, KernelError> {
        let parts = match self {
            Self::ByUnit(in_order) => {
                return Ok(in_order
                    .state
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner)
                    .part);
            }
            Self::Any(parts) => parts.into_iter(),
        };
        let mut parts = parts.map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
        let mut merged = parts.next().unwrap_or_else(|| kernel.part(1));
        for part in parts {
            kernel.merge(&mut merged, part)?;
        }
        Ok(merged)
    }
}

impl<P> InOrder<P> {
    /// Takes the part of unit `index`: merges it and those that waited for it,
    /// or keeps it. A failed merge comes with the number of its unit.
    pub(crate) async fn take<K: Kernel<Part = P>>(
        &self,
        kernel: &K,
        index: u64,
        part: P,
    ) -> Result<(), (u64, KernelError)> {
        let crowded = {
            let mut state = lock(&self.state);
            state.early.insert(index, part);
            let merged = state.catch_up(kernel);
            // Those before a part that was refused go on all the same.
            self.gate.open_until(state.next);
            merged?;
            state.early.len() > EARLY_PARTS_MAX
        };
        if crowded {
            // A failure before this unit shows elsewhere.
            let _ = self.gate.turn(index).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
