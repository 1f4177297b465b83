//! SIGKILL at random moments. Each test says its seed; `CELLWAY_KILLS_SEED` runs
//! it again, `CELLWAY_KILLS` says how many runs are killed in all.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::program::{Folder, Outcome, arguments, bmp_header, cellway, command, finish, noise};
use crate::schemes::{REWRITING, SCHEMES};

/// Killed runs of all tests, unless another number is asked for.
const KILLS: u64 = 100;
const INPUT_BYTES: usize = 3 << 20;

/// What is run; `{}` stands for input and output.
const RUNS: &[&str] = &[
    "identity {} {}",
    "aes256-ctr {} {} --iv 000102030405060708090a0b0c0d0e0f",
    "replace {} {} --pattern [aeiou]+ --with <vowels>",
    "blake3 {}",
    "crc32c {}",
    "count {} --pattern a.*e",
    "linreg {} --type f64",
    "histogram {}",
    "wordcount {} --table-bytes 256K",
];

/// Moments drawn from a seed.
pub(crate) struct Moments {
    seed: u64,
    drawn: u64,
}

impl Moments {
    pub(crate) fn new() -> Self {
        let given = std::env::var("CELLWAY_KILLS_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
        println!("CELLWAY_KILLS_SEED={seed}");
        Self { seed, drawn: 0 }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.drawn += 1;
        let bytes = noise(self.seed.wrapping_add(self.drawn), 64);
        u64::from_le_bytes(std::array::from_fn(|at| bytes[56 + at]))
    }

    fn below(&mut self, count: usize) -> usize {
        (self.number() % count as u64) as usize
    }

    pub(crate) fn until(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.number() as f64 / u64::MAX as f64)
    }
}

/// Kills until one test has had its share, in percent of all.
pub(crate) struct Kills {
    left: u64,
    /// A run may end before its kill; not all do.
    tries: u64,
}

impl Kills {
    pub(crate) fn share(percent: u64) -> Self {
        let kills = std::env::var("CELLWAY_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
        let left = (kills * percent).div_ceil(100);
        Self { left, tries: 20 + 5 * left }
    }

    pub(crate) fn are_left(&mut self) -> bool {
        assert!(self.tries > 0, "{} runs still end before they are killed", self.left);
        self.tries -= 1;
        self.left > 0
    }

    pub(crate) fn count(&mut self, ran: &Outcome) {
        self.left = self.left.saturating_sub(u64::from(ran.code.is_none()));
    }
}

/// On nodes, all of which are killed with their manager.
const ON_NODES: &[&str] = &[
    "identity {} {} --nodes 3",
    "aes256-ctr {} {} --iv 000102030405060708090a0b0c0d0e0f --nodes 2",
    "blake3 {} --nodes 3",
    "crc32c {} --nodes 2 --unit 128K",
    "linreg {} --type f64 --nodes 4",
    "wordcount {} --nodes 3",
    "replace {} {} --pattern [aeiou]+ --with <vowels> --nodes 3",
];

/// One kernel in a folder, and what an undisturbed run came to.
struct Scene {
    folder: Folder,
    line: String,
    paths: Vec<PathBuf>,
    /// What is there under the output's name before.
    old: Option<&'static [u8]>,
    output: Option<Vec<u8>>,
    stdout: Vec<u8>,
    /// What a run takes.
    longest: Duration,
}

impl Scene {
    fn new(run: &str, old: Option<&'static [u8]>) -> Self {
        let folder = Folder::new();
        let data = if run.starts_with("histogram") {
            [bmp_header(1024, 1024), noise(1, INPUT_BYTES)].concat()
        } else {
            noise(2, INPUT_BYTES)
        };
        let (input, out) = (folder.file("in", &data), folder.path("out"));
        let key = if run.starts_with("aes256") {
            format!(" --key-file {}", folder.file("key", &[7; 32]).display())
        } else {
            String::new()
        };
        let line = format!("run {run}{key} --block 128K");
        let writes = run.matches("{}").count() == 2;
        let paths = if writes { vec![input, out.clone()] } else { vec![input] };
        let (stdout, longest) = Default::default();
        let mut scene = Self { folder, line, paths, old, output: None, stdout, longest };
        scene.stdout = cellway(&scene.line, &scene.paths()).ok();
        scene.output = fs::read(&out).ok();
        assert_eq!(scene.output.is_some(), writes);
        scene.reset();
        scene
    }

    /// Times a whole run, done as those that are killed.
    fn timed(mut self, more: &str) -> Self {
        let started = Instant::now();
        assert!(finish(self.command(more).spawn().unwrap()).ok() == self.stdout);
        self.longest = started.elapsed();
        self
    }

    /// Options that ask for a scheme which can do what is run, drawn anew each time.
    fn scheme(&self, moments: &mut Moments) -> String {
        let can =
            if self.line.contains(" replace ") { &SCHEMES[..REWRITING] } else { &SCHEMES[..] };
        format!("--scheme {}", can[moments.below(can.len())])
    }

    fn paths(&self) -> Vec<&std::path::Path> {
        self.paths.iter().map(PathBuf::as_path).collect()
    }

    /// The output as it is before a run.
    fn reset(&self) {
        let Some(out) = self.paths.get(1) else { return };
        match self.old {
            Some(old) => fs::write(out, old).unwrap(),
            // A killed run may have left none.
            None => drop(fs::remove_file(out)),
        }
    }

    fn command(&self, more: &str) -> std::process::Command {
        let force = if self.old.is_some() { " --force" } else { "" };
        command(arguments(&format!("{}{force} {more}", self.line), &self.paths()))
    }

