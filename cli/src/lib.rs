//! The program `cellway`: streams files through kernels in memory that is
//! known before the run.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod exit;
mod fs;
mod info;
mod kernels;
mod run;
mod serve;
mod signals;
mod size;
mod stdout;

#[cfg(any(test, fuzzing))]
pub mod fuzzed;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Exit;

/// Stream a file through a kernel, in memory known before the run
#[derive(Parser, Debug)]
#[command(name = "cellway", version, max_term_width = 80, after_help = Exit::help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Run(Box<run::RunArgs>),
    Kernels(kernels::KernelsArgs),
    Info(info::InfoArgs),
    Serve(serve::ServeArgs),
    Fs(fs::FsArgs),
    Bench(bench::BenchArgs),
}

/// Does what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return exit::of_parsing(&error).into(),
    };
    let done = signals::handle().and_then(|()| match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Run(args) => run::run(&args),
        Command::Kernels(args) => kernels::kernels(&args),
        Command::Info(args) => info::info(&args),
        Command::Serve(args) => serve::serve(args),
        Command::Fs(args) => fs::fs(&args),
        Command::Bench(args) => bench::bench(&args),
    });
    let exit = match done {
        Ok(()) => Exit::Done,
        Err(error) => exit::of_failure(&error),
    };
    run::cluster::leave(exit.code());
    exit.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
