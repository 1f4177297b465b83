//! What stands in the files: where `unsafe` is, how long they are, and what
//! was left behind.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use crate::workspace::Workspace;

/// Crates that may hold unsafe code at all; every other crate forbids it.
const UNSAFE_CRATES: &[&str] = &["crates/accel", "crates/cluster", "bench"];

/// The modules that may hold unsafe code: a file, or a folder with `/`.
const UNSAFE_MODULES: &[&str] = &[
    "bench/src/hw.rs",
    "crates/accel/src/arena.rs",
    "crates/accel/src/engine/",
    "crates/accel/src/parcel.rs",
    "crates/accel/src/region.rs",
    "crates/accel/src/sched.rs",
    "crates/accel/src/stack.rs",
    "crates/accel/src/store.rs",
    "crates/accel/src/transfers.rs",
    "crates/accel/src/window.rs",
    "crates/cluster/src/transport/mpi/ffi.rs",
];

/// A file this long is two files.
const LINES_MAX: usize = 600;

/// What is written to be removed again. Cut in two here, so that this list
/// does not find itself.
const MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("dbg", "!"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("(being ", "written)"),
];

/// Text files looked at, by ending.
const ENDINGS: &[&str] = &["rs", "md", "toml", "sh", "py", "c", "h", "yml"];

/// Hidden folders that hold our own files.
const HIDDEN: &[&str] = &[".ci", ".cargo", ".github"];

/// A text file of the repository.
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

/// All text files below `root` but those that cargo or git made.
pub(super) fn files(root: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    collect(root, root, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let foreign = name == "target" || path.join("CACHEDIR.TAG").exists();
            let hidden = name.starts_with('.') && !HIDDEN.contains(&&*name);
            if !foreign && !hidden {
                collect(root, &path, files)?;
            }
        } else if kind.is_file() && is_text(&path) {
            let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
        || path.ends_with(".ci/run")
}

/// One line for every library, program and example that does not forbid
/// unsafe code, though its package must.
pub(super) fn missing_forbid(workspace: &Workspace) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for package in &workspace.packages {
        if UNSAFE_CRATES.contains(&package.dir.as_str()) {
            continue;
        }
        for (kind, path) in package.targets.iter().filter(|(kind, _)| kind != "test") {
            let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
            if !text.contains("#![forbid(unsafe_code)]") {
                problems.push(format!(
                    "{}: the {kind} of {} lacks #![forbid(unsafe_code)]",
                    path.strip_prefix(&workspace.root).unwrap_or(path).display(),
                    package.name
                ));
            }
        }
    }
    Ok(problems)
}

/// One line for every module that is allowed `unsafe` but no longer there.
pub(super) fn gone_modules(root: &Path) -> Vec<String> {
    let gone = UNSAFE_MODULES.iter().filter(|module| !root.join(module).exists());
    gone.map(|module| format!("{module}: gone; take it off the list of modules for unsafe"))
        .collect()
}

/// All that is wrong with one file.
pub(super) fn problems(file: &File) -> Vec<String> {
    let mut problems = markers(file);
    if file.path.ends_with(".rs") {
        problems.extend(length(file));
        problems.extend(misplaced_unsafe(file));
    }
    problems
}

fn length(file: &File) -> Option<String> {
    let lines = file.text.lines().count();
    (lines > LINES_MAX)
        .then(|| format!("{}: {lines} lines, more than {LINES_MAX}; split it", file.path))
}

fn markers(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        for marker in MARKERS {
            if has_word(line, marker) {
                problems.push(format!("{}:{}: {marker} left behind", file.path, number + 1));
            }
        }
    }
    problems
}

/// Whether `word` stands in `line` by itself, not inside a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(joins) && !line[at + word.len()..].starts_with(joins))
}

fn misplaced_unsafe(file: &File) -> Option<String> {
    let allowed = UNSAFE_MODULES.iter().any(|module| {
        file.path == *module || (module.ends_with('/') && file.path.starts_with(module))
    });
    if allowed {
        return None;
    }
    let tokens = match file.text.parse::<TokenStream>() {
        Ok(tokens) => tokens,
        Err(error) => return Some(format!("{}: not Rust: {error}", file.path)),
    };
    let mut lines = Vec::new();
    collect_unsafe(tokens, &mut lines);
    let first = lines.first()?;
    Some(format!(
        "{}:{first}: unsafe ({} times) outside the modules for it; \
         they are listed in xtask/src/tidy/source.rs",
        file.path,
        lines.len()
    ))
}

