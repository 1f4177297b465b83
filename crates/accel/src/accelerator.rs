//! One accelerator as an object that can be stepped, and runs over many.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::{cell::RefCell, fmt};

use crate::cx::{Core, Cx};
use crate::engine::memory::{MemoryEngine, MemoryPath};
use crate::engine::{self, EngineChoice, EngineError, Faults, Wait};
use crate::machine::{Machine, Member, Post, Sleep, lock};
use crate::sched::{Leaves, Scheduler, SpawnError};
use crate::store::LocalStore;
use crate::topology::{self, Topology};
use crate::transfers::Transfers;

/// How accelerators are set up. Change single fields of the default.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of accelerators: OS threads, one per core. Default: cores in the affinity mask.
    pub accelerators: usize,
    /// Threads of the program per accelerator. Default 16.
    pub threads: usize,
    /// Limit of threads per accelerator, spawned ones included; default 16,
    /// and never less than `threads`.
    pub threads_max: usize,
    /// Local store per accelerator in bytes. Default 256 KiB, the Cell's.
    pub local_store_bytes: usize,
    /// Transfers in flight per accelerator, 1 to 4095; one more waits. Default 16, the MFC's.
    pub depth: usize,
    /// Which engine moves file data.
    pub engine: EngineChoice,
    /// How memory transfers are carried out.
    pub memory: MemoryPath,
    /// Regions up to this many bytes are near: default, the second-level cache.
    pub near_bytes: u64,
    /// Pin each accelerator to a core of the affinity mask that no other run of
    /// this process has, from the last on; none where there are too few. Default on.
    pub pin: bool,
    /// Entries of each mailbox. Default 4, as the SPU's inbound mailbox.
    pub mailbox_entries: usize,
    /// Faults to inject. For tests.
    pub faults: Option<Faults>,
}

impl Default for Config {
    fn default() -> Self {
        let topology = topology();
        Self {
            accelerators: topology.cores_allowed.len().max(1),
            threads: 16,
            threads_max: 16,
            local_store_bytes: 256 * 1024,
            depth: 16,
            engine: EngineChoice::Auto,
            memory: MemoryPath::Auto,
            near_bytes: topology.l2_bytes.unwrap_or(1 << 20) as u64,
            pin: true,
            mailbox_entries: 4,
            faults: None,
        }
    }
}

fn topology() -> &'static Topology {
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    TOPOLOGY.get_or_init(Topology::read)
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine asked for does not work here.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A local store could not be mapped.
    #[error(
        "cannot map a local store of {len_bytes} bytes: {source}; use a smaller one or fewer accelerators"
    )]
    LocalStore {
        /// Its size.
        len_bytes: usize,
        /// What the kernel answered.
        source: io::Error,
    },
    /// An OS thread could not be started.
    #[error(
        "cannot start an OS thread for accelerator {accelerator}: {source}; use fewer accelerators"
    )]
    OsThread {
        /// Which one.
        accelerator: usize,
        /// What the kernel answered.
        source: io::Error,
    },
    /// More threads than the limit.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Every thread waits for another. Seen where all wait for what is this
    /// run's own: a thread whose waker somebody else holds (a foreign
    /// combinator or channel) may be woken from outside, so its run waits on.
    #[error("deadlock: every thread waits and nothing is left to wake one: {0}")]
    Deadlock(Waits),
    /// Waiting for the engine failed.
    #[error("the engine failed while waiting for transfers: {0}")]
    Wait(#[source] io::Error),
    /// Another accelerator failed, and this one was called off.
    #[error("called off because another accelerator failed")]
    CalledOff,
}

/// Who waits for what, in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Which accelerator saw it.
    pub accelerator: usize,
    /// Its blocked threads and what each waits for.
    pub threads: Vec<(usize, &'static str)>,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on accelerator {}", self.accelerator)?;
        const SHOWN: usize = 4;
        for (number, (thread, what)) in self.threads.iter().take(SHOWN).enumerate() {
            write!(f, "{} thread {thread} waits for {what}", if number == 0 { "" } else { "," })?;
        }
        match self.threads.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What a step of an accelerator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A thread had its turn.
    Ran,
    /// All threads wait for transfers, mail or wakers.
    Idle,
    /// No thread is left, nor any transfer that was dropped.
    Ended,
}

/// One accelerator: a local store, transfers and cooperative threads, driven
/// by whoever steps it.
pub struct Accelerator<'env> {
    core: Rc<Core<'env>>,
    turns_left: usize,
}

/// With the poll of its kick, this many fill the largest ring of io_uring
/// that is asked for.
const DEPTH_MAX: usize = 4095;

