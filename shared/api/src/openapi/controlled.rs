//! The control plane, described.

#![allow(dead_code)] // described, never built

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

/// What the control plane is and what bounds it has.
#[derive(ToSchema)]
pub(crate) struct Capabilities {
    version: i64,
    broker_id: String,
    /// Of this process.
    boot_id: String,
    transport_max_bytes: u64,
    control_max_bytes: u64,
    max_pending: u64,
    storage_profiles: BTreeMap<String, StorageProfile>,
    history_prefix_protected: Vec<String>,
    wire_versions: WireVersions,
}

/// Where streams are kept.
#[derive(ToSchema)]
pub(crate) struct StorageProfile {
    revision: String,
    replicate: bool,
    maintenance: bool,
    replay_scope: String,
}

/// Versions of the socket's protocol.
#[derive(ToSchema)]
pub(crate) struct WireVersions {
    write: i64,
    read: Vec<i64>,
}

/// Which page of streams.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ControlPageParameters {
    /// Streams in the page.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where the page before ended.
    cursor: Option<String>,
}

/// A page of streams.
#[derive(ToSchema)]
pub(crate) struct ControlPage {
    /// The collection's revision.
    revision: u64,
    streams: Vec<ControlView>,
    next_cursor: Option<String>,
}

/// A declared stream.
#[derive(ToSchema)]
pub(crate) struct ControlView {
    name: String,
    definition: ControlDefinition,
    desired: String,
    revision: u64,
    stream_id: Option<String>,
    /// The operation that is not done with.
    pending: Option<String>,
    profile_revision: String,
    profile: StorageProfile,
    observed: Observed,
}

/// How a stream was found.
#[derive(ToSchema)]
pub(crate) struct Observed {
    state: String,
    boot_id: String,
    generation: Option<u64>,
    revision: u64,
    /// Seconds since 1970.
    at: f64,
    read_admission: bool,
    write_admission: bool,
    children_ready: bool,
    error: Option<String>,
}

/// A declaration. A member that is not named here is refused.
#[derive(ToSchema)]
pub(crate) struct ControlDefinition {
    /// JSON Schema of a row; the order of its properties is the order of columns. A keyword that is not enforced is
    /// refused.
    schema: BTreeMap<String, Value>,
    sort_by: Option<Vec<String>>,
    /// `local`.
    storage_profile: String,
    /// `open_existing` or `create_if_absent`.
    initialization: Option<String>,
    exactly_once: Option<bool>,
    replay_published: Option<bool>,
    group_commit: Option<bool>,
    /// Rows; null is unbounded.
    max_replay: Option<u64>,
    limits: Option<ControlLimits>,
    /// False: rows are relayed and not kept.
    log: Option<bool>,
}

/// Limits of one stream.
#[derive(ToSchema)]
pub(crate) struct ControlLimits {
    #[schema(minimum = 1)]
    max_backlog: Option<u64>,
    #[schema(minimum = 1)]
    max_inbound: Option<u64>,
    #[schema(minimum = 1)]
    max_in_flight: Option<u64>,
    #[schema(minimum = 1, maximum = 1048576)]
    max_message_bytes: Option<u64>,
}

/// What every change carries.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct ChangeHeaders {
    /// The same change under the same key is answered the same again.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 128)]
    idempotency_key: String,
    /// The stream's ETag.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// What the making of a stream carries.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct CreationHeader {
    /// `*`: there must be none.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// What is wanted of a stream.
#[derive(ToSchema)]
pub(crate) struct DesiredState {
    /// `serving`, `stopped` or `retired`.
    state: String,
}

/// Another schema.
#[derive(ToSchema)]
pub(crate) struct ControlMigration {
    /// The stream that is meant.
    stream_id: String,
    schema: BTreeMap<String, Value>,
    sort_by: Vec<String>,
}

/// The answer to a change.
#[derive(ToSchema)]
pub(crate) struct ControlReceipt {
    status: u16,
    operation_id: String,
    revision: u64,
}

/// Something that is being done.
#[derive(ToSchema)]
pub(crate) struct ControlOperation {
    id: String,
    name: String,
    /// `definition`, `desired` or `migration`.
    kind: String,
    revision: u64,
    target: Value,
    /// `accepted`, `running`, `succeeded` or `failed`.
    status: String,
    error: Option<String>,
}

/// A failure of the control plane.
#[derive(ToSchema)]
pub(crate) struct ControlProblem {
    error: ControlError,
}

/// What was wrong.
#[derive(ToSchema)]
pub(crate) struct ControlError {
    /// A word for it.
    code: String,
    message: String,
    /// The same request may succeed later.
    retryable: bool,
    operation_id: Option<String>,
}
