//! The WebSocket protocol as a state machine without sockets: who may follow what, from where, and in which frames.
//!
//! A subscription is a position in one partition's log. Replayed and live rows come off the same log by the same
//! reads, so there is no seam between them: a [`Connection`] says which offset it wants next, and a [`Run`] of encoded
//! frames answers. A run is encoded once for everybody who wants it ([`Gateway::rows`]).
//!
//! What drives it (a local socket, or a managed gateway's callbacks) parses a [`Request`], calls
//! [`Gateway::connect`], sends the greeting, and then repeats: fetch the run at the connection's position, send
//! [`Connection::on_rows`], report how far the log has grown with [`Connection::on_tail`]. Whatever returns a
//! [`Close`] ends the connection with that code and reason.
//!
//! Where the sockets are the managed gateway's and no process stays, [`live`] does the same with items in the store.
//!
//! Never here: sockets, timers, clocks, and any state that outlives a connection but for the frame cache, which may be
//! dropped at any time.
//!
//! Offsets on this wire start at 1, where the engine's start at 0; only the two modules that read a request
//! and write a frame know it.

mod close;
mod connection;
mod filter;
mod gateway;
mod greeting;
pub mod limits;
pub mod live;
mod request;
mod run;

pub use crate::{
    close::Close,
    connection::{Accepted, Connection, Inbound, Log},
    filter::Filter,
    gateway::{Counters, Gateway},
    request::{Request, Start},
    run::Run,
};

/// Settings of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows that a subscriber may ask to have replayed; `None` is unbounded.
    ///
    /// A bound sends a client that asks for more to the published table first. Clients need the stream's table
    /// metadata for that, and a stream without a declared schema has none, so the default is unbounded: the log
    /// is where such a client reads.
    pub max_replay: Option<u64>,
    /// Rows by which the log may outgrow a subscriber (see [`Connection::on_tail`]).
    pub max_backlog: u64,
    /// Bytes of encoded frames kept for others who want the same.
    pub frame_cache_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_replay: None,
            max_backlog: limits::BACKLOG,
            frame_cache_bytes: limits::FRAME_CACHE_BYTES,
        }
    }
}