/// Turns between two looks at mail and wakers, at most.
const TURNS_MAX: usize = 256;

impl<'env> Accelerator<'env> {
    /// An accelerator of its own, outside any run.
    ///
    /// # Errors
    /// A local store that cannot be mapped, or an engine that does not work here.
    pub fn new(config: &Config) -> Result<Self, RunError> {
        Self::of_machine(config, &Arc::new(Machine::new(1, false, config.mailbox_entries)), 0)
    }

    fn of_machine(
        config: &Config,
        machine: &Arc<Machine>,
        number: usize,
    ) -> Result<Self, RunError> {
        let len_bytes = config.local_store_bytes;
        let store = LocalStore::new(len_bytes)
            .map_err(|source| RunError::LocalStore { len_bytes, source })?;
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let engine = engine::open(config.engine, depth, store.arena(), config.faults)?;
        let post: Arc<Post> = machine.posts[number].clone();
        post.set_kicker(engine.kicker());
        let sched = Scheduler::new(config.threads_max.max(config.threads), post);
        let memory =
            MemoryEngine::new(depth, config.memory, config.near_bytes, store.arena().clone());
        let transfers = Transfers::new(engine, depth, memory);
        let core = Core::new(number, sched, transfers, store, machine.clone());
        Ok(Self { core: Rc::new(core), turns_left: 0 })
    }

    /// The handle programs get.
    #[must_use]
    pub fn cx(&self) -> Cx<'env> {
        Cx { core: self.core.clone() }
    }

    /// Does at most one turn, without blocking.
    ///
    /// # Errors
    /// The engine failed.
    pub fn step(&mut self) -> Result<Step, RunError> {
        if self.turns_left == 0 || self.core.sched.runnable() == 0 {
            self.look_around(true)?;
        }
        if self.core.sched.runnable() > 0 {
            self.turns_left = self.turns_left.saturating_sub(1);
            self.core.sched.turns(1);
            return Ok(Step::Ran);
        }
        Ok(if self.is_at_end() { Step::Ended } else { Step::Idle })
    }

    /// Takes mail and wakes in, and with `poll` completions, between two rounds
    /// of the ring.
    fn look_around(&mut self, poll: bool) -> Result<(), RunError> {
        let core = &*self.core;
        if poll && core.transfers.file_pieces() > 0 {
            core.transfers.reap(Wait::Poll, &core.sched).map_err(RunError::Wait)?;
        } else {
            core.transfers.tell(&core.sched);
        }
        if core.post.has_news() && core.post.take_news() {
            core.sched.answer_bells();
            for waiter in core.post_waiters.take() {
                core.sched.wake(waiter);
            }
        }
        let runnable = core.sched.runnable();
        // Threads that do I/O want to hear of it after each round.
        self.turns_left =
            if core.transfers.file_pieces() > 0 { runnable.min(TURNS_MAX) } else { TURNS_MAX };
        Ok(())
    }

    /// Runs until no thread is left, nor any transfer that was dropped.
    ///
    /// # Errors
    /// A deadlock, a failed engine, or the failure of another accelerator of the run.
    pub fn run_to_end(&mut self) -> Result<(), RunError> {
        self.core.machine.forget_deadlock_of_one();
        loop {
            // With nobody to run, `wait` reaps.
            self.look_around(self.core.sched.runnable() > 0)?;
            self.core.sched.turns(self.turns_left);
            self.turns_left = 0;
            if self.core.machine.is_over() {
                return Err(RunError::CalledOff);
            }
            if self.core.sched.runnable() == 0 {
                if self.is_at_end() {
                    return Ok(());
                }
                self.wait()?;
            }
        }
    }

    /// No thread is left, and no transfer that was dropped: those go on.
    fn is_at_end(&self) -> bool {
        self.core.sched.live() == 0 && self.core.transfers.file_pieces() == 0
    }

    /// Blocks until a transfer, mail or a waker may have woken a thread.
    fn wait(&mut self) -> Result<(), RunError> {
        let core = &*self.core;
        core.transfers.tell(&core.sched);
        if core.sched.runnable() > 0 || !core.post.fall_asleep() {
            return Ok(());
        }
        let waited = if core.transfers.file_pieces() > 0 {
            core.transfers.reap(Wait::Block, &core.sched).map_err(RunError::Wait)
        } else {
            self.wait_for_others()
        };
        core.post.wake_up();
        waited
    }

    fn wait_for_others(&self) -> Result<(), RunError> {
        let core = &*self.core;
        let outside = core.sched.outside_wakers();
        let mut sleep = core.machine.lie_down(outside);
        let mut reaped = Ok(());
        if sleep == Sleep::Allowed {
            reaped = core.transfers.reap(Wait::Block, &core.sched).map_err(RunError::Wait);
        }
        let after = core.machine.woke_up(outside);
        if after == Sleep::Deadlock {
            sleep = after;
        }
        if sleep == Sleep::Deadlock {
            let threads =
                core.sched.blocked().into_iter().map(|(id, what)| (id as usize, what)).collect();
            return Err(RunError::Deadlock(Waits { accelerator: core.number, threads }));
        }
        reaped
    }
}

