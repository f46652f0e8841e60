//! Queues as resources: listing, detail and deletion.

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{Extent, PartitionInfo, StreamInfo};

use crate::{Api, body::Segments, error::Failure, json::Json, query::Parameters};

/// Queues in a page of the listing. `after` continues it.
const QUEUES: i64 = 100;

/// Queues in a page of the listing, at most.
const QUEUES_MAX: i64 = 1_000;

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
        json.key("stats").object().key("total").number(tail - floor).end_object().end_object();
    }
    json.end_array().key("totals").object().key("total").number(total).end_object();
    json.key("partitionsShown").number(partitions.len()).end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn members(json: &mut Json, info: &StreamInfo) {
    json.key("id").plain(info.id).key("name").string(&info.name);
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("createdAt").time(info.created_us);
}
