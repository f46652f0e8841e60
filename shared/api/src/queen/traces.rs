//! Traces: what workers write down about a message, found again by the message or by a name.
//!
//! Nothing here looks at whether the message exists: a trace is what its writer says. Rows have snake_case keys,
//! unlike the request that wrote them.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tidewheel_engine::{Action, NewTrace, PartitionId, QUEUE_MODE_GROUP, Trace};

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    body::{Body, Segments, Text, filled, present},
    error::Failure,
    json::Json,
    openapi,
    query::Parameters,
};

/// Rows in a page, at most.
const PAGE_MAX: i64 = 1_000;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(record))
        .routes(routes!(names))
        .routes(routes!(by_name))
        .routes(routes!(of_message))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow)]
    partition_id: Option<Text<'a>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
    #[serde(borrow)]
    event_type: Option<Text<'a>>,
    trace_names: Option<Value>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
}

/// `POST /api/v1/traces`: writes a trace down.
#[utoipa::path(
    post, path = "/api/v1/traces", operation_id = "recordTrace", tag = "operate",
    request_body = openapi::TraceRequest,
    responses((status = 201, description = "Written down", body = openapi::TraceRecorded),
        (status = 404, description = "No such partition", body = openapi::Problem)),
)]
async fn record(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let (Some(transaction_id), Some(partition_id)) =
        (filled(&request.transaction_id), filled(&request.partition_id))
    else {
        return Err(Failure::bad_request("transactionId and partitionId are required"));
    };
    body.caller().check_partition(&api, Action::Consume, partition_id).await?;
    let data = request.data.ok_or_else(|| Failure::bad_request("data is required"))?;
    let trace = NewTrace {
        partition: partition(partition_id)?,
        transaction_id: transaction_id.to_owned(),
        group: filled(&request.consumer_group).unwrap_or(QUEUE_MODE_GROUP).to_owned(),
        event: filled(&request.event_type).unwrap_or("info").to_owned(),
        names: labels(request.trace_names)?,
        data: body.part(data),
    };
    let id = api.engine().trace(trace).await?;
    let mut json = Json::with_capacity(80);
    json.object().key("success").bool(true).key("traceId").plain(id).end_object();
    Ok(json.into_response(StatusCode::CREATED))
}

fn partition(id: &str) -> Result<PartitionId, Failure> {
    PartitionId::parse(id)
        .ok_or_else(|| Failure::bad_request("partitionId is no id of a partition"))
}

/// Labels are an array of texts, or one text.
fn labels(value: Option<Value>) -> Result<Vec<String>, Failure> {
    let bad = || Failure::bad_request("traceNames must be an array of strings");
    let text = |value| if let Value::String(text) = value { Ok(text) } else { Err(bad()) };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(names)) => names.into_iter().map(text).collect(),
        Some(name) => Ok(vec![text(name)?]),
    }
}

/// `GET /api/v1/traces/{partition}/{transaction}`, oldest first.
#[utoipa::path(
    get, path = "/api/v1/traces/{partition}/{transaction}", operation_id = "messageTraces", tag = "operate",
    params(("partition" = String, Path, min_length = 1), ("transaction" = String, Path, min_length = 1)),
    responses((status = 200, description = "Traces, oldest first", body = openapi::MessageTraces)),
)]
async fn of_message(
    State(api): State<Api>,
    Segments((partition_id, transaction_id)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let traces = match PartitionId::parse(&partition_id) {
        Some(partition) => api.engine().traces_of(&partition, &transaction_id).await?,
        None => Vec::new(),
    };
    let mut json = Json::with_capacity(64 + traces.len() * 500);
    json.object().key("traces").array();
    for trace in &traces {
        json.object();
        members(&mut json, trace);
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/traces/by-name/{name}`, oldest first.
#[utoipa::path(
    get, path = "/api/v1/traces/by-name/{name}", operation_id = "tracesByName", tag = "operate",
    params(("name" = String, Path, min_length = 1), openapi::OffsetPage),
    responses((status = 200, description = "Traces, oldest first", body = openapi::NamedTraces)),
)]
async fn by_name(
    State(api): State<Api>,
    Segments(name): Segments<String>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let (limit, offset) = page(&parameters, 100)?;
    let found = api.engine().traces_by_name(&name, offset as usize, limit as usize).await?;
    let mut json = Json::with_capacity(128 + found.traces.len() * 600);
    json.object().key("traces").array();
    for trace in &found.traces {
        json.object();
        members(&mut json, trace);
        json.key("queue_name").string(&trace.stream);
        json.key("partition_name").string(&trace.partition_name);
        json.key("message_payload").null().end_object();
    }
    json.end_array().key("total").number(found.total);
    pagination(&mut json, limit, offset);
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/traces/names`, the most recently used first.
#[utoipa::path(
    get, path = "/api/v1/traces/names", operation_id = "traceNames", tag = "operate",
    params(openapi::OffsetPage),
    responses((status = 200, description = "Names, the most recently used first", body = openapi::TraceNames)),
)]
async fn names(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let (limit, offset) = page(&parameters, 50)?;
    let found = api.engine().trace_names(offset as usize, limit as usize).await?;
    let mut json = Json::with_capacity(128 + found.names.len() * 160);
    json.object().key("trace_names").array();
    for name in &found.names {
        json.object().key("trace_name").string(&name.name);
        json.key("trace_count").number(name.traces).key("message_count").number(name.messages);
        json.key("last_seen").time(name.last_us).end_object();
    }
    json.end_array().key("total").number(found.total);
    pagination(&mut json, limit, offset);
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn page(parameters: &Parameters, default: i64) -> Result<(i64, i64), Failure> {
    let limit = parameters.number("limit")?.unwrap_or(default).clamp(1, PAGE_MAX);
    Ok((limit, parameters.number("offset")?.unwrap_or(0).max(0)))
}

fn pagination(json: &mut Json, limit: i64, offset: i64) {
    json.key("pagination").object().key("limit").number(limit);
    json.key("offset").number(offset).end_object();
}

fn members(json: &mut Json, trace: &Trace) {
    json.key("id").plain(trace.id).key("transaction_id").string(&trace.transaction_id);
    json.key("partition_id").plain(trace.partition).key("event_type").string(&trace.event);
    json.key("data").raw(&trace.data).key("consumer_group").string(&trace.group);
    json.key("worker_id").null().key("created_at").time(trace.made_us);
    json.key("trace_names").array();
    for name in &trace.names {
        json.string(name);
    }
    json.end_array();
}
