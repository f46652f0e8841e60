//! The limits of schemas, in one place. The error that refuses names the one that was met.

/// Bytes of a declared schema's text.
pub const SCHEMA_BYTES: usize = 256 * 1024;

/// Columns of a schema, nested ones included.
pub const SCHEMA_FIELDS: usize = 2000;

/// How deep a schema's columns may be nested.
pub const SCHEMA_DEPTH: usize = 16;

/// Bytes of a column's name.
pub const COLUMN_NAME_BYTES: usize = 255;

/// Bytes of a fixed-size value.
pub const FIXED_BYTES: usize = 65_536;
