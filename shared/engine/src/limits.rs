//! The engine's limits, in one place. Every limit that a user can meet is named in the error that refuses.

use std::time::Duration;

use tidewheel_store::limits as store;

/// Bytes of a stream's, partition's or group's name.
pub const NAME_BYTES: usize = 512;

/// Bytes of a transaction id.
pub const TRANSACTION_ID_BYTES: usize = 65_535;

/// Bytes of one record's payload.
pub const PAYLOAD_BYTES: usize = 16 * 1024 * 1024;

/// Records of one push that go to one partition.
pub const BATCH_RECORDS: usize = 100_000;

/// Bytes of payloads in one segment. A push of more to one partition is refused.
pub const SEGMENT_BYTES: usize = 48 * 1024 * 1024;

/// Segment descriptors in a partition's head before they are rolled into an index page.
pub const HEAD_SEGMENTS: usize = 24;

/// Id hashes in a partition's head. A batch of more ids commits on the condition that the tail has not moved.
pub const HEAD_IDS: usize = 64;

/// Groups of one stream: a push may have to wake them all in one transaction.
pub const GROUPS: usize = 90;

/// Attempts to commit before a caller is told to come back. Each failed attempt has learnt something, so this
/// many means that the store is contended, not that we were unlucky.
pub const COMMIT_ATTEMPTS: usize = 64;

/// Messages in one pop when the caller names no number.
pub const POP_BATCH: usize = 200;

/// Messages in one pop.
pub const POP_BATCH_MAX: usize = 10_000;

/// Bytes of payloads in one pop; a pop answers at least one message whatever its size.
pub const POP_BYTES: usize = 8 * 1024 * 1024;

/// Partitions in one pop.
pub const POP_PARTITIONS_MAX: usize = 64;

/// The longest a pop waits.
pub const POP_WAIT_MAX: Duration = Duration::from_secs(60);

/// Lease of a pop on a stream that was created by a push, seconds.
pub const LEASE_SECONDS: i64 = 60;

/// Lease that a stream gets by `configure` when it names none, seconds.
pub const CONFIGURED_LEASE_SECONDS: i64 = 300;

/// The longest lease, seconds.
pub const LEASE_SECONDS_MAX: i64 = 12 * 3600;

/// Sink partitions of one cycle: the transaction also holds the cursor, the state and up to
/// [`GROUPS`] ready entries.
pub const CYCLE_SINK_PARTITIONS: usize = 24;

/// Partitions of one claim.
pub const CLAIM_PARTITIONS: usize = 100;

/// Lease of a claim that names none, seconds.
pub const CLAIM_SECONDS: i64 = 30;

/// The longest lease of a claim, seconds.
pub const CLAIM_SECONDS_MAX: i64 = 600;

/// Partitions in one page of those that hold a query's state.
pub const STATE_PARTITIONS: usize = 1000;

/// Partitions that one transaction may push to or acknowledge in.
pub const TRANSACTION_PARTITIONS: usize = 32;

/// Deltas behind a state's snapshot before they are folded into a new one.
pub const STATE_DELTAS: usize = 32;

/// Bytes of all deltas behind a snapshot, beyond which they are folded early.
pub const STATE_DELTA_BYTES: usize = 1024 * 1024;

/// Bytes of one state key.
pub const STATE_KEY_BYTES: usize = 16 * 1024;

/// Bytes of all rows of a query's state on one partition, unpacked.
pub const STATE_BYTES: usize = 48 * 1024 * 1024;

/// Bytes of one query's name.
pub const QUERY_NAME_BYTES: usize = 512;

/// Default deduplication window, seconds.
pub const DEDUP_WINDOW_SECONDS: i64 = 3600;

/// Bytes of segments kept in memory, decoded.
pub const SEGMENT_CACHE_BYTES: u64 = 256 * 1024 * 1024;

/// How old an unreachable blob must be before the collector may delete it. A writer frozen for longer finds its blob
/// refused.
pub const BLOB_GRACE: Duration = Duration::from_secs(15 * 60);

/// How long data below the floor is kept before it is deleted: readers who hold a position there finish.
pub const FLOOR_GRACE: Duration = Duration::from_secs(60);

/// How long rows below the floor of a declared stream that keeps its rows for a time are kept before they are deleted.
pub const ROW_GRACE: Duration = Duration::from_secs(3600);

/// Publishers of one stream that are exactly once.
pub const PUBLISHERS: usize = 4096;

/// Bytes of a publisher's id.
pub const PUBLISHER_BYTES: usize = 128;

/// Marks of publishers that lie in the partition's head. Those of others lie in items of their own.
pub const HEAD_MARKS: usize = 12;

/// Ranges of rows that a mark remembers, so that a repeat is answered with its offsets.
pub const MARK_RANGES: usize = 3;

/// Ranges of rows that a process remembers for one publisher.
pub const PUBLISHER_RANGES: usize = 64;

