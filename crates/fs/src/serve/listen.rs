//! Where clients come in.

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::socket_with;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen};

use crate::address::Address;
use crate::error::{FsError, Kind};
use crate::tcp;

/// Clients that wait to be let in.
const BACKLOG: i32 = 128;

/// How often and after how long the lock of a directory is tried again: servers hold it shortly.
const LOCK_TRIES: u32 = 50;
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A socket that clients connect to.
pub(super) struct Listener {
    socket: Socket,
    address: Address,
}

enum Socket {
    /// Its name goes first.
    Unix {
        _name: SocketFile,
        socket: UnixListener,
    },
    Tcp(TcpListener),
}

impl Listener {
    pub(super) fn new(at: &Address, remote: bool) -> Result<Self, FsError> {
        match at {
            Address::Unix(path) => {
                let (socket, _name) = listen_unix(path)?;
                Ok(Self { socket: Socket::Unix { _name, socket }, address: at.clone() })
            }
            Address::Tcp { host, port } => {
                let socket = listen_tcp(at, host, *port, remote)?;
                let port = socket.local_addr().map_err(|error| system(at, &error))?.port();
                let address = Address::Tcp { host: host.clone(), port };
                Ok(Self { socket: Socket::Tcp(socket), address })
            }
        }
    }

    /// Where it is reached.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The next client, if one is there.
    pub(super) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let stream = match &self.socket {
            Socket::Unix { socket, .. } => socket.accept().map(|(stream, _)| stream.into()),
            Socket::Tcp(socket) => socket.accept().and_then(|(stream, _)| prepared(stream)),
        };
        match stream {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix { socket, .. } => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

fn prepared(stream: TcpStream) -> io::Result<OwnedFd> {
    tcp::prepare(&stream)?;
    Ok(stream.into())
}

fn system(at: &Address, error: &io::Error) -> FsError {
    FsError::io(at.to_string(), error)
}

fn listen_tcp(at: &Address, host: &str, port: u16, remote: bool) -> Result<TcpListener, FsError> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| system(at, &error))?;
    let addresses: Vec<_> = addresses.collect();
    if !remote && !addresses.iter().all(|address| address.ip().is_loopback()) {
        let what = "other machines reach that address, and nobody is asked who they are: \
                    take 127.0.0.1, or allow it expressly";
        return Err(FsError::because(Kind::Permission, at.to_string(), what));
    }
    let listener = TcpListener::bind(&addresses[..]).map_err(|error| system(at, &error))?;
    listener.set_nonblocking(true).map_err(|error| system(at, &error))?;
    Ok(listener)
}

/// The name of a socket, which goes when nobody listens any more.
struct SocketFile {
    path: PathBuf,
    /// Device and inode: whose name it is by then.
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock, who takes the name right now may lose it.
        let _lock = lock_directory(&self.path);
        if identity(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Keeps other servers from taking or leaving a name beside `path` meanwhile. Whoever may
/// read the directory may hold its lock for ever, so it is not waited for.
fn lock_directory(path: &Path) -> io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    for _ in 0..LOCK_TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_RETRY),
            locked => return locked.map(|()| directory).map_err(io::Error::from),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::WouldBlock,
        "another program keeps a lock on the socket's directory: end it, \
         or take a directory of your own",
    ))
}

/// A socket that is its owner's alone from the moment it has a name.
fn listen_unix(path: &Path) -> Result<(UnixListener, SocketFile), FsError> {
    let name = || format!("unix:{}", path.display());
    let io = |error: io::Error| FsError::io(name(), &error);
    let system = |error: Errno| io(error.into());
    let address = SocketAddrUnix::new(path).map_err(system)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let listener = socket().map_err(system)?;
    // What is bound takes the mode that the socket has.
    fchmod(&listener, Mode::RUSR | Mode::WUSR).map_err(system)?;
    let _lock = lock_directory(path).map_err(io)?;
    match bind(&listener, &address) {
        Err(Errno::ADDRINUSE) => {
            let is_socket = fs::symlink_metadata(path).map_err(io)?.file_type().is_socket();
            if !is_socket {
                let what = "a file that is no socket has that name: take another one";
                return Err(FsError::because(Kind::Exists, name(), what));
            }
            match connect(&socket().map_err(system)?, &address) {
                // Its server has gone without taking it away.
                Err(Errno::CONNREFUSED) => {}
                Ok(()) | Err(Errno::AGAIN) => {
                    let what = "a server listens there already: stop it, or take another name";
                    return Err(FsError::because(Kind::Busy, name(), what));
                }
                Err(error) => return Err(system(error)),
            }
            fs::remove_file(path).map_err(io)?;
            bind(&listener, &address).map_err(system)?;
        }
        bound => bound.map_err(system)?,
    }
    let file = SocketFile { path: path.into(), id: identity(path).map_err(io)? };
    listen(&listener, BACKLOG).map_err(system)?;
    Ok((UnixListener::from(listener), file))
}
