//! Keys with values, and timers, described.

#![allow(dead_code)] // described, never built

use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// A key within a namespace.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct KvPath {
    /// 1 to 64 of `a-z 0-9 . _ -`, the first a letter or a digit.
    #[param(min_length = 1, max_length = 64)]
    namespace: String,
    /// The key, which may hold slashes.
    #[param(min_length = 1)]
    key: String,
}

/// Operations on keys.
#[derive(ToSchema)]
pub(crate) struct KvRequest {
    #[schema(max_items = 100)]
    operations: Vec<KvOperation>,
}

/// One operation.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KvOperation {
    /// `get`, `getMany`, `getPrefix`, `put`, `putIfAbsent`, `delete`, `incr` or `check`.
    op: String,
    /// The namespace.
    ns: String,
    key: Option<String>,
    /// Of `getMany`.
    keys: Option<Vec<String>>,
    /// Of `getPrefix`; not empty.
    prefix: Option<String>,
    /// Of `getPrefix`: keys after this one.
    after: Option<String>,
    /// Of `getPrefix`: keys in the page.
    limit: Option<i64>,
    /// Of `getPrefix`: leaves the values out.
    keys_only: Option<bool>,
    /// Of `put` and `putIfAbsent`: any JSON.
    value: Option<Value>,
    /// The version that the key must have, or 0: it must not be there.
    expect: Option<i64>,
    /// Of `incr`: what to add.
    delta: Option<i64>,
    /// Of `incr`: the result must not be below.
    min: Option<i64>,
    /// Of `incr`: the result must not be above.
    max: Option<i64>,
    /// If this does not apply, nothing of the call does.
    required: Option<bool>,
    /// How long the value lives. Each write needs this or `forever`.
    ttl_seconds: Option<i64>,
    forever: Option<bool>,
}

/// A value to be written.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KvWrite {
    /// Any JSON.
    value: Value,
    expect: Option<i64>,
    required: Option<bool>,
    ttl_seconds: Option<i64>,
    forever: Option<bool>,
}

/// On what condition a key is deleted.
#[derive(ToSchema)]
pub(crate) struct KvDeletion {
    expect: Option<i64>,
    required: Option<bool>,
}

/// What became of operations on keys.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KvAnswer {
    /// Of each, in order; empty if a required one did not apply.
    results: Vec<KvResult>,
    /// False if a required one did not apply, which the rest is about.
    #[schema(nullable = false)]
    ok: Option<bool>,
    #[schema(nullable = false)]
    reason: Option<String>,
    #[schema(nullable = false)]
    error: Option<String>,
    #[schema(nullable = false)]
    failed_index: Option<u64>,
    #[schema(nullable = false)]
    kv_reason: Option<String>,
    #[schema(nullable = false)]
    version: Option<i64>,
    value: Option<Value>,
}

/// What became of one operation on a key. Which of these there are depends on the operation.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KvResult {
    #[schema(nullable = false)]
    index: Option<u64>,
    #[schema(nullable = false)]
    op: Option<String>,
    /// Of a write or a check.
    #[schema(nullable = false)]
    applied: Option<bool>,
    /// Of `get`.
    #[schema(nullable = false)]
    found: Option<bool>,
    /// Why it did not apply: `exists`, `absent`, `version`, `limit` or `type`.
    #[schema(nullable = false)]
    reason: Option<String>,
    #[schema(nullable = false)]
    key: Option<String>,
    value: Option<Value>,
    #[schema(nullable = false)]
    version: Option<i64>,
    #[schema(nullable = false)]
    expires_at: Option<String>,
    #[schema(nullable = false)]
    updated_at: Option<String>,
    #[schema(nullable = false)]
    rows: Option<Vec<KvRow>>,
    #[schema(nullable = false)]
    missing: Option<Vec<String>>,
    #[schema(nullable = false)]
    truncated: Option<bool>,
    #[schema(nullable = false)]
    next_after: Option<String>,
}

/// A key that is there.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KvRow {
    key: String,
    value: Option<Value>,
    version: i64,
    #[schema(nullable = false)]
    expires_at: Option<String>,
    updated_at: String,
}

/// A queue of timers.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TimerQueue {
    #[param(min_length = 1)]
    queue: String,
}

/// A timer.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TimerPath {
    #[param(min_length = 1)]
    queue: String,
    /// The timer's key, which may hold slashes.
    #[param(min_length = 1)]
    key: String,
}

/// Which page.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimerPageParameters {
    /// Timers after this key.
    after: Option<String>,
    /// Timers in the page.
    limit: Option<i64>,
}

