//! Trees whose files are made up: text that a function gives, lines that one obeys.
//!
//! ```
//! use cellway_fs::{FileServer, Synthetic};
//!
//! let clock = Synthetic::new();
//! clock.file("now", || format!("{:?}\n", std::time::SystemTime::now()));
//! let server: &dyn FileServer = &clock;
//! # let _ = server;
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ninep::{Qid, kind};

use crate::error::{FsError, Kind};
use crate::name::only_tree;
use crate::server::{
    Answer, FileServer, Info, Node, OpenFile, OpenMode, now, read_from, seconds_now,
};

/// Longest text that is taken for lines at once.
const WRITE_BYTES_MAX: usize = 4096;

type Read = Box<dyn Fn() -> String + Send + Sync>;
type Obey = Box<dyn Fn(&str) -> Result<(), FsError> + Send + Sync>;

/// A directory of made-up files; clones are the same directory.
#[derive(Clone)]
pub struct Synthetic {
    directory: Arc<Directory>,
    /// Whether who comes in by this one may write to commands.
    obeys: bool,
}

struct Directory {
    info: Fixed,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// For all directories and files of the tree.
    paths: Arc<AtomicU64>,
}

/// What of a file stays.
struct Fixed {
    name: String,
    path: u64,
    version: AtomicU32,
    mode: u32,
    made: u32,
}

#[derive(Clone)]
enum Entry {
    Directory(Synthetic),
    File(Arc<MadeUp>),
}

struct MadeUp {
    info: Fixed,
    read: Option<Read>,
    obey: Option<Obey>,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self::new()
    }
}

impl Synthetic {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::named("/", Arc::new(AtomicU64::new(0)))
    }

    fn named(name: &str, paths: Arc<AtomicU64>) -> Self {
        let info = Fixed::new(name, &paths, kind::DIRECTORY | 0o555);
        let directory = Directory { info, entries: RwLock::default(), paths };
        Self { directory: Arc::new(directory), obeys: true }
    }

    /// The same tree to look at: its commands are there, and obey nobody.
    #[must_use]
    pub fn read_only(&self) -> Self {
        Self { directory: self.directory.clone(), obeys: false }
    }

    /// A file whose text `read` gives whenever it is opened. Replaces one of that name.
    pub fn file(&self, name: &str, read: impl Fn() -> String + Send + Sync + 'static) {
        self.add(name, 0o444, Some(Box::new(read)), None);
    }

    /// A file that only its owner writes to: `obey` gets each line of each write.
    pub fn command(
        &self,
        name: &str,
        obey: impl Fn(&str) -> Result<(), FsError> + Send + Sync + 'static,
    ) {
        self.add(name, 0o200, None, Some(Box::new(obey)));
    }

    fn add(&self, name: &str, mode: u32, read: Option<Read>, obey: Option<Obey>) {
        let info = Fixed::new(name, &self.directory.paths, mode);
        self.put(name, Entry::File(Arc::new(MadeUp { info, read, obey })));
    }

    /// A directory in this one. Replaces what has that name.
    pub fn directory(&self, name: &str) -> Self {
        let made = Self::named(name, self.directory.paths.clone());
        self.put(name, Entry::Directory(made.clone()));
        made
    }

    /// Takes an entry away; who has it open keeps it.
    pub fn remove(&self, name: &str) {
        self.directory.info.version.fetch_add(1, Ordering::Relaxed);
        self.directory.entries.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    fn put(&self, name: &str, entry: Entry) {
        self.directory.info.version.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.directory.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(name.to_owned(), entry);
    }

    fn entry(&self, name: &str) -> Option<Entry> {
        self.directory.entries.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

impl Fixed {
    fn new(name: &str, paths: &AtomicU64, mode: u32) -> Self {
        Self {
            name: name.to_owned(),
            path: paths.fetch_add(1, Ordering::Relaxed),
            version: AtomicU32::new(0),
            mode,
            made: seconds_now(),
        }
    }

    fn qid(&self) -> Qid {
        let version = self.version.load(Ordering::Relaxed);
        Qid { kind: (self.mode >> 24) as u8, version, path: self.path }
    }

    fn info(&self) -> Info {
        let version = self.version.load(Ordering::Relaxed);
        let info = Info::made_up(&self.name, (self.path, version), self.mode, 0);
        Info { atime: self.made, mtime: self.made, ..info }
    }
}

impl FileServer for Synthetic {
    fn attach<'a>(&'a self, _user: &'a str, tree: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(only_tree(tree).map(|()| Arc::new(self.clone()) as Arc<dyn Node>))
    }
}

impl Node for Synthetic {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(self.directory.info.info()))
    }

    fn walk<'a>(&'a self, name: &'a str) -> Answer<'a, Arc<dyn Node>> {
        now(match self.entry(name) {
            Some(Entry::Directory(Self { directory, .. })) => {
                Ok(Arc::new(Self { directory, obeys: self.obeys }) as Arc<dyn Node>)
            }
            Some(Entry::File(file)) => Ok(Arc::new(Walked { file, obeys: self.obeys })),
            None => Err(FsError::new(Kind::NotFound, name)),
        })
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let opened = mode.only_reads(&self.directory.info.name);
        now(opened.map(|()| Arc::new(self.clone()) as Arc<dyn OpenFile>))
    }
}

impl OpenFile for Synthetic {
    fn qid(&self) -> Qid {
        self.directory.info.qid()
    }

    fn read<'a>(&'a self, _offset: u64, _into: &'a mut [u8]) -> Answer<'a, usize> {
        now(Err(FsError::new(Kind::IsDirectory, &self.directory.info.name)))
    }

