//! The first frame on a connection.

use serde::Serialize;
use serde_json::value::RawValue;

/// The protocol's version that this greeting is of.
const VERSION: u32 = 4;

/// A greeting for a subscriber. The order of its fields is the order on the wire; offsets are wire offsets.
#[derive(Serialize)]
pub(crate) struct Greeting<'a> {
    streamcast: u32,
    stream: &'a str,
    end_offset: u64,
    replay: Option<[u64; 2]>,
    durable: bool,
    group_commit: bool,
    schema: Option<&'a RawValue>,
    metadata: Option<&'a str>,
    metadata_hint: Option<&'a str>,
    stream_id: &'a str,
    #[serde(rename = "where")]
    filter: Option<&'a RawValue>,
}

impl<'a> Greeting<'a> {
    /// Of a stream without a declared schema, whose table is published in another layout than the protocol's readers
    /// open: they are told of none.
    pub(crate) fn undeclared(
        stream: &'a str,
        stream_id: &'a str,
        end_offset: u64,
        replay: Option<[u64; 2]>,
        filter: Option<&'a RawValue>,
    ) -> Self {
        Self {
            streamcast: VERSION,
            stream,
            end_offset,
            replay,
            durable: true,
            group_commit: true,
            schema: None,
            metadata: None,
            metadata_hint: None,
            stream_id,
            filter,
        }
    }
}