impl Drop for Accelerator<'_> {
    fn drop(&mut self) {
        // First the threads, whose transfers become detached, then the
        // device; only then may buffers and the store go.
        self.core.sched.close();
        self.core.transfers.stop();
    }
}

/// Which of a run's threads this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Accelerator, from 0.
    pub accelerator: usize,
    /// Thread on its accelerator, from 0.
    pub thread: usize,
    /// Number of accelerators.
    pub accelerators: usize,
    /// Threads per accelerator.
    pub threads: usize,
}

impl Place {
    /// Number of this thread over all accelerators.
    #[must_use]
    pub fn index(&self) -> usize {
        self.accelerator * self.threads + self.thread
    }

    /// Number of threads over all accelerators.
    #[must_use]
    pub fn count(&self) -> usize {
        self.accelerators * self.threads
    }
}

/// Runs `config.threads` threads of `program` on each of `config.accelerators`
/// accelerators and blocks until all have ended: the one call of libspe2mt.
/// Returns their results by accelerator, then thread.
///
/// # Errors
/// See [`RunError`]. A panic of a thread is passed on.
pub fn run<'env, T, F, P>(config: &Config, program: P) -> Result<Vec<T>, RunError>
where
    T: Send + 'env,
    F: Future<Output = T> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
{
    launch(config, &program, None::<fn(&Host<'_>)>).map(|(results, _)| results)
}

/// As [`run`], with `host` running beside the accelerators on the caller's
/// thread, to talk to them by mailbox and signal.
///
/// # Errors
/// See [`RunError`].
pub fn run_with_host<'env, T, F, P, R, H>(
    config: &Config,
    program: P,
    host: H,
) -> Result<(Vec<T>, R), RunError>
where
    T: Send + 'env,
    F: Future<Output = T> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
    H: FnOnce(&Host<'_>) -> R,
{
    launch(config, &program, Some(host))
        .map(|(results, answer)| (results, answer.expect("a host that was given ran")))
}

fn launch<'env, T, F, P, R, H>(
    config: &Config,
    program: &P,
    host: Option<H>,
) -> Result<(Vec<T>, Option<R>), RunError>
where
    T: Send + 'env,
    F: Future<Output = T> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
    H: FnOnce(&Host<'_>) -> R,
{
    let count = config.accelerators.max(1);
    let machine = Arc::new(Machine::new(count, host.is_some(), config.mailbox_entries));
    // Read now: the mask may have been narrowed since the topology was read.
    let cores = topology::affinity_mask().unwrap_or_default();
    let pinned = Pinned::of(if config.pin { count } else { 0 });
    let pin = config.pin && pinned.before + count <= cores.len();
    std::thread::scope(|scope| {
        let mut os_threads = Vec::with_capacity(count);
        let mut failed_start = None;
        for number in 0..count {
            // From the last core on: the first one does the system's housekeeping.
            let core = cores.iter().rev().nth(pinned.before + number).copied().filter(|_| pin);
            let who = Member::Accelerator(number);
            let leaver = Leaver { machine: machine.clone(), who, fine: false };
            let body = move || run_one(config, program, leaver, number, count, core);
            let builder = std::thread::Builder::new().name(format!("accel-{number}"));
            match builder.spawn_scoped(scope, body) {
                Ok(handle) => os_threads.push(handle),
                Err(source) => {
                    machine.call_off();
                    failed_start = Some(RunError::OsThread { accelerator: number, source });
                    break;
                }
            }
        }
        let answer = host.map(|host| {
            let _leaver = Leaver { machine: machine.clone(), who: Member::Host, fine: true };
            host(&Host { machine: &machine, one_thread: PhantomData })
        });
        let ends: Vec<_> =
            os_threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        match failed_start {
            Some(error) => Err(error),
            None => gather(ends).map(|results| (results, answer)),
        }
    })
}

/// Accelerators of this process that want a core, so that runs side by side
/// take different ones, and none when there are not enough.
static CORES_WANTED: AtomicUsize = AtomicUsize::new(0);

/// A run's share of [`CORES_WANTED`].
struct Pinned {
    before: usize,
    count: usize,
}

impl Pinned {
    fn of(count: usize) -> Self {
        Self { before: CORES_WANTED.fetch_add(count, Relaxed), count }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        CORES_WANTED.fetch_sub(self.count, Relaxed);
    }
}

/// Leaves the machine at the end of scope, and calls the run off on failure.
struct Leaver {
    machine: Arc<Machine>,
    who: Member,
    fine: bool,
}

impl Drop for Leaver {
    fn drop(&mut self) {
        if !self.fine || std::thread::panicking() {
            self.machine.call_off();
        }
        self.machine.leave(self.who);
    }
}

fn run_one<'env, T, F, P>(
    config: &Config,
    program: &P,
    mut leaver: Leaver,
    number: usize,
    count: usize,
    core: Option<usize>,
) -> Result<Vec<T>, RunError>
where
    T: Send + 'env,
    F: Future<Output = T> + 'env,
    P: Fn(Cx<'env>, Place) -> F + Sync,
{
    if let Some(core) = core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        // Not being pinned is slower, not wrong.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
    let machine = leaver.machine.clone();
    let mut accelerator = Accelerator::of_machine(config, &machine, number)?;
    let results: Rc<RefCell<Vec<Option<T>>>> = Rc::default();
    results.borrow_mut().resize_with(config.threads, || None);
    for thread in 0..config.threads {
        let place =
            Place { accelerator: number, thread, accelerators: count, threads: config.threads };
        let body = program(accelerator.cx(), place);
        let results = results.clone();
        let leave = move |result| results.borrow_mut()[thread] = Some(result);
        accelerator.core.sched.spawn(Box::new(Leaves::new(body, leave)))?;
    }
    accelerator.run_to_end()?;
    drop(accelerator);
    leaver.fine = true;
    let results = results.take();
    Ok(results.into_iter().map(|r| r.expect("every thread ran to its end")).collect())
}

type Joined<T> = std::thread::Result<Result<Vec<T>, RunError>>;

/// Puts the accelerators' results together; the first cause goes before its consequences.
fn gather<T>(ends: Vec<Joined<T>>) -> Result<Vec<T>, RunError> {
    let mut results = Vec::new();
    let mut failure = None;
    for end in ends {
        match end {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(Ok(more)) => results.extend(more),
            Ok(Err(RunError::CalledOff)) if failure.is_some() => {}
            Ok(Err(error)) => match failure {
                None | Some(RunError::CalledOff) => failure = Some(error),
                Some(_) => {}
            },
        }
    }
    failure.map_or(Ok(results), Err)
}

/// The host's side of a run's mailboxes and signals. It stays on its OS
/// thread: a deadlock is seen by counting who waits, and the host counts once.
pub struct Host<'m> {
    machine: &'m Machine,
    one_thread: PhantomData<Cell<()>>,
}

/// The run ended, failed or deadlocked before the accelerator answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "accelerator {accelerator} will not answer: the run ended, failed, or waits for the host itself"
)]
pub struct HostError {
    /// Which accelerator.
    pub accelerator: usize,
}

