//! What `ls` and `stat` print.

use std::io::Write as _;

use cellway::fs::{Info, kind};
use cellway_bench::Format;
use serde::Serialize;

use crate::stdout::Stdout;

pub(super) fn is_directory(info: &Info) -> bool {
    info.mode & kind::DIRECTORY != 0
}

/// One line for each, in columns.
pub(super) fn print(infos: &[Info], format: Format) -> anyhow::Result<()> {
    let mut out = Stdout::lock();
    match format {
        Format::Json => {
            let infos: Vec<_> = infos.iter().map(InfoJson::from).collect();
            serde_json::to_writer_pretty(&mut out, &infos)?;
            writeln!(out)?;
        }
        Format::Text => {
            let widest = |column: fn(&Info) -> String| {
                infos.iter().map(|info| column(info).chars().count()).max().unwrap_or(0)
            };
            let uids = widest(|info| shown(&info.uid));
            let gids = widest(|info| shown(&info.gid));
            let lengths = widest(|info| info.length.to_string());
            for info in infos {
                let (mode, time) = (mode(info.mode), time(info.mtime));
                let (uid, gid, name) = (shown(&info.uid), shown(&info.gid), shown(&info.name));
                let length = info.length;
                writeln!(out, "{mode} {uid:uids$} {gid:gids$} {length:>lengths$} {time} {name}")?;
            }
        }
    }
    Ok(out.flush()?)
}

/// All that is known, one line for each thing.
pub(super) fn print_one(info: &Info, format: Format) -> anyhow::Result<()> {
    let mut out = Stdout::lock();
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &InfoJson::from(info))?;
            writeln!(out)?;
        }
        Format::Text => {
            let mut line = |name: &str, value: String| writeln!(out, "{name:<8} {value}");
            line("name", shown(&info.name))?;
            line("mode", format!("{} ({:04o})", mode(info.mode), info.mode & 0o7777))?;
            line("length", info.length.to_string())?;
            line("written", format!("{} UTC", time(info.mtime)))?;
            line("read", format!("{} UTC", time(info.atime)))?;
            line("owner", shown(&info.uid))?;
            line("group", shown(&info.gid))?;
            line("writer", shown(&info.muid))?;
            line("qid", format!("{:#x} version {}", info.qid.path, info.qid.version))?;
        }
    }
    Ok(out.flush()?)
}

/// Text from elsewhere as it may stand on a terminal.
fn shown(text: &str) -> String {
    if text.is_empty() {
        return "-".to_owned();
    }
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// As `ls -l` writes modes, with Plan 9's letters for what is no directory.
fn mode(mode: u32) -> String {
    let first = match mode {
        mode if mode & kind::DIRECTORY != 0 => 'd',
        mode if mode & kind::APPEND != 0 => 'a',
        mode if mode & kind::EXCLUSIVE != 0 => 'l',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().zip((0..9).rev());
    let bits = bits.map(|(letter, bit)| if mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

/// Seconds since 1970 as a date and a time of day in UTC
/// (howardhinnant.github.io/date_algorithms.html, `civil_from_days`).
fn time(seconds: u32) -> String {
    let (days, seconds) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u32::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

#[derive(Serialize)]
struct InfoJson<'i> {
    name: &'i str,
    directory: bool,
    mode: u32,
    length: u64,
    mtime: u32,
    atime: u32,
    uid: &'i str,
    gid: &'i str,
    muid: &'i str,
    qid_path: u64,
    qid_version: u32,
}

impl<'i> From<&'i Info> for InfoJson<'i> {
    fn from(info: &'i Info) -> Self {
        Self {
            name: &info.name,
            directory: is_directory(info),
            mode: info.mode,
            length: info.length,
            mtime: info.mtime,
            atime: info.atime,
            uid: &info.uid,
            gid: &info.gid,
            muid: &info.muid,
            qid_path: info.qid.path,
            qid_version: info.qid.version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_times_are_those_of_ls() {
        assert_eq!(mode(kind::DIRECTORY | 0o755), "drwxr-xr-x");
        assert_eq!(mode(0o640), "-rw-r-----");
        assert_eq!(mode(kind::APPEND | 0o222), "a-w--w--w-");
        assert_eq!(mode(kind::EXCLUSIVE), "l---------");
        for (seconds, shown) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (u32::MAX, "2106-02-07 06:28"),
        ] {
            assert_eq!(time(seconds), shown);
        }
    }

    #[test]
    fn names_do_not_drive_the_terminal() {
        assert_eq!(shown("a\u{1b}[2J\n"), "a?[2J?");
        assert_eq!(shown(""), "-");
    }
}
