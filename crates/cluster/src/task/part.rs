//! Parts of a kernel that the manager does not know by its type.

use std::any::Any;

use stream::Kernel;

/// The result of a lease where it is merged: a kernel's part.
pub type Part = Box<dyn Any + Send>;

pub(super) fn own<K: Kernel<Part: 'static>>(part: Part) -> Result<K::Part, String> {
    let own = part.downcast().map(|part| *part);
    own.map_err(|_| foreign())
}

fn foreign() -> String {
    "a part is of another kernel; this is a bug in Cellway".to_owned()
}

pub(super) fn load<K: Kernel<Part: 'static>>(
    kernel: &K,
    name: &str,
    saved: &[u8],
) -> Result<Part, String> {
    let loaded = kernel.load(saved, 1);
    Ok(Box::new(loaded.map_err(|error| format!("{name}: {error}"))?))
}

pub(super) fn save<K: Kernel<Part: 'static>>(
    kernel: &K,
    name: &str,
    part: &Part,
) -> Result<Vec<u8>, String> {
    let part = part.downcast_ref().ok_or_else(foreign)?;
    let mut saved = Vec::new();
    kernel.save(part, &mut saved).map_err(|error| format!("{name}: {error}"))?;
    Ok(saved)
}

pub(super) fn merge<K: Kernel<Part: 'static>>(
    kernel: &K,
    name: &str,
    part: Part,
    later: Part,
) -> Result<Part, String> {
    let (mut part, later) = (own::<K>(part)?, own::<K>(later)?);
    kernel.merge(&mut part, later).map_err(|error| format!("{name}: {error}"))?;
    Ok(Box::new(part))
}

pub(super) fn merge_saved<K: Kernel<Part: 'static>>(
    kernel: &K,
    name: &str,
    part: Part,
    later: &[u8],
) -> Result<Part, String> {
    let mut part = own::<K>(part)?;
    kernel.merge_saved(&mut part, later).map_err(|error| format!("{name}: {error}"))?;
    Ok(Box::new(part))
}
