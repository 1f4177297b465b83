//! `cellway run`: one kernel over one file.

mod journal;
mod parameters;
mod progress;
mod stats;

use std::ffi::OsStr;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cellway::accel::EngineChoice;
use cellway::kernels::{
    Aes128Ecb, Aes256Ctr, Blake3, CATALOGUE, Crc32c, Entry, Finish, Histogram, Identity, LinReg,
    Report as _,
};
use cellway::storage::{self, Input, Output};
use cellway::stream::{self, Chain, Direct, Outcome, Plan, Progress, Stats, Trace, Transform};
use cellway::{Effect, Kernel, Options, StreamError};
use cellway_bench::Format;
use cellway_bench::args::parse_bytes;
use clap::Args;
use clap::builder::{
    PossibleValue, PossibleValuesParser, RangedI64ValueParser, TypedValueParser, ValueParser,
};

use crate::exit::{self, Exit, Usage};
use crate::size::Size;
use crate::stdout::Stdout;
use journal::{Begun, JournalArgs};
use parameters::Parameters;
use stats::{StatsFile, StatsJson};

/// Stream a file through a kernel
///
/// A transform or rewrite writes OUTPUT, which appears whole under its name or not at
/// all. A reduction prints its result on standard output and takes no OUTPUT.
#[derive(Args, Debug)]
#[command(after_help = Exit::help())]
pub(crate) struct RunArgs {
    /// What to do with the data; A,B hands each block from A to B, both with
    /// the same parameters
    #[arg(value_parser = KernelsParser)]
    kernel: Kernels,
    /// File, device or pipe to read; `-` is standard input
    input: PathBuf,
    /// File, device or pipe to write (not for reductions); `-` is standard output
    output: Option<PathBuf>,
    /// Replace OUTPUT if it exists, even if it is INPUT; the old file stays
    /// until the new one is whole
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
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write what ran when to FILE, which is replaced: Chrome trace events, to be
    /// opened in ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Say on standard error how the run is laid out, and how it went
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    parameters: Parameters,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    layout: Layout,
}

/// How the run is laid out; all of it has a default.
#[derive(Args, Debug)]
#[command(next_help_heading = "Layout (SIZE: 4096, 256K, 1M, 1MiB; powers of 1024)")]
struct Layout {
    /// Cores that work [default: all this process may use]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    accelerators: Option<u32>,
    /// Threads per accelerator, each with one block under way [default: 4, or 2
    /// to only read what is cached]
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    threads: Option<u32>,
    /// Bytes a thread gets, computes and puts at once [default: 512K, or 256K
    /// to only read what is cached]
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
            ..Options::default()
        }
    }
}

fn at_least_one() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// The kernels that each block goes through.
#[derive(Clone, Debug)]
struct Kernels {
    first: Vec<&'static Entry>,
    last: &'static Entry,
}

impl Kernels {
    fn all(&self) -> impl Iterator<Item = &'static Entry> {
        self.first.iter().copied().chain([self.last])
    }

    /// As on the command line.
    fn name(&self) -> String {
        self.all().map(|kernel| kernel.name).collect::<Vec<_>>().join(",")
    }
}

/// Reads kernels' names, parted by commas.
#[derive(Clone)]
struct KernelsParser;

fn kernel_names() -> impl Iterator<Item = PossibleValue> {
    CATALOGUE.iter().map(|kernel| PossibleValue::new(kernel.name).help(kernel.about))
}

impl TypedValueParser for KernelsParser {
    type Value = Kernels;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Kernels, clap::Error> {
        let find = |name: String| CATALOGUE.iter().find(|kernel| kernel.name == name);
        let names = PossibleValuesParser::new(kernel_names());
        let one = names.try_map(move |name| find(name).ok_or("no such kernel"));
        let part = |name: &OsStr| one.parse_ref(command, argument, name);
        let (first, last) = match value.to_str().and_then(|text| text.rsplit_once(',')) {
            Some((first, last)) => (Some(first), OsStr::new(last)),
            None => (None, value),
        };
        let first = first.into_iter().flat_map(|first| first.split(',').map(OsStr::new));
        Ok(Kernels { first: first.map(part).collect::<Result<_, _>>()?, last: part(last)? })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(kernel_names()))
    }
}

