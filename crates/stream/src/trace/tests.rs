use super::*;
use storage::{Options, Output};

fn stand(accelerator: usize, thread: u32) -> Stand {
    Stand { stage: 0, stages: 1, accelerator, thread }
}

/// The events that `work` leaves.
fn traced(work: impl FnOnce(&Trace)) -> Vec<serde_json::Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let output = Output::create(&path, &Options::default()).unwrap();
    let trace = Trace::new(output.sequential());
    work(&trace);
    trace.finish().unwrap();
    output.commit(false).unwrap();
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_run_without_events_leaves_an_empty_list() {
    assert_eq!(traced(|_| {}), Vec::<serde_json::Value>::new());
}

#[test]
fn every_step_is_written_once_in_its_row() {
    const UNITS: u64 = 3 * EVENTS_MAX as u64 + 7;
    let events = traced(|trace| {
        let in_flight = InFlight::default();
        let mut logs = [0, 1].map(|n| Log::new(Some(trace), &in_flight, "pread", stand(4, n)));
        for unit in 0..UNITS {
            let log = &mut logs[(unit % 2) as usize];
            log.starts();
            let from = Instant::now();
            log.ends();
            log.step(Step::Compute, (from, from + Duration::from_micros(3)), (unit, 100));
        }
    });
    let with = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    assert_eq!(with("M").count(), 4);
    assert!(with("M").any(|event| event["args"]["name"] == "accelerator 4"));
    let mut units: Vec<_> =
        with("X").map(|event| event["args"]["unit"].as_u64().unwrap()).collect();
    assert!(with("X").all(|event| event["tid"] == event["args"]["unit"].as_u64().unwrap() % 2));
    assert!(with("X").all(|event| event["dur"] == 3.0 && event["name"] == "compute"));
    units.sort_unstable();
    assert!(units.into_iter().eq(0..UNITS));
    assert_eq!(with("C").count() as u64, 2 * UNITS);
    assert!(with("C").all(|event| event["pid"] == 4 && event["name"] == "pread"));
    assert!(with("C").all(|event| event["args"]["transfers"].as_u64().unwrap() <= 2));
}

#[test]
fn a_full_disk_is_told_at_the_end() {
    let full = std::path::Path::new("/dev/full");
    let output = Output::create(full, &Options { force: true, ..Options::default() }).unwrap();
    let trace = Trace::new(output.sequential());
    drop(Log::new(Some(&trace), &InFlight::default(), "pread", stand(0, 0)));
    assert!(trace.finish().unwrap_err().to_string().contains("/dev/full"));
}
