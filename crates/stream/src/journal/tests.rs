use proptest::prelude::*;

use super::*;

/// With an output, or over several inputs.
fn header(output: bool) -> Header {
    Header {
        kernel: "crc32c".into(),
        parameters: vec![1, 2, 3],
        inputs: match output {
            true => Inputs::One(
                InputMark { name: "in".into(), identity: (4, 5), len_bytes: 6, modified: (-7, 8) },
                9..10,
            ),
            false => {
                let (names, state) = (14, 15);
                Inputs::Many(ListMark { count: 12, bytes: 13, names, state, batches: true })
            }
        },
        block_bytes: 11,
        on_nodes: output,
        beside: b".j".into(),
        output: output.then(|| OutputMark { path: b"/out".into(), partial: b".out".into() }),
    }
}

/// Records that follow one another, with parts of the lengths given.
fn records(steps: &[(u64, usize)]) -> Vec<Record> {
    let mut units = 0;
    let record = |(sequence, (step, part_bytes)): (usize, &(u64, usize))| {
        units += step;
        let part = (0..*part_bytes).map(|i| (i * 7 + sequence) as u8).collect();
        let (output_bytes, output, inputs) = (units * 11, (3, 4), sequence as u64 / 2);
        let mark = || OutputMark { path: b"/out".into(), partial: b".out".into() };
        let unfinished = (part_bytes % 2 == 0).then(mark);
        let sequence = sequence as u64;
        Record { sequence, inputs, units, output_bytes, output, unfinished, part }
    };
    steps.iter().enumerate().map(record).collect()
}

/// A journal, and where each of its frames ends.
fn journal(header: &Header, records: &[Record]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = start(header);
    let mut ends = vec![bytes.len()];
    for record in records {
        bytes.extend(entry(record));
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn read(mut bytes: &[u8]) -> Result<Recovered, Unreadable> {
    recover(&mut bytes).unwrap()
}

/// What is to be read of `bytes` of which those before `damaged` are as written.
fn expected(
    header: &Header,
    records: &[Record],
    ends: &[usize],
    damaged: usize,
) -> Result<Recovered, Unreadable> {
    let whole = ends.iter().filter(|end| **end <= damaged).count();
    let Some(last) = whole.checked_sub(1) else { return Err(Unreadable::NoHeader) };
    Ok(Recovered {
        header: header.clone(),
        last: last.checked_sub(1).map(|record| records[record].clone()),
        whole_bytes: ends[last] as u64,
    })
}

fn steps() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0_u64..100, 0_usize..60), 0..6)
}

proptest! {
    #[test]
    fn a_journal_torn_at_any_byte_recovers_to_its_last_whole_record(
        steps in steps(), output in any::<bool>(), zeros in 0_usize..100,
    ) {
        let (header, records) = (header(output), records(&steps));
        let (bytes, ends) = journal(&header, &records);
        for len in 0..=bytes.len() {
            prop_assert_eq!(read(&bytes[..len]), expected(&header, &records, &ends, len), "{}", len);
            // A file may have got its length before its bytes.
            let mut torn = bytes[..len].to_vec();
            torn.resize(len + zeros, 0);
            if len >= MAGIC.len() && zeros > 0 {
                // Some of the record's own last bytes may be zeros too.
                let same = bytes[len..].iter().take(zeros).take_while(|byte| **byte == 0).count();
                prop_assert_eq!(read(&torn), expected(&header, &records, &ends, len + same));
            }
        }
    }

    #[test]
    fn a_changed_byte_ends_the_journal_before_its_frame(
        steps in steps(), at in any::<prop::sample::Index>(), change in 1_u8..,
    ) {
        let (header, records) = (header(true), records(&steps));
        let (mut bytes, ends) = journal(&header, &records);
        let at = MAGIC.len() + at.index(bytes.len() - MAGIC.len());
        bytes[at] ^= change;
        let before = ends.iter().rev().find(|end| **end <= at).copied().unwrap_or(0);
        prop_assert_eq!(read(&bytes), expected(&header, &records, &ends, before));
    }

    #[test]
    fn garbage_is_no_journal_and_no_crash(
        garbage in prop::collection::vec(any::<u8>(), 0..400), magic in any::<bool>(),
    ) {
        let bytes = if magic { [MAGIC, &garbage].concat() } else { garbage };
        // That a checksum fits by chance takes 2^32 cases.
        prop_assert!(read(&bytes).is_err());
    }

    /// Checksums may be right and the content another version's.
    #[test]
    fn garbage_in_a_whole_frame_is_no_crash(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = MAGIC.to_vec();
        frame(&mut bytes, |out| out.extend_from_slice(&garbage));
        let _ = read(&bytes);
        let mut bytes = start(&header(false));
        frame(&mut bytes, |out| out.extend_from_slice(&garbage));
        prop_assert_eq!(read(&bytes).unwrap().header, header(false));
    }
}

#[test]
fn what_is_no_journal_is_told_from_another_version() {
    assert_eq!(read(b"some text"), Err(Unreadable::NoJournal));
    assert_eq!(read(b"cellway journal 2\nxyz"), Err(Unreadable::Version));
    for len in 0..MAGIC.len() {
        assert_eq!(read(&MAGIC[..len]), Err(Unreadable::NoHeader));
    }
}

/// A record of an older journal in the same place on the disk is not taken up.
#[test]
fn records_out_of_order_are_left() {
    let records = records(&[(1, 1), (1, 1), (1, 1)]);
    let (mut bytes, ends) = journal(&header(false), &records[..1]);
    bytes.extend(entry(&records[2]));
    assert_eq!(read(&bytes), expected(&header(false), &records, &ends, ends[1]));
    let back = Record { inputs: 0, units: 0, ..records[1].clone() };
    bytes.truncate(ends[1]);
    bytes.extend(entry(&back));
    assert_eq!(read(&bytes), expected(&header(false), &records, &ends, ends[1]));
}

/// The format is a promise to journals on disks.
#[test]
fn the_format_stays() {
    let bytes = entry(&Record {
        sequence: 1,
        inputs: 7,
        units: 2,
        output_bytes: 3,
        output: (4, 5),
        unfinished: Some(OutputMark { path: vec![8], partial: vec![9] }),
        part: vec![6],
    });
    assert_eq!(
        bytes[4..],
        [
            &[67, 0, 0, 0][..],
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[7, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[5, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0, 8],
            &[1, 0, 0, 0, 0, 0, 0, 0, 9],
            &[6]
        ]
        .concat()
    );
    assert_eq!(bytes[..4], checksum(&bytes[4..]).to_le_bytes());
}

/// What was recorded is not thrown away as if there had been nothing.
#[test]
fn a_damaged_header_is_told_from_a_torn_one() {
    let (header, records) = (header(true), records(&[(3, 4), (5, 6)]));
    let (bytes, ends) = journal(&header, &records);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let torn = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = Journal::open(&path).unwrap_err();
        assert_eq!(error.kind(), JournalErrorKind::Unreadable, "{error}");
        (file::is_torn(&path), error.to_string())
    };
    for at in MAGIC.len() + FRAME_HEAD_BYTES..ends[0] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        let (is_torn, error) = torn(&bytes);
        assert!(!is_torn && error.contains("its header is damaged"), "{at}: {error}");
        let (is_torn, error) = torn(&bytes[..ends[0]]);
        assert!(is_torn && error.contains("nothing was done yet"), "{at}: {error}");
    }
    for len in 0..ends[0] {
        assert!(torn(&bytes[..len]).0, "{len}");
    }
}
