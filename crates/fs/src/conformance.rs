//! What every tree answers when it is served, as bytes: `conformance/cases.txt`.

use std::iter::Peekable;
use std::str::SplitWhitespace;

/// One line of a case.
#[derive(Debug)]
pub(crate) enum Line {
    /// Bytes to be sent.
    Send(Vec<u8>),
    /// A message to be awaited, but for its size.
    Await(Vec<Field>),
    /// The end of the stream.
    HangUp,
}

/// What is awaited next.
#[derive(Clone, Debug)]
pub(crate) enum Field {
    Bytes(Vec<u8>),
    Any(usize),
    /// Of a string.
    Some,
    Rest,
}

/// A table's case: what happens on one connection.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Each with its number in the table.
    pub(crate) lines: Vec<(usize, Line)>,
}

/// All of the table.
pub(crate) fn cases() -> Vec<Case> {
    /// Name, whether without the setup, and lines.
    type Text<'t> = (&'t str, bool, Vec<(usize, &'t str)>);
    let mut texts: Vec<Text<'_>> = Vec::new();
    for (number, line) in include_str!("conformance/cases.txt").lines().enumerate() {
        let line = line.trim();
        if line == "setup" {
            texts.push(("", true, Vec::new()));
        } else if let Some(name) = line.strip_prefix("case ") {
            texts.push((name, false, Vec::new()));
        } else if let Some(name) = line.strip_prefix("bare case ") {
            texts.push((name, true, Vec::new()));
        } else if !line.is_empty() && !line.starts_with('#') {
            texts.last_mut().expect("lines stand in a case").2.push((number + 1, line));
        }
    }
    let setup = texts.remove(0).2;
    let cases = texts.into_iter().map(|(name, bare, lines)| {
        let before = if bare { &[][..] } else { &setup };
        let lines = before.iter().chain(&lines).map(|(number, text)| (*number, line(text)));
        Case { name: name.into(), lines: lines.collect() }
    });
    cases.collect()
}

fn line(text: &str) -> Line {
    let mut words = text.split_whitespace().peekable();
    match words.next() {
        Some(">>") => Line::Send(bytes(words)),
        Some(">") => {
            let message = [header(&mut words), bytes(words)].concat();
            Line::Send([&(message.len() as u32 + 4).to_le_bytes(), &message[..]].concat())
        }
        Some("<") => {
            let header = Field::Bytes(header(&mut words));
            Line::Await(std::iter::once(header).chain(words.flat_map(fields)).collect())
        }
        Some("hangup") => Line::HangUp,
        _ => panic!("{text:?} is no line of a case"),
    }
}

/// Type and tag.
fn header(words: &mut Peekable<SplitWhitespace<'_>>) -> Vec<u8> {
    const TYPES: [&str; 14] = [
        "version", "auth", "attach", "error", "flush", "walk", "open", "create", "read", "write",
        "clunk", "remove", "stat", "wstat",
    ];
    let kind = words.next().expect("a type");
    let known = |name: &str| TYPES.iter().position(|known| *known == name).expect("a type");
    let kind = match kind.split_at(1) {
        ("T", name) => 100 + 2 * known(name) as u8,
        ("R", name) => 101 + 2 * known(name) as u8,
        _ => kind.parse().expect("a type's number"),
    };
    let tag = match words.next().expect("a tag") {
        "~" => u16::MAX,
        tag => tag.parse().expect("a tag"),
    };
    [&[kind], &tag.to_le_bytes()[..]].concat()
}

/// Fields that are all given.
fn bytes<'t>(words: impl Iterator<Item = &'t str>) -> Vec<u8> {
    let mut all = Vec::new();
    let mut hex = false;
    for word in words {
        // Bytes go on over spaces.
        if hex && !word.contains(':') {
            all.extend(from_hex(word));
            continue;
        }
        hex = word.starts_with("x:");
        for field in fields(word) {
            match field {
                Field::Bytes(bytes) => all.extend(bytes),
                other => panic!("{word}: {other:?} is not for sending"),
            }
        }
    }
    all
}

fn fields(word: &str) -> Vec<Field> {
    if let Some(any) = word.strip_prefix('?') {
        return vec![Field::Any(any.parse().expect("how many"))];
    }
    let Some((kind, value)) = word.split_once(':') else {
        assert_eq!(word, "*");
        return vec![Field::Rest];
    };
    let behind = |len: &[u8], bytes: Vec<u8>| vec![Field::Bytes([len, &bytes].concat())];
    match kind {
        "1" | "2" | "4" | "8" => {
            let len = kind.parse().expect("a length");
            if value == "?" { vec![Field::Any(len)] } else { vec![number(len, value)] }
        }
        "s" if value == "?" => vec![Field::Some],
        "s" => {
            let text = repeated(value);
            behind(&(text.len() as u16).to_le_bytes(), text)
        }
        "d" => {
            let data = repeated(value);
            behind(&(data.len() as u32).to_le_bytes(), data)
        }
        "q" => {
            let kind = if value == "d" { 0x80 } else { 0 };
            vec![Field::Bytes(vec![kind]), Field::Any(12)]
        }
        "w" => {
            let stat = wstat(value);
            behind(&(stat.len() as u16).to_le_bytes(), stat)
        }
        "x" => vec![Field::Bytes(from_hex(value))],
        _ => panic!("{word:?} is no field"),
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("bytes");
    (0..text.len()).step_by(2).map(byte).collect()
}

fn number(len: usize, text: &str) -> Field {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a number"),
        None => text.parse::<i64>().expect("a number").cast_unsigned(),
    };
    Field::Bytes(number.to_le_bytes()[..len].to_vec())
}

/// `8*x` is eight, `_` a space.
fn repeated(text: &str) -> Vec<u8> {
    match text.split_once('*') {
        Some((many, letter)) => letter.repeat(many.parse().expect("how many")).into(),
        None => text.replace('_', " ").into(),
    }
}

/// A stat whose other fields are not to be touched.
fn wstat(changes: &str) -> Vec<u8> {
    const NUMBERS: [(&str, usize); 9] = [
        ("type", 2),
        ("dev", 4),
        ("kind", 1),
        ("version", 4),
        ("path", 8),
        ("mode", 4),
        ("atime", 4),
        ("mtime", 4),
        ("length", 8),
    ];
    let value = |wanted: &str| {
        let mut all = changes.split(',').filter_map(|change| change.split_once('='));
        all.find(|(name, _)| *name == wanted).map(|(_, value)| value)
    };
    let words = NUMBERS.map(|(name, len)| format!("{len}:{}", value(name).unwrap_or("-1")));
    let texts = ["name", "uid", "gid", "muid"];
    let texts = texts.map(|name| format!("s:{}", value(name).unwrap_or("")));
    let stat = bytes(words.iter().chain(&texts).map(String::as_str));
    [&(stat.len() as u16).to_le_bytes(), &stat[..]].concat()
}

/// Whether a message, its size included, is what is awaited.
pub(crate) fn is_awaited(message: &[u8], fields: &[Field]) -> bool {
    let mut rest = &message[4..];
    for field in fields {
        let len = match field {
            Field::Rest => return true,
            Field::Bytes(bytes) if !rest.starts_with(bytes) => return false,
            Field::Bytes(bytes) => bytes.len(),
            Field::Any(len) => *len,
            Field::Some => match rest.first_chunk::<2>().map(|len| u16::from_le_bytes(*len)) {
                None | Some(0) => return false,
                Some(len) => 2 + usize::from(len),
            },
        };
        match rest.split_at_checked(len) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.is_empty()
}
