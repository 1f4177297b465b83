//! What the site has: its mpicc compiles the shim once, into a cache.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::error;
use crate::transport::TransportError;

const SHIM: &str = include_str!("shim.c");

/// Names of variables of the environment.
const READY: &str = "CELLWAY_MPI_SHIM";
const MPICC: &str = "CELLWAY_MPICC";

/// Where things are.
#[derive(Debug)]
pub(super) struct Site {
    ready: Option<PathBuf>,
    pub(super) mpicc: PathBuf,
    cache: Option<PathBuf>,
}

impl Site {
    /// As the environment says.
    pub(super) fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || Some(set("HOME")?.join(".cache"));
        Self {
            ready: set(READY),
            mpicc: set(MPICC).unwrap_or_else(|| "mpicc".into()),
            cache: set("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("cellway")),
        }
    }

    /// The shim, compiled: the one that the user names, or the one of the cache, where
    /// it is put if it is not there.
    pub(super) fn shim(&self) -> Result<PathBuf, TransportError> {
        if let Some(ready) = &self.ready {
            return Ok(ready.clone());
        }
        let Some(cache) = &self.cache else {
            let what =
                "there is no place for the compiled shim: neither XDG_CACHE_HOME nor HOME is set";
            return Err(error(what, format!("set one, or name a compiled shim by {READY}")));
        };
        // What it would do tells one MPI from another.
        let shown = self.compile(Command::new(&self.mpicc).arg("-show"))?.stdout;
        let mut hash = DefaultHasher::new();
        (SHIM, std::env::consts::ARCH, &self.mpicc, shown).hash(&mut hash);
        let shim = cache.join(format!("mpi-{:016x}.so", hash.finish()));
        if !shim.exists() {
            self.make(cache, &shim)?;
        }
        Ok(shim)
    }

    /// Several processes may do this at the same time, on several machines: each in a
    /// folder of its own, and the last to rename wins.
    fn make(&self, cache: &Path, shim: &Path) -> Result<(), TransportError> {
        let failed = |failure: std::io::Error| {
            let what = format!("{}: {failure}", cache.display());
            error(what, format!("make it writable, or name a compiled shim by {READY}"))
        };
        fs::create_dir_all(cache).map_err(failed)?;
        let dir = tempfile::tempdir_in(cache).map_err(failed)?;
        let (source, made) = (dir.path().join("shim.c"), dir.path().join("shim.so"));
        fs::write(&source, SHIM).map_err(failed)?;
        let mut compile = Command::new(&self.mpicc);
        self.compile(compile.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&made).arg(&source))?;
        fs::rename(&made, shim).map_err(failed)
    }

    fn compile(&self, command: &mut Command) -> Result<Output, TransportError> {
        let mpicc = self.mpicc.display();
        let cure = || {
            format!(
                "put the folder with the mpicc of the mpirun in use first in PATH, or name it by {MPICC} \
                 (packages like libopenmpi-dev or libmpich-dev have one; it needs a C compiler)"
            )
        };
        let output = command.output();
        let output = output.map_err(|failure| error(format!("{mpicc}: {failure}"), cure()))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = said.lines().take(4).collect();
        let what = format!("{mpicc} failed with {}: {}", output.status, lines.join(" / "));
        Err(error(what, cure()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A site with this script as mpicc.
    fn site(dir: &Path, script: &str) -> Site {
        let mpicc = dir.join("mpicc");
        // A file that is open for writing, here or in what another test starts just then,
        // cannot be run: so this process never opens it.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod +x \"$1\"";
        let mut sh = Command::new("sh");
        assert!(sh.args(["-c", write, "sh"]).arg(&mpicc).arg(script).status().unwrap().success());
        Site { ready: None, mpicc, cache: Some(dir.join("cache/cellway")) }
    }

    /// Notes that it was called, and compiles to what it was called with.
    const COMPILES: &str = r#"[ "$1" = -show ] && { echo cc $WHICH; exit; }
        echo made >> "$(dirname "$0")/log"; grep -q MPI_Improbe "$6" && cp "$6" "$5""#;

    #[test]
    fn the_environment_says_where() {
        let of = |set: &[(&str, &str)]| {
            Site::new(|name| set.iter().find(|one| one.0 == name).map(|one| one.1.into()))
        };
        let home = of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "")]);
        assert_eq!(home.cache.unwrap(), Path::new("/h/.cache/cellway"));
        assert_eq!((home.mpicc, home.ready), ("mpicc".into(), None));
        let all = of(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c"), (MPICC, "/m"), (READY, "/r.so")]);
        assert_eq!(all.cache.as_deref(), Some(Path::new("/c/cellway")));
        assert_eq!(all.mpicc, Path::new("/m"));
        assert_eq!(all.shim(), Ok("/r.so".into()));
        let nowhere = of(&[]).shim().unwrap_err();
        assert!(nowhere.to_string().contains("neither XDG_CACHE_HOME nor HOME"), "{nowhere}");
    }

    #[test]
    fn a_shim_is_compiled_once() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), COMPILES);
        let shim = site.shim().unwrap();
        assert_eq!(fs::read_to_string(&shim).unwrap(), SHIM);
        assert_eq!(site.shim(), Ok(shim.clone()));
        assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), "made\n");
        // Nothing else is left.
        assert_eq!(fs::read_dir(shim.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn many_may_compile_it_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let site = &site(dir.path(), COMPILES);
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..9).map(|_| scope.spawn(|| site.shim().unwrap())).collect();
            for one in all {
                assert_eq!(fs::read_to_string(one.join().unwrap()).unwrap(), SHIM);
            }
        });
    }

    #[test]
    fn another_mpi_has_another_shim() {
        let dir = tempfile::tempdir().unwrap();
        let one = site(dir.path(), &COMPILES.replace("$WHICH", "one")).shim().unwrap();
        let other = site(dir.path(), &COMPILES.replace("$WHICH", "other")).shim().unwrap();
        assert_ne!(one, other);
    }

    #[test]
    fn what_lacks_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Site { mpicc: "/no/mpicc".into(), ..site(dir.path(), "") };
        let said = absent.shim().unwrap_err().to_string();
        assert!(said.starts_with("MPI: /no/mpicc: No such file") && said.contains(MPICC), "{said}");
        let no_compiler = "echo 'gcc: not found' >&2; exit 3";
        let said = site(dir.path(), no_compiler).shim().unwrap_err().to_string();
        assert!(said.contains("exit status: 3: gcc: not found"), "{said}");
        let unwritable = Site { cache: Some("/proc/cache".into()), ..site(dir.path(), "exit 0") };
        let said = unwritable.shim().unwrap_err().to_string();
        assert!(said.contains("/proc/cache: ") && said.contains(READY), "{said}");
    }
}
