//! `/api/v1/messages`: single messages, for people. A message is addressed by its partition and its transaction id.
//!
//! What can be done to one concerns its dead letter only: messages that are not dead live in segments that never change.

use std::collections::BinaryHeap;

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{
    GroupPosition, PartitionId, QUEUE_MODE_GROUP, Record, Standing, StreamInfo,
};

use super::{
    dead_letters::{missing, replayed},
    trace_id,
};
use crate::{Api, body::Segments, error::Failure, json::Json, openapi, query::Parameters, time};

/// Messages in a page of the listing when the request names no number.
const PAGE: i64 = 200;

/// Messages in a page of the listing, those that `offset` skips included.
const PAGE_MAX: i64 = 2_000;

/// Partitions that a listing looks at.
const PARTITIONS: usize = 200;

/// Queues that a listing by labels looks at.
const QUEUES: usize = 100;

/// Bytes of payloads that one read of a listing takes.
const READ_BYTES: usize = 8 << 20;

/// How far back a listing reaches that names no time, µs.
const WINDOW_US: i64 = 3_600_000_000;

/// What a group has made of an offset.
fn status_for(group: &GroupPosition, offset: u64) -> &'static str {
    match &group.position {
        Some(p) if offset < p.committed => "completed",
        Some(p) if p.held.as_ref().is_some_and(|held| offset < held.end) => "processing",
        _ => "pending",
    }
}

/// What all groups have made of it: somebody is at it, or all are done, or it waits.
fn status_of(standing: &Standing, offset: u64) -> &'static str {
    let statuses = || standing.groups.iter().map(|g| status_for(g, offset));
    if statuses().any(|s| s == "processing") {
        "processing"
    } else if !standing.groups.is_empty() && statuses().all(|s| s == "completed") {
        "completed"
    } else {
        "pending"
    }
}

/// Whether a queue is shared by its consumers or read by groups.
fn mode<'a>(json: &mut Json, groups: impl Iterator<Item = &'a str>) {
    let buses = groups.filter(|name| *name != QUEUE_MODE_GROUP).count();
    json.key("mode").object().key("type").plain(if buses > 0 { "bus" } else { "queue" });
    json.key("busGroupsCount").number(buses).end_object();
}

