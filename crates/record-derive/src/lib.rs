//! `#[derive(Record)]`: see the crate `cellway-record`, which exports it.
#![forbid(unsafe_code)]

mod expand;

use proc_macro::TokenStream;

/// Gives a `#[repr(C)]` struct its layout, and safe conversion from and to bytes.
///
/// Fields are numbers (`i8` to `i64`, `u8` to `u64`, `f32`, `f64`), `Char`, arrays
/// of these, other records and arrays of records. Attributes of the struct:
/// `#[record(name = "average_t")]` names the record otherwise than the struct;
/// `#[record(crate = a::path)]` says where the crate is found by whoever depends
/// neither on `cellway` nor on `cellway-record`.
#[proc_macro_derive(Record, attributes(record))]
pub fn record(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::record(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
