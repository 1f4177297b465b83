//! Every kernel against a plain reference, over random data, sizes, cuts and
//! numbers of accelerators. proptest prints the seed of a failure.

mod blake3;
mod chains;
mod ciphers;
mod count;
mod crc32c;
mod driver;
mod histogram;
mod linreg;
mod replace;
mod resume;
mod wordcount;

use cellway_kernels::{
    Aes128Ecb, Aes256Ctr, Blake3, CATALOGUE, Count, Counted, Crc32c, Histogram, Identity, Iv128,
    Key256, LinReg, PairType, Pattern, Replace, WordCount,
};
use stream::{Effect, Kernel};

#[test]
fn the_catalogue_lists_every_kernel() {
    fn listed<K: Kernel>(kernel: &K) -> (String, Effect) {
        (kernel.name().to_owned(), kernel.effect())
    }
    let kernels = [
        listed(&Aes128Ecb::default()),
        listed(&Aes256Ctr::new(&Key256::new([0; 32]), Iv128(0))),
        listed(&Blake3::new()),
        listed(&Count::new(Pattern::new("").unwrap(), Counted::Matches)),
        listed(&Crc32c::new()),
        listed(&Histogram),
        listed(&Identity),
        listed(&LinReg::new(PairType::U8)),
        listed(&Replace::new(Pattern::new("").unwrap(), "")),
        listed(&WordCount::new(".")),
    ];
    let catalogue: Vec<_> =
        CATALOGUE.iter().map(|entry| (entry.name.to_owned(), entry.effect)).collect();
    assert_eq!(catalogue, kernels);
    let ecb = CATALOGUE[0].about;
    assert!(ecb.contains("benchmarks only"), "{ecb}");
}
