//! `GET /api/v1/pop…`: messages under a lease, from one partition, a queue, or whatever has the labels asked for.
//!
//! Nothing found answers 204 without a body, unless there is something to say of conflation: an SDK that asked for it
//! must hear whether it was applied. A waiting pop answers within its `timeout`; a client that leaves while it waits
//! drops the pop with it. `autopilot` is accepted, and the defaults are the choice.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use tidewheel_engine::{Message, Pop, PopTarget, Popped, SubscriptionMode, limits};

use super::{group_name, trace_id};
use crate::{
    Api, WaitLimit, body::Segments, error::Failure, json::Json, openapi, query::Parameters, time,
};

/// Milliseconds that a waiting pop waits when it does not say.
const WAIT_MS: i64 = 30_000;

/// Bytes of one message in the answer, roughly, without its payload.
const ENVELOPE_BYTES: usize = 420;

/// `GET /api/v1/pop/queue/{queue}`: messages of any partitions of a queue.
#[utoipa::path(
    get, path = "/api/v1/pop/queue/{queue}", operation_id = "popQueue", tag = "consume",
    params(("queue" = String, Path, min_length = 1), openapi::PopParameters),
    responses((status = 200, description = "Messages under a lease", body = openapi::Popped),
        (status = 204, description = "There is nothing")),
)]
pub(crate) async fn queue(
    State(api): State<Api>,
    Segments(stream): Segments<String>,
    parameters: Parameters,
    limit: WaitLimit,
) -> Result<Response, Failure> {
    pop(&api, PopTarget::Stream { stream }, &parameters, limit).await
}

/// `GET /api/v1/pop/queue/{queue}/partition/{partition}`: messages of one partition.
#[utoipa::path(
    get, path = "/api/v1/pop/queue/{queue}/partition/{partition}", operation_id = "popPartition", tag = "consume",
    params(("queue" = String, Path, min_length = 1), ("partition" = String, Path, min_length = 1), openapi::PopParameters),
    responses((status = 200, description = "Messages under a lease", body = openapi::Popped),
        (status = 204, description = "There is nothing")),
)]
pub(crate) async fn partition(
    State(api): State<Api>,
    Segments((stream, partition)): Segments<(String, String)>,
    parameters: Parameters,
    limit: WaitLimit,
) -> Result<Response, Failure> {
    pop(&api, PopTarget::Partition { stream, partition }, &parameters, limit).await
}

/// `GET /api/v1/pop`: messages of whatever queue has the labels.
#[utoipa::path(
    get, path = "/api/v1/pop", operation_id = "popLabels", tag = "consume",
    params(openapi::LabelParameters, openapi::PopParameters),
    responses((status = 200, description = "Messages under a lease", body = openapi::Popped),
        (status = 204, description = "There is nothing")),
)]
pub(crate) async fn discover(
    State(api): State<Api>,
    parameters: Parameters,
    limit: WaitLimit,
) -> Result<Response, Failure> {
    let namespace = parameters.text("namespace").map(str::to_owned);
    let task = parameters.text("task").map(str::to_owned);
    if namespace.is_none() && task.is_none() {
        let mut json = Json::with_capacity(128);
        json.object().key("success").bool(false);
        json.key("error").plain("a pop needs a queue in its path, or `namespace` or `task`");
        json.key("messages").array().end_array().end_object();
        return Ok(json.into_response(StatusCode::BAD_REQUEST));
    }
    pop(&api, PopTarget::Labels { namespace, task }, &parameters, limit).await
}

