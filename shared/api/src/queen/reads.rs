//! Reads by offset, and which partitions there are to read: nothing is leased and nobody's cursor moves.
//!
//! Every entry of a request is answered in its place. What is wrong with one entry stands in it as a word that SDKs
//! know; only a request that is malformed as a whole answers 400.

use std::time::Duration;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Deserializer, de};
use tidewheel_engine::{
    Action, Changed, ChangedEntry, DEFAULT_PARTITION, Extent, Fetch, FetchEntry, Fetched, Record,
    TimeEntry, TimeFound, limits,
};

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api, WaitLimit,
    body::{Body, Object, Text},
    error::Failure,
    json::Json,
    openapi, time,
};

/// Entries of one request.
const ENTRIES: usize = 1024;

/// Streams of one request for changed partitions: each may be looked through.
const CHANGED_ENTRIES: usize = 100;

/// Bytes of payload for an entry that names no number.
const ENTRY_BYTES: usize = 1024 * 1024;

/// Bytes of payload for an entry.
const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of payload over all entries when the request names no number.
const FETCH_BYTES: usize = 32 * 1024 * 1024;

/// Bytes of payload over all entries.
const FETCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Milliseconds that a fetch may wait.
const WAIT_MS: u64 = 30_000;

/// The offset is below the log's start or above its end.
const OFFSET_OUT_OF_RANGE: &str = "OFFSET_OUT_OF_RANGE";

/// There is no such queue. A partition that nobody has written to is an empty log.
const UNKNOWN: &str = "UNKNOWN_TOPIC_OR_PARTITION";

/// A cursor that this server did not make.
const BAD_CURSOR: &str = "BAD_CURSOR";

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(fetch)).routes(routes!(offsets)).routes(routes!(changed))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FetchRequest<'a> {
    #[serde(borrow)]
    entries: Vec<Object<Entry<'a>>>,
    max_bytes: Option<i64>,
    max_wait_ms: Option<u64>,
    min_bytes: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(default, deserialize_with = "partition_name")]
    partition: Option<String>,
    offset: i64,
    max_bytes: Option<i64>,
}

/// A partition's name; a whole number stands for itself in decimal.
fn partition_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Visitor;
    impl de::Visitor<'_> for Visitor {
        type Value = Option<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a partition's name, or a whole number")
        }

        fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
            Ok(Some(name.to_owned()).filter(|n| !n.is_empty()))
        }

        fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number.to_string()))
        }

        fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
            Ok(Some(number.to_string()))
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Visitor)
}

fn check_count(entries: usize, limit: usize) -> Result<(), Failure> {
    if entries > limit {
        return Err(Failure::bad_request(format!(
            "too many entries: {entries}; the limit is {limit}"
        )));
    }
    Ok(())
}

fn bytes(asked: Option<i64>, default: usize, limit: usize) -> usize {
    asked.map_or(default, |n| usize::try_from(n.max(1)).unwrap_or(limit).min(limit))
}

/// `POST /api/v1/fetch`: records by offset.
#[utoipa::path(
    post, path = "/api/v1/fetch", operation_id = "fetch", tag = "read",
    request_body = openapi::FetchRequest,
    responses((status = 200, description = "What was read, in order", body = openapi::FetchAnswer)),
)]
async fn fetch(State(api): State<Api>, limit: WaitLimit, body: Body) -> Result<Response, Failure> {
    let request: FetchRequest<'_> = body.parse()?;
    check_count(request.entries.len(), ENTRIES)?;
    let mut entries = Vec::with_capacity(request.entries.len());
    for (index, entry) in request.entries.iter().enumerate() {
        entries.push(FetchEntry {
            stream: entry.queue.to_string(),
            partition: entry.partition.clone().unwrap_or_else(|| DEFAULT_PARTITION.to_owned()),
            offset: u64::try_from(entry.offset).map_err(|_| {
                Failure::bad_request(format!(
                    "entries[{index}].offset: {} is no offset; every answer says where the log begins and ends",
                    entry.offset
                ))
            })?,
            bytes: bytes(entry.max_bytes, ENTRY_BYTES, ENTRY_BYTES_MAX),
        });
    }
    body.caller().check_all(Action::Read, entries.iter().map(|e| e.stream.as_str()))?;
    let wait = request.max_wait_ms.filter(|ms| *ms > 0);
    let mut fetch = Fetch {
        entries,
        bytes: bytes(request.max_bytes, FETCH_BYTES, FETCH_BYTES_MAX)
            .min(api.settings().max_fetch_bytes),
        min_bytes: bytes(request.min_bytes, 1, FETCH_BYTES_MAX).min(api.settings().max_fetch_bytes),
        wait: wait.and_then(|ms| limit.cut(Duration::from_millis(ms.min(WAIT_MS)))),
    };
    let found = tokio::select! {
        found = api.engine().fetch(&fetch) => Some(found?),
        () = api.drained(), if fetch.wait.is_some() => None,
    };
    let found = match found {
        Some(found) => found,
        // About to stop: what is there now is the answer.
        None => {
            fetch.wait = None;
            api.engine().fetch(&fetch).await?
        }
    };
    Ok(fetched(&fetch.entries, &found).into_response(StatusCode::OK))
}

