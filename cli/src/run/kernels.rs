//! Kernels by their names, as the command line gives them.

use std::ffi::OsStr;

use cellway::kernels::{CATALOGUE, Entry};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// The kernels that each block goes through.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    pub(super) first: Vec<&'static Entry>,
    pub(super) last: &'static Entry,
}

impl Kernels {
    pub(super) fn all(&self) -> impl Iterator<Item = &'static Entry> {
        self.first.iter().copied().chain([self.last])
    }

    /// As on the command line.
    pub(super) fn name(&self) -> String {
        self.all().map(|kernel| kernel.name).collect::<Vec<_>>().join(",")
    }
}

/// Reads kernels' names, parted by commas.
#[derive(Clone)]
pub(super) struct KernelsParser;

fn kernel_names() -> impl Iterator<Item = PossibleValue> {
    CATALOGUE.iter().map(|kernel| PossibleValue::new(kernel.name).help(kernel.about))
}

impl TypedValueParser for KernelsParser {
    type Value = Kernels;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Kernels, clap::Error> {
        let find = |name: String| CATALOGUE.iter().find(|kernel| kernel.name == name);
        let names = PossibleValuesParser::new(kernel_names());
        let one = names.try_map(move |name| find(name).ok_or("no such kernel"));
        let part = |name: &OsStr| one.parse_ref(command, argument, name);
        let (first, last) = match value.to_str().and_then(|text| text.rsplit_once(',')) {
            Some((first, last)) => (Some(first), OsStr::new(last)),
            None => (None, value),
        };
        let first = first.into_iter().flat_map(|first| first.split(',').map(OsStr::new));
        Ok(Kernels { first: first.map(part).collect::<Result<_, _>>()?, last: part(last)? })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(kernel_names()))
    }
}
