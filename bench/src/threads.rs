//! What the parts of an accelerator cost: a yield, a word by mailbox, a
//! buffer from one local store to another, a get (Figure 2).

use std::time::Instant;

use anyhow::{Context as _, anyhow};
use cellway::accel::{Buf, Config, Cx, Region, run_with_host};
use clap::Args;

use crate::args::{
    Discipline, Order, PagesArg, Rounds, parse_block_bytes, parse_bytes, show_bytes,
};
use crate::arrival::Arrival;
use crate::blocks::Blocks;
use crate::chain::Chain;
use crate::hw::{LOAD_FENCE, Mem, Pages};
use crate::listings::{Work, listing1};
use crate::machine::Machine;
use crate::measure::{Sample, Version, paired, paired_on_stretches};
use crate::program::{Stopwatch, one_accelerator, run_laps, run_timed};
use crate::table::{Cell, Table};

const STACK_BYTES: usize = 64 << 10;

/// Arguments of `bench threads`.
#[derive(Args, Clone, Debug)]
pub struct ThreadsArgs {
    /// Numbers of threads that yield in turn
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_name = "N,..",
          value_parser = crate::args::parse_threads)]
    pub threads: Vec<usize>,
    /// Memory that gets read from
    #[arg(long, default_value = "1G", value_parser = parse_bytes, value_name = "BYTES")]
    pub bytes: u64,
    /// Page size of that memory
    #[arg(long, value_enum, default_value_t = PagesArg::Small)]
    pub pages: PagesArg,
    /// Lengths of gets and sends, powers of two from 8 on
    #[arg(long, value_delimiter = ',', value_parser = parse_block_bytes, value_name = "BYTES,..",
          default_value = "8,16,32,64,128,256,512,1K,2K,4K,8K,16K")]
    pub sizes: Vec<usize>,
    /// How often, and whether in earnest.
    #[command(flatten)]
    pub rounds: Rounds,
}

/// Measures all parts.
pub(crate) fn run(args: &ThreadsArgs, machine: &Machine) -> anyhow::Result<Vec<Table>> {
    let mut args = args.clone();
    if args.rounds.quick {
        (args.threads, args.sizes, args.bytes) = (vec![1, 3, 16], vec![8, 4096], 8 << 20);
    }
    let longest = args.sizes.iter().max().copied().unwrap_or(0);
    anyhow::ensure!(args.bytes >= 2 * longest as u64, "--bytes holds no two of the longest gets");
    let mut tables =
        vec![yields(&args, machine)?, mailboxes(&args, machine)?, sends(&args, machine)?];
    for &pages in args.pages.list() {
        tables.push(gets(&args, machine, pages)?);
    }
    Ok(tables)
}

/// Nanoseconds and cycles per yield.
fn yields(args: &ThreadsArgs, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [
        ("threads", ""),
        ("stackless", "ns"),
        ("stackless", "cycles"),
        ("stackful", "ns"),
        ("stackful", "cycles"),
    ];
    let mut table =
        Table::new("threads: one yield, by threads that do nothing else", machine, &columns);
    let yields = if args.rounds.quick { 1000 } else { 4_000_000 };
    for &threads in &args.threads {
        let each = (yields / threads as u64).max(1);
        let mut versions = [
            Version::new("stackless", threads, move || yield_stackless(threads, each)),
            Version::new("stackful", threads, move || yield_stackful(threads, each)),
        ];
        let costs = paired(args.rounds.count(), &mut versions)?;
        let (stackless, stackful) = (costs.item_ns(0).median, costs.item_ns(1).median);
        table.row([
            threads.into(),
            stackless.into(),
            machine.cycles(stackless).into(),
            stackful.into(),
            machine.cycles(stackful).into(),
        ]);
    }
    table.note("stackful: a yield is a pair of switches, to the scheduler and to the next stack");
    Ok(table)
}

fn yield_stackless(threads: usize, each: u64) -> anyhow::Result<Sample> {
    run_timed(&one_accelerator(threads), each * threads as u64, |cx, _| async move {
        for _ in 0..each {
            cx.yield_now().await;
        }
        Ok(each)
    })
}

fn yield_stackful(threads: usize, each: u64) -> anyhow::Result<Sample> {
    let config = Config { threads_max: threads + 1, ..one_accelerator(1) };
    run_laps(&config, each * threads as u64, |cx, _| async move {
        let body = move |stack: &cellway::accel::StackCx<'_, '_>| {
            (0..each).for_each(|_| stack.yield_now());
            each
        };
        let mut started = Vec::with_capacity(threads);
        for _ in 0..threads {
            started.push(cx.spawn_stackful(STACK_BYTES, body)?);
        }
        let watch = Stopwatch::start();
        let mut yields = 0;
        for thread in started {
            yields += cx.wait_for(thread).await;
        }
        Ok(watch.stop(yields))
    })
}

