//! Declared schemas: JSON Schema in, columns out, and rows checked against them.
//!
//! A row of a declared stream is read once, when it comes in, and written back in its columns' types and order. What is
//! stored is that text, so a live row, a replayed one and the table's are the same value.
//!
//! This crate knows no streams, no store and no Arrow: what a column is in a file is said where the files are written.

mod fast;
mod json;
mod layout;
pub mod limits;
mod row;
mod schema;

pub use crate::{
    layout::{MetadataUris, metadata_uris},
    row::{Cell, Row, RowError},
    schema::{Column, Encoding, Kind, RESERVED, Schema, SchemaError},
};
