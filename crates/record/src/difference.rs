//! Whether two layouts are the same, and what a user has to look at if not.

use crate::error::{RecordError, RecordErrorKind};
use crate::layout::{Field, Layout, Type};

impl Layout {
    /// The first difference between this layout, *here*, and another, *there*:
    /// "field `count` is u32 at 8 here and u64 at 8 there". `None` if they are equal.
    #[must_use]
    pub fn difference(&self, other: &Layout) -> Option<String> {
        difference(self, other, "")
    }

    /// Refuses records of a layout other than this one.
    ///
    /// # Errors
    /// If `other` differs: by name.
    pub fn expect(&self, other: &Layout) -> Result<(), RecordError> {
        let Some(difference) = self.difference(other) else { return Ok(()) };
        Err(RecordError::new(
            RecordErrorKind::Differs,
            format!("records `{}` have another layout here than there: {difference}", self.name()),
            "build both sides from one definition of the record",
        ))
    }
}

fn difference(here: &Layout, there: &Layout, path: &str) -> Option<String> {
    if here.name() != there.name() {
        return Some(format!("the record is `{}` here and `{}` there", here.name(), there.name()));
    }
    here.fields()
        .iter()
        .find_map(|field| match there.field(field.name()) {
            Some(other) => of_field(field, other, path),
            None => Some(format!("{} is only here", told(field, path))),
        })
        .or_else(|| {
            let more = there.fields().iter().find(|field| here.field(field.name()).is_none())?;
            Some(format!("{} is only there", told(more, path)))
        })
        .or_else(|| {
            let name = match path.strip_suffix('.') {
                Some(field) => format!("`{}` (field `{field}`)", here.name()),
                None => format!("`{}`", here.name()),
            };
            let number = |what, here, there| {
                (here != there)
                    .then(|| format!("{name} {what} {here} bytes here and {there} there"))
            };
            number("has", here.size_bytes(), there.size_bytes())
                .or_else(|| number("is aligned to", here.align_bytes(), there.align_bytes()))
        })
}

fn told(field: &Field, path: &str) -> String {
    format!("field `{path}{}` ({} at {})", field.name(), field.ty().short(), field.offset_bytes())
}

fn of_field(here: &Field, there: &Field, path: &str) -> Option<String> {
    let (at, other_at) = (here.offset_bytes(), there.offset_bytes());
    let (ty, other) = (here.ty().short(), there.ty().short());
    let name = format!("{path}{}", here.name());
    if at != other_at || ty != other {
        return Some(format!(
            "field `{name}` is {ty} at {at} here and {other} at {other_at} there"
        ));
    }
    in_type(here.ty(), there.ty(), name)
}

/// The difference inside types that read the same.
fn in_type(here: &Type, there: &Type, path: String) -> Option<String> {
    match (here, there) {
        (Type::Array(here), Type::Array(there)) => {
            in_type(here.element(), there.element(), path + "[]")
        }
        (Type::Record(here), Type::Record(there)) => difference(here, there, &(path + ".")),
        _ => None,
    }
}
