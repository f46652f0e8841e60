//! `GET /health`: 200 while requests are served, 503 while they are not.

use axum::{extract::State, http::StatusCode, response::Response};

use crate::{Api, json::Json, openapi};

/// `GET /health`: whether requests are served.
///
/// Asks the store one small question, so that `healthy` means that reads work.
#[utoipa::path(
    get, path = "/health", operation_id = "health", tag = "operate",
    responses((status = 200, description = "Requests are served", body = openapi::Health),
        (status = 503, description = "Requests are not served, or not for long", body = openapi::Health)),
)]
pub(crate) async fn health(State(api): State<Api>) -> Response {
    let database = match api.engine().streams(None, 1).await {
        Ok(_) => "connected",
        Err(e) => {
            tracing::warn!(error = %e, "the store does not answer");
            "unavailable"
        }
    };
    let (status, word) = match (api.is_draining(), database) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, "connected") => (StatusCode::OK, "healthy"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
    };
    let mut json = Json::with_capacity(128);
    json.object().key("status").plain(word).key("database").plain(database);
    json.key("engine").plain("tidewheel");
    json.key("version").string(&api.settings().version).end_object();
    json.into_response(status)
}
