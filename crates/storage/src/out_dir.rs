//! A directory that gets an output for each of many inputs.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::{OutputError, OutputErrorKind, shown};
use crate::list::Listed;
use crate::output::{Options, Output, SharedDir};
use crate::publish;

/// Where the outputs of many inputs go, each under its input's name.
#[derive(Clone, Debug)]
pub struct OutDir {
    path: PathBuf,
    force: bool,
    /// Outputs that are made again may be there.
    goes_on: bool,
}

impl OutDir {
    /// Makes `path`, and the directories in it that outputs for `inputs` need.
    /// With `force` an output may replace a file, but no input other than its own.
    ///
    /// # Errors
    /// Outputs that would have one name, or one that exists, before anything is made.
    pub fn prepare(path: &Path, inputs: &[Listed], force: bool) -> Result<Self, OutputError> {
        let dir = Self { path: path.to_owned(), force, goes_on: false };
        dir.check_names(inputs)?;
        match path.metadata() {
            Ok(found) if !found.is_dir() => {
                let (what, cure) = ("is no directory", "give --out-dir another name");
                return Err(OutputError::new(
                    OutputErrorKind::Unwritable,
                    &shown(path),
                    what,
                    cure,
                ));
            }
            Ok(_) => dir.check_existing(inputs)?,
            Err(_) => {}
        }
        dir.make_all(inputs)?;
        Ok(dir)
    }

    /// As [`OutDir::prepare`], for a run that is gone on with and has written the
    /// outputs of the first `done` inputs. Another output that is there and holds
    /// what is made for it again stays as it is.
    ///
    /// # Errors
    /// Outputs that were written and are gone.
    pub fn go_on(
        path: &Path,
        inputs: &[Listed],
        done: usize,
        force: bool,
    ) -> Result<Self, OutputError> {
        let dir = Self { path: path.to_owned(), force, goes_on: true };
        dir.check_names(inputs)?;
        let written = inputs.iter().take(done).map(|input| dir.place(input));
        if let Some(lost) = written.into_iter().find(|place| !place.is_file()) {
            let (what, cure) = ("was written and is gone", "start anew with --journal and --force");
            return Err(OutputError::new(OutputErrorKind::Lost, &shown(&lost), what, cure));
        }
        dir.make_all(inputs)?;
        Ok(dir)
    }

    fn make_all(&self, inputs: &[Listed]) -> Result<(), OutputError> {
        self.make(&self.path)?;
        let mut made = None;
        for parent in inputs.iter().map(|input| input.name().parent()) {
            if let Some(parent) = parent.filter(|_| parent != made) {
                self.make(&self.path.join(parent))?;
                made = Some(parent);
            }
        }
        Ok(())
    }

