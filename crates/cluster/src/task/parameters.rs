//! Parameters that are records: their layout is among what a job is described by, so
//! that a node whose own are others can say which field differs.

use record::{Records, View};

/// Why nodes with `theirs` cannot have a part in a job with `ours`; `None` if they can.
/// Bytes that are no [`Records`] just differ.
pub(super) fn difference(kernel: &str, ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let what = match (Records::from_bytes(ours), Records::from_bytes(theirs)) {
        (Ok(ours), Ok(theirs)) => of_records(&ours, &theirs),
        _ => None,
    };
    Some(match what {
        Some((what, cure)) => {
            format!("{kernel} has other parameters at the manager: {what}; {cure}")
        }
        None => format!(
            "{kernel} has other parameters at the manager; start all with the same arguments"
        ),
    })
}

/// What differs, here being the node and there the manager, and what to do.
fn of_records(ours: &Records, theirs: &Records) -> Option<(String, &'static str)> {
    if let Some(difference) = theirs.layout().difference(ours.layout()) {
        return Some((difference, "build both from one definition of the record"));
    }
    let alike = "start all with the same arguments";
    if ours.len() != theirs.len() {
        return Some((format!("{} records here and {} there", theirs.len(), ours.len()), alike));
    }
    let mut both = theirs.views().zip(ours.views()).zip(0_usize..);
    both.find_map(|((here, there), number)| {
        theirs.layout().fields().iter().find_map(|field| {
            let value = |record: View<'_>| record.at(field.name())?.to_json();
            let (here, there) = (value(here).ok()?, value(there).ok()?);
            let name = field.name();
            let what =
                format!("field `{name}` of record {number} is {here} here and {there} there");
            (here != there).then_some((what, alike))
        })
    })
}

#[cfg(test)]
mod tests {
    use record::Record;

    use super::*;

    #[derive(Clone, Copy, Record)]
    #[repr(C)]
    struct Mean {
        id: u32,
        count: u32,
        coord: [f64; 2],
    }

    mod old {
        #[derive(Clone, Copy, record::Record)]
        #[repr(C)]
        pub(super) struct Mean {
            pub(super) id: u32,
            pub(super) count: u64,
            pub(super) coord: [f64; 2],
        }
    }

    fn told(ours: &Records, theirs: &Records) -> String {
        difference("averages", &ours.to_bytes(), &theirs.to_bytes()).unwrap()
    }

    #[test]
    fn what_differs_is_named() {
        let means = [1, 2].map(|id| Mean { id, count: 0, coord: [1.5; 2] });
        let ours = Records::of(&means);
        assert_eq!(difference("averages", &ours.to_bytes(), &ours.to_bytes()), None);
        let theirs = Records::of(&[old::Mean { id: 1, count: 0, coord: [1.5; 2] }]);
        let why = "field `count` is u64 at 8 here and u32 at 4 there; build both from one";
        assert!(told(&ours, &theirs).contains(why), "{}", told(&ours, &theirs));
        let fewer = told(&ours, &Records::of(&means[..1]));
        assert!(fewer.contains("1 records here and 2 there"), "{fewer}");
        let other = Mean { coord: [1.5, 2.5], ..means[1] };
        let moved = told(&ours, &Records::of(&[means[0], other]));
        let why = "field `coord` of record 1 is [1.5,2.5] here and [1.5,1.5] there";
        assert!(moved.contains(why), "{moved}");
        assert!(difference("count", b"a", b"b").unwrap().contains("other parameters"));
    }
}
