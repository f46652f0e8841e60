//! Streams as Iceberg tables.
//!
//! Every stream publishes a table: one row for each record, each exactly once, in one committed snapshot after
//! another. A stream that has declared a [`Schema`](tidewheel_schema::Schema) publishes its own columns; any other publishes the envelope and
//! the payload's text (see [`Shape`]).
//!
//! [`Tables::seal`] is the writer. Files first, under names that nobody can guess; then one conditional write of the
//! table's head, which names the metadata file that counts and the positions up to which the log is in it; then
//! `metadata/version-hint.text`, for readers that have nothing but the directory:
//!
//! ```sql
//! SELECT count(*) FROM iceberg_scan('/data/tables/orders');   -- DuckDB
//! ```
//!
//! [`Tables::compact`] makes few large files of many small ones, [`Tables::clean`] forgets old snapshots and deletes what
//! nothing names. Both write the same head on the same condition.
//!
//! [`maintain`] is what streams and tables need done beside: sealing, retention, collection, sweeps, in pieces.
//!
//! This crate knows no HTTP. It reads streams through [`Source`], which the engine is, keeps heads in the store, and
//! files in any object store. It is the only crate that depends on Arrow, Parquet and Iceberg.

mod catalogue;
mod cells;
mod clean;
mod columns;
mod commit;
mod compact;
mod data;
mod directory;
mod error;
mod files;
mod head;
mod ingest;
pub mod limits;
mod log_statistics;
mod logs;
pub mod maintain;
mod manifests;
mod positions;
mod remove;
mod scan;
mod seal;
mod shape;
mod snapshot;
mod source;
mod stream_metadata;
mod tables;
mod trim;

pub use crate::{
    catalogue::{Catalogue, CatalogueColumn, CatalogueError, Entry, Mirror, Mirrored},
    clean::Cleaned,
    columns::{ENCODING, arrow_fields},
    compact::Compacted,
    directory::directory_name,
    error::{Error, UnfitRecord},
    ingest::{IngestError, Ingested, ingest, ingest_file},
    logs::{Log, Logs},
    scan::Scan,
    seal::{Report, Sealed},
    shape::Shape,
    source::Source,
    tables::{Freshness, Location, Reach, Settings, Tables},
};
