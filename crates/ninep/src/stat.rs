//! What is known of a file.

use crate::bytes::{Malformed, Reader, Writer};

/// A server's number for a file: two with the same path are the same file, two
/// with the same version too have the same contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qid {
    /// [`kind`](crate::kind), shifted down by 24.
    pub kind: u8,
    /// Changes with the file; 0 where nobody counts.
    pub version: u32,
    /// Never used again for another file.
    pub path: u64,
}

/// A directory's entry, and what is asked of a file or told it by wstat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'m> {
    /// For the server's kernel.
    pub kernel_type: u16,
    /// For the server's kernel.
    pub kernel_dev: u32,
    /// Which file.
    pub qid: Qid,
    /// [`kind`](crate::kind) and permission bits.
    pub mode: u32,
    /// Last read, in seconds since 1970.
    pub atime: u32,
    /// Last written, in seconds since 1970.
    pub mtime: u32,
    /// Length in bytes; of a directory 0.
    pub length: u64,
    /// Last part of its path.
    pub name: &'m str,
    /// Who owns it.
    pub uid: &'m str,
    /// Which group may do what the mode says.
    pub gid: &'m str,
    /// Who wrote to it last.
    pub muid: &'m str,
}

/// Bytes of the fields before the strings, but for the length.
const FIXED_BYTES: usize = 2 + 4 + 13 + 4 + 4 + 4 + 8;

impl<'m> Stat<'m> {
    /// What leaves a file as it is: in a wstat these values are not for writing.
    pub const DONT_TOUCH: Stat<'static> = Stat {
        kernel_type: u16::MAX,
        kernel_dev: u32::MAX,
        qid: Qid { kind: u8::MAX, version: u32::MAX, path: u64::MAX },
        mode: u32::MAX,
        atime: u32::MAX,
        mtime: u32::MAX,
        length: u64::MAX,
        name: "",
        uid: "",
        gid: "",
        muid: "",
    };

    /// Its length as bytes, the length's own two included.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let texts = [self.name, self.uid, self.gid, self.muid];
        2 + FIXED_BYTES + texts.iter().map(|text| 2 + text.len()).sum::<usize>()
    }

    /// Appends it, as a directory's entry.
    ///
    /// # Errors
    /// Strings that are too long; what was appended then is to be thrown away.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let len = self.encoded_bytes() - 2;
        let told = u16::try_from(len).map_err(|_| Malformed::Field(len))?;
        // Grown bit by bit it would take three times as much.
        out.reserve(2 + len);
        let mut out = Writer(out);
        out.u16(told);
        out.u16(self.kernel_type);
        out.u32(self.kernel_dev);
        out.qid(self.qid);
        out.u32(self.mode);
        out.u32(self.atime);
        out.u32(self.mtime);
        out.u64(self.length);
        [self.name, self.uid, self.gid, self.muid].into_iter().try_for_each(|text| out.text(text))
    }

    /// Takes the first entry off what was read of a directory.
    ///
    /// # Errors
    /// Bytes that are no entry.
    pub fn decode(entries: &mut &'m [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(entries);
        let stat = Self::read(&mut reader)?;
        *entries = reader.0;
        Ok(stat)
    }

    pub(crate) fn read(from: &mut Reader<'m>) -> Result<Self, Malformed> {
        let len = from.u16()?;
        let mut from = Reader(from.bytes(len.into())?);
        let stat = Self {
            kernel_type: from.u16()?,
            kernel_dev: from.u32()?,
            qid: from.qid()?,
            mode: from.u32()?,
            atime: from.u32()?,
            mtime: from.u32()?,
            length: from.u64()?,
            name: from.text()?,
            uid: from.text()?,
            gid: from.text()?,
            muid: from.text()?,
        };
        from.end()?;
        Ok(stat)
    }
}
