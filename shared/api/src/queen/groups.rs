//! Consumer groups: what they are and how far they have come; deletion, after which the same name starts like a new
//! group; seeking.
//!
//! How far a group lags costs what it lags on: partitions that it has finished are not looked at.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tidewheel_engine::{GroupInfo, Standing, SubscriptionMode};

use crate::{
    Api,
    body::{Body, Segments, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi,
    query::Parameters,
    time,
};

/// Queues that a listing of groups looks at.
const QUEUES: usize = 1_000;

/// Partitions of one queue on which a listing counts a group's lag.
const LAGGING: usize = 1_000;

/// Partitions of one queue that a group's detail shows when the request names no number.
const PARTITIONS: i64 = 200;

/// Seconds that a group may lag and still be called stable.
const STABLE_SECONDS: i64 = 300;

/// `GET /api/v1/consumer-groups`: every group on every queue, of the first [`QUEUES`] after `after`.
#[utoipa::path(
    get, path = "/api/v1/consumer-groups", operation_id = "listGroups", tag = "administer",
    params(openapi::AfterPage),
    responses((status = 200, description = "Groups on queues", body = Vec<openapi::GroupRow>)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let mut json = Json::with_capacity(4096);
    json.array();
    for queue in engine.streams(parameters.text("after"), QUEUES).await? {
        let groups = engine.groups(&queue).await?;
        if groups.is_empty() {
            continue;
        }
        let partitions = engine.partitions(&queue, None, LAGGING).await?.len();
        for group in groups {
            let lagging = engine.lagging(&queue, &group.name, LAGGING).await?;
            let lag = Lag::of(&api, &lagging).await?;
            json.object().key("name").string(&group.name).key("queueName").string(&queue);
            json.key("topics").array().string(&queue).end_array();
            json.key("members").number(lag.members).key("partitionCursors").number(partitions);
            json.key("partitionsWithLag").number(lagging.len()).key("totalLag").number(lag.records);
            json.key("maxTimeLag").number(lag.seconds).key("state");
            json.plain(if lag.seconds > STABLE_SECONDS { "Lagging" } else { "Stable" });
            registration(&mut json, &group);
            json.key("conflation").bool(group.conflation).key("storage").plain("segments");
            json.end_object();
        }
    }
    json.end_array();
    Ok(json.into_response(StatusCode::OK))
}

fn registration(json: &mut Json, group: &GroupInfo) {
    let (mode, from_us) = match group.mode {
        SubscriptionMode::All => ("all", None),
        SubscriptionMode::New => ("new", Some(group.joined_us)),
        SubscriptionMode::From(us) => ("timestamp", Some(us)),
    };
    json.key("subscriptionMode").plain(mode).key("subscriptionTimestamp");
    match from_us {
        Some(us) => json.time(us),
        None => json.null(),
    };
    json.key("subscriptionCreatedAt").time(group.joined_us);
}

/// How far a group lags on some partitions.
#[derive(Default)]
struct Lag {
    records: u64,
    seconds: i64,
    /// Leases that are held.
    members: usize,
}

impl Lag {
    async fn of(api: &Api, lagging: &[Standing]) -> Result<Self, Failure> {
        let mut lag = Self::default();
        let mut leases = std::collections::BTreeSet::new();
        for standing in lagging {
            for group in &standing.groups {
                let position = group.position.as_ref();
                lag.records += standing.owed(position);
                lag.seconds = lag.seconds.max(seconds_behind(api, standing).await?.unwrap_or(0));
                leases.extend(position.and_then(|p| p.held.as_ref()).map(|h| &h.token));
            }
        }
        lag.members = leases.len();
        Ok(lag)
    }
}

/// The age of the oldest record that the first group listed has yet to finish, seconds; `None` if there is none.
pub(crate) async fn seconds_behind(api: &Api, standing: &Standing) -> Result<Option<i64>, Failure> {
    let position = standing.slowest().and_then(|g| g.position.as_ref());
    let Some(offset) = standing.next_owed(position) else { return Ok(None) };
    let time_us = api.engine().time_of(standing, offset).await?;
    Ok(time_us.map(|us| (api.now_us() - us).max(0) / 1_000_000))
}

/// `GET /api/v1/consumer-groups/{group}`: by queue, the partitions that the group has come to, a page of each queue's:
/// `limit`, and `after` with a partition's id.
#[utoipa::path(
    get, path = "/api/v1/consumer-groups/{group}", operation_id = "group", tag = "administer",
    params(("group" = String, Path, min_length = 1), openapi::AfterPage),
    responses((status = 200, description = "How far the group has come, by queue", body = openapi::GroupDetail)),
)]
pub(crate) async fn detail(
    State(api): State<Api>,
    Segments(group): Segments<String>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let limit = parameters.number("limit")?.unwrap_or(PARTITIONS).clamp(1, 1_000) as usize;
    let after = parameters.text("after").and_then(tidewheel_engine::PartitionId::parse);
    let mut json = Json::with_capacity(4096);
    json.object();
    for queue in engine.streams(None, QUEUES).await? {
        let groups = engine.groups(&queue).await?;
        let Some(info) = groups.iter().find(|g| g.name == group) else { continue };
        json.key(&queue).object().key("conflation").bool(info.conflation);
        registration(&mut json, info);
        json.key("partitions").array();
        for standing in engine.standings(&queue, Some(&group), after.as_ref(), limit).await? {
            let position = standing.groups.first().and_then(|g| g.position.as_ref());
            let Some(position) = position else { continue };
            json.object().key("partition").string(&standing.partition.name);
            json.key("partitionId").plain(standing.partition.id);
            let held = position.held.as_ref();
            json.key("workerId").string_or_null(held.map(|h| h.token.as_str()));
            json.key("totalConsumed").number(position.consumed);
            json.key("committedOffset").number(position.committed);
            json.key("offsetLag").number(standing.owed(Some(position)));
            let seconds = seconds_behind(&api, &standing).await?.unwrap_or(0);
            json.key("timeLagSeconds").number(seconds);
            json.key("leaseActive").bool(held.is_some()).key("lastConsumedAt");
            match position.consumed_us {
                Some(us) => json.time(us),
                None => json.null(),
            };
            json.end_object();
        }
        json.end_array().end_object();
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/consumer-groups/lagging?minLagSeconds=`, the longest lag first.
#[utoipa::path(
    get, path = "/api/v1/consumer-groups/lagging", operation_id = "laggingGroups", tag = "administer",
    params(openapi::LagParameters),
    responses((status = 200, description = "Partitions on which groups lag, the longest lag first", body = Vec<openapi::LagRow>)),
)]
pub(crate) async fn lagging(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let least = parameters.number("minLagSeconds")?.unwrap_or(0);
    let mut rows: Vec<(i64, Standing)> = Vec::new();
    for queue in engine.streams(parameters.text("after"), QUEUES).await? {
        for group in engine.groups(&queue).await? {
            for standing in engine.lagging(&queue, &group.name, LAGGING).await? {
                let seconds = seconds_behind(&api, &standing).await?.unwrap_or(0);
                if seconds >= least {
                    rows.push((seconds, standing));
                }
            }
        }
    }
    rows.sort_by_key(|(seconds, _)| std::cmp::Reverse(*seconds));
    let mut json = Json::with_capacity(64 + rows.len() * 300);
    json.array();
    for (seconds, standing) in &rows {
        let Some(group) = standing.groups.first() else { continue };
        json.object().key("consumer_group").string(&group.group.name);
        json.key("queue_name").string(&standing.partition.stream);
        json.key("partition_name").string(&standing.partition.name);
        json.key("partition_id").plain(standing.partition.id);
        let held = group.position.as_ref().and_then(|p| p.held.as_ref());
        json.key("worker_id").string_or_null(held.map(|h| h.token.as_str()));
        json.key("offset_lag").number(standing.owed(group.position.as_ref()));
        json.key("time_lag_seconds").number(seconds);
        json.key("lag_hours").number(format_args!("{:.2}", *seconds as f64 / 3600.0));
        json.end_object();
    }
    json.end_array();
    Ok(json.into_response(StatusCode::OK))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Subscription<'a> {
    #[serde(borrow)]
    subscription_timestamp: Option<Text<'a>>,
}

/// `POST /api/v1/consumer-groups/{group}/subscription`: moves where the group starts on partitions that it has not come
/// to.
#[utoipa::path(
    post, path = "/api/v1/consumer-groups/{group}/subscription", operation_id = "moveSubscription", tag = "administer",
    params(("group" = String, Path, min_length = 1)),
    request_body = openapi::SubscriptionRequest,
    responses((status = 200, description = "Moved", body = openapi::SubscriptionAnswer)),
)]
pub(crate) async fn subscription(
    State(api): State<Api>,
    Segments(group): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let request: Subscription<'_> = body.parse()?;
    let text = filled(&request.subscription_timestamp)
        .ok_or_else(|| Failure::bad_request("`subscriptionTimestamp` is missing"))?;
    let from_us = time::parse(text).ok_or_else(|| {
        let text = shortened(text);
        Failure::bad_request(format!(
            "`subscriptionTimestamp` must be an ISO 8601 time, not `{text}`"
        ))
    })?;
    let changed = api.engine().set_subscription(&group, from_us).await?;
    let mut json = Json::with_capacity(256);
    json.object().key("success").bool(true).key("consumerGroup").string(&group);
    json.key("newTimestamp").string(text).key("rowsUpdated").number(changed).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `DELETE /api/v1/consumer-groups/{group}`. With `deleteMetadata=false` the group stays registered as it was, and its
/// positions go back to where that began.
#[utoipa::path(
    delete, path = "/api/v1/consumer-groups/{group}", operation_id = "deleteGroup", tag = "administer",
    params(("group" = String, Path, min_length = 1), openapi::DeleteGroupParameters),
    responses((status = 200, description = "Deleted", body = openapi::GroupDeleted)),
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    Segments(group): Segments<String>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    deleted(&api, &group, None, &parameters).await
}

/// `DELETE /api/v1/consumer-groups/{group}/queues/{queue}`: the same on one queue.
#[utoipa::path(
    delete, path = "/api/v1/consumer-groups/{group}/queues/{queue}", operation_id = "deleteGroupOnQueue", tag = "administer",
    params(("group" = String, Path, min_length = 1), ("queue" = String, Path, min_length = 1), openapi::DeleteGroupParameters),
    responses((status = 200, description = "Deleted", body = openapi::GroupDeleted)),
)]
pub(crate) async fn delete_on_queue(
    State(api): State<Api>,
    Segments((group, queue)): Segments<(String, String)>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    deleted(&api, &group, Some(&queue), &parameters).await
}

async fn deleted(
    api: &Api,
    group: &str,
    queue: Option<&str>,
    parameters: &Parameters,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let keeps = parameters.text("deleteMetadata").is_some() && !parameters.flag("deleteMetadata");
    let outcome = if keeps {
        engine.restart_group(group, queue).await.map(|partitions| (partitions, false))
    } else {
        engine.delete_group(group, queue).await
    };
    let (partitions, registered) = match outcome {
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

/// `POST …/{group}/queues/{queue}/seek`: moves a group on a queue.
#[utoipa::path(
    post, path = "/api/v1/consumer-groups/{group}/queues/{queue}/seek", operation_id = "seek", tag = "administer",
    params(("group" = String, Path, min_length = 1), ("queue" = String, Path, min_length = 1)),
    request_body = openapi::SeekRequest,
    responses((status = 200, description = "Moved", body = openapi::SeekAnswer)),
)]
pub(crate) async fn seek(
    State(api): State<Api>,
    Segments((group, queue)): Segments<(String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    sought(&api, &group, &queue, None, body.parse()?).await
}

/// `POST …/{group}/queues/{queue}/partitions/{partition}/seek`. An empty body is to the end.
#[utoipa::path(
    post, path = "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", operation_id = "seekPartition", tag = "administer",
    params(("group" = String, Path, min_length = 1), ("queue" = String, Path, min_length = 1), ("partition" = String, Path, min_length = 1)),
    request_body = Option<openapi::SeekRequest>,
    responses((status = 200, description = "Moved", body = openapi::SeekAnswer)),
)]
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