/// A word to an accelerator and back, against two channels between OS threads.
fn mailboxes(args: &ThreadsArgs, machine: &Machine) -> anyhow::Result<Table> {
    let words = if args.rounds.quick { 100 } else { 20_000 };
    let mut versions = [
        Version::new("mailbox", 1, move || mailbox_round_trips(words)),
        Version::new("channel", 1, move || channel_round_trips(words)),
    ];
    let costs = paired(args.rounds.count(), &mut versions)?;
    let columns = [("round trip", ""), ("median", "ns"), ("least", "ns"), ("most", "ns")];
    let mut table =
        Table::new("threads: a word from the host to an accelerator and back", machine, &columns);
    for (index, name) in ["mailbox", "std::sync::mpsc"].into_iter().enumerate() {
        let spread = costs.item_ns(index);
        table.row([name.into(), spread.median.into(), spread.min.into(), spread.max.into()]);
    }
    Ok(table)
}

/// Answers each word by the next number.
async fn echo(cx: Cx<'_>, words: u32) {
    for _ in 0..words {
        let word = cx.read_mailbox().await;
        cx.write_mailbox(word.wrapping_add(1)).await;
    }
}

fn mailbox_round_trips(words: u32) -> anyhow::Result<Sample> {
    let (_, sample) = run_with_host(
        &one_accelerator(1),
        |cx, _| echo(cx, words),
        |host| {
            let start = Instant::now();
            let mut sum = 0_u64;
            for word in 0..words {
                host.write_mailbox(0, word)?;
                sum += u64::from(host.read_mailbox(0)?);
            }
            let seconds = start.elapsed().as_secs_f64();
            Ok::<_, cellway::accel::HostError>(Sample {
                seconds,
                items: u64::from(words),
                check: Some(sum),
            })
        },
    )?;
    Ok(sample?)
}

