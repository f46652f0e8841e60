//! `POST /api/v1/transaction`: pushes, acknowledgements, operations on keys and timers, all or nothing.
//!
//! A well-formed request answers 200, committed or rolled back; the body says which. What this server does not have
//! (`positions`) is refused whole rather than left out of an all-or-nothing bundle.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{
    Action, Error, KvLost, PushItem, Riders, RolledBack, TransactionOp, TransactionResult, Uuid,
};

use super::{acknowledgement, kv, push::Item, timers, trace_id};
use crate::{
    Api,
    auth::Caller,
    body::{Body, Object, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    operations: Vec<Object<Operation<'a>>>,
    #[serde(borrow)]
    required_leases: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    kv: Option<Vec<Object<kv::Operation<'a>>>>,
    #[serde(borrow)]
    timers: Option<Vec<Object<timers::Operation<'a>>>>,
    #[serde(borrow)]
    positions: Option<&'a RawValue>,
}

/// A push or an acknowledgement, by `type`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Operation<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    items: Option<Vec<Object<Item<'a>>>>,
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow)]
    partition_id: Option<Text<'a>>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
    #[serde(borrow)]
    lease_id: Option<Text<'a>>,
    #[serde(borrow)]
    error: Option<Text<'a>>,
}

/// `POST /api/v1/transaction`: pushes, acknowledgements, keys and timers, all or nothing.
#[utoipa::path(
    post, path = "/api/v1/transaction", operation_id = "transaction", tag = "produce",
    request_body = openapi::TransactionRequest,
    responses((status = 200, description = "Committed, or rolled back with a reason", body = openapi::TransactionAnswer)),
)]
pub(crate) async fn transaction(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let empty =
        |r: &RawValue| r.get().strip_prefix('[').is_some_and(|rest| rest.trim_ascii_start() == "]");
    if request.positions.is_some_and(|r| !empty(r)) {
        return Err(Failure::unsupported(
            "`positions` in a transaction is not supported by this server",
        ));
    }
    let mut operations = Vec::with_capacity(request.operations.len());
    for (index, operation) in request.operations.iter().enumerate() {
        operations.push(read(&body, index, operation)?);
    }
    let leases = request.required_leases.iter().flatten().map(|l| l.to_string()).collect();

    let riders = Riders {
        kv: kv::riders(&body, request.kv.as_deref().unwrap_or_default())?,
        timers: timers::riders(request.timers.as_deref().unwrap_or_default())?,
    };
    granted(&api, body.caller(), &operations, &riders).await?;
    let names: Vec<&'static str> = riders.kv.iter().map(|op| kv::op_name(&op.action)).collect();
    // What was lost is counted among all results: those of the operations come first.
    let before = operations.iter().map(slots).sum();
    let nothing = operations.is_empty() && riders.kv.is_empty() && riders.timers.is_empty();
    let outcome = if nothing {
        Ok(Vec::new())
    } else {
        match api.engine().transact_with(operations, leases, riders).await {
            Ok(outcome) => outcome.map_err(rolled_back),
            Err(e) if refuses(&e) => Err(Rollback::Because("bad_request", e.to_string())),
            Err(e) => return Err(e.into()),
        }
    };
    let id = Uuid::random(api.engine().env());
    Ok(answer(&id, &outcome, &names, before).into_response(StatusCode::OK))
}

/// Checks that everything in it is granted: of what is all or nothing, so is the permission.
async fn granted(
    api: &Api,
    caller: &Caller,
    operations: &[TransactionOp],
    riders: &Riders,
) -> Result<(), Failure> {
    for operation in operations {
        match operation {
            TransactionOp::Push(items) => {
                caller.check_all(Action::Publish, items.iter().map(|i| i.stream.as_str()))?;
            }
            TransactionOp::Ack { ack, .. } => {
                caller.check_partition(api, Action::Consume, &ack.partition_id).await?;
            }
        }
    }
    kv::granted(caller, &riders.kv)?;
    timers::granted(caller, &riders.timers)
}

/// How many results an operation has.
fn slots(operation: &TransactionOp) -> usize {
    match operation {
        TransactionOp::Push(items) => items.len(),
        TransactionOp::Ack { .. } => 1,
    }
}

