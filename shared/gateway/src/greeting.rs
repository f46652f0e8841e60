//! The first frame on a connection.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Terms;

/// The protocol's version that this greeting is of.
const VERSION: u32 = 4;

/// A greeting. The order of its fields is the order on the wire; offsets are wire offsets.
#[derive(Serialize)]
pub(crate) struct Greeting<'a> {
    streamcast: u32,
    stream: &'a str,
    end_offset: Option<u64>,
    replay: Option<[u64; 2]>,
    durable: bool,
    group_commit: bool,
    schema: Option<Box<RawValue>>,
    metadata: Option<&'a str>,
    metadata_hint: Option<&'a str>,
    stream_id: Option<&'a str>,
    #[serde(rename = "where")]
    filter: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    publisher: Option<Identity<'a>>,
}

/// Who an exactly-once publisher is, and how far it has come.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Identity<'a> {
    pub(crate) id: &'a str,
    pub(crate) last_seq: u64,
    pub(crate) last_offset: Option<u64>,
}

impl<'a> Greeting<'a> {
    /// On a stream's terms. A stream without a log has no offsets and no id.
    pub(crate) fn new(terms: &'a Terms, stream: &'a str, stream_id: &'a str, end: u64) -> Self {
        let metadata = terms.metadata.as_ref().filter(|_| terms.log);
        Self {
            streamcast: VERSION,
            stream,
            end_offset: terms.log.then_some(end),
            replay: None,
            durable: terms.log,
            group_commit: terms.log && terms.group_commit,
            schema: terms.schema_text(),
            metadata: metadata.map(|(plain, _)| plain.as_str()),
            metadata_hint: metadata.map(|(_, hint)| hint.as_str()),
            stream_id: terms.log.then_some(stream_id),
            filter: None,
            publisher: None,
        }
    }

    /// Of a subscription.
    pub(crate) fn following(
        mut self,
        replay: Option<[u64; 2]>,
        filter: Option<&'a RawValue>,
    ) -> Self {
        self.replay = replay;
        self.filter = filter;
        self
    }

    /// Of an exactly-once publisher.
    pub(crate) fn identified(mut self, publisher: Option<Identity<'a>>) -> Self {
        self.publisher = publisher;
        self
    }

    /// The frame's text.
    pub(crate) fn text(&self) -> Bytes {
        // Texts and numbers always have a JSON text.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}
