//! `POST /api/v1/lease/{lease}/extend`: more time for a popped batch.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;

use crate::{
    Api,
    body::{Body, Segments},
    error::Failure,
    json::Json,
    openapi,
};

/// Seconds from now that a lease gets when the request names none.
const SECONDS: i64 = 60;

#[derive(Deserialize)]
struct Request {
    seconds: i64,
}

/// `POST /api/v1/lease/{lease}/extend`: more time for a popped batch.
///
/// A body that is empty or no request is one for 60 seconds: SDKs send none.
#[utoipa::path(
    post, path = "/api/v1/lease/{lease}/extend", operation_id = "extendLease", tag = "consume",
    params(("lease" = String, Path, min_length = 1)),
    request_body = Option<openapi::ExtendRequest>,
    responses((status = 200, description = "Extended, or not held any more", body = openapi::Extended)),
)]
pub(crate) async fn extend(
    State(api): State<Api>,
    Segments(lease_id): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let seconds = body.parse::<Request>().map_or(SECONDS, |r| r.seconds);
    let extended = api.engine().extend(&lease_id, seconds).await?;

    let mut json = Json::with_capacity(256 + lease_id.len());
    json.object().key("leaseId").string(&lease_id);
    json.key("success").bool(extended.renewed > 0).key("renewed").number(extended.renewed);
    // Three SDKs look for the same time under three names.
    for name in ["newExpiresAt", "expiresAt", "lease_expires_at"] {
        match extended.expires_us {
            Some(us) if extended.renewed > 0 => json.key(name).time(us),
            _ => json.key(name).null(),
        };
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}
