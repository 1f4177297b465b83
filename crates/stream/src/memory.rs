//! How much memory this process has.

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

fn status_bytes(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_follows_what_is_touched() {
        let before = peak_rss_bytes().unwrap();
        let touched = vec![1u8; 32 << 20];
        assert!(std::hint::black_box(&touched).iter().step_by(4096).all(|byte| *byte == 1));
        assert!(peak_rss_bytes().unwrap() >= before.min(rss_bytes().unwrap()) + (16 << 20));
    }
}
