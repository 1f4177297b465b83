//! Programs that must not compile, each after its like that does: what differs
//! is what is wrong. Only documentation tests see this module.

/// The compiler may order the fields of other structs as it likes.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair { x: u8, y: f64 }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// struct Pair { x: u8, y: f64 }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C, packed)]
/// struct Pair { x: u8, y: f64 }
/// ```
pub struct WithoutC;

/// A layout is one, known before the run.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair { x: f64, y: f64 }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair<T> { x: T, y: T }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair<const N: usize> { x: [f64; N], y: f64 }
/// ```
pub struct Generic;

/// Of an enum or a union some bytes are no value.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Kind { number: u32 }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// enum Kind { One, Two }
/// ```
/// ```compile_fail
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// union Kind { number: u32, float: f32 }
/// ```
pub struct NoStruct;

/// Nor is every byte a `bool` or a `char`; `usize` is not the same everywhere,
/// and an address is one here only.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [u64; 2] }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [bool; 2] }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: char }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: usize }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: &'static u64 }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: *const u64 }
/// ```
pub struct FieldTypes;

/// What is beyond a limit is found by the compiler.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [u64; 1 << 20] }
/// ```
/// ```compile_fail,E0080
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [u64; 0] }
/// ```
/// ```compile_fail,E0080
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [u64; 1 << 40] }
/// ```
/// ```compile_fail,E0080
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Field { field: [[[[[[[[[[[[[[[[u8; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1]; 1] }
/// ```
pub struct BeyondLimits;

/// Records are copied.
///
/// ```
/// #[derive(Clone, Copy, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair { x: u8, y: f64 }
/// ```
/// ```compile_fail,E0277
/// #[derive(Clone, cellway_record::Record)]
/// #[repr(C)]
/// struct Pair { x: u8, y: f64 }
/// ```
pub struct NotCopy;
