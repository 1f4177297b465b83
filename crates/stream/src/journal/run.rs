//! Which run a journal is of.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use crc_fast::{CrcAlgorithm, Digest};
use storage::{Input, Kind, Listed, Partial, shown};

use super::{Header, InputMark, Inputs, JournalError, JournalErrorKind, ListMark, OutputMark};
use crate::error::StreamError;
use crate::kernel::Kernel;
use crate::many::{are_batched, plan_all};
use crate::plan::{Options, Plan};

/// One input, laid out.
pub(super) type One<'r, K> = (&'r K, &'r Input, &'r Plan);
/// Several, with what was asked for.
pub(super) type Many<'r, K> = (&'r K, &'r [Listed], &'r Options);

impl Header {
    /// Of a run over one input; an error if it never can be resumed.
    pub(super) fn of_one<K: Kernel>(
        journal: &str,
        (kernel, input, plan): One<'_, K>,
        output: Option<OutputMark>,
    ) -> Result<Self, JournalError> {
        let (Some(len_bytes), true) = (input.len_bytes(), input.kind() != Kind::Stream) else {
            return Err(passing(journal, input.name()));
        };
        let mark = InputMark {
            name: input.name().to_owned(),
            identity: input.identity(),
            len_bytes,
            modified: input.modified(),
        };
        Self::of(journal, kernel, Inputs::One(mark, plan.body.clone()), plan.block_bytes, output)
    }

    /// Of a run over several.
    pub(super) fn of_many<K: Kernel>(
        journal: &str,
        (kernel, inputs, options): Many<'_, K>,
        out_dir: Option<&Path>,
    ) -> Result<Self, StreamError> {
        let plan = plan_all(kernel, inputs, options)?;
        if let Some(passes) = inputs.iter().find(|input| input.len_bytes().is_none()) {
            return Err(passing(journal, &passes.shown()).into());
        }
        let mark = ListMark::of(inputs, are_batched(options));
        let output = out_dir.map(|dir| {
            // It is there but for one that was taken away.
            let whole = dir.canonicalize().or_else(|_| std::path::absolute(dir));
            let path = whole.unwrap_or_else(|_| dir.to_owned());
            OutputMark { path: path.into_os_string().into_vec(), partial: Vec::new() }
        });
        Ok(Self::of(journal, kernel, Inputs::Many(mark), plan.block_bytes, output)?)
    }

    fn of<K: Kernel>(
        journal: &str,
        kernel: &K,
        inputs: Inputs,
        block_bytes: u64,
        output: Option<OutputMark>,
    ) -> Result<Self, JournalError> {
        let unfit = |error: crate::KernelError| {
            JournalError::new(JournalErrorKind::Unfit, journal, error.what, error.cure)
        };
        let parameters = kernel.parameters().map_err(unfit)?;
        let (kernel, beside) = (kernel.name().to_owned(), Vec::new());
        let on_nodes = false;
        Ok(Self { kernel, parameters, inputs, block_bytes, on_nodes, beside, output })
    }

    /// What is different in the run that is to go on.
    pub(super) fn check(&self, journal: &str, now: &Self) -> Result<(), JournalError> {
        use JournalErrorKind::OtherRun;
        let wrong =
            |what: String, cure: &str| Err(JournalError::new(OtherRun, journal, what, cure));
        if now.kernel != self.kernel {
            let what = format!("is the journal of {}, not of {}", self.kernel, now.kernel);
            return wrong(what, "give the kernel it was begun with");
        }
        if now.parameters != self.parameters {
            let what = format!("{} had other parameters", self.kernel);
            return wrong(what, "give those the journal was begun with");
        }
        if now.on_nodes != self.on_nodes {
            return match self.on_nodes {
                true => wrong("was begun on nodes".to_owned(), "give --nodes, or --cluster mpi"),
                false => wrong("was begun without nodes".to_owned(), "go on without them"),
            };
        }
        self.check_inputs(journal, now)?;
        if now.block_bytes != self.block_bytes {
            let what = format!("was begun with blocks of {} bytes", self.block_bytes);
            return wrong(what, "leave --block out");
        }
        let same = match (&self.output, &now.output) {
            (None, None) => true,
            (Some(was), Some(is)) => {
                was.path == is.path || storage::same_place(was.path(), is.path())
            }
            _ => false,
        };
        if !same {
            let to = self.output.as_ref().map(|mark| shown(mark.path()));
            let what = format!("is of a run that writes {}", to.as_deref().unwrap_or("nothing"));
            return wrong(what, "give the same OUTPUT, or --out-dir");
        }
        Ok(())
    }

