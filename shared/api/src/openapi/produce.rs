//! Queues, pushes and transactions, described.

#![allow(dead_code)] // described, never built

use serde_json::Value;
use utoipa::ToSchema;

/// A queue and its options. Options may also stand beside the queue.
#[derive(ToSchema)]
pub(crate) struct ConfigureRequest {
    /// The queue's name.
    #[schema(min_length = 1, max_length = 512)]
    queue: String,
    /// A label for discovery.
    namespace: Option<String>,
    /// A label for discovery.
    task: Option<String>,
    /// What to set. An absent option keeps its value, `null` restores the default.
    options: Option<QueueOptions>,
    /// `replace` begins with the defaults; `merge`, the default, with what is set.
    mode: Option<String>,
}

/// Options of a queue. Times are in the unit that each says.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct QueueOptions {
    /// Lease of a pop that names none, seconds.
    lease_time: Option<i64>,
    /// Explicit failures before a message is dead-lettered or dropped.
    retry_limit: Option<i64>,
    /// Stored and returned, milliseconds.
    retry_delay: Option<i64>,
    /// Stored and returned.
    priority: Option<i64>,
    /// Stored and returned.
    max_size: Option<i64>,
    /// Stored and returned, seconds.
    ttl: Option<i64>,
    /// A message is invisible until it is this old, seconds.
    delayed_processing: Option<i64>,
    /// Holds a partition back so that batches grow, seconds.
    window_buffer: Option<i64>,
    /// With the next: poison is dropped only if both are false.
    dead_letter_queue: Option<bool>,
    /// See `deadLetterQueue`.
    dlq_after_max_retries: Option<bool>,
    /// Switches the two retentions below on.
    retention_enabled: Option<bool>,
    /// Messages older than this may be deleted, seconds; 0 keeps them.
    retention_seconds: Option<i64>,
    /// Messages that every group has done and that are older than this may be deleted, seconds; 0 keeps them.
    completed_retention_seconds: Option<i64>,
    /// Messages older than this are deleted even when leased, seconds; 0 keeps them.
    max_wait_time_seconds: Option<i64>,
    /// Messages are encrypted at rest. Such a queue has no table unless the server is told to publish it.
    encryption_enabled: Option<bool>,
    /// How long a waiting pop that is not full may linger, milliseconds.
    min_pop_wait_time: Option<i64>,
    /// Deduplication window of transaction ids, seconds; 0 switches it off.
    dedup_window_seconds: Option<i64>,
    /// Stored and returned.
    retention_sink_hold: Option<String>,
    /// Stored and returned, seconds.
    retention_sink_hold_max_seconds: Option<i64>,
}

/// A queue as it is.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Configured {
    configured: bool,
    queue: String,
    queue_id: String,
    partition_id: Option<String>,
    namespace: String,
    task: String,
    storage: String,
    /// Every option in force.
    options: QueueOptions,
}

/// Messages for any queues and partitions.
#[derive(ToSchema)]
pub(crate) struct PushRequest {
    items: Vec<PushItem>,
}

/// A message to push.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct PushItem {
    #[schema(min_length = 1, max_length = 512)]
    queue: String,
    /// `Default` if absent.
    partition: Option<String>,
    /// Any JSON; it comes out byte for byte.
    payload: Value,
    /// The sender's id for deduplication.
    transaction_id: Option<String>,
}

/// What became of a message.
#[derive(ToSchema)]
pub(crate) struct PushResult {
    /// Its place in the request.
    index: u64,
    message_id: String,
    transaction_id: String,
    #[schema(rename = "queueName")]
    queue_name: String,
    /// `queued`, `duplicate` (with the id and offset of the original) or `failed`.
    status: String,
    /// Its offset, where it is known.
    #[schema(nullable = false)]
    offset: Option<u64>,
    /// Why it failed.
    #[schema(nullable = false)]
    error: Option<String>,
}

/// Pushes and acknowledgements, all or nothing.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TransactionRequest {
    operations: Vec<TransactionOperation>,
    /// A single lease named here is that of acknowledgements which name none.
    required_leases: Option<Vec<String>>,
    /// Operations on keys, in the same commit.
    kv: Option<Vec<super::KvOperation>>,
    /// Timers, in the same commit.
    timers: Option<Vec<super::TimerOperation>>,
}

/// A `push` with `items`, or an `ack` with what an acknowledgement has.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TransactionOperation {
    /// `push` or `ack`.
    #[schema(rename = "type")]
    kind: String,
    items: Option<Vec<PushItem>>,
    transaction_id: Option<String>,
    partition_id: Option<String>,
    status: Option<String>,
    consumer_group: Option<String>,
    lease_id: Option<String>,
    error: Option<String>,
}

/// Committed, or rolled back with a reason.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TransactionAnswer {
    transaction_id: String,
    success: bool,
    /// Why it was rolled back: `duplicate`, `ack_rejected`, `kv_precondition` or `bad_request`.
    #[schema(nullable = false)]
    reason: Option<String>,
    #[schema(nullable = false)]
    error: Option<String>,
    /// Of each pushed item and each acknowledgement, in order; empty after a rollback.
    results: Vec<TransactionItemResult>,
}

/// What one item of a transaction did.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TransactionItemResult {
    index: u64,
    #[schema(rename = "type")]
    kind: String,
    success: bool,
    transaction_id: String,
    /// Of a push.
    #[schema(nullable = false)]
    message_id: Option<String>,
    /// Of a push.
    #[schema(nullable = false)]
    queue_name: Option<String>,
    /// True for a repeat within the transaction.
    #[schema(nullable = false)]
    duplicate: Option<bool>,
    /// Of an acknowledgement.
    error: Option<String>,
    /// Of an acknowledgement: the message is a dead letter.
    #[schema(nullable = false)]
    dlq: Option<bool>,
}
