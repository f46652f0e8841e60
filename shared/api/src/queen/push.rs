//! `POST /api/v1/push`: records for any queues and partitions, atomic for each partition.
//!
//! The body is parsed in one pass; payloads are not parsed at all but handed to the engine as the bytes they are.
//!
//! **What a refused item answers.** Items that the engine took answer `queued` or `duplicate`. An item that it
//! refused answers `failed` with its `error`: that is the one word on which the published SDKs raise, so a record that
//! was not kept is never mistaken for one that was. If no item was taken, no success is answered either: 400 if none
//! of them ever can be, 503 if all of them may be later, and the client repeats the whole request. Once any item is in,
//! it is 201 and each item speaks for itself, since repeating what is in would store it twice when its sender gave it
//! no id.

use axum::{extract::State, http::StatusCode, response::Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{Action, Error, PushItem, Pushed, Uuid};

use crate::{
    Api,
    body::{Body, Object, Text, filled, present},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

/// Stands for an original that cannot be read any more, and for a record that was not stored.
const NO_MESSAGE: Uuid = Uuid::from_bytes([0; 16]);

/// Bytes of one item's answer, roughly, without its names.
const ANSWER_BYTES: usize = 200;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    items: Vec<Object<Item<'a>>>,
}

/// A message to be pushed, here or in a transaction.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) payload: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow)]
    transaction_id: Option<Text<'a>>,
    /// Kept by transactions; a push takes it and says nothing.
    #[serde(borrow)]
    pub(super) trace_id: Option<&'a RawValue>,
}

impl Item<'_> {
    /// The record that this becomes with a payload.
    pub(super) fn record(&self, payload: Bytes) -> PushItem {
        PushItem {
            stream: self.queue.to_string(),
            partition: filled(&self.partition).unwrap_or_default().to_owned(),
            payload,
            transaction_id: filled(&self.transaction_id).map(str::to_owned),
            ..PushItem::default()
        }
    }
}

/// `POST /api/v1/push`: stores messages, durably before the answer.
#[utoipa::path(
    post, path = "/api/v1/push", operation_id = "push", tag = "produce",
    request_body = openapi::PushRequest,
    responses((status = 201, description = "What became of each message, in order", body = Vec<openapi::PushResult>)),
)]
pub(crate) async fn push(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let Request { items } = body.parse()?;
    let mut records = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let payload = match (item.payload, item.data) {
            (Some(payload), _) => body.part(payload),
            (None, Some(_)) => {
                return Err(Failure::bad_request(format!(
                    "items[{index}]: the payload of a push is named `payload`, not `data`"
                )));
            }
            (None, None) => {
                return Err(Failure::bad_request(format!("items[{index}]: `payload` is missing")));
            }
        };
        records.push(item.record(payload));
    }
    body.caller().check_all(Action::Publish, records.iter().map(|r| r.stream.as_str()))?;
    let pushed = if records.is_empty() { Vec::new() } else { api.engine().push(records).await };
    answer(&items, &pushed)
}

fn answer(items: &[Object<Item<'_>>], pushed: &[Pushed]) -> Result<Response, Failure> {
    let names: usize =
        items.iter().map(|i| i.queue.len() + filled(&i.transaction_id).map_or(0, str::len)).sum();
    if let Some(e) = nothing_stored(pushed) {
        return Err(e.into());
    }
    let mut json = Json::with_capacity(16 + names + items.len() * ANSWER_BYTES);
    json.array();
    for (index, (item, pushed)) in items.iter().zip(pushed).enumerate() {
        let (id, status, offset) = match pushed {
            Pushed::Queued { id, offset } => (*id, "queued", Some(*offset)),
            Pushed::Duplicate { id, offset } => (id.unwrap_or(NO_MESSAGE), "duplicate", *offset),
            Pushed::Refused(_) => (NO_MESSAGE, "failed", None),
        };
        json.object().key("index").number(index).key("message_id").plain(id);
        json.key("transaction_id");
        match filled(&item.transaction_id) {
            Some(transaction_id) => json.string(transaction_id),
            None => json.plain(id),
        };
        json.key("queueName").string(&item.queue).key("status").plain(status);
        if let Some(offset) = offset {
            json.key("offset").number(offset);
        }
        if let Pushed::Refused(e) = pushed {
            json.key("error").string(&shortened(&e.to_string()));
        }
        json.end_object();
    }
    json.end_array();
    Ok(json.into_response(StatusCode::CREATED))
}

/// The first refusal of a push of which nothing was stored, if its items agree on whether they may be repeated.
fn nothing_stored(pushed: &[Pushed]) -> Option<Error> {
    let mut first: Option<&Error> = None;
    for pushed in pushed {
        let Pushed::Refused(e) = pushed else { return None };
        match first {
            Some(first) if first.is_transient() != e.is_transient() => return None,
            Some(_) => {}
            None => first = Some(e),
        }
    }
    first.cloned()
}
