//! What the root of the API says to somebody who looks.

use axum::{
    Json,
    http::{HeaderMap, header},
    response::{IntoResponse, Redirect, Response},
};
use serde_json::json;

/// The page to read and try the API for browsers, JSON for everything else.
pub(crate) async fn landing(headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/html")) {
        return Redirect::to("docs").into_response();
    }
    Json(json!({
        "name": "tidewheel",
        "version": env!("CARGO_PKG_VERSION"),
        "health": "/health",
        "metrics": "/metrics/prometheus",
        "description": "/openapi.json",
        "docs": "/docs",
        "api": "/api/v1",
    }))
    .into_response()
}
