//! The routes under `/streams/v1`: a stream processor registers its query, reads its state and commits cycles.
//!
//! Keys are snake_case, but for the ids inside `ack`. A cycle that is refused answers 200 with `success: false`: a
//! client must read the body, and must not repeat what was decided. Only what was not decided answers 503.

mod claim;
mod cycle;
mod queries;
mod state;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    body::{Text, filled},
    error::Failure,
};

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(queries::register))
        .routes(routes!(state::get))
        .routes(routes!(claim::partitions))
        .routes(routes!(claim::claim))
        .routes(routes!(cycle::commit))
}

/// A field that must be there and say something.
fn required<'b>(name: &str, value: &'b Option<Text<'_>>) -> Result<&'b str, Failure> {
    filled(value).ok_or_else(|| Failure::bad_request(format!("{name} is required")))
}
