use super::*;

#[test]
fn both_entropies_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    // Two values, equally often, in a file of several blocks.
    let bytes: Vec<u8> = [b'a', b'b'].repeat(600_000);
    std::fs::write(&path, &bytes).unwrap();
    let (whole, sampled) = entropies(&path).unwrap();
    assert_eq!((whole, sampled), (1.0, 1.0));
    // All values: a record cannot show them all, many records do.
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    std::fs::write(&path, &bytes).unwrap();
    let (whole, sampled) = entropies(&path).unwrap();
    assert_eq!(whole, 8.0);
    assert!((7.9..8.0).contains(&sampled), "{sampled}");
}

#[test]
fn records_come_from_the_file() {
    let bytes: Vec<u8> = (0u32..50_000).flat_map(u32::to_le_bytes).collect();
    let mut sample = vec![0; 100 * RECORD_BYTES];
    gather(&Region::memory(&bytes), &mut sample).unwrap();
    let mut places = Vec::new();
    for record in sample.chunks(RECORD_BYTES) {
        let place = bytes.windows(RECORD_BYTES).position(|window| window == record);
        places.push(place.expect("each record is a piece of the file"));
    }
    places.sort_unstable();
    places.dedup();
    let (first, last) = (places[0], places[places.len() - 1]);
    assert!(first < bytes.len() / 4 && last > bytes.len() / 4 * 3, "{first} to {last}");
    assert!(places.len() > 90, "only {} different places", places.len());
}

#[test]
fn a_tiny_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, [1; RECORD_BYTES - 1]).unwrap();
    assert!(entropies(&path).unwrap_err().to_string().contains("smaller than a record"));
    std::fs::write(&path, [1; RECORD_BYTES]).unwrap();
    assert_eq!(entropies(&path).unwrap(), (0.0, 0.0));
}
