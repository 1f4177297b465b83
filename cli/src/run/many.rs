//! Runs over several inputs, or over what is in directories.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use cellway::Kernel;
use cellway::storage::{self, Listed, OutDir};
use cellway::stream::{self, Outcome, Outputs};

use super::stats::{Files, StatsFile};
use super::{Run, is_stdout, progress, tell_layout, would_replace};
use crate::exit::Usage;

impl Run<'_> {
    /// Writes an output for each input.
    pub(super) fn write_many<K: Kernel>(&self, kernel: &K) -> anyhow::Result<()> {
        let out_dir =
            self.args.out_dir.as_deref().expect("a run without a place to write was refused");
        let inputs = self.list()?;
        self.check_outputs(out_dir, &inputs)?;
        // What the kernel or the layout refuses leaves no directories.
        stream::plan_all(kernel, &inputs, &self.args.options())?;
        let stats_file = self.open_stats()?;
        let dir = OutDir::prepare(out_dir, &inputs, self.args.force)?;
        let outputs = Outputs { dir: &dir, sync: self.args.sync };
        let outcome = self.stream_many(kernel, &inputs, Some(&outputs))?;
        let files = self.files(&inputs, Some(dir.name()));
        self.conclude(stats_file, files, &outcome.stats, Duration::ZERO)
    }

    /// Merges what each input gives.
    pub(super) fn reduce_many<K: Kernel>(
        &self,
        kernel: &K,
    ) -> anyhow::Result<(Option<StatsFile>, Files, Outcome<K::Part>)> {
        let inputs = self.list()?;
        let stats_file = self.open_stats()?;
        let outcome = self.stream_many(kernel, &inputs, None)?;
        Ok((stats_file, self.files(&inputs, None), outcome))
    }

    fn list(&self) -> anyhow::Result<Vec<Listed>> {
        let inputs = storage::list(self.places.inputs, self.args.recursive)?;
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
        let both = [(stats, "--stats", "statistics"), (trace, "--trace", "trace")];
        both.into_iter().filter_map(|(file, by, what)| Some((file?, by, what)))
    }

    /// No output may take the place of the statistics, the trace or the key file.
    fn check_outputs(&self, out_dir: &Path, inputs: &[Listed]) -> Result<(), Usage> {
        let key = self.args.parameters.key_file().map(|key| (key, "--key-file", "key file"));
        for (other, _, what) in self.files_beside().chain(key) {
            let named = inputs.iter().filter(|input| input.name().file_name() == other.file_name());
            let mut places = named.map(|input| out_dir.join(input.name()));
            if let Some(place) = places.find(|place| storage::same_file(place, other)) {
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
    ) -> anyhow::Result<Outcome<K::Part>> {
        let options = self.args.options();
        if self.args.verbose {
            tell_layout(kernel.name(), &stream::plan_all(kernel, inputs, &options)?);
        }
        let len_bytes = inputs.iter().map(Listed::len_bytes).sum();
        self.watched(|progress| {
            let work = || stream::run_all(kernel, inputs, outputs, &options, progress);
            Ok(progress::show(progress, len_bytes, work)?)
        })
    }

    fn files(&self, inputs: &[Listed], output: Option<String>) -> Files {
        let input = self.places.inputs[0].display().to_string();
        Files { input, inputs: inputs.len(), output }
    }
}
