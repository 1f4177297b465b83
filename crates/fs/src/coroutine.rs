//! Coroutines as the paper has them (CellFS, section 4): plain functions, each
//! on a stack of its own, whose file calls block in form only.
//!
//! They are the stackful threads of [`accel`] with the job's files in hand. A
//! coroutine runs until it waits; who is made waits in line behind the others,
//! so schedules are the same each time, and variables need no locks. They live
//! beside stackless threads, on as many accelerators as there are.
//!
//! ```
//! use std::sync::Arc;
//! use cellway_fs::{Coroutine, Files, OpenMode, RamServer, cormain, wait};
//! use accel::Config;
//!
//! let files = Files::new("ann").with("#r", Arc::new(RamServer::new(1 << 20)))?;
//!
//! fn cor(co: &Coroutine<'_, '_>) {
//!     let mut fd = co.wait(co.files().create("#r/test", 0o644, OpenMode::WRITE)).unwrap();
//!     co.wait(fd.write_all(b"hello world\n")).unwrap();
//!     fd.close();
//! }
//!
//! let config = Config { accelerators: 1, ..Config::default() };
//! cormain(&config, &files, 64 << 10, |co| {
//!     co.mkcor(16 << 10, cor).unwrap();
//! })?;
//! assert_eq!(wait(files.stat("#r/test"))?.length, 12);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;

use accel::{Config, Cx, Place, RunError, StackCx, StackfulError, Thread, run};

use crate::files::Files;

/// What a coroutine sees: the files, its accelerator, and a way to wait.
pub struct Coroutine<'s, 'env> {
    stack: &'s StackCx<'s, 'env>,
    files: Files<Cx<'env>>,
    place: Place,
}

/// Why [`cormain`] did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum CoroutineError {
    /// The first coroutine could not be made.
    #[error(transparent)]
    Stack(#[from] StackfulError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Runs `main` as the first coroutine of each accelerator, on a stack of about
/// `stack_bytes`, and blocks until all coroutines have ended. What `main` gave,
/// by accelerator.
///
/// # Errors
/// A run that failed, or no memory for a stack.
pub fn cormain<T: Send>(
    config: &Config,
    files: &Files,
    stack_bytes: usize,
    main: impl Fn(&Coroutine<'_, '_>) -> T + Sync,
) -> Result<Vec<T>, CoroutineError> {
    let main = &main;
    // One that starts `main`, and then is in nobody's way.
    let config =
        Config { threads: 1, threads_max: config.threads_max.saturating_add(1), ..config.clone() };
    let ends = run(&config, |cx, place| {
        let files = files.on(&cx);
        async move {
            let first = cx.spawn_stackful(stack_bytes, move |stack| {
                main(&Coroutine { stack, files, place })
            })?;
            Ok(first.await)
        }
    })?;
    ends.into_iter().collect()
}

impl<'env> Coroutine<'_, 'env> {
    /// The job's files, for this accelerator.
    #[must_use]
    pub fn files(&self) -> &Files<Cx<'env>> {
        &self.files
    }

    /// The accelerator.
    #[must_use]
    pub fn cx(&self) -> &Cx<'env> {
        self.stack.cx()
    }

    /// Which accelerator of how many.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Waits for a file call, a transfer or another coroutine's end while the
    /// others run: blocking in form, cooperative in fact.
    #[inline]
    pub fn wait<F: Future>(&self, call: F) -> F::Output {
        self.stack.wait(call)
    }

    /// Gives the others a turn.
    #[inline]
    pub fn yield_now(&self) {
        self.stack.yield_now();
    }

    /// Makes another coroutine, on a stack of about `stack_bytes` (at least
    /// 16 KiB are taken). It stands last in line: nothing of it runs before
    /// this one waits. Its end can be waited for.
    ///
    /// # Errors
    /// The limit of threads, or no memory for the stack.
    pub fn mkcor<T: 'env>(
        &self,
        stack_bytes: usize,
        body: impl FnOnce(&Coroutine<'_, 'env>) -> T + 'env,
    ) -> Result<Thread<'env, T>, StackfulError> {
        let (files, place) = (self.files.clone(), self.place);
        self.cx().spawn_stackful(stack_bytes, move |stack| body(&Coroutine { stack, files, place }))
    }
}
