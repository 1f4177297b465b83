//! The file calls: the same for programs on accelerators and for the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use ninep::kind;

use crate::caller::{Caller, Host};
use crate::error::{FsError, Kind};
use crate::file::{File, Opened};
use crate::handle::{Handle, Handles};
use crate::server::{Change, FileServer, Info, Node, OpenMode};

/// The server of names that tell none.
const UNIX: &str = "#U";
/// Entries of a directory that are listed at once, and at most.
const ENTRIES_AT_ONCE: usize = 128;
const ENTRIES_MAX: usize = 1 << 20;

impl OpenMode {
    /// For reads.
    pub const READ: Self = Self { read: true, write: false, execute: false, truncate: false };
    /// For writes.
    pub const WRITE: Self = Self { write: true, read: false, ..Self::READ };
    /// For both.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// Cut to no length, for writes.
    pub const REWRITE: Self = Self { truncate: true, ..Self::WRITE };
}

/// The files that a job's programs and its host reach by name: `#r/a/b` is the
/// file `a/b` of the server `#r`. A name without `#` is one of `#U`. `.` and `..`
/// are taken out of a name before anybody is asked.
///
/// ```
/// use std::sync::Arc;
/// use cellway_fs::{Files, OpenMode, RamServer, wait};
///
/// let ram = Arc::new(RamServer::new(1 << 20));
/// let files = Files::new("ann").with("#r", ram)?;
/// wait(async {
///     let mut file = files.create("#r/greeting", 0o644, OpenMode::READ_WRITE).await?;
///     file.write_all(b"hello world").await?;
///     let mut word = [0; 5];
///     file.pread(6, &mut word).await?;
///     assert_eq!(&word, b"world");
///     file.close();
///     files.remove("#r/greeting").await
/// })?;
/// # Ok::<_, cellway_fs::FsError>(())
/// ```
#[derive(Clone)]
pub struct Files<C = Host> {
    shared: Arc<Shared>,
    caller: C,
}

#[derive(Clone)]
struct Shared {
    user: Arc<str>,
    servers: BTreeMap<String, Arc<dyn FileServer>>,
    handles: Arc<Handles>,
}

/// A name, taken apart.
struct Parsed<'n> {
    server: &'n Arc<dyn FileServer>,
    server_name: &'n str,
    names: Vec<&'n str>,
}

impl Parsed<'_> {
    /// As errors tell it.
    fn told(&self) -> String {
        [&[self.server_name], &*self.names].concat().join("/")
    }
}

impl Files {
    /// No files yet, for `user`.
    #[must_use]
    pub fn new(user: &str) -> Self {
        let shared =
            Shared { user: user.into(), servers: BTreeMap::new(), handles: Arc::default() };
        Self { shared: Arc::new(shared), caller: Host }
    }

    /// Those of `server` too, under a name like `#r`; it takes the place of
    /// another of that name.
    ///
    /// # Errors
    /// A name that does not begin with `#`, or has a `/`.
    pub fn with(mut self, name: &str, server: Arc<dyn FileServer>) -> Result<Self, FsError> {
        if !name.starts_with('#') || name.len() < 2 || name.contains(['/', '\0']) {
            let what = "a server's name is # and something without a /, as #r";
            return Err(FsError::because(Kind::BadName, name, what));
        }
        Arc::make_mut(&mut self.shared).servers.insert(name.to_owned(), server);
        Ok(self)
    }
}

impl<C: Caller> Files<C> {
    /// The same files, for a program on an accelerator: `files.on(&cx)`. Short
    /// reads of what is in memory give its other threads a turn.
    #[must_use]
    pub fn on<D: Caller>(&self, caller: &D) -> Files<D> {
        Files { shared: self.shared.clone(), caller: caller.clone() }
    }

