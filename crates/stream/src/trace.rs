//! What ran when, as Chrome trace events, which Perfetto and chrome://tracing
//! draw: a process per accelerator, in it a row per thread and one of what its
//! engine has in flight.
//!
//! Threads collect events in a buffer of fixed size each and write them out
//! when it is full, so a trace takes memory that does not grow with the run.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use storage::{OutputError, SequentialWriter};

use crate::gate::lock;
use crate::pipeline::Stand;
use crate::stats::Step;

/// Events a thread collects before they are written.
const EVENTS_MAX: usize = 128;

/// Bytes of an event as text, at most; more would only make the buffer grow.
const EVENT_BYTES: usize = 192;

/// Most memory that tracing takes for each thread, in bytes.
pub(crate) const THREAD_BYTES: u64 = (EVENTS_MAX * (EVENT_BYTES + size_of::<Event>())) as u64;

/// Where a run's events go.
pub struct Trace {
    start: Instant,
    out: Mutex<Out>,
}

struct Out {
    /// `None` once all is written.
    writer: Option<SequentialWriter>,
    /// The first failure to write; nothing is written after it.
    failed: Option<OutputError>,
    is_first: bool,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("start", &self.start).finish_non_exhaustive()
    }
}

/// One event of the format: <https://perfetto.dev/docs/getting-started/other-formats>.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    /// Microseconds since the start.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: Args<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name { name: &'a str },
    Unit { unit: u64, bytes: usize },
    InFlight { transfers: u64 },
}

/// What happened, before it is written.
#[derive(Clone, Copy)]
struct Event {
    from: Instant,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Step { step: Step, took: Duration, unit: u64, bytes: usize },
    InFlight(u64),
}

impl Trace {
    /// A trace that starts now and goes to `writer`.
    #[must_use]
    pub fn new(writer: SequentialWriter) -> Self {
        let out = Out { writer: Some(writer), failed: None, is_first: true };
        Self { start: Instant::now(), out: Mutex::new(out) }
    }

    /// Ends the list of events, and lets its file go: who reads a pipe sees its end.
    ///
    /// # Errors
    /// The first event that could not be written.
    pub fn finish(&self) -> Result<(), OutputError> {
        let mut out = lock(&self.out);
        let writer = out.writer.take();
        match (out.failed.take(), writer) {
            (Some(error), _) => Err(error),
            (None, Some(mut writer)) => {
                let end = if out.is_first { "[]\n" } else { "\n]\n" };
                writer.write_all(end.as_bytes())
            }
            (None, None) => Ok(()),
        }
    }

    fn write<'a>(&self, lines: impl Iterator<Item = Line<'a>>) {
        // Put into words before the others have to wait.
        let mut text = Vec::with_capacity(EVENTS_MAX * EVENT_BYTES);
        for line in lines {
            text.extend_from_slice(b",\n");
            if let Err(error) = serde_json::to_writer(&mut text, &line) {
                debug_assert!(false, "numbers and names are always written: {error}");
            }
        }
        let Some(comma) = text.first_mut() else { return };
        let mut out = lock(&self.out);
        if std::mem::take(&mut out.is_first) {
            *comma = b'[';
        }
        if out.failed.is_none()
            && let Some(writer) = &mut out.writer
        {
            out.failed = writer.write_all(&text).err();
        }
    }
}

/// What the threads of one accelerator have in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlight(AtomicU64);

/// The events of one thread. Writes what is left when it is dropped.
pub(crate) struct Log<'t> {
    /// `None`: nothing is traced.
    trace: Option<&'t Trace>,
    in_flight: &'t InFlight,
    engine: &'static str,
    stand: Stand,
    events: Vec<Event>,
}

impl<'t> Log<'t> {
    pub(crate) fn new(
        trace: Option<&'t Trace>,
        in_flight: &'t InFlight,
        engine: &'static str,
        stand: Stand,
    ) -> Self {
        let room = if trace.is_some() { EVENTS_MAX } else { 0 };
        let log = Self { trace, in_flight, engine, stand, events: Vec::with_capacity(room) };
        log.names();
        log
    }

    /// Names the rows.
    fn names(&self) {
        let Some(trace) = self.trace else { return };
        let Stand { stage, stages, accelerator, thread } = self.stand;
        let of_chain = match stages {
            1 => String::new(),
            _ => format!(", stage {} of {stages}", stage + 1),
        };
        let (pid, tid) = (accelerator, thread as usize);
        let accelerator = format!("accelerator {accelerator}{of_chain}");
        let thread = format!("thread {thread}");
        let named = |name, of| Line {
            name,
            ph: "M",
            pid,
            tid,
            ts: 0.0,
            dur: None,
            args: Args::Name { name: of },
        };
        trace.write(
            [named("process_name", &accelerator), named("thread_name", &thread)].into_iter(),
        );
    }

    /// A transfer starts: from now to its [`Log::ends`] it is in flight.
    pub(crate) fn starts(&mut self) {
        if self.trace.is_some() {
            let transfers = self.in_flight.0.fetch_add(1, Ordering::Relaxed) + 1;
            self.add(Event { from: Instant::now(), what: What::InFlight(transfers) });
        }
    }

    /// A transfer has ended.
    pub(crate) fn ends(&mut self) {
        if self.trace.is_some() {
            let transfers = self.in_flight.0.fetch_sub(1, Ordering::Relaxed) - 1;
            self.add(Event { from: Instant::now(), what: What::InFlight(transfers) });
        }
    }

    /// A step on a unit took from `from` to `until`.
    pub(crate) fn step(
        &mut self,
        step: Step,
        (from, until): (Instant, Instant),
        (unit, bytes): (u64, usize),
    ) {
        if self.trace.is_some() {
            self.add(Event { from, what: What::Step { step, took: until - from, unit, bytes } });
        }
    }

    fn add(&mut self, event: Event) {
        self.events.push(event);
        if self.events.len() == EVENTS_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(trace) = self.trace else { return };
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let (pid, tid) = (self.stand.accelerator, self.stand.thread as usize);
        trace.write(self.events.drain(..).map(|Event { from, what }| {
            let ts = micros(from.saturating_duration_since(trace.start));
            match what {
                What::Step { step, took, unit, bytes } => {
                    let (dur, args) = (Some(micros(took)), Args::Unit { unit, bytes });
                    Line { name: step.name(), ph: "X", pid, tid, ts, dur, args }
                }
                What::InFlight(transfers) => {
                    let args = Args::InFlight { transfers };
                    Line { name: self.engine, ph: "C", pid, tid, ts, dur: None, args }
                }
            }
        }));
    }
}

impl Drop for Log<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests;
