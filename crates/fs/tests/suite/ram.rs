//! `#r`.

use std::sync::Arc;

use cellway_fs::RamServer;

use crate::conformance::{Subject, conforms};

#[test]
fn conforms_to_the_suite() {
    conforms(&|| Subject { server: Arc::new(RamServer::new(64 << 20)), _keep: None });
}
