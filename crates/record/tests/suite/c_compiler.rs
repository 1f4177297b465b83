//! Layouts against a C compiler's.

use std::fmt::Write as _;
use std::process::Command;

use cellway_record::{Layout, Scalar, Type};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::model::{Model, field, record};

/// C's names for our types (thesis, Table 4.1), in two spellings.
fn c_name(scalar: Scalar, other: bool) -> &'static str {
    match (scalar, other) {
        (Scalar::I8, _) => "signed char",
        (Scalar::I16, _) => "short",
        (Scalar::I32, _) => "int",
        (Scalar::I64, false) => "long",
        (Scalar::I64, true) => "long long",
        (Scalar::U8, _) => "unsigned char",
        (Scalar::U16, _) => "unsigned short",
        (Scalar::U32, false) => "unsigned",
        (Scalar::U32, true) => "unsigned int",
        (Scalar::U64, false) => "unsigned long",
        (Scalar::U64, true) => "unsigned long long",
        (Scalar::F32, _) => "float",
        (Scalar::F64, _) => "double",
        (Scalar::Char, _) => "char",
    }
}

#[test]
fn the_names_of_c_are_known() {
    for scalar in Scalar::ALL {
        assert_eq!(scalar.name().parse(), Ok(scalar));
        for other in [false, true] {
            assert_eq!(c_name(scalar, other).parse(), Ok(scalar));
        }
    }
    assert_eq!("byte".parse(), Ok(Scalar::U8));
    assert!("size_t".parse::<Scalar>().unwrap_err().to_string().contains("\"size_t\""));
}

/// A C program that says what its compiler makes of records.
#[derive(Default)]
struct Program {
    types: String,
    says: String,
    records: usize,
}

impl Program {
    /// Declares a record, and those in it before; its name.
    fn declare(&mut self, record: &Model) -> String {
        let Model::Record(fields) = record else { panic!("{record:?} is no record") };
        let mut body = String::new();
        for (number, ty) in fields.iter().enumerate() {
            let (mut element, mut counts) = (ty, String::new());
            while let Model::Array(inner, count) = element {
                write!(counts, "[{count}]").unwrap();
                element = inner;
            }
            let name = match element {
                Model::Scalar(scalar) => c_name(*scalar, number % 2 == 0).into(),
                _ => self.declare(element),
            };
            writeln!(body, "    {name} {}{counts};", field(number)).unwrap();
        }
        self.records += 1;
        let name = format!("struct r{}", self.records);
        writeln!(self.types, "{name} {{\n{body}}};").unwrap();
        let say = |what: &str| format!("    printf(\"%zu \", {what});\n");
        self.says += &say(&format!("sizeof({name})"));
        self.says += &say(&format!("_Alignof({name})"));
        for number in 0..fields.len() {
            self.says += &say(&format!("offsetof({name}, {})", field(number)));
        }
        name
    }

    fn run(&self) -> std::io::Result<Vec<usize>> {
        let dir = tempfile::tempdir()?;
        let (source, program) = (dir.path().join("layouts.c"), dir.path().join("layouts"));
        let headers = "#include <stddef.h>\n#include <stdio.h>\n";
        let text = format!("{headers}{}int main(void) {{\n{}}}\n", self.types, self.says);
        std::fs::write(&source, &text)?;
        let status =
            Command::new("cc").arg("-std=c11").arg("-o").arg(&program).arg(&source).status()?;
        assert!(status.success(), "cc refuses {text}");
        let output = Command::new(&program).output()?;
        let text = String::from_utf8(output.stdout).unwrap();
        Ok(text.split_whitespace().map(|number| number.parse().unwrap()).collect())
    }
}

/// What the program says of a layout, in the order in which it is declared.
fn told(layout: &Layout, numbers: &mut Vec<usize>) {
    for field in layout.fields() {
        let mut ty = field.ty();
        while let Type::Array(array) = ty {
            ty = array.element();
        }
        if let Type::Record(inner) = ty {
            told(inner, numbers);
        }
    }
    numbers.extend([layout.size_bytes(), layout.align_bytes()]);
    numbers.extend(layout.fields().iter().map(|field| field.offset_bytes()));
}

#[test]
fn offsets_are_those_of_a_c_compiler() {
    if let Err(error) = Command::new("cc").arg("--version").output() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "comparison with cc: {error}");
        println!("SKIP comparison with cc: {error}");
        return;
    }
    let config = Config { cases: 4, max_shrink_iters: 40, ..Config::default() };
    proptest!(config, |(records in prop::collection::vec(record(), 100))| {
        let (mut program, mut numbers) = (Program::default(), Vec::new());
        for record in &records {
            program.declare(record);
            told(&record.layout().unwrap(), &mut numbers);
        }
        prop_assert_eq!(program.run().unwrap(), numbers);
    });
}