/// What is echoed.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimerCancelParameters {
    /// The transaction id that the timer was scheduled with.
    txn: Option<String>,
}

/// Timers to schedule or cancel.
#[derive(ToSchema)]
pub(crate) struct TimerRequest {
    #[schema(max_items = 32)]
    operations: Vec<TimerOperation>,
}

/// One operation on a timer.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TimerOperation {
    /// `schedule`, `reschedule` (the same) or `cancel`.
    op: String,
    queue: String,
    timer_key: String,
    partition: Option<String>,
    /// Milliseconds from now.
    delay_ms: Option<i64>,
    /// The transaction id that the message will have.
    txn: Option<String>,
    /// The message's JSON, in base64.
    payload: Option<String>,
    /// The payload is compressed with zstd.
    payload_zstd: Option<bool>,
}

/// What became of timers.
#[derive(ToSchema)]
pub(crate) struct TimerAnswer {
    results: Vec<TimerResult>,
}

/// What became of a timer.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TimerResult {
    /// False if there is none.
    ok: bool,
    /// `scheduled`, `rescheduled`, `cancelled` or `absent`.
    status: String,
    queue: String,
    timer_key: String,
    #[schema(nullable = false)]
    txn: Option<String>,
    #[schema(nullable = false)]
    message_id: Option<String>,
    #[schema(nullable = false)]
    deliver_at: Option<String>,
}

/// Timers that wait.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TimerPage {
    rows: Vec<TimerRow>,
    truncated: bool,
    #[schema(nullable = false)]
    next_after: Option<String>,
}

/// A timer that waits.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TimerRow {
    queue: String,
    timer_key: String,
    partition: String,
    deliver_at: String,
    txn: String,
    message_id: String,
    payload_zstd: bool,
    encrypted: bool,
    attempts: u64,
    claimed: bool,
    created_at: String,
    updated_at: String,
}

/// A timer with its payload, if it waits.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct TimerPeek {
    found: bool,
    queue: String,
    timer_key: String,
    #[schema(nullable = false)]
    partition: Option<String>,
    #[schema(nullable = false)]
    deliver_at: Option<String>,
    #[schema(nullable = false)]
    txn: Option<String>,
    #[schema(nullable = false)]
    message_id: Option<String>,
    /// As it is stored, in base64.
    #[schema(nullable = false)]
    payload: Option<String>,
    #[schema(nullable = false)]
    payload_zstd: Option<bool>,
    /// The payload is an envelope.
    #[schema(nullable = false)]
    encrypted: Option<bool>,
    #[schema(nullable = false)]
    attempts: Option<u64>,
    #[schema(nullable = false)]
    claimed: Option<bool>,
    #[schema(nullable = false)]
    created_at: Option<String>,
    #[schema(nullable = false)]
    updated_at: Option<String>,
}

/// Operations on locks.
#[derive(ToSchema)]
pub(crate) struct LockRequest {
    #[schema(max_items = 100)]
    operations: Vec<LockOperation>,
}

/// One operation on a lock, or on a semaphore of `limit` permits.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct LockOperation {
    /// `acquire`, `renew`, `release` or `get`.
    op: String,
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    /// Of `acquire` and `renew`: how long the permit lasts.
    ttl_seconds: Option<i64>,
    /// Who holds it: an operation that its owner sends again is the same operation.
    owner: Option<String>,
    /// Of `acquire`: permits in all; 1 if absent.
    limit: Option<u32>,
    /// Of `renew` and `release`: which permit.
    slot: Option<u32>,
    /// Of `renew` and `release`: the token of the last answer.
    token: Option<i64>,
}

/// What operations on locks did.
#[derive(ToSchema)]
pub(crate) struct LockAnswer {
    results: Vec<LockResult>,
}

/// What one operation on a lock did. Which of these there are depends on the operation.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct LockResult {
    index: u64,
    op: String,
    name: String,
    #[schema(nullable = false)]
    acquired: Option<bool>,
    /// The owner had it before.
    #[schema(nullable = false)]
    already: Option<bool>,
    #[schema(nullable = false)]
    renewed: Option<bool>,
    #[schema(nullable = false)]
    released: Option<bool>,
    #[schema(nullable = false)]
    held: Option<bool>,
    /// `held`, `contended` or `lost`.
    #[schema(nullable = false)]
    reason: Option<String>,
    #[schema(nullable = false)]
    slot: Option<u32>,
    #[schema(nullable = false)]
    token: Option<i64>,
    owner: Option<String>,
    /// A required check for the transaction that does the holder's work.
    #[schema(nullable = false)]
    guard: Option<Value>,
    #[schema(nullable = false)]
    holders: Option<Vec<Value>>,
}
