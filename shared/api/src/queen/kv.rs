//! `/api/v1/kv`: keys with values. A batch is one commit; single keys have routes of their own.
//!
//! An operation that did not apply is an answer and no failure: 200, and the result says why and what is there.

use std::borrow::Cow;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{
    Action, Expiry, KvAction, KvLost, KvOp, KvOutcome, KvReason, KvRow, limits,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    auth::{Caller, keys_name},
    body::{Body, Object, Segments, Text, present},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(batch)).routes(routes!(get, put, delete))
}

/// Keys in a page when the request names no number.
const PAGE: i64 = 100;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    operations: Vec<Object<Operation<'a>>>,
}

/// One operation, by `op`, which reads of the rest what it needs.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Operation<'a> {
    #[serde(borrow)]
    op: Option<Text<'a>>,
    #[serde(borrow)]
    ns: Option<Text<'a>>,
    #[serde(borrow)]
    key: Option<Text<'a>>,
    #[serde(borrow)]
    keys: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    prefix: Option<Text<'a>>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
    limit: Option<i64>,
    keys_only: Option<bool>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    expect: Option<i64>,
    delta: Option<i64>,
    min: Option<i64>,
    max: Option<i64>,
    required: Option<bool>,
    ttl_seconds: Option<i64>,
    forever: Option<bool>,
}

/// An operation as it was understood.
enum Read {
    /// One that the engine carries out, and whether it is one of those that write nothing.
    Op(KvOp),
    /// A page of keys.
    Prefix {
        namespace: String,
        prefix: String,
        after: Option<String>,
        limit: usize,
        keys_only: bool,
    },
}

impl Operation<'_> {
    fn name(&self) -> &str {
        self.op.as_deref().unwrap_or_default()
    }

    fn the_key(&self) -> Result<String, Failure> {
        self.key
            .as_deref()
            .map(str::to_owned)
            .ok_or_else(|| refused("kv_bad_request", format!("`{}` needs a `key`", self.name())))
    }

    fn expiry(&self) -> Result<Expiry, Failure> {
        match (self.ttl_seconds, self.forever.unwrap_or(false)) {
            (Some(seconds), false) if seconds > 0 => Ok(Expiry::Seconds(seconds)),
            (Some(seconds), false) => Err(refused(
                "kv_bad_ttl",
                format!("`ttlSeconds` must be a whole number above 0, not {seconds}"),
            )),
            (None, true) => Ok(Expiry::Never),
            _ => Err(refused(
                "kv_expiry_not_specified",
                format!("`{}` needs either `ttlSeconds` or `forever: true`", self.name()),
            )),
        }
    }

    fn expected(&self) -> Result<Option<i64>, Failure> {
        match self.expect {
            Some(version) if version < 0 => Err(refused(
                "kv_bad_expect",
                format!("`expect` must be a version or 0, not {version}"),
            )),
            expect => Ok(expect),
        }
    }

    fn read(&self, body: &Body) -> Result<Read, Failure> {
        let namespace = self
            .ns
            .as_deref()
            .ok_or_else(|| refused("kv_bad_request", "`ns` is missing".to_owned()))?
            .to_owned();
        let value = || {
            self.value.map(|value| body.part(value)).ok_or_else(|| {
                refused("kv_bad_request", format!("`{}` needs a `value`", self.name()))
            })
        };
        let action = match self.name() {
            "get" => KvAction::Get { key: self.the_key()? },
            "getMany" => {
                let keys = self.keys.as_ref().ok_or_else(|| {
                    refused("kv_bad_request", "`getMany` needs `keys`".to_owned())
                })?;
                KvAction::GetMany { keys: keys.iter().map(|k| k.to_string()).collect() }
            }
            "getPrefix" => {
                let prefix = self.prefix.as_deref().filter(|p| !p.is_empty()).ok_or_else(|| {
                    refused(
                        "kv_prefix_required",
                        "`getPrefix` needs a `prefix`: a namespace is no table to be listed".into(),
                    )
                })?;
                let limit = self.limit.unwrap_or(PAGE).clamp(1, limits::KV_PAGE as i64);
                return Ok(Read::Prefix {
                    namespace,
                    prefix: prefix.to_owned(),
                    after: self.after.as_deref().map(str::to_owned),
                    limit: usize::try_from(limit).unwrap_or(1),
                    keys_only: self.keys_only.unwrap_or(false),
                });
            }
            "put" => KvAction::Put {
                key: self.the_key()?,
                value: value()?,
                expect: self.expected()?,
                expiry: self.expiry()?,
            },
            "putIfAbsent" => match self.expected()? {
                None | Some(0) => KvAction::Put {
                    key: self.the_key()?,
                    value: value()?,
                    expect: Some(0),
                    expiry: self.expiry()?,
                },
                Some(_) => {
                    let text = "`putIfAbsent` expects that the key is not there: no other `expect`";
                    return Err(refused("kv_bad_expect", text.to_owned()));
                }
            },
            "delete" => KvAction::Delete { key: self.the_key()?, expect: self.expected()? },
            "incr" => {
                if self.expect.is_some() {
                    let text = "`incr` takes no `expect`: it needs none";
                    return Err(refused("kv_bad_request", text.to_owned()));
                }
                KvAction::Increment {
                    key: self.the_key()?,
                    delta: self.delta.ok_or_else(|| {
                        refused("kv_bad_request", "`incr` needs a `delta`".to_owned())
                    })?,
                    min: self.min,
                    max: self.max,
                    expiry: self.expiry()?,
                }
            }
            "check" => KvAction::Check {
                key: self.the_key()?,
                expect: self.expected()?.ok_or_else(|| {
                    refused("kv_bad_expect", "`check` needs an `expect`".to_owned())
                })?,
            },
            other => {
                let other = shortened(other);
                return Err(refused("kv_unknown_op", format!("unknown operation `{other}`")));
            }
        };
        Ok(Read::Op(KvOp { namespace, action, required: self.required.unwrap_or(false) }))
    }
}