    fn entries(&self, from: u64, max: usize) -> Answer<'_, Vec<Info>> {
        let entries = self.directory.entries.read().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let some = entries.values().skip(from).take(max).map(|entry| match entry {
            Entry::Directory(directory) => directory.directory.info.info(),
            Entry::File(file) => file.info.info(),
        });
        now(Ok(some.collect()))
    }
}

/// A file that was walked to.
struct Walked {
    file: Arc<MadeUp>,
    obeys: bool,
}

impl Node for Walked {
    fn stat(&self) -> Answer<'_, Info> {
        now(Ok(self.file.info.info()))
    }

    fn open(&self, mode: OpenMode) -> Answer<'_, Arc<dyn OpenFile>> {
        let MadeUp { info, read, obey } = &*self.file;
        let may = (!mode.read || read.is_some())
            && (!(mode.write || mode.truncate) || (obey.is_some() && self.obeys))
            && !mode.execute;
        if !may {
            return now(Err(FsError::new(Kind::Permission, &info.name)));
        }
        let text = read.as_ref().filter(|_| mode.read).map(|read| read());
        if text.is_some() {
            info.version.fetch_add(1, Ordering::Relaxed);
        }
        now(Ok(Arc::new(OpenMadeUp {
            file: self.file.clone(),
            text: text.unwrap_or_default(),
            write: mode.write,
        })))
    }
}

/// The text as it was at the open.
struct OpenMadeUp {
    file: Arc<MadeUp>,
    text: String,
    write: bool,
}

impl OpenFile for OpenMadeUp {
    fn qid(&self) -> Qid {
        self.file.info.qid()
    }

    fn read<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> Answer<'a, usize> {
        if self.file.read.is_none() {
            return now(Err(FsError::new(Kind::BadMode, &self.file.info.name)));
        }
        now(Ok(read_from(self.text.as_bytes(), offset, into)))
    }

    /// Each write is whole lines: one without a newline at its end (`echo -n`) too.
    fn write<'a>(&'a self, _offset: u64, data: &'a [u8]) -> Answer<'a, usize> {
        let name = &self.file.info.name;
        let Some(obey) = self.file.obey.as_ref().filter(|_| self.write) else {
            return now(Err(FsError::new(Kind::BadMode, name)));
        };
        if data.len() > WRITE_BYTES_MAX {
            let what = format!("{} bytes are more than {WRITE_BYTES_MAX} at once", data.len());
            return now(Err(FsError::because(Kind::TooLarge, name, what)));
        }
        let text = String::from_utf8_lossy(data);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let obeyed = lines.map(obey).collect::<Result<Vec<()>, _>>();
        now(obeyed.map(|_| data.len()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use pollster::block_on;

    use super::*;

    const READ: OpenMode = OpenMode { read: true, write: false, execute: false, truncate: false };

    #[test]
    fn text_is_made_at_the_open_and_entries_come_and_go() {
        let tree = Synthetic::new();
        let count = AtomicU64::new(0);
        tree.file("count", move || count.fetch_add(1, Ordering::Relaxed).to_string());
        let below = tree.directory("below");
        below.file("a", String::new);
        let root = block_on(tree.attach("", "")).unwrap();
        let node = block_on(root.walk("count")).unwrap();
        let (first, second) =
            (block_on(node.open(READ)).unwrap(), block_on(node.open(READ)).unwrap());
        let mut into = [0; 4];
        assert_eq!(block_on(second.read(0, &mut into)).unwrap(), 1);
        assert_eq!(into[0], b'1');
        assert_eq!(block_on(first.read(0, &mut into)).unwrap(), 1);
        assert_eq!(into[0], b'0');
        assert_eq!(block_on(first.read(u64::MAX, &mut into)).unwrap(), 0);
        let names = || {
            let open = block_on(root.open(READ)).unwrap();
            let all = block_on(open.entries(0, 9)).unwrap();
            all.into_iter().map(|info| info.name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["below", "count"]);
        tree.remove("count");
        assert_eq!(names(), ["below"]);
        assert_eq!(block_on(root.walk("count")).err().unwrap().kind(), Kind::NotFound);
        let paths = [node, block_on(root.walk("below")).unwrap(), root];
        let mut paths = paths.map(|node| block_on(node.stat()).unwrap().qid.path).to_vec();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 3);
    }

    #[test]
    fn lines_are_obeyed_up_to_one_that_fails() {
        let tree = Synthetic::new();
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let into = heard.clone();
        tree.command("ctl", move |line| {
            if line == "no" {
                return Err(FsError::new(Kind::Unsupported, line));
            }
            into.lock().unwrap().push(line.to_owned());
            Ok(())
        });
        let node = block_on(tree.walk("ctl")).unwrap();
        let open = block_on(node.open(OpenMode { write: true, ..OpenMode::default() })).unwrap();
        assert_eq!(block_on(open.write(0, b"go on\n\nstop")).unwrap(), 11);
        assert_eq!(block_on(open.write(0, b"a\nno\nb")).unwrap_err().kind(), Kind::Unsupported);
        let long = vec![b'x'; WRITE_BYTES_MAX + 1];
        assert_eq!(block_on(open.write(0, &long)).unwrap_err().kind(), Kind::TooLarge);
        assert_eq!(*heard.lock().unwrap(), ["go on", "stop", "a"]);
        assert_eq!(block_on(open.read(0, &mut [0])).unwrap_err().kind(), Kind::BadMode);
        assert_eq!(block_on(node.open(READ)).err().unwrap().kind(), Kind::Permission);
        let looked_at = block_on(tree.read_only().walk("ctl")).unwrap();
        let write = OpenMode { write: true, ..OpenMode::default() };
        assert_eq!(block_on(looked_at.open(write)).err().unwrap().kind(), Kind::Permission);
    }
}
