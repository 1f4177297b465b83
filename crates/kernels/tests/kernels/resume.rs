//! What a resumed run may not change, and what cannot be resumed. That parts
//! are the same after saving and loading is checked by the driver in each run.

use cellway_kernels::{
    Aes128Ecb, Aes256Ctr, Blake3, Count, Counted, Crc32c, Histogram, Identity, Iv128, Key256,
    LinReg, PairType, Pattern, Replace, WordCount,
};
use stream::{Chain, Kernel, Transform};

fn parameters(kernel: &impl Kernel) -> Vec<u8> {
    kernel.parameters().unwrap()
}

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

fn ctr(key: u8, iv: u128) -> Aes256Ctr {
    Aes256Ctr::new(&Key256::new([key; 32]), Iv128(iv))
}

fn all_differ(kernels: &[Vec<u8>]) {
    for (at, one) in kernels.iter().enumerate() {
        assert!(!kernels[..at].contains(one), "number {at} passes for another");
    }
}

#[test]
fn other_parameters_show() {
    let types = [PairType::U8, PairType::I16, PairType::F32, PairType::F64];
    all_differ(&types.map(|pair_type| parameters(&LinReg::new(pair_type))));
    all_differ(&[
        parameters(&Count::new(pattern("a"), Counted::Matches)),
        parameters(&Count::new(pattern("b"), Counted::Matches)),
        parameters(&Count::new(pattern("a"), Counted::Lines)),
        parameters(&Count::new(pattern("a"), Counted::Lines).record_bytes_max(9)),
    ]);
    all_differ(&[
        parameters(&Replace::new(pattern("a"), "b")),
        parameters(&Replace::new(pattern("a"), "c")),
        parameters(&Replace::new(pattern("ab"), "")),
        parameters(&Replace::new(pattern("a"), "b").record_bytes_max(9)),
    ]);
    all_differ(&[parameters(&Aes128Ecb::default()), parameters(&Aes128Ecb::new([1; 16]))]);
    let chain = |first: Vec<Transform>| parameters(&Chain::new(first, Crc32c::new()).unwrap());
    all_differ(&[
        chain(vec![]),
        chain(vec![Box::new(ctr(1, 1))]),
        chain(vec![Box::new(ctr(1, 2))]),
        chain(vec![Box::new(Identity), Box::new(ctr(1, 1))]),
    ]);
    for kernel in [parameters(&Blake3::new()), parameters(&Crc32c::new()), parameters(&Histogram)] {
        assert!(kernel.is_empty());
    }
}

#[test]
fn a_key_is_checked_and_not_kept() {
    all_differ(&[parameters(&ctr(1, 1)), parameters(&ctr(2, 1)), parameters(&ctr(1, 2))]);
    let kept = parameters(&ctr(0xab, 1));
    assert_eq!(kept, parameters(&ctr(0xab, 1)));
    assert!(!kept.windows(4).any(|bytes| bytes == [0xab; 4]));
}

#[test]
fn what_cannot_be_resumed_says_so() {
    let kernel = WordCount::new("/tmp");
    let error = kernel.parameters().unwrap_err().to_string();
    assert!(error.contains("wordcount cannot be resumed"), "{error}");
    let chain = Chain::new(vec![Box::new(Identity)], kernel).unwrap();
    assert!(chain.parameters().is_err());
}
