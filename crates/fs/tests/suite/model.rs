//! Random calls, against a plain model: what is called how, and what is in it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use cellway_fs::{Change, FileServer, FsError, Kind, OpenFile, PrivateServer, UnixServer};
use proptest::prelude::*;

use crate::harness::{BOTH, CUT, READ, Tree, content, entries, get, pattern, same, watch};
use crate::unix::disk_dir;

/// Names, few, so that calls meet.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Where there is something from the start, and how much.
const FILES: [(&str, usize); 3] = [("a", 150_000), ("c/a", 10), ("c/b/c", 70_000)];
const DIRECTORIES: [&str; 2] = ["c", "c/b"];

#[derive(Clone, Debug)]
enum Call {
    Create(String),
    MakeDirectory(String),
    Write(String, usize, usize),
    Cut(String),
    SetLength(String, usize),
    Read(String),
    Rename(String, &'static str),
    RenameAndSetLength(String, &'static str, usize),
    Remove(String),
    List(String),
    /// Keeps it open.
    Hold(String),
    WriteHeld(usize, usize, usize),
    ReadHeld(usize),
}

fn path() -> impl Strategy<Value = String> {
    let name = || prop::sample::select(&NAMES);
    prop::collection::vec(name(), 1..4).prop_map(|names| names.join("/"))
}

fn call() -> impl Strategy<Value = Call> {
    // Around pages and their parts.
    let at = || prop_oneof![0..100usize, 4000..4200usize, 65_500..65_600usize, 0..200_000usize];
    let len = || prop_oneof![0..10usize, 4090..4100usize, 60_000..140_000usize];
    let name = || prop::sample::select(&NAMES);
    prop_oneof![
        3 => path().prop_map(Call::Create),
        2 => path().prop_map(Call::MakeDirectory),
        4 => (path(), at(), len()).prop_map(|(path, at, len)| Call::Write(path, at, len)),
        1 => path().prop_map(Call::Cut),
        2 => (path(), at()).prop_map(|(path, len)| Call::SetLength(path, len)),
        3 => path().prop_map(Call::Read),
        3 => (path(), name()).prop_map(|(path, name)| Call::Rename(path, name)),
        1 => (path(), name(), at())
            .prop_map(|(path, name, len)| Call::RenameAndSetLength(path, name, len)),
        2 => path().prop_map(Call::Remove),
        2 => prop_oneof![Just(String::new()), path()].prop_map(Call::List),
        2 => path().prop_map(Call::Hold),
        2 => (0..4usize, at(), len()).prop_map(|(which, at, len)| Call::WriteHeld(which, at, len)),
        2 => (0..4usize).prop_map(Call::ReadHeld),
    ]
}

/// What is called how: a number of a file, or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    File(usize),
    Directory,
}

#[derive(Default)]
struct Model {
    names: BTreeMap<String, Named>,
    files: Vec<Vec<u8>>,
    held: Vec<usize>,
}

type Outcome<T> = Result<T, Kind>;

impl Model {
    fn filled() -> Self {
        let mut model = Self::default();
        for path in DIRECTORIES {
            model.names.insert(path.into(), Named::Directory);
        }
        for (number, (path, len)) in FILES.into_iter().enumerate() {
            model.names.insert(path.into(), Named::File(number));
            model.files.push(pattern(number as u64, len));
        }
        model
    }

    /// What a walk finds.
    fn walk(&self, path: &str) -> Outcome<Named> {
        if path.is_empty() {
            return Ok(Named::Directory);
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.directory(above)?;
        }
        self.names.get(path).copied().ok_or(Kind::NotFound)
    }

    fn directory(&self, path: &str) -> Outcome<()> {
        match self.walk(path)? {
            Named::Directory => Ok(()),
            Named::File(_) => Err(Kind::NotDirectory),
        }
    }

    fn file(&self, path: &str) -> Outcome<usize> {
        match self.walk(path)? {
            Named::File(number) => Ok(number),
            Named::Directory => Err(Kind::IsDirectory),
        }
    }

    fn make(&mut self, path: &str, named: Named) -> Outcome<()> {
        self.directory(path.rsplit_once('/').map_or("", |(above, _)| above))?;
        if self.names.contains_key(path) {
            return Err(Kind::Exists);
        }
        self.names.insert(path.into(), named);
        Ok(())
    }

    fn write(&mut self, number: usize, at: usize, data: &[u8]) {
        let file = &mut self.files[number];
        if !data.is_empty() {
            file.resize(file.len().max(at + data.len()), 0);
            file[at..at + data.len()].copy_from_slice(data);
        }
    }