    /// Runs to the end, or to a kill after `time`.
    fn run(&self, more: &str, time: Duration) -> Outcome {
        let mut child = self.command(more).spawn().unwrap();
        std::thread::sleep(time);
        child.kill().unwrap();
        finish(child)
    }

    /// Whether the output is the new one; it is that or the old one.
    fn is_new(&self) -> bool {
        let Some(out) = self.paths.get(1) else { return false };
        let found = fs::read(out).ok();
        let is_new = found == self.output;
        assert!(is_new || found.as_deref() == self.old, "neither old nor new: {}", self.line);
        is_new
    }

    /// Nothing but what was there, and the output if `new`.
    fn is_tidy(&self, new: bool) {
        let out = self.paths.len() == 2 && (new || self.old.is_some());
        let mut names = self.folder.names();
        names.retain(|name| !["in", "key"].contains(&name.as_str()));
        assert_eq!(names, if out { vec!["out"] } else { vec![] }, "{}", self.line);
    }
}

/// Kills a run with a journal once or several times, and goes on.
fn kill_and_go_on(scene: &Scene, moments: &mut Moments, kills: &mut Kills) {
    let journal = scene.folder.path("journal");
    let every = format!("{} --journal-every 0", journal.display());
    let mut how = format!("--journal {every}");
    for _ in 0..=moments.below(3) {
        let ran = scene.run(&how, moments.until(scene.longest));
        kills.count(&ran);
        let is_new = scene.is_new();
        take_away_what_a_kill_left(&scene.folder, &journal);
        if ran.code == Some(0) {
            assert!(ran.stdout == scene.stdout, "{}", scene.line);
        }
        if ran.code == Some(0) || is_new && !journal.exists() {
            assert!(scene.paths.len() < 2 || is_new);
            scene.is_tidy(true);
            return;
        }
        assert_eq!(ran.code, None, "{}", ran.stderr);
        how = next(scene, &journal, &every);
    }
    let ran = finish(scene.command(&how).spawn().unwrap());
    let complete = scene.paths.len() == 2;
    let printed = ran.ok();
    assert!(printed == scene.stdout, "{}", scene.line);
    assert!(!complete || scene.is_new());
    scene.is_tidy(true);
}

/// How to go on after a kill.
fn next(scene: &Scene, journal: &std::path::Path, every: &str) -> String {
    let Ok(bytes) = fs::read(journal) else {
        scene.is_tidy(false);
        return format!("--journal {every}");
    };
    assert!(bytes.len() >= HEADER_BYTES);
    format!("--resume {every}")
}

/// A header has more, and is written at once, before all else.
const HEADER_BYTES: usize = 40;

/// A journal whose header was torn, and the folder beside one that is gone.
pub(crate) fn take_away_what_a_kill_left(folder: &Folder, journal: &std::path::Path) {
    if fs::metadata(journal).is_ok_and(|found| found.len() < HEADER_BYTES as u64) {
        fs::remove_file(journal).unwrap();
    }
    let beside = |name: &String| name.starts_with(".journal.cellway-");
    if let (false, Some(left)) = (journal.exists(), folder.names().into_iter().find(beside)) {
        fs::remove_dir_all(folder.path(&left)).unwrap();
    }
}

/// Each run in turn.
fn with_journals(runs: &[&str], old: Option<&'static [u8]>, mut kills: Kills) {
    let mut moments = Moments::new();
    let timed = |run: &&str| {
        let scene = Scene::new(run, old);
        let whole =
            format!("--journal {} --journal-every 0", scene.folder.path("journal").display());
        scene.timed(&whole)
    };
    let scenes: Vec<_> = runs.iter().map(timed).collect();
    for scene in scenes.iter().cycle() {
        if !kills.are_left() {
            return;
        }
        scene.reset();
        kill_and_go_on(scene, &mut moments, &mut kills);
    }
}

#[test]
fn killed_runs_go_on_and_end_the_same() {
    with_journals(RUNS, None, Kills::share(40));
}

#[test]
fn killed_runs_on_nodes_go_on_and_end_the_same() {
    with_journals(ON_NODES, None, Kills::share(24));
}

#[test]
fn killed_runs_go_on_and_replace_the_old_output_at_last() {
    let on_nodes = ON_NODES.iter().filter(|run| run.starts_with("replace"));
    let runs: Vec<_> = RUNS[..3].iter().chain(on_nodes).copied().collect();
    with_journals(&runs, Some(b"old"), Kills::share(24));
}

/// Without a journal, by any scheme: all or nothing, and nothing to take away.
#[test]
fn killed_runs_leave_the_old_output_or_the_new() {
    let (mut moments, mut kills) = (Moments::new(), Kills::share(40));
    let both = |run| [None, Some(&b"old"[..])].map(|old| Scene::new(run, old).timed(""));
    let scenes: Vec<_> = RUNS[..3].iter().flat_map(|run| both(run)).collect();
    for scene in scenes.iter().cycle() {
        if !kills.are_left() {
            return;
        }
        scene.reset();
        let scheme = scene.scheme(&mut moments);
        kills.count(&scene.run(&scheme, moments.until(scene.longest)));
        let new = scene.is_new();
        let hidden = |name: &String| name.starts_with(".out.cellway-");
        let left = scene.folder.names().into_iter().find(hidden);
        match left {
            // A kill between the two steps of replacing, or no O_TMPFILE.
            Some(left) if scene.old.is_some() || !has_unnamed_files(&scene.folder) => {
                fs::remove_file(scene.folder.path(&left)).unwrap();
            }
            _ => {}
        }
        scene.is_tidy(new);
    }
}

fn has_unnamed_files(folder: &Folder) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    open(folder.path("."), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).is_ok()
}
