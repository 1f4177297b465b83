//! Applications by the length of what a node gets at a time (Figure 5.1).

use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use cellway::Options;
use cellway::cluster::drive::Config;
use cellway::cluster::task::{KernelTask, Task as _};
use cellway::cluster::transport::mpi;
use cellway::kernels::{Finish, Histogram, LinReg, PairType, Report as _, WordCount};
use cellway::storage::Input;
use cellway::stream::Progress;

use super::peer::Peer;
use crate::args::show_bytes;
use crate::coldfile::write_words;
use crate::machine::Machine;
use crate::measure::{Paired, Sample, Version, paired};
use crate::table::{Cell, Table};

pub(super) struct Sweep<'s> {
    pub(super) peer: &'s Peer,
    pub(super) folder: &'s Path,
    pub(super) bytes: u64,
    /// Lengths that are compared with what is measured while it runs.
    pub(super) lengths: &'s [u64],
    pub(super) accelerators: usize,
    pub(super) rounds: usize,
}

impl Sweep<'_> {
    pub(super) fn run(&self, machine: &Machine) -> anyhow::Result<Table> {
        let title = format!(
            "cluster: applications by the length of a lease, {} each (Figure 5.1)",
            show_bytes(self.bytes)
        );
        let mut columns = vec![("application", ""), ("automatic", "MB/s")];
        let names: Vec<String> = self.lengths.iter().map(|&bytes| show_bytes(bytes)).collect();
        columns.extend(names.iter().map(|name| (name.as_str(), "MB/s")));
        columns.extend([("best", ""), ("automatic / best", "x"), ("from", "x"), ("to", "x")]);
        let mut table = Table::new(title, machine, &columns);
        table.row(self.by_length(&LinReg::new(PairType::I16), write_words)?);
        table.row(self.by_length(&WordCount::new(std::env::temp_dir()), write_text)?);
        table.row(self.by_length(&Histogram, write_bitmap)?);
        table.note(
            "medians; best: the length with the best median; automatic / best: median of the ratios \
             within a round; from, to: where it lies in 95 of 100 tables",
        );
        table.note(format!(
            "{} peers, the manager's computes too; accelerators on each: {}; inputs in the page cache",
            self.peer.count(),
            self.accelerators
        ));
        Ok(table)
    }

    fn by_length<K: Finish<Part: 'static>>(
        &self,
        kernel: &K,
        write: impl FnOnce(&mut BufWriter<File>, u64) -> io::Result<()>,
    ) -> anyhow::Result<Vec<Cell>> {
        let path = self.folder.join(kernel.name());
        if self.peer.manages() {
            let made = File::create_new(&path).and_then(|file| {
                let mut file = BufWriter::new(file);
                write(&mut file, self.bytes)?;
                file.into_inner()?.sync_all()
            });
            made.with_context(|| format!("cannot make {}", path.display()))?;
        }
        self.peer.meet(&[])?;
        let input = &Input::open(&path)?;
        let automatic = std::iter::once(None);
        let mut versions: Vec<_> = automatic
            .chain(self.lengths.iter().copied().map(Some))
            .map(|length| {
                let name = length.map_or_else(|| "automatic".to_owned(), show_bytes);
                Version::new(name, 1, move || self.once(kernel, input, length))
            })
            .collect();
        let costs = paired(self.rounds, &mut versions)?;
        drop(versions);
        if self.peer.manages() {
            std::fs::remove_file(&path)?;
        }
        let rate = |version| 1e3 / costs.item_ns(version).median;
        let lengths = 1..=self.lengths.len();
        let best = lengths.clone().max_by(|one, other| rate(*one).total_cmp(&rate(*other)));
        let mut row = vec![Cell::from(kernel.name()), rate(0).into()];
        row.extend(lengths.map(|version| Cell::from(rate(version))));
        row.extend(against(&costs, best, self.lengths));
        Ok(row)
    }

    fn once<K: Finish<Part: 'static>>(
        &self,
        kernel: &K,
        input: &Input,
        length: Option<u64>,
    ) -> anyhow::Result<Sample> {
        let progress = Progress::default();
        let options = Options { accelerators: Some(self.accelerators), ..Options::default() };
        let options = mpi::share(options);
        let task = KernelTask::new(kernel, input, None, &options, &progress)?;
        let unit_bytes = task.spec().unit_bytes.max(1);
        let task = task.lease_units(length.map(|bytes| (bytes / unit_bytes).max(1)));
        let (report, wall, _) = self.peer.run(&task, &Config::default())?;
        let mut check = None;
        if let Some(mut report) = report {
            let result = report.results.pop().context("a run has one job")??;
            let part = task.result(result).map_err(anyhow::Error::msg)?;
            let mut text = Vec::new();
            kernel.finish(part)?.write_text(&mut text)?;
            let mut hasher = DefaultHasher::new();
            hasher.write(&text);
            check = Some(hasher.finish());
        }
        Ok(Sample { seconds: wall.as_secs_f64(), items: self.bytes, check })
    }
}

/// The best length, and how the automatic one does beside it.
fn against(costs: &Paired, best: Option<usize>, lengths: &[u64]) -> [Cell; 4] {
    let length = best.and_then(|best| lengths.get(best.checked_sub(1)?));
    let (Some(best), Some(length)) = (best, length) else {
        return [Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing];
    };
    let (from, to) = costs.speedup_interval(0, best);
    [show_bytes(*length).into(), costs.speedup(0, best).median.into(), from.into(), to.into()]
}

/// Words of some length, few of them often, in lines.
pub(super) fn write_text(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = bytes;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Small numbers come more often.
        let word = (state % 50_000) * ((state >> 32) % 1000) / 1000;
        let end = if state >> 60 == 0 { '\n' } else { ' ' };
        let text = format!("w{word:x}{end}");
        let text = text.as_bytes();
        let text = text.get(..left.min(text.len() as u64) as usize).unwrap_or(text);
        to.write_all(text)?;
        left -= text.len() as u64;
    }
    Ok(())
}

/// A bitmap of rows of 4096 bytes, `bytes` long about.
pub(super) fn write_bitmap(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    const HEAD_BYTES: u32 = 54;
    const WIDTH: u32 = 1364;
    const ROW_BYTES: u32 = 4096 - 4;
    let rows = (bytes / u64::from(ROW_BYTES)).clamp(1, 1 << 19) as u32;
    let pixels = rows * ROW_BYTES;
    to.write_all(b"BM")?;
    for word in [HEAD_BYTES + pixels, 0, HEAD_BYTES, 40, WIDTH, rows] {
        to.write_all(&word.to_le_bytes())?;
    }
    to.write_all(&[1, 0, 24, 0])?;
    to.write_all(&[0; 24])?;
    // Whole words, of which the last row has its share.
    write_words(to, u64::from(pixels) / 8 * 8)?;
    to.write_all(&vec![1; pixels as usize % 8])
}
