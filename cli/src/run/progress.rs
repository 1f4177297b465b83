//! A progress bar on standard error, for people who wait.

use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::Scope;
use std::time::Duration;

use crate::size::Size;
use cellway::stream::{Progress, Rates, Step};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A shorter run shows nothing.
const SILENT: Duration = Duration::from_millis(500);
const REDRAW: Duration = Duration::from_millis(100);

const SIZED: &str =
    "{bytes:>10} of {total_bytes} [{bar:20}] {binary_bytes_per_sec}, {eta} left; {msg}";
const UNSIZED: &str = "{bytes:>10} {spinner} {binary_bytes_per_sec}, {elapsed}; {msg}";

/// How fast each step is, and which one bounds the run.
pub(super) fn steps(rates: &Rates) -> String {
    let bound = rates.bottleneck();
    let steps = [
        (rates.get, Step::Get, "read"),
        (rates.compute, Step::Compute, "compute"),
        (rates.put, Step::Put, "write"),
    ];
    let shown = steps.into_iter().filter_map(|(rate, step, name)| {
        let mark = if Some(step) == bound { " (the bottleneck)" } else { "" };
        Some(format!("{name} {}/s{mark}", Size(rate? as u64)))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Runs `work` while a thread shows its progress, if standard error is a
/// terminal. The bar is gone when this returns.
pub(super) fn show<T>(progress: &Progress, len_bytes: Option<u64>, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    std::thread::scope(|scope| {
        let done = spawn(scope, progress, len_bytes);
        let result = work();
        drop(done);
        result
    })
}

/// The thread ends when the sender is dropped.
fn spawn<'s>(
    scope: &'s Scope<'s, '_>,
    progress: &'s Progress,
    len_bytes: Option<u64>,
) -> Sender<()> {
    let (done, ended) = mpsc::channel::<()>();
    scope.spawn(move || {
        let bar = bar(len_bytes);
        while ended.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
            if bar.is_hidden() && bar.elapsed() >= SILENT {
                bar.set_draw_target(ProgressDrawTarget::stderr());
            }
            bar.set_message(steps(&progress.rates()));
            bar.update(|state| state.set_pos(progress.done_bytes()));
        }
        bar.finish_and_clear();
    });
    done
}

/// A bar that takes the time from now on, and is not seen yet.
fn bar(len_bytes: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len_bytes, ProgressDrawTarget::hidden());
    let template = if len_bytes.is_some() { SIZED } else { UNSIZED };
    let style = ProgressStyle::with_template(template).expect("the templates are tested");
    bar.with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_sound() {
        for template in [SIZED, UNSIZED] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
