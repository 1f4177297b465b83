//! A control group of processes that may have so much memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// A group that was ended takes a moment to be empty.
const EMPTY_WITHIN: u32 = 100;

/// What the files of a group are called.
#[derive(Debug)]
struct Files {
    mount: &'static str,
    most: &'static str,
    /// Swap would hide what does not fit.
    swap: &'static str,
    /// Whether that limits memory and swap together.
    is_first: bool,
    anonymous: &'static str,
    kills: &'static str,
}

const V2: Files = Files {
    mount: "/sys/fs/cgroup",
    most: "memory.max",
    swap: "memory.swap.max",
    is_first: false,
    anonymous: "anon ",
    kills: "memory.events",
};

const V1: Files = Files {
    mount: "/sys/fs/cgroup/memory",
    most: "memory.limit_in_bytes",
    swap: "memory.memsw.limit_in_bytes",
    is_first: true,
    anonymous: "rss ",
    kills: "memory.oom_control",
};

/// Memory that the kernel cannot take back, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) anonymous: u64,
    /// Files in memory, mapped or not.
    pub(super) shared: u64,
}

/// Empty, and gone with this.
#[derive(Debug)]
pub(super) struct Group {
    dir: PathBuf,
    files: &'static Files,
}

impl Group {
    /// A group of that name in one of this process's, or in the topmost.
    ///
    /// # Errors
    /// Why there can be none.
    pub(super) fn create(name: &str) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut refused = None;
        for (files, path) in places(&own) {
            match Self::create_in(files, &path, name) {
                Ok(group) => return Ok(group),
                Err(error) => refused = Some((path, error)),
            }
        }
        let (path, error) = refused.context("/proc/self/cgroup tells of no control groups")?;
        Err(error).with_context(|| format!("no control group for memory in {}", path.display()))
    }

    fn create_in(files: &'static Files, path: &Path, name: &str) -> io::Result<Self> {
        // Without that file it has no part in memory.
        fs::metadata(path.join("cgroup.procs"))?;
        let dir = path.join(name);
        fs::create_dir(&dir)?;
        let group = Self { dir, files };
        fs::File::options().write(true).open(group.dir.join(files.most))?;
        Ok(group)
    }

    /// Where a process writes its number to be in it.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// From now on it may have so many bytes.
    pub(super) fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        let path = self.dir.join(self.files.most);
        fs::write(&path, bytes.to_string()).with_context(|| path.display().to_string())?;
        let swap = if self.files.is_first { bytes } else { 0 };
        // Not every kernel counts swap.
        let _ = fs::write(self.dir.join(self.files.swap), swap.to_string());
        Ok(())
    }

    /// What it has now.
    pub(super) fn held(&self) -> Held {
        let text = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let number = |field| number_after(&text, field).unwrap_or(0);
        Held { anonymous: number(self.files.anonymous), shared: number("shmem ") }
    }

    /// Processes that were killed, for it had no memory left.
    pub(super) fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.files.kills)).unwrap_or_default();
        number_after(&text, "oom_kill ").unwrap_or(0)
    }

    /// Ends all processes in it.
    pub(super) fn end(&self) {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
        for _ in 0..EMPTY_WITHIN {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(10));
                }
                // What cannot be removed does no harm.
                _ => return,
            }
        }
    }
}

fn number_after(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
}

/// Where a group may be made, the likeliest first, by the text of /proc/self/cgroup. In the
/// second version a group that has processes has no groups below that count memory.
fn places(own: &str) -> Vec<(&'static Files, PathBuf)> {
    let mut places = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (kinds, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let files = match kinds {
            "" => &V2,
            kinds if kinds.split(',').any(|kind| kind == "memory") => &V1,
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        places.extend(path.ancestors().map(|path| (files, Path::new(files.mount).join(path))));
    }
    // One that counts memory in the first version has none in the second.
    places.sort_by_key(|(files, _)| !files.is_first);
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_looked_for_from_this_process_s_own_up() {
        let shown = |own| {
            let places = places(own).into_iter();
            places.map(|(files, path)| (files.most, path)).collect::<Vec<_>>()
        };
        let at = |most: &'static str, path: &str| (most, PathBuf::from(path));
        assert_eq!(
            shown("0::/\n5:devices:/\n4:hugetlb,memory:/a/b\n"),
            [
                at("memory.limit_in_bytes", "/sys/fs/cgroup/memory/a/b"),
                at("memory.limit_in_bytes", "/sys/fs/cgroup/memory/a"),
                at("memory.limit_in_bytes", "/sys/fs/cgroup/memory/"),
                at("memory.max", "/sys/fs/cgroup/"),
            ]
        );
        assert_eq!(
            shown("0::/jobs\n"),
            [at("memory.max", "/sys/fs/cgroup/jobs"), at("memory.max", "/sys/fs/cgroup/")]
        );
        assert_eq!(shown(""), []);
    }

    #[test]
    fn what_a_group_holds_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.stat", "cache 9\nrss 12\nrss_huge 7\nshmem 3\ntotal_rss 99\n");
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        let group = |files| Group { dir: dir.path().to_owned(), files };
        let first = group(&V1);
        assert_eq!(first.held(), Held { anonymous: 12, shared: 3 });
        assert_eq!(first.kills(), 2);
        write("memory.stat", "anon 5\nfile 8\nshmem 1\n");
        write("memory.events", "oom 4\noom_kill 1\noom_group_kill 0\n");
        let second = group(&V2);
        assert_eq!(second.held(), Held { anonymous: 5, shared: 1 });
        assert_eq!(second.kills(), 1);
    }
}
