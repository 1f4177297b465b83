//! Layouts, descriptors, views and the derive, from outside.
#![forbid(unsafe_code)]

mod builder;
mod c_compiler;
mod derive;
mod descriptors;
mod model;
mod views;
