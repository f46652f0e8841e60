//! On which terms a stream is served: what its declaration says, as far as the wire shows it.

use std::sync::Arc;

use serde_json::value::RawValue;
use tidewheel_schema::Schema;

use crate::{Settings, limits};

/// The terms of a stream.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The columns; `None`: any row.
    pub schema: Option<Arc<Schema>>,
    /// Rows are kept. Otherwise they go to whoever follows at the moment, and have no offsets.
    pub log: bool,
    /// Rows of several messages may share a commit.
    pub group_commit: bool,
    /// Publishers may have ids, under which every row lands once.
    pub exactly_once: bool,
    /// Rows that a subscriber may ask to have replayed; `None` is unbounded.
    pub max_replay: Option<u64>,
    /// Rows by which the log may outgrow a subscriber.
    pub max_backlog: u64,
    /// Bytes of one message of a publisher.
    pub max_message_bytes: usize,
    /// Where the stream's table says of itself where it is: the plain file and the hint, if tables are published.
    pub metadata: Option<(String, String)>,
}

impl Terms {
    /// Of a stream that was never declared: any row, kept, on the gateway's own settings. Its table is published in
    /// another layout than the protocol's readers open, so they are told of none.
    pub fn undeclared(settings: &Settings) -> Self {
        Self {
            schema: None,
            log: true,
            group_commit: true,
            exactly_once: false,
            max_replay: settings.max_replay,
            max_backlog: settings.max_backlog,
            max_message_bytes: limits::MESSAGE_MAX_BYTES,
            metadata: None,
        }
    }

    /// The schema's text, as clients are told of it.
    pub(crate) fn schema_text(&self) -> Option<Box<RawValue>> {
        // A schema's text is JSON.
        self.schema.as_ref().and_then(|schema| RawValue::from_string(schema.to_text()).ok())
    }
}
