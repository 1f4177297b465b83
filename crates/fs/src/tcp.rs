//! How TCP streams are set up.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// After how long without a word the other side is asked for a sign of life.
const IDLE: Duration = Duration::from_secs(60);

/// How long after one such question comes the next, and how many are asked.
const PROBE: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// How long the other side may leave what was sent to it, in milliseconds.
const UNTAKEN_MS: u32 = 120_000;

/// Short messages do not wait for longer ones, and a peer that is dead ends the stream: one
/// whose machine is gone after two minutes, whether something was sent to it or not.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(sockopt::set_tcp_user_timeout(stream, UNTAKEN_MS)?)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn dead_peers_are_found_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        prepare(&stream).unwrap();
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), IDLE);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), UNTAKEN_MS);
    }
}