    fn parse<'n>(&'n self, name: &'n str) -> Result<Parsed<'n>, FsError> {
        let (server_name, path) = match name.split_once('/') {
            _ if !name.starts_with('#') => (UNIX, name),
            Some((server, path)) => (server, path),
            None => (name, ""),
        };
        let Some(server) = self.shared.servers.get(server_name) else {
            let known: Vec<&str> = self.shared.servers.keys().map(String::as_str).collect();
            let what = match (server_name, &*known) {
                (_, []) => "there are no files in this job".to_owned(),
                (UNIX, _) if !name.starts_with('#') => {
                    format!("names without # are those of #U; here are {}", known.join(" "))
                }
                _ => format!("there is no {server_name}; here are {}", known.join(" ")),
            };
            return Err(FsError::because(Kind::NotFound, name, what));
        };
        let mut names = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                // Above the root is the root (Plan 9 manual, section 5, `walk`).
                ".." => drop(names.pop()),
                part => names.push(part),
            }
        }
        Ok(Parsed { server, server_name, names })
    }

    async fn walk(&self, parsed: &Parsed<'_>, names: &[&str]) -> Result<Arc<dyn Node>, FsError> {
        let failed = |error: FsError| error.named(parsed.told());
        let mut node = parsed.server.attach(&self.shared.user, "").await.map_err(failed)?;
        for name in names {
            node = node.walk(name).await.map_err(failed)?;
        }
        Ok(node)
    }

    async fn node(&self, name: &str) -> Result<(Arc<dyn Node>, String), FsError> {
        let parsed = self.parse(name)?;
        Ok((self.walk(&parsed, &parsed.names).await?, parsed.told()))
    }

    /// Opens a file or directory.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn open(&self, name: &str, mode: OpenMode) -> Result<File<C>, FsError> {
        let (node, told) = self.node(name).await?;
        let open = node.open(mode).await.map_err(|error| error.named(&*told))?;
        Ok(self.file(Opened::new(node, open, mode, told, &self.shared.handles)))
    }

    /// Makes a file and opens it, or opens it cut to no length where it is
    /// there (Plan 9 manual, section 2, `open`).
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn create(
        &self,
        name: &str,
        permissions: u32,
        mode: OpenMode,
    ) -> Result<File<C>, FsError> {
        match self.create_new(name, permissions, mode).await {
            Err(error) if error.kind() == Kind::Exists => {
                self.open(name, OpenMode { truncate: true, ..mode }).await
            }
            made => made,
        }
    }

    /// As [`Files::create`], of a file that is not there.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn create_new(
        &self,
        name: &str,
        permissions: u32,
        mode: OpenMode,
    ) -> Result<File<C>, FsError> {
        let parsed = self.parse(name)?;
        let told = parsed.told();
        let Some((last, above)) = parsed.names.split_last() else {
            return Err(FsError::new(Kind::Exists, told));
        };
        let directory = self.walk(&parsed, above).await?;
        let made = directory.create(last, permissions, mode).await;
        let (node, open) = made.map_err(|error| error.named(&*told))?;
        Ok(self.file(Opened::new(node, open, mode, told, &self.shared.handles)))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// What its server says, with the directory's name.
    pub async fn mkdir(&self, name: &str, permissions: u32) -> Result<(), FsError> {
        let permissions = permissions | kind::DIRECTORY;
        self.create_new(name, permissions, OpenMode::READ).await.map(File::close)
    }

    /// Removes a file, or a directory that is empty.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn remove(&self, name: &str) -> Result<(), FsError> {
        let (node, told) = self.node(name).await?;
        node.remove().await.map_err(|error| error.named(told))
    }

    /// What is known of a file.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn stat(&self, name: &str) -> Result<Info, FsError> {
        let (node, told) = self.node(name).await?;
        node.stat().await.map_err(|error| error.named(told))
    }

    /// Changes what is known of a file.
    ///
    /// # Errors
    /// What its server says, with the file's name.
    pub async fn wstat(&self, name: &str, change: &Change) -> Result<(), FsError> {
        let (node, told) = self.node(name).await?;
        node.wstat(change).await.map_err(|error| error.named(told))
    }

    /// Gives a file another last part of its path.
    ///
    /// # Errors
    /// What its server says, with the file's name; a file stays in its directory.
    pub async fn rename(&self, name: &str, last: &str) -> Result<(), FsError> {
        if last.contains('/') {
            let what = format!("cannot become {last:?}: a rename stays in its directory");
            return Err(FsError::because(Kind::BadName, name, what));
        }
        self.wstat(name, &Change { name: Some(last.to_owned()), ..Change::default() }).await
    }

    /// All entries of a directory, up to a million.
    ///
    /// # Errors
    /// What its server says, with the directory's name.
    pub async fn readdir(&self, name: &str) -> Result<Vec<Info>, FsError> {
        let mut directory = self.open(name, OpenMode::READ).await?;
        let mut infos = Vec::new();
        loop {
            let more = directory.readdir(ENTRIES_AT_ONCE).await?;
            if more.is_empty() {
                return Ok(infos);
            }
            infos.extend(more);
            if infos.len() > ENTRIES_MAX {
                let what = format!("more than {ENTRIES_MAX} entries; open it, and read some");
                return Err(FsError::because(Kind::TooLarge, name, what));
            }
        }
    }

    /// The file that a handle stands for, as it was opened, at its beginning:
    /// one file more that is to be closed.
    ///
    /// # Errors
    /// It was closed, cut or removed since the handle was made.
    pub fn adopt(&self, handle: Handle) -> Result<File<C>, FsError> {
        let found = self.shared.handles.find(handle).and_then(|(opened, generation)| {
            let opened = opened.upgrade()?;
            opened.is_of(generation).then_some(opened)
        });
        let what = "the handle is stale: its file was closed, cut or removed; open it again";
        let stale = || FsError::because(Kind::NotFound, format!("{handle:?}"), what);
        found.map(|opened| self.file(opened)).ok_or_else(stale)
    }

    fn file(&self, opened: Arc<Opened>) -> File<C> {
        File::new(opened, self.caller.clone())
    }
}
