//! `shim.c` from Rust: its table of calls, and transfers that own their bytes.

use std::ffi::CStr;
use std::io::Write as _;
use std::mem;
use std::os::raw::c_char;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// What `shim.c` calls version 1 of its table.
#[repr(C)]
#[derive(Debug)]
struct Table {
    version: i32,
    start: unsafe extern "C" fn(*mut Started) -> i32,
    send: unsafe extern "C" fn(*const u8, i32, i32, i32, *mut u64) -> i32,
    match_: unsafe extern "C" fn(*mut Matched) -> i32,
    receive: unsafe extern "C" fn(*mut u8, i32, u64, *mut u64) -> i32,
    test: unsafe extern "C" fn(*mut u64, *mut i32) -> i32,
    lost: unsafe extern "C" fn(*mut i32, i32, *mut i32) -> i32,
    end: unsafe extern "C" fn() -> i32,
    leave: unsafe extern "C" fn(i32),
    text_of: unsafe extern "C" fn(i32, *mut c_char, i32),
    library: unsafe extern "C" fn(*mut c_char, *mut c_char, i32),
}

const VERSION: i32 = 1;

/// What MPI says of this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Started {
    pub(super) own: i32,
    pub(super) peers: i32,
    /// Not 0 if this MPI can report lost peers.
    pub(super) reports_losses: i32,
}

/// A message that waits to be received.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Matched {
    is_there: i32,
    pub(super) from: i32,
    pub(super) tag: i32,
    /// Bytes; negative if MPI cannot say.
    pub(super) count: i32,
    message: u64,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// It ran into a peer that is gone.
    Lost,
    Failed(String),
}

impl Fault {
    /// Of what several calls came to in one look: what ends the transport goes before a loss,
    /// which is found again, and the first before what it led to.
    pub(super) fn worse(self, known: Option<Self>) -> Self {
        match (known, &self) {
            (None, _) | (Some(Self::Lost), Self::Failed(_)) => self,
            (Some(known), _) => known,
        }
    }
}

/// The table of the shim that was loaded.
static TABLE: OnceLock<&'static Table> = OnceLock::new();
/// MPI starts once in the life of a process.
static STARTED: AtomicBool = AtomicBool::new(false);
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// Loads a compiled shim, and with it MPI, for good.
pub(super) fn load(path: &Path) -> Result<(), String> {
    // SAFETY: what runs is the initialisation of a shared library that the user's own
    // mpicc made of shim.c, or that the user names.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    let library = library.map_err(|error| error.to_string())?;
    // SAFETY: shim.c has a table by this name, which starts with a number in any version.
    let version = unsafe { library.get::<*const i32>(b"cellway_mpi\0").map(|table| **table) };
    let version = version.map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is version {version} of the shim, not {VERSION}"));
    }
    // SAFETY: by its version the table is one of `Table`; it stays where it is, for the
    // library is not unloaded.
    let table = unsafe { library.get::<*const Table>(b"cellway_mpi\0").map(|table| &**table) };
    let table = table.map_err(|error| error.to_string())?;
    mem::forget(library);
    TABLE.get_or_init(|| table);
    Ok(())
}

/// Name and version of the MPI that was loaded, and what the shim was compiled for:
/// a part of that.
pub(super) fn library() -> Option<(String, String)> {
    const ROOM: usize = 1024;
    let table = TABLE.get()?;
    let (mut text, mut compiled_for) = ([0; ROOM], [0; ROOM]);
    // SAFETY: it writes strings of at most so many bytes; MPI allows it before its start.
    unsafe {
        (table.library)(text.as_mut_ptr().cast(), compiled_for.as_mut_ptr().cast(), ROOM as i32)
    };
    Some((string(&text), string(&compiled_for)))
}

fn string(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).unwrap_or_default();
    text.to_string_lossy().trim().to_owned()
}

/// Whether MPI was started here and not ended.
pub(super) fn is_running() -> bool {
    IS_RUNNING.load(Ordering::Acquire)
}

/// Ends this process: at once if MPI still runs, else as ever, for MPICH says its last
/// words to mpiexec at the exit of a process.
pub(super) fn leave(code: i32) -> ! {
    let _ = std::io::stdout().flush();
    if let Some(table) = TABLE.get().filter(|_| is_running()) {
        // SAFETY: it calls `_exit`, which any process may do at any time.
        unsafe { (table.leave)(code) };
    }
    std::process::exit(code)
}

