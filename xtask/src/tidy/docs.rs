//! Links in the documents, and the README's map of the folders.

use std::collections::BTreeSet;
use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::source::File;
use crate::workspace::Workspace;

/// One line for every relative link of a document that leads nowhere.
pub(super) fn dead_links(root: &Path, file: &File) -> Vec<String> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let path = root.join(&file.path);
    let dir = path.parent().unwrap_or(root);
    let mut problems = Vec::new();
    for event in Parser::new(&file.text) {
        if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
            let target = dest_url.split('#').next().unwrap_or_default();
            // A colon ends the scheme of a link to elsewhere.
            if !target.contains(':') && !dir.join(target).exists() {
                problems.push(format!("{}: the link {dest_url} leads nowhere", file.path));
            }
        }
    }
    problems
}

/// What is wrong with the README's map of the folders: a folder that does not
/// exist, or a package that is not on it.
pub(super) fn map_problems(workspace: &Workspace, files: &[File]) -> Vec<String> {
    let Some(readme) = files.iter().find(|file| file.path == "README.md") else {
        return vec!["README.md: missing".into()];
    };
    let map = folder_map(&readme.text);
    let mut problems = Vec::new();
    for folder in map.iter().filter(|folder| !workspace.root.join(folder).is_dir()) {
        problems.push(format!("README.md: the folder {folder}/ does not exist"));
    }
    for package in &workspace.packages {
        // Examples come and go; their folder as a whole is on the map.
        let dir = if package.dir.starts_with("examples/") { "examples" } else { &package.dir };
        if !map.contains(dir) {
            problems.push(format!("README.md: the folder {dir}/ is not on the map"));
        }
    }
    problems
}

/// The folders that a document names: inline code that ends in `/`, and code
/// blocks that draw a tree (their first line begins with a folder).
fn folder_map(markdown: &str) -> BTreeSet<String> {
    let mut folders = BTreeSet::new();
    let mut block: Option<String> = None;
    for event in Parser::new(markdown) {
        match event {
            Event::Code(code) => folders.extend(folder(&code)),
            Event::Start(Tag::CodeBlock(_)) => block = Some(String::new()),
            Event::Text(text) => {
                if let Some(block) = &mut block {
                    block.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                folders.extend(tree(&block.take().unwrap_or_default()));
            }
            _ => {}
        }
    }
    folders
}

/// `crates/accel/` without the slash at its end; other words are no folders.
fn folder(word: &str) -> Option<String> {
    let path = word.strip_suffix('/')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    (path.starts_with(|c: char| c != '/' && plain(c)) && path.chars().all(plain))
        .then(|| path.to_owned())
}

/// The folders of a drawn tree: `name/` at the margin, and below it, indented
/// by two, what it holds. Lines indented further continue a description.
fn tree(block: &str) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    let mut parent = None;
    for line in block.lines() {
        let indent = line.len() - line.trim_start().len();
        let Some(word) = line.split_whitespace().next() else { continue };
        match (indent, &parent) {
            (0, _) => {
                parent = folder(word);
                folders.extend(parent.clone());
            }
            (2, Some(parent)) => folders.push(format!("{parent}/{}", word.trim_end_matches('/'))),
            _ => {}
        }
        if folders.is_empty() {
            break;
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const README: &str = "# Title\nSee `bench/results/` and `a/b`, `cat F | wc /`, `/tmp/`.\n\
        ```\ncrates/\n  accel    one accelerator:\n           its store\n  fs/      names\n\
        cli/       the program\nlater: crates/sim\n```\n\
        ```sh\ncargo run\nelse/ where\n```\n";

    fn readme(text: &str) -> File {
        File { path: "README.md".into(), text: text.into() }
    }

    #[test]
    fn folders_are_read_off_code_and_trees() {
        let map: Vec<_> = folder_map(README).into_iter().collect();
        assert_eq!(map, ["bench/results", "cli", "crates", "crates/accel", "crates/fs"]);
    }

    #[test]
    fn the_map_is_compared_with_the_folders() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["bench/results", "cli", "crates/accel", "examples/entropy"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let packages: Vec<_> = ["cli", "crates/accel", "bench", "examples/entropy"]
            .map(|folder| {
                let manifest = dir.path().join(folder).join("Cargo.toml");
                json!({"name": "p", "manifest_path": manifest, "targets": [], "dependencies": []})
            })
            .into();
        let metadata = json!({"workspace_root": dir.path(), "packages": packages});
        let workspace = Workspace::from_metadata(&metadata).unwrap();
        assert_eq!(
            map_problems(&workspace, &[readme(README)]),
            [
                "README.md: the folder crates/fs/ does not exist",
                "README.md: the folder bench/ is not on the map",
                "README.md: the folder examples/ is not on the map",
            ]
        );
        assert_eq!(map_problems(&workspace, &[]), ["README.md: missing"]);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("docs")).unwrap();
        std::fs::write(dir.path().join("docs/here.md"), "").unwrap();
        let text = "[a](here.md#part) [b](https://example.com/x) [c](#part) [d](gone.md) \
                    ![e](../docs/here.md) [f][g] `[h](code.md)`\n\n[g]: ../gone.png\n";
        let file = |path: &str| File { path: path.into(), text: text.into() };
        assert_eq!(
            dead_links(dir.path(), &file("docs/a.md")),
            [
                "docs/a.md: the link gone.md leads nowhere",
                "docs/a.md: the link ../gone.png leads nowhere"
            ]
        );
        assert_eq!(dead_links(dir.path(), &file("docs/a.rs")), Vec::<String>::new());
    }
}