fn one_of<T>(names: &'static [&'static str]) -> ValueParser
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    ValueParser::new(PossibleValuesParser::new(names).try_map(|name| name.parse::<T>()))
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    args.check()?;
    let parameters = &args.parameters;
    let first = args.kernel.first.iter().copied();
    match args.kernel.last.name {
        "blake3" => args.reduce(Blake3::new()),
        "count" => args.reduce(parameters.count()?),
        "crc32c" => args.reduce(Crc32c::new()),
        "histogram" => args.reduce(Histogram),
        "linreg" => args.reduce(LinReg::new(parameters.pair_type()?)),
        "replace" => args.write(args.transforms(first)?, parameters.replace()?),
        "wordcount" => args.reduce(parameters.word_count()),
        _ => {
            let mut transforms = args.transforms(args.kernel.all())?;
            let last = transforms.pop().expect("a run has a last kernel");
            args.write(transforms, last)
        }
    }
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdout")
}

/// What is read under a name.
fn source(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("/dev/stdin") } else { path }
}

impl RunArgs {
    /// Whether the arguments fit together, before anything is touched.
    fn check(&self) -> Result<(), Usage> {
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
        match (self.kernel.last.effect, &self.output) {
            (Effect::Transform | Effect::Rewrite, None) => {
                return wrong(format!("{name} writes an output; name an OUTPUT after the INPUT"));
            }
            (Effect::Reduce, Some(output)) => {
                let output = output.display();
                return wrong(format!(
                    "{name} takes no OUTPUT, its result goes to standard output; write > {output}"
                ));
            }
            _ => {}
        }
        if self.output.as_deref().is_some_and(is_stdout) && self.stats_on_stdout() {
            return wrong(
                "output and statistics cannot both go to standard output; give --stats a FILE"
                    .into(),
            );
        }
        self.journal.check()?;
        self.check_files()
    }

    /// Whether everything that is written has a place of its own.
    fn check_files(&self) -> Result<(), Usage> {
        let input = source(&self.input);
        let output = self.output.as_deref().unwrap_or(Path::new("-"));
        let output = if is_stdout(output) { Path::new("/dev/stdout") } else { output };
        let key = self.parameters.key_file().map(source);
        if input == Path::new("/dev/stdin") && key == Some(input) {
            let what = "the key and INPUT cannot both come from standard input";
            return Err(Usage(format!("{what}; give --key-file a FILE")));
        }
        let stats = self.stats.as_deref().filter(|stats| !is_stdout(stats));
        let trace = self.trace.as_deref();
        let (journal, option) = self.journal.file().unzip();
        let option = option.unwrap_or_default();
        for (written, by, kept, what) in [
            (journal, option, Some(input), "INPUT"),
            (journal, option, Some(output), "OUTPUT"),
            (journal, option, key, "key file"),
            (journal, option, stats, "statistics"),
            (stats, "--stats", Some(input), "INPUT"),
            (stats, "--stats", Some(output), "OUTPUT"),
            (stats, "--stats", key, "key file"),
            (trace, "--trace", Some(input), "INPUT"),
            (trace, "--trace", Some(output), "OUTPUT"),
            (trace, "--trace", key, "key file"),
            (trace, "--trace", stats, "statistics"),
            (trace, "--trace", journal, "journal"),
            (Some(output), "OUTPUT", key, "key file"),
        ] {
            if let (Some(written), Some(kept)) = (written, kept)
                && storage::same_file(written, kept)
            {
                return Err(Usage(format!("{by} would replace the {what}; give it another name")));
            }
        }
        Ok(())
    }

    fn stats_on_stdout(&self) -> bool {
        let asked = self.stats.as_deref().is_some_and(is_stdout);
        asked || (self.kernel.last.effect.writes() && self.format == Format::Json)
    }

