//! `/control/v1`: streams are declared, served, stopped, migrated and retired, by controllers that can repeat everything.
//!
//! A change names what it relies on (`If-Match`, or `If-None-Match: *` for a new stream) and carries an `Idempotency-Key`.
//! It is answered 202 once it is stored, with an operation to ask after; the same change under the same key is answered
//! the same again, before anything else is looked at. What was accepted is carried out whatever becomes of the request
//! and of this process (`carry_out`).
//!
//! A key is remembered for the principal that sent it, for ever: there is no time after which a late copy would be a new
//! change. Everything is in the engine's registry; this module decides and speaks.

mod carry_out;
mod decide;
mod definition;
mod fault;
mod text;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use futures_util::StreamExt;
use tidewheel_engine::{
    Acceptance, Action, Error, Intent, ManagedStream, Operation, Prior, Receipt, Target, Uuid,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    decide::{Change, Decision, Kind, decide, unknown_stream},
    definition::{PROFILE, PROFILE_REVISION, TRANSPORT_BYTES},
    fault::Fault,
    text::compact,
};
use crate::{Api, auth::Caller, body::Segments, json::Json, openapi, query::Parameters};

/// Where it all is.
pub(crate) const ROOT: &str = "/control/v1";

/// Bytes of a request.
const BODY_BYTES: usize = 256 * 1024;

/// Bytes of a refused request that are read and dropped, so that its sender hears why.
const DISCARD_BYTES: usize = 8 * 1024 * 1024;

/// Operations that may wait.
const PENDING: usize = 32;

/// Streams in a page.
const PAGE: i64 = 1000;

/// Characters of an idempotency key.
const KEY_CHARACTERS: usize = 128;

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(capabilities))
        .routes(routes!(list))
        .routes(routes!(stream, declare))
        .routes(routes!(desired))
        .routes(routes!(migrations))
        .routes(routes!(operation))
}