fn fetched(entries: &[FetchEntry], found: &[Fetched]) -> Json {
    let records = found.iter().flat_map(|f| match f {
        Fetched::Records(records, _) => records.as_slice(),
        _ => &[],
    });
    let size: usize = records.map(|r| r.payload.len() + r.transaction_id.len() + 120).sum();
    let mut json = Json::with_capacity(64 + size + entries.len() * 160);
    json.object().key("entries").array();
    for (entry, found) in entries.iter().zip(found) {
        json.object().key("queue").string(&entry.stream);
        json.key("partition").string(&entry.partition).key("records").array();
        let (extent, error) = match found {
            Fetched::Records(records, extent) => {
                records.iter().for_each(|record| record_members(&mut json, record));
                (*extent, None)
            }
            Fetched::OutOfRange(extent) => (*extent, Some(OFFSET_OUT_OF_RANGE)),
            Fetched::NoStream => (Extent { floor: 0, tail: 0 }, Some(UNKNOWN)),
        };
        json.end_array();
        bounds(&mut json, extent, error);
    }
    json.end_array().end_object();
    json
}

fn record_members(json: &mut Json, record: &Record) {
    json.object().key("offset").number(record.offset);
    json.key("transactionId").string(&record.transaction_id).key("payload");
    match record.payload.is_empty() {
        true => json.null(),
        false => json.raw(&record.payload),
    };
    json.key("ts").time(record.time_us).end_object();
}

fn bounds(json: &mut Json, extent: Extent, error: Option<&str>) {
    json.key("highWatermark").number(extent.tail).key("logStartOffset").number(extent.floor);
    if let Some(error) = error {
        json.key("error").plain(error);
    }
    json.end_object();
}

#[derive(Deserialize)]
struct OffsetsRequest<'a> {
    #[serde(borrow)]
    entries: Vec<Object<OffsetsEntry<'a>>>,
}

#[derive(Deserialize)]
struct OffsetsEntry<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(default, deserialize_with = "partition_name")]
    partition: Option<String>,
    #[serde(borrow)]
    timestamp: Timestamp<'a>,
}

/// Milliseconds since 1970, or an ISO 8601 time.
#[derive(Deserialize)]
#[serde(untagged)]
enum Timestamp<'a> {
    Milliseconds(u64),
    #[serde(borrow)]
    Iso(Text<'a>),
}

impl Timestamp<'_> {
    fn us(&self) -> Option<i64> {
        match self {
            Self::Milliseconds(ms) => i64::try_from(*ms).ok()?.checked_mul(1_000),
            Self::Iso(text) => time::parse(text).filter(|us| *us >= 0),
        }
    }
}

