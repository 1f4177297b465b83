//! What a manager tells its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::jobs::Known;
use crate::task::Description;
use crate::wire::Message;
use crate::{JobId, NodeId, ToNode};

pub(super) struct Group {
    /// Which jobs a node knows.
    known: BTreeMap<NodeId, Known>,
    /// Those that were not told yet that all is done.
    expected: BTreeSet<NodeId>,
    /// Those that were refused, or left, for they would do something else.
    refused: BTreeMap<NodeId, String>,
    /// When to wait for them no more.
    ends: Option<Duration>,
}

impl Group {
    pub(super) fn new(expected: impl Iterator<Item = NodeId>) -> Self {
        let (known, refused) = (BTreeMap::new(), BTreeMap::new());
        Self { known, expected: expected.collect(), refused, ends: None }
    }

    /// Tells a node, of a lease's job beforehand what that is.
    pub(super) fn tell(
        &mut self,
        node: NodeId,
        message: ToNode,
        task_of: impl FnOnce(JobId) -> Option<(u32, Description)>,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        match &message {
            ToNode::Welcome { .. } => {
                self.known.remove(&node);
            }
            ToNode::Lease { lease: crate::Lease { job, .. }, .. } => {
                let known = self.known.entry(node).or_default();
                if !known.gives(*job)
                    && let Some((task, description)) = task_of(*job)
                {
                    known.tells(*job, |_| false);
                    out.push((node, Message::Job(*job, task, description.into())));
                }
            }
            ToNode::Refused(why) => self.unfit(node, format!("node {}: {why}", node.0)),
            ToNode::Dismissed { .. } => self.leaves(node),
            ToNode::Withdraw { .. }
            | ToNode::Shorten { .. }
            | ToNode::Fenced { .. }
            | ToNode::Alive { .. } => {}
        }
        out.push((node, Message::ToNode(message)));
    }

    /// It is not to be waited for.
    pub(super) fn leaves(&mut self, node: NodeId) {
        self.expected.remove(&node);
    }

    /// Those that are still to be told are another manager's.
    pub(super) fn give_up(&mut self, but: NodeId) -> Vec<NodeId> {
        self.expected.extract_if(.., |node| *node != but).collect()
    }

    /// Nor is one that would do something else.
    pub(super) fn unfit(&mut self, node: NodeId, why: String) {
        self.leaves(node);
        self.refused.insert(node, why);
    }

    /// Why nodes are done without.
    pub(super) fn refused(&self) -> impl Iterator<Item = String> {
        self.refused.values().cloned()
    }

    /// They will come, for the manager they had is lost or unfit.
    pub(super) fn expect(&mut self, nodes: impl Iterator<Item = NodeId>) {
        self.expected.extend(nodes);
    }

    /// Whether nobody is to be waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// All is done, and so long it waits for those who do not know.
    pub(super) fn ends(&mut self, now: Duration, linger: Duration) {
        self.ends.get_or_insert(now.saturating_add(linger));
    }

    /// When it waits for them no more.
    pub(super) fn due(&self) -> Option<Duration> {
        self.ends
    }

    /// Whether everybody knows that all is done, or is waited for no more.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.expected.is_empty() || self.ends.is_some_and(|ends| ends <= now)
    }
}