/// `GET /api/v1/messages/{partition}/{transaction}`: one message, and what groups have made of it.
#[utoipa::path(
    get, path = "/api/v1/messages/{partition}/{transaction}", operation_id = "message", tag = "administer",
    params(("partition" = String, Path, min_length = 1), ("transaction" = String, Path, min_length = 1)),
    responses((status = 200, description = "The message", body = openapi::MessageDetail)),
)]
pub(crate) async fn detail(
    State(api): State<Api>,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let absent = || Failure::not_found("message not found");
    let id = PartitionId::parse(&partition).ok_or_else(absent)?;
    let standing = engine.standing(&id).await?.ok_or_else(absent)?;
    let info = engine.stream(&standing.partition.stream).await?.ok_or_else(absent)?;
    let letter = engine.dead_letter_of(&id, &transaction, None).await?;
    let record = match engine.find_record(&id, &transaction).await? {
        Some(record) => record,
        // Dead letters survive retention.
        None => letter.as_ref().map(|l| l.record.clone()).ok_or_else(absent)?,
    };
    let letter = letter.filter(|l| l.record.offset == record.offset);
    let options = serde_json::to_vec(&info.options)
        .map_err(|e| Failure::bad_request(format!("options: {e}")))?;

    let mut json = Json::with_capacity(2048 + 2 * record.payload.len());
    json.object();
    members(&mut json, &info, &standing, &record);
    json.key("queuePath").string(&format!("{}/{}", info.name, standing.partition.name));
    json.key("data").raw(&record.payload).key("payload").raw(&record.payload);
    let status = if letter.is_some() { "dead_letter" } else { status_of(&standing, record.offset) };
    json.key("status").plain(status);
    let held = standing.groups.iter().filter_map(|g| g.position.as_ref()?.held.as_ref());
    let until = held.filter(|h| record.offset < h.end).map(|h| h.until_us).max();
    json.key("leaseExpiresAt");
    time_or_null(&mut json, until.filter(|_| status == "processing"));
    let failures = standing.groups.iter().filter_map(|g| g.position.as_ref());
    let failures = failures.filter(|p| p.committed == record.offset).map(|p| p.failures).max();
    let retries = letter.as_ref().map(|l| l.failures).or(failures).unwrap_or(0);
    json.key("retryCount").number(retries);
    json.key("errorMessage").string_or_null(letter.as_ref().map(|l| l.error.as_str()));
    json.key("consumerGroups").array();
    for group in &standing.groups {
        let dead = letter.as_ref().is_some_and(|l| l.group == group.group.name);
        let status = if dead { "dead_letter" } else { status_for(group, record.offset) };
        json.object().key("name").string(&group.group.name).key("status").plain(status);
        json.key("consumed").bool(matches!(status, "completed" | "dead_letter"));
        let position = group.position.as_ref();
        json.key("totalConsumed").number(position.map_or(0, |p| p.consumed));
        json.key("leaseExpiresAt");
        let held = position.and_then(|p| p.held.as_ref());
        time_or_null(&mut json, held.map(|h| h.until_us));
        json.key("lastConsumedAt");
        time_or_null(&mut json, position.and_then(|p| p.consumed_us));
        json.end_object();
    }
    json.end_array();
    mode(&mut json, standing.groups.iter().map(|g| g.group.name.as_str()));
    json.key("queueConfig").raw(&options).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// Keys that a message has in the listing and alone.
fn members(json: &mut Json, info: &StreamInfo, standing: &Standing, record: &Record) {
    json.key("id").plain(record.id).key("transactionId").string(&record.transaction_id);
    json.key("partitionId").plain(standing.partition.id);
    json.key("partition").string(&standing.partition.name).key("queue").string(&info.name);
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("traceId");
    match trace_id::of(record.headers.as_ref()) {
        Some(id) => json.plain(id),
        None => json.null(),
    };
    json.key("producerSub").null().key("createdAt").time(record.time_us);
    json.key("offset").number(record.offset);
}

fn time_or_null(json: &mut Json, us: Option<i64>) {
    match us {
        Some(us) => json.time(us),
        None => json.null(),
    };
}

/// `DELETE /api/v1/messages/{partition}/{transaction}`: deletes the message's dead letter, the newest, or that of
/// `consumerGroup`. Anything else is not found.
#[utoipa::path(
    delete, path = "/api/v1/messages/{partition}/{transaction}", operation_id = "deleteDeadLetter", tag = "administer",
    params(("partition" = String, Path, min_length = 1), ("transaction" = String, Path, min_length = 1), openapi::GroupParameter),
    responses((status = 200, description = "Deleted", body = openapi::Done),
        (status = 404, description = "No such dead letter", body = openapi::NoDeadLetter)),
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    Segments((partition, transaction)): Segments<(String, String)>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let Some(id) = letter_id(&api, &partition, &transaction, &parameters).await? else {
        return Ok(missing());
    };
    if !api.engine().delete_dead_letter(&id).await? {
        return Ok(missing());
    }
    let mut json = Json::with_capacity(256);
    json.object().key("success").bool(true).key("partitionId").string(&partition);
    json.key("transactionId").string(&transaction).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `POST /api/v1/messages/{partition}/{transaction}/retry`: replays the message's dead letter, chosen in the same way.
#[utoipa::path(
    post, path = "/api/v1/messages/{partition}/{transaction}/retry", operation_id = "retryMessage", tag = "administer",
    params(("partition" = String, Path, min_length = 1), ("transaction" = String, Path, min_length = 1), openapi::GroupParameter),
    responses((status = 200, description = "Pushed again, or it was before", body = openapi::ReplayAnswer),
        (status = 404, description = "No such dead letter", body = openapi::NoDeadLetter)),
)]
pub(crate) async fn retry(
    State(api): State<Api>,
    Segments((partition, transaction)): Segments<(String, String)>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    match letter_id(&api, &partition, &transaction, &parameters).await? {
        Some(id) => Ok(replayed(&api.engine().replay_dead_letter(&id).await?)),
        None => Ok(missing()),
    }
}

async fn letter_id(
    api: &Api,
    partition: &str,
    transaction: &str,
    parameters: &Parameters,
) -> Result<Option<String>, Failure> {
    let Some(id) = PartitionId::parse(partition) else { return Ok(None) };
    let group = parameters.text("consumerGroup");
    Ok(api.engine().dead_letter_of(&id, transaction, group).await?.map(|letter| letter.id))
}

/// A message of the listing; the newest is the greatest.
struct Listed {
    queue: usize,
    standing: usize,
    record: Record,
}

