//! What a resumed run may not change, and what is kept of it. That parts
//! are the same after saving and loading is checked by the driver in each run.

use cellway_kernels::{
    Aes128Ecb, Aes256Ctr, Blake3, Count, Counted, Crc32c, Finish, Histogram, Identity, Iv128,
    Key256, LinReg, PairType, Pattern, Replace, WordCount,
};
use stream::{Beside, Chain, Kernel, Transform};

use crate::driver::{Plan, run, text};

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
    let words = WordCount::new("/tmp");
    all_differ(&[parameters(&words), parameters(&words.clone().top(3)), vec![]]);
    assert_eq!(parameters(&words), parameters(&WordCount::new("/").table_bytes(0)));
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

/// Counts `text`, and leaves the words in a folder; the part as it is saved.
fn saved_words(kernel: &WordCount, text: &[u8], beside: &Beside) -> Vec<u8> {
    let (_, mut part) = run(kernel, text, Plan::blocks_of(1000)).unwrap();
    let mut saved = Vec::new();
    kernel.save_beside(&mut part, &mut saved, beside).unwrap();
    saved
}

#[test]
fn words_that_were_changed_or_lost_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let beside = Beside::new(folder.path().join("beside"));
    let kernel = WordCount::new(std::env::temp_dir());
    let saved = saved_words(&kernel, b"some words, and some more", &beside);
    let file = folder.path().join("beside").join("0");
    let written = std::fs::read(&file).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = kernel.load_beside(&saved, 1, &beside).unwrap_err().to_string();
        assert!(error.contains("beside the journal cannot be read back"), "{error}");
        assert!(error.contains("start anew"), "{error}");
    };
    for at in 0..written.len() {
        refused(&written[..at]);
        let mut changed = written.clone();
        changed[at] ^= 1;
        refused(&changed);
    }
    // What was appended after the record is not the record's.
    std::fs::write(&file, [&written[..], b"more"].concat()).unwrap();
    let part = kernel.load_beside(&saved, 1, &beside).unwrap();
    let expected = b"2\tsome\n1\tand\n1\tmore\n1\twords,\n";
    assert_eq!(text(&mut kernel.finish(part).unwrap()), expected);
    std::fs::remove_file(&file).unwrap();
    assert!(kernel.load_beside(&saved, 1, &beside).is_err());
}

/// However many records, few files and little in each record.
#[test]
fn kept_words_take_little() {
    let folder = tempfile::tempdir().unwrap();
    let beside = Beside::new(folder.path().join("beside"));
    let kernel = WordCount::new(std::env::temp_dir()).table_bytes(0);
    let mut part = kernel.part(1);
    for record in 0..300 {
        let (_, later) = run(&kernel, b"the same words again", Plan::blocks_of(1000)).unwrap();
        kernel.merge(&mut part, later).unwrap();
        let mut saved = Vec::new();
        kernel.save_beside(&mut part, &mut saved, &beside).unwrap();
        let files = folder.path().join("beside").read_dir().unwrap().count();
        assert!(files <= 3 * 5 + 8 && saved.len() <= 3 * 5 * 32 + 24, "{record}: {files} files");
    }
    let expected = b"300\tagain\n300\tsame\n300\tthe\n300\twords\n";
    assert_eq!(text(&mut kernel.finish(part).unwrap()), expected);
}
