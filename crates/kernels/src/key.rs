//! Keys and initial counters as people write them down.

use std::fmt;

use stream::KernelError;

/// A 256-bit key. It does not show in `Debug` output.
#[derive(Clone)]
pub struct Key256([u8; 32]);

impl Key256 {
    /// A key of 32 raw bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads a key file's content: 64 hexadecimal digits and perhaps a line
    /// end, or 32 raw bytes.
    ///
    /// # Errors
    /// Anything else; the message gives the length found, never the key.
    pub fn parse(content: &[u8]) -> Result<Self, KernelError> {
        if let Ok(raw) = <[u8; 32]>::try_from(content) {
            return Ok(Self(raw));
        }
        let cure =
            "give 64 hexadecimal digits or 32 raw bytes, for example from `openssl rand -hex 32`";
        parse_hex(without_line_end(content)).map(Self).map_err(|found| {
            KernelError::new(format!("the key is {found}, not 64 hexadecimal digits"), cure)
        })
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key256(..)")
    }
}

/// The counter of the first 16 bytes in counter mode: a big-endian 128-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iv128(pub u128);

impl Iv128 {
    /// Reads 32 hexadecimal digits and perhaps a line end.
    ///
    /// # Errors
    /// Anything else; the message gives the length found.
    pub fn parse(text: &str) -> Result<Self, KernelError> {
        match parse_hex(without_line_end(text.as_bytes())) {
            Ok(bytes) => Ok(Self(u128::from_be_bytes(bytes))),
            Err(found) => Err(KernelError::new(
                format!("the iv is {found}, not 32 hexadecimal digits"),
                "give 32 hexadecimal digits, for example from `openssl rand -hex 16`",
            )),
        }
    }
}

fn without_line_end(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

/// The bytes that exactly `2 * N` digits stand for, or what was found instead.
fn parse_hex<const N: usize>(digits: &[u8]) -> Result<[u8; N], String> {
    if digits.len() != 2 * N {
        return Err(format!("{} bytes long", digits.len()));
    }
    let mut bytes = [0; N];
    for (at, (byte, pair)) in bytes.iter_mut().zip(digits.chunks_exact(2)).enumerate() {
        match (char::from(pair[0]).to_digit(16), char::from(pair[1]).to_digit(16)) {
            (Some(high), Some(low)) => *byte = (high * 16 + low) as u8,
            (None, _) => return Err(not_a_digit(digits.len(), 2 * at)),
            (_, None) => return Err(not_a_digit(digits.len(), 2 * at + 1)),
        }
    }
    Ok(bytes)
}

fn not_a_digit(len_bytes: usize, at: usize) -> String {
    format!(
        "{len_bytes} bytes long with something else than a hexadecimal digit at position {}",
        at + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

    #[test]
    fn a_key_is_64_digits_or_32_bytes() {
        let raw: [u8; 32] = std::array::from_fn(|i| i as u8);
        for content in [HEX.to_owned(), format!("{HEX}\n"), format!("{HEX}\r\n")] {
            assert_eq!(Key256::parse(content.as_bytes()).unwrap().bytes(), &raw);
        }
        assert_eq!(Key256::parse(&raw).unwrap().bytes(), &raw);
    }

    #[test]
    fn a_wrong_key_names_its_length_and_the_cure_but_not_the_key() {
        for (content, found) in [
            (&HEX.as_bytes()[..62], "62 bytes"),
            (b"".as_slice(), "0 bytes"),
            (&[7; 31], "31 bytes"),
            (&[7; 33], "33 bytes"),
        ] {
            let message = Key256::parse(content).unwrap_err().to_string();
            assert!(
                message.contains(found) && message.contains("openssl rand -hex 32"),
                "{message}"
            );
        }
        let mut digits = HEX.as_bytes().to_vec();
        digits[5] = b'g';
        let message = Key256::parse(&digits).unwrap_err().to_string();
        assert!(message.contains("position 6") && !message.contains("0001"), "{message}");
    }

    #[test]
    fn a_key_does_not_show() {
        assert_eq!(format!("{:?}", Key256::new([0xab; 32])), "Key256(..)");
    }

    #[test]
    fn an_iv_is_32_digits() {
        assert_eq!(Iv128::parse("000000000000000000000000000001ff").unwrap(), Iv128(0x1ff));
        let message = Iv128::parse("01ff").unwrap_err().to_string();
        assert!(
            message.contains("4 bytes") && message.contains("32 hexadecimal digits"),
            "{message}"
        );
        assert!(Iv128::parse(&"é".repeat(16)).is_err());
    }
}
