//! Records whose layout travels with them: typed parameters, units and results
//! for kernels (Cell Connector's `createType`; thesis, section 4.4.1).
//!
//! A [`Record`] is a `#[repr(C)]` struct that derives it. That gives a [`Layout`],
//! which says at run time what the compiler knew: names, types and offsets. A
//! layout goes with the bytes ([`Records`]), so that who gets them can check it,
//! or look at them without the type, by a [`View`].
//!
//! ```
//! use cellway_record::{Record, Records};
//!
//! /// A mean of points, and of how many (thesis, figure 4.4).
//! #[derive(Clone, Copy, Debug, PartialEq, Record)]
//! #[repr(C)]
//! struct Average {
//!     id: u32,
//!     count: u32,
//!     coord: [u64; 3],
//! }
//!
//! // The manager broadcasts parameters.
//! let means = [0, 1].map(|id| Average { id, count: 0, coord: [7, 8, 9] });
//! let sent = Records::of(&means).to_bytes();
//!
//! // A node takes them, if its own record is the same, and answers with a result.
//! let means: Vec<Average> = Records::from_bytes(&sent)?.get()?;
//! let result = Records::of(&[Average { count: 2, ..means[1] }]).to_bytes();
//!
//! // A tool does not know the type.
//! let result = Records::from_bytes(&result)?;
//! let layout = "Average { id: u32 @0, count: u32 @4, coord: [u64; 3] @8 } 32 bytes";
//! assert_eq!(result.layout().to_string(), layout);
//! for average in result.views() {
//!     assert_eq!(average.to_json()?, r#"{"id":1,"count":2,"coord":[7,8,9]}"#);
//!     assert_eq!(average.get("coord[2]")?.to_string(), "9");
//! }
//!
//! // Another version of the program has another record.
//! mod old {
//!     #[derive(Clone, Copy, cellway_record::Record)]
//!     #[repr(C)]
//!     pub struct Average { id: u32, count: u64, coord: [u64; 3] }
//! }
//! let refused = result.get::<old::Average>().err().map(|error| error.what);
//! let why = "records `Average` have another layout here than there: \
//!            field `count` is u64 at 8 here and u32 at 4 there";
//! assert_eq!(refused.as_deref(), Some(why));
//! # Ok::<_, cellway_record::RecordError>(())
//! ```
//!
//! Bytes are little-endian, and converted field by field: no memory is looked at
//! as something else, so there is no unsafe code, padding is zero, and it is right
//! on any machine that aligns numbers to their size.
#![forbid(unsafe_code)]

// What the derive makes names this crate, here too.
extern crate self as cellway_record;

mod builder;
mod descriptor;
mod difference;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod json;
mod layout;
#[cfg(doctest)]
pub mod must_not_compile;
mod record;
mod records;
mod scalar;
mod view;

pub use builder::LayoutBuilder;
pub use descriptor::DESCRIPTOR_BYTES_MAX;
pub use error::{RecordError, RecordErrorKind};
pub use layout::{
    ALIGN_BYTES_MAX, Array, DEPTH_MAX, Field, Layout, NAME_BYTES_MAX, SIZE_BYTES_MAX, TYPES_MAX,
    Type,
};
pub use record::Record;
#[doc(hidden)]
pub use record::{Element, Weight};
pub use record_derive::Record;
pub use records::Records;
pub use scalar::{Char, Scalar, Value};
pub use view::{View, ViewMut};
