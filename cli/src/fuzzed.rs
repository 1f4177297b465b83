//! What must hold of the command line whatever it says: run by cargo-fuzz, and
//! by proptests beside it. Nothing is run, read or written; names are looked up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use clap::Parser as _;

use crate::{Cli, Command, exit};

/// Takes any bytes for arguments, parted by line ends, and for options that are valid.
///
/// # Panics
/// Where something does not hold.
pub fn command_line(data: &[u8]) {
    let arguments = || data.split(|byte| *byte == b'\n').map(OsStr::from_bytes);
    parse(arguments());
    // Most of what is random is no command.
    parse(["run", "crc32c", "in"].map(OsStr::new).into_iter().chain(arguments()));
    let Some((bytes, _)) = data.split_first_chunk::<21>() else { return };
    options(bytes);
}

/// What cannot be parsed is told on one line.
fn parse<'a>(arguments: impl Iterator<Item = &'a OsStr>) {
    match Cli::try_parse_from([OsStr::new("cellway")].into_iter().chain(arguments)) {
        Ok(Cli { command: Command::Run(args) }) => {
            let wrong = args.check().err();
            assert!(wrong.is_none_or(|usage| usage.0.contains("; ")), "{args:?}");
            let _ = args.options();
        }
        Ok(_) => {}
        Err(error) => {
            let line = exit::one_line(&error.render().to_string(), "cellway");
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
        }
    }
}

/// Options mean what they say, in whichever unit.
fn options(bytes: &[u8; 21]) {
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i])).max(1);
    let (accelerators, threads, staging) = (number(0), number(4), number(8));
    let (block, store) = (u64::from(number(12)), u64::from(number(16)));
    let units = ["", "B", "k", "KiB", "M", "mib", "G", "GiB"];
    let unit = usize::from(bytes[20]) % units.len();
    let line = format!(
        "cellway run crc32c in --accelerators {accelerators} --threads {threads} --staging {staging} \
         --block {block}{} --local-store {store}",
        units[unit]
    );
    let Ok(Cli { command: Command::Run(args) }) = Cli::try_parse_from(line.split_whitespace())
    else {
        panic!("{line}")
    };
    let options = args.options();
    assert_eq!(options.accelerators, Some(accelerators as usize), "{line}");
    assert_eq!(options.threads, Some(threads as usize), "{line}");
    assert_eq!(options.staging, Some(staging as usize), "{line}");
    assert_eq!(options.block_bytes, Some(block << (unit / 2 * 10)), "{line}");
    assert_eq!(options.local_store_bytes, Some(store), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Some of it nearly right.
    const WORDS: &[&str] = &[
        "run",
        "bench",
        "demo",
        "info",
        "kernels",
        "crc32c",
        "identity",
        "replace,aes256-ctr",
        "identity,crc32c",
        "-",
        "in",
        "out",
        "--block",
        "--block=0",
        "4K",
        "99999999999T",
        "--scheme",
        "staged",
        "5",
        "--pattern",
        "(",
        "a{9999}",
        "--with",
        "--iv",
        "00",
        "--type",
        "i16",
        "--top",
        "--out-dir",
        "-rf",
        "--journal",
        "--resume",
        "--journal-every",
        "1e400",
        "-1",
        "--stats",
        "--trace",
        "#U/in",
        "#R/in",
        "#p/a",
        "#n/tcp!h!1/a",
        "--help",
        "-V",
        "--",
        "\u{fffd}",
        "",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_bytes_are_a_command_or_refused(data in prop::collection::vec(any::<u8>(), 0..60)) {
            command_line(&data);
        }

        #[test]
        fn any_words_are_a_command_or_refused(
            words in prop::collection::vec(prop::sample::select(WORDS), 0..9),
        ) {
            command_line(words.join("\n").as_bytes());
        }
    }
}
