//! Units as bytes, at a node: which leases it is sent, and what is there of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use storage::{Input, Received};

use super::MANAGER;
use super::ship::{CHUNK_BYTES, Ship, WINDOW};
use crate::task::{Description, Task, Units};
use crate::wire::Message;
use crate::{JobId, Lease, LeaseId, NodeId};

/// So many leases are read before one is sent, and the next is read, to see which is faster: the
/// first are short.
const READ_FIRST: u32 = 3;

/// The other way is taken if it is so much faster.
const GAIN: f64 = 1.05;

/// What a node of a job has to do with its bytes.
struct Job {
    description: Description,
    /// Of many inputs.
    units: Option<Units>,
    received: Received,
    /// Whether it can read them itself.
    reads: bool,
    ways: Ways,
}

impl Job {
    /// The bytes of a lease, and those around it.
    fn bytes(&self, lease: &Lease) -> Option<Range<u64>> {
        let shipped = self.description.shipped.as_ref().ok()?;
        Some(match &self.units {
            Some(units) => {
                units.bytes(lease.first..lease.first.saturating_add(lease.units), shipped.around)
            }
            None => shipped.bytes(&self.description, lease),
        })
    }
}

/// How long a byte took each way, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    leases_read: u32,
    read: Option<f64>,
    sent: Option<f64>,
    /// One was sent, or is.
    tried: bool,
    sends: bool,
}

impl Ways {
    /// Whether the next lease is sent.
    fn choose(&mut self) -> bool {
        let (Some(read), Some(sent)) = (self.read, self.sent) else {
            let tries = self.leases_read >= READ_FIRST && !self.tried;
            self.tried |= tries;
            return tries;
        };
        self.sends = if self.sends { sent <= GAIN * read } else { GAIN * sent < read };
        self.sends
    }

    fn measured(&mut self, sent: bool, seconds_per_byte: f64) {
        if sent && self.sent.is_none() {
            // Those before it were shorter, of which a byte costs more.
            self.read = None;
        }
        let way = if sent { &mut self.sent } else { &mut self.read };
        *way = Some(way.map_or(seconds_per_byte, |before| (before + seconds_per_byte) / 2.0));
        self.leases_read += u32::from(!sent);
    }
}

/// A lease that is being sent, or was.
struct Sent {
    job: JobId,
    range: Range<u64>,
    /// From there on it was not asked for.
    next: u64,
    /// Bytes that are not there.
    missing: u64,
    /// When it was first asked for, and how long it took to be there.
    since: Option<Duration>,
    took: Duration,
}

/// What came of bytes that came.
pub(super) enum Came {
    /// More is to come, or nobody waits.
    Part,
    All(LeaseId),
    Failed(LeaseId, String),
}

/// Why a node has to read by itself.
pub(super) fn cannot_be_sent(Description { input, .. }: &Description, why: &str) -> String {
    format!("{input} cannot be sent: {why}; let this node open it, and take --ship locators")
}

/// Why, where that was asked for.
pub(super) const LOCATORS: &str = "--ship locators was asked for";

pub(super) struct Fetch {
    ship: Ship,
    jobs: BTreeMap<JobId, Job>,
    sent: BTreeMap<LeaseId, Sent>,
    /// Asked for and not answered.
    awaited: BTreeSet<(LeaseId, u64)>,
    /// Since when leases are computed, and when one was.
    computing: BTreeMap<LeaseId, (JobId, u64, Duration)>,
    computed: Duration,
}

impl Fetch {
    pub(super) fn new(own: NodeId, ship: Ship) -> Self {
        Self {
            // Where the bytes would come from.
            ship: if own == MANAGER { Ship::Locators } else { ship },
            jobs: BTreeMap::new(),
            sent: BTreeMap::new(),
            awaited: BTreeSet::new(),
            computing: BTreeMap::new(),
            computed: Duration::ZERO,
        }
    }

