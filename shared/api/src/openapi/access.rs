//! API keys, described.

#![allow(dead_code)] // described, never built

use utoipa::ToSchema;

/// What a key is made with.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct NewKey {
    /// For people.
    #[schema(max_length = 128)]
    name: Option<String>,
    /// `<action>:<pattern>` each: read, publish, consume, control or admin, and a stream's name or the beginning of names
    /// before a `*`.
    #[schema(min_items = 1, max_items = 64, example = json!(["publish:orders", "read:orders*"]))]
    grants: Vec<String>,
    /// How long it lasts; for ever without it.
    #[schema(minimum = 1)]
    expires_in_seconds: Option<i64>,
    /// Requests that each process lets through a second.
    #[schema(minimum = 1)]
    requests_per_second: Option<u32>,
    /// Bytes of bodies that each process lets through a second.
    #[schema(minimum = 1)]
    bytes_per_second: Option<u64>,
}

/// A key, shown once.
#[derive(ToSchema)]
pub(crate) struct ShownKey {
    /// What a client sends: as a bearer token, as `x-api-key`, or as the password of Basic credentials.
    key: String,
    #[schema(inline)]
    #[serde(flatten)]
    listed: ListedKey,
}

/// A key without what proves it.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct ListedKey {
    id: String,
    name: String,
    grants: Vec<String>,
    created_at: String,
    expires_at: Option<String>,
    /// Until when the secret before the last rotation counts.
    old_secret_until: Option<String>,
    disabled: bool,
    requests_per_second: Option<u32>,
    bytes_per_second: Option<u64>,
}

/// All keys.
#[derive(ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<ListedKey>,
}

/// How to rotate a key.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub(crate) struct KeyRotation {
    /// How long the secret before still counts.
    #[schema(minimum = 0)]
    overlap_seconds: Option<i64>,
}

/// A change to a key.
#[derive(ToSchema)]
pub(crate) struct KeyChange {
    disabled: bool,
}

/// A key that is no more.
#[derive(ToSchema)]
pub(crate) struct KeyDeleted {
    deleted: bool,
    id: String,
}
