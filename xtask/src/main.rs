//! Developer commands: `cargo xtask test`, `tidy`, `bench`, `valgrind`.
//!
//! `test` is the one command that passes or fails a checkout: it prepares what
//! it needs, runs everything, and names all that it had to skip. `tidy` checks
//! what the compiler cannot: the direction of dependencies, where `unsafe` may
//! stand, the length of files, links. Each command has a file of its own.

#![forbid(unsafe_code)]

mod bench;
mod peers;
mod step;
mod test;
mod tidy;
mod valgrind;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Developer commands of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Prepare, then run every test, example and benchmark (small), and the
    /// memory checks; report all that was skipped. With CI=true nothing may be.
    Test,
    /// Check what the compiler cannot: dependency direction, unsafe code,
    /// file lengths, leftover markers, links and the folder map.
    Tidy,
    /// Run the experiments at full size and record them in bench/results.
    Bench(bench::Args),
    /// Run the tests about memory safety again under valgrind.
    Valgrind,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Test => test::run(),
        Command::Tidy => tidy::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Valgrind => valgrind::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Returned from main it would come with a backtrace.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