    fn rename(&mut self, path: &str, name: &str) -> Outcome<()> {
        self.walk(path)?;
        let to = match path.rsplit_once('/') {
            Some((above, _)) => format!("{above}/{name}"),
            None => name.into(),
        };
        if to == path {
            return Ok(());
        }
        if self.names.contains_key(&to) {
            return Err(Kind::Exists);
        }
        let names = std::mem::take(&mut self.names).into_iter().map(|(old, named)| {
            match old.strip_prefix(path) {
                Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                    (format!("{to}{rest}"), named)
                }
                _ => (old, named),
            }
        });
        self.names = names.collect();
        Ok(())
    }

    /// Names and lengths, of directories none, sorted.
    fn list(&self, path: &str) -> Vec<(String, Option<u64>)> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = |(full, named): (&String, &Named)| {
            let name = full.strip_prefix(&prefix).filter(|name| !name.contains('/'))?;
            let len = match named {
                Named::File(number) => Some(self.files[*number].len() as u64),
                Named::Directory => None,
            };
            Some((name.to_owned(), len))
        };
        self.names.iter().filter_map(below).collect()
    }
}

fn list(open: &dyn OpenFile) -> Result<Vec<(String, Option<u64>)>, FsError> {
    let mut all: Vec<_> = entries(open, 2)?
        .into_iter()
        .map(|info| (info.name, (info.qid.kind == 0).then_some(info.length)))
        .collect();
    all.sort();
    Ok(all)
}

fn of_kind<T>(result: Result<T, FsError>) -> Outcome<T> {
    result.map_err(|error| error.kind())
}

/// Makes one call on both, and compares what they answer.
fn step(
    call: &Call,
    number: usize,
    tree: &Tree,
    held: &mut Vec<Arc<dyn OpenFile>>,
    model: &mut Model,
) {
    let write = |open: &dyn OpenFile, at: usize, data: &[u8]| {
        let written = get(open.write(at as u64, data)).unwrap();
        assert_eq!(written, data.len(), "after {call:?}");
    };
    match call {
        Call::Create(path) => {
            let new = Named::File(model.files.len());
            let made = model.make(path, new);
            if made.is_ok() {
                model.files.push(Vec::new());
            }
            same(call, of_kind(tree.create(path, 0o644, BOTH).map(drop)), made);
        }
        Call::MakeDirectory(path) => {
            let made = model.make(path, Named::Directory);
            same(call, of_kind(tree.make_dir(path).map(drop)), made);
        }
        Call::Write(path, at, len) => {
            let (file, data) = (model.file(path), pattern(100 + number as u64, *len));
            let open = of_kind(tree.open(path, crate::harness::WRITE));
            same(call, open.as_ref().map(drop).map_err(|kind| *kind), file.map(drop));
            if let (Ok(open), Ok(file)) = (open, file) {
                write(&*open, *at, &data);
                model.write(file, *at, &data);
            }
        }
        Call::Cut(path) => {
            let file = model.file(path);
            same(call, of_kind(tree.open(path, CUT).map(drop)), file.map(drop));
            if let Ok(file) = file {
                model.files[file].clear();
            }
        }
        Call::SetLength(path, len) => {
            let len = len + 1;
            let file = model.file(path);
            let change = Change { length: Some(len as u64), ..Change::default() };
            same(call, of_kind(tree.wstat(path, &change)), file.map(drop));
            if let Ok(file) = file {
                model.files[file].resize(len, 0);
            }
        }
        Call::Read(path) => {
            let file = model.walk(path).and_then(|named| match named {
                Named::File(number) => Ok(&model.files[number]),
                Named::Directory => Err(Kind::IsDirectory),
            });
            let read = tree.content(path);
            assert!(of_kind(read).as_ref().map_err(|kind| *kind) == file, "after {call:?}");
        }
        Call::Rename(path, name) => {
            let change = Change { name: Some((*name).into()), ..Change::default() };
            same(call, of_kind(tree.wstat(path, &change)), model.rename(path, name));
        }
        Call::RenameAndSetLength(path, name, len) => {
            let len = len + 1;
            let change = Change {
                name: Some((*name).into()),
                length: Some(len as u64),
                ..Change::default()
            };
            let file = model.file(path);
            let changed = file.and_then(|_| model.rename(path, name));
            same(call, of_kind(tree.wstat(path, &change)), changed);
            if let (Ok(()), Ok(file)) = (changed, file) {
                model.files[file].resize(len, 0);
            }
        }
        Call::Remove(path) => {
            let mut removed = model.walk(path).map(drop);
            if removed.is_ok() && !model.list(path).is_empty() {
                removed = Err(Kind::NotEmpty);
            }
            if removed.is_ok() {
                model.names.remove(path);
            }
            same(call, of_kind(tree.remove(path)), removed);
        }
        Call::List(path) => {
            let listed = model.directory(path).map(|()| model.list(path));
            // A file can be opened as well, and is found to be none then.
            let ours = of_kind(tree.open(path, READ).and_then(|open| list(&*open)));
            same(call, ours, listed);
        }
        Call::Hold(path) => {
            let file = model.file(path);
            let open = of_kind(tree.open(path, BOTH));
            same(call, open.as_ref().map(drop).map_err(|kind| *kind), file.map(drop));
            if let (Ok(open), Ok(file)) = (open, file) {
                held.push(open);
                model.held.push(file);
            }
        }
        Call::WriteHeld(which, at, len) => {
            if let Some(open) = held.get(*which) {
                let data = pattern(100 + number as u64, *len);
                write(&**open, *at, &data);
                model.write(model.held[*which], *at, &data);
            }
        }
        Call::ReadHeld(which) => {
            if let Some(open) = held.get(*which) {
                let file = &model.files[model.held[*which]];
                assert!(content(&**open).unwrap() == *file, "after {call:?}");
            }
        }
    }
}

