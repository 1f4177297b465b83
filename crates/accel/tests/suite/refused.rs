//! Kernels that refuse io_uring: an engine asked for by name says so, `auto`
//! goes on without, and what moves the data conforms all the same.
//!
//! The refusal is a seccomp filter in a child process: this test again.

use std::collections::BTreeMap;
use std::process::Command;

use cellway_accel::{Config, EngineChoice, RunError, probe, run};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};

use crate::conformance::suite;
use crate::harness::{Backing, engines, small, watch};

/// Set in the child.
const IS_CHILD: &str = "CELLWAY_TEST_REFUSES";

/// Runs `body` in a process for which a system call fails with `errno`. What
/// comes after a ring was set up needs a kernel that sets one up.
fn where_refused(call: libc::c_long, errno: i32, body: fn(errno: i32)) {
    let _dog = watch();
    if std::env::var_os(IS_CHILD).is_some() {
        if call == libc::SYS_io_uring_setup || engines().contains(&EngineChoice::Uring) {
            refuse(call, errno);
            body(errno);
        }
        return;
    }
    let name = std::thread::current().name().expect("tests have names").to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ran = child.args([&*name, "--exact", "--nocapture"]).env(IS_CHILD, "1").output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && told.contains("1 passed"),
        "{}\n{told}\n{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    for line in told.lines().filter(|line| line.starts_with("SKIP")) {
        println!("{line}");
    }
}

/// Works without privileges: the filter also gives them up for good.
fn refuse(call: libc::c_long, errno: i32) {
    let filter = SeccompFilter::new(
        BTreeMap::from([(call, vec![])]),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    apply_filter_all_threads(&program).expect("a process may restrict itself");
}

const FILES: &[Backing] = &[Backing::Buffered, Backing::Direct];

fn no_uring(step: &str, errno: i32) {
    let error = probe(EngineChoice::Uring, 4096).unwrap_err();
    assert_eq!((error.engine, error.what), ("uring", step));
    assert_eq!(error.source.raw_os_error(), Some(errno), "{error}");
    assert!(error.to_string().contains("use --engine pread or auto"), "{error}");
    let config = Config { engine: EngineChoice::Uring, ..small() };
    let ran = run(&config, |_, _| async {});
    assert!(matches!(ran, Err(RunError::Engine(_))), "asked for by name, it never falls back");

    let report = probe(EngineChoice::Auto, 4096).unwrap();
    let why = std::io::Error::from_raw_os_error(errno).to_string();
    assert_eq!(report.name, "pread");
    assert!(report.detail.contains(step) && report.detail.contains(&why), "{}", report.detail);
    let config = Config { engine: EngineChoice::Auto, ..small() };
    let detail = run(&config, |cx, _| async move { cx.engine().detail }).unwrap();
    assert!(detail[0].contains(&why), "{}", detail[0]);
    suite(&config, FILES);
}

#[test]
fn setup_is_not_permitted() {
    where_refused(libc::SYS_io_uring_setup, libc::EPERM, |errno| no_uring("io_uring_setup", errno));
}

#[test]
fn setup_is_not_there() {
    where_refused(libc::SYS_io_uring_setup, libc::ENOSYS, |errno| {
        no_uring("io_uring_setup", errno)
    });
}

#[test]
fn a_ring_that_does_nothing() {
    where_refused(libc::SYS_io_uring_enter, libc::EPERM, |errno| no_uring("a no-op", errno));
}

fn no_fixed_buffers(errno: i32) {
    let why = std::io::Error::from_raw_os_error(errno).to_string();
    for choice in [EngineChoice::Uring, EngineChoice::Auto] {
        let report = probe(choice, 4096).unwrap();
        assert_eq!(report.name, "uring");
        assert!(report.detail.contains("plain opcodes"), "{}", report.detail);
        assert!(report.detail.contains(&why), "{}", report.detail);
        assert_eq!(report.fixed_buffers, Some(Err(why.clone())));
    }
    suite(&Config { engine: EngineChoice::Uring, ..small() }, FILES);
}

#[test]
fn fixed_buffers_are_not_permitted() {
    where_refused(libc::SYS_io_uring_register, libc::EPERM, no_fixed_buffers);
}

#[test]
fn fixed_buffers_exceed_the_limit() {
    where_refused(libc::SYS_io_uring_register, libc::ENOMEM, no_fixed_buffers);
}

/// What works says how.
#[test]
fn probes_say_what_they_found() {
    let report = probe(EngineChoice::Pread, 4096).unwrap();
    assert_eq!(report.name, "pread");
    assert!(report.detail.contains("preadv2"), "{}", report.detail);
    assert_eq!(report.fixed_buffers, None);
    if engines().contains(&EngineChoice::Uring) {
        assert_eq!(probe(EngineChoice::Uring, 4096).unwrap().name, "uring");
        assert_eq!(probe(EngineChoice::Auto, 4096).unwrap().name, "uring");
    }
    for name in ["auto", "uring", "pread"] {
        assert_eq!(name.parse::<EngineChoice>().unwrap().to_string(), name);
    }
    assert!("mmap".parse::<EngineChoice>().unwrap_err().contains("auto, uring and pread"));
}
