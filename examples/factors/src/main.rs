//! Reads files of a server of one's own, by the calls that reach all others.

#![forbid(unsafe_code)]

mod server;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cellway::fs::{Files, FsError, OpenMode, wait};
use server::Factors;

fn main() -> Result<(), FsError> {
    let files = Files::new("ann").with("#f", Arc::new(Factors(None)))?;
    for number in std::env::args().skip(1) {
        let mut text = [0; 512];
        let len = wait(async {
            let mut file = files.open(&format!("#f/{number}"), OpenMode::READ).await?;
            file.read(&mut text).await
        })?;
        print!("{number}: {}", String::from_utf8_lossy(&text[..len]));
    }
    Ok(())
}
