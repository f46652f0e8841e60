//! `POST /api/v1/ack` and `/api/v1/ack/batch`: what became of popped messages.
//!
//! Both answer 200 with one result for each acknowledgement, in the order of the request; an acknowledgement that was
//! refused says why in its own result.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tidewheel_engine::{Acked, Action};

use super::acknowledgement;
use crate::{
    Api,
    auth::Caller,
    body::{Body, Object, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

/// What became of one message. The group of a batch stands beside its list, and one here says nothing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    transaction_id: Text<'a>,
    #[serde(borrow)]
    partition_id: Text<'a>,
    #[serde(borrow)]
    status: Option<Text<'a>>,
    #[serde(borrow)]
    lease_id: Option<Text<'a>>,
    #[serde(borrow)]
    error: Option<Text<'a>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Batch<'a> {
    #[serde(borrow)]
    acknowledgments: Vec<Object<Item<'a>>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
}

/// `POST /api/v1/ack`: what became of one message.
#[utoipa::path(
    post, path = "/api/v1/ack", operation_id = "ack", tag = "consume",
    request_body = openapi::AckRequest,
    responses((status = 200, description = "What became of it", body = Vec<openapi::AckResult>)),
)]
pub(crate) async fn single(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let item: Item<'_> = body.parse()?;
    let group = item.consumer_group.clone();
    acknowledge(&api, body.caller(), filled(&group), &[Object(item)]).await
}

/// `POST /api/v1/ack/batch`: what became of many.
#[utoipa::path(
    post, path = "/api/v1/ack/batch", operation_id = "ackBatch", tag = "consume",
    request_body = openapi::AckBatchRequest,
    responses((status = 200, description = "What became of each, in order", body = Vec<openapi::AckResult>)),
)]
pub(crate) async fn batch(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let Batch { acknowledgments, consumer_group } = body.parse()?;
    acknowledge(&api, body.caller(), filled(&consumer_group), &acknowledgments).await
}

async fn acknowledge(
    api: &Api,
    caller: &Caller,
    group: Option<&str>,
    items: &[Object<Item<'_>>],
) -> Result<Response, Failure> {
    for item in items {
        caller.check_partition(api, Action::Consume, &item.partition_id).await?;
    }
    let acks = items
        .iter()
        .map(|item| {
            let Item { status, lease_id, error, .. } = &item.0;
            acknowledgement(&item.transaction_id, &item.partition_id, status, lease_id, error)
        })
        .collect::<Vec<_>>();
    let acked = if acks.is_empty() { Vec::new() } else { api.engine().ack(group, acks).await? };

    let mut json = Json::with_capacity(16 + items.len() * 160);
    json.array();
    for (index, (item, acked)) in items.iter().zip(&acked).enumerate() {
        let Acked { error, lease_released, dead_lettered, noop, conflated } = acked;
        json.object().key("index").number(index);
        json.key("transactionId").string(&item.transaction_id);
        json.key("success").bool(error.is_none());
        json.key("error").string_or_null(error.as_deref().map(shortened).as_deref());
        json.key("leaseReleased").bool(*lease_released);
        json.key("dlq").bool(*dead_lettered).key("noop").bool(*noop);
        if let Some(conflated) = conflated {
            json.key("conflated").number(conflated);
        }
        json.end_object();
    }
    json.end_array();
    Ok(json.into_response(StatusCode::OK))
}
