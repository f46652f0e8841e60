//! `POST /api/v1/locks`: locks and semaphores, as leases with a token.
//!
//! A permit is a key in the namespace [`NAMESPACE`], written with a lifetime: its version is the token, which only rises
//! on one lock. So everything here is an operation on a key; what makes the work of a holder exclusive is the `guard`
//! that each grant brings, a required `check` of the key for the transaction that does the work.
//!
//! An operation that its owner sends again is the same operation: an owner gets the permit that it has, and a renewal
//! with the token before the last is carried through.

use axum::{extract::State, http::StatusCode, response::Response};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidewheel_engine::{Action, Expiry, KvAction, KvOp, KvOutcome, KvRow, limits};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    auth::lock_name,
    body::{Body, Object, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi, time,
};

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(batch))
}

/// Where permits are.
const NAMESPACE: &str = "queen-locks";

/// Bytes of a lock's name.
const NAME_BYTES: usize = 256;

/// Permits of one semaphore.
const PERMITS: u32 = 1024;

/// Operations in one call: each is a commit of its own.
const OPERATIONS: usize = 100;

/// Attempts at a renewal whose permit its own owner keeps renewing.
const ATTEMPTS: usize = 16;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    operations: Vec<Object<Operation<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Operation<'a> {
    #[serde(borrow)]
    op: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
    ttl_seconds: Option<i64>,
    #[serde(borrow)]
    owner: Option<Text<'a>>,
    limit: Option<u32>,
    slot: Option<u32>,
    token: Option<i64>,
}

/// What is stored of a holder.
#[derive(Serialize, Deserialize)]
struct Held {
    owner: Option<String>,
    since: String,
}

/// A permit that is held.
struct Permit {
    slot: u32,
    row: KvRow,
    /// `None` for a key that somebody wrote by hand.
    held: Option<Held>,
}

impl Permit {
    fn read(slot: u32, row: KvRow) -> Self {
        Self { slot, held: serde_json::from_slice(&row.value).ok(), row }
    }

    fn owner(&self) -> Option<&str> {
        self.held.as_ref()?.owner.as_deref()
    }
}

/// What one operation did.
enum Did {
    Granted { slot: u32, token: i64, already: bool },
    Refused { contended: bool, holders: Vec<Permit> },
    Renewed { token: i64 },
    Released,
    Lost { holders: Vec<Permit> },
    Found { holders: Vec<Permit> },
}

impl Operation<'_> {
    fn check(&self, index: usize) -> Result<(), Failure> {
        let bad = |text: String| Err(Failure::bad_request(format!("operations[{index}]: {text}")));
        let name = &*self.name;
        if name.is_empty()
            || name.len() > NAME_BYTES
            || name.chars().any(|c| c == '#' || c.is_control())
        {
            return bad(format!(
                "a lock's name has 1 to {NAME_BYTES} bytes, no `#` and no control character"
            ));
        }
        if matches!(&*self.op, "acquire" | "renew") && self.ttl_seconds.is_none_or(|s| s < 1) {
            return bad("`ttlSeconds` must be a whole number above 0".to_owned());
        }
        if matches!(&*self.op, "renew" | "release") && self.token.is_none() {
            return bad("`token` is missing".to_owned());
        }
        if self.limit.is_some_and(|l| !(1..=PERMITS).contains(&l)) {
            return bad(format!("`limit` must be 1 to {PERMITS}"));
        }
        if self.slot.is_some_and(|s| s >= PERMITS) {
            return bad(format!("`slot` must be below {PERMITS}"));
        }
        match &*self.op {
            "acquire" | "renew" | "release" | "get" => Ok(()),
            other => bad(format!("unknown operation `{}`", shortened(other))),
        }
    }

    fn key(&self, slot: u32) -> String {
        format!("{}#{slot}", &*self.name)
    }

    fn put(&self, slot: u32, since: String, owner: Option<String>, expect: i64) -> KvAction {
        let held = Held { owner, since };
        KvAction::Put {
            key: self.key(slot),
            // A structure of texts always is JSON.
            value: serde_json::to_vec(&held).map(Bytes::from).unwrap_or_default(),
            expect: Some(expect),
            expiry: Expiry::Seconds(self.ttl_seconds.unwrap_or(1)),
        }
    }
}

