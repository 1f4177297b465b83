//! Chains of the kernels that come along, fused and spread, against plain
//! references.

use std::fs;
use std::path::PathBuf;

use cellway::accel::Faults;
use cellway::kernels::{
    Aes256Ctr, Count, Counted, Crc32c, Finish, Identity, Iv128, Key256, Pattern, Replace,
    Report as _,
};
use cellway::stream::{Chain, Pipeline, Transform};
use cellway::{Config, Kernel, Options};
use proptest::prelude::*;

/// Long enough for the pattern, and too short for what lies across a block's end.
const PATTERN: &str = "ab";

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(input: &[u8]) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(files.path("in"), input).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The output of a chain in each of the ways.
    fn written<K: Kernel>(
        &self,
        ways: &[Config],
        first: &[Aes256Ctr],
        last: impl Fn() -> K,
    ) -> Vec<Vec<u8>> {
        let run = |way: &Config| {
            let chain = Chain::new(boxed(first), last()).unwrap();
            way.transform(&chain, &self.path("in"), &self.path("out")).unwrap();
            fs::read(self.path("out")).unwrap()
        };
        ways.iter().map(run).collect()
    }

    /// The printed result of a reduction after `identity` in each of the ways.
    fn printed<K: Finish>(&self, ways: &[Config], last: impl Fn() -> K) -> Vec<String> {
        let run = |way: &Config| {
            let chain = Chain::new(vec![Box::new(Identity) as Transform], last()).unwrap();
            let part = way.reduce(&chain, &self.path("in")).unwrap().part;
            let mut text = Vec::new();
            chain.last().finish(part).unwrap().write_text(&mut text).unwrap();
            String::from_utf8(text).unwrap().trim_end().to_owned()
        };
        ways.iter().map(run).collect()
    }
}

fn boxed(ciphers: &[Aes256Ctr]) -> Vec<Transform> {
    ciphers.iter().map(|cipher| Box::new(cipher.clone()) as Transform).collect()
}

/// Castagnoli's polynomial, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg())
        })
    })
}

fn occurrences(text: &[u8]) -> usize {
    text.windows(PATTERN.len()).filter(|found| *found == PATTERN.as_bytes()).count()
}

/// As the pattern cannot overlap itself, one after the other.
fn replaced(text: &[u8], with: &str) -> Vec<u8> {
    std::str::from_utf8(text).unwrap().replace(PATTERN, with).into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_chain_gives_the_same_fused_and_spread(
        text in prop::collection::vec(prop::sample::select(b"abc\n".as_slice()), 0..60_000),
        block_bytes in 1_u64..9_000, threads in 1_usize..6, lanes in 1_usize..4,
        faults in prop::option::of(any::<u64>().prop_map(Faults::survivable)),
    ) {
        let ways = [Pipeline::Fused, Pipeline::Spread].map(|pipeline| {
            let (block_bytes, threads, accelerators) = (Some(block_bytes), Some(threads), Some(2 * lanes));
            let options =
                Options { accelerators, threads, block_bytes, pipeline, faults, ..Options::default() };
            Config { options, force: true, ..Config::default() }
        });
        let (files, cipher) = (Files::new(&text), Aes256Ctr::new(&Key256::new([7; 32]), Iv128(9)));
        let (one, pattern) = (std::slice::from_ref(&cipher), || Pattern::new(PATTERN).unwrap());

        // The same key stream twice: the text again.
        for made in files.written(&ways, one, || cipher.clone()) {
            prop_assert!(made == text);
        }
        for printed in files.printed(&ways, Crc32c::new) {
            prop_assert_eq!(printed, format!("{:08x}", crc32c(&text)));
        }
        for printed in files.printed(&ways, || Count::new(pattern(), Counted::Matches)) {
            prop_assert_eq!(printed, occurrences(&text).to_string());
        }
        // What is counted and replaced was encrypted before.
        let hidden = files.written(&ways[..1], &[], || cipher.clone()).remove(0);
        let files = Files::new(&hidden);
        for made in files.written(&ways, one, || Replace::new(pattern(), "<>.")) {
            prop_assert!(made == replaced(&text, "<>."));
        }
    }
}
