//! What every tree answers when it is served, as bytes: `conformance/cases.txt`.

use std::collections::HashMap;

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
    /// So many bytes, and what holds of them and those that have a name.
    Named(usize, Vec<(Named, String)>),
    Rest,
}

/// What holds of bytes and a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    /// They have it from now on.
    Is,
    Same,
    Other,
}

/// Bytes that have a name in a case.
pub(crate) type Kept = HashMap<String, Vec<u8>>;

/// A table's case: what happens on one connection.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// Each with its number in the table.
    pub(crate) lines: Vec<(usize, Line)>,
}

/// A part of the table: its first line, and the others with their numbers.
type Block<'t> = (&'t str, Vec<(usize, &'t str)>);

/// What stands in a tree's lines instead of words that begin with `$`.
type Words<'t> = HashMap<&'t str, &'t str>;

/// Those of the table that hold of a tree: `files`, or a server's name.
pub(crate) fn cases(tree: &str) -> Vec<Case> {
    let all = blocks(include_str!("conformance/cases.txt"));
    let (setups, cases): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(head, _)| head.starts_with("setup "));
    let trees = |head: &'static str| head.split(' ').skip(1);
    let setup = setups.iter().find(|(head, _)| trees(head).any(|one| one == tree));
    let (_, setup) = setup.expect("a tree of the table");
    let (lets, setup): (Vec<_>, Vec<_>) =
        setup.iter().copied().partition(|(_, line)| line.starts_with("let "));
    let words = lets.iter().map(|(_, line)| line[4..].split_once(' ').expect("a word's meaning"));
    let words: Words<'_> = words.collect();
    let cases = cases.into_iter().filter_map(|(head, lines)| {
        let (bare, head) = head.strip_prefix("bare ").map_or((false, head), |head| (true, head));
        let head = head.strip_prefix("case ").expect("a case");
        let marked = head.strip_prefix('[').and_then(|head| head.split_once("] "));
        let (marks, name) = marked.unwrap_or(("", head));
        for mark in marks.split_terminator(' ') {
            let mut known = setups.iter().flat_map(|(head, _)| trees(head));
            assert!(known.any(|tree| tree == mark), "{name}: {mark} is no tree of the table");
        }
        if !marks.is_empty() && !marks.split(' ').any(|mark| mark == tree) {
            return None;
        }
        let before = setup.iter().copied().filter(|_| !bare);
        let lines = before.chain(lines).map(|(number, text)| (number, line(text, &words)));
        let lines = lines.collect();
        Some(Case { name: name.into(), lines })
    });
    cases.collect()
}

/// Lines that stand for themselves, with their numbers.
pub(crate) fn lines(text: &str) -> Vec<(usize, Line)> {
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, text)| !text.is_empty());
    lines.map(|(number, text)| (number + 1, line(text, &Words::new()))).collect()
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for (number, line) in text.lines().map(str::trim).enumerate() {
        if ["setup ", "case ", "bare case "].iter().any(|head| line.starts_with(head)) {
            blocks.push((line, Vec::new()));
        } else if !line.is_empty() && !line.starts_with('#') {
            blocks.last_mut().expect("lines stand below a head").1.push((number + 1, line));
        }
    }
    blocks
}

fn line(text: &str, meanings: &Words<'_>) -> Line {
    let meant = |word| meanings.get(word).copied().unwrap_or(word);
    let mut words = text.split_whitespace().flat_map(|word| meant(word).split(' '));
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
fn header<'t>(words: &mut impl Iterator<Item = &'t str>) -> Vec<u8> {
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
    if let Some(named) = named(word) {
        return vec![named];
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
            let kind = match value {
                "d" => 0x80,
                "a" => 0x40,
                _ => 0,
            };
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

/// As `8!old>new`.
fn named(word: &str) -> Option<Field> {
    const MARKS: [char; 3] = ['>', '=', '!'];
    let (len, _) = word.split_once(MARKS)?;
    let mut rest = &word[len.len()..];
    let (len, mut all) = (len.parse().ok()?, Vec::new());
    while let Some(mark) = rest.chars().next() {
        let (name, _) = rest[1..].split_once(MARKS).unwrap_or((&rest[1..], ""));
        rest = &rest[1 + name.len()..];
        let holds = match mark {
            '>' => Named::Is,
            '=' => Named::Same,
            _ => Named::Other,
        };
        all.push((holds, name.to_owned()));
    }
    Some(Field::Named(len, all))
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
pub(crate) fn is_awaited(message: &[u8], fields: &[Field], kept: &mut Kept) -> bool {
    let mut rest = &message[4..];
    for field in fields {
        let len = match field {
            Field::Rest => return true,
            Field::Bytes(bytes) if !rest.starts_with(bytes) => return false,
            Field::Bytes(bytes) => bytes.len(),
            Field::Any(len) | Field::Named(len, _) => *len,
            Field::Some => match rest.first_chunk::<2>().map(|len| u16::from_le_bytes(*len)) {
                None | Some(0) => return false,
                Some(len) => 2 + usize::from(len),
            },
        };
        let Some((bytes, behind)) = rest.split_at_checked(len) else { return false };
        rest = behind;
        let Field::Named(_, names) = field else { continue };
        for (holds, name) in names {
            let known = kept.get(name).map(|kept| kept == bytes);
            match holds {
                Named::Is => _ = kept.insert(name.clone(), bytes.to_vec()),
                Named::Same if known.expect("a name that was given") => {}
                Named::Other if !known.expect("a name that was given") => {}
                Named::Same | Named::Other => return false,
            }
        }
    }
    rest.is_empty()
}
