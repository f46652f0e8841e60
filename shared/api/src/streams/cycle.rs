//! `POST /streams/v1/cycle`: state changes, sink pushes and the source acknowledgement, all or nothing.
//!
//! A refused cycle answers 200 with `success: false` and changes nothing. 400 is for a body that is no request or
//! names no query or partition; 503 for a cycle on which nothing was decided.

use axum::{extract::State, http::StatusCode, response::Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{
    Action, Cycle, CycleAck, Cycled, Error, PartitionId, PushItem, StateOp, Uuid, Verdict,
};

use super::{granted, required};
use crate::{
    Api,
    body::{Body, Object, Text, filled, present},
    error::{Failure, shortened},
    json::Json,
    openapi,
    queen::verdict,
};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    query_id: Option<Text<'a>>,
    #[serde(borrow)]
    partition_id: Option<Text<'a>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
    #[serde(borrow)]
    state_ops: Option<Vec<Object<Operation<'a>>>>,
    #[serde(borrow)]
    push_items: Option<Vec<Object<Item<'a>>>>,
    #[serde(borrow)]
    ack: Option<Object<Acknowledgement<'a>>>,
    release_lease: Option<bool>,
}

#[derive(Deserialize)]
struct Operation<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Text<'a>>,
    key: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    queue: Option<Text<'a>>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    message_id: Option<Text<'a>>,
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
}

/// The lease and the count decide; the message's own id is not looked at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Acknowledgement<'a> {
    #[serde(borrow)]
    lease_id: Option<Text<'a>>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    count: Option<i64>,
}

/// `POST /streams/v1/cycle`: state, output and position, all or nothing.
#[utoipa::path(
    post, path = "/streams/v1/cycle", operation_id = "cycle", tag = "streams",
    request_body = openapi::CycleRequest,
    responses((status = 200, description = "Committed, or refused and nothing changed", body = openapi::CycleAnswer)),
)]
pub(crate) async fn commit(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let query_id = required("query_id", &request.query_id)?;
    let partition_id = required("partition_id", &request.partition_id)?;
    granted(&api, body.caller(), Uuid::parse(query_id)).await?;
    body.caller().check_partition(&api, Action::Consume, partition_id).await?;
    let sinks = request.push_items.iter().flatten().filter_map(|item| filled(&item.queue));
    body.caller().check_all(Action::Publish, sinks)?;
    let outcome = match read(&body, &request, query_id, partition_id) {
        Ok(cycle) => match api.engine().cycle(cycle).await {
            Ok(cycled) => Ok(cycled),
            // Nothing was decided: the client may send it again.
            Err(e @ (Error::Corrupt(_) | Error::Encryption(_))) => return Err(e.into()),
            Err(e) if e.is_transient() => return Err(e.into()),
            Err(e) => Err(e.to_string()),
        },
        Err(refusal) => Err(refusal),
    };
    Ok(answer(query_id, partition_id, &outcome).into_response(StatusCode::OK))
}

fn read(
    body: &Body,
    request: &Request<'_>,
    query_id: &str,
    partition_id: &str,
) -> Result<Cycle, String> {
    let query_id = Uuid::parse(query_id).ok_or_else(|| Error::QueryNotFound.to_string())?;
    let partition_id =
        PartitionId::parse(partition_id).ok_or_else(|| Error::PartitionNotFound.to_string())?;

    let mut state_ops = Vec::new();
    for (index, operation) in request.state_ops.iter().flatten().enumerate() {
        let kind = operation.kind.as_deref().unwrap_or_default();
        if !matches!(kind, "upsert" | "delete") {
            return Err(format!("Unknown state_op type: {}", shortened(kind)));
        }
        let Some(key) = operation.key.clone() else {
            return Err(format!("state_ops[{index}]: key is missing"));
        };
        state_ops.push(match (kind, operation.value) {
            // Rows stay in memory for long: a copy does not keep the whole body there.
            ("upsert", Some(value)) => {
                StateOp::Upsert { key, value: Bytes::copy_from_slice(value.get().as_bytes()) }
            }
            ("upsert", None) => return Err(format!("state_ops[{index}]: value is missing")),
            _ => StateOp::Delete { key },
        });
    }

    let mut push_items = Vec::new();
    for (index, item) in request.push_items.iter().flatten().enumerate() {
        let Some(queue) = filled(&item.queue) else { continue };
        let Some(payload) = item.payload.or(item.data) else {
            return Err(format!("push_items[{index}]: payload is missing"));
        };
        push_items.push(PushItem {
            stream: queue.to_owned(),
            partition: filled(&item.partition).unwrap_or_default().to_owned(),
            payload: body.part(payload),
            transaction_id: filled(&item.transaction_id)
                .or(filled(&item.message_id))
                .map(str::to_owned),
            ..PushItem::default()
        });
    }

    let ack = request.ack.as_ref().map(|ack| CycleAck {
        lease_id: filled(&ack.lease_id).unwrap_or_default().to_owned(),
        completed: verdict(ack.status.as_deref()) == Verdict::Completed,
        count: u64::try_from(ack.count.unwrap_or(0)).unwrap_or(0),
    });
    Ok(Cycle {
        query_id,
        partition_id,
        group: filled(&request.consumer_group).map(str::to_owned),
        state_ops,
        push_items,
        ack,
        release_lease: request.release_lease.unwrap_or(true),
    })
}

fn answer(query_id: &str, partition_id: &str, outcome: &Result<Cycled, String>) -> Json {
    let cycled = outcome.as_ref().ok();
    let pushed = cycled.map_or(&[][..], |c| &c.pushed);
    let mut json = Json::with_capacity(512 + pushed.len() * 160);
    json.object().key("success").bool(outcome.is_ok());
    if let Err(error) = outcome {
        json.key("error").string(&shortened(error));
    }
    json.key("query_id").string(&shortened(query_id));
    json.key("partition_id").string(&shortened(partition_id));
    json.key("queueName").string_or_null(cycled.map(|c| c.stream.as_str()));
    json.key("state_ops_applied").number(cycled.map_or(0, |c| c.state_ops));
    json.key("push_results").array();
    for sink in pushed {
        json.object().key("queue").string(&sink.stream).key("partition").string(&sink.partition);
        match sink.base_offset {
            Some(offset) => json.key("status").plain("queued").key("baseOffset").number(offset),
            None => json.key("status").plain("duplicate"),
        };
        json.end_object();
    }
    json.end_array().key("ack_result");
    match cycled.and_then(|c| c.acked) {
        Some((count, released)) => {
            json.object().key("success").bool(true).key("count").number(count);
            json.key("lease_released").bool(released).key("dlq").bool(false).end_object();
        }
        None => {
            json.null();
        }
    }
    json.end_object();
    json
}
