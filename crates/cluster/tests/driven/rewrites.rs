//! Rewrites on nodes: records of one type in, of another type and number out.

use cellway_cluster::drive::{Config, run_local};
use cellway_cluster::task::{KernelTask, ManyTask, Task as _};
use proptest::prelude::*;
use record::{Record, Records};
use storage::{Input, Output, SharedDir};
use stream::{Block, Cut, Effect, Kernel, KernelError, Options, Progress, Spool, Spooled, Unit};

#[derive(Clone, Copy, Record)]
#[repr(C)]
struct Point {
    x: i16,
    y: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Record)]
#[repr(C)]
struct Near {
    mean: u32,
    distance: f64,
}

#[derive(Clone, Copy, Record)]
#[repr(C)]
struct Mean {
    id: u32,
    x: f64,
    y: f64,
}

mod old {
    #[derive(Clone, Copy, record::Record)]
    #[repr(C)]
    pub(super) struct Mean {
        pub(super) id: u64,
        pub(super) x: f64,
        pub(super) y: f64,
    }
}

/// Which means each point is near to: none, one or more of them.
struct Nearby {
    means: Vec<Mean>,
    parameters: Vec<u8>,
}

impl Nearby {
    fn new() -> Self {
        let means = (0..6).map(|id| Mean { id, x: f64::from(id) * 9000.0, y: -5.0 });
        let means: Vec<_> = means.collect();
        let parameters = Records::of(&means).to_bytes();
        Self { means, parameters }
    }
}

impl Kernel for Nearby {
    type Part = ();
    type Header = ();

    fn name(&self) -> &str {
        "nearby"
    }

    fn cut(&self, (): &()) -> Cut {
        Cut::records(size_of::<Point>())
    }

    fn effect(&self) -> Effect {
        Effect::Rewrite
    }

    fn part(&self, _: usize) {}

    fn block(&self, _: &Unit<'_>, block: Block<'_>, (): &mut ()) -> Result<(), KernelError> {
        let mut out = block.out;
        let from = out.goes_on_from().unwrap_or(0);
        for (point, number) in Point::all(block.data)?.zip(0..).skip(from) {
            let mut near = Vec::new();
            for mean in &self.means {
                let distance = (f64::from(point.x) - mean.x).hypot(f64::from(point.y) - mean.y);
                if distance < 12_000.0 {
                    near.push(Near { mean: mean.id, distance });
                }
            }
            if !out.push(Records::of(&near).bytes()) {
                out.stop_at(number);
                return Ok(());
            }
        }
        Ok(())
    }

    fn merge(&self, (): &mut (), (): ()) -> Result<(), KernelError> {
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(self.parameters.clone())
    }
}

fn options() -> Options {
    Options { block_bytes: Some(4096), accelerators: Some(2), ..Options::default() }
}