    /// Whether this node can come by the bytes of that job.
    pub(super) fn job(
        &mut self,
        job: JobId,
        description: &Description,
        task: &dyn Task,
    ) -> Result<(), String> {
        let (name, reads) = (&description.input, task.reads());
        let sends = match self.ship {
            Ship::Locators => Err(LOCATORS),
            Ship::Auto | Ship::Bytes => description.shipped.as_ref().map_err(String::as_str),
        };
        let shipped = match sends {
            Err(why) if self.ship == Ship::Bytes || !reads => {
                return Err(cannot_be_sent(description, why));
            }
            Err(_) => return Ok(()),
            Ok(shipped) => shipped,
        };
        let is_beside = description.host.is_some() && description.host == task.description().host;
        if self.ship == Ship::Auto && reads && is_beside {
            // What the manager would send is as near to this one.
            return Ok(());
        }
        let anew = || Err(format!("the manager's job is another than before; start {name} anew"));
        if let Some(known) = self.jobs.get(&job) {
            return if known.description == *description { Ok(()) } else { anew() };
        }
        let units = description.list.as_ref().map(|_| {
            let lens = shipped.lens.iter().copied();
            Units::new(lens, description.unit_bytes)
        });
        if units.as_ref().is_some_and(|units| units.count() != description.units()) {
            return Err(format!("{name}: its lengths make other units; this is a bug in Cellway"));
        }
        let received = shipped.receive(name).map_err(|error| error.to_string())?;
        let (description, ways) = (description.clone(), Ways::default());
        self.jobs.insert(job, Job { description, units, received, reads, ways });
        Ok(())
    }

    /// That job is not known any more.
    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// The bytes of a lease are to be there: whether they are to be sent.
    pub(super) fn begin(&mut self, lease: &Lease) -> bool {
        let Some(job) = self.jobs.get_mut(&lease.job) else { return false };
        let wanted = match self.ship {
            Ship::Locators => false,
            Ship::Bytes => true,
            Ship::Auto => !job.reads || job.ways.choose(),
        };
        // One of other units comes to nothing by itself.
        if !wanted || !lease.is_within(job.description.units()) {
            return false;
        }
        let Some(range) = job.bytes(lease) else { return false };
        job.received.need(range.clone());
        let (next, missing) = (range.start, range.end - range.start);
        let sent = Sent { job: lease.job, range, next, missing, since: None, took: Duration::ZERO };
        self.sent.insert(lease.id, sent);
        missing > 0
    }

    /// Asks for what may be on its way, the oldest lease first.
    pub(super) fn ask(&mut self, now: Duration, out: &mut Vec<(NodeId, Message)>) {
        for (id, sent) in &mut self.sent {
            while sent.next < sent.range.end && self.awaited.len() < WINDOW {
                let (job, lease, offset) = (sent.job, *id, sent.next);
                let len = CHUNK_BYTES.min(sent.range.end - offset);
                sent.since.get_or_insert(now);
                sent.next += len;
                self.awaited.insert((lease, offset));
                out.push((MANAGER, Message::Fetch { job, lease, offset, len }));
            }
        }
    }

    /// Bytes came, or the reason why not.
    pub(super) fn came(
        &mut self,
        now: Duration,
        (lease, offset): (LeaseId, u64),
        bytes: Result<Vec<u8>, String>,
    ) -> Came {
        if !self.awaited.remove(&(lease, offset)) {
            return Came::Part;
        }
        let Some(sent) = self.sent.get_mut(&lease) else { return Came::Part };
        let Some(job) = self.jobs.get(&sent.job) else { return Came::Part };
        let wanted = CHUNK_BYTES.min(sent.range.end - offset);
        let put = bytes.and_then(|bytes| match bytes.len() as u64 == wanted {
            true => job.received.put(offset, &bytes).map_err(|error| error.to_string()),
            false => Err("other bytes came than were asked for; this is a bug".to_owned()),
        });
        if let Err(what) = put {
            return Came::Failed(lease, what);
        }
        sent.missing -= wanted;
        if sent.missing > 0 {
            return Came::Part;
        }
        sent.took = now.saturating_sub(sent.since.unwrap_or(now));
        Came::All(lease)
    }

