//! `POST /streams/v1/queries`: registers a query, or finds it again. A chain of operators other than the registered
//! one is the only 409 that this API has.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tidewheel_engine::{Action, Registered};

use super::{check_query, required};
use crate::{
    Api,
    body::{Body, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    source_queue: Option<Text<'a>>,
    #[serde(borrow)]
    sink_queue: Option<Text<'a>>,
    #[serde(borrow)]
    config_hash: Option<Text<'a>>,
    reset: Option<bool>,
}

/// `POST /streams/v1/queries`: registers a query, or finds it again.
#[utoipa::path(
    post, path = "/streams/v1/queries", operation_id = "registerQuery", tag = "streams",
    request_body = openapi::QueryRequest,
    responses((status = 200, description = "Registered", body = openapi::RegisteredQuery),
        (status = 409, description = "Registered with another chain of operators", body = openapi::QueryMismatch)),
)]
pub(crate) async fn register(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let name = required("name", &request.name)?;
    let source = required("source_queue", &request.source_queue)?;
    let config_hash = required("config_hash", &request.config_hash)?;
    let sink = filled(&request.sink_queue);
    body.caller().check(Action::Consume, source)?;
    if let Some(sink) = sink {
        body.caller().check(Action::Publish, sink)?;
    }
    check_query(&api, body.caller(), tidewheel_engine::query_id(name)).await?;
    let reset = request.reset.unwrap_or(false);
    let registered = api.engine().register_query(name, source, sink, config_hash, reset).await?;

    let mut json = Json::with_capacity(512);
    let (query, fresh, reset) = match &registered {
        Registered::Fresh(query) => (query, true, false),
        Registered::Same(query) => (query, false, false),
        Registered::Reset(query) => (query, false, true),
        Registered::Mismatch(query) => {
            json.object().key("success").bool(false).key("query_id").plain(query.id);
            json.key("name").string(&query.name).key("error").string(&format!(
                "config_hash mismatch: query `{}` is registered with another chain of operators ({}); register it \
                 with `reset`: true to drop its state, or under another name",
                shortened(&query.name),
                shortened(&query.config_hash),
            ));
            json.end_object();
            return Ok(json.into_response(StatusCode::CONFLICT));
        }
    };
    json.object().key("success").bool(true).key("query_id").plain(query.id);
    json.key("name").string(&query.name).key("config_hash").string(&query.config_hash);
    json.key("fresh").bool(fresh).key("reset").bool(reset).end_object();
    Ok(json.into_response(StatusCode::OK))
}
