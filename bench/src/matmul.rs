//! Products of two 512x512 matrices from files into a file (CellFS, Table 4):
//! by file calls of two threads per accelerator, against one thread that moves
//! blocks by transfers, double-buffered by hand.
//!
//! As in IBM's program, a matrix lies in blocks of 64x64, one after the other.
//! The product of two blocks is the same in both.

use anyhow::Context as _;
use cellway::accel::{Buf, Config, Cx, Ea, Place, Tag, Transfer};
use clap::Args;
use fs::{File, FileMemory, Files, OpenMode, wait};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};

use crate::args::{PagesArg, Rounds, parse_threads};
use crate::filemem::{Ram, make, places};
use crate::hw::Pages;
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired};
use crate::program::run_timed;
use crate::table::Table;

/// Rows and columns of a matrix.
const SIDE: usize = 512;
/// Rows and columns of a block: three of them for each of two threads fit 256 KiB.
const BLOCK: usize = 64;
/// Blocks in a row of them.
const BLOCKS: usize = SIDE / BLOCK;
const BLOCK_BYTES: usize = BLOCK * BLOCK * size_of::<f32>();
const MATRIX_BYTES: u64 = (SIDE * SIDE * size_of::<f32>()) as u64;
/// Threads of the version by file calls, as in the paper.
const THREADS: usize = 2;

/// Arguments of `bench matmul`.
#[derive(Args, Clone, Debug)]
pub struct MatmulArgs {
    /// Products in one run (10000 in the paper)
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub products: usize,
    /// Numbers of accelerators [default: 1 to those there are cores for]
    #[arg(long, value_delimiter = ',', value_parser = parse_threads, value_name = "N,..")]
    pub accelerators: Vec<usize>,
    /// Page size of the files' memory
    #[arg(long, value_enum, default_value_t = PagesArg::Small)]
    pub pages: PagesArg,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

pub(crate) fn run(args: &MatmulArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        args.products = 1;
    }
    anyhow::ensure!(args.products > 0, "--products must be at least 1");
    if args.accelerators.is_empty() {
        args.accelerators = (1..=Config::default().accelerators).collect();
    }
    args.pages.list().iter().map(|&pages| products(&args, pages, machine)).collect()
}

fn products(args: &MatmulArgs, pages: Pages, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [
        ("accelerators", ""),
        ("by hand", "s"),
        ("file calls", "s"),
        ("by hand / calls", "x"),
        ("by hand again", "x"),
        ("file calls", "Gflop/s"),
    ];
    let title = format!(
        "matmul: {} products of two {SIDE}x{SIDE} matrices in files, {} pages (Table 4)",
        args.products,
        pages.name()
    );
    let mut table = Table::new(title, machine, &columns);
    let matrices = Matrices::new(pages)?;
    let (a, b, c) =
        (matrices.ram.memory("a")?, matrices.ram.memory("b")?, matrices.ram.memory("c")?);
    let places = [&a, &b, &c].map(|memory| blocks(&**memory));
    let [a, b, c] = places;
    let (a, b, c) = (a?, b?, c?);
    for &accelerators in &args.accelerators {
        let product = Product { args, accelerators, matrices: &matrices, places: [&a, &b, &c] };
        let mut versions = [
            Version::new("by hand", 1, || product.run(|| product.by_hand())),
            Version::new("file calls", THREADS, || product.run(|| product.by_calls())),
            Version::new("by hand again", 1, || product.run(|| product.by_hand())),
        ];
        let costs = paired(args.rounds.count(), &mut versions)?;
        let seconds = |version| costs.item_ns(version).median * args.products as f64 / 1e9;
        let flop = 2.0 * (SIDE * SIDE * SIDE) as f64;
        table.row([
            accelerators.into(),
            seconds(0).into(),
            seconds(1).into(),
            costs.speedup(1, 0).median.into(),
            costs.speedup(2, 0).median.into(),
            (flop / costs.item_ns(1).median).into(),
        ]);
    }
    table.note("by hand: one thread, gets of the next two blocks while two are multiplied, puts");
    table.note("file calls: two threads, each reads, multiplies and writes half of the blocks");
    Ok(table)
}

fn blocks(memory: &dyn FileMemory) -> anyhow::Result<Vec<Ea<'_>>> {
    places(memory, MATRIX_BYTES, BLOCK_BYTES as u64)
}

/// The files, and what their product is.
struct Matrices {
    ram: Ram,
    expected: Vec<f32>,
}

