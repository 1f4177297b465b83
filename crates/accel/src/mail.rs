//! Mailboxes, signals, and parcels between local stores: the program's side.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::cx::Cx;
use crate::machine::{Post, lock};
use crate::parcel::Parcel;
use crate::store::Buf;

impl Cx<'_> {
    /// Reads the inbound mailbox; an empty one makes the thread wait.
    pub async fn read_mailbox(&self) -> u32 {
        let word = self.when_posted("its mailbox", |post| lock(&post.inbound).pop_front()).await;
        self.core.machine.notify_host();
        word
    }

    /// Writes the outbound mailbox; a full one makes the thread wait.
    pub async fn write_mailbox(&self, word: u32) {
        let room = self.core.machine.mailbox_entries;
        self.when_posted("room in its outbound mailbox", |post| {
            let mut outbound = lock(&post.outbound);
            (outbound.len() < room).then(|| outbound.push_back(word))
        })
        .await;
        self.core.machine.notify_host();
    }

    /// Takes the signals OR-ed in so far; none makes the thread wait.
    pub async fn read_signals(&self) -> u32 {
        self.when_posted("a signal", |post| match post.signals.swap(0, Ordering::SeqCst) {
            0 => None,
            bits => Some(bits),
        })
        .await
    }

    /// ORs `bits` into another accelerator's signals.
    pub fn signal(&self, accelerator: usize, bits: u32) {
        if let Some(post) = self.core.machine.posts.get(accelerator) {
            post.signals.fetch_or(bits, Ordering::SeqCst);
            post.notify();
        }
    }

    /// Offers the buffer's view to another accelerator and waits until it has
    /// copied it into a buffer of its own store. Dropped before that, the
    /// offer is taken back. `Err` gives the buffer back if there is no such accelerator.
    pub async fn send(&self, buf: Buf, accelerator: usize) -> Result<Buf, Buf> {
        self.send_on(0, buf, accelerator).await
    }

    /// As [`Cx::send`], to whoever receives on that channel: parcels of one
    /// channel never wait for those of another to be taken.
    pub async fn send_on(&self, channel: u32, buf: Buf, accelerator: usize) -> Result<Buf, Buf> {
        let core = &*self.core;
        let Some(post) = core.machine.posts.get(accelerator) else { return Err(buf) };
        let number = core.parcels_sent.get();
        core.parcels_sent.set(number + 1);
        let taken = Arc::new(AtomicBool::new(false));
        let parcel = Parcel {
            from: core.number,
            number,
            channel,
            start: std::ptr::NonNull::from(&buf[..]).cast(),
            len: buf.len(),
            _arena: buf.arena().clone(),
            taken: taken.clone(),
        };
        lock(&post.parcels).push_back(parcel);
        post.notify();
        let offer = Offer { post, from: core.number, number, buf: Some(buf) };
        self.when_posted("a receiver of its parcel", |_| {
            taken.load(Ordering::SeqCst).then_some(())
        })
        .await;
        offer.accepted()
    }

    /// Waits for a parcel and copies it into `buf`, whose view becomes it.
    /// Returns the buffer and the sender's number; `Err` if it does not fit
    /// (the parcel stays).
    pub async fn recv(&self, buf: Buf) -> Result<(Buf, usize), (Buf, NoFit)> {
        self.recv_on(0, buf).await
    }

    /// As [`Cx::recv`], of the parcels of that channel; [`Cx::send`] sends on 0.
    pub async fn recv_on(&self, channel: u32, buf: Buf) -> Result<(Buf, usize), (Buf, NoFit)> {
        let mut buf = Some(buf);
        let copied = self
            .when_posted("a parcel", |post| {
                let mut parcels = lock(&post.parcels);
                let at = parcels.iter().position(|parcel| parcel.channel == channel)?;
                let parcel = &parcels[at];
                let buf = buf.as_mut()?;
                if parcel.len > buf.capacity_bytes() {
                    return Some(Err(NoFit {
                        parcel_bytes: parcel.len,
                        capacity_bytes: buf.capacity_bytes(),
                    }));
                }
                parcel.open(buf);
                Some(Ok(parcels.remove(at)?.from))
            })
            .await;
        let buf = buf.take().expect("only lent to the closure above");
        match copied {
            Ok(from) => {
                self.core.machine.posts[from].notify();
                Ok((buf, from))
            }
            Err(no_fit) => Err((buf, no_fit)),
        }
    }

    async fn when_posted<R>(
        &self,
        what: &'static str,
        mut look: impl FnMut(&Post) -> Option<R>,
    ) -> R {
        poll_fn(move |cx| match look(&self.core.post) {
            Some(found) => Poll::Ready(found),
            None => {
                self.core.wait_for_post(cx, what);
                Poll::Pending
            }
        })
        .await
    }
}

/// A parcel is larger than the buffer it should go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a parcel of {parcel_bytes} bytes does not fit a buffer of {capacity_bytes} bytes")]
pub struct NoFit {
    /// The parcel's length.
    pub parcel_bytes: usize,
    /// What the buffer holds.
    pub capacity_bytes: usize,
}

/// A parcel on offer; dropping it takes the offer back.
struct Offer<'p> {
    post: &'p Post,
    from: usize,
    number: u64,
    buf: Option<Buf>,
}

impl Offer<'_> {
    fn accepted(mut self) -> Result<Buf, Buf> {
        Ok(self.buf.take().expect("an offer holds its buffer until it is accepted or dropped"))
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        // The receiver copies under this lock: after it, nobody reads the buffer.
        lock(&self.post.parcels).retain(|p| (p.from, p.number) != (self.from, self.number));
    }
}
