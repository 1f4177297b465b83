//! Servers elsewhere: what file servers promise holds over 9P2000 too.

use std::sync::Arc;
use std::time::Duration;

use cellway_fs::{
    Address, Answer, DialName, Exports, FileServer, Kind, NetServer, Node, PipeServer, Remote,
    ServeOptions, Serving, UnixServer, serve,
};
use tempfile::TempDir;

use crate::conformance::{Subject, conforms};
use crate::harness::{
    BOTH, READ, Tree, WRITE, content, get, kind, may_wait, obeying_permissions, pattern, watch,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A tree elsewhere, with the server that gives it.
struct Elsewhere {
    reached: Box<dyn FileServer>,
    /// The way there.
    names: Vec<String>,
    _serving: Serving,
}

impl FileServer for Elsewhere {
    fn attach<'a>(&'a self, user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        Box::pin(async move {
            let mut node = self.reached.attach(user, tree).await?;
            for name in &self.names {
                node = node.walk(name).await?;
            }
            Ok(node)
        })
    }
}

/// Serves `server` by threads that obey permission bits.
pub(crate) fn served(at: &Address, server: Arc<dyn FileServer>) -> Serving {
    let mut serving = None;
    obeying_permissions(|| serving = Some(serve(at, server, ServeOptions::default()).unwrap()));
    serving.unwrap()
}

/// What a server is called in `#n`.
pub(crate) fn net_name(address: &Address) -> String {
    DialName { address: address.clone(), tree: String::new() }.name()
}

fn disk(dir: &TempDir) -> Arc<dyn FileServer> {
    Arc::new(UnixServer::new(dir.path(), false).unwrap())
}

#[test]
fn files_elsewhere_conform_to_the_suite() {
    may_wait(|| {
        conforms(&|| {
            let (dir, sockets) = (TempDir::new().unwrap(), TempDir::new().unwrap());
            let address = Address::unix(sockets.path().join("socket")).unwrap();
            let serving = served(&address, disk(&dir));
            let reached = Box::new(Remote::connect(&address, PATIENCE).unwrap());
            let server = Arc::new(Elsewhere { reached, names: Vec::new(), _serving: serving });
            Subject { server, _keep: Some(dir) }
        });
    });
}

#[test]
fn files_by_the_name_of_their_server_conform_to_the_suite() {
    may_wait(|| {
        conforms(&|| {
            let dir = TempDir::new().unwrap();
            let empty = disk(&TempDir::new().unwrap());
            let exports = vec![("other".to_owned(), empty), ("data".to_owned(), disk(&dir))];
            let exports = Arc::new(Exports::new(exports).unwrap());
            let serving = served(&Address::tcp("127.0.0.1", 0).unwrap(), exports);
            let reached = Box::new(NetServer::new(PATIENCE));
            let names = vec![net_name(serving.address()), "data".to_owned()];
            let server = Arc::new(Elsewhere { reached, names, _serving: serving });
            Subject { server, _keep: Some(dir) }
        });
    });
}

#[test]
fn a_connection_is_shared_kept_and_made_again() {
    let _dog = watch();
    may_wait(|| {
        let (dir, sockets) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        std::fs::write(dir.path().join("a"), pattern(1, 1 << 20)).unwrap();
        let address = Address::unix(sockets.path().join("socket")).unwrap();
        let name = net_name(&address);
        let net = Tree::of(&NetServer::new(PATIENCE));
        let path = format!("{name}/a");
        // Nobody is there yet.
        assert_eq!(kind(net.walk(&path)), Kind::NotFound);
        assert_eq!(kind(net.walk("unix!%zz")), Kind::NotFound);
        let one = ServeOptions { connections: 1, ..ServeOptions::default() };
        let serving = serve(&address, disk(&dir), one).unwrap();
        // A second connection would be hung up.
        let open = net.open(&path, READ).unwrap();
        assert_eq!(net.names(&name).unwrap(), ["a"]);
        assert!(content(&*open).unwrap() == pattern(1, 1 << 20));
        assert_eq!(net.names("").unwrap(), [&*name]);
        drop(serving);
        // The other end goes when it likes: reads are done or fail, later ones fail.
        while get(open.read(0, &mut [0; 8])).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(kind(get(open.read(0, &mut [0; 8]))), Kind::Closed);
        let _serving = serve(&address, disk(&dir), one).unwrap();
        assert!(net.content(&path).unwrap() == pattern(1, 1 << 20));
        assert_eq!(kind(get(open.read(0, &mut [0; 8]))), Kind::Closed);
    });
}

#[test]
fn one_that_waits_elsewhere_holds_up_nobody() {
    let _dog = watch();
    may_wait(|| {
        let sockets = TempDir::new().unwrap();
        let address = Address::unix(sockets.path().join("socket")).unwrap();
        let exports = vec![("p".to_owned(), Arc::new(PipeServer::new(1 << 16)) as Arc<_>)];
        let _serving = served(&address, Arc::new(Exports::new(exports).unwrap()));
        let tree = Tree::of(&Remote::connect(&address, PATIENCE).unwrap());
        let (_, write) = tree.create("p/pipe", 0o600, WRITE).unwrap();
        let read = tree.open("p/pipe", READ).unwrap();
        let data = pattern(2, 3 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &data[..];
                while !rest.is_empty() {
                    rest = &rest[pollster::block_on(write.write(0, rest)).unwrap()..];
                }
                drop(write);
            });
            let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 20]);
            while all.len() < data.len() {
                let len = get(read.read(0, &mut piece)).unwrap();
                all.extend_from_slice(&piece[..len]);
                // Meanwhile others are answered.
                assert_eq!(tree.names("").unwrap(), ["p"]);
            }
            assert!(all == data);
        });
        // A read that was called off takes nothing from the next.
        let (_, write) = tree.create("p/other", 0o600, BOTH).unwrap();
        let read = tree.open("p/other", READ).unwrap();
        let mut into = [0; 3];
        {
            let mut waits = read.read(0, &mut into);
            let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waits.as_mut().poll(cx).is_pending());
        }
        assert_eq!(get(write.write(0, b"abc")).unwrap(), 3);
        assert_eq!(get(read.read(0, &mut into)).unwrap(), 3);
        assert_eq!(&into, b"abc");
    });
}
