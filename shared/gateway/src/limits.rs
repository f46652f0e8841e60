//! The gateway's limits, in one place.

/// Bytes of a close reason. The WebSocket protocol allows 125 in a control frame, two of which are the code.
pub const REASON_BYTES: usize = 123;

/// Characters of a close reason's `detail`.
pub const DETAIL_CHARS: usize = 80;

/// Bytes of a stream's name in a URL.
pub const STREAM_NAME_BYTES: usize = 128;

/// Bytes of a `where` filter, decoded.
pub const FILTER_BYTES: usize = 8 * 1024;

/// Records in one run. Runs end at multiples of this, so that readers who start apart soon share runs.
pub const RUN_RECORDS: u64 = 512;

/// Bytes of payloads in one run, about; a run has at least one record whatever its size.
pub const RUN_BYTES: usize = 512 * 1024;

/// Rows by which a log may outgrow a subscriber, by default.
pub const BACKLOG: u64 = 8192;

/// Bytes of encoded frames kept, by default.
pub const FRAME_CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes of a message that a client may send. A subscriber has nothing to say.
pub const INBOUND_BYTES: usize = 4 * 1024;
