//! Numbers and strings as bytes.

use crate::stat::{Qid, Stat};

/// Why bytes are no message, or fields fit into none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end inside a field.
    #[error("the message ends inside a field")]
    Short,
    /// Bytes after the last field, or a length that is not theirs.
    #[error("the message is longer than its fields")]
    Long,
    /// No message has that type.
    #[error("no message has type {0}")]
    Type(u8),
    /// A string that is no UTF-8, or holds a zero byte.
    #[error("a string is not text")]
    Text,
    /// More names or qids than a walk takes.
    #[error("a walk takes 16 names, not {0}")]
    Many(u16),
    /// More bytes than a field's length can tell.
    #[error("{0} bytes are more than the field's length can tell")]
    Field(usize),
}

/// What is left of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'m>(pub(crate) &'m [u8]);

impl<'m> Reader<'m> {
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'m [u8], Malformed> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'m str, Malformed> {
        let len = self.u16()?;
        let text = std::str::from_utf8(self.bytes(len.into())?).map_err(|_| Malformed::Text)?;
        if text.contains('\0') { Err(Malformed::Text) } else { Ok(text) }
    }

    /// Bytes behind a length of four.
    pub(crate) fn data(&mut self) -> Result<&'m [u8], Malformed> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    pub(crate) fn qid(&mut self) -> Result<Qid, Malformed> {
        Ok(Qid { kind: self.u8()?, version: self.u32()?, path: self.u64()? })
    }

    /// A stat behind its length, as messages have it: twice.
    pub(crate) fn stat(&mut self) -> Result<Stat<'m>, Malformed> {
        let len = self.u16()?;
        let mut field = Reader(self.bytes(len.into())?);
        let stat = Stat::read(&mut field)?;
        field.end()?;
        Ok(stat)
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

/// Appends fields.
pub(crate) struct Writer<'b>(pub(crate) &'b mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), Malformed> {
        if text.contains('\0') {
            return Err(Malformed::Text);
        }
        self.u16(u16::try_from(text.len()).map_err(|_| Malformed::Field(text.len()))?);
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }

    pub(crate) fn data(&mut self, data: &[u8]) -> Result<(), Malformed> {
        self.u32(u32::try_from(data.len()).map_err(|_| Malformed::Field(data.len()))?);
        self.0.extend_from_slice(data);
        Ok(())
    }

    pub(crate) fn qid(&mut self, qid: Qid) {
        self.u8(qid.kind);
        self.u32(qid.version);
        self.u64(qid.path);
    }

    pub(crate) fn stat(&mut self, stat: &Stat<'_>) -> Result<(), Malformed> {
        let len = stat.encoded_bytes();
        self.u16(u16::try_from(len).map_err(|_| Malformed::Field(len))?);
        stat.encode(self.0)
    }
}
