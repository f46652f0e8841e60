//! Groups, dead letters, messages and queues, described.

#![allow(dead_code)] // described, never built

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::QueueOptions;

/// A page by number.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OffsetPage {
    /// Rows in the page.
    limit: Option<i64>,
    /// Rows before it.
    offset: Option<i64>,
}

/// A page after another.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AfterPage {
    /// Rows in the page.
    limit: Option<i64>,
    /// Where the page before ended.
    after: Option<String>,
}

/// One group.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct GroupParameter {
    /// Only that of this group.
    consumer_group: Option<String>,
}

/// Whether to forget a group.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct DeleteGroupParameters {
    /// False keeps the group registered and takes it back to where it began.
    delete_metadata: Option<bool>,
}

/// Which dead letters.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct DeadLetterParameters {
    queue: Option<String>,
    consumer_group: Option<String>,
}

/// Which lag.
#[derive(IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(crate) struct LagParameters {
    /// Only partitions on which a group is this far behind.
    min_lag_seconds: Option<i64>,
    /// Queues after this one.
    after: Option<String>,
}

/// Which messages.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParameters {
    queue: Option<String>,
    partition: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
    /// `pending`, `processing` or `completed`.
    status: Option<String>,
    /// ISO 8601; an hour ago if absent.
    from: Option<String>,
    /// ISO 8601; now if absent.
    to: Option<String>,
    limit: Option<i64>,
    offset: Option<i64>,
}

/// Where a page stands.
#[derive(ToSchema)]
pub(crate) struct Pagination {
    limit: u64,
    offset: u64,
}

/// Dead letters, newest first.
#[derive(ToSchema)]
pub(crate) struct DeadLetters {
    messages: Vec<DeadLetterRow>,
    pagination: Pagination,
    /// All that match.
    total: u64,
}

/// A dead letter.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct DeadLetterRow {
    id: String,
    transaction_id: String,
    partition_id: String,
    queue: String,
    partition: String,
    consumer_group: String,
    error_message: String,
    retry_count: u64,
    data: Value,
    producer_sub: Option<String>,
    created_at: String,
    failed_at: String,
}

/// Dead letters that were deleted.
#[derive(ToSchema)]
pub(crate) struct Purged {
    success: bool,
    queue: String,
    deleted: u64,
}

/// A dead letter that was pushed again, or was before.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct ReplayAnswer {
    success: bool,
    #[schema(nullable = false)]
    error: Option<String>,
    replayed_as: Value,
    dlq_row_removed: bool,
}

/// No such dead letter.
#[derive(ToSchema)]
pub(crate) struct NoDeadLetter {
    success: bool,
    error: String,
    code: String,
}

/// Done.
#[derive(ToSchema)]
pub(crate) struct Done {
    success: bool,
}

/// Messages, newest first.
#[derive(ToSchema)]
pub(crate) struct Messages {
    messages: Vec<MessageRow>,
    /// In this page.
    total: u64,
    pagination: Pagination,
    mode: Value,
}

/// A message, without its payload.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct MessageRow {
    id: String,
    transaction_id: String,
    partition_id: String,
    partition: String,
    queue: String,
    namespace: String,
    task: String,
    trace_id: Option<String>,
    created_at: String,
    offset: u64,
    status: String,
}

/// A message, and what groups have made of it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct MessageDetail {
    id: String,
    transaction_id: String,
    partition_id: String,
    partition: String,
    queue: String,
    namespace: String,
    task: String,
    trace_id: Option<String>,
    created_at: String,
    offset: u64,
    data: Value,
    payload: Value,
    /// `pending`, `processing`, `completed` or `dead_letter`.
    status: String,
    lease_expires_at: Option<String>,
    retry_count: u64,
    error_message: Option<String>,
    consumer_groups: Vec<Value>,
    mode: Value,
    queue_config: QueueOptions,
}

/// A group on a queue.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct GroupRow {
    name: String,
    queue_name: String,
    topics: Vec<String>,
    members: u64,
    partition_cursors: u64,
    partitions_with_lag: u64,
    total_lag: u64,
    max_time_lag: i64,
    /// `Stable` or `Lagging`.
    state: String,
    subscription_mode: String,
    subscription_timestamp: Option<String>,
    subscription_created_at: String,
    conflation: bool,
    storage: String,
}

/// How far a group has come, by queue.
#[derive(ToSchema)]
pub(crate) struct GroupDetail(BTreeMap<String, GroupOnQueue>);

/// How far a group has come on a queue.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct GroupOnQueue {
    conflation: bool,
    subscription_mode: String,
    subscription_timestamp: Option<String>,
    subscription_created_at: String,
    partitions: Vec<GroupOnPartition>,
}

/// How far a group has come on a partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct GroupOnPartition {
    partition: String,
    partition_id: String,
    worker_id: Option<String>,
    total_consumed: u64,
    committed_offset: u64,
    offset_lag: u64,
    time_lag_seconds: i64,
    lease_active: bool,
    last_consumed_at: Option<String>,
}