/// `POST /api/v1/fetch/offsets`: where partitions reach a time.
#[utoipa::path(
    post, path = "/api/v1/fetch/offsets", operation_id = "fetchOffsets", tag = "read",
    request_body = openapi::OffsetsRequest,
    responses((status = 200, description = "Where the partitions reach the times", body = openapi::OffsetsAnswer)),
)]
async fn offsets(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: OffsetsRequest<'_> = body.parse()?;
    check_count(request.entries.len(), ENTRIES)?;
    let mut entries = Vec::with_capacity(request.entries.len());
    for (index, entry) in request.entries.iter().enumerate() {
        entries.push(TimeEntry {
            stream: entry.queue.to_string(),
            partition: entry.partition.clone().unwrap_or_else(|| DEFAULT_PARTITION.to_owned()),
            time_us: entry.timestamp.us().ok_or_else(|| {
                Failure::bad_request(format!(
                    "entries[{index}].timestamp must be milliseconds since 1970 or an ISO 8601 time"
                ))
            })?,
        });
    }
    body.caller().check_all(Action::Read, entries.iter().map(|e| e.stream.as_str()))?;
    let found = api.engine().offsets_at(&entries).await?;
    let mut json = Json::with_capacity(64 + entries.len() * 200);
    json.object().key("entries").array();
    for (entry, found) in entries.iter().zip(found) {
        json.object().key("queue").string(&entry.stream);
        json.key("partition").string(&entry.partition);
        let (at, extent, error) = match found {
            TimeFound::At(at, extent) => (at, extent, None),
            TimeFound::NoStream => (None, Extent { floor: 0, tail: 0 }, Some(UNKNOWN)),
        };
        match at {
            Some((offset, us)) => json.key("offset").number(offset).key("ts").time(us),
            None => json.key("offset").null().key("ts").null(),
        };
        bounds(&mut json, extent, error);
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

#[derive(Deserialize)]
struct ChangedRequest<'a> {
    #[serde(borrow, default)]
    entries: Vec<Object<ChangedRequestEntry<'a>>>,
}

#[derive(Deserialize)]
struct ChangedRequestEntry<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    since: Option<Text<'a>>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
    limit: Option<i64>,
}

/// `POST /api/v1/partitions/changed`: partitions written to since a time, a page at a time. Without entries it answers
/// the safe time alone.
#[utoipa::path(
    post, path = "/api/v1/partitions/changed", operation_id = "changedPartitions", tag = "read",
    request_body = openapi::ChangedRequest,
    responses((status = 200, description = "Pages of partitions", body = openapi::ChangedAnswer)),
)]
async fn changed(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: ChangedRequest<'_> = body.parse()?;
    check_count(request.entries.len(), CHANGED_ENTRIES)?;
    let mut entries = Vec::with_capacity(request.entries.len());
    for (index, entry) in request.entries.iter().enumerate() {
        let since_us = match &entry.since {
            None => None,
            Some(text) => Some(time::parse(text).ok_or_else(|| {
                Failure::bad_request(format!("entries[{index}].since must be an ISO 8601 time"))
            })?),
        };
        let limit = entry.limit.unwrap_or(limits::CHANGED_PARTITIONS as i64).max(1);
        entries.push(ChangedEntry {
            stream: entry.queue.to_string(),
            since_us,
            after: entry.after.as_deref().map(str::to_owned),
            limit: usize::try_from(limit).unwrap_or(usize::MAX).min(limits::CHANGED_PARTITIONS),
        });
    }
    body.caller().check_all(Action::Read, entries.iter().map(|e| e.stream.as_str()))?;
    // Before anything is looked at: what is stamped at or before it is then seen.
    let safe_us = api.engine().safe_time_us();
    let mut json = Json::with_capacity(4 * 1024);
    json.object().key("safeTime").time(safe_us).key("safeTimeDegraded").bool(false);
    json.key("entries").array();
    for entry in &entries {
        let (partitions, next, error) = match api.engine().changed(entry).await? {
            Changed::Page(partitions, next) => (partitions, next, None),
            Changed::NoStream => (Vec::new(), None, Some(UNKNOWN)),
            Changed::BadCursor => (Vec::new(), None, Some(BAD_CURSOR)),
        };
        json.object().key("queue").string(&entry.stream).key("partitions").array();
        for partition in &partitions {
            json.object().key("name").string(&partition.info.name);
            json.key("id").plain(partition.info.id);
            let last = partition.extent.tail as i64 - 1;
            json.key("lastOffset").number(last).key("logStart").number(partition.extent.floor);
            json.key("lastWriteAt").time(partition.written_us).end_object();
        }
        json.end_array().key("next").string_or_null(next.as_deref());
        if let Some(error) = error {
            json.key("error").plain(error);
        }
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}