/// MPI between its start and its end; there is one in a process. MPI allows one call
/// at a time (MPI_THREAD_SERIALIZED), so all take it exclusively.
#[derive(Debug)]
pub(super) struct Calls(&'static Table);

impl Calls {
    /// Starts MPI.
    pub(super) fn start() -> Result<(Self, Started), String> {
        let table = TABLE.get().ok_or("no shim is loaded")?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err("it was started in this process before".into());
        }
        let mut started = Started::default();
        // SAFETY: it is the first and only such call of this process.
        match unsafe { (table.start)(&raw mut started) } {
            0 => {}
            -2 => return Err("another part of this program has started it".into()),
            -3 => return Err("it does not support MPI_THREAD_SERIALIZED".into()),
            error => return Err(format!("MPI_Init_thread: error {error}")),
        }
        IS_RUNNING.store(true, Ordering::Release);
        Ok((Self(table), started))
    }

    fn outcome(&mut self, call: &str, error: i32) -> Result<(), Fault> {
        const ROOM: usize = 512;
        match error {
            0 => Ok(()),
            -1 => Err(Fault::Lost),
            error => {
                let mut text = [0; ROOM];
                // SAFETY: it writes a string of at most so many bytes.
                unsafe { (self.0.text_of)(error, text.as_mut_ptr().cast(), ROOM as i32) };
                Err(Fault::Failed(format!("{call}: {}", string(&text))))
            }
        }
    }

    /// Starts to send.
    pub(super) fn send(&mut self, bytes: Vec<u8>, to: u32, tag: i32) -> Result<Transfer, Fault> {
        let mut transfer = Transfer { count: bytes.len(), bytes, request: 0, is_done: false };
        let count = transfer.count as i32;
        // SAFETY: the bytes are there until MPI is through: the transfer frees them
        // only then. Their number fits, being at most MESSAGE_BYTES_MAX.
        let error = unsafe {
            let bytes = transfer.bytes.as_ptr();
            (self.0.send)(bytes, count, to as i32, tag, &raw mut transfer.request)
        };
        self.outcome("MPI_Isend", error).map(|()| transfer)
    }

    /// The next message of anybody; it must be received.
    pub(super) fn matched(&mut self) -> Result<Option<Matched>, Fault> {
        let mut matched = Matched::default();
        // SAFETY: it writes into `matched` only.
        let error = unsafe { (self.0.match_)(&raw mut matched) };
        self.outcome("MPI_Improbe", error)?;
        Ok((matched.is_there != 0).then_some(matched))
    }

    /// Starts to receive into new memory.
    pub(super) fn receive(&mut self, matched: &Matched) -> Result<Transfer, Fault> {
        let count = usize::try_from(matched.count).unwrap_or(0);
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(count).is_err() {
            return Err(Fault::Failed(format!("no memory for a message of {count} bytes")));
        }
        let mut transfer = Transfer { bytes, count, request: 0, is_done: false };
        // SAFETY: there is room for that many bytes, until MPI is through: the transfer
        // frees it only then.
        let error = unsafe {
            let bytes = transfer.bytes.as_mut_ptr();
            (self.0.receive)(bytes, count as i32, matched.message, &raw mut transfer.request)
        };
        self.outcome("MPI_Imrecv", error).map(|()| transfer)
    }

    /// Whether it is done. After an error the transfer is of no use.
    pub(super) fn test(&mut self, transfer: &mut Transfer) -> Result<bool, Fault> {
        if !transfer.is_done {
            let mut is_done = 0;
            // SAFETY: the request is one that MPI made, or its null after it was done.
            let error = unsafe { (self.0.test)(&raw mut transfer.request, &raw mut is_done) };
            transfer.is_done = is_done != 0;
            if error != 0 {
                // How much of it was filled nobody says.
                transfer.count = 0;
            }
            self.outcome("MPI_Test", error)?;
        }
        Ok(transfer.is_done)
    }

    /// All peers that are lost, of so many.
    pub(super) fn lost(&mut self, peers: u32) -> Result<Vec<u32>, Fault> {
        let mut lost = vec![0; peers as usize];
        let mut count = 0;
        // SAFETY: it writes at most so many numbers.
        let error = unsafe { (self.0.lost)(lost.as_mut_ptr(), peers as i32, &raw mut count) };
        self.outcome("MPIX_Comm_get_failed", error)?;
        lost.truncate(usize::try_from(count).unwrap_or(0));
        Ok(lost.into_iter().filter_map(|peer| u32::try_from(peer).ok()).collect())
    }

    /// Ends MPI. It waits for all peers to do that.
    pub(super) fn end(mut self) -> Result<(), Fault> {
        // SAFETY: no call comes after it: `self` is gone then.
        let error = unsafe { (self.0.end)() };
        self.outcome("MPI_Finalize", error)?;
        IS_RUNNING.store(false, Ordering::Release);
        Ok(())
    }
}

/// Bytes that MPI sends or fills. If it is dropped before it is done, they are never
/// freed, for MPI still uses them.
#[derive(Debug)]
pub(super) struct Transfer {
    bytes: Vec<u8>,
    count: usize,
    request: u64,
    is_done: bool,
}

impl Transfer {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// What was received.
    pub(super) fn into_bytes(mut self) -> Option<Vec<u8>> {
        if !self.is_done {
            return None;
        }
        let mut bytes = mem::take(&mut self.bytes);
        // SAFETY: MPI is through and has filled that many, none after an error, and there is
        // room for them.
        unsafe { bytes.set_len(self.count) };
        Some(bytes)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.is_done {
            mem::forget(mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of faults that come in one look.
    fn told<const N: usize>(faults: [Option<&str>; N]) -> Option<String> {
        let fault =
            |what: Option<&str>| what.map_or(Fault::Lost, |what| Fault::Failed(what.into()));
        let worst = faults.into_iter().fold(None, |known, what| Some(fault(what).worse(known)));
        match worst? {
            Fault::Lost => Some("a loss".to_owned()),
            Fault::Failed(what) => Some(what),
        }
    }

    #[test]
    fn a_loss_hides_no_failure_and_the_first_of_these_is_told() {
        assert_eq!(told([]), None);
        assert_eq!(told([None, None]).as_deref(), Some("a loss"));
        for faults in [[Some("one"), None, Some("two")], [None, Some("one"), None]] {
            assert_eq!(told(faults).as_deref(), Some("one"));
        }
    }
}
