//! `#n`: servers on this machine and others (the paper, section 7, asks for it).
//!
//! The first name below the root says which: `tcp!HOST!PORT` or `unix!PATH`, as Plan 9's
//! dial(2) writes addresses, and where the server has several trees `!TREE` behind it.
//! What a name cannot hold or means something here is written as `%` and two
//! hexadecimal digits: `/` is `%2F`, `!` is `%21`, `%` is `%25`. So
//! `#n/unix!%2Ftmp%2Fsock/data/a.bmp` is the file `data/a.bmp` of the server at `/tmp/sock`.
//!
//! A connection is made by the first walk and kept for all later ones; one that was lost
//! is made again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Shared};
use ninep::{Qid, kind};

use crate::address::{Address, AddressError};
use crate::client::Remote;
use crate::error::{FsError, Kind};
use crate::server::{Answer, FileServer, Info, Node, OpenFile, OpenMode, now};
use crate::sync::lock;

/// Connections that are kept, at most.
const KEPT_MAX: usize = 64;

/// A server and one of its trees, as a name of `#n`: see [`NetServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialName {
    /// Where the server is.
    pub address: Address,
    /// Which of its trees; mostly "".
    pub tree: String,
}

impl DialName {
    /// What `name` says.
    ///
    /// # Errors
    /// It is no such name.
    pub fn parse(name: &str) -> Result<Self, AddressError> {
        let wrong = |why| {
            let cure = "write tcp!HOST!PORT or unix!PATH, where % and two hexadecimal digits \
                        stand for what a name cannot hold: %2F for /";
            AddressError::new(name, why, cure)
        };
        let parts: Option<Vec<_>> = name.split('!').map(unescape).collect();
        let parts = parts.ok_or_else(|| wrong("% is not followed by two hexadecimal digits"))?;
        let text =
            |part: &[u8]| String::from_utf8(part.to_vec()).map_err(|_| wrong("it is no text"));
        let (address, tree) = match &parts[..] {
            [net, path, tree @ ..] if net == b"unix" && tree.len() < 2 => {
                (Address::unix(OsString::from_vec(path.clone()))?, tree)
            }
            [net, host, port, tree @ ..] if net == b"tcp" && tree.len() < 2 => {
                let port =
                    text(port)?.parse().map_err(|_| wrong("a port is a number up to 65535"))?;
                (Address::tcp(text(host)?, port)?, tree)
            }
            _ => return Err(wrong("it is neither tcp!HOST!PORT nor unix!PATH")),
        };
        Ok(Self { address, tree: text(tree.first().map_or(b"", |tree| tree))? })
    }

    /// The name of it.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = match &self.address {
            Address::Unix(path) => format!("unix!{}", escape(path.as_os_str().as_bytes())),
            Address::Tcp { host, port } => format!("tcp!{}!{port}", escape(host.as_bytes())),
        };
        if !self.tree.is_empty() {
            name.push('!');
            name.push_str(&escape(self.tree.as_bytes()));
        }
        name
    }
}

fn escape(text: &[u8]) -> String {
    let mut escaped = String::new();
    for byte in text {
        if byte.is_ascii_graphic() && !b"/!%".contains(byte) {
            escaped.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, later)) = rest.split_first() {
        rest = later;
        if *byte == b'%' {
            let (digits, later) = rest.split_at_checked(2)?;
            let mut digits = digits.iter().map(|digit| char::from(*digit).to_digit(16));
            let byte = digits.try_fold(0, |byte, digit| Some(byte * 16 + digit? as u8))?;
            bytes.push(byte);
            rest = later;
        } else {
            bytes.push(*byte);
        }
    }
    Some(bytes)
}

/// A connection that is being made, or is there.
type Dialled = Shared<BoxFuture<'static, Result<Remote, FsError>>>;

/// Servers elsewhere as directories, `tcp!HOST!PORT` and `unix!PATH`; clones share connections.
#[derive(Clone)]
pub struct NetServer(Arc<Net>);

struct Net {
    patience: Duration,
    kept: Mutex<BTreeMap<Address, Dialled>>,
}

impl NetServer {
    /// Connects to whatever is walked to, waiting not longer than `patience` for an answer.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self(Arc::new(Net { patience, kept: Mutex::default() }))
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<Address, Dialled>> {
        lock(&self.0.kept)
    }

    /// The connection to `address`, made if there is none.
    fn dial(&self, address: &Address) -> Result<Dialled, FsError> {
        let mut kept = self.kept();
        let is_good = |dialled: &Dialled| match dialled.peek() {
            Some(Ok(remote)) => !remote.is_lost(),
            Some(Err(_)) => false,
            None => true,
        };
        if let Some(dialled) = kept.get(address).filter(|dialled| is_good(dialled)) {
            return Ok(dialled.clone());
        }
        kept.remove(address);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, dialled| {
                is_good(dialled)
                    && !dialled.peek().is_some_and(|done| done.as_ref().is_ok_and(Remote::is_alone))
            });
        }
        if kept.len() >= KEPT_MAX {
            let what = format!("{KEPT_MAX} connections are in use; close files of other servers");
            return Err(FsError::because(Kind::Busy, address.to_string(), what));
        }
        let dialled = self.connect(address.clone())?;
        kept.insert(address.clone(), dialled.clone());
        Ok(dialled)
    }

    /// Connects on a thread of its own, so that who waits for it holds up nobody.
    fn connect(&self, address: Address) -> Result<Dialled, FsError> {
        let (done, dialled) = oneshot::channel();
        let (patience, at) = (self.0.patience, address.clone());
        let connect = move || {
            // Whoever waited may have gone.
            let _ = done.send(Remote::connect(&at, patience));
        };
        thread::Builder::new()
            .name("9p dial".into())
            .spawn(connect)
            .map_err(|error| FsError::io(address.to_string(), &error))?;
        let ended = move |result: Result<_, _>| {
            result.unwrap_or_else(|_| Err(FsError::new(Kind::Interrupted, address.to_string())))
        };
        Ok(dialled.map(ended).boxed().shared())
    }
}

