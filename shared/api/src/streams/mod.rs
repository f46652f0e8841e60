//! The routes under `/streams/v1`: a stream processor registers its query, reads its state and commits cycles.
//!
//! Keys are snake_case, but for the ids inside `ack`. A cycle that is refused answers 200 with `success: false`: a
//! client must read the body, and must not repeat what was decided. Only what was not decided answers 503.

mod claim;
mod cycle;
mod queries;
mod state;

use tidewheel_engine::{Action, Uuid};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    auth::Caller,
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

/// Checks that whoever asks may consume what a query consumes. One that nobody knows is refused like one that is not
/// granted.
async fn granted(api: &Api, caller: &Caller, query: Option<Uuid>) -> Result<(), Failure> {
    if caller.is_unlimited() {
        return Ok(());
    }
    let known = match query {
        Some(id) => api.engine().query(&id).await?,
        None => None,
    };
    match known {
        Some(query) => caller.check(Action::Consume, &query.source),
        None => caller.check_everything(Action::Consume),
    }
}

/// Checks that whoever registers a query may consume what it has consumed so far: whoever takes its name over takes its
/// state.
async fn check_query(api: &Api, caller: &Caller, id: Uuid) -> Result<(), Failure> {
    if caller.is_unlimited() {
        return Ok(());
    }
    match api.engine().query(&id).await? {
        Some(query) => caller.check(Action::Consume, &query.source),
        None => Ok(()),
    }
}

/// A field that must be there and say something.
fn required<'b>(name: &str, value: &'b Option<Text<'_>>) -> Result<&'b str, Failure> {
    filled(value).ok_or_else(|| Failure::bad_request(format!("{name} is required")))
}
