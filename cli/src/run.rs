//! `cellway run`: one kernel over one file, or over many.

mod beside;
pub(crate) mod cluster;
mod journal;
mod kernels;
mod many;
mod names;
mod parameters;
mod printed;
mod progress;
mod stats;
mod window;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cellway::accel::EngineChoice;
use cellway::fs;
use cellway::kernels::{
    Aes128Ecb, Aes256Ctr, Blake3, Crc32c, Entry, Finish, Histogram, Identity, LinReg,
};
use cellway::storage::Input;
use cellway::stream::{
    self, Begun, Chain, Direct, Journal, Outcome, Pipeline, Plan, Scheme, Stats, Transform,
};
use cellway::{Effect, Kernel, Options, StreamError};
use cellway_bench::Format;
use cellway_bench::args::parse_bytes;
use clap::Args;
use clap::builder::{
    PossibleValuesParser, RangedI64ValueParser, TypedValueParser as _, ValueParser,
};

use crate::exit::{self, Exit, Usage};
use crate::size::Size;
use beside::Left;
use cluster::{ClusterArgs, Found, Nodes, Print};
use journal::JournalArgs;
use kernels::{Kernels, KernelsParser};
use names::{Drained, Fed};
use parameters::Parameters;
use stats::{Files, StatsFile};
use window::Window;

/// Stream files through a kernel
///
/// A transform or rewrite takes INPUT and OUTPUT, which appears whole under its name
/// or not at all; with --out-dir any number of INPUTs. A reduction prints its result
/// over all INPUTs, in their order, on standard output.
#[derive(Args, Debug)]
#[command(after_help = Exit::help())]
pub(crate) struct RunArgs {
    /// What to do with the data; A,B hands each block from A to B (see
    /// --pipeline), both with the same parameters
    #[arg(value_parser = KernelsParser)]
    kernel: Kernels,
    /// Files, devices or pipes to read; `-` is standard input. For a transform or
    /// rewrite without --out-dir: INPUT and OUTPUT, where `-` is standard output.
    /// Names of file servers too, as for --key-file, --stats and --trace: #U/PATH,
    /// #n/tcp!HOST!PORT/PATH, a pipe #p/NAME
    #[arg(required = true, value_name = "INPUT", value_parser = names::any())]
    files: Vec<PathBuf>,
    /// Write the output for each INPUT to DIR, which is made if it is missing,
    /// under the INPUT's name; for a file found in a directory under the path
    /// from there. DIR is on this machine, #U/PATH or PATH
    #[arg(long, value_name = "DIR", value_parser = names::local())]
    out_dir: Option<PathBuf>,
    /// Read all files in an INPUT that is a directory, and below, sorted by the
    /// bytes of their paths; links and devices in it are passed over, and hidden
    /// files of runs that have not ended
    #[arg(short, long)]
    recursive: bool,
    /// Replace OUTPUT if it exists, even if it is INPUT, and in --out-dir what
    /// exists, even the INPUT that it is made of but no other; the old file
    /// stays until the new one is whole
    #[arg(short, long)]
    force: bool,
    /// Bring OUTPUT to the disk before ending (fsync); without this a power
    /// loss soon after may take it, as with cp
    #[arg(long)]
    sync: bool,
    /// How the result is printed; with an OUTPUT json prints the statistics
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
    /// Write statistics as JSON to FILE, which is replaced; `-` is standard
    /// output
    #[arg(long, value_name = "FILE", value_parser = names::any())]
    stats: Option<PathBuf>,
    /// Write what ran when to FILE, which is replaced: Chrome trace events, to be
    /// opened in ui.perfetto.dev
    #[arg(long, value_name = "FILE", value_parser = names::any())]
    trace: Option<PathBuf>,
    /// Let others look into the run at unix:PATH or tcp:HOST:PORT, by 9P2000 or
    /// `cellway fs`. By unix:PATH, whose mode is 0600: /job/0 has its progress and
    /// ctl (pause, resume, cancel), /p its pipes, /l its log; by TCP, on this
    /// machine, /job alone and only to look
    #[arg(long, value_name = "ADDR")]
    serve: Option<fs::Address>,
    /// Say on standard error how the run is laid out, and how it went
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    layout: Layout,
}

