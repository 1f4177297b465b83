//! Whole runs, against plain references: every shape of kernel, every kind of
//! input and output, and what goes wrong.

mod changes;
mod control;
mod direct;
mod failures;
mod many;
mod many_resume;
mod mapped;
mod memory;
mod pipes;
mod probe;
mod results;
mod resume;
mod rewrites;
mod setting;
mod share;
mod spread;
