//! Chains of two kernels over a cached file: both on every accelerator, or each
//! on accelerators of its own.

use cellway::Kernel;
use cellway::accel::Config;
use cellway::kernels::{Aes256Ctr, Blake3, Identity, Iv128, Key256};
use cellway::storage::Input;
use cellway::stream::{self, Chain, Options, Pipeline};

use super::StreamArgs;
use crate::coldfile::ColdFile;
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired};
use crate::table::Table;

/// Two rows for each chain, on as many accelerators as there are cores, but an
/// even number.
pub(super) fn table(args: &StreamArgs, machine: &Machine) -> anyhow::Result<Table> {
    let file = ColdFile::create(&args.dir, args.file_bytes)?;
    let input = Input::open(&file.path())?;
    std::io::copy(&mut input.file().as_ref(), &mut std::io::sink())?;
    let cipher = Aes256Ctr::new(&Key256::new([7; 32]), Iv128(9));
    let accelerators = Config::default().accelerators.next_multiple_of(2);
    let title = format!("stream: chains over a cached file, on {accelerators} accelerators");
    let columns = [("chain", ""), ("pipeline", ""), ("rate", "MB/s"), ("against fused", "x")];
    let mut table = Table::new(title, machine, &columns);
    let bench = Bench { args, input: &input, accelerators };
    bench.rows(&mut table, &Chain::new(vec![Box::new(cipher)], Blake3::new())?)?;
    bench.rows(&mut table, &Chain::new(vec![Box::new(Identity)], Blake3::new())?)?;
    table.note("spread: half of the accelerators computes the first kernel, half the second");
    Ok(table)
}

struct Bench<'a> {
    args: &'a StreamArgs,
    input: &'a Input,
    accelerators: usize,
}

impl Bench<'_> {
    fn rows<K: Kernel>(&self, table: &mut Table, kernel: &K) -> anyhow::Result<()> {
        let bytes = self.input.len_bytes().unwrap_or(0);
        let ways = [Pipeline::Fused, Pipeline::Spread];
        let mut versions = ways.map(|pipeline| {
            Version::new(pipeline.to_string(), self.accelerators, move || {
                let accelerators = Some(self.accelerators);
                let options = Options { accelerators, pipeline, ..Options::default() };
                Sample::timed(bytes, || {
                    stream::run(kernel, self.input, None, &options, &Default::default())?;
                    Ok(())
                })
            })
        });
        let costs = paired(self.args.rounds.count(), &mut versions)?;
        for (index, pipeline) in ways.into_iter().enumerate() {
            table.row([
                kernel.name().into(),
                pipeline.to_string().into(),
                (1e3 / costs.item_ns(index).median).into(),
                (index > 0).then(|| costs.speedup(index, 0).median).into(),
            ]);
        }
        Ok(())
    }
}
