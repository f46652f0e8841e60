//! Stream processors, described.

#![allow(dead_code)] // described, never built

use serde_json::Value;
use utoipa::ToSchema;

/// A query to register.
#[derive(ToSchema)]
pub(crate) struct QueryRequest {
    #[schema(min_length = 1, max_length = 512)]
    name: String,
    #[schema(min_length = 1, max_length = 512)]
    source_queue: String,
    sink_queue: Option<String>,
    /// Of the chain of operators: another chain is refused unless `reset` is set.
    #[schema(min_length = 1)]
    config_hash: String,
    /// Drops the state of another chain.
    reset: Option<bool>,
}

/// A registered query.
#[derive(ToSchema)]
pub(crate) struct RegisteredQuery {
    success: bool,
    query_id: String,
    name: String,
    config_hash: String,
    /// The name was new.
    fresh: bool,
    /// The state of another chain was dropped.
    reset: bool,
}

/// A query that is registered with another chain of operators.
#[derive(ToSchema)]
pub(crate) struct QueryMismatch {
    success: bool,
    query_id: String,
    name: String,
    error: String,
}

/// Which state to read.
#[derive(ToSchema)]
pub(crate) struct StateRequest {
    #[schema(min_length = 1)]
    query_id: String,
    #[schema(min_length = 1)]
    partition_id: String,
    /// Only these keys; none is no filter.
    keys: Option<Vec<String>>,
    /// Only keys that begin with this.
    key_prefix: Option<String>,
    /// Only rows whose `windowEnd` is at or below this.
    ripe_at_or_before: Option<f64>,
}

/// Rows of state, by key.
#[derive(ToSchema)]
pub(crate) struct StateAnswer {
    success: bool,
    rows: Vec<StateRow>,
}

/// A row of state.
#[derive(ToSchema)]
pub(crate) struct StateRow {
    key: String,
    value: Value,
    updated_at: String,
}

/// Which partitions with state to list.
#[derive(ToSchema)]
pub(crate) struct StatePartitionsRequest {
    #[schema(min_length = 1)]
    query_id: String,
    /// Only state that was not written for this long.
    untouched_for_ms: Option<i64>,
    /// `next` of the page before.
    after: Option<String>,
    limit: Option<i64>,
}

/// Partitions with state.
#[derive(ToSchema)]
pub(crate) struct StatePartitionsAnswer {
    success: bool,
    partitions: Vec<StatePartition>,
    next: Option<String>,
}

/// A partition with state.
#[derive(ToSchema)]
pub(crate) struct StatePartition {
    partition_id: String,
    partition: String,
    queue: String,
    updated_at: String,
}

/// Partitions to lease although nothing waits there.
#[derive(ToSchema)]
pub(crate) struct ClaimRequest {
    #[schema(min_length = 1)]
    query_id: String,
    partition_ids: Option<Vec<String>>,
    consumer_group: Option<String>,
    /// 30 if absent, 600 at most.
    lease_seconds: Option<i64>,
}

/// What was leased.
#[derive(ToSchema)]
pub(crate) struct ClaimAnswer {
    success: bool,
    #[schema(nullable = false)]
    error: Option<String>,
    lease_id: String,
    #[schema(nullable = false)]
    lease_seconds: Option<i64>,
    /// The server's time: windows that end before it may be closed.
    #[schema(nullable = false)]
    now_ms: Option<i64>,
    partitions: Vec<ClaimedPartition>,
}

/// A partition that was to be leased.
#[derive(ToSchema)]
pub(crate) struct ClaimedPartition {
    partition_id: String,
    partition: String,
    /// `claimed`, `busy`, `backlog` or `missing`.
    status: String,
    #[schema(nullable = false)]
    lease_expires_at: Option<String>,
}

/// State changes, output and the position in the source, all or nothing.
#[derive(ToSchema)]
pub(crate) struct CycleRequest {
    #[schema(min_length = 1)]
    query_id: String,
    #[schema(min_length = 1)]
    partition_id: String,
    consumer_group: Option<String>,
    state_ops: Option<Vec<StateOperation>>,
    push_items: Option<Vec<SinkItem>>,
    ack: Option<CycleAck>,
    /// Ends the lease and acknowledges all of its batch, unless false.
    release_lease: Option<bool>,
}

/// A change of state.
#[derive(ToSchema)]
pub(crate) struct StateOperation {
    /// `upsert` or `delete`.
    #[schema(rename = "type")]
    kind: String,
    key: String,
    /// Of an upsert.
    value: Option<Value>,
}

/// A message for a sink.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SinkItem {
    queue: String,
    partition: Option<String>,
    payload: Value,
    message_id: Option<String>,
    transaction_id: Option<String>,
}

/// How far the source was processed.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct CycleAck {
    transaction_id: Option<String>,
    lease_id: Option<String>,
    /// `completed` or absent; anything else gives the batch back.
    status: Option<String>,
    /// Messages processed; matters when the lease is kept.
    count: Option<i64>,
}

/// Committed, or refused and nothing changed.
#[derive(ToSchema)]
pub(crate) struct CycleAnswer {
    success: bool,
    #[schema(nullable = false)]
    error: Option<String>,
    query_id: String,
    partition_id: String,
    #[schema(rename = "queueName")]
    queue_name: Option<String>,
    state_ops_applied: u64,
    push_results: Vec<SinkResult>,
    ack_result: Option<CycleAckResult>,
}

/// What was pushed to one sink partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SinkResult {
    queue: String,
    partition: String,
    /// `queued` or `duplicate`.
    status: String,
    #[schema(nullable = false)]
    base_offset: Option<u64>,
}

/// What became of the acknowledgement.
#[derive(ToSchema)]
pub(crate) struct CycleAckResult {
    success: bool,
    count: u64,
    lease_released: bool,
    dlq: bool,
}
