//! What kernels must or may be told.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cellway::fs::Files;
use cellway::kernels::{
    CATALOGUE, Count, Counted, Entry, Iv128, Key256, PairType, Parameter, Pattern, Replace,
    WordCount,
};
use cellway_bench::args::parse_bytes;
use clap::Args;

use super::names;
use crate::exit::Usage;
use crate::size::Size;

/// A key file of either form fits into this; more is not read.
const KEY_FILE_BYTES_MAX: usize = 4096;

/// So far units read past their ends, at most.
const MAX_RECORD_BYTES: u64 = 1 << 30;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Kernel parameters")]
pub(super) struct Parameters {
    #[arg(long, value_name = "FILE", help = help_with_warning(), value_parser = names::any())]
    key_file: Option<PathBuf>,
    #[arg(long, value_name = "HEX", value_parser = Iv128::parse, help = help("iv"))]
    iv: Option<Iv128>,
    #[arg(long = "type", value_name = "TYPE", help = help("type"))]
    pair_type: Option<PairType>,
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help = help_with_table_default())]
    table_bytes: Option<u64>,
    #[arg(long, value_name = "N", help = help("top"))]
    top: Option<u64>,
    #[arg(long, value_name = "REGEX", value_parser = Pattern::new, help = help("pattern"))]
    pattern: Option<Pattern>,
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help = help("with"))]
    with: Option<String>,
    #[arg(long, help = help("lines"))]
    lines: bool,
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, help = help_with_record_default())]
    max_record: Option<u64>,
}

impl Parameters {
    /// Every flag's name, and whether it was given.
    fn given(&self) -> [(&'static str, bool); 9] {
        [
            ("key-file", self.key_file.is_some()),
            ("iv", self.iv.is_some()),
            ("type", self.pair_type.is_some()),
            ("table-bytes", self.table_bytes.is_some()),
            ("top", self.top.is_some()),
            ("pattern", self.pattern.is_some()),
            ("with", self.with.is_some()),
            ("lines", self.lines),
            ("max-record", self.max_record.is_some()),
        ]
    }

    /// Whether each of `kernels` gets what it needs, and none what it does not know.
    pub(super) fn check(&self, kernels: &[&Entry]) -> Result<(), Usage> {
        for (name, given) in self.given() {
            let takes = |kernel: &&&Entry| kernel.parameters.iter().any(|p| p.name == name);
            if given && !kernels.iter().any(|kernel| takes(&kernel)) {
                return Err(superfluous(kernels, name));
            }
            let missing = |parameter: &&Parameter| parameter.name == name && parameter.required;
            let needs = kernels.iter().find_map(|k| Some((k, k.parameters.iter().find(missing)?)));
            if let (false, Some((kernel, Parameter { name, about, .. }))) = (given, needs) {
                return Err(Usage(format!("{} needs --{name}; give the {about}", kernel.name)));
            }
        }
        Ok(())
    }

    pub(super) fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// The key, from its file.
    pub(super) fn key(&self, files: &Files) -> anyhow::Result<Key256> {
        let file = required(self.key_file(), "--key-file")?;
        let (name, content) = names::read(files, file, KEY_FILE_BYTES_MAX)?;
        Key256::parse(&content).context(name)
    }

    pub(super) fn iv(&self) -> anyhow::Result<Iv128> {
        required(self.iv, "--iv")
    }

    pub(super) fn pair_type(&self) -> anyhow::Result<PairType> {
        required(self.pair_type, "--type")
    }

    pub(super) fn count(&self) -> anyhow::Result<Count> {
        let counted = if self.lines { Counted::Lines } else { Counted::Matches };
        let kernel = Count::new(required(self.pattern.clone(), "--pattern")?, counted);
        Ok(match self.max_record()? {
            Some(bytes) => kernel.record_bytes_max(bytes),
            None => kernel,
        })
    }

    pub(super) fn replace(&self) -> anyhow::Result<Replace> {
        let pattern = required(self.pattern.clone(), "--pattern")?;
        let kernel = Replace::new(pattern, required(self.with.clone(), "--with")?);
        Ok(match self.max_record()? {
            Some(bytes) => kernel.record_bytes_max(bytes),
            None => kernel,
        })
    }

    fn max_record(&self) -> Result<Option<usize>, Usage> {
        match self.max_record {
            Some(bytes) if bytes > MAX_RECORD_BYTES => {
                let most = Size(MAX_RECORD_BYTES);
                Err(Usage(format!("--max-record is larger than {most}; give less")))
            }
            bytes => Ok(bytes.map(|bytes| bytes as usize)),
        }
    }

    pub(super) fn word_count(&self) -> WordCount {
        let mut kernel = WordCount::new(std::env::temp_dir());
        if let Some(bytes) = self.table_bytes {
            kernel = kernel.table_bytes(bytes);
        }
        match self.top {
            Some(count) => kernel.top(count),
            None => kernel,
        }
    }
}

fn required<T>(value: Option<T>, name: &str) -> anyhow::Result<T> {
    Ok(value.ok_or_else(|| Usage(format!("{name} is missing; give it")))?)
}

fn superfluous(kernels: &[&Entry], name: &str) -> Usage {
    let (mut names, mut takes) = (Vec::new(), Vec::new());
    for kernel in kernels {
        names.push(kernel.name);
        for flag in kernel.parameters.iter().map(|p| format!("--{}", p.name)) {
            if !takes.contains(&flag) {
                takes.push(flag);
            }
        }
    }
    let cure = match takes.join(" and ") {
        none if none.is_empty() => "there are no parameters".to_owned(),
        takes => format!("the parameters are {takes}"),
    };
    Usage(format!("{} does not take --{name}; {cure}", names.join(",")))
}

/// A flag's help, from the catalogue.
fn help(name: &str) -> String {
    let of_kernel = |kernel: &'static Entry| {
        let parameter = kernel.parameters.iter().find(|parameter| parameter.name == name)?;
        let needed = if parameter.required { ", required" } else { "" };
        let (first, rest) = parameter.about.split_at_checked(1)?;
        Some(format!("{}{rest} [{}{needed}]", first.to_uppercase(), kernel.name))
    };
    CATALOGUE.iter().filter_map(of_kernel).collect::<Vec<_>>().join("; ")
}

fn help_with_warning() -> String {
    format!("{}; from another machine, #n/tcp!.., it comes in clear text", help("key-file"))
}

fn help_with_table_default() -> String {
    let each = Size(WordCount::TABLE_BYTES_PER_ACCELERATOR);
    format!("{} [default: {each} for each accelerator]", help("table-bytes"))
}

fn help_with_record_default() -> String {
    format!("{} [default: {}]", help("max-record"), Size(Count::RECORD_BYTES_MAX as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_and_the_flags_agree() {
        let flags = Parameters::default().given().map(|(name, _)| name);
        for kernel in CATALOGUE {
            for parameter in kernel.parameters {
                assert!(flags.contains(&parameter.name), "{} of {}", parameter.name, kernel.name);
            }
        }
        for flag in flags {
            assert!(!help(flag).is_empty(), "no kernel takes --{flag}");
        }
    }
}
