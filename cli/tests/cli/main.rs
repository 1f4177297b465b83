//! The program as its users meet it: what it prints, what it leaves on the
//! disk, and how it ends.

mod bad_disk;
mod bad_input;
mod demo;
mod fs;
mod interop;
mod kernels;
mod kills;
mod machine;
mod many;
mod many_kills;
mod names;
mod nodes;
mod nodes_journal;
mod nodes_many;
mod nodes_stopped;
mod nodes_unfit;
mod outputs;
mod program;
mod resume;
mod schemes;
mod signals;
mod sizes;
mod spread;
mod stats;
mod usage;
