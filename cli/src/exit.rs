//! How the program ends: exit codes, and one line for every error.

use std::io;
use std::process::ExitCode;

use cellway::StreamError;
use cellway::cluster::transport::mpi;
use cellway::stream::{JournalError, JournalErrorKind, PlanError};
use clap::CommandFactory as _;
use clap::error::ErrorKind;

/// The exit codes. Scripts rely on them: they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Done,
    /// It was tried and failed.
    Failed,
    /// The command line cannot be carried out.
    Usage,
    /// Ended by this signal.
    Signal(u8),
}

impl Exit {
    /// The number the shell gets.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Signal(number) => 128 + number,
        }
    }

    /// The table for `--help`.
    pub(crate) fn help() -> String {
        let (done, failed, usage) = (Self::Done.code(), Self::Failed.code(), Self::Usage.code());
        let (int, term) = (Self::Signal(2).code(), Self::Signal(15).code());
        format!(
            "Exit codes:\n  \
             {done}    Done; also if the reader of standard output left early, where a\n       \
             transform ends without statistics\n  \
             {failed}    Failed: a file, a disk, what is in the input, or a journal that\n       \
             cannot be gone on from\n  \
             {usage}    Wrong command line, or another than that of the journal;\n       \
             nothing was touched\n  \
             {int}  Stopped by Ctrl-C (SIGINT); by SIGTERM {term}, by SIGHUP {}\n\n\
             After a failure or a signal an output file is as it was before, or whole if\n\
             only the statistics or the trace could not be written. With --journal what\n\
             was written stays in a hidden file beside it, for --resume.",
            Self::Signal(1).code()
        )
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Something wrong with the command line that clap cannot see.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Why a command failed was said already.
#[derive(Debug)]
pub(crate) struct Told(pub(crate) Exit);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it was said why")
    }
}

impl std::error::Error for Told {}

/// Prints what clap has to say: help as it is, an error on one line.
pub(crate) fn of_parsing(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Whoever piped the help into `head` has seen enough.
            let _ = error.print();
            Exit::Done
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::Usage
        }
        _ => {
            complain(&one_line(&error.render().to_string(), &command_named()));
            Exit::Usage
        }
    }
}

/// Prints why a command failed, once.
pub(crate) fn of_failure(error: &anyhow::Error) -> Exit {
    if let Some(Told(exit)) = error.downcast_ref() {
        return *exit;
    }
    if error.chain().any(is_broken_pipe) {
        return Exit::Done;
    }
    complain(&reasons(error).replace('\n', " "));
    if is_usage(error) { Exit::Usage } else { Exit::Failed }
}

/// An error and its causes, each once: many errors quote their cause themselves.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |line, cause| {
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}

/// One line on standard error, about what went wrong, and in which process of several.
pub(crate) fn complain(line: &str) {
    let process = mpi::launched_as().map(|rank| format!("process {rank}: "));
    tell(&format!("cellway: {}{}", process.unwrap_or_default(), shown(line)));
}