/// The lines with the keyword, which comments and strings do not count as.
fn collect_unsafe(tokens: TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) if ident == "unsafe" => lines.push(ident.span().start().line),
            TokenTree::Group(group) => collect_unsafe(group.stream(), lines),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn unsafe_is_found_outside_its_modules() {
        let text = "// unsafe in words\nconst S: &str = \"unsafe\";\n#![deny(unsafe_code)]\n\
                    fn f() {\n    g(unsafe { h() });\n}\nunsafe impl Send for S {}\n";
        let problems = problems(&file("crates/stream/src/plan.rs", text));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("crates/stream/src/plan.rs:5: unsafe (2 times)"));
    }

    #[test]
    fn text_that_is_not_rust_is_found() {
        let problems = problems(&file("crates/stream/src/plan.rs", "fn f( {\n"));
        assert!(problems[0].contains("plan.rs: not Rust"), "{problems:?}");
    }

    #[test]
    fn unsafe_is_left_alone_in_its_modules() {
        let text = "unsafe fn f() {}\n";
        for path in ["crates/accel/src/arena.rs", "crates/accel/src/engine/uring.rs"] {
            assert_eq!(problems(&file(path, text)), Vec::<String>::new());
        }
        assert_eq!(problems(&file("crates/accel/src/arena.rs/x.rs", text)).len(), 1);
    }

    #[test]
    fn a_listed_module_that_is_gone_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(gone_modules(dir.path()).len(), UNSAFE_MODULES.len());
        let first = dir.path().join(UNSAFE_MODULES[0]);
        fs::create_dir_all(first.parent().unwrap()).unwrap();
        fs::write(first, "").unwrap();
        assert_eq!(gone_modules(dir.path()).len(), UNSAFE_MODULES.len() - 1);
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(problems(&file("a.rs", &"//\n".repeat(LINES_MAX))), Vec::<String>::new());
        assert_eq!(problems(&file("a.rs", &"//\n".repeat(LINES_MAX + 1))).len(), 1);
        assert_eq!(problems(&file("a.md", &"-\n".repeat(LINES_MAX + 1))), Vec::<String>::new());
    }

    #[test]
    fn markers_are_found_as_words_only() {
        for marker in MARKERS {
            let text = format!("fine\n  // {marker}: later\n");
            let problems = problems(&file("a.toml", &text));
            assert_eq!(problems, [format!("a.toml:2: {marker} left behind")]);
            let inside = format!("mktemp a{marker}b _{marker}\n");
            assert_eq!(markers(&file("a.sh", &inside)), Vec::<String>::new());
        }
    }

    #[test]
    fn a_crate_must_forbid_unsafe_code() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib.rs");
        let metadata = |folder: &str| {
            serde_json::json!({"workspace_root": dir.path(), "packages": [{
                "name": "p", "dependencies": [],
                "manifest_path": dir.path().join(folder).join("Cargo.toml"),
                "targets": [{"kind": ["lib"], "src_path": lib}],
            }]})
        };
        let missing = |folder: &str, text: &str| {
            fs::write(&lib, text).unwrap();
            missing_forbid(&Workspace::from_metadata(&metadata(folder)).unwrap()).unwrap()
        };
        let bare = missing("crates/stream", "//! Bare.\n");
        assert_eq!(bare, ["lib.rs: the lib of p lacks #![forbid(unsafe_code)]"]);
        assert!(missing("crates/stream", "#![forbid(unsafe_code)]\n").is_empty());
        assert!(missing("crates/accel", "//! Bare.\n").is_empty());
    }

    #[test]
    fn what_cargo_made_is_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a.rs", "target/b.rs", "out/c.rs", ".git/d.rs", ".ci/run", "e.bin"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(dir.path().join("out/CACHEDIR.TAG"), "").unwrap();
        let paths: Vec<_> = files(dir.path()).unwrap().into_iter().map(|file| file.path).collect();
        assert_eq!(paths, [".ci/run", "a.rs"]);
    }
}