    /// Whether a lease was sent.
    pub(super) fn was_sent(&self, lease: LeaseId) -> bool {
        self.sent.contains_key(&lease)
    }

    /// What was sent of a job.
    pub(super) fn input(&self, job: JobId) -> Result<Input, String> {
        let job = self.jobs.get(&job).ok_or("nothing of it was sent; this is a bug")?;
        job.received.input().map_err(|error| error.to_string())
    }

    /// A lease is computed from now on.
    pub(super) fn computes(&mut self, now: Duration, lease: &Lease) {
        if let Some(job) = self.jobs.get(&lease.job).filter(|_| self.ship == Ship::Auto) {
            // Of many inputs units may have a few bytes only.
            let bytes = job.bytes(lease).map_or(0, |range| range.end - range.start);
            self.computing.insert(lease.id, (lease.job, bytes, now));
        }
    }

    /// Fewer of its units are.
    pub(super) fn shortened(&mut self, lease: &Lease) {
        if let Some((_, _, since)) = self.computing.get(&lease.id).copied() {
            self.computes(since, lease);
        }
    }

    /// It was.
    pub(super) fn computed(&mut self, now: Duration, lease: LeaseId) {
        let Some((job, bytes, since)) = self.computing.remove(&lease) else { return };
        let since = since.max(std::mem::replace(&mut self.computed, now));
        let Some(job) = self.jobs.get_mut(&job) else { return };
        let sent = self.sent.get(&lease);
        // While one is computed the next is sent: the longer of both counts.
        let took = now.saturating_sub(since).max(sent.map_or(Duration::ZERO, |sent| sent.took));
        job.ways.measured(sent.is_some(), took.as_secs_f64() / bytes.max(1) as f64);
    }

    /// Nobody wants a lease's bytes any more.
    pub(super) fn end(&mut self, lease: LeaseId) {
        self.computing.remove(&lease);
        let Some(sent) = self.sent.remove(&lease) else { return };
        if let Some(job) = self.jobs.get_mut(&sent.job) {
            // What cannot be given back stays where it is.
            let _ = job.received.forget(&sent.range);
        }
    }

    /// What was asked for is of a membership that is over, and may not be answered.
    pub(super) fn anew(&mut self) {
        self.awaited.clear();
    }
}

#[cfg(test)]
mod tests {
    use kernels::Crc32c;
    use stream::{Options, Progress};

    use super::super::testing::nine_units;
    use super::*;
    use crate::task::{List, RemoteTask, Shipped};

    const UNIT: u64 = 3 * CHUNK_BYTES + 5;

    /// A node of a job of four units, which is sent two leases of one.
    fn fetching(test: impl FnOnce(&mut Fetch, [Lease; 2])) {
        let (kernel, progress) = (Crc32c::new(), Progress::default());
        let task = RemoteTask::new(&kernel, "it", &Options::default(), &progress).unwrap();
        let (len_bytes, head, around) = (4 * UNIT, Vec::new(), (0, 0));
        let description = Description {
            body: (0, len_bytes),
            unit_bytes: UNIT,
            shipped: Ok(Shipped { len_bytes, lens: [].into(), head, around }),
            ..task.description().clone()
        };
        let mut fetch = Fetch::new(NodeId(1), Ship::Auto);
        fetch.job(JobId(0), &description, &task).unwrap();
        // It is told so again when it has joined anew.
        fetch.job(JobId(0), &description, &task).unwrap();
        let other = Description { unit_bytes: 1, ..description };
        assert!(fetch.job(JobId(0), &other, &task).is_err());
        let lease = |id| Lease { id: LeaseId(id), job: JobId(0), first: id, units: 1 };
        test(&mut fetch, [lease(1), lease(3)]);
    }

