//! Byte streams to servers.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::address::Address;
use crate::tcp;

/// A connection of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Connects until `deadline`. Looking up a host's name has the system's own limits.
    pub(super) fn connect(address: &Address, deadline: Instant) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
                let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
                // With a full queue a connect waits as long as a send does.
                let left = Some(left(deadline)?);
                sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, left)?;
                match rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_path())?) {
                    Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                    other => other?,
                }
                sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
                Ok(Self::Unix(socket.into()))
            }
            Address::Tcp { host, port } => {
                let mut error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, left(deadline)?) {
                        Ok(stream) => {
                            tcp::prepare(&stream)?;
                            return Ok(Self::Tcp(stream));
                        }
                        Err(other) => error = other,
                    }
                }
                Err(error)
            }
        }
    }

    /// Reads until `into` is full, not longer than until `deadline`.
    pub(super) fn read_until(&self, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !into.is_empty() {
            let left = Some(left(deadline)?);
            match self {
                Self::Unix(stream) => stream.set_read_timeout(left)?,
                Self::Tcp(stream) => stream.set_read_timeout(left)?,
            }
            match self.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => into = into.get_mut(len..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The time is looked at again above.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => (&*stream).read(into),
            Self::Tcp(stream) => (&*stream).read(into),
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => (&*stream).write(bytes),
            Self::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    /// Neither reads nor writes wait from now on.
    pub(super) fn do_not_wait(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(true),
            Self::Tcp(stream) => stream.set_nonblocking(true),
        }
    }

    /// Ends it for both sides.
    pub(super) fn close(&self) {
        // It may have ended already.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
