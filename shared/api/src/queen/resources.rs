//! Queues as resources: listing, detail, labels and deletion.
//!
//! Numbers cost a read of each partition's head and cursors, and a queue may have a million: they are those of the
//! partitions looked at, and `truncated` says that there are more.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{Backlog, Extent, StreamInfo};

use super::backlog::Tally;
use crate::{Api, body::Segments, error::Failure, json::Json, openapi, query::Parameters};

/// Queues in a page of the listing. `after` continues it.
const QUEUES: i64 = 100;

/// Queues in a page of the listing, at most.
const QUEUES_MAX: i64 = 1_000;

/// Queues that a listing of labels looks at. Each costs a read unless this process remembers it.
const LABELLED: usize = 10_000;

/// Partitions that a detail shows, and that the numbers of a queue in a listing are taken from.
pub(crate) const PARTITIONS: usize = 200;

/// `DELETE /api/v1/resources/queues/{queue}`. A queue that is not there is a 200 as well.
#[utoipa::path(
    delete, path = "/api/v1/resources/queues/{queue}", operation_id = "deleteQueue", tag = "administer",
    params(("queue" = String, Path, min_length = 1)),
    responses((status = 200, description = "Deleted, or it was not there", body = openapi::QueueDeleted)),
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    Segments(queue): Segments<String>,
) -> Result<Response, Failure> {
    let existed = api.engine().delete_stream(&queue).await?;
    let mut json = Json::with_capacity(128 + queue.len());
    json.object().key("deleted").bool(existed).key("queue").string(&queue);
    json.key("existed").bool(existed);
    if !existed {
        json.key("message").plain("Queue does not exist");
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/queues`, in the order of their names, a page at a time: `limit`, and `after` with the `next`
/// of the page before.
#[utoipa::path(
    get, path = "/api/v1/resources/queues", operation_id = "listQueues", tag = "administer",
    params(openapi::AfterPage),
    responses((status = 200, description = "Queues, by name", body = openapi::Queues)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let limit = parameters.number("limit")?.unwrap_or(QUEUES).clamp(1, QUEUES_MAX) as usize;
    let names = api.engine().streams(parameters.text("after"), limit).await?;
    let mut json = Json::with_capacity(256 + names.len() * 200);
    json.object().key("queues").array();
    for name in &names {
        // A queue deleted since the listing is none.
        if let Some(info) = api.engine().stream(name).await? {
            let standings = api.engine().standings(name, None, None, PARTITIONS).await?;
            let tally = Tally::of(&standings, PARTITIONS);
            json.object();
            members(&mut json, &info);
            json.key("partitions").number(standings.len()).key("retainedBytes").number(tally.bytes);
            json.key("segments").object().key("count").number(tally.segments);
            json.key("messages").number(tally.backlog.total).end_object();
            json.key("messages").object().key("total").number(tally.backlog.total);
            json.key("pending").number(tally.backlog.pending);
            json.key("processing").number(tally.backlog.processing).end_object();
            json.key("truncated").bool(tally.truncated).end_object();
        }
    }
    json.end_array().key("next");
    json.string_or_null(names.last().filter(|_| names.len() == limit).map(String::as_str));
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/queues/{queue}`, with its first partitions in the order of their ids.
#[utoipa::path(
    get, path = "/api/v1/resources/queues/{queue}", operation_id = "queue", tag = "administer",
    params(("queue" = String, Path, min_length = 1)),
    responses((status = 200, description = "The queue", body = openapi::QueueDetail)),
)]
pub(crate) async fn detail(
    State(api): State<Api>,
    Segments(queue): Segments<String>,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let Some(info) = engine.stream(&queue).await? else {
        return Err(Failure::not_found("Queue not found"));
    };
    let options = serde_json::to_vec(&info.options)
        .map_err(|e| Failure::bad_request(format!("options: {e}")))?;
    let standings = engine.standings(&queue, None, None, PARTITIONS).await?;
    let dead = engine.dead_letter_counts(&queue, None).await?;
    let tally = Tally::of(&standings, PARTITIONS);

    let mut json = Json::with_capacity(1024 + standings.len() * 300);
    json.object();
    members(&mut json, &info);
    json.key("options").raw(&options).key("partitions").array();
    for standing in &standings {
        let Extent { floor, tail } = standing.extent;
        json.object().key("id").plain(standing.partition.id);
        json.key("name").string(&standing.partition.name);
        json.key("floor").number(floor).key("tail").number(tail);
        if tail > 0 {
            json.key("lastActivity").time(standing.last_us);
        }
        let letters = dead.get(&standing.partition.id).copied().unwrap_or(0);
        counts(json.key("stats"), standing.backlog(), letters);
        json.end_object();
    }
    counts(json.end_array().key("totals"), tally.backlog, dead.values().sum());
    json.key("segments").object().key("count").number(tally.segments);
    json.key("messages").number(tally.backlog.total).end_object();
    json.key("retainedBytes").number(tally.bytes).key("truncated").bool(tally.truncated);
    json.key("partitionsShown").number(standings.len()).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/namespaces`: namespaces in use.
#[utoipa::path(
    get, path = "/api/v1/resources/namespaces", operation_id = "listNamespaces", tag = "administer",
    responses((status = 200, description = "Namespaces in use", body = openapi::Namespaces)),
)]
pub(crate) async fn namespaces(State(api): State<Api>) -> Result<Response, Failure> {
    labels(&api, "namespaces", "namespace", |info| info.namespace).await
}

/// `GET /api/v1/resources/tasks`: tasks in use.
#[utoipa::path(
    get, path = "/api/v1/resources/tasks", operation_id = "listTasks", tag = "administer",
    responses((status = 200, description = "Tasks in use", body = openapi::Tasks)),
)]
pub(crate) async fn tasks(State(api): State<Api>) -> Result<Response, Failure> {
    labels(&api, "tasks", "task", |info| info.task).await
}

/// Labels in use and how many queues have each, over the first [`LABELLED`] queues; whether there are more queues.
pub(crate) async fn labels_in_use(
    api: &Api,
    label: fn(StreamInfo) -> String,
) -> Result<(BTreeMap<String, u64>, bool), Failure> {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let mut after: Option<String> = None;
    let mut looked_at = 0;
    let truncated = loop {
        let names = api.engine().streams(after.as_deref(), QUEUES_MAX as usize).await?;
        for name in &names {
            if let Some(info) = api.engine().stream(name).await? {
                *found.entry(label(info)).or_default() += 1;
            }
        }
        looked_at += names.len();
        if names.len() < QUEUES_MAX as usize {
            break false;
        }
        if looked_at >= LABELLED {
            break true;
        }
        after = names.last().cloned();
    };
    found.remove("");
    Ok((found, truncated))
}

async fn labels(
    api: &Api,
    plural: &str,
    singular: &str,
    label: fn(StreamInfo) -> String,
) -> Result<Response, Failure> {
    let (found, truncated) = labels_in_use(api, label).await?;
    let mut json = Json::with_capacity(64 + found.len() * 64);
    json.object().key(plural).array();
    for (label, queues) in &found {
        json.object().key(singular).string(label).key("queues").number(queues).end_object();
    }
    json.end_array().key("truncated").bool(truncated).end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn counts(json: &mut Json, backlog: Backlog, dead_letters: u64) {
    json.object().key("total").number(backlog.total).key("pending").number(backlog.pending);
    json.key("processing").number(backlog.processing);
    json.key("completed").number(backlog.completed);
    json.key("failed").null().key("deadLetter").number(dead_letters).end_object();
}

fn members(json: &mut Json, info: &StreamInfo) {
    json.key("id").plain(info.id).key("name").string(&info.name);
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("createdAt").time(info.created_us);
}
