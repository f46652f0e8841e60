//! Health, numbers, traces and switches, described.

#![allow(dead_code)] // described, never built

use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::{MessageCounts, Pagination, QueueOptions};

/// Whether requests are served.
#[derive(ToSchema)]
pub(crate) struct Health {
    /// `healthy`, `draining` or `unhealthy`.
    status: String,
    /// `connected` or `unavailable`.
    database: String,
    engine: String,
    version: String,
}

/// What this process has counted.
#[derive(ToSchema)]
pub(crate) struct Metrics {
    version: String,
    uptime: f64,
    requests: Value,
    messages: Value,
    cpu: Option<Value>,
    memory: Option<Value>,
}

/// A trace to write down.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TraceRequest {
    #[schema(min_length = 1)]
    transaction_id: String,
    #[schema(min_length = 1)]
    partition_id: String,
    consumer_group: Option<String>,
    /// `info` if absent.
    event_type: Option<String>,
    /// Labels, ten at most.
    #[schema(max_items = 10)]
    trace_names: Option<Vec<String>>,
    /// Any JSON of at most 16 KiB.
    data: Value,
}

/// A trace that was written down.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TraceRecorded {
    success: bool,
    trace_id: String,
}

/// Traces of a message, oldest first.
#[derive(ToSchema)]
pub(crate) struct MessageTraces {
    traces: Vec<TraceRow>,
}

/// Traces of a name, oldest first.
#[derive(ToSchema)]
pub(crate) struct NamedTraces {
    traces: Vec<TraceRow>,
    total: u64,
    pagination: Pagination,
}

/// A trace.
#[derive(ToSchema)]
pub(crate) struct TraceRow {
    id: String,
    transaction_id: String,
    partition_id: String,
    event_type: String,
    data: Value,
    consumer_group: String,
    worker_id: Option<String>,
    created_at: String,
    trace_names: Vec<String>,
    #[schema(nullable = false)]
    queue_name: Option<String>,
    #[schema(nullable = false)]
    partition_name: Option<String>,
}

/// Names of traces, the most recently used first.
#[derive(ToSchema)]
pub(crate) struct TraceNames {
    trace_names: Vec<TraceNameRow>,
    total: u64,
    pagination: Pagination,
}

/// A name of traces.
#[derive(ToSchema)]
pub(crate) struct TraceNameRow {
    trace_name: String,
    trace_count: u64,
    message_count: u64,
    last_seen: String,
}

/// On or off.
#[derive(ToSchema)]
pub(crate) struct SwitchRequest {
    enabled: bool,
}

/// Whether pushes, and pops, are paused.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct PushSwitch {
    maintenance_mode: bool,
    #[schema(nullable = false)]
    pop_maintenance_mode: Option<bool>,
    buffered_messages: u64,
    buffer_healthy: bool,
    #[schema(nullable = false)]
    message: Option<String>,
}

/// Whether pops are paused.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct PopSwitch {
    pop_maintenance_mode: bool,
    message: String,
}

/// There was nothing to refresh.
#[derive(ToSchema)]
pub(crate) struct Refreshed {
    success: bool,
    engine: String,
    message: String,
}

/// The process answers.
#[derive(ToSchema)]
pub(crate) struct Alive {
    status: String,
    engine: String,
}

/// A time and which queues.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WindowParameters {
    /// ISO 8601.
    from: Option<String>,
    /// ISO 8601; now if absent.
    to: Option<String>,
    queue: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
}

/// A time.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimeParameters {
    /// ISO 8601; an hour before `to` if absent.
    from: Option<String>,
    /// ISO 8601; now if absent.
    to: Option<String>,
}

/// Which queues.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct QueueFilter {
    queue: Option<String>,
    namespace: Option<String>,
    task: Option<String>,
    limit: Option<i64>,
    offset: Option<i64>,
}

/// How long a point is.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct IntervalParameter {
    /// `minute`, `hour` or `day`.
    interval: Option<String>,
}

/// A stretch of time.
#[derive(ToSchema)]
pub(crate) struct TimeRange {
    from: String,
    to: String,
}

/// The whole, now and over time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct StatusOverview {
    time_range: TimeRange,
    bucket_minutes: u64,
    point_count: u64,
    stats_age: i64,
    /// Of what `throughput` tells: this process.
    scope: String,
    throughput: Vec<Value>,
    queues: Value,
    messages: MessageCounts,
    leases: Value,
    dead_letter_queue: Value,
    workers: Vec<Value>,
    errors: Value,
}

/// Queues, by name.
#[derive(ToSchema)]
pub(crate) struct StatusQueues {
    queues: Vec<StatusQueue>,
    total: u64,
    complete: bool,
    pagination: Pagination,
}

/// A queue in numbers.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct StatusQueue {
    id: String,
    name: String,
    namespace: String,
    task: String,
    created_at: String,
    partitions: u64,
    last_activity: Option<String>,
    messages: MessageCounts,
    #[schema(nullable = false)]
    config: Option<QueueOptions>,
}

/// A queue in numbers, with its first partitions.
#[derive(ToSchema)]
pub(crate) struct StatusQueueDetail {
    queue: Value,
    partitions: Vec<Value>,
    totals: Value,
    complete: bool,
}

/// Messages by the time they came.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Analytics {
    data_points: Vec<AnalyticsPoint>,
    interval: String,
    from: String,
    to: String,
    complete: bool,
}

/// Messages that came in a stretch of time.
#[derive(ToSchema)]
pub(crate) struct AnalyticsPoint {
    timestamp: String,
    messages: u64,
}

/// There is no buffer.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Buffers {
    pending: u64,
    failed: u64,
    db_healthy: bool,
    worker: u64,
}

/// Processes over time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct SystemMetrics {
    time_range: TimeRange,
    bucket_minutes: u64,
    point_count: u64,
    replicas: Vec<Value>,
}

/// What this process did over time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct WorkerMetrics {
    time_range: TimeRange,
    bucket_minutes: u64,
    point_count: u64,
    scope: String,
    summary: Value,
    time_series: Vec<Value>,
    workers: Vec<Value>,
    queues: Vec<Value>,
}

/// Messages by queue and time.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct QueueOps {
    time_range: TimeRange,
    bucket_minutes: u64,
    point_count: u64,
    series: Vec<Value>,
    queues: Vec<String>,
}

/// What was deleted for its age.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct Retention {
    time_range: TimeRange,
    bucket_minutes: u64,
    point_count: u64,
    scope: String,
    series: Vec<Value>,
    totals: Value,
}