/// Text that may come from elsewhere, a server or a file's name, as it may stand on a terminal.
fn shown(text: &str) -> String {
    text.chars().fold(String::new(), |mut shown, c| {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

/// One line on standard error.
pub(crate) fn tell(line: &str) {
    use std::io::Write as _;
    // If that fails too there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{line}");
}

fn is_usage(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        // What the file system or the machine refuses is no slip of the hand.
        Some(StreamError::Plan(PlanError::Direct { .. } | PlanError::Memory { .. })) => false,
        Some(StreamError::Plan(_)) => true,
        Some(StreamError::Journal(error)) => is_wrong_journal(error),
        _ => error.is::<Usage>(),
    }
}

/// Whether a journal and the command line do not go together.
fn is_wrong_journal(error: &JournalError) -> bool {
    matches!(error.kind(), JournalErrorKind::OtherRun | JournalErrorKind::Unfit)
}

/// Whether the reader of standard output has gone. Outputs with a name have
/// errors of their own, which do not count here.
fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    let json = || cause.downcast_ref::<serde_json::Error>().and_then(|error| error.io_error_kind());
    io.or_else(json) == Some(io::ErrorKind::BrokenPipe)
}

/// `cellway`, and the command asked for if there is one of that name.
fn command_named() -> String {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    match crate::Cli::command().find_subcommand(first) {
        Some(command) => format!("cellway {}", command.get_name()),
        None => "cellway".to_owned(),
    }
}

/// Clap's message without its decoration: what is wrong, then what is near or
/// possible, then where to read on.
pub(crate) fn one_line(message: &str, command: &str) -> String {
    let joined = |lines: &str| lines.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = message.split("\n\n");
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let tips: Vec<_> = paragraphs
        .flat_map(str::lines)
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        // It takes a number below zero for a name of an option.
        .map(|tip| match tip.strip_prefix("to pass '-") {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                "no option takes a number below zero"
            }
            _ => tip,
        })
        .collect();
    if tips.is_empty() {
        return format!("{}; try '{command} --help'", joined(what));
    }
    let what = what.split("\n  [possible values").next().unwrap_or(what);
    format!("{}; {}", joined(what), tips.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn complaint(line: &str) -> String {
        let error = crate::Cli::try_parse_from(line.split(' ')).unwrap_err();
        one_line(&error.render().to_string(), "cellway run")
    }

    #[test]
    fn parsing_errors_take_one_line() {
        for (line, expected) in [
            (
                "cellway run aes256 in",
                "invalid value 'aes256' for '<KERNEL>'; a similar value exists: 'aes256-ctr'",
            ),
            ("cellway rum", "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'"),
            (
                "cellway run crc32c in --thread 2",
                "unexpected argument '--thread' found; a similar argument exists: '--threads'",
            ),
            (
                "cellway run crc32c",
                "the following required arguments were not provided: <INPUT>...; \
                 try 'cellway run --help'",
            ),
            (
                "cellway run crc32c in --block 1MB",
                "invalid value '1MB' for '--block <SIZE>': unknown unit 'mb'; \
                 write K, M, G or T (powers of 1024); try 'cellway run --help'",
            ),
            (
                "cellway run crc32c in --unit 0",
                "invalid value '0' for '--unit <SIZE>': '0' is out of range; write 1 to 16777215T; \
                 try 'cellway run --help'",
            ),
            (
                "cellway run crc32c in --nodes -1",
                "unexpected argument '-1' found; no option takes a number below zero",
            ),
            (
                "cellway bench walk --rounds 0",
                "invalid value '0' for '--rounds <N>': 0 is not in 1..18446744073709551615; \
                 try 'cellway run --help'",
            ),
            (
                "cellway run crc32c in --direct yes",
                "invalid value 'yes' for '--direct <WHEN>' [possible values: auto, on, off]; \
                 try 'cellway run --help'",
            ),
        ] {
            assert_eq!(complaint(line), expected, "{line}");
        }
    }

    #[test]
    fn each_reason_is_given_once() {
        let quoting = cellway::accel::EngineError {
            engine: "uring",
            what: "a no-op",
            source: io::Error::other("no ring"),
        };
        assert_eq!(
            reasons(&anyhow::Error::new(quoting).context("in")),
            "in: engine uring does not work here: a no-op: no ring; use --engine pread or auto"
        );
    }

    #[test]
    fn errors_do_not_drive_the_terminal() {
        assert_eq!(shown("é \u{1b}[2J\r\u{9b}"), "é \\u{1b}[2J\\r\\u{9b}");
    }

    #[test]
    fn codes_follow_the_cause() {
        let zero = StreamError::Plan(PlanError::Zero { what: "--threads" });
        assert!(is_usage(&zero.into()) && is_usage(&Usage(String::new()).into()));
        let refused = StreamError::Plan(PlanError::Direct { why: String::new() });
        assert!(!is_usage(&refused.into()));
        assert_eq!(Exit::Signal(2).code(), 130);
    }
}