impl Listed {
    fn order(&self) -> (i64, tidewheel_engine::Uuid) {
        (self.record.time_us, self.record.id)
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Listed {}

impl PartialOrd for Listed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Listed {
    /// Backwards, so that the top of a heap is the oldest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

/// `GET /api/v1/messages`: the newest first, of a queue, of one of its partitions, or of the queues with these labels;
/// from the last hour, unless `from` and `to` say otherwise. `total` is the number in this page. The first
/// [`PARTITIONS`] partitions of each queue are looked at.
#[utoipa::path(
    get, path = "/api/v1/messages", operation_id = "listMessages", tag = "administer",
    params(openapi::MessageParameters),
    responses((status = 200, description = "Messages, newest first", body = openapi::Messages)),
)]
pub(crate) async fn list(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let instant = |name: &str| match parameters.text(name) {
        None => Ok(None),
        Some(text) => time::parse(text).map(Some).ok_or_else(|| {
            Failure::bad_request(format!(
                "parameter `{name}` must be an ISO 8601 time, not `{text}`"
            ))
        }),
    };
    let to_us = instant("to")?.unwrap_or(i64::MAX);
    let from_us = instant("from")?.unwrap_or(to_us.min(api.now_us()) - WINDOW_US);
    let limit = parameters.number("limit")?.unwrap_or(PAGE).clamp(1, PAGE_MAX) as usize;
    let offset = parameters.number("offset")?.unwrap_or(0).max(0);
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    let most = limit.saturating_add(skip).min(PAGE_MAX as usize);
    let queues = queues(&api, &parameters).await?;
    let mut standings: Vec<Vec<Standing>> = Vec::with_capacity(queues.len());
    let mut newest: BinaryHeap<Listed> = BinaryHeap::new();
    for (at, info) in queues.iter().enumerate() {
        let mut found = match parameters.text("partition") {
            Some(name) => {
                let id = PartitionId::of(&info.id, name);
                api.engine().standing(&id).await?.into_iter().collect()
            }
            None => api.engine().standings(&info.name, None, None, PARTITIONS).await?,
        };
        found.sort_by_key(|s| std::cmp::Reverse(s.last_us));
        for (place, standing) in found.iter().enumerate() {
            let full = newest.len() >= most;
            let oldest_us = newest.peek().filter(|_| full).map_or(from_us, |l| l.record.time_us);
            if standing.last_us < oldest_us.max(from_us) {
                break;
            }
            let records = newest_of(&api, standing, from_us, to_us, most).await?;
            let wanted = |r: &Record| {
                parameters.text("status").is_none_or(|s| s == status_of(standing, r.offset))
            };
            for record in records.into_iter().filter(wanted) {
                newest.push(Listed { queue: at, standing: place, record });
                if newest.len() > most {
                    newest.pop();
                }
            }
        }
        standings.push(found);
    }

    let listed: Vec<Listed> = newest.into_sorted_vec().into_iter().skip(skip).collect();
    let mut json = Json::with_capacity(256 + listed.len() * 500);
    json.object().key("messages").array();
    for Listed { queue, standing, record } in &listed {
        let standing = &standings[*queue][*standing];
        json.object();
        members(&mut json, &queues[*queue], standing, record);
        json.key("status").plain(status_of(standing, record.offset));
        json.key("txnHash").plain(format_args!("{:016x}", hash(&record.transaction_id)));
        json.key("segment").object().key("offset").number(record.offset);
        json.key("bytes").number(record.payload.len()).end_object().end_object();
    }
    json.end_array().key("total").number(listed.len());
    json.key("pagination").object().key("limit").number(limit);
    json.key("offset").number(offset).end_object();
    let groups = standings.iter().flatten().next();
    mode(&mut json, groups.iter().flat_map(|s| &s.groups).map(|g| g.group.name.as_str()));
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// The queue that a listing names, or those that have its labels.
async fn queues(api: &Api, parameters: &Parameters) -> Result<Vec<StreamInfo>, Failure> {
    let engine = api.engine();
    if let Some(queue) = parameters.text("queue") {
        return Ok(engine.stream(queue).await?.into_iter().collect());
    }
    let mut found = Vec::new();
    for name in engine.streams(None, QUEUES).await? {
        let fits = |wanted: Option<&str>, label: &str| wanted.is_none_or(|w| w == label);
        if let Some(info) = engine.stream(&name).await?
            && fits(parameters.text("namespace"), &info.namespace)
            && fits(parameters.text("task"), &info.task)
        {
            found.push(info);
        }
    }
    Ok(found)
}

/// The newest records of a partition within a time, at most this many.
async fn newest_of(
    api: &Api,
    standing: &Standing,
    from_us: i64,
    to_us: i64,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let id = &standing.partition.id;
    let span = match api.engine().offsets_between(id, from_us, to_us).await {
        Err(tidewheel_engine::Error::PartitionNotFound) => return Ok(Vec::new()),
        span => span?,
    };
    let mut at = span.floor.max(span.tail.saturating_sub(most as u64));
    let mut records = Vec::new();
    while at < span.tail {
        let read = api.engine().read(id, at, (span.tail - at) as usize, READ_BYTES).await?;
        if read.records.is_empty() {
            break;
        }
        at = read.next;
        records.extend(read.records);
    }
    Ok(records)
}

/// A short name for a transaction id: FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