/// How the run is laid out; all of it has a default.
#[derive(Args, Debug)]
#[command(next_help_heading = "Layout (SIZE: 4096, 256K, 1M, 1MiB; powers of 1024)")]
struct Layout {
    /// Cores that work [default: all this process may use; with --pipeline
    /// spread a multiple of the kernels, one for each at least]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    accelerators: Option<u32>,
    /// Threads per accelerator, each with one block under way [default: 4; to
    /// only read what is cached 2, or 1 to look at it in place]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    threads: Option<u32>,
    /// Bytes a thread gets, computes and puts at once [default: 512K; to
    /// only read what is cached 256K, or up to 4M to look at it in place]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    block: Option<u64>,
    /// Most memory for the blocks of one accelerator [default: what they take]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    local_store: Option<u64>,
    /// What moves the data; auto takes uring where it works. An engine asked
    /// for by name is never replaced by another
    #[arg(long, value_name = "NAME", default_value_t, value_parser = one_of::<EngineChoice>(&["auto", "uring", "pread"]))]
    engine: EngineChoice,
    /// Whether to go past the page cache; auto decides for input and output
    /// by what is cached, on is an error where it cannot be
    #[arg(long, value_name = "WHEN", default_value_t, value_parser = one_of::<Direct>(&["auto", "on", "off"]))]
    direct: Direct,
    /// Who reads and writes: direct, the accelerators' own threads; mapped, nobody,
    /// cached input is looked at in place; 1, the host at their call; 2, that
    /// after it read all; 3, while it reads ahead; 4, all through memory, before
    /// and after; 6, through memory, meanwhile; staged, as 6 through a few
    /// buffers. 2 and 4 take no pipes, 4 does not rewrite. auto takes mapped for
    /// some kernels where all of one input is cached, unless --threads,
    /// --local-store, --engine or --direct is given, else direct
    #[arg(long, value_name = "NAME", default_value_t, value_parser = str::parse::<Scheme>)]
    scheme: Scheme,
    /// Buffers of --scheme staged [default: 3]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    staging: Option<u32>,
    /// Where the kernels of A,B work: fused, each core takes a block through
    /// all; spread, each kernel has cores of its own, and blocks go from core to
    /// core
    #[arg(long, value_name = "HOW", default_value_t, value_parser = one_of::<Pipeline>(&["fused", "spread"]))]
    pipeline: Pipeline,
}

impl Layout {
    fn options(&self) -> Options {
        Options {
            accelerators: self.accelerators.map(|number| number as usize),
            threads: self.threads.map(|number| number as usize),
            block_bytes: self.block,
            local_store_bytes: self.local_store,
            engine: self.engine,
            direct: self.direct,
            scheme: self.scheme,
            staging: self.staging.map(|number| number as usize),
            pipeline: self.pipeline,
            ..Options::default()
        }
    }
}

fn at_least_one() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

fn one_of<T>(names: &'static [&'static str]) -> ValueParser
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    ValueParser::new(PossibleValuesParser::new(names).try_map(|name| name.parse::<T>()))
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let places = args.check()?;
    let window = Window::open(args.serve.as_ref())?;
    let run = Run {
        args,
        places,
        window,
        nodes: args.cluster.start(args.verbose)?,
        left: Left::default(),
    };
    let done = run.kernel().or_else(|error| run.nodes.decline(args, error));
    // After a failure too: the others are told, or would wait.
    let ended = run.nodes.end().map(drop);
    if args.verbose {
        run.nodes.tell_memory();
    }
    run.end(done.and(ended))
}

/// What the positional arguments stand for.
pub(crate) struct Places<'a> {
    /// At least one.
    inputs: Vec<PathBuf>,
    output: Option<&'a Path>,
}

fn would_replace(by: &str, what: &str) -> Usage {
    Usage(format!("{by} would replace the {what}; give it another name"))
}

fn is_stdin(path: &Path) -> bool {
    source(path) == Path::new("/dev/stdin")
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdout")
}

/// What is read under a name.
fn source(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdin") } else { names::read_only(path) }
}

impl RunArgs {
    pub(crate) fn options(&self) -> Options {
        self.layout.options()
    }

