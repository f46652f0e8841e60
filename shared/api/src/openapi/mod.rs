//! The description of the API: OpenAPI 3.1, made of the very table that makes the routes, so that neither can name a
//! route which the other lacks.
//!
//! Each handler says what it takes and answers, in the types of the modules below. Those are descriptions only: what is
//! read and written is read and written by hand, and a test compares the two against a running server.

mod access;
mod administer;
mod consume;
mod controlled;
mod keys;
mod operate;
mod page;
mod produce;
mod streams;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use bytes::Bytes;
use utoipa::{
    OpenApi as _, PartialSchema, ToSchema,
    openapi::{
        Content, OpenApi, RefOr, Response, ResponseBuilder,
        path::{Operation, PathItem},
        security::{
            ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
        },
    },
};

pub(crate) use self::{
    access::*, administer::*, consume::*, controlled::*, keys::*, operate::*, produce::*,
    streams::*,
};
use crate::{
    Api,
    auth::{Place, rule_of},
    control,
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tidewheel",
        description = "Streams over HTTP in the protocol of Queen MQ: produce, consume under leases, process with \
                       exactly-once cycles, read by offset, and administer.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "produce", description = "Queues and what is pushed to them"),
        (name = "consume", description = "Messages under leases, and what became of them"),
        (name = "read", description = "Reads by offset, which nobody notices"),
        (name = "streams", description = "Stream processors: queries, their state, and the cycle"),
        (name = "keys", description = "Keys with values, alone or in a transaction"),
        (name = "timers", description = "Messages that are pushed later"),
        (name = "administer", description = "Groups, dead letters, queues and messages"),
        (name = "control", description = "Declared streams: what is wanted of them and what is being done"),
        (name = "access", description = "API keys: who may do what"),
        (name = "operate", description = "Health, numbers, traces and switches"),
    )
)]
struct Front;

/// A failure: what was wrong, and a word for programs.
#[derive(ToSchema)]
#[allow(dead_code)] // described, never built
pub(crate) struct Problem {
    /// What was wrong and where.
    error: String,
    /// A word for it.
    code: Option<String>,
}

/// Describes an API that answers in this version.
pub(crate) fn complete(mut description: OpenApi, version: &str) -> OpenApi {
    let mut front = Front::openapi();
    front.info.version = version.to_owned();
    front.paths = description.paths;
    // A segment that takes the rest of the path is marked for the router only.
    let paths = std::mem::take(&mut front.paths.paths);
    front.paths.paths = paths.into_iter().map(|(p, item)| (p.replace("{*", "{"), item)).collect();
    let components = front.components.get_or_insert_default();
    if let Some(mut more) = description.components.take() {
        components.schemas.append(&mut more.schemas);
    }
    for (name, scheme) in schemes() {
        components.add_security_scheme(name, scheme);
    }
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    for (path, item) in &mut front.paths.paths {
        let named = path.contains('{');
        let problem = problem_of(path);
        for operation in operations(item) {
            plain_texts(operation);
            asked_for(operation, problem);
            common_refusals(operation, named, problem);
            if path.starts_with(control::ROOT) && operation.request_body.is_some() {
                refusals_of_a_change(operation);
            }
        }
    }
    front
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post, &mut item.put, &mut item.delete].into_iter().flatten()
}

/// The comments of the code speak to its readers: here nobody needs the route again, nor can follow their links.
fn plain_texts(operation: &mut Operation) {
    let unlinked = |text: &str| text.replace("[`", "`").replace("`]", "`");
    if let Some(summary) = &mut operation.summary {
        let rest = summary
            .strip_prefix('`')
            .and_then(|s| s.split_once("`"))
            .map_or(summary.as_str(), |(_, rest)| rest.trim_start_matches([':', ',', '.', ' ']));
        let mut letters = unlinked(rest).chars().collect::<Vec<_>>();
        if let Some(first) = letters.first_mut() {
            *first = first.to_ascii_uppercase();
        }
        *summary = letters.into_iter().collect();
    }
    operation.description = operation.description.take().map(|text| unlinked(&text));
}

/// Says what a key must be granted, and how it is refused.
fn asked_for(operation: &mut Operation, problem: fn(&str) -> Response) {
    let rule = operation.operation_id.as_deref().and_then(rule_of);
    let Some(rule) = rule.filter(|rule| rule.place != Place::Nobody) else { return };
    let action = rule.action.as_str();
    let requirement = |scheme| SecurityRequirement::new(scheme, [action]);
    operation.security = Some(["bearer", "basic", "apiKey"].map(requirement).into_iter().collect());
    let responses = &mut operation.responses.responses;
    for (status, what) in [
        (StatusCode::UNAUTHORIZED, "There are keys, and none was presented that counts"),
        (StatusCode::FORBIDDEN, "The key has no such grant"),
        (StatusCode::TOO_MANY_REQUESTS, "The key is over its quota"),
    ] {
        responses.entry(status.as_str().to_owned()).or_insert_with(|| RefOr::T(problem(what)));
    }
}

