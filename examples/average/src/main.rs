//! A stranger's kernel with typed parameters, units and results: k-means.
//!
//! `cargo run --release -p average -- [FILE]` groups points, three `f32` each, of the
//! file around four means and prints these as JSON. Without a file it makes points.
#![forbid(unsafe_code)]

mod kernel;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cellway::Options;
use cellway::cluster::drive::{Config, Queue, run_local_led};
use cellway::cluster::task::KernelTask;
use cellway::record::{Record, Records};
use cellway::storage::Input;
use cellway::stream::Progress;

use kernel::{Average, Averages, Point};

/// The means are moved so often.
const ROUNDS: usize = 8;

/// Nodes that compute, threads of this process.
const NODES: u32 = 2;

/// Points that are made.
const POINTS: u32 = 100_000;

fn main() -> ExitCode {
    let result = match std::env::args_os().nth(1) {
        Some(file) => means_of(Path::new(&file)),
        None => means_of_some(),
    };
    let told = result.and_then(|means| {
        println!("{}", Average::LAYOUT);
        // As a tool prints them that does not know the type.
        for mean in Records::of(&means).views() {
            println!("{}", mean.to_json()?);
        }
        Ok(())
    });
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("average: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The means of points that are made for it.
fn means_of_some() -> Result<Vec<Average>, Box<dyn Error>> {
    let name = format!("cellway-average-{}", std::process::id());
    let file: PathBuf = std::env::temp_dir().join(name);
    let points = (0..POINTS).map(some_point).collect::<Vec<_>>();
    std::fs::write(&file, Records::of(&points).bytes())?;
    let means = means_of(&file);
    std::fs::remove_file(&file)?;
    means
}

/// One of four heaps around (10, 10, 10), (20, 20, 20) and so on.
fn some_point(number: u32) -> Point {
    let heap = (number % 4 + 1) as f32 * 10.0;
    let random = |axis: u32| number.wrapping_mul(0x9e37_79b9).rotate_left(8 * axis) % 200;
    Point { coord: [0, 1, 2].map(|axis| heap + random(axis) as f32 / 100.0 - 1.0) }
}

/// Where four means end up.
fn means_of(file: &Path) -> Result<Vec<Average>, Box<dyn Error>> {
    let start = |id: u32| Average { id, count: 0, coord: [f64::from(id) * 10.0; 3] };
    let kernel = Averages { means: [1, 2, 3, 4].map(start).to_vec() };
    let options = Options { accelerators: Some(1), ..Options::default() };
    let (input, progress) = (Input::open(file)?, Progress::default());
    let task = KernelTask::new(&kernel, &input, None, &options, &progress)?;
    let mut means = kernel.means.clone();
    // Each round is a job with the means that the one before found; nodes stay.
    let rounds = |queue: &Queue<'_>| {
        for _ in 0..ROUNDS {
            let job = queue.submit(0, Some(&Records::of(&means).to_bytes()))?;
            let sums = task.result(queue.wait(job)?)?;
            for (mean, sum) in means.iter_mut().zip(sums).filter(|(_, sum)| sum.count > 0) {
                *mean = Average { coord: sum.coord.map(|x| x / sum.count as f64), ..sum };
            }
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(means)
    };
    let (means, _) = run_local_led(NODES, &[&task], &Config::default(), rounds)?;
    means.map_err(|error| -> Box<dyn Error> { error })
}

#[cfg(test)]
mod tests;
