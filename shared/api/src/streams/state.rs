//! `POST /streams/v1/state/get`: rows of a query's state for one source partition, in the order of their keys.
//!
//! A query or partition that nobody knows has no rows, like one that has stored none.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{Error, PartitionId, StateFilter, Uuid};

use super::{granted, required};
use crate::{
    Api,
    body::{Body, Text, filled},
    error::Failure,
    json::Json,
    openapi,
};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    query_id: Option<Text<'a>>,
    #[serde(borrow)]
    partition_id: Option<Text<'a>>,
    keys: Option<Vec<String>>,
    #[serde(borrow)]
    key_prefix: Option<Text<'a>>,
    #[serde(borrow)]
    ripe_at_or_before: Option<&'a RawValue>,
}

/// `POST /streams/v1/state/get`: rows of a query's state.
#[utoipa::path(
    post, path = "/streams/v1/state/get", operation_id = "state", tag = "streams",
    request_body = openapi::StateRequest,
    responses((status = 200, description = "Rows, by key", body = openapi::StateAnswer)),
)]
pub(crate) async fn get(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let query = Uuid::parse(required("query_id", &request.query_id)?);
    let partition = PartitionId::parse(required("partition_id", &request.partition_id)?);
    granted(&api, body.caller(), query).await?;
    let filter = StateFilter {
        prefix: filled(&request.key_prefix).unwrap_or_default().to_owned(),
        // Only a number filters; a text that looks like one does not parse as one with its quotes.
        ripe_at_or_before: request.ripe_at_or_before.and_then(|raw| raw.get().parse().ok()),
        keys: request.keys.unwrap_or_default(),
    };
    let rows = match (query, partition) {
        (Some(query), Some(partition)) => {
            match api.engine().state(&query, &partition, &filter).await {
                Err(Error::QueryNotFound | Error::PartitionNotFound) => Vec::new(),
                rows => rows?,
            }
        }
        _ => Vec::new(),
    };

    let bytes: usize = rows.iter().map(|r| r.key.len() + r.value.len() + 80).sum();
    let mut json = Json::with_capacity(64 + bytes);
    json.object().key("success").bool(true).key("rows").array();
    for row in &rows {
        json.object().key("key").string(&row.key).key("value").raw(&row.value);
        json.key("updated_at").time(row.updated_us).end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}