    /// What it asks for.
    fn asked(fetch: &mut Fetch) -> Vec<(LeaseId, u64, u64)> {
        let mut out = Vec::new();
        fetch.ask(Duration::ZERO, &mut out);
        let asked = out.into_iter().map(|(_, message)| match message {
            Message::Fetch { job, lease, offset, len } => {
                assert_eq!(job, JobId(0));
                (lease, offset, len)
            }
            other => panic!("{other:?}"),
        });
        asked.collect()
    }

    fn bytes(offset: u64, len: u64) -> Vec<u8> {
        (offset..offset + len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn all_of_a_lease_is_asked_for_and_put_where_it_belongs() {
        fetching(|fetch, leases| {
            assert!(leases.iter().all(|lease| fetch.begin(lease)));
            let (mut to_come, mut came) = (asked(fetch), Vec::new());
            // Four of each, as many as may be asked for.
            assert_eq!(to_come.len(), WINDOW);
            assert!(asked(fetch).is_empty());
            while let Some((lease, offset, len)) = to_come.pop() {
                let found = fetch.came(Duration::ZERO, (lease, offset), Ok(bytes(offset, len)));
                if let Came::All(lease) = found {
                    came.push(lease);
                }
                // It comes twice.
                let again = fetch.came(Duration::ZERO, (lease, offset), Ok(vec![0; len as usize]));
                assert!(matches!(again, Came::Part));
            }
            assert_eq!(came, [LeaseId(3), LeaseId(1)]);
            let (input, mut found) = (fetch.input(JobId(0)).unwrap(), vec![0; UNIT as usize]);
            for lease in leases {
                input.read_exact_at(&mut found, lease.first * UNIT).unwrap();
                assert!(found == bytes(lease.first * UNIT, UNIT));
                assert!(fetch.was_sent(lease.id));
                fetch.end(lease.id);
            }
            input.read_exact_at(&mut found, UNIT).unwrap();
            // But for the page that has another's bytes too, it is gone.
            assert!(found.iter().skip(4096).take(100_000).all(|byte| *byte == 0));
        });
    }

    #[test]
    fn a_lease_of_several_inputs_is_asked_for_as_one() {
        let (kernel, progress) = (Crc32c::new(), Progress::default());
        let task = RemoteTask::new(&kernel, "all", &Options::default(), &progress).unwrap();
        let lens = [UNIT + 5, 0, 7, 2 * UNIT, 9];
        let (len_bytes, head) = (lens.iter().sum(), Vec::new());
        let description = Description {
            body: (0, len_bytes),
            unit_bytes: UNIT,
            shipped: Ok(Shipped { len_bytes, lens: lens.into(), head, around: (3, 9) }),
            list: Some(List { inputs: 5, units: 6, digest: 0 }),
            ..task.description().clone()
        };
        let mut fetch = Fetch::new(NodeId(1), Ship::Bytes);
        let other = Description {
            list: Some(List { inputs: 5, units: 7, digest: 0 }),
            ..description.clone()
        };
        let why = fetch.job(JobId(0), &other, &task).unwrap_err();
        assert!(why.contains("its lengths make other units"), "{why}");
        fetch.job(JobId(0), &description, &task).unwrap();
        // The end of the first input, the third, and a block of the fourth.
        let lease = Lease { id: LeaseId(1), job: JobId(0), first: 1, units: 3 };
        assert!(fetch.begin(&lease));
        let (mut from, until) = (UNIT - 3, 2 * UNIT + 12 + 9);
        loop {
            let asked = asked(&mut fetch);
            let Some((id, offset, _)) = asked.first().copied() else { break };
            assert_eq!((id, offset), (lease.id, from));
            for (id, offset, len) in asked {
                let bytes = Ok(bytes(offset, len));
                let came = fetch.came(Duration::ZERO, (id, offset), bytes);
                from += len;
                assert_eq!(matches!(came, Came::All(_)), from == until);
            }
        }
        assert_eq!(from, until);
        let third = fetch.input(JobId(0)).unwrap().part("third", UNIT + 5..UNIT + 12);
        let mut found = [0; 7];
        third.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found[..], bytes(UNIT + 5, 7));
        // How long a byte takes is of those that units have.
        let long = fetch.jobs[&JobId(0)].bytes(&Lease { first: 4, units: 2, ..lease });
        assert_eq!(long, Some(2 * UNIT + 12 - 3..len_bytes));
    }

    #[test]
    fn what_is_not_awaited_changes_nothing() {
        fetching(|fetch, [first, second]| {
            assert!(fetch.begin(&first));
            let first_asked = asked(fetch);
            let wrong = fetch.came(Duration::ZERO, (first.id, UNIT), Ok(vec![1; 3]));
            assert!(matches!(wrong, Came::Failed(lease, _) if lease == first.id));
            fetch.end(first.id);
            for (lease, offset, len) in first_asked {
                let late = fetch.came(Duration::ZERO, (lease, offset), Ok(bytes(offset, len)));
                assert!(matches!(late, Came::Part));
            }
            assert!(fetch.begin(&second));
            assert_eq!(asked(fetch).len(), 4);
            // All was lost with the membership; the next has its own.
            fetch.end(second.id);
            fetch.anew();
            let next = Lease { id: LeaseId(9), ..second };
            assert!(fetch.begin(&next));
            assert_eq!(asked(fetch).len(), 4);
            let why = Err("gone".to_owned());
            let failed = fetch.came(Duration::ZERO, (next.id, 3 * UNIT), why);
            assert!(matches!(failed, Came::Failed(_, what) if what == "gone"));
            // None of the job's.
            assert!(!fetch.begin(&Lease { first: 4, ..next }));
            assert!(!fetch.begin(&Lease { job: JobId(7), ..next }));
        });
    }

    /// How many of 40 leases are sent where bytes take so long each way.
    fn sent(read: f64, sent: impl Fn(u32) -> f64) -> u32 {
        let (mut ways, mut count) = (Ways::default(), 0);
        for _ in 0..40 {
            let sends = ways.choose();
            count += u32::from(sends);
            ways.measured(sends, if sends { sent(count) } else { read });
        }
        count
    }

    #[test]
    fn the_faster_way_is_found_by_one_lease_that_is_sent() {
        assert_eq!(sent(1.0, |_| 2.0), 1);
        assert_eq!(sent(1.0, |_| 0.99), 1);
        assert_eq!(sent(1.0, |_| 0.5), 40 - READ_FIRST - 1);
    }

    #[test]
    fn short_leases_are_no_reason_to_send_long_ones() {
        let mut ways = Ways::default();
        for seconds in [8.0, 4.0, 2.0] {
            assert!(!ways.choose());
            ways.measured(false, seconds);
        }
        assert!(ways.choose());
        ways.measured(true, 1.0);
        assert!(!ways.choose());
        ways.measured(false, 1.0);
        assert!(!ways.choose());
    }

    /// Whether a node that reads its units is sent one after three that it read.
    fn is_sent_any(host: Option<String>) -> bool {
        let mut is_sent = false;
        nine_units(|task| {
            let description = Description { host, ..task.description().clone() };
            let mut fetch = Fetch::new(NodeId(1), Ship::Auto);
            fetch.job(JobId(0), &description, task).unwrap();
            is_sent = (0..5).any(|id| {
                let lease = Lease { id: LeaseId(id), job: JobId(0), first: id, units: 1 };
                fetch.computes(Duration::ZERO, &lease);
                fetch.computed(Duration::from_secs(1), lease.id);
                fetch.begin(&lease)
            });
        });
        is_sent
    }

    #[test]
    fn who_reads_on_the_machine_of_his_manager_is_not_sent_it() {
        assert!(!is_sent_any(crate::task::host()));
        assert!(is_sent_any(Some("another".to_owned())));
        assert!(is_sent_any(None));
    }

    #[test]
    fn sending_that_becomes_slow_is_left() {
        let count = sent(1.0, |count| if count < 10 { 0.5 } else { 8.0 });
        assert_eq!(count, 10);
    }
}