/// All there is, by walking.
fn compare_tree(tree: &Tree, path: &str, model: &Model) {
    let listed = list(&*tree.open(path, READ).unwrap()).unwrap();
    same(path, listed.clone(), model.list(path));
    for (name, len) in listed {
        let path = format!("{path}/{name}");
        let path = path.trim_start_matches('/');
        match len {
            None => compare_tree(tree, path, model),
            Some(_) => {
                let file = model.file(path).unwrap();
                assert!(tree.content(path).unwrap() == model.files[file], "{path}");
            }
        }
    }
}

/// A file's bytes, its mode, and when it was changed.
type OnDisk = (Option<Vec<u8>>, u32, i64, i64);

/// All a folder holds.
fn disk(dir: &Path) -> BTreeMap<String, OnDisk> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::metadata(&path).unwrap();
        let bytes = meta.is_file().then(|| fs::read(&path).unwrap());
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
        all.insert(name, (bytes, meta.mode(), meta.ctime(), meta.ctime_nsec()));
    }
    all
}

fn filled() -> tempfile::TempDir {
    let dir = disk_dir();
    for path in DIRECTORIES {
        fs::create_dir(dir.path().join(path)).unwrap();
    }
    for (number, (path, len)) in FILES.into_iter().enumerate() {
        fs::write(dir.path().join(path), pattern(number as u64, len)).unwrap();
    }
    dir
}

fn run(server: &dyn FileServer, calls: &[Call]) -> Model {
    let (tree, mut model, mut held) = (Tree::of(server), Model::filled(), Vec::new());
    for (number, call) in calls.iter().enumerate() {
        step(call, number, &tree, &mut held, &mut model);
    }
    // By another who attaches.
    compare_tree(&Tree::of(server), "", &model);
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_systems_files_are_as_the_model_says(calls in prop::collection::vec(call(), 1..60)) {
        let _dog = watch();
        let dir = filled();
        let model = run(&UnixServer::new(dir.path(), false).unwrap(), &calls);
        let mut there = disk(dir.path());
        there.remove("");
        let there: BTreeMap<_, _> =
            there.into_iter().map(|(name, (bytes, ..))| (name, bytes)).collect();
        let expected: BTreeMap<_, _> = model.names.iter().map(|(name, named)| {
            let bytes = match named {
                Named::File(number) => Some(model.files[*number].clone()),
                Named::Directory => None,
            };
            (name.clone(), bytes)
        }).collect();
        prop_assert!(there == expected);
    }

    #[test]
    fn private_changes_are_as_the_model_says_and_the_disk_as_before(
        calls in prop::collection::vec(call(), 1..60)
    ) {
        let _dog = watch();
        let dir = filled();
        let before = disk(dir.path());
        let server = PrivateServer::new(dir.path(), 1 << 30).unwrap();
        run(&server, &calls);
        prop_assert!(disk(dir.path()) == before, "the disk was changed");
    }
}