/// `GET /control/v1`: what this control plane is and what bounds it has.
#[utoipa::path(
    get, path = "/control/v1", operation_id = "controlCapabilities", tag = "control",
    responses((status = 200, description = "Versions, identities and bounds", body = openapi::Capabilities)),
)]
async fn capabilities(State(api): State<Api>) -> Result<Response, Fault> {
    let (id, _) = api.engine().registry().await?;
    let mut json = Json::with_capacity(512);
    json.object().key("version").number(1).key("broker_id").plain(id);
    json.key("boot_id").plain(api.boot_id());
    json.key("transport_max_bytes").number(TRANSPORT_BYTES);
    json.key("control_max_bytes").number(BODY_BYTES).key("max_pending").number(PENDING);
    json.key("storage_profiles").object().key(PROFILE);
    profile(&mut json);
    json.end_object().key("history_prefix_protected").array().end_array();
    json.key("wire_versions").object().key("write").number(4).key("read").array();
    json.number(4).number(5).end_array().end_object().end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn profile(json: &mut Json) {
    json.object().key("revision").plain(PROFILE_REVISION).key("replicate").bool(false);
    json.key("maintenance").bool(true).key("replay_scope").plain("retained_current_log");
    json.end_object();
}

/// `GET /control/v1/streams`: declared streams by name, a page at a time, as far as the key may read them.
#[utoipa::path(
    get, path = "/control/v1/streams", operation_id = "controlStreams", tag = "control",
    params(openapi::ControlPageParameters),
    responses((status = 200, description = "A page of streams", body = openapi::ControlPage),
        (status = 409, description = "The collection has changed since the cursor was made", body = openapi::ControlProblem)),
)]
async fn list(
    State(api): State<Api>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Fault> {
    let invalid = |text: &str| Fault::new(400, "invalid_pagination", text);
    if let Some(other) = parameters.other_than(&["limit", "cursor"]) {
        return Err(invalid(&format!("unknown parameter `{other}`")));
    }
    let limit = match parameters.given("limit") {
        None => 100,
        Some(text) => text
            .parse::<i64>()
            .ok()
            .filter(|n| (1..=PAGE).contains(n))
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| invalid("`limit` is 1 to 1000"))?,
    };
    let cursor = parameters.given("cursor").map(|text| {
        let bytes = URL_SAFE.decode(text).ok()?;
        serde_json::from_slice::<(u64, String)>(&bytes).ok()
    });
    let cursor = match cursor {
        None => None,
        Some(read) => Some(read.ok_or_else(|| invalid("`cursor` is none of ours"))?),
    };
    let changed = || {
        let text = "streams were changed since the cursor was made; begin again";
        Fault::new(409, "collection_changed", text)
    };
    let mut after = cursor.as_ref().map(|(_, name)| name.clone()).unwrap_or_default();
    let mut revision = cursor.map(|(revision, _)| revision);
    let mut selected: Vec<ManagedStream> = Vec::new();
    // One more than the page says whether there is another.
    while selected.len() <= limit {
        let wanted = limit + 1 - selected.len();
        let page = api.engine().managed_streams(&after, wanted).await?;
        if revision.is_some_and(|revision| revision != page.revision) {
            return Err(changed());
        }
        revision = Some(page.revision);
        let ended = page.streams.len() < wanted;
        if let Some(last) = page.streams.last() {
            after.clone_from(&last.name);
        }
        let visible = page
            .streams
            .into_iter()
            .filter(|s| caller.allows(Action::Read, Target::Stream(&s.name)));
        selected.extend(visible);
        if ended {
            break;
        }
    }
    let revision = revision.unwrap_or(0);
    let more = selected.len() > limit;
    selected.truncate(limit);
    let mut json = Json::with_capacity(128 + selected.len() * 1024);
    json.object().key("revision").number(revision).key("streams").array();
    for stream in &selected {
        view(&api, &mut json, stream);
    }
    json.end_array().key("next_cursor");
    match selected.last().filter(|_| more) {
        Some(last) => {
            json.plain(URL_SAFE.encode(serde_json::json!([revision, last.name]).to_string()))
        }
        None => json.null(),
    };
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /control/v1/streams/{name}`: what is declared of a stream, what is wanted of it and how it is.
#[utoipa::path(
    get, path = "/control/v1/streams/{name}", operation_id = "controlStream", tag = "control",
    params(("name" = String, Path, min_length = 1)),
    responses((status = 200, description = "The stream; its revision is the ETag", body = openapi::ControlView)),
)]
async fn stream(
    State(api): State<Api>,
    Segments(name): Segments<String>,
) -> Result<Response, Fault> {
    let stream = if decide::is_name(&name) { api.engine().managed(&name).await? } else { None };
    let stream = stream.ok_or_else(unknown_stream)?;
    let mut json = Json::with_capacity(1024 + stream.definition.len());
    view(&api, &mut json, &stream);
    let mut response = json.into_response(StatusCode::OK);
    etag(&mut response, stream.revision);
    Ok(response)
}

fn etag(response: &mut Response, revision: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
}

fn view(api: &Api, json: &mut Json, stream: &ManagedStream) {
    let (serves, reads) = match stream.state.as_str() {
        "serving" => (true, true),
        "retired" => (false, true),
        _ => (false, false),
    };
    json.object().key("name").string(&stream.name);
    json.key("definition").raw(stream.definition.as_bytes());
    json.key("desired").string(&stream.desired).key("revision").number(stream.revision);
    json.key("stream_id").string_or_null(stream.stream_id.as_deref());
    json.key("pending").string_or_null(stream.pending.as_deref());
    json.key("profile_revision").string(&stream.profile).key("profile");
    profile(json);
    json.key("observed").object().key("state").string(&stream.state);
    json.key("boot_id").plain(api.boot_id()).key("generation");
    match stream.generation.filter(|_| reads) {
        Some(generation) => json.number(generation),
        None => json.null(),
    };
    json.key("revision").number(stream.revision);
    let at_us = if stream.at_us > 0 { stream.at_us } else { api.now_us() };
    json.key("at").number(at_us as f64 / 1e6);
    json.key("read_admission").bool(reads).key("write_admission").bool(serves);
    json.key("children_ready").bool(true);
    if stream.state == "error" {
        json.key("error").plain("transition_failed");
    }
    json.end_object().end_object();
}

/// `PUT /control/v1/streams/{name}`: declares a stream, or declares it otherwise while it is stopped.
#[utoipa::path(
    put, path = "/control/v1/streams/{name}", operation_id = "controlDeclare", tag = "control",
    params(("name" = String, Path, min_length = 1), openapi::ChangeHeaders, openapi::CreationHeader),
    request_body = openapi::ControlDefinition,
    responses((status = 202, description = "Accepted: ask after the operation", body = openapi::ControlReceipt),
        (status = 200, description = "It is so already", body = openapi::ControlReceipt)),
)]
async fn declare(
    State(api): State<Api>,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Fault> {
    change(&api, &name, Kind::Definition, request).await
}

/// `PUT /control/v1/streams/{name}/desired`: says whether a stream is to be served, stopped, or retired for good.
#[utoipa::path(
    put, path = "/control/v1/streams/{name}/desired", operation_id = "controlDesire", tag = "control",
    params(("name" = String, Path, min_length = 1), openapi::ChangeHeaders),
    request_body = openapi::DesiredState,
    responses((status = 202, description = "Accepted: ask after the operation", body = openapi::ControlReceipt),
        (status = 200, description = "It is so already", body = openapi::ControlReceipt)),
)]
async fn desired(
    State(api): State<Api>,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Fault> {
    change(&api, &name, Kind::Desired, request).await
}

/// `POST /control/v1/streams/{name}/migrations`: gives a stopped stream another schema, from its next row on.
#[utoipa::path(
    post, path = "/control/v1/streams/{name}/migrations", operation_id = "controlMigrate", tag = "control",
    params(("name" = String, Path, min_length = 1), openapi::ChangeHeaders),
    request_body = openapi::ControlMigration,
    responses((status = 202, description = "Accepted: ask after the operation", body = openapi::ControlReceipt)),
)]
async fn migrations(
    State(api): State<Api>,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Fault> {
    change(&api, &name, Kind::Migration, request).await
}

/// `GET /control/v1/operations/{id}`: what became of an operation.
#[utoipa::path(
    get, path = "/control/v1/operations/{id}", operation_id = "controlOperation", tag = "control",
    params(("id" = String, Path, min_length = 1)),
    responses((status = 200, description = "The operation", body = openapi::ControlOperation)),
)]
async fn operation(
    State(api): State<Api>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, Fault> {
    let unknown = || Fault::new(404, "unknown_operation", "there is no operation of this id here");
    let operation = api.engine().operation(&id).await?.ok_or_else(unknown)?;
    // An operation of a stream that may not be read is none.
    if !caller.allows(Action::Read, Target::Stream(&operation.name)) {
        return Err(unknown());
    }
    let operation = api.carry_out(operation).await?;
    let mut json = Json::with_capacity(256 + operation.target.len());
    json.object().key("id").plain(&operation.id).key("name").string(&operation.name);
    json.key("kind").plain(&operation.kind).key("revision").number(operation.revision);
    json.key("target").raw(operation.target.as_bytes()).key("status").plain(&operation.status);
    json.key("error").string_or_null(operation.error.as_deref()).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// Takes a change: everything about the request first, then the receipt, then what is stored.
async fn change(api: &Api, name: &str, kind: Kind, request: Request) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let caller = parts.extensions.get::<Caller>().cloned().unwrap_or_else(Caller::nobody);
    caller.may(Action::Control, Target::Stream(name))?;
    let key = idempotency_key(&parts.headers)?;
    let body = read(&parts.headers, body).await?;
    let (if_match, if_none_match) = (
        text_of(&parts.headers, &header::IF_MATCH),
        text_of(&parts.headers, &header::IF_NONE_MATCH),
    );
    let intent = Intent {
        principal: caller.principal().to_owned(),
        key,
        digest: digest(&[
            parts.method.as_str(),
            name,
            kind.as_str(),
            &body,
            if_match.unwrap_or("\u{0}"),
            if_none_match.unwrap_or("\u{0}"),
        ]),
    };
    match api.engine().prior(&intent).await? {
        Prior::Same(receipt) => return Ok(received(&receipt)),
        Prior::Other => return Err(other_intent()),
        Prior::None => {}
    }
    let change = Change { kind, name, body: &body, if_match, if_none_match };
    let operation_id = Uuid::random(api.engine().env()).simple();
    for _ in 0..tidewheel_engine::limits::COMMIT_ATTEMPTS {
        let before = if decide::is_name(name) { api.engine().managed(name).await? } else { None };
        let pending = match before.as_ref().and_then(|b| b.pending.as_deref()) {
            Some(id) => api.engine().operation(id).await?,
            None => None,
        };
        if let Some(pending) = pending.filter(|p| !p.is_final()) {
            // Whoever comes next finishes what was begun.
            api.carry_out(pending).await?;
        }
        let before = if decide::is_name(name) { api.engine().managed(name).await? } else { None };
        let pending = match before.as_ref().and_then(|b| b.pending.as_deref()) {
            Some(id) => api.engine().operation(id).await?,
            None => None,
        };
        let Decision { mut after, satisfied } = decide(&change, before.as_ref(), pending.as_ref())?;
        after.pending = (!satisfied).then(|| operation_id.clone());
        let operation = Operation {
            id: operation_id.clone(),
            name: name.to_owned(),
            kind: kind.as_str().to_owned(),
            revision: after.revision,
            target: body.clone(),
            status: if satisfied { "succeeded" } else { "accepted" }.to_owned(),
            error: None,
        };
        let accepted =
            api.engine().accept(&intent, before.as_ref(), &after, &operation, PENDING).await?;
        match accepted {
            Acceptance::Accepted(receipt) => {
                if !satisfied && receipt.operation == operation.id {
                    // It is accepted whatever becomes of this.
                    if let Err(error) = api.carry_out(operation).await {
                        tracing::warn!(%error, "an operation waits for whoever comes next");
                    }
                }
                return Ok(received(&receipt));
            }
            Acceptance::OtherIntent => return Err(other_intent()),
            Acceptance::Full => {
                let text = format!("{PENDING} operations wait already");
                return Err(Fault::new(429, "operation_queue_full", text));
            }
            Acceptance::Changed => {}
        }
    }
    Err(Error::Busy.into())
}

fn other_intent() -> Fault {
    Fault::new(409, "idempotency_mismatch", "another change was sent under this key")
}

fn received(receipt: &Receipt) -> Response {
    let mut json = Json::with_capacity(128);
    json.object().key("status").number(receipt.status);
    json.key("operation_id").plain(&receipt.operation);
    json.key("revision").number(receipt.revision).end_object();
    let status = StatusCode::from_u16(receipt.status).unwrap_or(StatusCode::ACCEPTED);
    let mut response = json.into_response(status);
    etag(&mut response, receipt.revision);
    if let Ok(place) = HeaderValue::from_str(&format!("{ROOT}/operations/{}", receipt.operation)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}

fn text_of<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    // A header that is no text matches nothing.
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, Fault> {
    let key = headers.get("idempotency-key").map(|value| value.to_str().unwrap_or("\u{0}"));
    match key {
        None | Some("") => {
            let text = "a change needs an `Idempotency-Key`";
            Err(Fault::new(428, "idempotency_key_required", text))
        }
        Some(key)
            if key.len() <= KEY_CHARACTERS && key.bytes().all(|b| (33..=126).contains(&b)) =>
        {
            Ok(key.to_owned())
        }
        Some(_) => {
            let text = "an `Idempotency-Key` has 1 to 128 printable ASCII characters and no space";
            Err(Fault::new(400, "invalid_idempotency_key", text))
        }
    }
}

/// Reads a body as JSON without space.
async fn read(headers: &HeaderMap, body: Body) -> Result<String, Fault> {
    let kind = text_of(headers, &header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let text = "a change is sent as `application/json`";
        return Err(Fault::new(415, "json_required", text));
    }
    let mut bytes = Vec::new();
    let mut read = 0usize;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Fault::new(400, "invalid_json", "the body ended early"))?;
        read = read.saturating_add(chunk.len());
        if read > DISCARD_BYTES {
            break;
        }
        if read <= BODY_BYTES {
            bytes.extend_from_slice(&chunk);
        }
    }
    if read > BODY_BYTES {
        let text = format!("the body is over the limit of {BODY_BYTES} bytes");
        return Err(Fault::new(413, "body_too_large", text));
    }
    let invalid = |text: String| Fault::new(400, "invalid_json", text);
    let text = String::from_utf8(bytes).map_err(|_| invalid("the body is not UTF-8".to_owned()))?;
    text::check(&text).map_err(invalid)?;
    Ok(compact(&text))
}

/// A digest of texts in order.
fn digest(parts: &[&str]) -> String {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    tidewheel_engine::digest_of(&parts)
}
