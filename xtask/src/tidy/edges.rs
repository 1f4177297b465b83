//! The direction of dependencies: each crate knows only those before it.

use crate::workspace::{Package, Workspace};

/// The folders of the workspace, lowest layer first. A crate may depend, for
/// whatever purpose, only on crates further left, and for its tests on itself
/// with a feature. `ARCHITECTURE.md` says why.
const ORDER: &[&str] = &[
    "crates/record-derive",
    "crates/record",
    "crates/accel",
    "crates/storage",
    "crates/stream",
    "crates/kernels",
    "crates/ninep",
    "crates/fs",
    "crates/cluster",
    "crates/cellway",
    "bench",
    "cli",
    "xtask",
];

/// Examples stand for strangers: all they may know is this package.
const FACADE: &str = "cellway";

/// One line for every dependency that points the wrong way.
pub(super) fn wrong(workspace: &Workspace) -> Vec<String> {
    workspace.packages.iter().flat_map(|package| wrong_of(package, workspace)).collect()
}

fn wrong_of(package: &Package, workspace: &Workspace) -> Vec<String> {
    if package.dir.starts_with("examples/") {
        return wrong_of_example(package, workspace);
    }
    let Some(rank) = rank(&package.dir) else {
        return vec![format!(
            "{}: not in the order of layers; give it a place in xtask/src/tidy/edges.rs",
            package.dir
        )];
    };
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        let Some(target) = member(workspace, &dependency.name) else { continue };
        if self::rank(&target.dir).is_none_or(|target| target > rank) {
            problems.push(format!(
                "{}: {} dependency on {}, which comes later in the order ({}); \
                 move the shared part to the lower crate",
                package.dir,
                dependency.kind,
                target.dir,
                ORDER.join(", ")
            ));
        }
    }
    problems
}

/// An example depends on the facade alone; its tests may use other people's
/// crates, but none of ours.
fn wrong_of_example(package: &Package, workspace: &Workspace) -> Vec<String> {
    let mut problems = Vec::new();
    for dependency in &package.dependencies {
        let foreign_in_test =
            dependency.kind == "dev" && member(workspace, &dependency.name).is_none();
        if dependency.name != FACADE && !foreign_in_test {
            problems.push(format!(
                "{}: {} dependency on {}; an example depends on {FACADE} alone",
                package.dir, dependency.kind, dependency.name
            ));
        }
    }
    problems
}

fn rank(dir: &str) -> Option<usize> {
    ORDER.iter().position(|layer| *layer == dir)
}

fn member<'a>(workspace: &'a Workspace, name: &str) -> Option<&'a Package> {
    workspace.packages.iter().find(|package| package.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Metadata of one member, as cargo writes it.
    fn package(dir: &str, name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({
            "name": name,
            "manifest_path": format!("/repo/{dir}/Cargo.toml"),
            "targets": [{"kind": ["lib"], "src_path": format!("/repo/{dir}/src/lib.rs")}],
            "dependencies": dependencies,
        })
    }

    fn wrong_in(packages: &[Value]) -> Vec<String> {
        let metadata = json!({"workspace_root": "/repo", "packages": packages});
        wrong(&Workspace::from_metadata(&metadata).unwrap())
    }

    #[test]
    fn this_workspace_points_the_right_way() {
        let workspace = Workspace::read().unwrap();
        assert!(workspace.packages.iter().any(|package| package.dir == "crates/accel"));
        assert_eq!(wrong(&workspace), Vec::<String>::new());
    }

    #[test]
    fn an_edge_upwards_is_found_whatever_its_kind() {
        for kind in [None, Some("build"), Some("dev")] {
            let problems = wrong_in(&[
                package("crates/accel", "cellway-accel", &[("cellway-stream", kind)]),
                package("crates/stream", "cellway-stream", &[("libc", None)]),
            ]);
            assert_eq!(problems.len(), 1, "{kind:?}");
            let named = format!("{} dependency on crates/stream", kind.unwrap_or("normal"));
            assert!(problems[0].starts_with("crates/accel: "), "{problems:?}");
            assert!(problems[0].contains(&named), "{problems:?}");
        }
    }

    #[test]
    fn an_edge_downwards_is_right() {
        let problems = wrong_in(&[
            package("crates/accel", "cellway-accel", &[]),
            package("crates/stream", "cellway-stream", &[("cellway-accel", None)]),
        ]);
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn nobody_depends_on_an_example_or_on_an_unplaced_crate() {
        let problems = wrong_in(&[
            package("cli", "cellway-cli", &[("entropy", None)]),
            package("examples/entropy", "entropy", &[]),
            package("crates/new", "cellway-new", &[]),
        ]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("examples/entropy"), "{problems:?}");
        assert!(problems[1].starts_with("crates/new: not in the order"), "{problems:?}");
    }

    #[test]
    fn an_example_knows_the_facade_alone() {
        let dependencies =
            [("cellway", None), ("tempfile", Some("dev")), ("cellway-accel", None), ("libc", None)];
        let problems = wrong_in(&[
            package("crates/accel", "cellway-accel", &[]),
            package("crates/cellway", "cellway", &[]),
            package("examples/entropy", "entropy", &dependencies),
        ]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("cellway-accel") && problems[1].contains("libc"));
    }
}
