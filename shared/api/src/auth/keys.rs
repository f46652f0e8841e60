//! `/keys`: makes, lists, rotates, disables and deletes API keys. Whoever asks may administer everything.
//!
//! A key's text stands in one answer, that to its making or rotation, which says that no cache may keep it. Nothing else
//! ever shows it.

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use serde::Deserialize;
use tidewheel_engine::{ApiKey, Credential, Error, Grant, NewCredential, Quota};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    body::{Body, Segments},
    error::Failure,
    json::Json,
    openapi,
};

/// The longest life of a key that ends, seconds.
const SECONDS_MAX: i64 = 10 * 366 * 24 * 3600;

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(change, delete))
        .routes(routes!(rotate))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewKey {
    #[serde(default)]
    name: String,
    grants: Vec<String>,
    expires_in_seconds: Option<i64>,
    requests_per_second: Option<u32>,
    bytes_per_second: Option<u64>,
}

/// `POST /keys`: makes a key and shows it, once.
///
/// With the first key this server begins to ask for one: then it should be one that may administer everything.
#[utoipa::path(
    post, path = "/keys", operation_id = "createKey", tag = "access",
    request_body = openapi::NewKey,
    responses((status = 201, description = "The key, which is never shown again", body = openapi::ShownKey)),
)]
async fn create(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: NewKey = body.parse()?;
    let now_us = api.now_us();
    let expires_us = match request.expires_in_seconds {
        None => None,
        Some(seconds) if (1..=SECONDS_MAX).contains(&seconds) => Some(now_us + seconds * 1_000_000),
        Some(seconds) => {
            let text = format!("`expiresInSeconds` must be 1 to {SECONDS_MAX}, not {seconds}");
            return Err(Failure::bad_request(text));
        }
    };
    let grants = request.grants.iter().map(|text| text.parse::<Grant>());
    let new = NewCredential {
        name: request.name,
        grants: grants.collect::<Result<_, Error>>()?,
        expires_us,
        quota: Quota {
            requests_per_second: request.requests_per_second,
            bytes_per_second: request.bytes_per_second,
        },
    };
    let (credential, key) = api.engine().create_credential(new).await?;
    Ok(shown(StatusCode::CREATED, &credential, &key))
}

/// `GET /keys`: all keys, without what proves them.
#[utoipa::path(
    get, path = "/keys", operation_id = "listKeys", tag = "access",
    responses((status = 200, description = "All keys, by id", body = openapi::KeyList)),
)]
async fn list(State(api): State<Api>) -> Result<Response, Failure> {
    let credentials = api.engine().credentials().await?;
    let mut json = Json::with_capacity(32 + credentials.len() * 300);
    json.object().key("keys").array();
    for credential in &credentials {
        json.object();
        members(&mut json, credential);
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rotation {
    #[serde(default)]
    overlap_seconds: i64,
}

/// `POST /keys/{id}/rotate`: gives a key another secret and shows it, once. The one before counts for
/// `overlapSeconds` more.
#[utoipa::path(
    post, path = "/keys/{id}/rotate", operation_id = "rotateKey", tag = "access",
    params(("id" = String, Path, min_length = 1)),
    request_body = Option<openapi::KeyRotation>,
    responses((status = 200, description = "The key, which is never shown again", body = openapi::ShownKey)),
)]
async fn rotate(
    State(api): State<Api>,
    Segments(id): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let rotation: Rotation = if body.is_empty() { Rotation::default() } else { body.parse()? };
    let rotated = api.engine().rotate_credential(&id, rotation.overlap_seconds).await?;
    let (credential, key) = rotated.ok_or_else(no_such_key)?;
    Ok(shown(StatusCode::OK, &credential, &key))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    disabled: bool,
}

/// `PUT /keys/{id}`: disables a key, or enables it again.
#[utoipa::path(
    put, path = "/keys/{id}", operation_id = "changeKey", tag = "access",
    params(("id" = String, Path, min_length = 1)),
    request_body = openapi::KeyChange,
    responses((status = 200, description = "The key as it is", body = openapi::ListedKey)),
)]
async fn change(
    State(api): State<Api>,
    Segments(id): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let Changed { disabled } = body.parse()?;
    let changed = api.engine().disable_credential(&id, disabled).await?;
    let credential = changed.ok_or_else(no_such_key)?;
    let mut json = Json::with_capacity(300);
    json.object();
    members(&mut json, &credential);
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `DELETE /keys/{id}`: deletes a key.
///
/// With the last one this server asks nobody any more where it is open without keys.
#[utoipa::path(
    delete, path = "/keys/{id}", operation_id = "deleteKey", tag = "access",
    params(("id" = String, Path, min_length = 1)),
    responses((status = 200, description = "Deleted", body = openapi::KeyDeleted)),
)]
async fn delete(
    State(api): State<Api>,
    Segments(id): Segments<String>,
) -> Result<Response, Failure> {
    if !api.engine().delete_credential(&id).await? {
        return Err(no_such_key());
    }
    let mut json = Json::with_capacity(64);
    json.object().key("deleted").bool(true).key("id").string(&id).end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn no_such_key() -> Failure {
    Failure::not_found("there is no key of this id")
}

fn shown(status: StatusCode, credential: &Credential, key: &ApiKey) -> Response {
    let mut json = Json::with_capacity(400);
    json.object().key("key").plain(key.reveal());
    members(&mut json, credential);
    json.end_object();
    let mut response = json.into_response(status);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn members(json: &mut Json, credential: &Credential) {
    json.key("id").plain(&credential.id).key("name").string(&credential.name);
    json.key("grants").array();
    for grant in &credential.grants {
        json.string(&grant.to_string());
    }
    json.end_array().key("createdAt").time(credential.created_us);
    for (name, us) in
        [("expiresAt", credential.expires_us), ("oldSecretUntil", credential.old_until_us)]
    {
        match us {
            Some(us) => json.key(name).time(us),
            None => json.key(name).null(),
        };
    }
    json.key("disabled").bool(credential.disabled);
    let quota = credential.quota;
    match quota.requests_per_second {
        Some(n) => json.key("requestsPerSecond").number(n),
        None => json.key("requestsPerSecond").null(),
    };
    match quota.bytes_per_second {
        Some(n) => json.key("bytesPerSecond").number(n),
        None => json.key("bytesPerSecond").null(),
    };
}