async fn pop(
    api: &Api,
    target: PopTarget,
    parameters: &Parameters,
    limit: WaitLimit,
) -> Result<Response, Failure> {
    let stream = match &target {
        PopTarget::Stream { stream } | PopTarget::Partition { stream, .. } => stream.clone(),
        PopTarget::Labels { .. } => String::new(),
    };
    let group = parameters.text("consumerGroup");
    let mut pop = read(target, parameters, api.engine().settings().default_subscription)?;
    pop.wait = pop.wait.and_then(|wait| limit.cut(wait));
    let conflates = pop.conflation == Some(true);
    let popped = if pop.wait.is_some() {
        tokio::select! {
            popped = api.engine().pop(pop) => popped?,
            // A lease granted at this very moment lapses by itself.
            () = api.drained() => Popped { conflation: conflates, ..Popped::default() },
        }
    } else {
        api.engine().pop(pop).await?
    };
    if popped.messages.is_empty() && !popped.conflation && !popped.conflation_conflict {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(answer(&stream, group_name(group), &popped).into_response(StatusCode::OK))
}

fn read(
    target: PopTarget,
    parameters: &Parameters,
    default_mode: SubscriptionMode,
) -> Result<Pop, Failure> {
    let batch = match parameters.number("batch")? {
        Some(n) if n > 0 => usize::try_from(n).unwrap_or(usize::MAX).min(limits::POP_BATCH_MAX),
        _ => limits::POP_BATCH,
    };
    let partitions = match parameters.number("partitions")? {
        Some(n) if n > 0 => {
            usize::try_from(n).unwrap_or(usize::MAX).min(limits::POP_PARTITIONS_MAX)
        }
        _ => 1,
    };
    let wait = if parameters.flag("wait") {
        let ms = parameters.number("timeout")?.unwrap_or(WAIT_MS);
        let wait = Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        Some(wait.min(limits::POP_WAIT_MAX)).filter(|w| !w.is_zero())
    } else {
        None
    };
    let mode = match parameters.text("subscriptionFrom") {
        Some("now") => SubscriptionMode::New,
        Some(text) => SubscriptionMode::From(time::parse(text).ok_or_else(|| {
            Failure::bad_request(format!(
                "parameter `subscriptionFrom` must be `now` or an ISO 8601 time, not `{text}`"
            ))
        })?),
        None => match parameters.text("subscriptionMode") {
            None => default_mode,
            Some("new" | "new-only") => SubscriptionMode::New,
            Some(_) => SubscriptionMode::All,
        },
    };
    let auto_ack = parameters.flag("autoAck") || parameters.flag("commitOnDelivery");
    let conflation = parameters.text("conflation").map(|_| parameters.flag("conflation"));
    if conflation == Some(true) {
        if auto_ack {
            return Err(Failure::bad_request("`conflation` and `autoAck` exclude each other"));
        }
        if parameters.text("consumerGroup").is_none() {
            return Err(Failure::bad_request("`conflation` needs a `consumerGroup`"));
        }
    }
    Ok(Pop {
        target,
        group: parameters.text("consumerGroup").map(str::to_owned),
        batch,
        partitions,
        wait,
        lease_seconds: parameters.number("leaseSeconds")?.filter(|s| *s > 0),
        auto_ack,
        mode,
        conflation,
    })
}

fn answer(stream: &str, group: &str, popped: &Popped) -> Json {
    let payloads: usize = popped.messages.iter().map(|m| m.record.payload.len()).sum();
    let envelope = ENVELOPE_BYTES + popped.lease_id.len() + group.len();
    let mut json = Json::with_capacity(envelope + payloads + popped.messages.len() * envelope);

    let first = popped.messages.first().map(|m| &m.partition);
    json.object().key("success").bool(true).key("queue").string(stream);
    json.key("partition").string(first.map_or("", |p| p.name.as_str()));
    match first {
        Some(partition) => json.key("partitionId").plain(partition.id),
        None => json.key("partitionId").null(),
    };
    json.key("leaseId").string(&popped.lease_id).key("consumerGroup").string(group);
    json.key("messages").array();
    // Messages come by partition: what is the same for all of one is written once and copied.
    let mut constant: Option<(&Arc<_>, Vec<u8>)> = None;
    for message in &popped.messages {
        if !constant.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, &message.partition)) {
            constant =
                Some((&message.partition, constant_members(message, &popped.lease_id, group)));
        }
        let record = &message.record;
        json.object().key("id").plain(record.id);
        json.key("transactionId").string(&record.transaction_id);
        match trace_id::of(record.headers.as_ref()) {
            None => json.members(b"\"traceId\":null"),
            Some(id) => json.key("traceId").plain(id),
        };
        json.key("data").raw(&record.payload);
        json.members(b"\"producerSub\":null").key("createdAt").time(record.time_us);
        if let Some((_, members)) = &constant {
            json.members(members);
        }
        json.key("deliveryAttempt").number(message.attempt);
        json.key("offset").number(record.offset).end_object();
    }
    json.end_array().key("partitionsClaimed").number(popped.partitions);
    if popped.conflation {
        json.key("conflation").bool(true);
    }
    if popped.conflation_conflict {
        json.key("conflationConflict").bool(true);
    }
    json.end_object();
    json
}

fn constant_members(message: &Message, lease_id: &str, group: &str) -> Vec<u8> {
    let partition = &message.partition;
    let mut json = Json::with_capacity(160 + partition.name.len() + lease_id.len() + group.len());
    json.key("partitionId").plain(partition.id).key("partition").string(&partition.name);
    json.key("leaseId").string(lease_id).key("consumerGroup").string(group);
    json.into_bytes()
}
