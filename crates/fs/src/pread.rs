//! A read of an open file, under way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::caller::Caller;
use crate::error::FsError;
use crate::file::File;
use crate::memory::{FileMemory, Stretch};

pin_project! {
    /// Not an async function: that would move the words of `into` once more when it is
    /// first polled, as one, which they were not written as. The processor then waits until all
    /// that the read before stored is in its cache.
    pub(crate) struct Pread<'f, C, S, F>
    where
        C: Caller,
        C: 'f,
    {
        file: &'f File<C>,
        offset: u64,
        // Whether the file goes on behind what is read.
        moves: bool,
        ask: S,
        #[pin]
        step: Step<'f, C, F>,
    }
}

pin_project! {
    #[project = StepNow]
    enum Step<'f, C, F>
    where
        C: Caller,
        C: 'f,
    {
        Copy { copy: C::Copy<'f>, memory: &'f dyn FileMemory, generation: u64 },
        Ask { #[pin] answer: F },
    }
}

impl<'f, C, S, F> Pread<'f, C, S, F>
where
    C: Caller,
    S: Fn(&'f File<C>, u64, &'f mut [u8]) -> F,
{
    /// Reads at `offset`; `ask` reads what does not lie in memory in one piece.
    #[inline]
    pub(crate) fn new(
        file: &'f File<C>,
        offset: u64,
        into: &'f mut [u8],
        moves: bool,
        ask: S,
    ) -> Self {
        let step = match file.readable_memory().map(|memory| (memory, memory.stretch(offset))) {
            Some((memory, Stretch::Bytes { region, at, len_bytes, generation }))
                if into.len() as u64 <= len_bytes =>
            {
                let goes_on = file.goes_on(offset, into.len());
                let copy = file.caller().copy(region, at, into, goes_on);
                Step::Copy { copy, memory, generation }
            }
            _ => Step::Ask { answer: ask(file, offset, into) },
        };
        Self { file, offset, moves, ask, step }
    }
}

impl<'f, C, S, F> Future for Pread<'f, C, S, F>
where
    C: Caller,
    S: Fn(&'f File<C>, u64, &'f mut [u8]) -> F,
    F: Future<Output = Result<usize, FsError>>,
{
    type Output = Result<usize, FsError>;

    /// Where the caller stands: a call and the words that it saves are 1% of a read of 8 KiB.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let count = loop {
            match this.step.as_mut().project() {
                StepNow::Copy { copy, memory, generation } => {
                    let copied = ready!(Pin::new(copy).poll(cx));
                    let into = copied.map_err(|error| this.file.not_copied(&error))?;
                    if memory.counts(*generation, *this.offset, into) {
                        break into.len();
                    }
                    let answer = (this.ask)(this.file, *this.offset, into);
                    this.step.set(Step::Ask { answer });
                }
                StepNow::Ask { answer } => break ready!(poll_apart(answer, cx))?,
            }
        };
        if *this.moves {
            this.file.move_to(this.offset.saturating_add(count as u64));
        }
        Poll::Ready(Ok(count))
    }
}

/// Polls what is seldom polled.
#[cold]
#[inline(never)]
fn poll_apart<F: Future>(future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    future.poll(cx)
}
