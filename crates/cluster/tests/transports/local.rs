//! Between threads.

use std::thread;
use std::time::{Duration, Instant};

use cellway_cluster::NodeId;
use cellway_cluster::transport::contract::{self, Loss};
use cellway_cluster::transport::local::{self, Local};
use cellway_cluster::transport::{Endpoint as _, Received};

use crate::{seed, watch};

fn on_threads(peers: u32, part: impl Fn(Box<Local>) -> Result<(), String> + Sync) {
    let (part, _dog) = (&part, watch());
    thread::scope(|scope| {
        let endpoints = local::endpoints(peers).into_iter();
        let threads: Vec<_> =
            endpoints.map(|endpoint| scope.spawn(move || part(Box::new(endpoint)))).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
    });
}

#[test]
fn threads_keep_the_contract() {
    for peers in [1, 2, 3, 9] {
        let seed = seed();
        on_threads(peers, |endpoint| contract::run(endpoint, seed));
    }
}

#[test]
fn a_dropped_endpoint_is_a_lost_peer() {
    for peers in [2, 3, 9] {
        let seed = seed();
        on_threads(peers, |endpoint| contract::run_with_loss(endpoint, seed, Loss::Told, drop));
    }
}

#[test]
fn what_was_sent_before_a_loss_comes_before_it() {
    let mut endpoints = local::endpoints(2);
    let mut sender = endpoints.pop().unwrap();
    let mut receiver = endpoints.pop().unwrap();
    sender.send(NodeId(0), vec![7]).unwrap();
    drop(sender);
    let soon = || Some(Instant::now() + Duration::from_secs(60));
    assert_eq!(receiver.receive(soon()), Ok(Received::Message(NodeId(1), vec![7])));
    assert_eq!(receiver.receive(soon()), Ok(Received::Lost(NodeId(1))));
    assert_eq!(receiver.send(NodeId(1), vec![1]), Ok(()));
    assert_eq!(receiver.receive(Some(Instant::now())), Ok(Received::Nothing));
}
