//! What the machine is: cores, caches, pages and memory, as the kernel tells.
//!
//! Everything is read once and nothing is guessed: a file that is missing (a
//! container, another architecture) leaves its field `None`.

use std::fs;
use std::path::{Path, PathBuf};

/// Cores, caches, pages and memory that the calling thread can use.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Cores that the calling thread may run on (its affinity mask), ascending.
    /// Empty only if the kernel refuses to tell and no list of cores exists.
    pub cores_allowed: Vec<usize>,
    /// Cores that are switched on, whoever may use them.
    pub cores_online: Option<usize>,
    /// The cgroup's limit on processor time, in cores (1.5 is three half-used
    /// ones); the tightest one from here to the root. Only cgroup v2 is read.
    pub cpu_quota_cores: Option<f64>,
    /// First-level data cache of the first allowed core, in bytes.
    pub l1d_bytes: Option<usize>,
    /// Second-level cache of the first allowed core, in bytes.
    pub l2_bytes: Option<usize>,
    /// Third-level cache of the first allowed core, in bytes; other cores, and
    /// on a virtual machine other guests, may share it.
    pub l3_bytes: Option<usize>,
    /// Bytes in a plain page.
    pub page_bytes: usize,
    /// When the kernel backs anonymous memory with huge pages by itself.
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Huge pages of 2 MiB set aside for `MAP_HUGETLB` (count, used or not).
    pub reserved_huge_pages_2mib: Option<usize>,
    /// Main memory, in bytes.
    pub memory_bytes: Option<u64>,
}

/// The system's setting for transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentHugePages {
    /// Wherever a range is large enough.
    Always,
    /// Only where a program asks by `madvise(MADV_HUGEPAGE)`.
    Madvise,
    /// Not even then.
    Never,
}

impl Topology {
    /// Reads the machine's topology as the calling thread sees it: a pinned
    /// thread finds one allowed core.
    #[must_use]
    pub fn read() -> Topology {
        Topology::read_from(Path::new("/"), affinity_mask())
    }

