//! `/api/v1/timers`: messages that are pushed later.
//!
//! A payload travels as base64, because the protocol lets it be any bytes; what becomes a message here is JSON, so other
//! bytes are refused when the timer is scheduled and not when it fires. A compressed payload is unpacked then, too.

use axum::{extract::State, http::StatusCode, response::Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use tidewheel_engine::{Action, Timer, TimerAction, TimerOp, TimerOutcome, TimerStatus, limits};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    auth::Caller,
    body::{Body, Object, Segments, Text, filled, payload},
    error::{Failure, shortened},
    json::Json,
    openapi,
    query::Parameters,
};

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(batch)).routes(routes!(list)).routes(routes!(peek, cancel))
}

/// Timers in a page when the request names no number.
const PAGE: i64 = 100;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    operations: Vec<Object<Operation<'a>>>,
}

/// One operation, by `op`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operation<'a> {
    #[serde(borrow)]
    op: Text<'a>,
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    timer_key: Text<'a>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    delay_ms: Option<i64>,
    #[serde(borrow)]
    txn: Option<Text<'a>>,
    #[serde(borrow)]
    payload: Option<Text<'a>>,
    payload_zstd: Option<bool>,
    encrypted: Option<bool>,
    /// What the server alone decides.
    #[serde(borrow, alias = "message_id")]
    message_id: Option<&'a serde_json::value::RawValue>,
    #[serde(borrow, alias = "deliver_at")]
    deliver_at: Option<&'a serde_json::value::RawValue>,
    #[serde(borrow, alias = "producer_sub")]
    producer_sub: Option<&'a serde_json::value::RawValue>,
}

impl Operation<'_> {
    fn read(&self, index: usize) -> Result<TimerOp, Failure> {
        let bad = |text: &str| Failure::bad_request(format!("operations[{index}]: {text}"));
        if self.message_id.is_some() || self.deliver_at.is_some() || self.producer_sub.is_some() {
            return Err(bad(
                "`messageId`, `deliverAt` and `producerSub` are the server's to decide",
            ));
        }
        let action = match &*self.op {
            "schedule" | "reschedule" => {
                if self.encrypted == Some(true) {
                    return Err(bad(
                        "a payload that is encrypted already cannot be delivered as JSON",
                    ));
                }
                if self.partition.as_deref() == Some("") {
                    return Err(bad("`partition` is empty"));
                }
                let encoded = self.payload.as_deref().ok_or_else(|| bad("`payload` is missing"))?;
                let decoded = BASE64_STANDARD
                    .decode(encoded)
                    .map_err(|e| bad(&format!("`payload` is not base64: {e}")))?;
                let decoded = match self.payload_zstd.unwrap_or(false) {
                    true => zstd::bulk::decompress(&decoded, limits::TIMER_PAYLOAD_BYTES)
                        .map_err(|_| bad("`payload` is not zstd, or unpacks to too much"))?,
                    false => decoded,
                };
                payload(&decoded).map_err(|text| bad(&format!("`payload` {text}")))?;
                TimerAction::Schedule {
                    delay_ms: self.delay_ms.ok_or_else(|| bad("`delayMs` is missing"))?,
                    partition: filled(&self.partition).unwrap_or_default().to_owned(),
                    transaction_id: filled(&self.txn)
                        .ok_or_else(|| bad("`txn` is missing"))?
                        .to_owned(),
                    payload: Bytes::from(decoded),
                }
            }
            "cancel" => {
                TimerAction::Cancel { transaction_id: filled(&self.txn).map(str::to_owned) }
            }
            other => {
                return Err(bad(&format!("unknown operation `{}`", shortened(other))));
            }
        };
        Ok(TimerOp { stream: self.queue.to_string(), key: self.timer_key.to_string(), action })
    }
}

