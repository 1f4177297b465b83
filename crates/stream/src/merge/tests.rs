use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::*;
use crate::kernel::{Block, Effect, Unit};

/// Collects numbers; refuses one.
struct Collect {
    refused: Option<u64>,
}

impl Kernel for Collect {
    type Part = Vec<u64>;
    type Header = ();

    fn name(&self) -> &str {
        "collect"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn merge_order(&self) -> MergeOrder {
        MergeOrder::ByUnit
    }

    fn part(&self, _accelerators: usize) -> Vec<u64> {
        Vec::new()
    }

    fn block(&self, _: &Unit<'_>, _: Block<'_>, _: &mut Vec<u64>) -> Result<(), KernelError> {
        Ok(())
    }

    fn merge(&self, part: &mut Vec<u64>, later: Vec<u64>) -> Result<(), KernelError> {
        if later.first() == self.refused.as_ref() {
            return Err(KernelError::new("refused", "try another"));
        }
        part.extend(later);
        Ok(())
    }
}

fn in_order(kernel: &Collect) -> InOrder<Vec<u64>> {
    match Parts::new(kernel, 1) {
        Parts::ByUnit(in_order) => in_order,
        Parts::Any(_) => unreachable!("the kernel asks for order"),
    }
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

const EARLY: u64 = EARLY_PARTS_MAX as u64;

#[test]
fn threads_wait_once_enough_parts_do() {
    let kernel = Collect { refused: None };
    let parts = in_order(&kernel);
    for unit in 1..=EARLY {
        assert_eq!(poll(parts.take(&kernel, unit, vec![unit])), Poll::Ready(Ok(())));
    }
    let mut waits = pin!(parts.take(&kernel, EARLY + 1, vec![EARLY + 1]));
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(waits.as_mut().poll(&mut cx), Poll::Pending);
    assert_eq!(poll(parts.take(&kernel, 0, vec![0])), Poll::Ready(Ok(())));
    assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    assert_eq!(lock(&parts.state).part, (0..=EARLY + 1).collect::<Vec<_>>());
}

/// The refused part is told with its own number, and those before it go on.
#[test]
fn a_refused_part_lets_those_before_it_go() {
    let kernel = Collect { refused: Some(EARLY + 2) };
    let parts = in_order(&kernel);
    for unit in 1..=EARLY {
        assert_eq!(poll(parts.take(&kernel, unit, vec![unit])), Poll::Ready(Ok(())));
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut before = pin!(parts.take(&kernel, EARLY + 1, vec![EARLY + 1]));
    let mut refused = pin!(parts.take(&kernel, EARLY + 2, vec![EARLY + 2]));
    assert_eq!(before.as_mut().poll(&mut cx), Poll::Pending);
    assert_eq!(refused.as_mut().poll(&mut cx), Poll::Pending);
    let told = poll(parts.take(&kernel, 0, vec![0]));
    assert!(matches!(told, Poll::Ready(Err((unit, _))) if unit == EARLY + 2), "{told:?}");
    assert_eq!(before.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    parts.gate.close_from(EARLY + 2);
    assert_eq!(refused.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
}

proptest! {
    #[test]
    fn parts_come_together_in_order_whenever_they_come(
        order in Just((0..EARLY).collect::<Vec<u64>>()).prop_shuffle(),
    ) {
        let kernel = Collect { refused: None };
        let parts = in_order(&kernel);
        for unit in order {
            prop_assert_eq!(poll(parts.take(&kernel, unit, vec![unit])), Poll::Ready(Ok(())));
        }
        prop_assert_eq!(Parts::ByUnit(parts).end(&kernel), Ok((0..EARLY).collect()));
    }
}