    /// As [`Topology::read`], below another root and with a given mask.
    fn read_from(root: &Path, affinity_mask: Option<Vec<usize>>) -> Topology {
        let online = text(root, "sys/devices/system/cpu/online").and_then(|t| parse_list(&t));
        let cores_online = online.as_ref().map(Vec::len);
        let cores_allowed = affinity_mask.or(online).unwrap_or_default();
        let cache = |level, kinds| cache_bytes(root, *cores_allowed.first()?, level, kinds);
        Topology {
            cores_online,
            cpu_quota_cores: cpu_quota_cores(root),
            l1d_bytes: cache(1, &["Data", "Unified"]),
            l2_bytes: cache(2, &["Unified", "Data"]),
            l3_bytes: cache(3, &["Unified", "Data"]),
            page_bytes: rustix::param::page_size(),
            transparent_huge_pages: text(root, "sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|t| parse_transparent(&t)),
            reserved_huge_pages_2mib: text(
                root,
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            )
            .and_then(|t| t.parse().ok()),
            memory_bytes: text(root, "proc/meminfo").and_then(|t| parse_mem_total(&t)),
            cores_allowed,
        }
    }
}

/// The calling thread's affinity mask; `None` where the kernel refuses, as it
/// does on a machine with more cores than the fixed-size mask has bits.
pub(crate) fn affinity_mask() -> Option<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    Some((0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// A small file's contents without surrounding white space.
fn text(root: &Path, path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(root.join(path)).ok()?.trim().to_owned())
}

/// Cores in the kernel's list format: `0-3,8`. A list that names more than
/// 65,536 cores is taken for damaged.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= 65_536 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// The size of a core's cache of one level and one of `kinds`.
fn cache_bytes(root: &Path, core: usize, level: u32, kinds: &[&str]) -> Option<usize> {
    let caches = root.join(format!("sys/devices/system/cpu/cpu{core}/cache"));
    let matches = |index: &PathBuf| {
        text(index, "level").and_then(|t| t.parse().ok()) == Some(level)
            && text(index, "type").is_some_and(|kind| kinds.contains(&kind.as_str()))
    };
    let index = fs::read_dir(caches).ok()?.flatten().map(|entry| entry.path()).find(matches)?;
    text(&index, "size").and_then(|t| parse_size(&t))
}

/// Bytes of a size such as `48K`.
fn parse_size(size: &str) -> Option<usize> {
    let (digits, unit_bytes) = match size.as_bytes().last()? {
        b'K' => (&size[..size.len() - 1], 1 << 10),
        b'M' => (&size[..size.len() - 1], 1 << 20),
        b'G' => (&size[..size.len() - 1], 1 << 30),
        _ => (size, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit_bytes)
}

/// The choice in brackets: `always [madvise] never`.
fn parse_transparent(choices: &str) -> Option<TransparentHugePages> {
    match choices.split(['[', ']']).nth(1)? {
        "always" => Some(TransparentHugePages::Always),
        "madvise" => Some(TransparentHugePages::Madvise),
        "never" => Some(TransparentHugePages::Never),
        _ => None,
    }
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn parse_mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The tightest `cpu.max` from this process's cgroup up to the root.
fn cpu_quota_cores(root: &Path) -> Option<f64> {
    let groups = text(root, "proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mount = root.join("sys/fs/cgroup");
    Path::new(group)
        .ancestors()
        .filter_map(|group| parse_quota(&text(&mount.join(group), "cpu.max")?))
        .reduce(f64::min)
}

/// Cores of a `cpu.max` such as `150000 100000`: quota and period in us.
fn parse_quota(cpu_max: &str) -> Option<f64> {
    let (quota_us, period_us) = cpu_max.split_once(' ')?;
    let cores = quota_us.parse::<u64>().ok()? as f64 / period_us.parse::<u64>().ok()? as f64;
    cores.is_finite().then_some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up root with the given files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        dir
    }

    #[test]
    fn a_whole_machine_is_read() {
        let cpu = "sys/devices/system/cpu";
        let at = |file: &str| format!("{cpu}/{file}");
        let files = [
            (at("online"), "0-3,6\n"),
            (at("cpu0/cache/index0/level"), "1\n"),
            (at("cpu0/cache/index0/type"), "Data\n"),
            (at("cpu0/cache/index0/size"), "64K\n"),
            (at("cpu2/cache/index0/level"), "1\n"),
            (at("cpu2/cache/index0/type"), "Instruction\n"),
            (at("cpu2/cache/index0/size"), "32K\n"),
            (at("cpu2/cache/index1/level"), "1\n"),
            (at("cpu2/cache/index1/type"), "Data\n"),
            (at("cpu2/cache/index1/size"), "48K\n"),
            (at("cpu2/cache/index2/level"), "2\n"),
            (at("cpu2/cache/index2/type"), "Unified\n"),
            (at("cpu2/cache/index2/size"), "2048K\n"),
            (at("cpu2/cache/index3/level"), "3\n"),
            (at("cpu2/cache/index3/type"), "Unified\n"),
            (at("cpu2/cache/index3/size"), "300M\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled".into(), "always [madvise] never\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages".into(), "7\n"),
            ("proc/meminfo".into(), "MemTotal:       16367448 kB\nMemFree: 1 kB\n"),
            ("proc/self/cgroup".into(), "4:memory:/old\n0::/jobs/mine\n"),
            ("sys/fs/cgroup/jobs/cpu.max".into(), "150000 100000\n"),
            ("sys/fs/cgroup/jobs/mine/cpu.max".into(), "250000 100000\n"),
            ("sys/fs/cgroup/cpu.max".into(), "400000 100000\n"),
        ];
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let root = root(&files);
        let expected = Topology {
            cores_allowed: vec![2, 6],
            cores_online: Some(5),
            cpu_quota_cores: Some(1.5),
            l1d_bytes: Some(48 << 10),
            l2_bytes: Some(2 << 20),
            l3_bytes: Some(300 << 20),
            page_bytes: rustix::param::page_size(),
            transparent_huge_pages: Some(TransparentHugePages::Madvise),
            reserved_huge_pages_2mib: Some(7),
            memory_bytes: Some(16_367_448 * 1024),
        };
        assert_eq!(Topology::read_from(root.path(), Some(vec![2, 6])), expected);
        // A kernel that will not tell the mask leaves every core that is on.
        let unmasked = Topology::read_from(root.path(), None);
        assert_eq!(unmasked.cores_allowed, [0, 1, 2, 3, 6]);
        assert_eq!(unmasked.l1d_bytes, Some(64 << 10));
    }

    #[test]
    fn missing_files_are_none() {
        let expected = Topology {
            cores_allowed: vec![],
            cores_online: None,
            cpu_quota_cores: None,
            l1d_bytes: None,
            l2_bytes: None,
            l3_bytes: None,
            page_bytes: rustix::param::page_size(),
            transparent_huge_pages: None,
            reserved_huge_pages_2mib: None,
            memory_bytes: None,
        };
        assert_eq!(Topology::read_from(root(&[]).path(), None), expected);
    }

    #[test]
    fn damaged_values_are_none() {
        for list in ["", "x", "0-", "0-99999999999", "3-x", "0,,1"] {
            assert_eq!(parse_list(list), None, "{list:?}");
        }
        for size in ["", "K", "x", "-1K", "99999999999999999999G", "18446744073709551615K"] {
            assert_eq!(parse_size(size), None, "{size:?}");
        }
        for quota in ["", "max 100000", "100000", "0 0", "x 1"] {
            assert_eq!(parse_quota(quota), None, "{quota:?}");
        }
        for choices in ["", "always", "[sometimes]"] {
            assert_eq!(parse_transparent(choices), None, "{choices:?}");
        }
        for meminfo in ["", "MemTotal:", "MemTotal: 5 MB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(parse_mem_total(meminfo), None, "{meminfo:?}");
        }
    }

    #[test]
    fn sizes_and_lists_in_every_form() {
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("1G"), Some(1 << 30));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("0,2-3"), Some(vec![0, 2, 3]));
        assert_eq!(parse_transparent("[always] madvise never"), Some(TransparentHugePages::Always));
        assert_eq!(parse_transparent("always madvise [never]"), Some(TransparentHugePages::Never));
    }

    #[test]
    fn a_pinned_thread_sees_one_core() {
        let here = Topology::read();
        let core = *here.cores_allowed.last().expect("a thread runs somewhere");
        let pinned = std::thread::spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            Topology::read().cores_allowed
        });
        assert_eq!(pinned.join().unwrap(), [core]);
    }
}
