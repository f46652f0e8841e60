//! The gateway's limits, in one place.

use std::time::Duration;

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

/// Bytes of a message that a subscriber may send. It has nothing to say.
pub const INBOUND_BYTES: usize = 4 * 1024;

/// Bytes of a publisher's message that are read at all. What one stream takes is less, as its declaration says.
pub const PUBLISHED_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of a publisher's message to a stream that was never declared. Declared ones have the same by default.
pub const MESSAGE_MAX_BYTES: usize = 1024 * 1024;

/// Bytes of an exactly-once publisher's id.
pub const PUBLISHER_BYTES: usize = 128;

/// Messages of one publisher that may wait for their answers. Then its socket is not read.
pub const MAX_IN_FLIGHT: usize = 64;

/// Rows of one stream that may wait for the store. Then no publisher's socket is read.
pub const MAX_INBOUND_ROWS: usize = 65_536;

/// Rows of one publisher's message, and of its messages in one commit.
pub const MESSAGE_ROWS: usize = 50_000;

/// Bytes of messages that one publisher has in one commit, about.
pub const COMMIT_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of frames that a stream without a log keeps for subscribers who are behind.
pub const RELAY_BYTES: usize = 64 * 1024 * 1024;

/// Streams that `/stats` tells of.
pub const STATS_STREAMS: usize = 1_000;

/// Streams that somebody is told of who asks for one that is not there. More never fit in a close reason.
pub const SERVES_STREAMS: usize = 30;

/// Bytes of one message of the managed gateway, either way: the quota of API Gateway's WebSocket APIs ("Message payload
/// size", 128 KB). A larger one ends the connection.
pub const MESSAGE_BYTES: usize = 128 * 1024;

/// Bytes of one frame of the managed gateway, and the step in which it bills messages ("WebSocket frame size", 32 KB).
pub const FRAME_BYTES: usize = 32 * 1024;

/// How long the managed gateway keeps a connection ("Connection duration for WebSocket API", 2 hours).
pub const CONNECTION_LASTS: Duration = Duration::from_secs(2 * 3600);

/// How long after that a connection's items are kept.
pub const CONNECTION_MARGIN: Duration = Duration::from_secs(15 * 60);

/// How long after `$connect` the managed gateway may say that a connection is gone which is only not there yet.
pub const CONNECT_SETTLES: Duration = Duration::from_secs(10);

/// Bytes of the text of a native request's id.
pub const NATIVE_ID_BYTES: usize = 64;

/// Subscriptions of one native connection.
pub const SUBSCRIPTIONS: usize = 32;

/// The longest that a native subscription may let rows gather, milliseconds.
pub const WINDOW_MS: u64 = 5_000;

/// Rows of one `publish`.
pub const PUBLISH_ROWS: usize = 1_000;

/// How long a delivery, or the catching up of one subscription, is alone at it. One that lives renews it; what a dead
/// one leaves is taken over after that.
pub const LEASE: Duration = Duration::from_secs(30);

/// How long one post may take before its outcome counts as unknown.
pub const POST_WITHIN: Duration = Duration::from_secs(4);

/// Posts under way at a time, of one delivery.
pub const PARALLEL_POSTS: usize = 64;

/// Posts of one flush, about: what can be made within a lease at 30 ms each.
pub const FLUSH_POSTS: usize = 20_000;

/// Attempts at a post whose outcome is unknown, to a client that can tell repeats.
pub const POST_ATTEMPTS: u32 = 3;

const _: () = assert!(MESSAGE_ROWS <= tidewheel_engine::limits::BATCH_RECORDS);
const _: () = assert!(COMMIT_BYTES + PUBLISHED_BYTES <= tidewheel_engine::limits::SEGMENT_BYTES);
const _: () = assert!(PUBLISHED_BYTES <= tidewheel_engine::limits::PAYLOAD_BYTES);
const _: () = assert!(FRAME_BYTES < MESSAGE_BYTES);
const _: () = assert!(POST_WITHIN.as_secs() * 4 < LEASE.as_secs());
