//! Pops, acknowledgements, leases and reads by offset, described.

#![allow(dead_code)] // described, never built

use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// How to pop.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct PopParameters {
    /// Messages at most, 200 if absent.
    batch: Option<i64>,
    /// Partitions at most, 1 if absent, 64 at most.
    partitions: Option<i64>,
    /// Waits for a message.
    wait: Option<bool>,
    /// How long a pop waits, milliseconds, 60,000 at most; 30,000 if absent.
    timeout: Option<i64>,
    /// The group; without one the queue's consumers share its messages.
    consumer_group: Option<String>,
    /// Length of the lease, seconds; the queue's if absent.
    lease_seconds: Option<i64>,
    /// Commits at delivery instead of leasing.
    auto_ack: Option<bool>,
    /// Where a new group begins: `all` or `new`.
    subscription_mode: Option<String>,
    /// Where a new group begins: `now`, or an ISO 8601 time.
    subscription_from: Option<String>,
    /// Only the newest message of each partition.
    conflation: Option<bool>,
}

/// Which queues to pop from; at least one of them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LabelParameters {
    /// Queues of this namespace.
    namespace: Option<String>,
    /// Queues of this task.
    task: Option<String>,
}

/// Messages under a lease.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Popped {
    success: bool,
    queue: String,
    partition: String,
    partition_id: Option<String>,
    /// Of all messages; empty if they were committed at delivery.
    lease_id: String,
    consumer_group: String,
    messages: Vec<Message>,
    partitions_claimed: u64,
    /// The group conflates.
    #[schema(nullable = false)]
    conflation: Option<bool>,
    /// The request contradicts what the group is registered with.
    #[schema(nullable = false)]
    conflation_conflict: Option<bool>,
}

/// A message.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Message {
    id: String,
    transaction_id: String,
    trace_id: Option<String>,
    /// The payload, byte for byte.
    data: Value,
    producer_sub: Option<String>,
    created_at: String,
    partition_id: String,
    partition: String,
    lease_id: String,
    consumer_group: String,
    /// How often it was delivered, this time included.
    delivery_attempt: u64,
    offset: u64,
}

/// What became of a message.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct AckRequest {
    transaction_id: String,
    partition_id: String,
    /// `completed` (or absent), `retry`, `dlq`; anything else is a failure.
    status: Option<String>,
    consumer_group: Option<String>,
    lease_id: Option<String>,
    /// Why it failed.
    error: Option<String>,
}

/// What became of messages of one group.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct AckBatchRequest {
    acknowledgments: Vec<AckItem>,
    consumer_group: Option<String>,
}

/// What became of a message.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct AckItem {
    transaction_id: String,
    partition_id: String,
    status: Option<String>,
    lease_id: Option<String>,
    error: Option<String>,
}

/// Whether an acknowledgement was carried out.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct AckResult {
    index: u64,
    transaction_id: String,
    success: bool,
    /// Why it was not.
    error: Option<String>,
    lease_released: bool,
    /// The message is a dead letter.
    dlq: bool,
    /// It had been done before.
    noop: bool,
    /// Messages that a conflating group retired with it.
    #[schema(nullable = false)]
    conflated: Option<u64>,
}

/// More time for a lease.
#[derive(ToSchema)]
pub(crate) struct ExtendRequest {
    /// Seconds from now; 60 if absent.
    seconds: Option<i64>,
}

/// What a lease was extended to.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Extended {
    lease_id: String,
    success: bool,
    /// Partitions on which it is still held.
    renewed: u64,
    new_expires_at: Option<String>,
    expires_at: Option<String>,
    #[schema(rename = "lease_expires_at")]
    lease_expires_at: Option<String>,
}

/// Where to read.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct FetchRequest {
    /// At most 1,024.
    #[schema(max_items = 1024)]
    entries: Vec<FetchEntry>,
    /// Bytes of payload over all entries, about.
    max_bytes: Option<i64>,
    /// Waits for records, milliseconds, 30,000 at most.
    #[schema(minimum = 0)]
    max_wait_ms: Option<u64>,
    /// Waits for at least this many bytes.
    min_bytes: Option<i64>,
}

/// Where to read in one partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct FetchEntry {
    queue: String,
    /// `Default` if absent.
    partition: Option<String>,
    #[schema(minimum = 0)]
    offset: i64,
    /// Bytes of payload, about; at least one record comes.
    max_bytes: Option<i64>,
}

/// What was read, in the order of the request.
#[derive(ToSchema)]
pub(crate) struct FetchAnswer {
    entries: Vec<FetchedEntry>,
}

/// What was read in one partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct FetchedEntry {
    queue: String,
    partition: String,
    records: Vec<FetchedRecord>,
    /// The offset that the next record gets.
    high_watermark: u64,
    /// The lowest offset that can be read.
    log_start_offset: u64,
    /// `OFFSET_OUT_OF_RANGE` or `UNKNOWN_TOPIC_OR_PARTITION`.
    #[schema(nullable = false)]
    error: Option<String>,
}

/// A record as it is stored.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct FetchedRecord {
    offset: u64,
    transaction_id: String,
    payload: Value,
    ts: String,
}

/// Times to find in partitions.
#[derive(ToSchema)]
pub(crate) struct OffsetsRequest {
    /// At most 1,024.
    #[schema(max_items = 1024)]
    entries: Vec<OffsetsEntry>,
}

/// A time to find in a partition.
#[derive(ToSchema)]
pub(crate) struct OffsetsEntry {
    queue: String,
    /// `Default` if absent.
    partition: Option<String>,
    /// Milliseconds since 1970, or an ISO 8601 time.
    timestamp: Value,
}

/// Where partitions reach times.
#[derive(ToSchema)]
pub(crate) struct OffsetsAnswer {
    entries: Vec<FoundOffset>,
}

/// Where a partition reaches a time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct FoundOffset {
    queue: String,
    partition: String,
    /// Of the first record of that time or later, if there is one.
    offset: Option<u64>,
    ts: Option<String>,
    high_watermark: u64,
    log_start_offset: u64,
    #[schema(nullable = false)]
    error: Option<String>,
}

/// Queues whose partitions to list.
#[derive(ToSchema)]
pub(crate) struct ChangedRequest {
    /// At most 100; none answers the safe time alone.
    #[schema(max_items = 100)]
    entries: Option<Vec<ChangedEntry>>,
}

/// A queue whose partitions to list.
#[derive(ToSchema)]
pub(crate) struct ChangedEntry {
    queue: String,
    /// Only partitions written to at this time or later.
    since: Option<String>,
    /// `next` of the page before.
    after: Option<String>,
    /// Partitions in the page, 1,000 at most.
    limit: Option<i64>,
}

/// Pages of partitions, in the order of the request.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct ChangedAnswer {
    /// Every record stamped at or before this is counted here: the `since` of the next pass.
    safe_time: String,
    safe_time_degraded: bool,
    entries: Vec<ChangedPage>,
}

/// A page of partitions.
#[derive(ToSchema)]
pub(crate) struct ChangedPage {
    queue: String,
    partitions: Vec<ChangedPartition>,
    next: Option<String>,
    /// `UNKNOWN_TOPIC_OR_PARTITION` or `BAD_CURSOR`.
    #[schema(nullable = false)]
    error: Option<String>,
}

/// A partition and how far it reaches.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct ChangedPartition {
    name: String,
    id: String,
    last_offset: i64,
    log_start: u64,
    last_write_at: String,
}