/// The matrices' elements: small whole numbers, so that sums are exact.
fn element(matrix: usize, row: usize, column: usize) -> f32 {
    ((row * (7 + matrix) + column * 13 + matrix) % 17) as f32 - 8.0
}

/// Where in a matrix of blocks an element's row and column are.
fn coordinates(index: usize) -> (usize, usize) {
    let (block, inside) = (index / (BLOCK * BLOCK), index % (BLOCK * BLOCK));
    (block / BLOCKS * BLOCK + inside / BLOCK, block % BLOCKS * BLOCK + inside % BLOCK)
}

/// The product by three loops, in blocks.
fn naive() -> Vec<f32> {
    let mut product = vec![0.0_f32; SIDE * SIDE];
    for row in 0..SIDE {
        for inner in 0..SIDE {
            let left = element(0, row, inner);
            for column in 0..SIDE {
                product[row * SIDE + column] += left * element(1, inner, column);
            }
        }
    }
    (0..SIDE * SIDE)
        .map(|index| {
            let (row, column) = coordinates(index);
            product[row * SIDE + column]
        })
        .collect()
}

impl Matrices {
    fn new(pages: Pages) -> anyhow::Result<Self> {
        let ram = Ram::new(pages, 3 * MATRIX_BYTES)?;
        for (matrix, name) in ["#r/a", "#r/b"].into_iter().enumerate() {
            make(&ram.files, name, MATRIX_BYTES, |at| {
                let (row, column) = coordinates(at as usize / size_of::<f32>());
                element(matrix, row, column).to_ne_bytes()[at as usize % size_of::<f32>()]
            })?;
        }
        make(&ram.files, "#r/c", MATRIX_BYTES, |_| 0)?;
        Ok(Self { ram, expected: naive() })
    }

    /// Compares the result with what it must be, and spoils it for the next run.
    fn check(&self) -> anyhow::Result<()> {
        wait(async {
            let mut file = self.ram.files.open("#r/c", OpenMode::READ_WRITE).await?;
            let mut bytes = vec![0; MATRIX_BYTES as usize];
            file.read_exact(&mut bytes).await?;
            for (index, (value, wanted)) in
                bytes.as_chunks().0.iter().zip(&self.expected).enumerate()
            {
                let (value, place) = (f32::from_ne_bytes(*value), coordinates(index));
                anyhow::ensure!(value == *wanted, "{value} at {place:?}, it should be {wanted}");
            }
            bytes.fill(0xFF);
            file.pwrite(0, &bytes).await?;
            Ok(())
        })
        .context("a product is wrong")
    }
}

/// `c += a * b`, or without the first summand.
fn multiply(a: &[u8], b: &[u8], c: &mut [u8], add: bool) -> anyhow::Result<()> {
    let odd = |error| anyhow::anyhow!("a block is no matrix: {error}");
    let shape = (BLOCK, BLOCK);
    let a = ArrayView2::<f32>::from_shape(shape, bytemuck::try_cast_slice(a).map_err(odd)?)?;
    let b = ArrayView2::from_shape(shape, bytemuck::try_cast_slice(b).map_err(odd)?)?;
    let c = bytemuck::try_cast_slice_mut(c).map_err(odd)?;
    let mut c = ArrayViewMut2::from_shape(shape, c)?;
    general_mat_mul(1.0, &a, &b, if add { 1.0 } else { 0.0 }, &mut c);
    Ok(())
}

/// One cell of the table.
struct Product<'a> {
    args: &'a MatmulArgs,
    accelerators: usize,
    matrices: &'a Matrices,
    places: [&'a [Ea<'a>]; 3],
}

/// The blocks of the result that thread `index` of `of` computes, each with
/// its row and column.
fn share(index: usize, of: usize) -> impl Iterator<Item = (usize, usize, usize)> + Clone {
    let all = BLOCKS * BLOCKS;
    (all * index / of..all * (index + 1) / of).map(|block| (block, block / BLOCKS, block % BLOCKS))
}

impl Product<'_> {
    fn run(&self, product: impl Fn() -> anyhow::Result<Sample>) -> anyhow::Result<Sample> {
        let sample = product()?;
        self.matrices.check()?;
        Ok(sample)
    }

    fn config(&self, threads: usize) -> Config {
        Config { accelerators: self.accelerators, threads, ..Config::default() }
    }

    fn by_calls(&self) -> anyhow::Result<Sample> {
        let (files, products) = (&self.matrices.ram.files, self.args.products);
        run_timed(&self.config(THREADS), products as u64, |cx, at| async move {
            let files = files.on(&cx);
            for _ in 0..products {
                by_calls(&cx, at, &files).await?;
            }
            Ok(0)
        })
    }

    fn by_hand(&self) -> anyhow::Result<Sample> {
        let (places, products) = (self.places, self.args.products);
        run_timed(&self.config(1), products as u64, |cx, at| async move {
            for _ in 0..products {
                by_hand(&cx, at, places).await?;
            }
            Ok(0)
        })
    }
}

