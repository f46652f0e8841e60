//! `/api/v1/dlq`: dead letters, newest first, of a queue or of all; replaying one by its id, and deleting those of a queue.

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{DeadLetter, Replayed};

use crate::{Api, body::Segments, error::Failure, json::Json, openapi, query::Parameters};

/// Dead letters in a page when the request names no number.
const PAGE: i64 = 100;

/// Dead letters in a page.
const PAGE_MAX: i64 = 1_000;

/// Queues that a listing without a queue looks at.
const QUEUES: usize = 1_000;

/// `GET /api/v1/dlq`. `total` is the number of all that match, whatever the page.
#[utoipa::path(
    get, path = "/api/v1/dlq", operation_id = "listDeadLetters", tag = "administer",
    params(openapi::DeadLetterParameters, openapi::OffsetPage),
    responses((status = 200, description = "Dead letters, newest first", body = openapi::DeadLetters)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let group = parameters.text("consumerGroup");
    let limit = parameters.number("limit")?.unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let offset = parameters.number("offset")?.unwrap_or(0).max(0);
    let queues = match parameters.text("queue") {
        Some(queue) => vec![queue.to_owned()],
        None => api.engine().streams(None, QUEUES).await?,
    };
    let mut skip = u64::try_from(offset).unwrap_or(0);
    let mut total = 0;
    let mut letters: Vec<DeadLetter> = Vec::new();
    for queue in &queues {
        let there: u64 = api.engine().dead_letter_counts(queue, group).await?.values().sum();
        total += there;
        let wanted = limit as usize - letters.len();
        if skip >= there {
            skip -= there;
        } else if wanted > 0 {
            let from = usize::try_from(skip).unwrap_or(usize::MAX);
            letters.extend(api.engine().dead_letters(queue, group, from, wanted).await?);
            skip = 0;
        }
    }

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
    json.key("total").number(total).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `DELETE /api/v1/dlq?queue=`, of one group with `consumerGroup`.
#[utoipa::path(
    delete, path = "/api/v1/dlq", operation_id = "purgeDeadLetters", tag = "administer",
    params(openapi::DeadLetterParameters),
    responses((status = 200, description = "Deleted", body = openapi::Purged)),
)]
pub(crate) async fn purge(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let queue = parameters
        .text("queue")
        .ok_or_else(|| Failure::bad_request("parameter `queue` is missing"))?;
    let group = parameters.text("consumerGroup");
    let deleted = api.engine().delete_dead_letters(queue, group).await?;
    let mut json = Json::with_capacity(128);
    json.object().key("success").bool(true).key("queue").string(queue);
    json.key("deleted").number(deleted).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `POST /api/v1/dlq/{id}/replay`: pushes a dead letter again, once.
#[utoipa::path(
    post, path = "/api/v1/dlq/{id}/replay", operation_id = "replayDeadLetter", tag = "administer",
    params(("id" = String, Path, min_length = 1)),
    responses((status = 200, description = "Pushed again, or it was before", body = openapi::ReplayAnswer),
        (status = 404, description = "No such dead letter", body = openapi::NoDeadLetter)),
)]
pub(crate) async fn replay(
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<Response, Failure> {
    Ok(replayed(&api.engine().replay_dead_letter(&id).await?))
}

/// The answer to a replay. Whoever asks again finds nothing.
pub(crate) fn replayed(outcome: &Replayed) -> Response {
    let mut json = Json::with_capacity(512);
    match outcome {
        Replayed::Pushed { letter, transaction_id, id, offset } => {
            let partition = &letter.partition;
            json.object().key("success").bool(true);
            json.key("transactionId").string(&letter.record.transaction_id);
            json.key("partitionId").plain(partition.id).key("queue").string(&partition.stream);
            json.key("consumerGroup").string(&letter.group);
            json.key("replayedAs").object().key("message_id").plain(id);
            json.key("transaction_id").string(transaction_id);
            json.key("queueName").string(&partition.stream);
            json.key("status").plain("queued").key("offset").number(offset).end_object();
            json.key("dlqRowRemoved").bool(true).end_object();
            json.into_response(StatusCode::OK)
        }
        Replayed::Duplicate { transaction_id } => {
            json.object().key("success").bool(false).key("error").string(&format!(
                "`{transaction_id}` was pushed to the partition before; the dead letter was kept"
            ));
            json.key("replayedAs").object().key("transaction_id").string(transaction_id);
            json.key("status").plain("duplicate").end_object();
            json.key("dlqRowRemoved").bool(false).end_object();
            json.into_response(StatusCode::OK)
        }
        Replayed::Missing => missing(),
    }
}

/// 404 for a dead letter that is not there.
pub(crate) fn missing() -> Response {
    let mut json = Json::with_capacity(128);
    json.object().key("success").bool(false).key("error").plain("no such dead letter");
    json.key("code").plain("not_found").end_object();
    json.into_response(StatusCode::NOT_FOUND)
}
