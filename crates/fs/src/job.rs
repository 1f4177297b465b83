//! `#job`: a window into what runs, as small files.
//!
//! ```text
//! ctl              start NAME [ARGUMENTS]: a registered program
//! programs         their names, a line each
//! 0/progress       state, bytes done and to do, seconds; JSON, as the next four
//! 0/stats          what each step allows by itself, and the slowest
//! 0/parameters     what the run was started with
//! 0/threads        what each thread did last
//! 0/trace          the last steps of all threads, as Chrome trace events
//! 0/ctl            pause, resume, cancel
//! ```
//!
//! Nothing is made up before somebody opens a file, so who only could look costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stream::{Progress, Step, Wish};

use crate::error::{FsError, Kind};
use crate::server::{Answer, FileServer, Node};
use crate::sync::lock;
use crate::synthetic::Synthetic;

/// Programs started by `ctl` that run at once, at most.
const STARTED_MAX: usize = 16;
/// Programs that have ended and still are seen.
const ENDED_MAX: usize = 64;

type Program = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// The runs of this process; clones are the same server.
#[derive(Clone)]
pub struct JobServer(Arc<Jobs>);

struct Jobs {
    tree: Synthetic,
    next: AtomicU64,
    programs: Mutex<BTreeMap<String, Program>>,
    started: AtomicUsize,
    /// The names of programs that have ended, the oldest first.
    ended: Mutex<VecDeque<String>>,
}

impl Default for JobServer {
    fn default() -> Self {
        Self::new()
    }
}

impl JobServer {
    /// A server without runs.
    #[must_use]
    pub fn new() -> Self {
        let server = Self(Arc::new(Jobs {
            tree: Synthetic::new(),
            next: AtomicU64::new(0),
            programs: Mutex::default(),
            started: AtomicUsize::new(0),
            ended: Mutex::default(),
        }));
        // The files hold no reference that would keep the server for ever.
        let jobs = Arc::downgrade(&server.0);
        server.0.tree.file("programs", move || {
            let Some(jobs) = jobs.upgrade() else { return String::new() };
            lock(&jobs.programs).keys().map(|name| format!("{name}\n")).collect()
        });
        let jobs = Arc::downgrade(&server.0);
        server.0.tree.command("ctl", move |line| match jobs.upgrade() {
            Some(jobs) => Self(jobs).obey(line),
            None => Err(FsError::new(Kind::Closed, "ctl")),
        });
        server
    }

    /// The same runs to look at: nobody steers or starts one by it.
    #[must_use]
    pub fn read_only(&self) -> Arc<dyn FileServer> {
        Arc::new(self.0.tree.read_only())
    }

    /// Registers a program that `start NAME ARGUMENTS` runs, with the rest of that line, on
    /// a thread of its own: mostly [`accel::run`] on one accelerator.
    pub fn register(
        &self,
        name: &str,
        program: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        lock(&self.0.programs).insert(name.to_owned(), Arc::new(program));
    }

    /// Shows a run while the result is kept. It was started with `parameters`; of its input `total_bytes`
    /// are to be done, if that is known. `at_cancel` ends what keeps it from looking whether it is cancelled.
    #[must_use]
    pub fn show(
        &self,
        progress: Arc<Progress>,
        total_bytes: Option<u64>,
        parameters: Value,
        at_cancel: impl Fn() + Send + Sync + 'static,
    ) -> Shown {
        let (directory, shown) = self.add(parameters);
        let state = shown.state.clone();
        let of = progress.clone();
        directory.file("progress", move || {
            let asked = match of.control().wish() {
                Wish::Run => "running",
                Wish::Pause => "paused",
                Wish::Cancel => "cancelled",
            };
            let mut value = lock(&state).told(asked);
            if let Value::Object(fields) = &mut value {
                fields.insert("done_bytes".into(), json!(of.done_bytes()));
                fields.insert("total_bytes".into(), json!(total_bytes));
            }
            line(&value)
        });
        let of = progress.clone();
        directory.file("stats", move || line(&stats(&of)));
        let of = progress.clone();
        directory.file("threads", move || line(&threads(&of)));
        let of = progress.clone();
        directory.file("trace", move || line(&trace(&of)));
        directory.command("ctl", move |line| {
            let control = progress.control();
            match line {
                "pause" => control.pause(),
                "resume" => control.resume(),
                "cancel" => {
                    control.cancel();
                    at_cancel();
                }
                _ => return Err(unknown(line, "pause, resume, cancel")),
            }
            Ok(())
        });
        shown
    }

