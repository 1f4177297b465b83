//! Lists of waiters.

use super::*;

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_list_of_waiters_holds_each_once() {
    let waiters = Waiters::default();
    let (one, two) = (Waker::from(Arc::new(Nothing)), Waker::from(Arc::new(Nothing)));
    for _ in 0..2 {
        for _ in 0..1000 {
            for thread in [3, 200, 64] {
                waiters.add(Waiter { thread, foreign: None });
                waiters.add(Waiter { thread, foreign: Some(one.clone()) });
            }
            waiters.add(Waiter { thread: u32::MAX, foreign: Some(two.clone()) });
        }
        let taken = waiters.take();
        let own: Vec<_> = taken.iter().filter(|w| w.foreign.is_none()).map(|w| w.thread).collect();
        assert_eq!(own, [3, 200, 64], "in the order they came");
        assert_eq!(taken.len(), 5);
        assert!(waiters.take().is_empty());
    }
}