/// A partition on which a group lags.
#[derive(ToSchema)]
pub(crate) struct LagRow {
    consumer_group: String,
    queue_name: String,
    partition_name: String,
    partition_id: String,
    worker_id: Option<String>,
    offset_lag: u64,
    time_lag_seconds: i64,
    lag_hours: f64,
}

/// Where a group begins on partitions that it has not come to.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SubscriptionRequest {
    /// ISO 8601.
    subscription_timestamp: String,
}

/// What was moved.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SubscriptionAnswer {
    success: bool,
    consumer_group: String,
    new_timestamp: String,
    rows_updated: u64,
}

/// What was deleted.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct GroupDeleted {
    success: bool,
    consumer_group: String,
    #[schema(nullable = false)]
    queue_name: Option<String>,
    deleted_partitions: u64,
    metadata_deleted: bool,
}

/// To the end, or to a time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SeekRequest {
    to_end: Option<bool>,
    /// ISO 8601.
    timestamp: Option<String>,
}

/// What was moved.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SeekAnswer {
    success: bool,
    consumer_group: String,
    queue_name: String,
    #[schema(nullable = false)]
    partition: Option<String>,
    seek_to_end: bool,
    target_timestamp: Option<String>,
    partitions_updated: u64,
}

/// What is left to do.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct MessageCounts {
    total: u64,
    pending: u64,
    processing: u64,
    #[schema(nullable = false)]
    completed: Option<u64>,
    /// Not known.
    failed: Option<u64>,
    #[schema(nullable = false)]
    dead_letter: Option<u64>,
}

/// Everything in a few numbers.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Overview {
    queues: u64,
    partitions: u64,
    namespaces: u64,
    tasks: u64,
    messages: MessageCounts,
    lag: Value,
    retained_bytes: u64,
    /// There is more than was looked at.
    truncated: bool,
    timestamp: String,
}

/// Queues, by name.
#[derive(ToSchema)]
pub(crate) struct Queues {
    queues: Vec<QueueRow>,
    next: Option<String>,
}

/// A queue.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct QueueRow {
    id: String,
    name: String,
    namespace: String,
    task: String,
    created_at: String,
    partitions: u64,
    retained_bytes: u64,
    segments: Value,
    messages: MessageCounts,
    truncated: bool,
}

/// A queue, its options and its first partitions.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct QueueDetail {
    id: String,
    name: String,
    namespace: String,
    task: String,
    created_at: String,
    options: QueueOptions,
    partitions: Vec<PartitionRow>,
    totals: MessageCounts,
    segments: Value,
    retained_bytes: u64,
    truncated: bool,
    partitions_shown: u64,
}

/// A partition.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct PartitionRow {
    id: String,
    name: String,
    /// The lowest offset that can be read.
    floor: u64,
    /// The offset that the next record gets.
    tail: u64,
    #[schema(nullable = false)]
    last_activity: Option<String>,
    stats: MessageCounts,
}

/// What became of a queue.
#[derive(ToSchema)]
pub(crate) struct QueueDeleted {
    deleted: bool,
    queue: String,
    existed: bool,
    #[schema(nullable = false)]
    message: Option<String>,
}

/// Whose depth.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DepthParameters {
    /// Of this group; as the slowest group sees it if absent.
    group: Option<String>,
}

/// What is left to do on a queue.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Depth {
    queue: String,
    group: Option<String>,
    pending: u64,
    partitions_pending: u64,
    conflation: bool,
    /// Handlers left to run.
    effective_pending: u64,
    partitions: Vec<DepthRow>,
    truncated: bool,
}

/// What is left to do on a partition.
#[derive(ToSchema)]
pub(crate) struct DepthRow {
    partition: String,
    pending: u64,
}

/// Which partitions.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RankingParameters {
    queue: Option<String>,
    limit: Option<i64>,
}

/// Partitions, those with most to do first.
#[derive(ToSchema)]
pub(crate) struct Ranking {
    partitions: Vec<RankedPartition>,
    truncated: bool,
}

/// A partition and what is left to do there.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct RankedPartition {
    queue: String,
    partition: String,
    id: String,
    total: u64,
    pending: u64,
    processing: u64,
    lag_seconds: Option<i64>,
}

/// Namespaces in use.
#[derive(ToSchema)]
pub(crate) struct Namespaces {
    namespaces: Vec<NamespaceRow>,
    truncated: bool,
}

/// A namespace.
#[derive(ToSchema)]
pub(crate) struct NamespaceRow {
    namespace: String,
    queues: u64,
}

/// Tasks in use.
#[derive(ToSchema)]
pub(crate) struct Tasks {
    tasks: Vec<TaskRow>,
    truncated: bool,
}

/// A task.
#[derive(ToSchema)]
pub(crate) struct TaskRow {
    task: String,
    queues: u64,
}
