//! What the root of the server says to somebody who looks.

use axum::{
    Json,
    http::{HeaderMap, header},
    response::{Html, IntoResponse, Response},
};
use serde_json::json;

/// A page for browsers, JSON for everything else.
pub(crate) async fn landing(headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/html")) {
        return Html(include_str!("landing.html")).into_response();
    }
    Json(json!({
        "name": "tidewheel",
        "version": env!("CARGO_PKG_VERSION"),
        "health": "/health",
        "metrics": "/metrics/prometheus",
        "description": "/openapi.json",
        "docs": "/docs",
        "api": "/api/v1",
        "socket": "/{stream}?offset=0&partition=Default",
    }))
    .into_response()
}