    /// A directory for a run or a program.
    fn add(&self, parameters: Value) -> (Synthetic, Shown) {
        let name = self.0.next.fetch_add(1, Ordering::Relaxed).to_string();
        let directory = self.0.tree.directory(&name);
        directory.file("parameters", move || line(&parameters));
        let state = Arc::new(Mutex::new(State { since: Instant::now(), ended: None }));
        (directory, Shown { server: self.clone(), name, state })
    }

    fn obey(&self, line: &str) -> Result<(), FsError> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if verb != "start" {
            return Err(unknown(line, "start NAME [ARGUMENTS]"));
        }
        let (name, arguments) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        let program = lock(&self.0.programs).get(name).cloned();
        let Some(program) = program else {
            let what = format!("no program {name:?} is registered; `programs` lists them");
            return Err(FsError::because(Kind::NotFound, "ctl", what));
        };
        self.start(name, arguments.trim().to_owned(), program)
    }

    fn start(&self, name: &str, arguments: String, program: Program) -> Result<(), FsError> {
        let running = Running::enter(&self.0)?;
        let (directory, shown) = self.add(json!({ "program": name, "arguments": arguments }));
        let state = shown.state.clone();
        directory.file("progress", move || line(&lock(&state).told("running")));
        let jobs = self.0.clone();
        let work = move || {
            let run = AssertUnwindSafe(|| program(&arguments));
            let ended = catch_unwind(run).unwrap_or_else(|_| Err("it has panicked".into()));
            shown.end(ended.as_ref().err().map(String::as_str));
            drop(running);
            // Whoever started it wants to know how it ended.
            let mut kept = lock(&jobs.ended);
            kept.push_back(shown.keep());
            let oldest = if kept.len() > ENDED_MAX { kept.pop_front() } else { None };
            drop(kept);
            if let Some(name) = oldest {
                jobs.tree.remove(&name);
            }
        };
        let thread = thread::Builder::new().name(format!("program {name}")).spawn(work);
        thread.map(drop).map_err(|error| FsError::io("ctl", &error))
    }
}

fn unknown(line: &str, known: &str) -> FsError {
    FsError::because(Kind::Unsupported, "ctl", format!("{line:?} is not one of: {known}"))
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

impl FileServer for JobServer {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        self.0.tree.attach(user, tree)
    }
}

/// One of the programs that run.
struct Running(Arc<Jobs>);

