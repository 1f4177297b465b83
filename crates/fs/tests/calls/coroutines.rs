//! Coroutines: in line, one at a time, with blocking file calls.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use accel::Config;
use cellway_fs::{Files, OpenMode, RamServer, cormain, wait};

use crate::harness::watch;

fn files() -> Files {
    Files::new("ann").with("#r", Arc::new(RamServer::new(16 << 20))).expect("this is a name")
}

fn config(accelerators: usize) -> Config {
    Config { accelerators, pin: false, ..Config::default() }
}

#[test]
fn who_is_made_runs_when_its_maker_waits_first_in_first_out() {
    let _dog = watch();
    let log = cormain(&config(1), &files(), 64 << 10, |co| {
        let log = Rc::new(RefCell::new(vec!["main"]));
        for name in ["first", "second", "third"] {
            let log = log.clone();
            co.mkcor(16 << 10, move |co| {
                log.borrow_mut().push(name);
                co.yield_now();
                log.borrow_mut().push(name);
            })
            .unwrap();
        }
        log.borrow_mut().push("made");
        co.yield_now();
        log.borrow_mut().push("main again");
        co.yield_now();
        co.yield_now();
        log.take()
    });
    let wanted =
        ["main", "made", "first", "second", "third", "main again", "first", "second", "third"];
    assert_eq!(log.unwrap(), [wanted]);
}

#[test]
fn coroutines_of_several_accelerators_share_files() {
    let _dog = watch();
    let files = files();
    wait(files.create("#r/sum", ninep::kind::APPEND | 0o644, OpenMode::READ)).unwrap();
    let ends = cormain(&config(3), &files, 256 << 10, |co| {
        let number = co.place().accelerator;
        let cors: Vec<_> = (0..4)
            .map(|own| {
                co.mkcor(64 << 10, move |co| {
                    let mut buf = co.cx().alloc(100).unwrap();
                    buf.fill((number * 4 + own) as u8);
                    let mut file = co.wait(co.files().open("#r/sum", OpenMode::WRITE)).unwrap();
                    co.wait(file.write_all(&buf)).unwrap();
                    file.close();
                })
                .unwrap()
            })
            .collect();
        for cor in cors {
            co.wait(cor);
        }
        number
    });
    assert_eq!(ends.unwrap(), [0, 1, 2]);
    let mut file = wait(files.open("#r/sum", OpenMode::READ)).unwrap();
    let mut bytes = [0; 1200];
    wait(file.read_exact(&mut bytes)).unwrap();
    let mut marks: Vec<u8> = bytes.chunks(100).map(|line| line[0]).collect();
    assert!(bytes.chunks(100).all(|line| line.iter().all(|byte| *byte == line[0])));
    marks.sort_unstable();
    assert_eq!(marks, (0..12).collect::<Vec<u8>>());
}

#[test]
fn too_many_coroutines_are_refused() {
    let _dog = watch();
    let config = Config { threads_max: 3, ..config(1) };
    let made = cormain(&config, &files(), 64 << 10, |co| {
        (0..10).take_while(|_| co.mkcor(16 << 10, |co| co.yield_now()).is_ok()).count()
    });
    assert_eq!(made.unwrap(), [2]);
}
