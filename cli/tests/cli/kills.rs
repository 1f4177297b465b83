//! SIGKILL at random moments. Each test says its seed; `CELLWAY_KILLS_SEED` runs
//! it again, `CELLWAY_KILLS` says how many kills each kernel gets.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::program::{Folder, Outcome, arguments, bmp_header, cellway, command, finish, noise};

/// Kills of each kernel, unless more are asked for.
const KILLS: u64 = 2;
const INPUT_BYTES: usize = 12 << 20;

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

    pub(crate) fn until(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.number() as f64 / u64::MAX as f64)
    }
}

pub(crate) fn kills() -> u64 {
    std::env::var("CELLWAY_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// One kernel in a folder, and what an undisturbed run came to.
struct Scene {
    folder: Folder,
    line: String,
    paths: Vec<PathBuf>,
    /// What is there under the output's name before.
    old: Option<&'static [u8]>,
    output: Option<Vec<u8>>,
    stdout: Vec<u8>,
}

impl Scene {
    fn new(run: &str, old: Option<&'static [u8]>) -> Self {
        let folder = Folder::new();
        let data = if run.starts_with("histogram") {
            [bmp_header(2048, 2048), noise(1, INPUT_BYTES)].concat()
        } else {
            noise(2, INPUT_BYTES)
        };
        let (input, out) = (folder.file("in", &data), folder.path("out"));
        let key = if run.starts_with("aes256") {
            format!(" --key-file {}", folder.file("key", &[7; 32]).display())
        } else {
            String::new()
        };
        let line = format!("run {run}{key} --block 256K");
        let writes = run.matches("{}").count() == 2;
        let paths = if writes { vec![input, out.clone()] } else { vec![input] };
        let mut scene = Self { folder, line, paths, old, output: None, stdout: Vec::new() };
        scene.stdout = cellway(&scene.line, &scene.paths()).ok();
        scene.output = fs::read(&out).ok();
        assert_eq!(scene.output.is_some(), writes);
        scene.reset();
        scene
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
fn kill_and_go_on(scene: &Scene, moments: &mut Moments, longest: Duration) {
    let journal = scene.folder.path("journal");
    let every = format!("{} --journal-every 0", journal.display());
    let mut how = format!("--journal {every}");
    let kills = 1 + moments.number() % 3;
    for _ in 0..kills {
        let ran = scene.run(&how, moments.until(longest));
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

fn with_journals(runs: &[&str], old: Option<&'static [u8]>) {
    let mut moments = Moments::new();
    for run in runs {
        let scene = Scene::new(run, old);
        let started = Instant::now();
        let journal = scene.folder.path("journal");
        let whole = format!("--journal {} --journal-every 0", journal.display());
        let ran = finish(scene.command(&whole).spawn().unwrap());
        assert!(ran.ok() == scene.stdout);
        let longest = started.elapsed();
        for _ in 0..kills() {
            if scene.paths.len() == 2 {
                scene.reset();
            }
            kill_and_go_on(&scene, &mut moments, longest);
        }
    }
}

#[test]
fn killed_runs_go_on_and_end_the_same() {
    with_journals(RUNS, None);
}

#[test]
fn killed_runs_go_on_and_replace_the_old_output_at_last() {
    with_journals(&RUNS[..3], Some(b"old"));
}

/// Without a journal: all or nothing, and nothing to take away.
#[test]
fn killed_runs_leave_the_old_output_or_the_new() {
    let mut moments = Moments::new();
    for (run, old) in RUNS[..3].iter().flat_map(|run| [(run, None), (run, Some(&b"old"[..]))]) {
        let scene = Scene::new(run, old);
        let started = Instant::now();
        finish(scene.command("").spawn().unwrap()).ok();
        let longest = started.elapsed();
        for _ in 0..kills() {
            scene.reset();
            scene.run("", moments.until(longest));
            let new = scene.is_new();
            let hidden = |name: &String| name.starts_with(".out.cellway-");
            let left = scene.folder.names().into_iter().find(hidden);
            match left {
                // A kill between the two steps of replacing, or no O_TMPFILE.
                Some(left) if old.is_some() || !has_unnamed_files(&scene.folder) => {
                    fs::remove_file(scene.folder.path(&left)).unwrap();
                }
                _ => {}
            }
            scene.is_tidy(new);
        }
    }
}

fn has_unnamed_files(folder: &Folder) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    open(folder.path("."), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).is_ok()
}