/// How a key is presented.
fn schemes() -> [(&'static str, SecurityScheme); 3] {
    let http = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
    let header = ApiKey::Header(ApiKeyValue::new("x-api-key"));
    [
        ("bearer", http(HttpAuthScheme::Bearer)),
        ("basic", http(HttpAuthScheme::Basic)),
        ("apiKey", SecurityScheme::ApiKey(header)),
    ]
}

/// Every operation may refuse a malformed request, and may find the store busy or out of order.
fn common_refusals(operation: &mut Operation, named: bool, problem: fn(&str) -> Response) {
    let mut add = |status: StatusCode, what: &str| {
        let responses = &mut operation.responses.responses;
        responses.entry(status.as_str().to_owned()).or_insert_with(|| RefOr::T(problem(what)));
    };
    add(StatusCode::BAD_REQUEST, "The request is malformed, or its parts do not fit");
    add(StatusCode::INTERNAL_SERVER_ERROR, "What is stored is damaged or cannot be decrypted");
    add(
        StatusCode::SERVICE_UNAVAILABLE,
        "Busy, paused or out of order: the same request may succeed later",
    );
    if named {
        add(StatusCode::NOT_FOUND, "There is nothing of that name");
    }
    if operation.request_body.is_some() {
        add(StatusCode::PAYLOAD_TOO_LARGE, "The body is over the limit");
    }
}

/// How the control plane refuses a change.
fn refusals_of_a_change(operation: &mut Operation) {
    for (status, what) in [
        (
            StatusCode::CONFLICT,
            "The stream is in another state, or the key belongs to another change",
        ),
        (StatusCode::PRECONDITION_FAILED, "The precondition does not hold"),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The body is not sent as JSON"),
        (StatusCode::UNPROCESSABLE_ENTITY, "What is asked for cannot be kept"),
        (StatusCode::PRECONDITION_REQUIRED, "A precondition or the key is missing"),
    ] {
        let responses = &mut operation.responses.responses;
        let described = || RefOr::T(control_problem(what));
        responses.entry(status.as_str().to_owned()).or_insert_with(described);
    }
}

/// How the protocol of a path says what was wrong.
fn problem_of(path: &str) -> fn(&str) -> Response {
    if path.starts_with(control::ROOT) { control_problem } else { problem }
}

fn control_problem(what: &str) -> Response {
    let schema = RefOr::Ref(utoipa::openapi::Ref::from_schema_name(ControlProblem::name()));
    ResponseBuilder::new()
        .description(what)
        .content("application/json", Content::new(Some(schema)))
        .build()
}

fn problem(what: &str) -> Response {
    let schema = RefOr::Ref(utoipa::openapi::Ref::from_schema_name(Problem::name()));
    ResponseBuilder::new()
        .description(what)
        .content("application/json", Content::new(Some(schema)))
        .build()
}

/// The routes that show the description: as it is, and as a page to read and try it.
pub(crate) fn routes(description: &OpenApi) -> Router<Api> {
    // A description made of constants always is JSON.
    let json = Bytes::from(description.to_json().unwrap_or_default());
    let describe = async move || {
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        ([kind], json.clone()).into_response()
    };
    Router::new()
        .route("/openapi.json", get(describe))
        .route("/docs", get(async || ([page::POLICY], Html(page::PAGE)).into_response()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_have_ids_of_their_own_a_tag_and_a_summary() {
        let mut description = crate::description("1");
        let mut ids = BTreeSet::new();
        let mut count = 0;
        for (path, item) in &mut description.paths.paths {
            for operation in operations(item) {
                count += 1;
                let id = operation.operation_id.clone().unwrap_or_default();
                assert!(ids.insert(id.clone()), "{path}: `{id}` names two operations");
                assert_eq!(operation.tags.as_ref().map(Vec::len), Some(1), "{path}");
                assert!(operation.summary.as_ref().is_some_and(|s| s.len() > 10), "{path}");
                let good = |status: &String| status.starts_with('2');
                assert!(operation.responses.responses.keys().any(good), "{path}");
            }
        }
        assert!(count > 55, "{count}");
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = crate::description("1").to_json().unwrap();
        let description: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(description["openapi"].as_str().map(|v| &v[..3]), Some("3.1"));
        for found in text.split("\"#/components/schemas/").skip(1) {
            let name = found.split('"').next().unwrap();
            assert!(description["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }
}
