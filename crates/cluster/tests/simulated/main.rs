//! Manager and nodes in virtual time.

mod faults;
mod scaling;
mod tree;

/// Says which seed failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("CELLWAY_SEED={} runs this one alone", self.0);
        }
    }
}
