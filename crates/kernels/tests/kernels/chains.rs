//! Chains of kernels against the same kernels one after the other.

use cellway_kernels::{
    Aes128Ecb, Aes256Ctr, Count, Counted, Finish, Histogram, Identity, Iv128, Key256, Pattern,
};
use proptest::prelude::*;
use stream::{Chain, Transform};

use crate::driver::{Plan, reduce, run, transform};

fn ctr(key: u8) -> Aes256Ctr {
    Aes256Ctr::new(&Key256::new([key; 32]), Iv128(u128::from(key)))
}

fn counting() -> Count {
    Count::new(Pattern::new("a|b+").unwrap(), Counted::Matches)
}

#[test]
fn a_chain_is_named_after_its_kernels() {
    let first: Vec<Transform> = vec![Box::new(Identity), Box::new(ctr(1))];
    assert_eq!(
        stream::Kernel::name(&Chain::new(first, counting()).unwrap()),
        "identity,aes256-ctr,count"
    );
}

#[test]
fn what_cannot_come_there_is_refused() {
    // A header cannot be read before what writes it has run.
    let chain = Chain::new(vec![Box::new(Identity)], Histogram).unwrap();
    let error = run(&chain, &[0; 100], Plan::blocks_of(10)).unwrap_err();
    assert!(error.to_string().contains("histogram reads a header"), "{error}");
}

proptest! {
    #[test]
    fn transforms_follow_one_another(
        data in prop::collection::vec(any::<u8>(), 0..40).prop_map(|records| records.repeat(16)),
        block_bytes in 1_usize..200,
        pipe in any::<bool>(),
    ) {
        let plan = Plan { block_bytes, parts: 1, pipe };
        let first: Vec<Transform> = vec![Box::new(ctr(1)), Box::new(Aes128Ecb::default())];
        let chained = transform(&Chain::new(first, ctr(2)).unwrap(), &data, plan).unwrap();
        let data = transform(&ctr(1), &data, plan).unwrap();
        let data = transform(&Aes128Ecb::default(), &data, plan).unwrap();
        prop_assert_eq!(chained, transform(&ctr(2), &data, plan).unwrap());
    }

    /// The last kernel's surroundings go through the transforms as well.
    #[test]
    fn a_reduction_sees_what_was_transformed(
        text in prop::collection::vec(prop::sample::select(b"ab \n".as_slice()), 0..400),
        block_bytes in 1_usize..100,
        parts in 1_usize..4,
        pipe in any::<bool>(),
    ) {
        let plan = Plan { block_bytes, parts, pipe };
        let hidden = transform(&ctr(3), &text, plan).unwrap();
        let chain = Chain::new(vec![Box::new(ctr(3)) as Transform], counting()).unwrap();
        let (_, part) = run(&chain, &hidden, plan).unwrap();
        let expected = reduce(&counting(), &text, plan).unwrap();
        prop_assert_eq!(chain.last().finish(part).unwrap(), expected);
    }
}
