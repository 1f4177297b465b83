//! The program `cellway`; see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    cellway_cli::main()
}
