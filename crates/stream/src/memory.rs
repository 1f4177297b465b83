//! How much memory this process has, and may have.

use std::fs;
use std::path::Path;

/// Resident memory now, in bytes; `None` where /proc does not tell.
#[must_use]
pub fn rss_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Most resident memory so far, in bytes; `None` where /proc does not tell.
#[must_use]
pub fn peak_rss_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// What this process takes before a run, in bytes: what is resident, and what of
/// its program and libraries may yet become so. A run's bound stands on it; 0 where
/// /proc does not tell.
#[must_use]
pub fn floor_bytes() -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let resident = status_bytes("RssFile:").unwrap_or(0);
    rss_bytes().unwrap_or(0) + program_bytes(&maps).saturating_sub(resident)
}

/// Bytes mapped of all files that have code, by the text of /proc/self/maps.
fn program_bytes(maps: &str) -> u64 {
    let mappings = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let bytes = u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?;
        // The inode, with its device before it.
        let file = (fields.nth(1)?, fields.next()?);
        (file.1 != "0").then_some((file, is_code, bytes))
    });
    let mappings: Vec<_> = mappings.collect();
    let has_code = |file| mappings.iter().any(|(of, is_code, _)| *is_code && *of == file);
    mappings.iter().filter(|(file, ..)| has_code(*file)).map(|(.., bytes)| bytes).sum()
}

fn status_bytes(field: &str) -> Option<u64> {
    kib_after(&fs::read_to_string("/proc/self/status").ok()?, field)
}

/// The number behind a field, in bytes.
fn kib_after(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory in bytes that can be had without taking anybody's: what the machine
/// has left, and each control group from this process's up to the root. The page
/// cache counts as left. `None` where nobody tells.
pub(crate) fn free_bytes() -> Option<u64> {
    free_below(Path::new("/"))
}

/// What the files of a control group are called.
struct Group {
    mount: &'static str,
    most: &'static str,
    used: &'static str,
    cached: [&'static str; 2],
}

const V2: Group = Group {
    mount: "sys/fs/cgroup",
    most: "memory.max",
    used: "memory.current",
    cached: ["inactive_file ", "active_file "],
};

const V1: Group = Group {
    mount: "sys/fs/cgroup/memory",
    most: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

fn free_below(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| kib_after(&text, "MemAvailable:"));
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let of_groups = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (kinds, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let group = match kinds {
            "" => Some(V2),
            kinds => kinds.split(',').any(|kind| kind == "memory").then_some(V1),
        };
        let left = |group: Group| {
            let mount = root.join(group.mount);
            let path = Path::new(path.trim_start_matches('/'));
            path.ancestors().filter_map(|path| left_in(&mount.join(path), &group)).min()
        };
        group.and_then(left)
    });
    machine.into_iter().chain(of_groups).min()
}

fn left_in(dir: &Path, group: &Group) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    let (most, used) = (number(group.most)?, number(group.used)?);
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cached = |field: &&str| {
        let number = stat.lines().find_map(|line| line.strip_prefix(field))?;
        number.trim().parse::<u64>().ok()
    };
    let cached = group.cached.iter().filter_map(cached).fold(0, u64::saturating_add);
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a made-up machine has left.
    fn free_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        free_below(root.path())
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n");

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(free_of(&[]), None);
        assert_eq!(free_of(&[MACHINE]), Some(5000 << 10));
        let v2 = [
            MACHINE,
            ("proc/self/cgroup", "0::/jobs/mine\n"),
            ("sys/fs/cgroup/jobs/mine/memory.max", "max\n"),
            ("sys/fs/cgroup/jobs/mine/memory.current", "1000\n"),
            ("sys/fs/cgroup/jobs/memory.max", "2000000\n"),
            ("sys/fs/cgroup/jobs/memory.current", "1500000\n"),
            (
                "sys/fs/cgroup/jobs/memory.stat",
                "anon 7\nfile 9\ninactive_file 300000\nactive_file 1000\n",
            ),
        ];
        assert_eq!(free_of(&v2), Some(801_000));
        let v1 = [
            MACHINE,
            ("proc/self/cgroup", "5:devices:/\n4:hugetlb,memory:/mine\n0::/\n"),
            ("sys/fs/cgroup/memory/mine/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/mine/memory.usage_in_bytes", "900\n"),
            (
                "sys/fs/cgroup/memory/mine/memory.stat",
                "active_file 1\ntotal_inactive_file 20\ntotal_active_file 30\n",
            ),
        ];
        assert_eq!(free_of(&v1), Some(150));
        // As a container sees it: its own group is the root.
        let hidden = [MACHINE, v1[1], ("sys/fs/cgroup/memory/memory.limit_in_bytes", "70\n"), {
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "80\n")
        }];
        assert_eq!(free_of(&hidden), Some(0));
    }

    #[test]
    fn this_machine_tells() {
        assert!(free_bytes().is_some_and(|free| free > 1 << 20));
    }

    #[test]
    fn a_program_is_what_has_code() {
        let maps = "\
            1000-3000 r--p 00000000 fe:00 42 /usr/bin/a program\n\
            3000-7000 r-xp 00002000 fe:00 42 /usr/bin/a program\n\
            7000-8000 r--s 00000000 fe:00 43 /data\n\
            8000-9000 r--p 00000000 fe:01 42 /other\n\
            9000-a000 rw-p 00000000 00:00 0 [heap]\n\
            a000-b000 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(program_bytes(maps), 0x6000);
        assert_eq!(program_bytes("not a mapping\n"), 0);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(program_bytes(&maps) > 100_000, "{maps}");
        assert!(floor_bytes() >= rss_bytes().unwrap().min(program_bytes(&maps)));
    }

    #[test]
    fn the_peak_follows_what_is_touched() {
        let before = peak_rss_bytes().unwrap();
        let touched = vec![1u8; 32 << 20];
        assert!(std::hint::black_box(&touched).iter().step_by(4096).all(|byte| *byte == 1));
        assert!(peak_rss_bytes().unwrap() >= before.min(rss_bytes().unwrap()) + (16 << 20));
    }
}