impl Host<'_> {
    /// Writes a word into an accelerator's inbound mailbox; waits while it is full.
    ///
    /// # Errors
    /// The run is over.
    pub fn write_mailbox(&self, accelerator: usize, word: u32) -> Result<(), HostError> {
        let post = self.machine.posts.get(accelerator).ok_or(HostError { accelerator })?;
        let room = self.machine.mailbox_entries;
        let written = self.machine.host_wait(|| {
            let mut inbound = lock(&post.inbound);
            (inbound.len() < room).then(|| inbound.push_back(word))
        });
        post.notify();
        written.ok_or(HostError { accelerator })
    }

    /// Reads a word from an accelerator's outbound mailbox; waits while it is empty.
    ///
    /// # Errors
    /// The run is over, and the mailbox empty.
    pub fn read_mailbox(&self, accelerator: usize) -> Result<u32, HostError> {
        let post = self.machine.posts.get(accelerator).ok_or(HostError { accelerator })?;
        let word = self.machine.host_wait(|| lock(&post.outbound).pop_front());
        post.notify();
        word.ok_or(HostError { accelerator })
    }

    /// ORs `bits` into an accelerator's signals.
    pub fn signal(&self, accelerator: usize, bits: u32) {
        if let Some(post) = self.machine.posts.get(accelerator) {
            post.signals.fetch_or(bits, std::sync::atomic::Ordering::SeqCst);
            post.notify();
        }
    }
}