/// Why nothing was done, as the protocol says it.
enum Rollback {
    Because(&'static str, String),
    Precondition(KvLost),
}

fn read(body: &Body, index: usize, operation: &Operation<'_>) -> Result<TransactionOp, Failure> {
    let missing =
        |what: &str| Failure::bad_request(format!("operations[{index}]: {what} is missing"));
    match operation.kind.as_deref() {
        Some("push") => {
            let items = operation.items.as_ref().ok_or_else(|| missing("`items`"))?;
            let mut records = Vec::with_capacity(items.len());
            for item in items {
                let payload = item
                    .payload
                    .or(item.data)
                    .ok_or_else(|| missing("the `payload` of an item"))?;
                let trace = item.trace_id.map(|raw| trace(index, raw)).transpose()?.flatten();
                records.push(PushItem {
                    headers: trace.map(|id| trace_id::headers(&id)),
                    ..item.record(body.part(payload))
                });
            }
            Ok(TransactionOp::Push(records))
        }
        Some("ack") => {
            let transaction_id =
                operation.transaction_id.as_deref().ok_or_else(|| missing("`transactionId`"))?;
            let partition_id =
                operation.partition_id.as_deref().ok_or_else(|| missing("`partitionId`"))?;
            Ok(TransactionOp::Ack {
                group: filled(&operation.consumer_group).map(str::to_owned),
                ack: acknowledgement(
                    transaction_id,
                    partition_id,
                    &operation.status,
                    &operation.lease_id,
                    &operation.error,
                ),
            })
        }
        Some(kind) => Err(Failure::bad_request(format!(
            "operations[{index}]: unknown type `{}`; there are `push` and `ack`",
            shortened(kind)
        ))),
        None => Err(missing("`type`")),
    }
}

/// The trace that an item names, if it does.
fn trace(index: usize, raw: &RawValue) -> Result<Option<Uuid>, Failure> {
    let text: Option<Text<'_>> =
        serde_json::from_str(raw.get()).map_err(|_| no_uuid(index, raw.get()))?;
    filled(&text).map(|text| Uuid::parse(text).ok_or_else(|| no_uuid(index, text))).transpose()
}

fn no_uuid(index: usize, text: &str) -> Failure {
    let text = shortened(text);
    Failure::bad_request(format!("operations[{index}]: `traceId` must be a UUID, not `{text}`"))
}

/// True if the engine said no to this request, rather than that it could not say.
fn refuses(e: &Error) -> bool {
    !e.is_transient() && !matches!(e, Error::Corrupt(_) | Error::Encryption(_))
}

fn rolled_back(reason: RolledBack) -> Rollback {
    match reason {
        RolledBack::Duplicate { transaction_id, stream } => Rollback::Because(
            "duplicate",
            format!(
                "QDUP transaction id `{}` was pushed to queue `{}` before",
                shortened(&transaction_id),
                shortened(&stream)
            ),
        ),
        RolledBack::AckRejected { error } => Rollback::Because("ack_rejected", error),
        RolledBack::BadRequest { error } => Rollback::Because("bad_request", error),
        RolledBack::Precondition(lost) => Rollback::Precondition(lost),
    }
}

/// `names` are those of the key-value operations, of which `before` results stand in front.
fn answer(
    id: &Uuid,
    outcome: &Result<Vec<TransactionResult>, Rollback>,
    names: &[&'static str],
    before: usize,
) -> Json {
    let results = outcome.as_deref().unwrap_or_default();
    let mut json = Json::with_capacity(256 + results.len() * 200);
    json.object().key("transactionId").plain(id).key("success").bool(outcome.is_ok());
    match outcome {
        Err(Rollback::Because(reason, error)) => {
            json.key("reason").plain(reason).key("error").string(&shortened(error));
        }
        Err(Rollback::Precondition(lost)) => {
            kv::lost_members(&mut json, lost, before + lost.index);
        }
        Ok(_) => {}
    }
    json.key("results").array();
    for (index, result) in results.iter().enumerate() {
        json.object().key("index").number(index);
        match result {
            TransactionResult::Pushed { stream, transaction_id, id, repeat } => {
                json.key("type").plain("push").key("success").bool(true);
                json.key("transactionId").string(transaction_id).key("messageId").plain(id);
                json.key("queueName").string(stream);
                if *repeat {
                    json.key("duplicate").bool(true);
                }
            }
            TransactionResult::Acked { transaction_id, acked } => {
                json.key("type").plain("ack").key("success").bool(acked.error.is_none());
                json.key("transactionId").string(transaction_id);
                json.key("error").string_or_null(acked.error.as_deref());
                json.key("dlq").bool(acked.dead_lettered);
            }
            TransactionResult::Kv(outcome) => {
                let at = index - before;
                json.key("type").plain("kv").key("opIndex").number(at);
                kv::members(&mut json, names.get(at).copied().unwrap_or_default(), outcome);
            }
            TransactionResult::Timer(outcome) => {
                let at = index - before - names.len();
                json.key("type").plain("timer").key("opIndex").number(at);
                timers::members(&mut json, outcome);
            }
        }
        json.end_object();
    }
    json.end_array().end_object();
    json
}
