//! `cellway kernels`: what `run` can do.

use std::io::Write as _;

use cellway::Effect;
use cellway::kernels::{CATALOGUE, Entry, Parameter};
use cellway_bench::Format;
use clap::Args;
use serde::Serialize;

use crate::stdout::Stdout;

/// List the kernels and what each must be told
#[derive(Args, Debug)]
pub(crate) struct KernelsArgs {
    /// How the list is printed
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn kernels(args: &KernelsArgs) -> anyhow::Result<()> {
    let mut out = Stdout::lock();
    match args.format {
        Format::Json => {
            let kernels: Vec<_> = CATALOGUE.iter().map(KernelJson::from).collect();
            serde_json::to_writer_pretty(&mut out, &kernels)?;
            writeln!(out)?;
        }
        Format::Text => CATALOGUE.iter().try_for_each(|entry| write_text(&mut out, entry))?,
    }
    Ok(out.flush()?)
}

const LINE_COLUMNS: usize = 80;

fn write_text(out: &mut Stdout, entry: &Entry) -> std::io::Result<()> {
    writeln!(out, "{:<11} {}: {}", entry.name, effect(entry.effect), shape(entry.effect))?;
    write_wrapped(out, "  ", entry.about)?;
    for Parameter { name, about, required } in entry.parameters {
        let needed = if *required { " (required)" } else { "" };
        write_wrapped(out, "      ", &format!("--{name}: {about}{needed}"))?;
    }
    Ok(())
}

/// Words in lines of [`LINE_COLUMNS`], each after `indent`.
fn write_wrapped(out: &mut Stdout, indent: &str, text: &str) -> std::io::Result<()> {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && indent.len() + line.len() + 1 + word.len() > LINE_COLUMNS {
            writeln!(out, "{indent}{line}")?;
            line.clear();
        }
        line.push_str(if line.is_empty() { "" } else { " " });
        line.push_str(word);
    }
    writeln!(out, "{indent}{line}")
}

fn shape(effect: Effect) -> &'static str {
    match effect {
        Effect::Reduce => "INPUT to standard output",
        Effect::Transform | Effect::Rewrite => "INPUT to OUTPUT",
    }
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Reduce => "reduction",
        Effect::Transform => "transform",
        Effect::Rewrite => "rewrite",
    }
}

#[derive(Serialize)]
struct KernelJson {
    name: &'static str,
    about: &'static str,
    effect: &'static str,
    parameters: Vec<ParameterJson>,
}

#[derive(Serialize)]
struct ParameterJson {
    name: &'static str,
    about: &'static str,
    required: bool,
}

impl From<&Entry> for KernelJson {
    fn from(entry: &Entry) -> Self {
        let parameter =
            |p: &Parameter| ParameterJson { name: p.name, about: p.about, required: p.required };
        Self {
            name: entry.name,
            about: entry.about,
            effect: effect(entry.effect),
            parameters: entry.parameters.iter().map(parameter).collect(),
        }
    }
}
