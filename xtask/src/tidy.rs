//! `cargo xtask tidy`: the rules that the compiler does not check.

mod docs;
mod edges;
mod source;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

/// Runs every check, prints every problem, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::read()?;
    let mut problems = edges::wrong(&workspace);
    problems.extend(source::missing_forbid(&workspace)?);
    problems.extend(source::gone_modules(&workspace.root));
    let files = source::files(&workspace.root)?;
    for file in &files {
        problems.extend(source::problems(file));
        problems.extend(docs::dead_links(&workspace.root, file));
    }
    problems.extend(docs::map_problems(&workspace, &files));
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        bail!("tidy: {} problems in {} files", problems.len(), files.len());
    }
    println!("tidy: {} packages, {} files, no problem", workspace.packages.len(), files.len());
    Ok(())
}
