//! Runs over many inputs, against each input by itself.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use accel::EngineChoice;
use cellway_stream::{
    Block, Body, Cut, Effect, Head, Kernel, KernelError, MergeOrder, Options, Outputs, PlanError,
    Progress, Saved, StreamError, Unit, plan_all, run_all, save_bytes,
};
use proptest::prelude::*;
use storage::{InputErrorKind, Listed, OutDir, OutputErrorKind, list};
use tempfile::TempDir;

use crate::probe::{Deed, content};
use crate::setting::{Disk, has_uring, names};

/// A longer file is streamed alone.
const SMALL_BYTES_MAX: u64 = 4 << 20;

/// One unit as the kernel saw it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    /// The number of its file, which the file begins with.
    pub(crate) file: u32,
    index: u64,
    offset: u64,
    before: Vec<u8>,
    data: Vec<u8>,
    after: Vec<u8>,
}

/// Collects all that it is shown; adds its file's number to each byte of it, and
/// as a rewrite doubles the byte.
pub(crate) struct Collect {
    pub(crate) effect: Effect,
    pub(crate) order: MergeOrder,
    pub(crate) cut: Cut,
    /// Done at the start of each unit, which is given its file's number.
    pub(crate) at_block: Deed,
    merges_inputs: bool,
}

const NUMBER_BYTES: u64 = 4;

impl Kernel for Collect {
    type Part = Vec<Seen>;
    type Header = u32;

    fn name(&self) -> &str {
        "collect"
    }

    fn open(&self, head: &dyn Head) -> Result<Body<u32>, KernelError> {
        let len = head.len_bytes().expect("these are files");
        let mut number = [0; NUMBER_BYTES as usize];
        let read = head.read_at(0, &mut number).unwrap();
        assert_eq!(read as u64, NUMBER_BYTES.min(len));
        Ok(Body { range: NUMBER_BYTES.min(len)..len, header: u32::from_le_bytes(number) })
    }

    fn cut(&self, _: &u32) -> Cut {
        self.cut
    }

    fn effect(&self) -> Effect {
        self.effect
    }

    fn check_many(&self) -> Result<(), KernelError> {
        match self.merges_inputs {
            true => Ok(()),
            false => Err(KernelError::new("one is enough", "try one")),
        }
    }

    fn merge_order(&self) -> MergeOrder {
        self.order
    }

    fn part(&self, _accelerators: usize) -> Vec<Seen> {
        Vec::new()
    }

    fn block(
        &self,
        unit: &Unit<'_, u32>,
        block: Block<'_>,
        part: &mut Vec<Seen>,
    ) -> Result<(), KernelError> {
        let (file, from) = (unit.body.header, block.out.goes_on_from());
        if from.is_none() {
            (self.at_block)(file.into())?;
            let (index, offset) = (unit.index, unit.offset);
            let [before, data, after] =
                [&*block.before, block.data, block.after].map(<[u8]>::to_vec);
            part.push(Seen { file, index, offset, before, data, after });
        }
        let mut out = block.out;
        for at in from.unwrap_or(0)..block.data.len() {
            let byte = changed(file, block.data[at]);
            if self.effect == Effect::Rewrite && !out.push(&[byte, byte]) {
                out.stop_at(at);
                return Ok(());
            }
            if self.effect == Effect::Transform {
                block.data[at] = byte;
            }
        }
        Ok(())
    }

    fn merge(&self, part: &mut Vec<Seen>, later: Vec<Seen>) -> Result<(), KernelError> {
        part.extend(later);
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(vec![self.cut.align_bytes as u8])
    }

    fn save(&self, part: &Vec<Seen>, out: &mut Vec<u8>) -> Result<(), KernelError> {
        for Seen { file, index, offset, before, data, after } in part {
            for number in [u64::from(*file), *index, *offset] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            [before, data, after].iter().for_each(|bytes| save_bytes(bytes, out));
        }
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<Vec<Seen>, KernelError> {
        let (mut saved, mut part) = (Saved::new(saved), Vec::new());
        while !saved.is_empty() {
            let (file, index, offset) = (saved.u64()? as u32, saved.u64()?, saved.u64()?);
            let mut bytes = || saved.bytes().map(<[u8]>::to_vec);
            let (before, data, after) = (bytes()?, bytes()?, bytes()?);
            part.push(Seen { file, index, offset, before, data, after });
        }
        Ok(part)
    }
}

fn changed(file: u32, byte: u8) -> u8 {
    byte.wrapping_add(file as u8)
}

impl Collect {
    pub(crate) fn new(effect: Effect, order: MergeOrder, cut: Cut) -> Self {
        Self { effect, order, cut, at_block: Box::new(|_| Ok(())), merges_inputs: true }
    }

