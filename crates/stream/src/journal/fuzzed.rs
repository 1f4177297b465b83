//! What must hold of the journal's reader whatever it reads: run by cargo-fuzz,
//! and by proptests beside it.

use super::*;

/// Takes any bytes for a journal, for frames, and for what one that is valid says.
///
/// # Panics
/// Where something does not hold.
pub fn journal(data: &[u8]) {
    // That these have a checksum which is right takes a fuzzer that knows it.
    let _ = read(data);
    let _ = read(&[MAGIC, data].concat());
    // Whole frames of other content.
    let mut bytes = MAGIC.to_vec();
    for payload in data.split(|byte| *byte == 0) {
        frame(&mut bytes, |out| out.extend_from_slice(payload));
    }
    let _ = read(&bytes);

    let header = header(data);
    let mut bytes = start(&header);
    let mut ends = vec![bytes.len()];
    let records = records(data);
    for record in &records {
        bytes.extend(entry(record));
        ends.push(bytes.len());
    }
    let last = records.last().cloned();
    let whole = Recovered { header: header.clone(), last, whole_bytes: bytes.len() as u64 };
    assert_eq!(read(&bytes), Ok(whole));
    // Torn anywhere, then with a byte changed, it is whole up to the frame before.
    let Some((&[a, b, change], _)) = data.split_first_chunk() else { return };
    let at = usize::from(u16::from_le_bytes([a, b])) % bytes.len();
    let wanted = ends.iter().filter(|end| **end <= at).count().checked_sub(1).map(|frames| {
        let last = frames.checked_sub(1).map(|record| records[record].clone());
        Recovered { header, last, whole_bytes: ends[frames] as u64 }
    });
    assert_eq!(read(&bytes[..at]).ok(), wanted);
    bytes[at] ^= change.max(1);
    assert_eq!(read(&bytes).ok(), wanted);
}

/// What is read is inside the journal, and all that counts of it.
fn read(bytes: &[u8]) -> Result<Recovered, Unreadable> {
    let read = |mut bytes: &[u8]| recover(&mut bytes).expect("memory can be read");
    let found = read(bytes);
    if let Ok(recovered) = &found {
        let whole = &bytes[..recovered.whole_bytes as usize];
        assert_eq!(read(whole).as_ref(), Ok(recovered));
    }
    found
}

fn header(data: &[u8]) -> Header {
    let number = |at: usize| {
        u64::from_le_bytes(std::array::from_fn(|i| data.get(at * 8 + i).copied().unwrap_or(0)))
    };
    let some = |part: usize| data.chunks(20).nth(part).unwrap_or_default().to_vec();
    let one = || {
        let mark = InputMark {
            name: String::from_utf8_lossy(&some(3)).into_owned(),
            identity: (number(0), number(1)),
            len_bytes: number(2),
            modified: (number(3).cast_signed(), number(4).cast_signed()),
        };
        Inputs::One(mark, number(5)..number(6))
    };
    let many = || {
        let (count, bytes, names, state) = (number(0), number(1), number(2), number(3));
        Inputs::Many(ListMark { count, bytes, names, state, batches: number(4) % 2 == 1 })
    };
    let mark = || OutputMark { path: some(4), partial: some(5) };
    Header {
        kernel: String::from_utf8_lossy(&some(1)).into_owned(),
        parameters: some(2),
        inputs: if data.len().is_multiple_of(3) { many() } else { one() },
        block_bytes: number(7),
        on_nodes: data.len() % 5 == 1,
        beside: some(6),
        output: (data.len() % 2 == 1).then(mark),
    }
}

/// Records that follow one another.
fn records(data: &[u8]) -> Vec<Record> {
    let (mut inputs, mut units) = (0, 0);
    let record = |(sequence, part): (usize, &[u8])| {
        inputs += u64::from(part[0] / 128);
        units += u64::from(part[0]);
        let output_bytes = units.wrapping_mul(u64::MAX / 7);
        let output = (sequence as u64, u64::from(part[0]) << 56);
        let path = part.to_vec();
        let unfinished = (part[0] % 2 == 1).then(|| OutputMark { path, ..OutputMark::default() });
        let (sequence, part) = (sequence as u64, part.to_vec());
        Record { sequence, inputs, units, output_bytes, output, unfinished, part }
    };
    data.chunks(30).take(8).enumerate().map(record).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_bytes_are_a_journal_or_refused(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::journal(&data);
        }
    }
}
