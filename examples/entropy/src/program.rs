//! A program: it issues its own transfers, where the next address is random.

use std::error::Error;

use cellway::accel::{Config, Cx, Place, Region, Tag, run};

pub(crate) const RECORD_BYTES: usize = 64;

/// Gathers records from random places of `from`, as many as `to` has room for.
pub(crate) fn gather(from: &Region<'_>, to: &mut [u8]) -> Result<(), Box<dyn Error>> {
    let to = &Region::memory_mut(to);
    for ended in run(&Config::default(), |cx, at| thread(cx, at, from, to))? {
        ended?;
    }
    Ok(())
}

/// One of many threads: while its record is on the way, others work.
async fn thread<'env>(
    cx: Cx<'env>,
    at: Place,
    from: &'env Region<'env>,
    to: &'env Region<'env>,
) -> Result<(), String> {
    let mut record = cx.alloc(RECORD_BYTES).map_err(|full| full.to_string())?;
    let (size, tag) = (RECORD_BYTES as u64, Tag::new(0));
    for number in (at.index() as u64..to.len_bytes() / size).step_by(at.count()) {
        let random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        let place = from.at(random % (from.len_bytes() - size + 1));
        record = cx.get(record, place, RECORD_BYTES, tag).await.map_err(|e| e.to_string())?;
        record = cx.put(record, to.at(number * size), tag).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}
