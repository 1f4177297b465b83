//! A progress bar on standard error, for people who wait.

use std::io::IsTerminal as _;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::Scope;
use std::time::{Duration, Instant};

use cellway::stream::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A shorter run shows nothing.
const SILENT: Duration = Duration::from_millis(500);
const REDRAW: Duration = Duration::from_millis(100);

const SIZED: &str = "{bytes:>10} of {total_bytes} [{bar:28}] {binary_bytes_per_sec}, {eta} left";
const UNSIZED: &str = "{bytes:>10} {spinner} {binary_bytes_per_sec}, {elapsed}";

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
    let started = Instant::now();
    let waits = move |time| ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    scope.spawn(move || {
        if !waits(SILENT) {
            return;
        }
        let bar = bar(len_bytes).with_elapsed(started.elapsed());
        while waits(REDRAW) {
            bar.set_position(progress.done_bytes());
            bar.tick();
        }
        bar.finish_and_clear();
    });
    done
}

fn bar(len_bytes: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(len_bytes, ProgressDrawTarget::stderr());
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
