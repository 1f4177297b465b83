//! Runs over several inputs, or over what is in directories.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cellway::Kernel;
use cellway::kernels::Finish;
use cellway::storage::{self, Listed, OutDir};
use cellway::stream::{self, Begun, Chain, Journal, Keep, Outcome, Outputs};

use super::stats::Files;
use super::{Reduced, Run, is_stdout, journal, progress, tell_layout, would_replace};
use crate::exit::Usage;

impl Run<'_> {
    /// Writes an output for each input.
    pub(super) fn write_many<K: Kernel<Part: 'static>>(&self, kernel: &K) -> anyhow::Result<()> {
        let out_dir =
            self.args.out_dir.as_deref().expect("a run without a place to write was refused");
        let Some(inputs) = self.listed(kernel)? else { return Ok(()) };
        if !self.nodes.manages() {
            // What it computes is the manager's.
            return self.on_nodes(kernel, &inputs, None, &mut None, None).map(drop);
        }
        self.check_outputs(out_dir, &inputs)?;
        // What the kernel or the layout refuses leaves no directories.
        stream::plan_all(kernel, &inputs, &self.args.options())?;
        let stats_file = self.open_stats()?;
        let (dir, mut journal) = self.begin_many(kernel, &inputs, Some(out_dir))?;
        let dir = dir.expect("a run with a place to write was begun with it");
        let outputs = Outputs { dir: &dir, sync: self.args.sync };
        let outcome = if self.nodes.is_none() {
            self.stream_many(kernel, &inputs, Some(&outputs), &mut journal)?
        } else {
            let outcome = self.on_nodes(kernel, &inputs, Some(&outputs), &mut journal, None)?;
            outcome.expect("the manager of a run is told what was found")
        };
        journal::done(journal)?;
        let files = self.files(&inputs, Some(dir.name()));
        self.conclude(stats_file, files, &outcome.stats, Duration::ZERO)
    }

    /// Merges what each input gives.
    /// `None` at a node that is not the manager.
    pub(super) fn reduce_many<K: Finish<Part: 'static>>(
        &self,
        kernel: &Chain<K>,
    ) -> anyhow::Result<Option<Reduced<K::Part>>> {
        let Some(inputs) = self.listed(kernel)? else { return Ok(None) };
        let stats_file = self.open_stats()?;
        let (_, mut journal) = self.begin_many(kernel, &inputs, None)?;
        let outcome = match self.nodes.is_none() {
            true => Some(self.stream_many(kernel, &inputs, None, &mut journal)?),
            false => {
                let print = |part| self.print(kernel, part);
                self.on_nodes(kernel, &inputs, None, &mut journal, Some(&print))?
            }
        };
        let files = self.files(&inputs, None);
        Ok(outcome.map(|outcome| Reduced { outcome, files, stats_file, journal }))
    }

    fn begin_many<K: Kernel>(
        &self,
        kernel: &K,
        inputs: &[Listed],
        out_dir: Option<&Path>,
    ) -> anyhow::Result<(Option<OutDir>, Option<Journal>)> {
        self.check_apart()?;
        let (args, options) = (self.args, self.args.layout.options());
        let run = (kernel, inputs, &options);
        let keep = if self.nodes.manages() { args.journal.keep() } else { Keep::Nothing };
        let (dir, journal) = match self.nodes.is_none() {
            true => Begun::many(run, out_dir, keep, args.force)?,
            false => Begun::many_on_nodes(run, out_dir, keep, args.force)?,
        };
        Ok((dir, journal.map(|journal| args.journal.begun(journal))))
    }

    /// What a run with a journal writes may not be among its inputs when it goes on.
    fn check_apart(&self) -> Result<(), Usage> {
        let Some((journal, option)) = self.args.journal.file() else { return Ok(()) };
        let out_dir = self.args.out_dir.as_deref().map(|dir| (dir, "--out-dir"));
        for (path, option) in [(journal, option)].into_iter().chain(out_dir) {
            let dirs = self.places.inputs.iter().filter(|input| input.is_dir());
            if let Some(dir) = dirs.into_iter().find(|dir| lies_in(path, dir)) {
                let dir = dir.display();
                let what = format!("{option} lies in the INPUT {dir}, which a run that goes on");
                return Err(Usage(format!("{what} would read too; give another place")));
            }
        }
        Ok(())
    }

    pub(super) fn list(&self) -> anyhow::Result<Vec<Listed>> {
        let inputs = storage::list(&self.places.inputs, self.args.recursive)?;
        // Of those asked for by name it was checked before.
        for (file, by, _) in self.files_beside() {
            if let Some(file) = file.metadata().ok().filter(|file| file.is_file())
                && inputs.iter().any(|input| input.identity() == (file.dev(), file.ino()))
            {
                Err(would_replace(by, "INPUT"))?;
            }
        }
        Ok(inputs)
    }

    /// What is written besides outputs, by which option, and what it is.
    fn files_beside(&self) -> impl Iterator<Item = (&Path, &'static str, &'static str)> {
        let stats = self.args.stats.as_deref().filter(|path| !is_stdout(path));
        let trace = self.args.trace.as_deref();
        let (journal, option) = self.args.journal.file().unzip();
        let journal = (journal, option.unwrap_or_default(), "journal");
        let all = [(stats, "--stats", "statistics"), (trace, "--trace", "trace"), journal];
        all.into_iter().filter_map(|(file, by, what)| Some((file?, by, what)))
    }

    /// No output may take the place of the statistics, the trace or the key file.
    fn check_outputs(&self, out_dir: &Path, inputs: &[Listed]) -> Result<(), Usage> {
        let key = self.args.parameters.key_file().map(|key| (key, "--key-file", "key file"));
        for (other, _, what) in self.files_beside().chain(key) {
            let named = inputs.iter().filter(|input| input.name().file_name() == other.file_name());
            let mut places = named.map(|input| out_dir.join(input.name()));
            let is_taken = |place: &PathBuf| place == other || storage::same_file(place, other);
            if let Some(place) = places.find(is_taken) {
                return Err(would_replace(&place.display().to_string(), what));
            }
        }
        Ok(())
    }

    fn stream_many<K: Kernel>(
        &self,
        kernel: &K,
        inputs: &[Listed],
        outputs: Option<&Outputs<'_>>,
        journal: &mut Option<Journal>,
    ) -> anyhow::Result<Outcome<K::Part>> {
        let options = self.args.options();
        if self.args.verbose {
            tell_layout(kernel.name(), &stream::plan_all(kernel, inputs, &options)?);
        }
        let len_bytes = inputs.iter().map(Listed::len_bytes).sum();
        self.watched(len_bytes, |progress| {
            let work = || {
                journal::resumable(journal, |journal| {
                    stream::run_all_journaled(kernel, inputs, outputs, &options, progress, journal)
                })
            };
            progress::show(progress, len_bytes, work)
        })
    }

    fn files(&self, inputs: &[Listed], output: Option<String>) -> Files {
        let input = self.places.inputs[0].display().to_string();
        Files { input, inputs: inputs.len(), output }
    }
}

/// Whether a name is in a directory or below, after all symbolic links.
fn lies_in(path: &Path, dir: &Path) -> bool {
    let Ok(dir) = dir.canonicalize() else { return false };
    let Ok(whole) = std::path::absolute(path) else { return false };
    // What is not there yet lies where the first folder that is there does.
    let there = whole.ancestors().find_map(|path| path.canonicalize().ok());
    there.is_some_and(|there| there.starts_with(&dir))
}