/// `POST /api/v1/locks`: operations on locks, each for itself.
#[utoipa::path(
    post, path = "/api/v1/locks", operation_id = "locks", tag = "keys",
    request_body = openapi::LockRequest,
    responses((status = 200, description = "What each did, in order", body = openapi::LockAnswer)),
)]
async fn batch(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: Request<'_> = body.parse()?;
    if request.operations.len() > OPERATIONS {
        return Err(Failure::bad_request(format!("more than {OPERATIONS} operations in one call")));
    }
    for (index, operation) in request.operations.iter().enumerate() {
        operation.check(index)?;
        body.caller().check(Action::Consume, &lock_name(&operation.name))?;
    }
    let mut json = Json::with_capacity(32 + request.operations.len() * 300);
    json.object().key("results").array();
    for (index, operation) in request.operations.iter().enumerate() {
        let did = match &*operation.op {
            "acquire" => acquire(&api, operation).await?,
            "renew" => renew(&api, operation).await?,
            "release" => release(&api, operation).await?,
            _ => Did::Found { holders: holders(&api, operation).await? },
        };
        json.object().key("index").number(index).key("op").string(&operation.op);
        json.key("name").string(&operation.name);
        members(&mut json, operation, &did);
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// Carries out one operation on a key.
async fn carry_out(api: &Api, action: KvAction) -> Result<KvOutcome, Failure> {
    let op = KvOp { namespace: NAMESPACE.to_owned(), action, required: false };
    match api.engine().kv(vec![op]).await? {
        Ok(mut outcomes) if outcomes.len() == 1 => Ok(outcomes.remove(0)),
        _ => Err(tidewheel_engine::Error::Busy.into()),
    }
}

fn now(api: &Api) -> String {
    String::from_utf8_lossy(&time::format(api.now_us())).into_owned()
}

async fn acquire(api: &Api, operation: &Operation<'_>) -> Result<Did, Failure> {
    let permits = operation.limit.unwrap_or(1);
    let owner = filled(&operation.owner);
    // A lock is the semaphore of one, which needs no look at what is free.
    let (mut free, mut taken) = match permits {
        1 => (vec![0], Vec::new()),
        _ => look(api, operation, permits).await?,
    };
    if let Some(mine) = taken.iter().find(|p| owner.is_some() && p.owner() == owner) {
        return Ok(Did::Granted { slot: mine.slot, token: mine.row.version, already: true });
    }
    let contended = !free.is_empty() && permits > 1;
    // Who comes together should not try in the same order.
    let first = api.engine().env().below(free.len().max(1) as u64) as usize;
    free.rotate_left(first);
    for slot in free {
        let put = operation.put(slot, now(api), owner.map(str::to_owned), 0);
        match carry_out(api, put).await? {
            KvOutcome::Applied { version, .. } => {
                return Ok(Did::Granted { slot, token: version, already: false });
            }
            KvOutcome::Refused { current: Some(row), .. } => {
                let permit = Permit::read(slot, row);
                if owner.is_some() && permit.owner() == owner {
                    return Ok(Did::Granted { slot, token: permit.row.version, already: true });
                }
                taken.push(permit);
            }
            _ => {}
        }
    }
    taken.sort_by_key(|p| p.slot);
    Ok(Did::Refused { contended, holders: taken })
}

/// The permits that are free, and those that are held.
async fn look(
    api: &Api,
    operation: &Operation<'_>,
    permits: u32,
) -> Result<(Vec<u32>, Vec<Permit>), Failure> {
    let keys = (0..permits).map(|slot| operation.key(slot)).collect();
    let KvOutcome::Rows { rows, .. } = carry_out(api, KvAction::GetMany { keys }).await? else {
        return Err(tidewheel_engine::Error::Busy.into());
    };
    let taken: Vec<Permit> = rows.into_iter().filter_map(permit).collect();
    let free = (0..permits).filter(|slot| taken.iter().all(|p| p.slot != *slot)).collect();
    Ok((free, taken))
}

/// The permit of a key, whose end is its slot.
fn permit(row: KvRow) -> Option<Permit> {
    let slot = row.key.rsplit_once('#')?.1.parse().ok()?;
    Some(Permit::read(slot, row))
}

async fn renew(api: &Api, operation: &Operation<'_>) -> Result<Did, Failure> {
    let slot = operation.slot.unwrap_or(0);
    let owner = filled(&operation.owner);
    for _ in 0..ATTEMPTS {
        let key = operation.key(slot);
        let KvOutcome::Found(found) = carry_out(api, KvAction::Get { key }).await? else { break };
        let Some(permit) = found.map(|row| Permit::read(slot, row)) else {
            return Ok(Did::Lost { holders: Vec::new() });
        };
        let mine = Some(permit.row.version) == operation.token
            || owner.is_some() && permit.owner() == owner;
        let Some(held) = permit.held.as_ref().filter(|_| mine) else {
            return Ok(Did::Lost { holders: vec![permit] });
        };
        let put = operation.put(slot, held.since.clone(), held.owner.clone(), permit.row.version);
        if let KvOutcome::Applied { version, .. } = carry_out(api, put).await? {
            return Ok(Did::Renewed { token: version });
        }
    }
    Err(tidewheel_engine::Error::Busy.into())
}

async fn release(api: &Api, operation: &Operation<'_>) -> Result<Did, Failure> {
    let slot = operation.slot.unwrap_or(0);
    let delete = KvAction::Delete { key: operation.key(slot), expect: operation.token };
    Ok(match carry_out(api, delete).await? {
        KvOutcome::Refused { current, .. } => {
            Did::Lost { holders: current.map(|row| Permit::read(slot, row)).into_iter().collect() }
        }
        _ => Did::Released,
    })
}

async fn holders(api: &Api, operation: &Operation<'_>) -> Result<Vec<Permit>, Failure> {
    let prefix = format!("{}#", &*operation.name);
    let mut holders = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page =
            api.engine().kv_prefix(NAMESPACE, &prefix, after.as_deref(), limits::KV_PAGE).await?;
        after = page.rows.last().map(|row| row.key.clone()).filter(|_| page.more);
        holders.extend(page.rows.into_iter().filter_map(permit));
        if after.is_none() {
            holders.sort_by_key(|p| p.slot);
            return Ok(holders);
        }
    }
}

fn members(json: &mut Json, operation: &Operation<'_>, did: &Did) {
    let slot = operation.slot.unwrap_or(0);
    match did {
        Did::Granted { slot, token, already } => {
            json.key("acquired").bool(true).key("slot").number(slot).key("token").number(token);
            if *already {
                json.key("already").bool(true);
            }
            json.key("owner").string_or_null(filled(&operation.owner));
            guard(json, &operation.key(*slot), *token);
        }
        Did::Refused { contended, holders } => {
            json.key("acquired").bool(false);
            json.key("reason").plain(if *contended { "contended" } else { "held" });
            holder_members(json, holders, false);
        }
        Did::Renewed { token } => {
            json.key("renewed").bool(true).key("slot").number(slot).key("token").number(token);
            guard(json, &operation.key(slot), *token);
        }
        Did::Released => {
            json.key("released").bool(true).key("slot").number(slot);
        }
        Did::Lost { holders } => {
            let verdict = if &*operation.op == "renew" { "renewed" } else { "released" };
            json.key(verdict).bool(false).key("slot").number(slot).key("reason").plain("lost");
            holder_members(json, holders, false);
        }
        Did::Found { holders } => {
            json.key("held").bool(!holders.is_empty());
            holder_members(json, holders, true);
        }
    }
}

/// The operation on the key that holds while the permit does.
fn guard(json: &mut Json, key: &str, token: i64) {
    json.key("guard").object().key("op").plain("check").key("ns").plain(NAMESPACE);
    json.key("key").string(key).key("expect").number(token).key("required").bool(true);
    json.end_object();
}

/// Who holds permits; a refusal tells no token.
fn holder_members(json: &mut Json, holders: &[Permit], whole: bool) {
    json.key("holders").array();
    for permit in holders {
        json.object().key("slot").number(permit.slot).key("owner").string_or_null(permit.owner());
        if whole {
            json.key("token").number(permit.row.version);
            if let Some(held) = &permit.held {
                json.key("since").string(&held.since);
            }
            if let Some(expires_us) = permit.row.expires_us {
                json.key("expiresAt").time(expires_us);
            }
            json.key("renewedAt").time(permit.row.updated_us);
        }
        json.end_object();
    }
    json.end_array();
}