impl FileServer for NetServer {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        if !tree.is_empty() {
            let what = "#n has no trees of its own; walk to tcp!HOST!PORT!TREE";
            return now(Err(FsError::because(Kind::NotFound, tree, what)));
        }
        now(Ok(Arc::new(Root { net: self.clone(), user: user.to_owned() })))
    }
}

/// The directory of all servers.
struct Root {
    net: NetServer,
    user: String,
}

const ROOT: Qid = Qid { kind: (kind::DIRECTORY >> 24) as u8, version: 0, path: 0 };

/// One server's number stays its own whatever others come and go. The root's is 0.
fn path_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}

fn info(name: &str, path: u64) -> Info {
    Info::made_up(name, (path, ROOT.version), kind::DIRECTORY | 0o555, 0)
}

impl Node for Root {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(info("/", ROOT.path)))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            let dial = DialName::parse(name)
                .map_err(|error| FsError::because(Kind::NotFound, "#n", error.to_string()))?;
            let remote = self.net.dial(&dial.address)?.await?;
            let root = remote.root(&self.user, &dial.tree).await?;
            Ok(Arc::new(root) as Arc<dyn Node>)
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let listing = || Listing(self.net.clone());
        now(mode.only_reads("#n").map(|()| Arc::new(listing()) as Arc<dyn OpenFile>))
    }
}

/// The servers that there are connections to.
struct Listing(NetServer);

impl OpenFile for Listing {
    fn qid(&self) -> Qid {
        ROOT
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, "#n")))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let kept = self.0.kept();
        let names = kept
            .keys()
            .map(|address| DialName { address: address.clone(), tree: String::new() }.name());
        let infos = names.skip(from).take(max).map(|name| {
            let path = path_of(&name);
            info(&name, path)
        });
        now(Ok(infos.collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_say_servers_and_trees() {
        let sock = || Address::unix("/tmp/a b!").unwrap();
        for (name, address, tree) in [
            ("tcp!localhost!564", Address::tcp("localhost", 564).unwrap(), ""),
            ("tcp!::1!5640!job%2F1", Address::tcp("::1", 5640).unwrap(), "job/1"),
            ("unix!%2Ftmp%2Fa%20b%21", sock(), ""),
            ("unix!%2Ftmp%2Fa%20b%21!data", sock(), "data"),
        ] {
            let dial = DialName { address, tree: tree.to_owned() };
            assert_eq!(DialName::parse(name).unwrap(), dial);
            assert_eq!(dial.name(), name);
        }
        for (name, why) in [
            ("tcp!localhost", "neither tcp!HOST!PORT nor unix!PATH"),
            ("udp!localhost!1", "neither tcp!HOST!PORT nor unix!PATH"),
            ("unix!a!b!c", "neither tcp!HOST!PORT nor unix!PATH"),
            ("tcp!localhost!x", "a port is a number"),
            ("tcp!!5", "no name of a machine"),
            ("unix!", "the path is missing"),
            ("unix!a%2", "two hexadecimal digits"),
            ("unix!a%zz", "two hexadecimal digits"),
            ("unix!a!%FF", "it is no text"),
        ] {
            let error = DialName::parse(name).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn a_server_keeps_its_number_when_another_comes() {
        let net = NetServer::new(Duration::ZERO);
        let dialled = |port| {
            let waits = futures::future::pending().boxed().shared();
            net.kept().insert(Address::tcp("h", port).unwrap(), waits);
            let listing = Listing(net.clone());
            let infos = pollster::block_on(listing.entries(0, 9)).unwrap();
            infos.into_iter().map(|info| (info.name, info.qid.path)).collect::<BTreeMap<_, _>>()
        };
        let (one, two) = (dialled(5), dialled(4));
        assert_eq!(two["tcp!h!5"], one["tcp!h!5"]);
        assert_ne!(two["tcp!h!4"], one["tcp!h!5"]);
    }

    proptest! {
        #[test]
        fn every_name_comes_back(
            path in prop::collection::vec(1_u8.., 1..100), tree in "[^\\x00]{0,20}",
        ) {
            let address = Address::unix(OsString::from_vec(path)).unwrap();
            let dial = DialName { address, tree };
            let name = dial.name();
            prop_assert!(!name.contains(['/', '\0']));
            prop_assert_eq!(DialName::parse(&name), Ok(dial));
        }

        #[test]
        fn no_name_makes_it_panic(name in "((tcp|unix)!)?[!%a-f0-9]{0,20}|\\PC{0,20}") {
            let _ = DialName::parse(&name);
        }
    }
}