    /// Whether the arguments fit together, before anything is touched.
    pub(crate) fn check(&self) -> Result<Places<'_>, Usage> {
        self.parameters.check(&self.kernel.all().collect::<Vec<_>>())?;
        let name = &self.kernel.name();
        let wrong = |what: String| Err(Usage(what));
        if let Some(ends) = self.kernel.first.iter().find(|k| k.effect != Effect::Transform) {
            let why = match ends.effect {
                Effect::Rewrite => "makes blocks of other lengths",
                _ => "prints a result and hands nothing on",
            };
            return wrong(format!("{} {why}; let it come last", ends.name));
        }
        let (inputs, output) = match (self.kernel.last.effect, &self.out_dir, &self.files[..]) {
            (Effect::Reduce, Some(_), _) => {
                return wrong(format!(
                    "{name} takes no --out-dir, its result goes to standard output; write > FILE"
                ));
            }
            (Effect::Transform | Effect::Rewrite, None, [_]) => {
                return wrong(format!("{name} writes an output; name an OUTPUT after the INPUT"));
            }
            (Effect::Transform | Effect::Rewrite, None, [inputs @ .., _, _])
                if !inputs.is_empty() =>
            {
                return wrong(format!(
                    "{name} writes an output for each INPUT; give a directory for them by --out-dir"
                ));
            }
            (Effect::Transform | Effect::Rewrite, None, [input, output]) => {
                (std::slice::from_ref(input), Some(&**output))
            }
            _ => (&self.files[..], None),
        };
        let inputs = inputs.iter().map(|input| names::read_only(input).to_owned()).collect();
        let places = Places { inputs, output };
        if places.output.is_some_and(is_stdout) && self.stats_on_stdout() {
            return wrong(
                "output and statistics cannot both go to standard output; give --stats a FILE"
                    .into(),
            );
        }
        self.journal.check()?;
        if self.is_many(&places) && places.inputs.iter().any(|input| is_stdin(input)) {
            return wrong(
                "standard input cannot be one of several INPUTs, nor has it a name in --out-dir; \
                name files, or give it alone"
                    .into(),
            );
        }
        let given = names::Given {
            inputs: &places.inputs,
            key: self.parameters.key_file(),
            output: places.output,
            beside: [self.stats.as_deref(), self.trace.as_deref()],
            is_many: self.is_many(&places),
            has_journal: self.journal.file().is_some(),
            is_served: matches!(self.serve, Some(fs::Address::Unix(_))),
        };
        given.check()?;
        self.check_files(&places)?;
        self.cluster.check(self)?;
        Ok(places)
    }

    /// Whether inputs must be looked for before the run.
    fn is_many(&self, places: &Places<'_>) -> bool {
        self.out_dir.is_some() || places.inputs.len() > 1 || places.inputs[0].is_dir()
    }

    /// Whether everything that is written has a place of its own.
    fn check_files(&self, places: &Places<'_>) -> Result<(), Usage> {
        let output = places.output.filter(|output| !is_stdout(output));
        let output = output.unwrap_or(Path::new("/dev/stdout"));
        let key = self.parameters.key_file().map(source);
        let inputs = places.inputs.iter().map(|input| source(input));
        if inputs.clone().any(|input| input == Path::new("/dev/stdin") && key == Some(input)) {
            let what = "the key and INPUT cannot both come from standard input";
            return Err(Usage(format!("{what}; give --key-file a FILE")));
        }
        let stats = self.stats.as_deref().filter(|stats| !is_stdout(stats));
        let trace = self.trace.as_deref();
        let (journal, option) = self.journal.file().unzip();
        let option = option.unwrap_or_default();
        let kept = inputs.flat_map(|input| {
            [(stats, "--stats"), (trace, "--trace"), (journal, option)]
                .map(|(written, by)| (written, by, Some(input), "INPUT"))
        });
        for (written, by, kept, what) in kept.chain([
            (journal, option, Some(output), "OUTPUT"),
            (journal, option, key, "key file"),
            (journal, option, stats, "statistics"),
            (stats, "--stats", Some(output), "OUTPUT"),
            (stats, "--stats", key, "key file"),
            (trace, "--trace", Some(output), "OUTPUT"),
            (trace, "--trace", key, "key file"),
            (trace, "--trace", stats, "statistics"),
            (trace, "--trace", journal, "journal"),
            (Some(output), "OUTPUT", key, "key file"),
        ]) {
            if let (Some(written), Some(kept)) = (written, kept)
                && names::is_same(written, kept)
            {
                return Err(would_replace(by, what));
            }
        }
        Ok(())
    }

    fn stats_on_stdout(&self) -> bool {
        let asked = self.stats.as_deref().is_some_and(is_stdout);
        asked || (self.kernel.last.effect.writes() && self.format == Format::Json)
    }
}

/// A run whose arguments fit together.
struct Run<'a> {
    args: &'a RunArgs,
    places: Places<'a>,
    window: Window,
    nodes: Nodes,
    left: Left,
}

