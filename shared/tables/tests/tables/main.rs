//! Behaviour of tables, on a source of records that is a list in memory, and on files in memory or in a bucket.

mod bucket;
mod clean;
mod columns;
mod compact;
mod crash;
mod engine;
mod fake;
mod generations;
mod ingest;
mod maintain;
mod rows;
mod seal;