    /// What it makes of the body of a file.
    fn plain(&self, file: u32, body: &[u8]) -> Vec<u8> {
        let times = if self.effect == Effect::Rewrite { 2 } else { 1 };
        body.iter().flat_map(|byte| std::iter::repeat_n(changed(file, *byte), times)).collect()
    }
}

impl fmt::Debug for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}, {:?}", self.effect, self.order, self.cut)
    }
}

/// A folder of numbered files.
pub(crate) struct Tree {
    pub(crate) dir: TempDir,
    /// What stands in each behind its number; `None` for a file of 0 bytes.
    pub(crate) bodies: Vec<Option<Vec<u8>>>,
    pub(crate) inputs: Vec<Listed>,
}

impl Tree {
    pub(crate) fn new(lens: &[Option<u64>]) -> Self {
        let dir = Disk::Real.folder().unwrap();
        let mut bodies = Vec::new();
        for (number, len) in lens.iter().enumerate() {
            let body = len.map(|len| {
                // A stretch again and again: drawing so many bytes takes long.
                let drawn = content(number as u64, 0..len.min(50_021));
                let mut body = drawn.repeat(len as usize / drawn.len().max(1) + 1);
                body.truncate(len as usize);
                body
            });
            let mut bytes = (number as u32).to_le_bytes().to_vec();
            bytes.extend(body.iter().flatten());
            let path = dir.path().join(Self::name(number));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, if body.is_some() { bytes } else { Vec::new() }).unwrap();
            bodies.push(body);
        }
        let inputs = list(&[dir.path().to_owned()], true).unwrap();
        Self { dir, bodies, inputs }
    }

    /// Some lie in folders.
    fn name(number: usize) -> PathBuf {
        let folder = ["", "a", "a/b", "c"][number / 5 % 4];
        format!("in/{:03}{folder}/{number:04}", number / 5).into()
    }

    pub(crate) fn input(&self, number: usize) -> PathBuf {
        self.dir.path().join(Self::name(number))
    }

    pub(crate) fn output(&self, number: usize) -> PathBuf {
        self.dir.path().join("out").join(Self::name(number))
    }

    fn run(&self, kernel: &Collect, options: &Options) -> Result<Vec<Seen>, StreamError> {
        let progress = Progress::default();
        let dir = kernel
            .effect
            .writes()
            .then(|| OutDir::prepare(&self.dir.path().join("out"), &self.inputs, false).unwrap());
        let outputs = dir.as_ref().map(|dir| Outputs { dir, sync: false });
        let outcome = run_all(kernel, &self.inputs, outputs.as_ref(), options, &progress)?;
        let bytes: u64 = self.bodies.iter().flatten().map(|body| body.len() as u64).sum();
        assert_eq!((outcome.stats.bytes_in, progress.done_bytes()), (bytes, bytes));
        Ok(outcome.part)
    }

    /// Whether each byte of each file was seen once, with what is around it.
    pub(crate) fn check(&self, kernel: &Collect, mut seen: Vec<Seen>) {
        if kernel.order == MergeOrder::Any || kernel.effect == Effect::Rewrite {
            seen.sort();
        }
        let mut units = seen.into_iter().peekable();
        for (file, body) in self.bodies.iter().enumerate() {
            let body = body.as_deref().unwrap_or_default();
            let (mut at, mut index) = (0, 0);
            while let Some(unit) = units.next_if(|unit| unit.file as usize == file) {
                let end = at + unit.data.len();
                let after = body.len().min(end + kernel.cut.after_bytes);
                let expected = Seen {
                    file: file as u32,
                    index,
                    offset: NUMBER_BYTES + at as u64,
                    before: body[at.saturating_sub(kernel.cut.before_bytes)..at].to_vec(),
                    data: body[at..end].to_vec(),
                    after: body[end..after].to_vec(),
                };
                assert!(unit == expected, "unit {index} of file {file}");
                assert_eq!(at % kernel.cut.align_bytes, 0);
                (at, index) = (end, index + 1);
            }
            assert_eq!(at, body.len(), "file {file}");
        }
        assert!(units.next().is_none(), "the files' units come in the files' order");
    }

    /// Whether an output is whole, or not there.
    pub(crate) fn has_output(&self, kernel: &Collect, number: usize) -> bool {
        let body = self.bodies[number].as_deref().unwrap_or_default();
        match fs::read(self.output(number)) {
            Ok(written) => {
                assert!(written == kernel.plain(number as u32, body), "output {number}");
                true
            }
            Err(_) => false,
        }
    }

    /// The files there are in the output folder, hidden ones too.
    pub(crate) fn outputs(&self) -> usize {
        list(&[self.dir.path().join("out")], true).unwrap().len()
    }
}