fn channel_round_trips(words: u32) -> anyhow::Result<Sample> {
    let (to, inbound) = std::sync::mpsc::sync_channel::<u32>(4);
    let (outbound, from) = std::sync::mpsc::sync_channel::<u32>(4);
    std::thread::scope(|scope| {
        scope.spawn(move || inbound.iter().all(|word| outbound.send(word.wrapping_add(1)).is_ok()));
        let start = Instant::now();
        let mut sum = 0_u64;
        for word in 0..words {
            to.send(word).context("the other thread ended")?;
            sum += u64::from(from.recv().context("the other thread ended")?);
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(to);
        Ok(Sample { seconds, items: u64::from(words), check: Some(sum) })
    })
}

/// Buffers from one local store to another.
fn sends(args: &ThreadsArgs, machine: &Machine) -> anyhow::Result<Table> {
    let columns = [
        ("length", "B"),
        ("1 thread", "ns"),
        ("1 thread", "MB/s"),
        ("4 threads", "ns"),
        ("4 threads", "MB/s"),
    ];
    let title = "threads: send from one local store to another, per buffer";
    let mut table = Table::new(title, machine, &columns);
    if machine.cpus < 2 {
        table.note("both accelerators share one processor");
    }
    let count = if args.rounds.quick { 64 } else { 5_000 };
    for &len_bytes in &args.sizes {
        let mut versions = [1, 4].map(|threads| {
            Version::new("send", threads, move || {
                send_buffers(threads, len_bytes, count / threads as u64)
            })
        });
        let costs = paired(args.rounds.count(), &mut versions)?;
        let cells = (0..2).flat_map(|version| {
            let ns = costs.item_ns(version).median;
            [Cell::from(ns), Cell::from(len_bytes as f64 * 1e3 / ns)]
        });
        table.row(std::iter::once(show_bytes(len_bytes as u64).into()).chain(cells));
    }
    Ok(table)
}

/// Accelerator 0 sends, accelerator 1 receives, `threads` threads each.
fn send_buffers(threads: usize, len_bytes: usize, each: u64) -> anyhow::Result<Sample> {
    let config = Config { accelerators: 2, ..one_accelerator(threads) };
    let mut sample = run_timed(&config, each * threads as u64, |cx, at| async move {
        let mut buf = cx.alloc(len_bytes)?;
        let mut sum = 0_u64;
        for number in 0..each {
            if at.accelerator == 0 {
                buf[0] = number as u8;
                buf = cx.send(buf, 1).await.map_err(|_| anyhow!("accelerator 1 is missing"))?;
            } else {
                buf = received(&cx, buf).await?;
                sum += u64::from(buf[0]);
            }
        }
        Ok(sum)
    })?;
    let wanted = threads as u64 * (0..each).map(|number| number & 0xff).sum::<u64>();
    anyhow::ensure!(sample.check == Some(wanted), "sent buffers arrived changed");
    sample.check = None;
    Ok(sample)
}

async fn received(cx: &Cx<'_>, buf: Buf) -> anyhow::Result<Buf> {
    cx.recv(buf).await.map(|(buf, _)| buf).map_err(|(_, error)| error.into())
}

/// Time of one get at a random place, waited for, with 1..N accelerators busy.
fn gets(args: &ThreadsArgs, machine: &Machine, pages: Pages) -> anyhow::Result<Table> {
    let accelerators: Vec<usize> =
        (1..=machine.cpus.max(1)).filter(|n| n.is_power_of_two() || *n == machine.cpus).collect();
    let names: Vec<String> = accelerators.iter().map(|n| format!("{n} busy")).collect();
    let mut columns = vec![("length", "B")];
    for name in &names {
        columns.extend([(name.as_str(), "ns"), (name.as_str(), "cycles")]);
    }
    let title = format!(
        "threads: one get from {} of memory (Figure 2): random, {} pages, waited ({LOAD_FENCE}), by busy accelerators",
        show_bytes(args.bytes),
        pages.name()
    );
    let mut table = Table::new(title, machine, &columns);
    let memory = Mem::from_fn(usize::try_from(args.bytes)?, pages, |index| index as u8 | 1)?;
    let region = Region::memory(&memory);
    let tour = std::cell::Cell::new(0);
    for &block_bytes in &args.sizes {
        let count =
            if args.rounds.quick { 64 } else { 100_000_u64.min((64 << 20) / block_bytes as u64) };
        let mut versions: Vec<Version<'_>> = accelerators
            .iter()
            .map(|&accelerators| {
                let (region, tour, bytes) = (&region, &tour, args.bytes);
                Version::new("get", accelerators, move || {
                    let blocks = Blocks::take(
                        tour,
                        bytes,
                        block_bytes,
                        Order::Random,
                        count * accelerators as u64,
                    );
                    get_blocks(region, blocks, accelerators)
                })
            })
            .collect();
        let costs = paired_on_stretches(args.rounds.count(), &mut versions)?;
        let cells = (0..accelerators.len()).flat_map(|version| {
            let ns = costs.item_ns(version).median;
            [Cell::from(ns), Cell::from(machine.cycles(ns))]
        });
        table.row(std::iter::once(show_bytes(block_bytes as u64).into()).chain(cells));
    }
    Ok(table)
}

/// One thread per accelerator; the items are the gets of one accelerator.
fn get_blocks(region: &Region<'_>, blocks: Blocks, accelerators: usize) -> anyhow::Result<Sample> {
    let config = Config { accelerators, ..one_accelerator(1) };
    let arrival = &Arrival::new(Discipline::Fence);
    let chain = &Chain::default();
    let work = Work { region, blocks, align_bytes: 1, arrival };
    run_timed(&config, blocks.count / accelerators as u64, |cx, at| {
        listing1::<false>(cx, at, work, |block| chain.read::<0>(block))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_mails_and_sends_are_all_made() {
        for threads in [1, 5] {
            assert_eq!(yield_stackless(threads, 100).unwrap().check, Some(100 * threads as u64));
            assert_eq!(yield_stackful(threads, 100).unwrap().check, Some(100 * threads as u64));
            assert_eq!(send_buffers(threads, 1000, 300).unwrap().items, 300 * threads as u64);
        }
        let sum = (1..=50).sum();
        assert_eq!(mailbox_round_trips(50).unwrap().check, Some(sum));
        assert_eq!(channel_round_trips(50).unwrap().check, Some(sum));
    }

    #[test]
    fn gets_touch_each_line_once() {
        let memory =
            Mem::from_fn(64 * 100, Pages::Small, |index| u8::from(index % 64 == 0)).unwrap();
        let region = Region::memory(&memory);
        for accelerators in [1, 2] {
            let tour = std::cell::Cell::new(5);
            let blocks = Blocks::take(&tour, 6400, 128, Order::Random, 50);
            assert_eq!(get_blocks(&region, blocks, accelerators).unwrap().check, Some(100));
        }
    }
}