impl Run<'_> {
    fn kernel(&self) -> anyhow::Result<()> {
        let parameters = &self.args.parameters;
        let first = self.args.kernel.first.iter().copied();
        match self.args.kernel.last.name {
            "blake3" => self.reduce(Blake3::new()),
            "count" => self.reduce(parameters.count()?),
            "crc32c" => self.reduce(Crc32c::new()),
            "histogram" => self.reduce(Histogram),
            "linreg" => self.reduce(LinReg::new(parameters.pair_type()?)),
            "replace" => self.write(self.transforms(first)?, parameters.replace()?),
            "wordcount" => self.reduce(parameters.word_count()),
            _ => {
                let mut transforms = self.transforms(self.args.kernel.all())?;
                let last = transforms.pop().expect("a run has a last kernel");
                self.write(transforms, last)
            }
        }
    }

    /// The transforms of `entries`; a key file is read once.
    fn transforms(
        &self,
        entries: impl Iterator<Item = &'static Entry>,
    ) -> anyhow::Result<Vec<Transform>> {
        let parameters = &self.args.parameters;
        let mut ctr: Option<Aes256Ctr> = None;
        let mut make = |entry: &Entry| -> anyhow::Result<Transform> {
            Ok(match entry.name {
                "aes128-ecb" => Box::new(Aes128Ecb::default()),
                "aes256-ctr" => Box::new(match &ctr {
                    Some(known) => known.clone(),
                    None => {
                        let (key, iv) = (parameters.key(&self.window.files)?, parameters.iv()?);
                        ctr.insert(Aes256Ctr::new(&key, iv)).clone()
                    }
                }),
                "identity" => Box::new(Identity),
                other => anyhow::bail!(
                    "{other} is no transform that is built in; choose another of `cellway kernels`"
                ),
            })
        };
        entries.map(&mut make).collect()
    }

    /// Runs a kernel that has an output, after `first`.
    fn write<K: Kernel<Part: 'static>>(
        &self,
        first: Vec<Transform>,
        last: K,
    ) -> anyhow::Result<()> {
        let kernel = Chain::new(first, last)?;
        let Some(path) = self.places.output else { return self.write_many(&kernel) };
        if self.serves(&kernel)? {
            return Ok(());
        }
        let (fed, stats_file) = (self.open()?, self.open_stats()?);
        let input = &fed.input;
        if !self.nodes.manages() {
            // What it computes is the manager's.
            let begun = &mut self.begin(&kernel, &fed.input, None)?;
            return self.stream(&kernel, &fed.input, begun, None).map(drop);
        }
        let drained = Drained::create(&self.window, path, self.args.force, self.args.sync)?;
        let to = drained.as_ref().map_or(path, Drained::path);
        let mut begun = self.begin(&kernel, input, Some(to))?;
        let streamed = self.stream(&kernel, input, &mut begun, None);
        let outcome = match streamed {
            // Whoever read standard output has seen enough.
            // The run ended there: it has no statistics.
            Err(error) if is_stdout(path) && is_broken_pipe(&error) => return Ok(()),
            Err(error) => {
                drop(begun);
                let ends = [fed.failed(), drained.and_then(Drained::abandon)];
                let broke_off = ends.into_iter().flatten().next().map_or(error, Into::into);
                return Err(self.window.why(broke_off));
            }
            Ok(None) => return Ok(()),
            Ok(Some(outcome)) => outcome,
        };
        let from = input.name().to_owned();
        fed.end().map_err(|error| self.window.why(error))?;
        // Others may still be at a block that somebody else has put already.
        let all_ended = self.nodes.end()?;
        let mut shared = None;
        if let (false, Some(output)) = (all_ended, &mut begun.output) {
            // What is kept for another run goes once this one is complete.
            shared = begun.journal.as_ref().and_then(Journal::partial);
            output.unshare()?;
        }
        let streamed = Instant::now();
        let mut name = path.display().to_string();
        // One that is gone on with may have its name already.
        if let Some(output) = begun.output {
            name = output.name().to_owned();
            journal::resumable(&mut begun.journal, |_| Ok(output.commit(self.args.sync)?))?;
        }
        if let Some(drained) = drained {
            name = path.display().to_string();
            drained.commit()?;
        }
        journal::done(begun.journal)?;
        if let Some(shared) = shared {
            shared.discard(None);
        }
        let commit = streamed.elapsed();
        let files = Files { input: from, inputs: 1, output: Some(name) };
        self.conclude(stats_file, files, &outcome.stats, commit)
    }

    fn reduce<K: Finish<Part: 'static>>(&self, last: K) -> anyhow::Result<()> {
        let first = self.transforms(self.args.kernel.first.iter().copied())?;
        let kernel = Chain::new(first, last)?;
        let reduced = if self.args.is_many(&self.places) {
            match self.reduce_many(&kernel)? {
                Some(reduced) => reduced,
                None => return Ok(()),
            }
        } else if self.serves(&kernel)? {
            return Ok(());
        } else {
            let (fed, stats_file) = (self.open()?, self.open_stats()?);
            let mut begun = self.begin(&kernel, &fed.input, None)?;
            let print = |part| self.print(&kernel, part);
            let outcome = match self.stream(&kernel, &fed.input, &mut begun, Some(&print)) {
                Err(error) => return Err(self.window.why(fed.failed().map_or(error, Into::into))),
                Ok(None) => return Ok(()),
                Ok(Some(outcome)) => outcome,
            };
            let files = Files { input: fed.input.name().to_owned(), inputs: 1, output: None };
            fed.end().map_err(|error| self.window.why(error))?;
            Reduced { outcome, files, stats_file, journal: begun.journal }
        };
        let Reduced { outcome: Outcome { part, stats }, files, stats_file, journal } = reduced;
        self.print(&kernel, part)?;
        journal::done(journal)?;
        self.conclude(stats_file, files, &stats, Duration::ZERO)
    }

    fn open(&self) -> anyhow::Result<Fed> {
        Fed::open(&self.window.files, &self.places.inputs[0])
    }

    fn stream<K: Kernel<Part: 'static>>(
        &self,
        kernel: &K,
        input: &Input,
        begun: &mut Begun,
        print: Print<'_, K::Part>,
    ) -> anyhow::Result<Found<K::Part>> {
        if self.args.verbose && self.nodes.is_none() {
            tell_layout(kernel.name(), &stream::plan(kernel, input, &begun.options)?);
        }
        // A bar would be drawn over the output.
        let quiet = !self.nodes.manages()
            || begun.output.is_some()
                && self.places.output.is_some_and(is_stdout)
                && std::io::stdout().is_terminal();
        self.watched(input.len_bytes(), |progress| {
            let mut work = || {
                if !self.nodes.is_none() {
                    let what = (progress, print);
                    return self.nodes.stream(self.args, (kernel, input), begun, what);
                }
                let Begun { options, output, journal } = &mut *begun;
                journal::resumable(journal, |journal| {
                    let output = output.as_ref();
                    stream::run_journaled(kernel, input, output, options, progress, journal)
                })
                .map(Some)
            };
            if quiet { work() } else { progress::show(progress, input.len_bytes(), work) }
        })
    }
}

