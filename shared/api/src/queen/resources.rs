//! Queues as resources: listing, detail, labels and deletion.
//!
//! What would cost a read of every group on every partition (pending, processing, completed) is null here.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{Extent, PartitionInfo, StreamInfo};

use crate::{Api, body::Segments, error::Failure, json::Json, query::Parameters};

/// Queues in a page of the listing. `after` continues it.
const QUEUES: i64 = 100;

/// Queues in a page of the listing, at most.
const QUEUES_MAX: i64 = 1_000;

/// Queues that a listing of labels looks at. Each costs a read unless this process remembers it.
const LABELLED: usize = 10_000;

/// Partitions that a detail shows. Each costs a read, and a queue may have a million.
const PARTITIONS: usize = 200;

/// `DELETE /api/v1/resources/queues/{queue}`. A queue that is not there is a 200 as well.
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
            json.object();
            members(&mut json, &info);
            json.end_object();
        }
    }
    json.end_array().key("next");
    json.string_or_null(names.last().filter(|_| names.len() == limit).map(String::as_str));
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/queues/{queue}`, with its first partitions in the order of their ids.
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
    let mut partitions: Vec<(PartitionInfo, Extent)> = Vec::new();
    for partition in engine.partitions(&queue, None, PARTITIONS).await? {
        if let Some(extent) = engine.extent(&partition.id).await? {
            partitions.push((partition, extent));
        }
    }

    let mut json = Json::with_capacity(1024 + partitions.len() * 200);
    json.object();
    members(&mut json, &info);
    json.key("options").raw(&options).key("partitions").array();
    let mut total = 0;
    for (partition, Extent { floor, tail }) in &partitions {
        total += tail - floor;
        json.object().key("id").plain(partition.id).key("name").string(&partition.name);
        json.key("floor").number(floor).key("tail").number(tail);
        counts(json.key("stats"), tail - floor);
        json.end_object();
    }
    counts(json.end_array().key("totals"), total);
    json.key("segments").object().key("messages").number(total).end_object();
    json.key("partitionsShown").number(partitions.len()).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/namespaces`.
pub(crate) async fn namespaces(State(api): State<Api>) -> Result<Response, Failure> {
    labels(&api, "namespaces", "namespace", |info| info.namespace).await
}

/// `GET /api/v1/resources/tasks`.
pub(crate) async fn tasks(State(api): State<Api>) -> Result<Response, Failure> {
    labels(&api, "tasks", "task", |info| info.task).await
}

/// Labels in use and how many queues have each, over the first [`LABELLED`] queues.
async fn labels(
    api: &Api,
    plural: &str,
    singular: &str,
    label: fn(StreamInfo) -> String,
) -> Result<Response, Failure> {
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

    let mut json = Json::with_capacity(64 + found.len() * 64);
    json.object().key(plural).array();
    for (label, queues) in &found {
        json.object().key(singular).string(label).key("queues").number(queues).end_object();
    }
    json.end_array().key("truncated").bool(truncated).end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn counts(json: &mut Json, total: u64) {
    json.object().key("total").number(total);
    for unknown in ["pending", "processing", "completed", "failed", "deadLetter"] {
        json.key(unknown).null();
    }
    json.end_object();
}

fn members(json: &mut Json, info: &StreamInfo) {
    json.key("id").plain(info.id).key("name").string(&info.name);
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("createdAt").time(info.created_us);
}
