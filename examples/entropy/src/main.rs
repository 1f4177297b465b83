//! A stranger's crate: it knows `cellway` alone and adds a kernel and a program.
//!
//! `cargo run --release -p entropy -- FILE` prints how many bits of information
//! a byte of the file carries: from all of it, and from a random sample.
#![forbid(unsafe_code)]

mod kernel;
mod program;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use cellway::Config;
use cellway::accel::Region;
use cellway::storage::Input;

use kernel::{CountBytes, Counts};
use program::{RECORD_BYTES, gather};

/// Records in the sample.
const RECORDS: usize = 1024;

fn main() -> ExitCode {
    let file = std::env::args_os().nth(1).map_or("Cargo.lock".into(), PathBuf::from);
    match entropies(&file) {
        Ok((whole, sampled)) => {
            println!("{whole:.3} bits per byte in {}", file.display());
            println!("{sampled:.3} bits per byte in {RECORDS} random records");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("entropy: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Of the whole file, and of a sample.
fn entropies(file: &std::path::Path) -> Result<(f64, f64), Box<dyn Error>> {
    let whole = Config::default().reduce(&CountBytes, file)?.part;

    let input = Input::open(file)?;
    let len_bytes = input.len_bytes().ok_or("a pipe has no random places; name a file")?;
    if len_bytes < RECORD_BYTES as u64 {
        return Err(
            format!("{} is smaller than a record of {RECORD_BYTES} bytes", file.display()).into()
        );
    }
    let region = Region::file(input.file().clone(), 0..len_bytes, input.name());
    let mut sample = vec![0; RECORDS * RECORD_BYTES];
    gather(&region, &mut sample)?;
    let mut sampled = [0; 256];
    sample.iter().for_each(|byte| sampled[usize::from(*byte)] += 1);

    Ok((bits(&whole), bits(&sampled)))
}

/// Shannon's entropy of bytes that occur so often.
fn bits(counts: &Counts) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let share = counts.iter().filter(|count| **count > 0).map(|count| *count as f64 / total);
    share.map(|share| -share * share.log2()).sum()
}

#[cfg(test)]
mod tests;
