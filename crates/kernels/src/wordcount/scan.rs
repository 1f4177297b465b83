//! Finds words: maximal runs of bytes other than ASCII white space.

/// Bytes looked at together: one bit each in a mask.
const STEP_BYTES: usize = 64;

/// Space, `\t`, `\n`, `\v`, `\f` and `\r`.
pub(super) const fn is_space(byte: u8) -> bool {
    byte == b' ' || byte.wrapping_sub(b'\t') < 5
}

/// Calls `word(start, end)` for each word that starts and ends in `data`; a
/// word that only the end of `data` ends is left open and its start returned.
/// With `inside`, the first bytes of `data` belong to a word that started
/// before and are passed over.
#[inline]
pub(super) fn words<E>(
    data: &[u8],
    inside: bool,
    mut word: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<Option<usize>, E> {
    /// Stands for a start before `data`.
    const BEFORE: usize = usize::MAX;
    let mut open = inside.then_some(BEFORE);
    let mut last = u64::from(inside);
    let (steps, rest) = data.as_chunks::<STEP_BYTES>();
    let mut padded = [0; STEP_BYTES];
    padded[..rest.len()].copy_from_slice(rest);
    for (i, step) in steps.iter().chain([&padded]).enumerate() {
        let mask = word_mask(step);
        // A bit where a word starts, and one after its end.
        let mut edges = mask ^ (mask << 1 | last);
        last = mask >> (STEP_BYTES - 1);
        while edges != 0 {
            let at = i * STEP_BYTES + edges.trailing_zeros() as usize;
            edges &= edges - 1;
            match open.take() {
                None => open = Some(at),
                Some(BEFORE) => {}
                Some(start) => word(start, at)?,
            }
        }
    }
    // The padding looks like a word of its own where the data ends with space.
    Ok(open.filter(|start| *start < data.len()))
}

/// A bit per byte, set where the byte belongs to a word.
fn word_mask(step: &[u8; STEP_BYTES]) -> u64 {
    let flags = step.map(|byte| u8::from(!is_space(byte)));
    let (eights, _) = flags.as_chunks::<8>();
    let mut mask = 0;
    for (i, eight) in eights.iter().enumerate() {
        // The product gathers the lowest bit of each byte in the highest byte.
        let gathered = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= gathered << (8 * i);
    }
    mask
}
