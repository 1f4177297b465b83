//! Where a server listens: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest path of a socket in bytes (Linux, `sun_path` without its last zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where a server listens, written `unix:PATH` or `tcp:HOST:PORT`; an IPv6 host
/// stands in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of a machine; as one to listen at, port 0 is any that is free.
    Tcp {
        /// Its name or number, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

/// Text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address: {why}; {cure}")]
pub struct AddressError {
    text: String,
    why: &'static str,
    cure: String,
}

impl AddressError {
    pub(crate) fn new(text: &str, why: &'static str, cure: impl Into<String>) -> Self {
        Self { text: text.to_owned(), why, cure: cure.into() }
    }
}

impl Address {
    /// The socket at `path`.
    ///
    /// # Errors
    /// A path no socket can have.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self, AddressError> {
        let path = path.into();
        let bytes = path.as_os_str().as_encoded_bytes();
        let refused = |why, cure| Err(AddressError::new(&path.to_string_lossy(), why, cure));
        match bytes.len() {
            0 => refused("the path is missing", "write unix:PATH, as unix:/tmp/cellway.sock"),
            1..=SOCKET_PATH_BYTES_MAX if bytes.contains(&0) => {
                refused("a path holds no zero byte", "write unix:PATH")
            }
            1..=SOCKET_PATH_BYTES_MAX => Ok(Self::Unix(path)),
            _ => refused("a socket's path has at most 107 bytes", "take a shorter one, as in /tmp"),
        }
    }

    /// A port of the machine `host`.
    ///
    /// # Errors
    /// A name no machine has.
    pub fn tcp(host: impl Into<String>, port: u16) -> Result<Self, AddressError> {
        let host = host.into();
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/[]!".contains(c)) {
            let why = "that is no name of a machine";
            return Err(AddressError::new(
                &host,
                why,
                "write tcp:HOST:PORT, as tcp:127.0.0.1:5640",
            ));
        }
        Ok(Self::Tcp { host, port })
    }

    /// Whether it leads to this machine only, as far as its text tells.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                let number = host.parse::<std::net::IpAddr>();
                host == "localhost" || number.is_ok_and(|number| number.is_loopback())
            }
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |why, cure: String| AddressError::new(text, why, cure);
        let reason = |error: AddressError| wrong(error.why, error.cure);
        if let Some(path) = text.strip_prefix("unix:") {
            return Self::unix(path).map_err(reason);
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            let cure = if text.contains('/') {
                format!("write unix:{text} for a socket in the file system")
            } else if text.contains(':') {
                format!("write tcp:{text} for a port of a machine")
            } else {
                "write unix:PATH or tcp:HOST:PORT".to_owned()
            };
            return Err(wrong("it says neither unix: nor tcp:", cure));
        };
        let form = || "write tcp:HOST:PORT, as tcp:127.0.0.1:5640".to_owned();
        let (host, port) =
            rest.rsplit_once(':').ok_or_else(|| wrong("the port is missing", form()))?;
        let port = port.parse().map_err(|_| wrong("a port is a number up to 65535", form()))?;
        let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if inside.is_none() && host.contains(':') {
            let cure = format!("write tcp:[{host}]:{port}");
            return Err(wrong("an IPv6 host stands in brackets", cure));
        }
        Self::tcp(inside.unwrap_or(host), port).map_err(reason)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in
            ["unix:/tmp/a b", "unix:x", "tcp:localhost:0", "tcp:[::1]:564", "tcp:10.0.0.1:65535"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let local = |text: &str| text.parse::<Address>().unwrap().is_local();
        assert!(local("unix:x") && local("tcp:localhost:1") && local("tcp:[::1]:1"));
        assert!(local("tcp:127.3.2.1:1"));
        assert!(!local("tcp:0.0.0.0:1") && !local("tcp:[::]:1") && !local("tcp:example.org:1"));
    }

    #[test]
    fn what_is_no_address_is_told_why_and_what_to_write() {
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, parts) in [
            ("", "neither unix: nor tcp:; write unix:PATH or tcp:HOST:PORT"),
            ("/tmp/sock", "write unix:/tmp/sock"),
            ("localhost:564", "write tcp:localhost:564"),
            ("unix:", "the path is missing"),
            (&long, "107 bytes"),
            ("unix:a\0b", "no zero byte"),
            ("tcp:localhost", "the port is missing"),
            ("tcp:localhost:70000", "a number up to 65535"),
            ("tcp:::1:564", "write tcp:[::1]:564"),
            ("tcp::564", "no name of a machine"),
            ("tcp:a b:564", "no name of a machine"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no address: ")), "{error}");
            assert!(error.contains(parts), "{error}");
        }
    }
}
