//! SIGKILL at random moments of runs over many inputs: see [`kills`](crate::kills).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::kills::{Kills, Moments, take_away_what_a_kill_left};
use crate::program::{Folder, arguments, command, finish, noise};

/// What is run; `{}` stands for the folder of inputs, and that of outputs.
const RUNS: &[&str] = &[
    "identity -r {} --out-dir {}",
    "replace -r {} --out-dir {} --pattern [aeiou]+ --with <vowels>",
    "crc32c -r {}",
    "linreg -r {} --type f64",
    "wordcount -r {} --table-bytes 256K",
];

/// On nodes, all of which are killed with their manager.
const ON_NODES: &[&str] = &[
    "identity -r {} --out-dir {} --nodes 3",
    "replace -r {} --out-dir {} --pattern [aeiou]+ --with <vowels> --nodes 3",
    "crc32c -r {} --nodes 2",
    "linreg -r {} --type f64 --nodes 3",
    "wordcount -r {} --nodes 3 --tree 2",
];

/// Of the kills, for each of the runs.
const SHARE_PERCENT: u64 = 10;

/// Many small files, and large ones among them.
fn inputs(folder: &Folder) {
    for number in 0..200_u64 {
        let parent = folder.path(&format!("in/{}", ["a", "b", "b/c"][number as usize / 10 % 3]));
        fs::create_dir_all(&parent).unwrap();
        // Pairs of numbers for one of the kernels.
        let len = match number {
            20 | 125 => 6 << 20,
            _ => (number as usize * 7919) % 3000 * 16,
        };
        fs::write(parent.join(format!("{number:03}")), noise(number + 1, len)).unwrap();
    }
}

/// All files below a folder, hidden ones too, with what they hold.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in root.read_dir().into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(tree(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    found
}

/// A run, and what it came to when nothing disturbed it.
struct Scene<'f> {
    folder: &'f Folder,
    line: String,
    stdout: Vec<u8>,
    outputs: BTreeMap<PathBuf, Vec<u8>>,
}

impl Scene<'_> {
    fn command(&self, more: &str) -> Command {
        let paths = [self.folder.path("in"), self.folder.path("out")];
        let line = format!("run {} {more}", self.line);
        let places = self.line.matches("{}").count();
        command(arguments(&line, &[paths[0].as_path(), paths[1].as_path()][..places]))
    }

    fn writes(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether all is there and nothing else.
    fn is_complete(&self) {
        assert!(tree(&self.folder.path("out")) == self.outputs, "{}", self.line);
        let mut names = self.folder.names();
        names.retain(|name| !["in", "out"].contains(&name.as_str()));
        assert_eq!(names, [""; 0], "{}", self.line);
    }

    /// Whether each output that has its name is whole.
    fn is_sound(&self) {
        let out = self.folder.path("out");
        for (path, content) in tree(&out) {
            let mut names = path.strip_prefix(&out).unwrap().iter();
            let hidden = names.any(|name| name.to_str().unwrap().starts_with('.'));
            assert!(hidden || self.outputs.get(&path) == Some(&content), "{}", path.display());
        }
    }

    fn kill_and_go_on(&self, moments: &mut Moments, kills: &mut Kills, longest: Duration) {
        let journal = self.folder.path("journal");
        let file = journal.display();
        let _ = fs::remove_dir_all(self.folder.path("out"));
        for _ in 0..1 + moments.number() % 3 {
            let option = if journal.exists() { "--resume" } else { "--journal" };
            let more = format!("{option} {file} --journal-every 0");
            let mut child = self.command(&more).spawn().unwrap();
            std::thread::sleep(moments.until(longest));
            child.kill().unwrap();
            let ran = finish(child);
            kills.count(&ran);
            self.is_sound();
            take_away_what_a_kill_left(self.folder, &journal);
            let is_done = self.writes() && !journal.exists() && !self.nothing_is_written();
            if ran.code == Some(0) || is_done {
                assert!(ran.code.is_none() || ran.stdout == self.stdout, "{}", self.line);
                return self.is_complete();
            }
            assert_eq!(ran.code, None, "{}", ran.stderr);
        }
        let option = if journal.exists() { "--resume" } else { "--journal" };
        let ran = finish(self.command(&format!("{option} {file}")).spawn().unwrap());
        assert!(ran.ok() == self.stdout, "{}", self.line);
        self.is_complete();
    }

    fn nothing_is_written(&self) -> bool {
        tree(&self.folder.path("out")).is_empty()
    }
}

#[test]
fn killed_runs_over_many_go_on_and_end_the_same() {
    killed(RUNS);
}

#[test]
fn killed_runs_over_many_on_nodes_go_on_and_end_the_same() {
    killed(ON_NODES);
}

fn killed(runs: &[&str]) {
    let (folder, mut moments) = (Folder::new(), Moments::new());
    inputs(&folder);
    for run in runs {
        let mut scene = Scene {
            folder: &folder,
            line: format!("{run} --block 256K"),
            stdout: Vec::new(),
            outputs: BTreeMap::new(),
        };
        scene.stdout = finish(scene.command("").spawn().unwrap()).ok();
        scene.outputs = tree(&folder.path("out"));
        assert_eq!(scene.writes(), run.contains("--out-dir"));
        let _ = fs::remove_dir_all(folder.path("out"));
        let started = Instant::now();
        let whole = format!("--journal {} --journal-every 0", folder.path("journal").display());
        assert!(finish(scene.command(&whole).spawn().unwrap()).ok() == scene.stdout);
        scene.is_complete();
        let longest = started.elapsed();
        let mut kills = Kills::share(SHARE_PERCENT);
        while kills.are_left() {
            scene.kill_and_go_on(&mut moments, &mut kills, longest);
        }
        let _ = fs::remove_dir_all(folder.path("out"));
    }
}
