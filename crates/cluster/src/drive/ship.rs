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
    /// Each reads for itself where it can, unless being sent them proves faster.
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
        scope.spawn(move || {
            for Asked { node, job, lease, offset, len } in all {
                let bytes = caught("a read", || {
                    let task = job.and_then(|job| jobs.get(job));
                    let task = task.ok_or("nobody waits for that job")?;
                    let end = offset.checked_add(len).ok_or("there are no such bytes")?;
                    task.bytes(offset..end)
                });
                let bytes = bytes.map(ByteBuf::from);
                bring.bring(Brought::Read(node, Message::Fetched { lease, offset, bytes }));
            }
        });
        Self { asked, out: BTreeMap::new() }
    }

    /// Reads them, unless that is too much.
    pub(super) fn ask(&mut self, asked: Asked) {
        let out = self.out.entry(asked.node).or_default();
        // None of Cellway's does that.
        if asked.len > CHUNK_BYTES || *out >= ASKED_MAX {
            return;
        }
        *out += 1;
        // Its thread ends after this.
        let _ = self.asked.send(asked);
    }

    /// It is answered.
    pub(super) fn answered(&mut self, node: NodeId) {
        if let Some(out) = self.out.get_mut(&node) {
            *out = out.saturating_sub(1);
        }
    }
}
