//! Messages as bytes: postcard's format, one after the other, and a CRC-32C at the end.

use crc_fast::{CrcAlgorithm, Digest};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::task::Description;
use crate::transport::MESSAGE_BYTES_MAX;
use crate::{JobId, LeaseId, NodeId, ToManager, ToNode};

/// What one peer sends to another. A peer may be both, so it says which is meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a manager, with the saved result of a lease.
    ToManager(ToManager<ByteBuf>),
    /// To a node.
    ToNode(ToNode),
    /// To a node, before the first lease of a job: which of its tasks that is, and what it
    /// has to be.
    Job(JobId, u32, Box<Description>),
    /// To a node: what it put so far is to be brought to the disk.
    Settle(u64),
    /// It is, or why not.
    Settled(u64, Option<String>),
    /// To the manager of all, by a node that does not read for itself: for bytes of the input
    /// of a lease that it has.
    Fetch {
        /// The lease's job.
        job: JobId,
        /// Which lease.
        lease: LeaseId,
        /// Where they are: of many inputs, as if they lay one after the other.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// The answer to each.
    Fetched {
        /// Of that lease.
        lease: LeaseId,
        /// From there on.
        offset: u64,
        /// Or why there are none.
        bytes: Result<ByteBuf, String>,
    },
    /// To a node of another manager, by that of all: what it asked for cannot be read.
    Unread,
    /// By a manager of a group that leaves because it is unfit, to these nodes of it and to
    /// the manager of all, which they are to join.
    Orphans(Vec<NodeId>),
}

/// What came is no message: it was cut or changed on the way, or is another program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {len} bytes was cut or changed on its way")]
pub struct Garbled {
    /// Its length in bytes.
    pub len: usize,
}

const CRC_BYTES: usize = 4;

/// Messages to one peer that leave at the same time go together up to so many bytes.
const TOGETHER_BYTES_MAX: usize = 1 << 10;

/// The longest result: with what is around it, it fits a message.
pub(crate) const RESULT_BYTES_MAX: usize = MESSAGE_BYTES_MAX - TOGETHER_BYTES_MAX - AROUND_BYTES;

/// Why a result of so many bytes does not go to another peer, if it is too long.
pub(crate) fn too_long(result_bytes: usize) -> Option<String> {
    (result_bytes > RESULT_BYTES_MAX).then(|| {
        format!("a result of {result_bytes} bytes is longer than {RESULT_BYTES_MAX}; take a kernel with smaller ones")
    })
}
const AROUND_BYTES: usize = 64;

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut packet = Packet::default();
        packet.push(self);
        packet.into_bytes()
    }

    /// What [`Message::to_bytes`] made bytes of, or such ones together. Allocates no more
    /// than a few times as much.
    ///
    /// # Errors
    /// If they are not what was sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<Vec<Self>, Garbled> {
        let garbled = Garbled { len: bytes.len() };
        let (mut rest, sum) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(garbled)?;
        if crc(rest) != u32::from_le_bytes(*sum) {
            return Err(garbled);
        }
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let message;
            (message, rest) = postcard::take_from_bytes(rest).map_err(|_| garbled)?;
            messages.push(message);
        }
        Ok(messages)
    }
}

/// Messages that leave together.
#[derive(Debug, Default)]
pub(crate) struct Packet(Vec<u8>);