/// Of more than a few, some manage others.
fn config(nodes: u32) -> Config {
    Config { fanout: (nodes > 4).then_some(2), ..Config::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn nodes_make_what_one_machine_makes(points in 0..60_000_usize, nodes in 1..8_u32) {
        let (dir, path) = crate::file(points * 4, points as u64 + 1);
        let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
        let kernel = Nearby::new();
        let made = |name: &str, make: &dyn Fn(&Output)| {
            let path = dir.path().join(name);
            let output = Output::create(&path, &storage::Options::default()).unwrap();
            make(&output);
            output.commit(false).unwrap();
            std::fs::read(path).unwrap()
        };
        let one = made("one", &|output| {
            stream::run(&kernel, &input, Some(output), &options(), &progress).unwrap();
        });
        let many = made("many", &|output| {
            let shared = SharedDir::create(dir.path()).unwrap();
            let spool = Spool::new("out");
            spool.join(shared.path());
            let plan = stream::plan(&kernel, &input, &options()).unwrap();
            let spooled = Spooled::new(&kernel, &spool, &plan, plan.units.unwrap());
            let task = KernelTask::new(&spooled, &input, None, &options(), &progress).unwrap();
            let task = task.spool(&spool);
            let (mut report, _) = run_local(nodes, &[&task], &config(nodes)).unwrap();
            let spans = task.result(report.results.remove(0).unwrap()).unwrap();
            spans.copy(&shared, output).unwrap();
        });
        prop_assert!(one == many, "{} bytes, {}", one.len(), many.len());
        let near = Near::all(&many).unwrap().count();
        prop_assert!(points < 1000 || (near > 0 && near != points), "{near} of {points}");
    }

    #[test]
    fn what_is_made_of_many_inputs_is_told_apart(
        lens in prop::collection::vec(prop_oneof![Just(0), 1..9_usize, 1000..9000_usize], 1..12),
        nodes in 1..8_u32,
    ) {
        let (dir, path) = crate::file(lens.iter().sum::<usize>() * 4, 5);
        let (bytes, progress) = (std::fs::read(path).unwrap(), Progress::default());
        let (kernel, mut from) = (Nearby::new(), 0);
        let paths = lens.iter().enumerate().map(|(number, len)| {
            let path = dir.path().join(format!("in{number}"));
            std::fs::write(&path, &bytes[from..from + len * 4]).unwrap();
            from += len * 4;
            path
        });
        let paths: Vec<_> = paths.collect();
        let inputs = storage::list(&paths, false).unwrap();
        let shared = SharedDir::create(dir.path()).unwrap();
        let spool = Spool::new("out");
        spool.join(shared.path());
        let plan = stream::plan_all(&kernel, &inputs, &options()).unwrap();
        let spooled = Spooled::new(&kernel, &spool, &plan, 100);
        let task = ManyTask::new(&spooled, &inputs, None, &options(), &progress).unwrap();
        let task = task.spool(&spool);
        let (mut report, _) = run_local(nodes, &[&task], &config(nodes)).unwrap();
        prop_assert_eq!(progress.done_bytes(), bytes.len() as u64);
        let spans = task.result(report.results.remove(0).unwrap()).unwrap();
        let mut made = spans.inputs();
        for (input, path) in inputs.iter().zip(&paths) {
            let create = |name: &str| {
                let path = dir.path().join(name);
                (Output::create(&path, &storage::Options::default()).unwrap(), path)
            };
            let (one, many) = (create("one"), create("many"));
            let source = Input::open(path).unwrap();
            stream::run(&kernel, &source, Some(&one.0), &options(), &progress).unwrap();
            if task.has_units(input).unwrap() {
                made.next().unwrap().copy(&shared, &many.0).unwrap();
            }
            let read = |(output, path): (Output, std::path::PathBuf)| {
                output.commit(false).unwrap();
                let made = std::fs::read(&path).unwrap();
                std::fs::remove_file(path).unwrap();
                made
            };
            prop_assert!(read(one) == read(many), "{:?}", input.shown());
        }
        prop_assert!(made.next().is_none());
    }
}

#[test]
fn a_parameter_of_another_layout_is_refused_by_the_name_of_its_field() {
    let (_dir, path) = crate::file(400, 3);
    let (input, progress) = (Input::open(&path).unwrap(), Progress::default());
    let ours = Nearby::new();
    let means = [old::Mean { id: 1, x: 2.0, y: 3.0 }];
    let theirs = Nearby { parameters: Records::of(&means).to_bytes(), ..Nearby::new() };
    let spool = Spool::new("out");
    let plan = stream::plan(&ours, &input, &options()).unwrap();
    let [ours, theirs] = [&ours, &theirs].map(|kernel| Spooled::new(kernel, &spool, &plan, 1));
    let task = |kernel| KernelTask::new(kernel, &input, None, &options(), &progress).unwrap();
    let (ours, theirs) = (task(&ours), task(&theirs));
    ours.join(ours.description()).unwrap();
    let why = theirs.join(ours.description()).unwrap_err();
    let field = "field `id` is u64 at 0 here and u32 at 0 there";
    assert!(why.contains("nearby") && why.contains(field), "{why}");
}
