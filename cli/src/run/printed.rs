//! The result of a reduction.

use std::io::{ErrorKind, Write as _};

use cellway::kernels::{Finish, Report as _};
use cellway::stream::Chain;
use cellway_bench::Format;

use super::Run;
use crate::stdout::Stdout;

impl Run<'_> {
    /// Prints what came of a reduction.
    pub(super) fn print<K: Finish>(&self, kernel: &Chain<K>, part: K::Part) -> anyhow::Result<()> {
        let name = self.places.inputs[0].display();
        let finished = kernel.last().finish(part);
        let mut report = finished.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        let mut out = Stdout::lock();
        let written = match self.args.format {
            Format::Text => report.write_text(&mut out),
            Format::Json => report.write_json(&mut out),
        };
        match written.and_then(|()| out.flush()) {
            // Whoever read the result has seen enough; the statistics are still wanted.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