fn refused(code: &'static str, text: String) -> Failure {
    Failure::coded(code, text)
}

/// The key-value operations of a transaction.
pub(super) fn riders(
    body: &Body,
    operations: &[Object<Operation<'_>>],
) -> Result<Vec<KvOp>, Failure> {
    let read = |operation: &Object<Operation<'_>>| match operation.read(body)? {
        Read::Op(op) => Ok(op),
        Read::Prefix { .. } => Err(refused(
            "kv_get_prefix_not_allowed_in_transaction",
            "`getPrefix` is not allowed in a transaction: its cost is not bounded by the caller"
                .into(),
        )),
    };
    operations.iter().map(read).collect()
}

/// Checks that operations are granted: reading what reads, publishing what writes.
pub(super) fn granted(caller: &Caller, ops: &[KvOp]) -> Result<(), Failure> {
    for op in ops {
        let action = if writes(op) { Action::Publish } else { Action::Read };
        caller.check(action, &keys_name(&op.namespace))?;
    }
    Ok(())
}

fn writes(op: &KvOp) -> bool {
    !matches!(op.action, KvAction::Get { .. } | KvAction::GetMany { .. } | KvAction::Check { .. })
}

/// `POST /api/v1/kv`: operations on keys, in order and in one commit.
#[utoipa::path(
    post, path = "/api/v1/kv", operation_id = "kv", tag = "keys",
    request_body = openapi::KvRequest,
    responses((status = 200, description = "What became of each operation, in order", body = openapi::KvAnswer)),
)]
async fn batch(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    let operations = request.operations.iter().map(|o| o.read(&body));
    let operations = operations.collect::<Result<Vec<_>, _>>()?;
    let mut pages = Vec::new();
    let mut ops = Vec::new();
    let mut order = Vec::with_capacity(operations.len());
    for operation in operations {
        match operation {
            Read::Op(op) => {
                order.push(None);
                ops.push(op);
            }
            Read::Prefix { namespace, prefix, after, limit, keys_only } => {
                order.push(Some(keys_only));
                pages.push((namespace, prefix, after, limit));
            }
        }
    }
    granted(body.caller(), &ops)?;
    for (namespace, ..) in &pages {
        body.caller().check(Action::Read, &keys_name(namespace))?;
    }
    if !pages.is_empty() && ops.iter().any(writes) {
        let text = "`getPrefix` reads what is stored: it stands in no call that also writes";
        return Err(refused("kv_bad_request", text.to_owned()));
    }
    let names: Vec<&'static str> = ops.iter().map(|op| op_name(&op.action)).collect();
    let mut outcomes = match api.engine().kv(ops).await? {
        Ok(outcomes) => names.into_iter().zip(outcomes),
        Err(lost) => return Ok(lost_answer(&lost).into_response(StatusCode::OK)),
    };
    let mut json = Json::with_capacity(64 + order.len() * 200);
    json.object().key("results").array();
    let mut pages = pages.iter();
    for (index, place) in order.iter().enumerate() {
        json.object().key("index").number(index);
        match place {
            None => {
                if let Some((name, outcome)) = outcomes.next() {
                    members(&mut json, name, &outcome);
                }
            }
            Some(keys_only) => {
                let Some((namespace, prefix, after, limit)) = pages.next() else { continue };
                let page =
                    api.engine().kv_prefix(namespace, prefix, after.as_deref(), *limit).await?;
                json.key("op").plain("getPrefix").key("rows").array();
                for row in &page.rows {
                    json.object();
                    row_members(&mut json, row, !keys_only);
                    json.end_object();
                }
                json.end_array().key("truncated").bool(page.more);
                if let Some(last) = page.rows.last().filter(|_| page.more) {
                    json.key("nextAfter").string(&last.key);
                }
            }
        }
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/kv/{namespace}/{key}`: one key; `found` says whether it is there.
#[utoipa::path(
    get, path = "/api/v1/kv/{namespace}/{*key}", operation_id = "kvGet", tag = "keys",
    params(openapi::KvPath),
    responses((status = 200, description = "The key, if it is there", body = openapi::KvResult)),
)]
async fn get(
    State(api): State<Api>,
    Segments((namespace, key)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    one(&api, KvOp { namespace, action: KvAction::Get { key }, required: false }).await
}

/// `PUT /api/v1/kv/{namespace}/{key}`: writes a value.
#[utoipa::path(
    put, path = "/api/v1/kv/{namespace}/{*key}", operation_id = "kvPut", tag = "keys",
    params(openapi::KvPath), request_body = openapi::KvWrite,
    responses((status = 200, description = "Whether it was written", body = openapi::KvResult)),
)]
async fn put(
    State(api): State<Api>,
    Segments((namespace, key)): Segments<(String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    written(&api, namespace, key, "put", &body).await
}

/// `DELETE /api/v1/kv/{namespace}/{key}`: deletes a key, if it has the version that the body expects.
#[utoipa::path(
    delete, path = "/api/v1/kv/{namespace}/{*key}", operation_id = "kvDelete", tag = "keys",
    params(openapi::KvPath), request_body = Option<openapi::KvDeletion>,
    responses((status = 200, description = "Whether it was deleted", body = openapi::KvResult)),
)]
async fn delete(
    State(api): State<Api>,
    Segments((namespace, key)): Segments<(String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    written(&api, namespace, key, "delete", &body).await
}

async fn written(
    api: &Api,
    namespace: String,
    key: String,
    op: &'static str,
    body: &Body,
) -> Result<Response, Failure> {
    let mut operation: Operation<'_> =
        if body.is_empty() { Operation::default() } else { body.parse()? };
    if operation.op.is_some() || operation.ns.is_some() || operation.key.is_some() {
        let text = "`op`, `ns` and `key` stand in the path";
        return Err(refused("kv_bad_request", text.to_owned()));
    }
    operation.op = Some(Text::from(Cow::Borrowed(op)));
    operation.ns = Some(Text::from(Cow::Owned(namespace)));
    operation.key = Some(Text::from(Cow::Owned(key)));
    match operation.read(body)? {
        Read::Op(op) => one(api, op).await,
        Read::Prefix { .. } => Err(refused("kv_bad_request", "no page has a key".to_owned())),
    }
}

async fn one(api: &Api, op: KvOp) -> Result<Response, Failure> {
    let name = op_name(&op.action);
    let outcomes = match api.engine().kv(vec![op]).await? {
        Ok(outcomes) => outcomes,
        Err(lost) => return Ok(lost_answer(&lost).into_response(StatusCode::OK)),
    };
    let mut json = Json::with_capacity(256);
    json.object().key("index").number(0);
    for outcome in &outcomes {
        members(&mut json, name, outcome);
    }
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// The name that an operation has in its result.
pub(super) fn op_name(action: &KvAction) -> &'static str {
    match action {
        KvAction::Get { .. } => "get",
        KvAction::GetMany { .. } => "getMany",
        KvAction::Put { .. } => "put",
        KvAction::Delete { .. } => "delete",
        KvAction::Increment { .. } => "incr",
        KvAction::Check { .. } => "check",
    }
}

pub(super) fn reason_name(reason: KvReason) -> &'static str {
    match reason {
        KvReason::Exists => "exists",
        KvReason::Absent => "absent",
        KvReason::Version => "version",
        KvReason::Limit => "limit",
        KvReason::Type => "type",
    }
}

/// A required operation did not apply, so that nothing did.
fn lost_answer(lost: &KvLost) -> Json {
    let mut json = Json::with_capacity(256);
    json.object().key("results").array().end_array();
    lost_members(&mut json, lost, lost.index);
    json.end_object();
    json
}

/// What a lost precondition says, its operation counted as the caller counts.
pub(super) fn lost_members(json: &mut Json, lost: &KvLost, index: usize) {
    json.key("ok").bool(false).key("reason").plain("kv_precondition");
    json.key("error").plain("kv_precondition_failed").key("failedIndex").number(index);
    json.key("kvReason").plain(reason_name(lost.reason));
    if let Some(current) = &lost.current {
        json.key("version").number(current.version).key("value").raw(&current.value);
    }
}

/// What one operation did.
pub(super) fn members(json: &mut Json, name: &str, outcome: &KvOutcome) {
    json.key("op").plain(name);
    match outcome {
        KvOutcome::Found(row) => {
            json.key("found").bool(row.is_some());
            if let Some(row) = row {
                row_members(json, row, true);
            }
        }
        KvOutcome::Rows { rows, missing } => {
            json.key("rows").array();
            for row in rows {
                json.object();
                row_members(json, row, true);
                json.end_object();
            }
            json.end_array().key("missing").array();
            for key in missing {
                json.string(key);
            }
            json.end_array();
        }
        KvOutcome::Applied { key, version, row } => {
            json.key("applied").bool(true);
            match row {
                Some(row) => row_members(json, row, true),
                None => {
                    json.key("key").string(key).key("version").number(version);
                }
            }
        }
        KvOutcome::Refused { key, reason, current } => {
            json.key("applied").bool(false).key("reason").plain(reason_name(*reason));
            match current {
                Some(row) => row_members(json, row, true),
                None => {
                    json.key("key").string(key);
                }
            }
        }
    }
}

fn row_members(json: &mut Json, row: &KvRow, with_value: bool) {
    json.key("key").string(&row.key);
    if with_value {
        json.key("value").raw(&row.value);
    }
    json.key("version").number(row.version);
    if let Some(expires_us) = row.expires_us {
        json.key("expiresAt").time(expires_us);
    }
    json.key("updatedAt").time(row.updated_us);
}