/// A reduction that is done but for its result.
struct Reduced<P> {
    outcome: Outcome<P>,
    files: Files,
    stats_file: Option<StatsFile>,
    journal: Option<Journal>,
}

fn tell_layout(kernel: &str, plan: &Plan) {
    let now = stream::floor_bytes();
    exit::tell(&laid_out(kernel, plan, now.saturating_add(plan.memory_bytes)));
}

/// The line before a run.
fn laid_out(kernel: &str, plan: &Plan, bound_bytes: u64) -> String {
    let each = match plan.stages {
        1 => String::new(),
        stages => format!(" ({} for each kernel)", plan.accelerators / stages),
    };
    format!(
        "{kernel}: accelerators {}{each}, threads on each {}, blocks of {}, memory at most {}",
        plan.accelerators,
        plan.threads,
        Size(plan.block_bytes),
        Size(bound_bytes)
    )
}

/// The line after a run.
fn went(stats: &Stats) -> String {
    let seconds = stats.elapsed.as_secs_f64();
    let rate = (stats.bytes_in as f64 / seconds.max(1e-9)) as u64;
    let peak = stream::peak_rss_bytes().map_or("unknown".to_owned(), |peak| Size(peak).to_string());
    let output =
        stats.output_path.as_ref().map(|path| format!("; output: {path}")).unwrap_or_default();
    let steps = match progress::steps(&stats.rates()) {
        known if known.is_empty() => known,
        known => format!("; {known}"),
    };
    format!(
        "{} in {seconds:.3} s, {}/s{steps}; peak {peak} of memory; {}; input: {}{output}",
        Size(stats.bytes_in),
        Size(rate),
        stats.engine.detail,
        stats.input_path
    )
}

/// Whether a failure is only that standard output's reader has gone.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(StreamError::Output(error)) if error.is_broken_pipe())
}