impl Running {
    fn enter(jobs: &Arc<Jobs>) -> Result<Self, FsError> {
        let running = Self(jobs.clone());
        if jobs.started.fetch_add(1, Ordering::Relaxed) >= STARTED_MAX {
            let what = format!("{STARTED_MAX} programs run already; wait until one has ended");
            return Err(FsError::because(Kind::Busy, "ctl", what));
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.started.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a run stands.
struct State {
    since: Instant,
    /// After how long, and why if it failed.
    ended: Option<(Duration, Option<String>)>,
}

impl State {
    fn told(&self, running: &str) -> Value {
        let (seconds, state, error) = match &self.ended {
            None => (self.since.elapsed(), running, None),
            Some((after, None)) => (*after, "done", None),
            Some((after, Some(error))) => (*after, "failed", Some(error)),
        };
        json!({ "state": state, "seconds": seconds.as_secs_f64(), "error": error })
    }
}

/// A run that can be seen; dropped, it is not any more.
pub struct Shown {
    server: JobServer,
    name: String,
    state: Arc<Mutex<State>>,
}

impl Shown {
    /// The name of its directory.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It has ended: well, or because of an error.
    pub fn end(&self, error: Option<&str>) {
        let mut state = lock(&self.state);
        state.ended = Some((state.since.elapsed(), error.map(str::to_owned)));
    }

    /// Leaves it to be seen; its name.
    fn keep(mut self) -> String {
        std::mem::take(&mut self.name)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            self.server.0.tree.remove(&self.name);
        }
    }
}

fn stats(progress: &Progress) -> Value {
    let rates = progress.rates();
    json!({
        "get_bytes_per_second": rates.get,
        "compute_bytes_per_second": rates.compute,
        "put_bytes_per_second": rates.put,
        "bottleneck": rates.bottleneck().map(Step::name),
    })
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn threads(progress: &Progress) -> Value {
    let of_one = |thread: stream::ThreadSteps| {
        let last = thread.steps.last();
        json!({
            "accelerator": thread.accelerator,
            "thread": thread.thread,
            "did": last.map(|done| done.step.name()),
            "unit": last.map(|done| done.unit),
            "took_us": last.map(|done| micros(done.took)),
        })
    };
    progress.threads().into_iter().map(of_one).collect()
}

/// As `--trace` writes it: <https://perfetto.dev/docs/getting-started/other-formats>.
fn trace(progress: &Progress) -> Value {
    let of_one = |thread: stream::ThreadSteps| {
        let (accelerator, number) = (thread.accelerator, thread.thread);
        thread.steps.into_iter().map(move |done| {
            json!({
                "name": done.step.name(), "ph": "X", "pid": accelerator, "tid": number,
                "ts": micros(done.from), "dur": micros(done.took),
                "args": { "unit": done.unit },
            })
        })
    };
    progress.threads().into_iter().flat_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use pollster::block_on;

    use super::*;
    use crate::server::OpenMode;

    const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };
    const WRITE: OpenMode = OpenMode { read: false, write: true, ..READ };

    fn node(server: &JobServer, path: &[&str]) -> Result<Arc<dyn Node>, FsError> {
        let root = block_on(server.attach("somebody", ""))?;
        path.iter().try_fold(root, |node, name| block_on(node.walk(name)))
    }

    fn text(server: &JobServer, path: &[&str]) -> String {
        let open = block_on(node(server, path).unwrap().open(READ)).unwrap();
        let mut all = Vec::new();
        let mut part = [0; 37];
        loop {
            match block_on(open.read(all.len() as u64, &mut part)).unwrap() {
                0 => return String::from_utf8(all).unwrap(),
                len => all.extend(&part[..len]),
            }
        }
    }

    fn tell(server: &JobServer, path: &[&str], line: &str) -> Result<usize, FsError> {
        let open = block_on(node(server, path)?.open(WRITE))?;
        block_on(open.write(0, line.as_bytes()))
    }

    fn value(server: &JobServer, path: &[&str]) -> Value {
        serde_json::from_str(&text(server, path)).unwrap()
    }

    #[test]
    fn a_run_is_seen_and_steered_as_long_as_it_is_shown() {
        let server = JobServer::new();
        let progress = Arc::new(Progress::default().observed());
        let shown = server.show(progress.clone(), Some(7), json!({ "kernel": "crc32c" }), || ());
        assert_eq!(value(&server, &["0", "parameters"])["kernel"], "crc32c");
        assert_eq!(value(&server, &["0", "threads"]), json!([]));
        assert_eq!(value(&server, &["0", "stats"])["bottleneck"], Value::Null);
        for (asked, state) in
            [("pause\n", "paused"), ("resume", "running"), ("cancel", "cancelled")]
        {
            tell(&server, &["0", "ctl"], asked).unwrap();
            let told = value(&server, &["0", "progress"]);
            assert_eq!((&told["state"], &told["total_bytes"]), (&json!(state), &json!(7)));
        }
        assert_eq!(progress.control().wish(), Wish::Cancel);
        let refused = tell(&server, &["0", "ctl"], "stop").unwrap_err();
        assert_eq!(refused.to_string(), "ctl: \"stop\" is not one of: pause, resume, cancel");
        shown.end(Some("cancelled"));
        assert_eq!(value(&server, &["0", "progress"])["error"], "cancelled");
        drop(shown);
        assert_eq!(node(&server, &["0"]).err().unwrap().kind(), Kind::NotFound);
    }

    #[test]
    fn nobody_but_the_owner_may_write_and_nobody_may_read_ctl() {
        let server = JobServer::new();
        let ctl = node(&server, &["ctl"]).unwrap();
        assert_eq!(block_on(ctl.stat()).unwrap().mode, 0o200);
        assert_eq!(block_on(ctl.open(READ)).err().unwrap().kind(), Kind::Permission);
    }

    #[test]
    fn a_registered_program_is_started_with_its_arguments() {
        let server = JobServer::new();
        let (told, heard) = mpsc::channel();
        server.register("greet", move |arguments| {
            told.send(arguments.to_owned()).unwrap();
            Err("out of words".into())
        });
        assert_eq!(text(&server, &["programs"]), "greet\n");
        tell(&server, &["ctl"], "start greet the whole world\n").unwrap();
        assert_eq!(heard.recv().unwrap(), "the whole world");
        while value(&server, &["0", "progress"])["state"] == "running" {
            thread::yield_now();
        }
        assert_eq!(value(&server, &["0", "progress"])["error"], "out of words");
        assert_eq!(tell(&server, &["ctl"], "start nobody").unwrap_err().kind(), Kind::NotFound);
        assert_eq!(tell(&server, &["ctl"], "begin").unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn only_so_many_programs_run_at_once() {
        let server = JobServer::new();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        server.register("wait", move |_| lock(&wait).recv().map_err(|error| error.to_string()));
        for _ in 0..STARTED_MAX {
            tell(&server, &["ctl"], "start wait").unwrap();
        }
        assert_eq!(tell(&server, &["ctl"], "start wait").unwrap_err().kind(), Kind::Busy);
        (0..STARTED_MAX).for_each(|_| go.send(()).unwrap());
        while server.0.started.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        tell(&server, &["ctl"], "start wait").unwrap();
        go.send(()).unwrap();
    }
}
