//! Which cores accelerators take. A process of its own: runs of other tests
//! would take cores, too.

use std::sync::Barrier;

use cellway_accel::{Config, run};

fn cores_allowed() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

#[test]
fn runs_side_by_side_take_different_cores_from_the_last_on() {
    let all = cores_allowed();
    let runs = all.len() + 1;
    let everybody_runs = &Barrier::new(runs);
    let mut taken: Vec<Vec<usize>> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..runs)
            .map(|_| {
                scope.spawn(move || {
                    let config = Config { accelerators: 1, threads: 1, ..Config::default() };
                    let program = |_, _| async move {
                        everybody_runs.wait();
                        cores_allowed()
                    };
                    run(&config, program).unwrap().remove(0)
                })
            })
            .collect();
        started.into_iter().map(|run| run.join().unwrap()).collect()
    });
    // One found no core left and runs where the system likes.
    taken.sort_by_key(Vec::len);
    if all.len() > 1 {
        assert_eq!(taken.pop().unwrap(), all);
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.concat(), all);
    // All of them are over: the last core is free again.
    let config = Config { accelerators: 1, threads: 1, ..Config::default() };
    let last = run(&config, |_, _| async { cores_allowed() }).unwrap().remove(0);
    assert_eq!(last, all[all.len() - 1..]);
}
