//! A plain reference: random types, and what C makes of them, byte by byte.

use cellway_record::{Layout, RecordError, Scalar, Type};
use proptest::prelude::*;

/// A type as C declares it.
#[derive(Clone, Debug)]
pub(crate) enum Model {
    Scalar(Scalar),
    Array(Box<Model>, usize),
    Record(Vec<Model>),
}

/// A number or a character somewhere in a record.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) path: String,
    pub(crate) at: usize,
    pub(crate) scalar: Scalar,
}

pub(crate) fn scalar() -> impl Strategy<Value = Scalar> {
    prop::sample::select(&Scalar::ALL[..])
}

/// A record with fields of all kinds, some levels deep.
pub(crate) fn record() -> impl Strategy<Value = Model> {
    let ty = scalar().prop_map(Model::Scalar).prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            (inner.clone(), 1..4_usize).prop_map(|(ty, n)| Model::Array(Box::new(ty), n)),
            prop::collection::vec(inner, 1..5).prop_map(Model::Record),
        ]
    });
    prop::collection::vec(ty, 1..7).prop_map(Model::Record)
}

/// The name of a record's field.
pub(crate) fn field(number: usize) -> String {
    format!("f{number}")
}

impl Model {
    pub(crate) fn align(&self) -> usize {
        match self {
            Model::Scalar(scalar) => scalar.size_bytes(),
            Model::Array(ty, _) => ty.align(),
            Model::Record(fields) => fields.iter().map(Model::align).max().unwrap(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Model::Scalar(scalar) => scalar.size_bytes(),
            Model::Array(ty, count) => ty.size() * count,
            Model::Record(fields) => {
                let mut end = self.offsets().last().unwrap() + fields.last().unwrap().size();
                while !end.is_multiple_of(self.align()) {
                    end += 1;
                }
                end
            }
        }
    }

    /// Those of a record's fields.
    pub(crate) fn offsets(&self) -> Vec<usize> {
        let Model::Record(fields) = self else { panic!("{self:?} has no fields") };
        let mut end = 0_usize;
        let place = |field: &Model| {
            while !end.is_multiple_of(field.align()) {
                end += 1;
            }
            end += field.size();
            end - field.size()
        };
        fields.iter().map(place).collect()
    }

    pub(crate) fn leaves(&self) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        self.collect("", 0, &mut leaves);
        leaves
    }

    fn collect(&self, path: &str, at: usize, leaves: &mut Vec<Leaf>) {
        match self {
            Model::Scalar(scalar) => leaves.push(Leaf { path: path.into(), at, scalar: *scalar }),
            Model::Array(ty, count) => {
                (0..*count)
                    .for_each(|i| ty.collect(&format!("{path}[{i}]"), at + i * ty.size(), leaves));
            }
            Model::Record(fields) => {
                for (number, (ty, offset)) in fields.iter().zip(self.offsets()).enumerate() {
                    let dot = if path.is_empty() { "" } else { "." };
                    ty.collect(&format!("{path}{dot}{}", field(number)), at + offset, leaves);
                }
            }
        }
    }

    pub(crate) fn ty(&self) -> Result<Type, RecordError> {
        match self {
            Model::Scalar(scalar) => Ok((*scalar).into()),
            Model::Array(ty, count) => ty.ty()?.array(*count),
            Model::Record(_) => self.layout().map(Type::Record),
        }
    }

    /// The layout of a record.
    pub(crate) fn layout(&self) -> Result<Layout, RecordError> {
        let Model::Record(fields) = self else { panic!("{self:?} is no record") };
        let mut layout = Layout::record("R");
        for (number, ty) in fields.iter().enumerate() {
            layout = layout.field(field(number), ty.ty()?);
        }
        layout.build()
    }
}