/// The naive loop: read, read, multiply, write.
async fn by_calls<'env>(cx: &Cx<'env>, at: Place, files: &Files<Cx<'env>>) -> anyhow::Result<()> {
    let mut bufs = [cx.alloc(BLOCK_BYTES)?, cx.alloc(BLOCK_BYTES)?, cx.alloc(BLOCK_BYTES)?];
    let [a, b, c] = &mut bufs;
    let file_a = files.open("#r/a", OpenMode::READ).await?;
    let file_b = files.open("#r/b", OpenMode::READ).await?;
    let file_c = files.open("#r/c", OpenMode::WRITE).await?;
    for (block, row, column) in share(at.index(), at.count()) {
        for inner in 0..BLOCKS {
            read(&file_a, row * BLOCKS + inner, a).await?;
            read(&file_b, inner * BLOCKS + column, b).await?;
            multiply(a, b, c, inner > 0)?;
        }
        let written = file_c.pwrite((block * BLOCK_BYTES) as u64, c).await?;
        anyhow::ensure!(written == BLOCK_BYTES, "block {block} was written in part");
    }
    Ok(())
}

async fn read<'env>(file: &File<Cx<'env>>, block: usize, buf: &mut [u8]) -> anyhow::Result<()> {
    let read = file.pread((block * BLOCK_BYTES) as u64, buf).await?;
    anyhow::ensure!(read == BLOCK_BYTES, "the file ends in block {block}");
    Ok(())
}

/// The same by transfers: while two blocks are multiplied, the next two come.
async fn by_hand<'env>(
    cx: &Cx<'env>,
    at: Place,
    [a, b, c]: [&[Ea<'env>]; 3],
) -> anyhow::Result<()> {
    let failed = |error| anyhow::anyhow!("{error}");
    let alloc = || cx.alloc(BLOCK_BYTES);
    let (into, from) = (Tag::new(0), Tag::new(1));
    let steps = share(at.index(), at.count()).flat_map(|(block, row, column)| {
        (0..BLOCKS).map(move |inner| (block, row * BLOCKS + inner, inner * BLOCKS + column, inner))
    });
    let get = |buf: Buf, place| cx.get(buf, place, BLOCK_BYTES, into);
    let mut ahead = steps.clone().skip(1);
    let Some((_, first_a, first_b, _)) = steps.clone().next() else { return Ok(()) };
    let mut coming = (get(alloc()?, a[first_a]), get(alloc()?, b[first_b]));
    let mut spare = (Some(alloc()?), Some(alloc()?));
    let mut sum = Some(alloc()?);
    let mut put: Option<Transfer<'_, 'env>> = None;
    for (block, _, _, inner) in steps {
        let here = (coming.0.await.map_err(failed)?, coming.1.await.map_err(failed)?);
        let (Some(free_a), Some(free_b)) = (spare.0.take(), spare.1.take()) else {
            anyhow::bail!("a buffer is lost");
        };
        // After the last step there is nothing to come: the same blocks again.
        let (next_a, next_b) = ahead.next().map_or((first_a, first_b), |step| (step.1, step.2));
        coming = (get(free_a, a[next_a]), get(free_b, b[next_b]));
        if inner == 0
            && let Some(put) = put.take()
        {
            sum = Some(put.await.map_err(failed)?);
        }
        let Some(result) = &mut sum else { anyhow::bail!("a buffer is lost") };
        multiply(&here.0, &here.1, result, inner > 0)?;
        spare = (Some(here.0), Some(here.1));
        if inner + 1 == BLOCKS
            && let Some(result) = sum.take()
        {
            put = Some(cx.put(result, c[block], from));
        }
    }
    if let Some(put) = put {
        put.await.map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_product_is_found() {
        let matrices = Matrices::new(Pages::Small).unwrap();
        let error = format!("{:#}", matrices.check().unwrap_err());
        assert!(error.contains("a product is wrong"), "{error}");
    }

    #[test]
    fn blocks_are_dealt_out_once() {
        for of in [1, 2, 3, 7] {
            let all: Vec<_> = (0..of).flat_map(|index| share(index, of)).collect();
            assert_eq!(all.len(), BLOCKS * BLOCKS);
            assert!(all.iter().enumerate().all(|(index, step)| index == step.0));
        }
    }
}
