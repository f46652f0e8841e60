//! The whole stack in one process: API, sockets, scheduled sealing and maintenance, on one port and on one data folder,
//! or, for containers and as the relay, on the deployed store.
//!
//! [`Stack::start`] puts the parts together and [`Stack::stop`] takes them apart in order. Nothing is decided here
//! about streams, tables or protocols: that is the library's. What is decided here is what a machine adds: a port,
//! a folder with a lock on it, a clock that calls the sealer, signals, and logs.
//!
//! Three rules: no port is open to a network unless asked for in so many words; a failure of a scheduled task never ends
//! the server; whatever was acknowledged is in the store before it is acknowledged, so stopping is a courtesy.

mod catalogue;
mod data;
mod declarations;
mod guard;
mod ingest;
mod key_file;
pub mod keys;
mod landing;
pub mod logging;
mod operator;
pub mod options;
mod place;
mod rounds;
mod schedule;
mod signals;
mod socket;
mod stack;

pub use crate::{
    declarations::DeclareError,
    ingest::{IngestFailed, load},
    signals::stop_requested,
    stack::{Stack, StartError},
};
