//! The workspace as `cargo metadata` describes it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The packages of this repository and where they are.
pub(crate) struct Workspace {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
    /// All members.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
pub(crate) struct Package {
    /// The name in `Cargo.toml`, which differs from the folder's.
    pub(crate) name: String,
    /// The folder, from the root, with `/`: `crates/accel`.
    pub(crate) dir: String,
    /// Each target's kind (`lib`, `bin`, `test`, ...) and root source file.
    pub(crate) targets: Vec<(String, PathBuf)>,
    /// Direct dependencies of every kind.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line of a package's dependency tables.
pub(crate) struct Dependency {
    /// The package depended on (its own name, not an alias).
    pub(crate) name: String,
    /// `normal`, `build` or `dev`.
    pub(crate) kind: String,
}

/// A command that runs the cargo that runs us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

impl Workspace {
    /// Asks cargo about the workspace around the current folder.
    pub(crate) fn read() -> Result<Workspace> {
        let output = cargo(&["metadata", "--no-deps", "--format-version", "1"])
            .output()
            .context("cargo metadata does not start")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Workspace::from_metadata(&serde_json::from_slice(&output.stdout)?)
    }

    /// The same from metadata at hand.
    pub(crate) fn from_metadata(metadata: &Value) -> Result<Workspace> {
        let root = PathBuf::from(string(metadata, "workspace_root")?);
        let target = metadata["target_directory"].as_str().map_or(root.join("target"), Into::into);
        let packages = array(metadata, "packages")?
            .iter()
            .map(|package| Package::from_metadata(package, &root))
            .collect::<Result<_>>()?;
        Ok(Workspace { root, target, packages })
    }
}

impl Package {
    fn from_metadata(package: &Value, root: &Path) -> Result<Package> {
        let manifest = PathBuf::from(string(package, "manifest_path")?);
        let dir = manifest
            .parent()
            .and_then(|dir| dir.strip_prefix(root).ok()?.to_str())
            .with_context(|| format!("{} lies outside the workspace", manifest.display()))?;
        Ok(Package {
            name: string(package, "name")?.to_owned(),
            dir: dir.to_owned(),
            targets: array(package, "targets")?.iter().map(target).collect::<Result<_>>()?,
            dependencies: array(package, "dependencies")?
                .iter()
                .map(dependency)
                .collect::<Result<_>>()?,
        })
    }
}

fn target(target: &Value) -> Result<(String, PathBuf)> {
    let kind = array(target, "kind")?.first().and_then(Value::as_str).unwrap_or_default();
    Ok((kind.to_owned(), string(target, "src_path")?.into()))
}

fn dependency(dependency: &Value) -> Result<Dependency> {
    Ok(Dependency {
        name: string(dependency, "name")?.to_owned(),
        kind: dependency["kind"].as_str().unwrap_or("normal").to_owned(),
    })
}

fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("cargo metadata has no text {key:?}"))
}

fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("cargo metadata has no list {key:?}"))
}
