//! Names of files, users and trees.

use crate::error::{FsError, Kind};

/// Names of files and users are no longer.
const NAME_BYTES_MAX: usize = 255;

/// Checks that `user` can be kept as whoever attached. A tree may want a name or not.
pub(crate) fn checked_user(user: &str) -> Result<(), FsError> {
    if user.is_empty() { Ok(()) } else { checked_name(user) }
}

/// Checks that `name` can be a file's, or a user's.
pub(crate) fn checked_name(name: &str) -> Result<(), FsError> {
    let is_name = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if !is_name {
        return Err(FsError::new(Kind::BadName, format!("{name:?}")));
    }
    if name.len() > NAME_BYTES_MAX {
        let what = format!("a name of {} bytes; the limit is {NAME_BYTES_MAX}", name.len());
        return Err(FsError::because(Kind::BadName, "name", what));
    }
    Ok(())
}

/// Refuses any tree but "", the only one there is.
pub(crate) fn only_tree(tree: &str) -> Result<(), FsError> {
    match tree {
        "" | "/" => Ok(()),
        _ => {
            let what = "no such tree; attach to \"\" and walk";
            Err(FsError::because(Kind::NotFound, tree, what))
        }
    }
}