/// The timers of a transaction.
pub(super) fn riders(operations: &[Object<Operation<'_>>]) -> Result<Vec<TimerOp>, Failure> {
    operations.iter().enumerate().map(|(index, operation)| operation.read(index)).collect()
}

/// Checks that timers are granted: a timer is a push that happens later.
pub(super) fn granted(caller: &Caller, timers: &[TimerOp]) -> Result<(), Failure> {
    caller.check_all(Action::Publish, timers.iter().map(|t| t.stream.as_str()))
}

/// `POST /api/v1/timers`: schedules and cancels timers, in one commit.
#[utoipa::path(
    post, path = "/api/v1/timers", operation_id = "timers", tag = "timers",
    request_body = openapi::TimerRequest,
    responses((status = 200, description = "What became of each, in order", body = openapi::TimerAnswer)),
)]
async fn batch(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let timers = riders(&request.operations)?;
    granted(body.caller(), &timers)?;
    let outcomes = api.engine().timers(timers).await?;
    let mut json = Json::with_capacity(32 + outcomes.len() * 300);
    json.object().key("results").array();
    for outcome in &outcomes {
        json.object();
        members(&mut json, outcome);
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/timers/{queue}`: the timers of a queue that wait, by key.
#[utoipa::path(
    get, path = "/api/v1/timers/{queue}", operation_id = "listTimers", tag = "timers",
    params(openapi::TimerQueue, openapi::TimerPageParameters),
    responses((status = 200, description = "Timers in the order of their keys", body = openapi::TimerPage)),
)]
async fn list(
    State(api): State<Api>,
    Segments(queue): Segments<String>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let limit = parameters.number("limit")?.unwrap_or(PAGE).clamp(1, limits::TIMER_PAGE as i64);
    let limit = usize::try_from(limit).unwrap_or(1);
    let (timers, more) = api.engine().list_timers(&queue, parameters.text("after"), limit).await?;
    let mut json = Json::with_capacity(64 + timers.len() * 300);
    json.object().key("rows").array();
    for timer in &timers {
        json.object();
        timer_members(&mut json, timer);
        json.end_object();
    }
    json.end_array().key("truncated").bool(more);
    if let Some(last) = timers.last().filter(|_| more) {
        json.key("nextAfter").string(&last.key);
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/timers/{queue}/{key}`: one timer with its payload; `found` says whether it waits.
#[utoipa::path(
    get, path = "/api/v1/timers/{queue}/{*key}", operation_id = "peekTimer", tag = "timers",
    params(openapi::TimerPath),
    responses((status = 200, description = "The timer, if it waits", body = openapi::TimerPeek)),
)]
async fn peek(
    State(api): State<Api>,
    Segments((queue, key)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let timer = api.engine().timer(&queue, &key).await?;
    let mut json = Json::with_capacity(512);
    json.object().key("found").bool(timer.is_some());
    match &timer {
        Some(timer) => {
            timer_members(&mut json, timer);
            json.key("payload").plain(BASE64_STANDARD.encode(&timer.payload));
        }
        None => {
            json.key("queue").string(&queue).key("timerKey").string(&key);
        }
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `DELETE /api/v1/timers/{queue}/{key}`: cancels a timer; `txn` is echoed if there is none.
#[utoipa::path(
    delete, path = "/api/v1/timers/{queue}/{*key}", operation_id = "cancelTimer", tag = "timers",
    params(openapi::TimerPath, openapi::TimerCancelParameters),
    responses((status = 200, description = "What became of it", body = openapi::TimerResult)),
)]
async fn cancel(
    State(api): State<Api>,
    Segments((queue, key)): Segments<(String, String)>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let transaction_id = parameters.text("txn").map(str::to_owned);
    let action = TimerAction::Cancel { transaction_id };
    let outcomes = api.engine().timers(vec![TimerOp { stream: queue, key, action }]).await?;
    let mut json = Json::with_capacity(256);
    json.object();
    for outcome in &outcomes {
        members(&mut json, outcome);
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// What one operation did.
pub(super) fn members(json: &mut Json, outcome: &TimerOutcome) {
    let (ok, status) = match outcome.status {
        TimerStatus::Scheduled => (true, "scheduled"),
        TimerStatus::Rescheduled => (true, "rescheduled"),
        TimerStatus::Cancelled => (true, "cancelled"),
        TimerStatus::Absent => (false, "absent"),
    };
    json.key("ok").bool(ok).key("status").plain(status);
    json.key("queue").string(&outcome.stream).key("timerKey").string(&outcome.key);
    if let Some(transaction_id) = &outcome.transaction_id {
        json.key("txn").string(transaction_id);
    }
    if let Some(id) = &outcome.id {
        json.key("messageId").plain(id);
    }
    if let Some(due_us) = outcome.due_us {
        json.key("deliverAt").time(due_us);
    }
}

fn timer_members(json: &mut Json, timer: &Timer) {
    json.key("queue").string(&timer.stream).key("timerKey").string(&timer.key);
    json.key("partition").string(&timer.partition).key("deliverAt").time(timer.due_us);
    json.key("txn").string(&timer.transaction_id).key("messageId").plain(timer.id);
    json.key("payloadZstd").bool(false).key("encrypted").bool(timer.sealed);
    json.key("attempts").number(0).key("claimed").bool(false);
    json.key("createdAt").time(timer.made_us).key("updatedAt").time(timer.updated_us);
}