/// Publishers whose frames share one commit.
pub const COMMIT_PUBLISHERS: usize = 8;

/// Rows of frames that share one commit.
pub const COMMIT_ROWS: usize = 10_000;

/// Bytes of frames that share one commit.
pub const COMMIT_BYTES: usize = 8 * 1024 * 1024;

/// Frames of a stream without a log that wait for one listener in this process.
pub const RELAY_FRAMES: usize = 1024;

/// Generations of a declared stream.
pub const GENERATIONS: usize = 200;

/// Bytes of all schemas that a stream has had.
pub const BOOK_BYTES: usize = 16 * 1024 * 1024;

/// Rows that one subscriber may ask to be replayed, when the declaration names no number.
pub const REPLAY_ROWS: u64 = 100_000;

/// Rows that may wait for one subscriber, when the declaration names no number.
pub const BACKLOG_ROWS: u64 = 8192;

/// Bytes of a published frame, when the declaration names no number.
pub const MESSAGE_BYTES: usize = 1024 * 1024;

const _: () = assert!(CLAIM_PARTITIONS >= POP_PARTITIONS_MAX);
const _: () = assert!(COMMIT_ROWS <= BATCH_RECORDS && COMMIT_BYTES <= SEGMENT_BYTES);
// The head, the items of the marks, and the groups that it may wake, followers among them.
const _: () = assert!(COMMIT_PUBLISHERS + GROUPS + 2 <= store::TRANSACTION_ITEMS);
/// Records of one partition in one fetch.
pub const FETCH_RECORDS: u64 = 10_000;

/// Partitions in one page of those that have changed.
pub const CHANGED_PARTITIONS: usize = 1000;

/// Streams that a survey of all of them looks at.
pub const SURVEY_STREAMS: usize = 10_000;

/// Partitions that a survey looks at.
pub const SURVEY_PARTITIONS: usize = 20_000;

/// Index pages that a survey of times looks at.
pub const SURVEY_PAGES: usize = 10_000;

/// Hours after which a process takes a new data key for streams that are encrypted at rest.
pub const DATA_KEY_HOURS: i64 = 1;

/// Envelopes after which a process takes a new data key.
pub const DATA_KEY_SEALS: u64 = 1 << 24;

/// Bytes of a trace's data.
pub const TRACE_DATA_BYTES: usize = 16 * 1024;

/// Names of a trace.
pub const TRACE_NAMES: usize = 10;

/// Bytes of the word for a trace's kind.
pub const TRACE_EVENT_BYTES: usize = 128;

/// Traces of one day in UTC.
pub const TRACES_PER_DAY: i64 = 100_000;

/// Days that a trace is kept.
pub const TRACE_DAYS: i64 = 7;

/// Key-value operations in one call.
pub const KV_OPS: usize = 100;

/// Keys that the operations of one call name.
pub const KV_KEYS: usize = 1024;

/// Bytes of a namespace of keys.
pub const KV_NAMESPACE_BYTES: usize = 64;

/// Bytes of a key's value, JSON text. It lies in the head itself.
pub const KV_VALUE_BYTES: usize = 64 * 1024;

/// The longest life of a value that ends, seconds.
pub const KV_SECONDS_MAX: i64 = 10 * 366 * 24 * 3600;

/// Keys in one page.
pub const KV_PAGE: usize = 1000;

/// How long what was deleted or has expired is remembered, so that versions of a key only rise. Longer than clocks
/// differ.
pub const KV_TOMBSTONE: Duration = Duration::from_secs(3600);

/// Timer operations in one call.
pub const TIMER_OPS: usize = 32;

/// Bytes of a timer's payload. It lies in the head itself.
pub const TIMER_PAYLOAD_BYTES: usize = 256 * 1024;

/// The longest a timer waits, milliseconds.
pub const TIMER_DELAY_MS_MAX: i64 = 366 * 24 * 3600 * 1000;

/// Timers in one page.
pub const TIMER_PAGE: usize = 1000;

/// API keys of one installation: every process remembers them all.
pub const CREDENTIALS: usize = 1000;

/// Bytes of an API key's name.
pub const CREDENTIAL_NAME_BYTES: usize = 128;

/// Grants of one API key.
pub const CREDENTIAL_GRANTS: usize = 64;

/// Bytes of all grants of one API key: its head stays small.
pub const CREDENTIAL_GRANT_BYTES: usize = 3072;

/// The longest that the secret before a rotation still counts, seconds.
pub const CREDENTIAL_OVERLAP_SECONDS: i64 = 30 * 24 * 3600;

const _: () = assert!(3 * TIMER_OPS <= store::TRANSACTION_ITEMS);
const _: () = assert!(GROUPS + 4 <= store::TRANSACTION_ITEMS);
const _: () = assert!(SEGMENT_BYTES + SEGMENT_BYTES / 4 < store::BLOB_BYTES);
