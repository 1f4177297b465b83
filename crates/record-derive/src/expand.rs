//! What the derive makes of a struct.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Error, Field, Fields, Ident, LitStr, Path, Result, Token};

pub(crate) fn record(input: &DeriveInput) -> Result<TokenStream> {
    let fields = fields(input)?;
    check_repr(input)?;
    let Options { name, path } = Options::of(input)?;
    let ident = &input.ident;
    let idents = fields.iter().map(|field| &field.ident).collect::<Vec<_>>();
    let names = idents.iter().copied().flatten().map(plain_name).collect::<Result<Vec<_>>>()?;
    let types = fields.iter().map(|field| &field.ty).collect::<Vec<_>>();
    let ranges = idents.iter().zip(&types).map(|(field, ty)| {
        quote!({
            const __AT: usize = ::core::mem::offset_of!(#ident, #field);
            __AT..__AT + ::core::mem::size_of::<#ty>()
        })
    });
    let ranges = ranges.collect::<Vec<_>>();
    // Long names, lest they hide constants of the user's that field types tell of.
    Ok(quote! {
        const _: () = {
            use #path as __record;

            const __WEIGHT: __record::Weight =
                __record::Weight::NONE #(.with::<#types>())*.inside();
            const __FIELDS: &[__record::Field] = &[#(
                __record::Field::derived::<#types>(#names, ::core::mem::offset_of!(#ident, #idents))
            ),*];
            const __LAYOUT: __record::Layout = __record::Layout::derived(
                #name,
                ::core::mem::size_of::<#ident>(),
                ::core::mem::align_of::<#ident>(),
                __FIELDS,
                __WEIGHT,
            );

            #[automatically_derived]
            impl __record::Element for #ident {
                const TYPE: &'static __record::Type = &__record::Type::Record(__LAYOUT);
                const WEIGHT: __record::Weight = __WEIGHT;

                #[inline]
                fn put(&self, to: &mut [u8]) {
                    #(if let ::core::option::Option::Some(to) = to.get_mut(#ranges) {
                        __record::Element::put(&self.#idents, to);
                    })*
                    let _ = to;
                }

                #[inline]
                fn take(from: &[u8]) -> Self {
                    let _ = from;
                    Self {
                        #(#idents: __record::Element::take(from.get(#ranges).unwrap_or_default()),)*
                    }
                }
            }

            #[automatically_derived]
            impl __record::Record for #ident {
                const LAYOUT: &'static __record::Layout = &__LAYOUT;
            }
        };
    })
}

/// The fields of a struct that can be a record.
fn fields(input: &DeriveInput) -> Result<Vec<Field>> {
    let refuse = |what: &str| Err(Error::new_spanned(&input.ident, what));
    let Data::Struct(data) = &input.data else {
        return refuse(
            "only a struct can be a record: of an enum or a union some bytes are no value",
        );
    };
    if !input.generics.params.is_empty() || input.generics.where_clause.is_some() {
        return Err(Error::new_spanned(
            &input.generics,
            "a record has no generics: its layout is one, known before the run; \
             write a struct for each type",
        ));
    }
    match &data.fields {
        Fields::Named(fields) => Ok(fields.named.iter().cloned().collect()),
        Fields::Unit => Ok(Vec::new()),
        Fields::Unnamed(_) => {
            refuse("the fields of a record have names: write `struct S { x: .. }`")
        }
    }
}

/// Only C's rules give a layout that others can know.
fn check_repr(input: &DeriveInput) -> Result<()> {
    let mut is_c = false;
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("C") {
                is_c = true;
            } else if meta.path.is_ident("align") {
                let bytes;
                syn::parenthesized!(bytes in meta.input);
                bytes.parse::<syn::LitInt>()?;
            } else {
                return Err(
                    meta.error("a record is #[repr(C)], and may be aligned, but nothing else")
                );
            }
            Ok(())
        })?;
    }
    if is_c {
        return Ok(());
    }
    Err(Error::new_spanned(
        &input.ident,
        "a record is #[repr(C)]: without it the compiler orders the fields as it likes",
    ))
}

/// A name that other languages and paths can have.
fn plain_name(ident: &Ident) -> Result<String> {
    let name = ident.unraw().to_string();
    if name.is_ascii() {
        return Ok(name);
    }
    Err(Error::new_spanned(ident, "names in a record are of ASCII letters, digits and _"))
}

/// What `#[record(..)]` says.
struct Options {
    name: String,
    path: Path,
}

impl Options {
    fn of(input: &DeriveInput) -> Result<Options> {
        let (mut name, mut path) = (None, None);
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("record"))
        {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("name") {
                    name = Some(meta.value()?.parse::<LitStr>()?.value());
                } else if meta.path.is_ident("crate") {
                    meta.input.parse::<Token![=]>()?;
                    path = Some(meta.input.call(Path::parse_mod_style)?);
                } else {
                    return Err(meta.error("this is not known: use name = \"..\" or crate = path"));
                }
                Ok(())
            })?;
        }
        let name = name.map_or_else(|| plain_name(&input.ident), Ok)?;
        let path = path.map_or_else(|| found(&input.ident), Ok)?;
        Ok(Options { name, path })
    }
}

/// The crate among the dependencies of whoever derives.
fn found(at: &Ident) -> Result<Path> {
    for (package, inner) in [("cellway-record", ""), ("cellway", "::record")] {
        let name = match crate_name(package) {
            Ok(FoundCrate::Itself) => package.replace('-', "_"),
            Ok(FoundCrate::Name(name)) => name,
            Err(_) => continue,
        };
        return syn::parse_str(&format!("::{name}{inner}"));
    }
    let what = "neither cellway nor cellway-record is a dependency: add one, \
                or say #[record(crate = path::to::record)]";
    Err(Error::new(at.span(), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the compiler tells who wrote this.
    fn told(text: &str) -> String {
        let input = syn::parse_str(text).unwrap();
        record(&input).map_or_else(|error| error.to_string(), |_| "nothing".into())
    }

    #[test]
    fn what_cannot_be_a_record_is_told() {
        let good = "#[repr(C)] #[record(crate = a::b, name = \"c\")] struct S { x: u8 }";
        assert_eq!(told(good), "nothing");
        for (text, why) in [
            ("struct S { x: u8 }", "a record is #[repr(C)]: without it"),
            ("#[repr(transparent)] struct S { x: u8 }", "but nothing else"),
            ("#[repr(C, packed(2))] struct S { x: u8 }", "but nothing else"),
            ("#[repr(C)] enum S { A }", "only a struct can be a record"),
            ("#[repr(C)] union S { a: u8 }", "only a struct can be a record"),
            ("#[repr(C)] struct S<T> { x: T }", "no generics"),
            ("#[repr(C)] struct S<'a> { x: &'a u8 }", "no generics"),
            ("#[repr(C)] struct S(u8);", "have names"),
            ("#[repr(C)] #[record(crate = a)] struct S { ä: u8 }", "ASCII"),
            ("#[repr(C)] #[record(size = 3)] struct S { x: u8 }", "not known"),
        ] {
            assert!(told(text).contains(why), "{text}: {}", told(text));
        }
    }

    #[test]
    fn who_depends_on_neither_crate_is_told_what_to_do() {
        // This crate is such a one.
        let told = told("#[repr(C)] struct S { x: u8 }");
        assert!(told.contains("add one") && told.contains("#[record(crate ="), "{told}");
    }
}
