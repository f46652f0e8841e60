//! Consumer groups: deletion, after which the same name starts like a new group, and seeking.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;

use crate::{
    Api,
    body::{Body, Segments, Text, filled},
    error::{Failure, shortened},
    json::Json,
    time,
};

/// `DELETE /api/v1/consumer-groups/{group}`. A group's registration goes with its cursors, whatever `deleteMetadata`
/// says: half a group would start neither where it stood nor like a new one.
pub(crate) async fn delete(
    State(api): State<Api>,
    Segments(group): Segments<String>,
) -> Result<Response, Failure> {
    deleted(&api, &group, None).await
}

/// `DELETE /api/v1/consumer-groups/{group}/queues/{queue}`.
pub(crate) async fn delete_on_queue(
    State(api): State<Api>,
    Segments((group, queue)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    deleted(&api, &group, Some(&queue)).await
}

async fn deleted(api: &Api, group: &str, queue: Option<&str>) -> Result<Response, Failure> {
    let (partitions, registered) = match api.engine().delete_group(group, queue).await {
        Err(tidewheel_engine::Error::StreamNotFound(_)) => (0, false),
        deleted => deleted?,
    };
    let mut json = Json::with_capacity(256);
    json.object().key("success").bool(true).key("consumerGroup").string(group);
    if let Some(queue) = queue {
        json.key("queueName").string(queue);
    }
    json.key("deletedPartitions").number(partitions).key("metadataDeleted").bool(registered);
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seek<'a> {
    to_end: Option<bool>,
    #[serde(borrow)]
    timestamp: Option<Text<'a>>,
}

/// `POST …/{group}/queues/{queue}/seek`.
pub(crate) async fn seek(
    State(api): State<Api>,
    Segments((group, queue)): Segments<(String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    sought(&api, &group, &queue, None, body.parse()?).await
}

/// `POST …/{group}/queues/{queue}/partitions/{partition}/seek`. An empty body is to the end.
pub(crate) async fn seek_partition(
    State(api): State<Api>,
    Segments((group, queue, partition)): Segments<(String, String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    let seek =
        if body.is_empty() { Seek { to_end: Some(true), timestamp: None } } else { body.parse()? };
    sought(&api, &group, &queue, Some(&partition), seek).await
}

async fn sought(
    api: &Api,
    group: &str,
    queue: &str,
    partition: Option<&str>,
    seek: Seek<'_>,
) -> Result<Response, Failure> {
    let target_us = match (seek.to_end, filled(&seek.timestamp)) {
        (Some(true), _) => None,
        (_, Some(text)) => Some(time::parse(text).ok_or_else(|| {
            Failure::bad_request(format!(
                "`timestamp` must be an ISO 8601 time, not `{}`",
                shortened(text)
            ))
        })?),
        _ => return Err(Failure::bad_request("a seek needs `toEnd`: true or a `timestamp`")),
    };
    let moved = api.engine().seek(group, queue, partition, target_us).await?;

    let mut json = Json::with_capacity(256);
    json.object().key("success").bool(true).key("consumerGroup").string(group);
    json.key("queueName").string(queue);
    if let Some(partition) = partition {
        json.key("partition").string(partition);
    }
    json.key("seekToEnd").bool(target_us.is_none()).key("targetTimestamp");
    match target_us {
        Some(us) => json.time(us),
        None => json.null(),
    };
    json.key("partitionsUpdated").number(moved).end_object();
    Ok(json.into_response(StatusCode::OK))
}