    fn check_inputs(&self, journal: &str, now: &Self) -> Result<(), JournalError> {
        let other = |what: String, cure: &str| {
            Err(JournalError::new(JournalErrorKind::OtherRun, journal, what, cure))
        };
        let changed = |name: &str| {
            let what = format!("{name} was changed since the journal was begun");
            let cure = "start anew with --journal and --force";
            Err(JournalError::new(JournalErrorKind::Changed, journal, what, cure))
        };
        match (&self.inputs, &now.inputs) {
            (Inputs::One(was, _), Inputs::One(is, _)) if was.identity != is.identity => {
                let what = format!("is the journal of a run over {}, another file", was.name);
                other(what, "give the same INPUT")
            }
            (Inputs::One(was, body), Inputs::One(is, now)) => {
                let same = (was.len_bytes, was.modified, body) == (is.len_bytes, is.modified, now);
                if same { Ok(()) } else { changed(&is.name) }
            }
            (Inputs::Many(was), Inputs::Many(is)) if was == is => Ok(()),
            (Inputs::Many(was), Inputs::Many(is)) if was.batches != is.batches => {
                let what = "was begun with another --engine, --direct or --scheme".to_owned();
                other(what, "give the same ones")
            }
            (Inputs::Many(was), Inputs::Many(is)) if was.names == is.names => {
                let what = if was.bytes == is.bytes { "" } else { ", and has another length," };
                changed(&format!("one of the {} inputs{what}", is.count))
            }
            (Inputs::Many(was), Inputs::Many(is)) => {
                let what = format!(
                    "is of a run over {} inputs, {} bytes in all, and now there are {}, {} bytes, \
                     or they have other names or another order",
                    was.count, was.bytes, is.count, is.bytes
                );
                other(what, "give the same INPUTs")
            }
            (Inputs::One(was, _), Inputs::Many(_)) => {
                other(format!("is the journal of a run over {} alone", was.name), "give it alone")
            }
            (Inputs::Many(was), Inputs::One(..)) => {
                let what = format!("is the journal of a run over {} inputs by a list", was.count);
                other(what, "give all of them")
            }
        }
    }
}

impl ListMark {
    fn of(inputs: &[Listed], batches: bool) -> Self {
        let mut names = Digest::new(CrcAlgorithm::Crc64Nvme);
        let (mut state, mut bytes) = (names, 0);
        for input in inputs {
            let (identity, modified) = (input.identity(), input.modified());
            let len_bytes = input.len_bytes().unwrap_or(0);
            names.update(input.name().as_os_str().as_bytes());
            // No name has it.
            names.update(&[0]);
            let modified = [modified.0, modified.1].map(i64::cast_unsigned);
            for number in [identity.0, identity.1, len_bytes].into_iter().chain(modified) {
                state.update(&number.to_le_bytes());
            }
            bytes += len_bytes;
        }
        let count = inputs.len() as u64;
        Self { count, bytes, names: names.finalize(), state: state.finalize(), batches }
    }
}

impl OutputMark {
    pub(crate) fn of(partial: &Partial) -> Self {
        let path = partial.path().as_os_str().as_bytes().to_vec();
        Self { path, partial: partial.name().as_bytes().to_vec() }
    }

    /// A hidden folder.
    pub(super) fn of_folder(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
        Self { path: path.as_os_str().as_bytes().to_vec(), partial: name }
    }

    pub(super) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// The unfinished output; a folder is none.
    pub(super) fn partial(&self) -> Option<Partial> {
        let name = OsStr::from_bytes(&self.partial);
        (!name.is_empty()).then(|| Partial::named(self.path(), name))
    }
}

/// What is read once only.
fn passing(journal: &str, input: &str) -> JournalError {
    let what = format!("{input} cannot be read again, so nothing can be resumed");
    let cure = "read a file, or run without a journal";
    JournalError::new(JournalErrorKind::Unfit, journal, what, cure)
}