pub(crate) fn lens(count: usize) -> impl Strategy<Value = Vec<Option<u64>>> {
    let len = prop_oneof![
        60 => (0u64..20_000).prop_map(Some),
        20 => (0u64..5).prop_map(Some),
        20 => Just(None),
        1 => (SMALL_BYTES_MAX - 10..SMALL_BYTES_MAX + 10).prop_map(Some),
    ];
    prop::collection::vec(len, 0..count)
}

pub(crate) fn kernels() -> impl Strategy<Value = Collect> {
    let effect = prop::sample::select(&[Effect::Reduce, Effect::Transform, Effect::Rewrite]);
    let order = prop::sample::select(&[MergeOrder::Any, MergeOrder::ByUnit]);
    let cut = (1usize..300, 0usize..100, prop_oneof![0usize..100, Just(70_000)]);
    (effect, order, cut).prop_map(|(effect, order, (align_bytes, before_bytes, after_bytes))| {
        Collect::new(effect, order, Cut { align_bytes, before_bytes, after_bytes })
    })
}

pub(crate) fn machines() -> impl Strategy<Value = Options> {
    const ENGINES: [EngineChoice; 3] =
        [EngineChoice::Auto, EngineChoice::Auto, EngineChoice::Uring];
    let block = prop_oneof![Just(None), (20_000u64..300_000).prop_map(Some)];
    (1usize..4, block, prop::sample::select(&ENGINES)).prop_map(
        |(accelerators, block_bytes, engine)| {
            let engine = if engine == EngineChoice::Uring && !has_uring() {
                EngineChoice::Pread
            } else {
                engine
            };
            Options { accelerators: Some(accelerators), block_bytes, engine, ..Options::default() }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn many_inputs_give_what_each_gives_by_itself(
        lens in lens(40), kernel in kernels(), options in machines(),
    ) {
        let tree = Tree::new(&lens);
        let seen = tree.run(&kernel, &options).unwrap();
        tree.check(&kernel, seen);
        let outputs = if kernel.effect.writes() { lens.len() } else { 0 };
        prop_assert_eq!((0..lens.len()).filter(|n| tree.has_output(&kernel, *n)).count(), outputs);
        if outputs > 0 {
            prop_assert_eq!(tree.outputs(), outputs);
        }
    }

    #[test]
    fn the_failure_that_is_first_in_the_list_is_told(
        lens in lens(60), refused in prop::collection::btree_set(0usize..60, 0..5),
        missing in prop::collection::btree_set(0usize..60, 0..3),
        kernel in kernels(), options in machines(),
    ) {
        let tree = Tree::new(&lens);
        let mut kernel = kernel;
        let told: BTreeSet<u64> = refused.iter().map(|number| *number as u64).collect();
        kernel.at_block = Box::new(move |number| match told.contains(&number) {
            true => Err(KernelError::new(format!("refused {number}"), "try another")),
            false => Ok(()),
        });
        let is_there = |number: &usize| *number < lens.len();
        missing.iter().filter(|number| is_there(number)).for_each(|n| fs::remove_file(tree.input(*n)).unwrap());
        let has_units = |number: &usize| is_there(number) && lens[*number] > Some(0);
        let refused = refused.into_iter().find(has_units);
        let missing = missing.into_iter().find(is_there);
        let first = [missing, refused].into_iter().flatten().min();

        let ran = tree.run(&kernel, &options);
        let Some(first) = first else {
            prop_assert!(ran.is_ok());
            return Ok(());
        };
        let error = ran.unwrap_err();
        let name = tree.input(first).display().to_string();
        prop_assert!(error.to_string().starts_with(&name), "{} is not about {}", error, name);
        match error {
            StreamError::Input(error) => {
                prop_assert_eq!((error.kind(), Some(first)), (InputErrorKind::Missing, missing));
            }
            StreamError::Kernel { error, .. } => {
                prop_assert_eq!(error.what, format!("refused {}", refused.unwrap()));
            }
            other => prop_assert!(false, "{other}"),
        }
        if kernel.effect.writes() {
            prop_assert!(!tree.has_output(&kernel, first));
            let whole = (0..lens.len()).filter(|number| tree.has_output(&kernel, *number)).count();
            prop_assert!((0..first).all(|number| tree.has_output(&kernel, number)));
            prop_assert_eq!(tree.outputs(), whole, "nothing else is left");
        }
    }
}

/// Runs while the file under way is changed.
fn run_while(change: fn(&Path)) -> StreamError {
    let tree = Tree::new(&[Some(5000), Some(60_000), Some(5000)]);
    let long_ago =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let times = fs::FileTimes::new().set_modified(long_ago);
    File::open(tree.input(1)).unwrap().set_times(times).unwrap();
    let mut kernel = Collect::new(Effect::Transform, MergeOrder::Any, Cut::ANYWHERE);
    let path = tree.input(1);
    let once = std::sync::Once::new();
    kernel.at_block = Box::new(move |number| {
        if number == 1 {
            once.call_once(|| change(&path));
        }
        Ok(())
    });
    let options = Options { block_bytes: Some(4096), ..Options::default() };
    let error = tree.run(&kernel, &options).unwrap_err();
    assert!(error.to_string().starts_with(&tree.input(1).display().to_string()), "{error}");
    assert!(tree.has_output(&kernel, 0) && !tree.output(1).exists());
    error
}

#[test]
fn each_input_is_looked_at_again() {
    let truncate =
        |path: &Path| File::options().write(true).open(path).unwrap().set_len(50_000).unwrap();
    let replace = |path: &Path| {
        fs::copy(path, path.with_extension("new")).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    for (change, told) in [
        (truncate as fn(&Path), "at byte 50000: ends here"),
        (
            |path| File::options().append(true).open(path).unwrap().set_len(70_000).unwrap(),
            "went from",
        ),
        (|path| fs::write(path, vec![7; 60_004]).unwrap(), "was written to"),
        (replace, "was replaced"),
    ] {
        let error = run_while(change).to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_kernel_may_want_one_input_alone() {
    let mut kernel = Collect::new(Effect::Reduce, MergeOrder::ByUnit, Cut::ANYWHERE);
    kernel.merges_inputs = false;
    let error = Tree::new(&[Some(1), Some(2)]).run(&kernel, &Options::default()).unwrap_err();
    assert!(matches!(error, StreamError::Plan(PlanError::Many { .. })));
    assert_eq!(error.to_string(), "collect: one is enough; try one");
    let one = Tree::new(&[Some(1)]);
    one.check(&kernel, one.run(&kernel, &Options::default()).unwrap());
}

/// Directories are made before; what has an output's name since is not replaced.
#[test]
fn an_output_that_appeared_is_not_replaced() {
    let tree = Tree::new(&[Some(10), Some(20)]);
    let kernel = Collect::new(Effect::Transform, MergeOrder::Any, Cut::ANYWHERE);
    let dir = OutDir::prepare(&tree.dir.path().join("out"), &tree.inputs, false).unwrap();
    fs::write(tree.output(1), "other").unwrap();
    let outputs = Outputs { dir: &dir, sync: true };
    let (options, progress) = (Options::default(), Progress::default());
    match run_all(&kernel, &tree.inputs, Some(&outputs), &options, &progress) {
        Err(StreamError::Output(error)) => assert_eq!(error.kind(), OutputErrorKind::Exists),
        other => panic!("{:?}", other.map(|outcome| outcome.part)),
    }
    assert_eq!(fs::read(tree.output(1)).unwrap(), b"other");
    assert_eq!(names(tree.output(1).parent().unwrap()), ["0000", "0001"]);
}

/// A record may be longer than all the files, and a halo than the store.
#[test]
fn absurd_cuts_are_refused_with_their_sum() {
    let tree = Tree::new(&[Some(100), Some(20_000)]);
    let mut kernel = Collect::new(Effect::Reduce, MergeOrder::Any, Cut::records(1 << 20));
    tree.check(&kernel, tree.run(&kernel, &Options::default()).unwrap());
    kernel.cut.after_bytes = usize::MAX;
    let error = plan_all(&kernel, &tree.inputs, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("do not fit a local store"), "{error}");
}
