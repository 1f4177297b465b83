//! Units as bytes: how nodes come by them, and the manager's side of it.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::thread::Scope;

use serde_bytes::ByteBuf;

use super::jobs::Jobs;
use super::{Bring, Brought, caught};
use crate::wire::Message;
use crate::{JobId, LeaseId, NodeId};

/// How nodes come by the bytes of their units. The manager's own reads for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ship {
    /// Each reads for itself where it can, unless it is on another machine than the manager and
    /// being sent them proves faster.
    #[default]
    Auto,
    /// Each reads for itself.
    Locators,
    /// They are sent by the manager.
    Bytes,
}

/// What a node has for leases where all are sent: nothing of one is computed before all of it
/// is there, so they are to be short.
pub(super) const SENT_BYTES: u64 = 16 << 20;

/// What it has where others read: their leases may go to it too.
pub(super) const SENT_BYTES_MAX: u64 = 128 << 20;

/// A node asks for so many bytes at a time,
pub(super) const CHUNK_BYTES: u64 = 256 << 10;

/// and for so many times that ahead: more than is on its way over a link of 10 Gbit/s
/// and a millisecond.
pub(super) const WINDOW: usize = 8;

/// One that was fenced, and forgot what it asked for, may have asked again.
const ASKED_MAX: usize = 4 * WINDOW;

/// The most memory in bytes of what is on its way to so many nodes: as it was read, and
/// as a message.
pub(super) fn way_bytes(nodes: u64) -> u64 {
    nodes * WINDOW as u64 * 2 * CHUNK_BYTES
}

/// Bytes that a node of any manager wants, of a job's input.
pub(super) struct Asked {
    pub(super) node: NodeId,
    /// None that is over.
    pub(super) job: Option<JobId>,
    /// What it calls them.
    pub(super) lease: LeaseId,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Reads what nodes ask for, on a thread of its own.
pub(super) struct Shipper {
    asked: Sender<Asked>,
    bring: Bring,
    /// Not answered yet.
    out: BTreeMap<NodeId, usize>,
}

impl Shipper {
    pub(super) fn new<'scope, 'env>(
        jobs: Jobs<'env>,
        bring: Bring,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let (asked, all) = mpsc::channel::<Asked>();
        let brings = bring.clone();
        scope.spawn(move || {
            for Asked { node, job, lease, offset, len } in all {
                let bytes = caught("a read", || {
                    let task = job.and_then(|job| jobs.get(job));
                    let task = task.ok_or("nobody waits for that job")?;
                    let end = offset.checked_add(len).ok_or("there are no such bytes")?;
                    task.bytes(offset..end)
                });
                let bytes = bytes.map(ByteBuf::from);
                brings.bring(Brought::Read(node, Message::Fetched { lease, offset, bytes }));
            }
        });
        Self { asked, bring, out: BTreeMap::new() }
    }

    /// Reads them, or answers that this is too much: who asks waits for an answer.
    pub(super) fn ask(&mut self, asked: Asked) {
        let out = self.out.entry(asked.node).or_default();
        let refusal = if asked.len > CHUNK_BYTES {
            let len = asked.len;
            Some(format!("{len} bytes at a time are more than {CHUNK_BYTES}; this is a bug"))
        } else if *out >= ASKED_MAX {
            Some(format!(
                "the manager has {ASKED_MAX} requests of this node to answer; see what its input's disk does"
            ))
        } else {
            None
        };
        *out += 1;
        let Some(why) = refusal else {
            // Its thread ends after this.
            let _ = self.asked.send(asked);
            return;
        };
        let Asked { node, lease, offset, .. } = asked;
        let message = Message::Fetched { lease, offset, bytes: Err(why) };
        self.bring.leave(Brought::Read(node, message));
    }

    /// It is answered.
    pub(super) fn answered(&mut self, node: NodeId) {
        if let Some(out) = self.out.get_mut(&node) {
            *out = out.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::bringing;
    use super::*;

    #[test]
    fn all_that_is_asked_for_is_answered() {
        let (bring, brought) = bringing();
        std::thread::scope(|scope| {
            let mut shipper = Shipper::new(Jobs::new(&[]), bring, scope);
            let lease = LeaseId(1);
            let mut ask = |node, offset, len| {
                shipper.ask(Asked { node: NodeId(node), job: Some(JobId(0)), lease, offset, len });
            };
            // One too long, then as many as may be, and more; those of another are no more for that.
            ask(1, 0, CHUNK_BYTES + 1);
            (1..2 * ASKED_MAX as u64).for_each(|offset| ask(1, offset, 1));
            ask(2, 0, 1);
            // Its thread ends when it has answered.
            drop(shipper);
            let answers = brought.iter().map(|brought| match brought {
                Brought::Read(node, Message::Fetched { offset, bytes, .. }) => {
                    (node.0, offset, bytes.unwrap_err())
                }
                _ => panic!("it is no answer"),
            });
            let mut answers: Vec<_> = answers.collect();
            assert_eq!(answers.len(), 2 * ASKED_MAX + 1);
            answers.sort_unstable();
            let (long, most) = (answers.remove(0), answers.split_off(ASKED_MAX - 1));
            assert!(long.2.contains("are more than 262144"), "{long:?}");
            assert!(answers.iter().all(|answer| answer.2.contains("nobody waits")), "{answers:?}");
            let [refused @ .., other] = &most[..] else { panic!("{most:?}") };
            assert_eq!(refused.len(), ASKED_MAX);
            assert!(refused.iter().all(|answer| answer.2.contains("requests of this node")));
            assert!(other.0 == 2 && other.2.contains("nobody waits"), "{other:?}");
        });
    }
}
