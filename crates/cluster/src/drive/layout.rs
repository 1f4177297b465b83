//! Which peer manages which.

use super::MANAGER;
use crate::NodeId;

/// Peers in the order of their numbers fill a tree level by level. Who has some below it
/// manages a group: these, and its own node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    peers: u32,
    /// How many are below each.
    fanout: u32,
}

impl Layout {
    /// All are below the first one if `fanout` is `None`.
    pub(super) fn new(peers: u32, fanout: Option<u32>) -> Self {
        let most = peers.saturating_sub(1);
        Self { peers, fanout: fanout.unwrap_or(most).min(most).max(1) }
    }

    /// Whether there is such a peer.
    pub(super) fn has(self, peer: NodeId) -> bool {
        peer.0 < self.peers
    }

    /// Its manager's peer; the first is its own.
    pub(super) fn above(self, peer: NodeId) -> NodeId {
        NodeId(peer.0.checked_sub(1).map_or(MANAGER.0, |before| before / self.fanout))
    }

    /// The peers that it manages, besides itself.
    pub(super) fn below(self, peer: NodeId) -> impl Iterator<Item = NodeId> + Clone {
        let first = u64::from(peer.0) * u64::from(self.fanout) + 1;
        let end = first.saturating_add(self.fanout.into()).min(self.peers.into());
        // Those there are have numbers of 32 bits.
        (first..end).map(|peer| NodeId(peer as u32))
    }

    /// Itself and all below it, of whatever level.
    pub(super) fn nodes(self, peer: NodeId) -> u32 {
        1 + self.below(peer).map(|below| self.nodes(below)).sum::<u32>()
    }

    /// Those that manage others.
    pub(super) fn managers(self) -> impl Iterator<Item = NodeId> {
        (0..self.peers)
            .map(NodeId)
            .take_while(move |peer| *peer == MANAGER || self.below(*peer).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_below_one_and_levels_fill_in_turn() {
        for peers in 1..40 {
            for fanout in [None, Some(1), Some(2), Some(3), Some(7), Some(40), Some(u32::MAX)] {
                let layout = Layout::new(peers, fanout);
                assert_eq!(layout.above(MANAGER), MANAGER);
                let mut below: Vec<_> =
                    (0..peers).flat_map(|peer| layout.below(NodeId(peer))).collect();
                assert!(below.is_sorted(), "{layout:?}");
                assert!(
                    below.iter().all(|peer| layout.below(layout.above(*peer)).any(|p| p == *peer))
                );
                below.insert(0, MANAGER);
                assert_eq!(below, (0..peers).map(NodeId).collect::<Vec<_>>(), "{layout:?}");
                assert_eq!(layout.nodes(MANAGER), peers);
                let most = fanout.unwrap_or(peers) as usize;
                assert!((0..peers).all(|peer| layout.below(NodeId(peer)).count() <= most));
                assert_eq!(
                    layout.managers().count(),
                    match fanout {
                        Some(fanout) => (peers - 1).div_ceil(fanout).max(1) as usize,
                        None => 1,
                    }
                );
            }
        }
        let layout = Layout::new(7, Some(2));
        assert_eq!(layout.below(NodeId(1)).collect::<Vec<_>>(), [NodeId(3), NodeId(4)]);
        assert_eq!([0, 1, 2, 3].map(|peer| layout.nodes(NodeId(peer))), [7, 3, 3, 1]);
    }
}
