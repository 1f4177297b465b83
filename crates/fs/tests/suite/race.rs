//! Walks, reads and writes while directories become links and go elsewhere: what lies
//! outside is never read nor changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cellway_fs::{Change, PrivateServer, UnixServer};
use rustix::fs::{CWD, RenameFlags};

use crate::harness::{BOTH, CUT, DIRECTORY, READ, Tree, content, entries, get, watch};
use crate::unix::disk_dir;

const SECRET: &[u8] = b"the secret that no read returns";

/// How long, by CELLWAY_RACE_SECONDS.
fn patience() -> Duration {
    let seconds = std::env::var("CELLWAY_RACE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

/// All names and contents in a folder.
fn snapshot(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
        let bytes = if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        all.insert(name, bytes);
    }
    all
}

/// The same names inside and outside, so that a link leads to something.
fn fill(dir: &Path, content: &[u8]) {
    for name in ["d", "d/e"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["a", "d/a", "d/e/a", "d/e/only"] {
        fs::write(dir.join(name), content).unwrap();
    }
}

/// Puts links and directories in one another's place, there and back again.
fn swap(root: &Path, outside: &Path, parked: &Path, is_done: &AtomicBool) -> u64 {
    let exchange = |one: &Path, other: &Path| {
        // Either may be gone: the server removes and renames too.
        rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
    };
    let mut swaps = 0;
    for round in 0_u64.. {
        if is_done.load(Ordering::Relaxed) {
            break;
        }
        let name = ["a", "d", "d/a", "d/e", "d/e/a"][round as usize % 5];
        let (own, link) = (root.join(name), parked.join("link"));
        let _ = fs::remove_file(&link);
        let target = match round / 5 % 4 {
            0 => outside.join(name),
            1 => outside.to_owned(),
            2 => Path::new("/proc/self/cwd").to_owned(),
            _ => Path::new("../..").join(outside.file_name().unwrap()).join(name),
        };
        symlink(target, &link).unwrap();
        if exchange(&own, &link) {
            swaps += 1;
            if !exchange(&own, &link) {
                // What was inside is parked under the link's name: anew.
                let _ = fs::remove_file(&own);
                let _ = fs::rename(&link, &own);
            }
        }
        // Out of the tree and back.
        let (away, back) = (parked.join("away"), root.join("d"));
        if round % 3 == 0 && fs::rename(&back, &away).is_ok() {
            swaps += 1;
            if fs::rename(&away, &back).is_err() {
                let _ = fs::remove_dir_all(&away);
            }
        }
        if !root.join("d/e").is_dir() {
            let _ = fs::remove_file(root.join("d"));
            let _ = fs::create_dir_all(root.join("d/e"));
        }
        for name in ["a", "d/a", "d/e/a"] {
            let path = root.join(name);
            let is_link = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
            // Not through a link that is there by now.
            if is_link || !path.exists() {
                let fresh = parked.join("fresh");
                fs::write(&fresh, b"inside").unwrap();
                let _ = fs::rename(&fresh, &path);
            }
        }
    }
    swaps
}

/// Everything a client can do, over and over. How much of it worked.
fn pry(tree: &Tree, seed: u64, is_done: &AtomicBool) -> (u64, u64) {
    let (mut reads, mut writes) = (0, 0);
    let paths = ["a", "d/a", "d/e/a", "d/e/only", "d/only", "d", "d/e", "d/e/e"];
    for round in seed.. {
        if is_done.load(Ordering::Relaxed) {
            break;
        }
        let path = paths[(round % 8) as usize];
        let check = |bytes: &[u8]| {
            let found = bytes.windows(SECRET.len()).any(|part| part == SECRET);
            assert!(!found, "{path}: outside was read");
        };
        match round / 8 % 8 {
            0..=2 => {
                if let Ok(bytes) = tree.content(path) {
                    check(&bytes);
                    reads += 1;
                }
            }
            3 => {
                if let Ok(open) = tree.open(path, if round % 3 == 0 { CUT } else { BOTH }) {
                    writes += u64::from(get(open.write(0, b"WRITTEN")).is_ok());
                    check(&content(&*open).unwrap_or_default());
                }
            }
            4 => {
                let new = format!("{path}/new");
                if tree
                    .create(&new, 0o644, BOTH)
                    .is_ok_and(|(_, open)| get(open.write(0, b"WRITTEN")).is_ok())
                {
                    writes += 1;
                }
                let _ = tree.create(&format!("{path}/newdir"), DIRECTORY | 0o755, READ);
            }
            5 => {
                let change = Change { name: Some("only".into()), ..Change::default() };
                let _ = tree.wstat(&format!("{path}/new"), &change);
                let _ = tree.remove(&format!("{path}/only"));
                let _ = tree.remove(&format!("{path}/newdir"));
            }
            6 => {
                if let Ok(open) = tree.open(path, READ) {
                    for info in entries(&*open, 100).unwrap_or_default() {
                        assert_ne!(info.length, SECRET.len() as u64, "{path}: outside was listed");
                        reads += 1;
                    }
                }
            }
            _ => {
                let _ = tree.wstat(path, &Change { mode: Some(0o755), ..Change::default() });
                let change = Change { length: Some(5), ..Change::default() };
                let _ = tree.wstat(&format!("{path}/a"), &change);
                let _ = tree.remove(&format!("{path}/new"));
            }
        }
    }
    (reads, writes)
}

#[test]
fn nothing_outside_is_reached_whatever_is_swapped() {
    let _dog = watch();
    let dir = disk_dir();
    let [root, outside, parked] = ["root", "outside", "parked"].map(|name| dir.path().join(name));
    fs::create_dir(&parked).unwrap();
    fill(&root, b"inside");
    fill(&outside, SECRET);
    let before = snapshot(&outside);
    let is_done = &AtomicBool::new(false);
    let (reads, writes, swaps) = (&AtomicU64::new(0), &AtomicU64::new(0), &AtomicU64::new(0));
    let end = Instant::now() + patience();
    std::thread::scope(|scope| {
        let unix = UnixServer::new(&root, false).unwrap();
        for seed in 0..3 {
            let tree = match seed {
                2 => Tree::of(&PrivateServer::new(&root, 1 << 24).unwrap()),
                _ => Tree::of(&unix),
            };
            scope.spawn(move || {
                let (read, written) = pry(&tree, seed * 17, is_done);
                reads.fetch_add(read, Ordering::Relaxed);
                writes.fetch_add(written, Ordering::Relaxed);
            });
        }
        scope.spawn(|| swaps.store(swap(&root, &outside, &parked, is_done), Ordering::Relaxed));
        while Instant::now() < end && !is_done.load(Ordering::Relaxed) {
            std::thread::park_timeout(end - Instant::now());
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(snapshot(&outside) == before, "outside was changed");
    let counts = [reads, writes, swaps].map(|count| count.load(Ordering::Relaxed));
    println!("{} reads, {} writes, {} swaps", counts[0], counts[1], counts[2]);
    assert!(counts.iter().all(|count| *count > 10), "nothing happened: {counts:?}");
}
