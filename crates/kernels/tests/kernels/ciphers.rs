use std::io::Write;
use std::process::{Command, Stdio};

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use cellway_kernels::{Aes128Ecb, Aes256Ctr, Identity, Iv128, Key256};
use proptest::prelude::*;

use crate::driver::{Plan, open, transform};

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// SP 800-38A, appendix F: the plaintext of all its examples.
const PLAIN: &str = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
                     30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710";
const KEY_256: &str = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4";

#[test]
fn ctr_gives_the_published_vectors() {
    let key = Key256::parse(KEY_256.as_bytes()).unwrap();
    let iv = Iv128::parse("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").unwrap();
    let cipher = "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5\
                  2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6";
    for block_bytes in [1, 16, 17, 64, 100] {
        let kernel = Aes256Ctr::new(&key, iv);
        let found = transform(&kernel, &hex(PLAIN), Plan::blocks_of(block_bytes)).unwrap();
        assert_eq!(found, hex(cipher), "blocks of {block_bytes} bytes");
    }
}

#[test]
fn ecb_gives_the_published_vectors() {
    // FIPS-197, appendix B, whose key is the default, and C.1.
    let plain = hex("3243f6a8885a308d313198a2e0370734");
    let found = transform(&Aes128Ecb::default(), &plain, Plan::blocks_of(16)).unwrap();
    assert_eq!(found, hex("3925841d02dc09fbdc118597196a0b32"));
    let kernel = Aes128Ecb::new(hex("000102030405060708090a0b0c0d0e0f").try_into().unwrap());
    let found =
        transform(&kernel, &hex("00112233445566778899aabbccddeeff"), Plan::blocks_of(16)).unwrap();
    assert_eq!(found, hex("69c4e0d86a7b0430d8cdb78070b4c55a"));
    // SP 800-38A, F.1.1.
    let cipher = "3ad77bb40d7a3660a89ecaf32466ef97f5d3d58503b9699de785895a96fdbaaf\
                  43b1cd7f598ece23881b00e3ed0306887b0c785e27e8ad3f8223207104725dd4";
    let found = transform(&Aes128Ecb::default(), &hex(PLAIN), Plan::blocks_of(32)).unwrap();
    assert_eq!(found, hex(cipher));
}

#[test]
fn ecb_refuses_a_partial_record_and_says_where() {
    for pipe in [false, true] {
        for len in [1, 15, 17, 1000] {
            let plan = Plan { block_bytes: 64, parts: 1, pipe };
            let error = transform(&Aes128Ecb::default(), &vec![0; len], plan).unwrap_err();
            assert_eq!(error.offset, Some(len as u64 / 16 * 16), "{error}");
            assert!(
                error.to_string().contains(&format!("{} bytes instead of 16", len % 16)),
                "{error}"
            );
        }
        let plan = Plan { block_bytes: 64, parts: 1, pipe };
        assert_eq!(transform(&Aes128Ecb::default(), &[], plan), Ok(vec![]));
    }
    // A file is refused before anything is written.
    assert_eq!(open(&Aes128Ecb::default(), &[0; 33]).unwrap_err().offset, Some(32));
}

#[test]
fn keys_do_not_show() {
    let kernel = Aes256Ctr::new(&Key256::new([0xab; 32]), Iv128(0xcd));
    assert_eq!(format!("{kernel:?}"), "Aes256Ctr(..)");
    let shown = format!("{:?}", Aes128Ecb::new([0xab; 16]));
    assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
}

/// The counter mode as the standard puts it, one block after the other.
fn plain_ctr(key: &[u8; 32], iv: u128, data: &[u8]) -> Vec<u8> {
    let cipher = aes::Aes256::new(key.into());
    let blocks = data.chunks(16).enumerate().flat_map(|(i, chunk)| {
        let mut block = iv.wrapping_add(i as u128).to_be_bytes().into();
        cipher.encrypt_block(&mut block);
        chunk.iter().zip(block).map(|(byte, key)| byte ^ key).collect::<Vec<_>>()
    });
    blocks.collect()
}

/// Counters near each kind of carry, where a batch must not lose one.
fn ivs() -> impl Strategy<Value = u128> {
    let near = |at: u128| (0..200_u128).prop_map(move |back| at.wrapping_sub(back));
    prop_oneof![any::<u128>(), near(0), near(1 << 64), near(1 << 32), near(0x1234_5600)]
}

fn plans() -> impl Strategy<Value = Plan> {
    (1_usize..5000, 1_usize..5, any::<bool>()).prop_map(|(block_bytes, parts, pipe)| Plan {
        block_bytes,
        parts,
        pipe,
    })
}

proptest! {
    #[test]
    fn ctr_equals_one_block_at_a_time(
        key in any::<[u8; 32]>(), iv in ivs(), data in prop::collection::vec(any::<u8>(), 0..10_000), plan in plans()
    ) {
        let kernel = Aes256Ctr::new(&Key256::new(key), Iv128(iv));
        prop_assert_eq!(transform(&kernel, &data, plan).unwrap(), plain_ctr(&key, iv, &data));
    }

    #[test]
    fn ecb_equals_one_record_at_a_time(
        key in any::<[u8; 16]>(), records in prop::collection::vec(any::<[u8; 16]>(), 0..300), plan in plans()
    ) {
        let cipher = aes::Aes128::new(&key.into());
        let expected = records.iter().flat_map(|record| {
            let mut block = (*record).into();
            cipher.encrypt_block(&mut block);
            block
        });
        let found = transform(&Aes128Ecb::new(key), records.as_flattened(), plan).unwrap();
        prop_assert_eq!(found, expected.collect::<Vec<u8>>());
    }

    #[test]
    fn identity_touches_nothing(data in prop::collection::vec(any::<u8>(), 0..5000), plan in plans()) {
        prop_assert_eq!(transform(&Identity, &data, plan).unwrap(), data);
    }
}

/// What `openssl enc` makes of the data, or why it cannot be asked.
fn openssl(key: &str, iv: &str, data: &[u8]) -> Result<Vec<u8>, String> {
    let mut child = Command::new("openssl")
        .args(["enc", "-aes-256-ctr", "-K", key, "-iv", iv])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run openssl: {error}"))?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let data = data.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&data));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    writer.join().expect("writing does not panic").map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("openssl enc: {}", output.status))
    }
}

#[test]
fn ctr_equals_openssl() {
    let data: Vec<u8> = (0..100_003_u64).map(|i| ((i * i) >> 5) as u8).collect();
    for iv in [
        "00000000000000000000000000000000",
        "ffffffffffffffffffffffffffffffff",
        "00000000fffffffffffffffffffffff0",
    ] {
        let expected = match openssl(KEY_256, iv, &data) {
            Ok(expected) => expected,
            Err(reason) => {
                assert!(std::env::var("CI").as_deref() != Ok("true"), "{reason}");
                println!("SKIP comparison with openssl: {reason}");
                return;
            }
        };
        let kernel =
            Aes256Ctr::new(&Key256::parse(KEY_256.as_bytes()).unwrap(), Iv128::parse(iv).unwrap());
        // Odd sizes make units start within a counter's 16 bytes.
        for block_bytes in [1 << 20, 4096, 4099, 1023, 13] {
            let found = transform(&kernel, &data, Plan::blocks_of(block_bytes)).unwrap();
            assert!(found == expected, "iv {iv}, blocks of {block_bytes} bytes");
        }
    }
}
