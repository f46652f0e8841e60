//! The routes under `/streams/v1`: a stream processor registers its query, reads its state and commits cycles.
//!
//! Keys are snake_case, but for the ids inside `ack`. A cycle that is refused answers 200 with `success: false`: a
//! client must read the body, and must not repeat what was decided. Only what was not decided answers 503.

mod claim;
mod cycle;
mod queries;
mod state;

use axum::{Router, routing::post};

use crate::{
    Api,
    body::{Text, filled},
    error::Failure,
};

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/streams/v1/queries", post(queries::register))
        .route("/streams/v1/state/get", post(state::get))
        .route("/streams/v1/state/partitions", post(claim::partitions))
        .route("/streams/v1/claim", post(claim::claim))
        .route("/streams/v1/cycle", post(cycle::commit))
}

/// A field that must be there and say something.
fn required<'b>(name: &str, value: &'b Option<Text<'_>>) -> Result<&'b str, Failure> {
    filled(value).ok_or_else(|| Failure::bad_request(format!("{name} is required")))
}
