//! Bare messages over the transport, of some lengths.

use super::peer::Peer;
use crate::machine::Machine;
use crate::measure::Spread;
use crate::table::{Cell, Table};

/// Their bytes, and how many go there and back each round.
const LENGTHS: [(usize, u32); 4] =
    [(8, 20_000), (4 << 10, 10_000), (64 << 10, 4_000), (1 << 20, 500)];
const QUICK: u32 = 10;

/// Each goes from the manager to a node and comes back.
pub(super) fn there_and_back(
    peer: &Peer,
    (rounds, quick): (usize, bool),
    machine: &Machine,
) -> anyhow::Result<Table> {
    let title = "cluster: a message to a node and back, with nothing done to it";
    let columns = [("bytes", ""), ("there and back", "us"), ("least", "us")];
    let mut table = Table::new(title, machine, &columns);
    for (bytes, count) in LENGTHS {
        let count = if quick { QUICK } else { count };
        let mut each = Vec::new();
        for round in 0..=rounds {
            let took = peer.ping((bytes, bytes), count, |_| Ok(()))?;
            if round > 0 {
                each.push(took.as_secs_f64() * 1e6);
            }
        }
        let spread = Spread::of(each);
        table.row([bytes.into(), spread.median.into(), Cell::from(spread.min)]);
    }
    Ok(table)
}
