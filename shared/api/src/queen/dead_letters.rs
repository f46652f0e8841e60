//! `GET /api/v1/dlq`: a queue's dead letters, newest first.

use axum::{extract::State, http::StatusCode, response::Response};

use crate::{Api, error::Failure, json::Json, query::Parameters};

/// Dead letters in a page when the request names no number.
const PAGE: i64 = 100;

/// Dead letters in a page.
const PAGE_MAX: i64 = 1_000;

/// `total` is the number in this page, as SDKs of the first generation read it.
pub(crate) async fn list(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let queue = parameters
        .text("queue")
        .ok_or_else(|| Failure::bad_request("parameter `queue` is missing"))?;
    let group = parameters.text("consumerGroup");
    let limit = parameters.number("limit")?.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let offset = parameters.number("offset")?.unwrap_or(0).max(0);
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    let letters = match api.engine().dead_letters(queue, group, skip, limit as usize).await {
        Err(tidewheel_engine::Error::StreamNotFound(_)) => Vec::new(),
        letters => letters?,
    };

    let payloads: usize = letters.iter().map(|l| l.record.payload.len()).sum();
    let mut json = Json::with_capacity(128 + payloads + letters.len() * 500);
    json.object().key("messages").array();
    for letter in &letters {
        let (record, partition) = (&letter.record, &letter.partition);
        json.object().key("id").string(&letter.id);
        json.key("transactionId").string(&record.transaction_id);
        json.key("partitionId").plain(partition.id).key("queue").string(&partition.stream);
        json.key("partition").string(&partition.name).key("consumerGroup").string(&letter.group);
        json.key("errorMessage").string(&letter.error).key("retryCount").number(letter.failures);
        json.key("data").raw(&record.payload).key("producerSub").null();
        json.key("createdAt").time(record.time_us).key("failedAt").time(letter.failed_us);
        json.end_object();
    }
    json.end_array().key("pagination").object().key("limit").number(limit);
    json.key("offset").number(offset).end_object();
    json.key("total").number(letters.len()).end_object();
    Ok(json.into_response(StatusCode::OK))
}
