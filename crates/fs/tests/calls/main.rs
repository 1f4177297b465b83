//! File calls and coroutines.

mod coroutines;
mod files;
mod harness;