    /// What is in the way of going on after a crash: an output that replaces an
    /// input, its own too.
    ///
    /// # Errors
    /// The first such.
    pub fn check_apart(&self, inputs: &[Listed]) -> Result<(), OutputError> {
        let identities: HashSet<_> = inputs.iter().map(Listed::identity).collect();
        let replaces = |place: &PathBuf| {
            let found = place.metadata();
            found.is_ok_and(|found| identities.contains(&(found.dev(), found.ino())))
        };
        let mut places = inputs.iter().map(|input| self.place(input));
        let Some(place) = places.find(replaces) else { return Ok(()) };
        let what = "is an input, which a run that goes on after a crash would miss";
        let cure = "give another --out-dir, or run without a journal";
        Err(OutputError::new(OutputErrorKind::Exists, &shown(&place), what, cure))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether outputs may replace what is there.
    #[must_use]
    pub fn force(&self) -> bool {
        self.force
    }

    /// The name of an input's output.
    #[must_use]
    pub fn place(&self, input: &Listed) -> PathBuf {
        self.path.join(input.name())
    }

    /// The name for messages.
    #[must_use]
    pub fn name(&self) -> String {
        shown(&self.path)
    }

    /// Opens the output for an input.
    ///
    /// # Errors
    /// Those of [`Output::create`].
    pub fn create(&self, input: &Listed, len_bytes: Option<u64>) -> Result<Output, OutputError> {
        let place = self.place(input);
        let force = self.force || self.is_made_again(&place);
        Output::create(&place, &Options { force, len_bytes })
    }

    /// Takes the output for an input from where several wrote it, by its number.
    ///
    /// # Errors
    /// Those of [`SharedDir::take`].
    pub fn take(
        &self,
        (shared, number): (&SharedDir, u64),
        input: &Listed,
        len_bytes: Option<u64>,
    ) -> Result<Output, OutputError> {
        let place = self.place(input);
        let force = self.force || self.is_made_again(&place);
        shared.take(number, &place, &Options { force, len_bytes })
    }

    /// Gives an output its name.
    ///
    /// # Errors
    /// Those of [`Output::commit`].
    pub fn commit(&self, input: &Listed, output: Output, sync: bool) -> Result<(), OutputError> {
        let place = self.place(input);
        match self.is_made_again(&place) {
            true if output.is_same_as(&place)? => Ok(()),
            true => {
                let what = "exists already, and holds something else than this run makes";
                let cure = "give --force to replace it, or take it away";
                Err(OutputError::new(OutputErrorKind::Exists, &shown(&place), what, cure))
            }
            false => output.commit(sync),
        }
    }

    fn is_made_again(&self, place: &Path) -> bool {
        self.goes_on && !self.force && place.is_file()
    }

    /// Brings all that was written, and the outputs' names, to the disk.
    ///
    /// # Errors
    /// If that fails.
    pub fn settle(&self) -> Result<(), OutputError> {
        publish::settle(&self.path)
    }

    fn make(&self, path: &Path) -> Result<(), OutputError> {
        std::fs::create_dir_all(path)
            .map_err(|error| OutputError::os(&shown(path), "cannot be made", &error))
    }

    /// No two outputs may have one name, nor one lie below another.
    fn check_names(&self, inputs: &[Listed]) -> Result<(), OutputError> {
        let mut sorted: Vec<_> = inputs.iter().collect();
        // `/` before all other bytes: what lies below a name comes right after it.
        let key = |input: &Listed| {
            let bytes = input.name().as_os_str().as_bytes().to_owned();
            bytes.into_iter().map(|byte| if byte == b'/' { 0 } else { byte })
        };
        sorted.sort_by(|a, b| key(a).cmp(key(b)));
        let clash = sorted.windows(2).find(|two| two[1].name().starts_with(two[0].name()));
        let Some([a, b]) = clash else { return Ok(()) };
        let (place, a, b) = (shown(&self.place(a)), shown(a.path()), shown(b.path()));
        let what = format!("would be written for {a}, and is in the way of the output for {b}");
        let cure = "rename one of them, or write to two directories";
        Err(OutputError::new(OutputErrorKind::Exists, &place, what, cure))
    }

    /// What is there already may be replaced only if that was asked for, and an
    /// input only by its own output: others may still have to be read.
    fn check_existing(&self, inputs: &[Listed]) -> Result<(), OutputError> {
        let refused = |place: &Path, what: String, cure: &str| {
            Err(OutputError::new(OutputErrorKind::Exists, &shown(place), what, cure))
        };
        let numbers: HashMap<_, _> = inputs.iter().map(Listed::identity).zip(0..).collect();
        for (number, input) in inputs.iter().enumerate() {
            let place = self.place(input);
            let found = match place.metadata() {
                Ok(found) if found.is_file() => found,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(OutputError::os(&shown(&place), "cannot be written", &error));
                }
            };
            if !self.force {
                let cure = "give --force to replace it, or another --out-dir";
                return refused(&place, "exists already".to_owned(), cure);
            }
            match numbers.get(&(found.dev(), found.ino())) {
                Some(other) if *other != number => {
                    let what = format!(
                        "is an input too, and would be replaced by what {} gives",
                        shown(input.path())
                    );
                    return refused(&place, what, "give another --out-dir");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::list;
    use crate::testing::{disk_dir, names};

    /// Prepares `to` for the files `from`, all in one folder, which holds them.
    fn prepare(dir: &Path, from: &[&str], to: &str, force: bool) -> Result<OutDir, OutputError> {
        for path in from.iter().filter(|path| !dir.join(path).exists()) {
            std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.join(path), path).unwrap();
        }
        let paths: Vec<_> = from.iter().map(|path| dir.join(path)).collect();
        OutDir::prepare(&dir.join(to), &list(&paths, true).unwrap(), force)
    }

    #[test]
    fn outputs_of_one_name_are_refused_before_anything_is_made() {
        let dir = disk_dir();
        std::fs::create_dir_all(dir.path().join("c/x")).unwrap();
        std::fs::write(dir.path().join("c/x/y"), "").unwrap();
        for clash in [&["a/x", "b/x"][..], &["a/x", "c"], &["a/x.", "c", "b/x"]] {
            let error = prepare(dir.path(), clash, "out", true).unwrap_err();
            assert!(error.to_string().contains("out/x: would be written for "), "{error}");
            assert!(!dir.path().join("out").exists());
        }
        prepare(dir.path(), &["a/x.", "b/x-", "c"], "out/more", false).unwrap();
        assert_eq!(names(&dir.path().join("out/more")), ["x"]);
    }

    #[test]
    fn an_input_is_replaced_by_its_own_output_alone() {
        let dir = disk_dir();
        let refused = |from: &[&str], to, force| {
            prepare(dir.path(), from, to, force).unwrap_err().to_string()
        };
        assert!(refused(&["d/a", "d/b"], "d", false).contains("d/a: exists already; give --force"));
        prepare(dir.path(), &["d/a", "d/b"], "d", true).unwrap();
        std::fs::create_dir_all(dir.path().join("t/s")).unwrap();
        std::fs::write(dir.path().join("t/a"), "").unwrap();
        std::fs::write(dir.path().join("t/s/a"), "").unwrap();
        assert!(refused(&["t"], "t/s", true).contains("t/s/a: is an input too"));
        assert!(refused(&["t"], "d/a", true).contains("d/a: is no directory"));
    }

    #[test]
    fn what_is_made_again_stays_if_it_is_the_same() {
        let dir = disk_dir();
        let bytes: Vec<u8> = (0..50_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::create_dir_all(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("in/a"), &bytes).unwrap();
        let (to, place) = (dir.path().join("out"), dir.path().join("out/a"));
        let inputs = list(&[dir.path().join("in/a")], false).unwrap();
        let again = |force, there: Option<&[u8]>| {
            let out = OutDir::go_on(&to, &inputs, 0, force).unwrap();
            match there {
                Some(there) => std::fs::write(&place, there).unwrap(),
                None => drop(std::fs::remove_file(&place)),
            }
            let output = out.create(&inputs[0], Some(bytes.len() as u64)).unwrap();
            output.sequential().write_all(&bytes).unwrap();
            let made = out.commit(&inputs[0], output, false);
            assert_eq!(names(&to), ["a"]);
            (made.map_err(|error| error.kind()), std::fs::read(&place).unwrap())
        };
        assert_eq!(again(false, None), (Ok(()), bytes.clone()));
        assert_eq!(again(false, Some(&bytes)), (Ok(()), bytes.clone()));
        let refused = Err(OutputErrorKind::Exists);
        for at in [0, 1, 16_383, 16_384, 49_999] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(again(false, Some(&other)), (refused, other.clone()));
            assert_eq!(again(false, Some(&bytes[..at])), (refused, bytes[..at].to_vec()));
            assert_eq!(again(true, Some(&other)), (Ok(()), bytes.clone()));
        }
        assert!(OutDir::go_on(&to, &inputs, 1, false).is_ok());
        std::fs::remove_file(&place).unwrap();
        let error = OutDir::go_on(&to, &inputs, 1, true).unwrap_err();
        assert_eq!(error.kind(), OutputErrorKind::Lost);
    }
}