impl Packet {
    /// Whether another one should wait for the next.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() > TOGETHER_BYTES_MAX
    }

    pub(crate) fn push(&mut self, message: &Message) {
        // What is long is not moved while it grows, and what is short has room at once.
        let bytes = match message {
            Message::Fetched { bytes: Ok(bytes), .. } => bytes.len(),
            Message::ToManager(ToManager::Result { result, .. }) => result.len(),
            _ => 0,
        };
        self.0.reserve(bytes + AROUND_BYTES);
        self.0 = postcard::to_extend(message, std::mem::take(&mut self.0))
            .expect("a message has numbers, text and bytes, which all have a form");
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let crc = crc(&self.0);
        let mut bytes = self.0;
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

fn crc(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::task::Has;
    use crate::{Epoch, Failure, Hello, Lease, Refusal};

    fn messages() -> impl Strategy<Value = Message> {
        let epoch = || any::<u64>().prop_map(Epoch);
        let lease = || any::<u64>().prop_map(LeaseId);
        let bytes = prop::collection::vec(any::<u8>(), 0..300).prop_map(ByteBuf::from);
        let failure = (any::<Option<u64>>(), any::<Option<u64>>(), ".{0,40}");
        let failure = failure.prop_map(|(unit, offset, what)| Failure { unit, offset, what });
        let work = (lease(), any::<u64>(), any::<u64>(), any::<u64>());
        let work =
            work.prop_map(|(id, job, first, units)| Lease { id, job: JobId(job), first, units });
        let to_manager = prop_oneof![
            (".{0,20}", Description::any(), any::<bool>()).prop_map(|(build, of, reads)| {
                let tasks = vec![Has::of(&of, reads), Has::of(&of, !reads)];
                ToManager::Hello(Hello { build, tasks, ..Hello::default() })
            }),
            (epoch(), any::<u64>()).prop_map(|(epoch, in_all)| ToManager::Ask { epoch, in_all }),
            (epoch(), lease(), any::<u64>(), bytes).prop_map(|(epoch, lease, units, result)| {
                ToManager::Result { epoch, lease, units, result }
            }),
            (epoch(), lease(), any::<u64>(), any::<bool>()).prop_map(
                |(epoch, lease, units, is_shorter)| {
                    ToManager::Shortened { epoch, lease, units, is_shorter }
                }
            ),
            (epoch(), lease(), failure).prop_map(|(epoch, lease, failure)| ToManager::Failed {
                epoch,
                lease,
                failure
            }),
            epoch().prop_map(|epoch| ToManager::Leaving { epoch }),
        ];
        let to_node =
            prop_oneof![
                (epoch(), any::<Duration>())
                    .prop_map(|(epoch, heartbeat)| ToNode::Welcome { epoch, heartbeat }),
                (".{0,9}", ".{0,9}")
                    .prop_map(|(ours, theirs)| ToNode::Refused(Refusal::Build { ours, theirs })),
                (epoch(), work).prop_map(|(epoch, lease)| ToNode::Lease { epoch, lease }),
                (epoch(), lease(), any::<u64>())
                    .prop_map(|(epoch, lease, units)| ToNode::Shorten { epoch, lease, units }),
            ];
        let bytes = prop::collection::vec(any::<u8>(), 0..300).prop_map(ByteBuf::from);
        let bytes = prop_oneof![bytes.prop_map(Ok), ".{0,40}".prop_map(Err)];
        prop_oneof![
            to_manager.prop_map(Message::ToManager),
            to_node.prop_map(Message::ToNode),
            (any::<u64>(), any::<u32>(), Description::any())
                .prop_map(|(job, task, of)| Message::Job(JobId(job), task, Box::new(of))),
            any::<u64>().prop_map(Message::Settle),
            any::<(u64, Option<String>)>().prop_map(|(of, why)| Message::Settled(of, why)),
            (any::<u64>(), lease(), any::<u64>(), any::<u64>()).prop_map(
                |(job, lease, offset, len)| Message::Fetch { job: JobId(job), lease, offset, len }
            ),
            Just(Message::Unread),
            prop::collection::vec(any::<u32>().prop_map(NodeId), 0..9).prop_map(Message::Orphans),
            (lease(), any::<u64>(), bytes).prop_map(|(lease, offset, bytes)| Message::Fetched {
                lease,
                offset,
                bytes
            }),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were(sent in prop::collection::vec(messages(), 1..5)) {
            prop_assert_eq!(Message::from_bytes(&sent[0].to_bytes()), Ok(vec![sent[0].clone()]));
            let mut packet = Packet::default();
            sent.iter().for_each(|message| packet.push(message));
            prop_assert_eq!(Message::from_bytes(&packet.into_bytes()), Ok(sent));
        }

        #[test]
        fn what_was_cut_or_changed_is_found_out(
            message in messages(), at in any::<prop::sample::Index>(), bit in 0..8_u8, cut in any::<bool>(),
        ) {
            let mut bytes = message.to_bytes();
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1_u8 << bit }
            prop_assert_eq!(Message::from_bytes(&bytes), Err(Garbled { len: bytes.len() }));
        }

        #[test]
        fn any_bytes_are_no_message_or_one(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let crc = crc(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            for message in Message::from_bytes(&bytes).into_iter().flatten() {
                prop_assert_eq!(Message::from_bytes(&message.to_bytes()), Ok(vec![message]));
            }
        }
    }
}
