//! The WebSocket protocol as a state machine without sockets: who may follow what, from where, in which frames, and who
//! may publish.
//!
//! A subscription is a position in one partition's log. Replayed and live rows come off the same log by the same
//! reads, so there is no seam between them: a [`Connection`] says which offset it wants next, and a [`Run`] of encoded
//! frames answers. A run is encoded once for everybody who wants it ([`Gateway::rows`]).
//!
//! What drives it (a local socket) calls [`Gateway::connect`] and sends the greeting. For a subscriber it then repeats:
//! fetch the run at the connection's position, send [`Connection::on_rows`], report how far the log has grown with
//! [`Connection::on_tail`]. Whatever returns a [`Close`] ends the connection with that code and reason.
//!
//! A publisher's messages go to its [`Session`], which says which frames to commit, in which order they are answered
//! ([`Publisher`]), and when the connection ends. A stream without a log passes rows on in this process and keeps none.
//!
//! Where the sockets are the managed gateway's and no process stays, [`live`] does the same with items in the store.
//!
//! Never here: sockets, timers, clocks, and any state that outlives a connection but for the frame cache, which may be
//! dropped at any time, and what the process counts.
//!
//! Offsets on this wire start at 1, where the engine's start at 0; only what reads a request and writes a frame, an answer
//! or a close knows it.

mod activity;
mod claims;
mod close;
mod connection;
mod declared;
mod filter;
mod frame;
mod gateway;
mod greeting;
pub mod limits;
pub mod live;
mod message;
mod publisher;
mod relay;
mod request;
mod run;
mod session;
mod stats;
mod terms;

pub use crate::{
    activity::Following,
    close::Close,
    connection::{Accepted, Connection, Inbound, Log},
    filter::Filter,
    frame::Frame,
    gateway::{Counters, Feed, Gateway, Opened, Subscriber},
    message::text_messages,
    publisher::{Outcome, Publisher},
    request::{Publish, Request, Start, Subscribe},
    run::{Frames, Run},
    session::{Notice, Session, Target},
    stats::{Stats, StreamStats},
    terms::Terms,
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
    /// Where the tables are published, as a URI; `None`: nowhere that a client could read.
    pub tables_uri: Option<String>,
    /// Tell who asks for a stream that is not there which there are, if they are few. Not where names are secret.
    pub name_streams: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_replay: None,
            max_backlog: limits::BACKLOG,
            frame_cache_bytes: limits::FRAME_CACHE_BYTES,
            tables_uri: None,
            name_streams: true,
        }
    }
}