    /// The transforms of `entries`; a key file is read once.
    fn transforms(
        &self,
        entries: impl Iterator<Item = &'static Entry>,
    ) -> anyhow::Result<Vec<Transform>> {
        let mut ctr: Option<Aes256Ctr> = None;
        let mut make = |entry: &Entry| -> anyhow::Result<Transform> {
            Ok(match entry.name {
                "aes128-ecb" => Box::new(Aes128Ecb::default()),
                "aes256-ctr" => Box::new(match &ctr {
                    Some(known) => known.clone(),
                    None => {
                        let (key, iv) = (self.parameters.key()?, self.parameters.iv()?);
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
    fn write<K: Kernel>(&self, first: Vec<Transform>, last: K) -> anyhow::Result<()> {
        let kernel = Chain::new(first, last)?;
        let (stats_file, input) = self.open()?;
        let path = self.output.as_ref().expect("a run without the OUTPUT it needs was refused");
        let Some(mut begun) = self.begin(&kernel, &input)? else { return Ok(()) };
        let streamed = self.stream(&kernel, &input, &mut begun);
        let outcome = match streamed {
            // Whoever read standard output has seen enough.
            // The run ended there: it has no statistics.
            Err(error) if is_stdout(path) && is_broken_pipe(&error) => return Ok(()),
            outcome => outcome?,
        };
        let streamed = Instant::now();
        let output = begun.output.expect("a run with an OUTPUT was begun with one");
        let name = output.name().to_owned();
        journal::resumable(&mut begun.journal, |_| Ok(output.commit(self.sync)?))?;
        journal::done(begun.journal)?;
        self.conclude(stats_file, &input, Some(name), &outcome.stats, streamed.elapsed())
    }

    fn reduce<K: Finish>(&self, last: K) -> anyhow::Result<()> {
        let kernel = Chain::new(self.transforms(self.kernel.first.iter().copied())?, last)?;
        let (stats_file, input) = self.open()?;
        let Some(mut begun) = self.begin(&kernel, &input)? else { return Ok(()) };
        let Outcome { part, stats } = self.stream(&kernel, &input, &mut begun)?;
        let mut report = kernel
            .last()
            .finish(part)
            .map_err(|error| anyhow::anyhow!("{}: {error}", input.name()))?;
        let mut out = Stdout::lock();
        let written = match self.format {
            Format::Text => report.write_text(&mut out),
            Format::Json => report.write_json(&mut out),
        };
        match written.and_then(|()| out.flush()) {
            // Whoever read the result has seen enough; the statistics are still wanted.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
        drop(out);
        journal::done(begun.journal)?;
        self.conclude(stats_file, &input, None, &stats, Duration::ZERO)
    }

    fn open(&self) -> anyhow::Result<(Option<StatsFile>, Input)> {
        let input = Input::open(&self.input)?;
        let file = self.stats.as_deref().filter(|path| !is_stdout(path));
        Ok((file.map(StatsFile::create).transpose()?, input))
    }

    /// `None` if a run to be resumed is complete.
    fn begin<K: Kernel>(&self, kernel: &K, input: &Input) -> anyhow::Result<Option<Begun>> {
        let (output, options) = (self.output.as_deref(), self.layout.options());
        self.journal.begin((kernel, input), output, self.force, options)
    }

    fn stream<K: Kernel>(
        &self,
        kernel: &K,
        input: &Input,
        begun: &mut Begun,
    ) -> anyhow::Result<Outcome<K::Part>> {
        let Begun { options, output, journal } = begun;
        if self.verbose {
            let plan = stream::plan(kernel, input, options)?;
            let now = stream::rss_bytes().unwrap_or(0);
            exit::tell(&laid_out(kernel.name(), &plan, now + plan.memory_bytes));
        }
        let trace = self.trace.as_deref().map(trace_file).transpose()?;
        let progress = match &trace {
            Some(file) => Progress::traced(Trace::new(file.sequential())),
            None => Progress::default(),
        };
        let output = output.as_ref();
        let mut work = || {
            journal::resumable(journal, |journal| {
                stream::run_journaled(kernel, input, output, options, &progress, journal)
            })
        };
        // A bar would be drawn over the output.
        let quiet = output.is_some()
            && self.output.as_deref().is_some_and(is_stdout)
            && std::io::stdout().is_terminal();
        let outcome =
            if quiet { work() } else { progress::show(&progress, input.len_bytes(), work) };
        if let (Some(trace), Some(file)) = (progress.into_trace(), trace) {
            // Of a run that failed too: it shows how far it got.
            trace.finish()?;
            file.commit(false)?;
        }
        outcome
    }
}

/// What a run says once its result is out.
impl RunArgs {
    fn conclude(
        &self,
        stats_file: Option<StatsFile>,
        input: &Input,
        output: Option<String>,
        stats: &Stats,
        commit: Duration,
    ) -> anyhow::Result<()> {
        let name = self.kernel.name();
        let json = StatsJson::new(&name, input.name().to_owned(), output, stats, commit);
        if self.verbose {
            exit::tell(&went(stats));
        }
        if let Some(file) = stats_file {
            file.write(&json)?;
        }
        if self.stats_on_stdout() {
            json.write(Stdout::lock())?;
        }
        Ok(())
    }
}

/// The file a trace goes to, opened before the run; it appears at its end.
fn trace_file(path: &Path) -> anyhow::Result<Output> {
    let options = storage::Options { force: true, len_bytes: None };
    Ok(Output::create(path, &options)?)
}

/// The line before a run.
fn laid_out(kernel: &str, plan: &Plan, bound_bytes: u64) -> String {
    format!(
        "{kernel}: accelerators {}, threads on each {}, blocks of {}, memory at most {}",
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
    let steps = progress::steps(&stats.rates());
    format!(
        "{} in {seconds:.3} s, {}/s; {steps}; peak {peak} of memory; {}; input: {}{output}",
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
