//! `POST /api/v1/transaction`: pushes and acknowledgements, all or nothing.
//!
//! A well-formed request answers 200, committed or rolled back; the body says which. What this server does not have
//! (`kv`, `timers`, `positions`) is refused whole rather than left out of an all-or-nothing bundle.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{Ack, Error, PushItem, RolledBack, TransactionOp, TransactionResult, Uuid};

use super::{trace_id, verdict};
use crate::{
    Api,
    body::{Body, Object, Text, filled, present},
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
    kv: Option<&'a RawValue>,
    #[serde(borrow)]
    timers: Option<&'a RawValue>,
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
    #[serde(borrow)]
    trace_id: Option<Text<'a>>,
}

/// `POST /api/v1/transaction`: pushes and acknowledgements, all or nothing.
#[utoipa::path(
    post, path = "/api/v1/transaction", operation_id = "transaction", tag = "produce",
    request_body = openapi::TransactionRequest,
    responses((status = 200, description = "Committed, or rolled back with a reason", body = openapi::TransactionAnswer)),
)]
pub(crate) async fn transaction(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    for (name, rider) in
        [("kv", request.kv), ("timers", request.timers), ("positions", request.positions)]
    {
        let empty = |r: &RawValue| {
            r.get().strip_prefix('[').is_some_and(|rest| rest.trim_ascii_start() == "]")
        };
        if rider.is_some_and(|r| !empty(r)) {
            return Err(Failure::unsupported(format!(
                "`{name}` in a transaction is not supported by this server"
            )));
        }
    }
    let mut operations = Vec::with_capacity(request.operations.len());
    for (index, operation) in request.operations.iter().enumerate() {
        operations.push(read(&body, index, operation)?);
    }
    let leases = request.required_leases.iter().flatten().map(|l| l.to_string()).collect();

    let outcome = if operations.is_empty() {
        Ok(Vec::new())
    } else {
        match api.engine().transact(operations, leases).await {
            Ok(outcome) => outcome.map_err(|r| rolled_back(&r)),
            Err(e) if refuses(&e) => Err(("bad_request", e.to_string())),
            Err(e) => return Err(e.into()),
        }
    };
    Ok(answer(&Uuid::random(api.engine().env()), &outcome).into_response(StatusCode::OK))
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
                records.push(PushItem {
                    stream: item.queue.to_string(),
                    partition: filled(&item.partition).unwrap_or_default().to_owned(),
                    payload: body.part(payload),
                    transaction_id: filled(&item.transaction_id).map(str::to_owned),
                    headers: filled(&item.trace_id)
                        .map(|text| Uuid::parse(text).ok_or_else(|| no_uuid(index, text)))
                        .transpose()?
                        .map(|id| trace_id::headers(&id)),
                    ..PushItem::default()
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
                ack: Ack {
                    transaction_id: transaction_id.to_owned(),
                    partition_id: partition_id.to_owned(),
                    verdict: verdict(operation.status.as_deref()),
                    lease_id: filled(&operation.lease_id).map(str::to_owned),
                    error: filled(&operation.error).map(str::to_owned),
                },
            })
        }
        Some(kind) => Err(Failure::bad_request(format!(
            "operations[{index}]: unknown type `{}`; there are `push` and `ack`",
            shortened(kind)
        ))),
        None => Err(missing("`type`")),
    }
}

fn no_uuid(index: usize, text: &str) -> Failure {
    let text = shortened(text);
    Failure::bad_request(format!("operations[{index}]: `traceId` must be a UUID, not `{text}`"))
}

/// True if the engine said no to this request, rather than that it could not say.
fn refuses(e: &Error) -> bool {
    !e.is_transient() && !matches!(e, Error::Corrupt(_) | Error::Encryption(_))
}

fn rolled_back(reason: &RolledBack) -> (&'static str, String) {
    match reason {
        RolledBack::Duplicate { transaction_id, stream } => (
            "duplicate",
            format!(
                "QDUP transaction id `{}` was pushed to queue `{}` before",
                shortened(transaction_id),
                shortened(stream)
            ),
        ),
        RolledBack::AckRejected { error } => ("ack_rejected", error.clone()),
        RolledBack::BadRequest { error } => ("bad_request", error.clone()),
    }
}

fn answer(id: &Uuid, outcome: &Result<Vec<TransactionResult>, (&'static str, String)>) -> Json {
    let results = outcome.as_deref().unwrap_or_default();
    let mut json = Json::with_capacity(256 + results.len() * 200);
    json.object().key("transactionId").plain(id).key("success").bool(outcome.is_ok());
    if let Err((reason, error)) = outcome {
        json.key("reason").plain(reason).key("error").string(&shortened(error));
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
        }
        json.end_object();
    }
    json.end_array().end_object();
    json
}
