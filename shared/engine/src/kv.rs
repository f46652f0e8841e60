//! Keys with values beside the streams: a few bytes that are read, compared and written by key, alone or in the same
//! commit as the pushes and acknowledgements of a transaction.
//!
//! One key is one head:
//!
//! | attribute | meaning |
//! |---|---|
//! | `value` | the JSON text; absent once the key is deleted |
//! | `version` | greater with every write of the key, also across a deletion |
//! | `expires_us` | when the value ends; absent if never |
//! | `updated_us` | when it was written |
//! | `ends_us` | when the item may go; absent if never |
//! | `recent` | tokens of the last writes, by which a lost reply is looked up |
//!
//! **Versions.** A write takes the later of its own time in µs and the version before, plus one. What is deleted or has
//! expired stays as an item without a value for [`limits::KV_TOMBSTONE`], longer than clocks differ, so that the version
//! of a key that is made anew is above every one that it had.
//!
//! **A call is decided as a whole** from what is stored, at one time, and committed on the condition that none of it
//! has changed: either everything that applied is there, or nothing. An operation that does not apply is an answer and
//! no failure, unless it is *required*: then nothing of the call happens.
//!
//! Expired values are never served, but they go from the store only when [`Engine::sweep_kv`] passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
};

use bytes::Bytes;
use tidewheel_store::{
    Commit, CommitError, Condition, Failed, Item, Key, Query, Value, Write, limits as store_limits,
};

use crate::{Engine, Error, cursor::write_token, keys, limits, warm::Counts};

/// Tokens of last writes that a key keeps.
const RECENT: usize = 4;

/// How long a value lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// So many seconds from the write on; at least one.
    Seconds(i64),
    /// For ever.
    Never,
}

/// One operation of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct KvOp {
    /// The namespace: 1 to 64 of `a-z 0-9 . _ -`, the first a letter or digit.
    pub namespace: String,
    /// What to do.
    pub action: KvAction,
    /// If this does not apply, nothing of the call does.
    pub required: bool,
}

/// What an operation does. `expect` is a version that the key must have, or 0: it must not be there.
#[derive(Clone, Debug, PartialEq)]
pub enum KvAction {
    /// Reads a key.
    Get {
        /// The key.
        key: String,
    },
    /// Reads keys.
    GetMany {
        /// The keys.
        keys: Vec<String>,
    },
    /// Writes a value.
    Put {
        /// The key.
        key: String,
        /// JSON text.
        value: Bytes,
        /// The version that the key must have.
        expect: Option<i64>,
        /// How long it lives.
        expiry: Expiry,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
        /// The version that the key must have.
        expect: Option<i64>,
    },
    /// Adds to a whole number; a key that is not there counts as 0.
    Increment {
        /// The key.
        key: String,
        /// What to add.
        delta: i64,
        /// The result must not be below.
        min: Option<i64>,
        /// The result must not be above.
        max: Option<i64>,
        /// How long a counter lives that this makes. A living one keeps its end, so that a busy window closes.
        expiry: Expiry,
    },
    /// Asks whether a key has a version, and writes nothing.
    Check {
        /// The key.
        key: String,
        /// The version.
        expect: i64,
    },
}

/// A key that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct KvRow {
    /// The key.
    pub key: String,
    /// JSON text.
    pub value: Bytes,
    /// Its version.
    pub version: i64,
    /// When it ends, µs; `None` if never.
    pub expires_us: Option<i64>,
    /// When it was written, µs.
    pub updated_us: i64,
}

/// Why an operation did not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvReason {
    /// The key is there and must not be.
    Exists,
    /// The key is not there and must be.
    Absent,
    /// The key has another version.
    Version,
    /// The result would be outside the bounds.
    Limit,
    /// The value is no whole number.
    Type,
}

/// What became of one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum KvOutcome {
    /// Of a read: the key, if it is there.
    Found(Option<KvRow>),
    /// Of a read of several.
    Rows {
        /// Those that are there, in the order asked for.
        rows: Vec<KvRow>,
        /// Those that are not.
        missing: Vec<String>,
    },
    /// It applied. `row` is what it left: nothing after a deletion.
    Applied {
        /// The key.
        key: String,
        /// The key's version from now on.
        version: i64,
        /// What it left.
        row: Option<KvRow>,
    },
    /// It did not apply, and what is there.
    Refused {
        /// The key.
        key: String,
        /// Why.
        reason: KvReason,
        /// What is there.
        current: Option<KvRow>,
    },
}

/// A required operation did not apply, so that nothing of the call did.
#[derive(Clone, Debug, PartialEq)]
pub struct KvLost {
    /// Which operation of the call.
    pub index: usize,
    /// Why.
    pub reason: KvReason,
    /// What is there.
    pub current: Option<KvRow>,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KvPage {
    /// Keys in their order.
    pub rows: Vec<KvRow>,
    /// True if there may be more after the last.
    pub more: bool,
}

/// A key as it is stored, alive or not.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    value: Option<Bytes>,
    version: i64,
    expires_us: Option<i64>,
    updated_us: i64,
    recent: Vec<String>,
}

impl Stored {
    fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let bad = || Error::Corrupt(format!("key-value entry {key}"));
        let text = |v: &Value| if let Value::Str(s) = v { Some(s.clone()) } else { None };
        Ok(Self {
            value: item.str("value").map(|v| Bytes::copy_from_slice(v.as_bytes())),
            version: item.int("version").ok_or_else(bad)?,
            expires_us: item.int("expires_us"),
            updated_us: item.int("updated_us").ok_or_else(bad)?,
            recent: item.list("recent").iter().map(text).collect::<Option<_>>().ok_or_else(bad)?,
        })
    }

    fn encode(&self) -> Result<Item, Error> {
        let mut item =
            Item::new().with("version", self.version).with("updated_us", self.updated_us);
        let mut ends_us = self.updated_us;
        if let Some(value) = &self.value {
            let text = std::str::from_utf8(value)
                .map_err(|_| Error::Invalid("a value must be JSON text".into()))?;
            item.set("value", text);
            ends_us = self.expires_us.unwrap_or(i64::MAX);
        }
        if let Some(expires_us) = self.expires_us {
            item.set("expires_us", expires_us);
        }
        if ends_us < i64::MAX {
            item.set("ends_us", ends_us.saturating_add(limits::KV_TOMBSTONE.as_micros() as i64));
        }
        item.set("recent", self.recent.iter().map(|t| t.as_str().into()).collect::<Vec<Value>>());
        Ok(item)
    }

    fn row(&self, key: &str, now_us: i64) -> Option<KvRow> {
        let value = self.value.as_ref().filter(|_| self.expires_us.is_none_or(|e| e > now_us))?;
        Some(KvRow {
            key: key.to_owned(),
            value: value.clone(),
            version: self.version,
            expires_us: self.expires_us,
            updated_us: self.updated_us,
        })
    }
}

/// Where a key is: namespace and key.
type Place = (String, String);

/// The operations of one call, and the keys that they concern.
///
/// What is decided is a function of the operations, of what is stored, and of the time and the token that the call
/// began with. So an attempt that was lost and one that was made again on the same state are the same, and one on
/// another state proves that the first can never land.
pub(crate) struct KvPart {
    ops: Vec<KvOp>,
    token: String,
    now_us: i64,
    /// Keys as they are stored, as far as is known.
    known: BTreeMap<Place, Option<Stored>>,
    /// Keys as the call leaves them.
    next: BTreeMap<Place, Stored>,
    /// Keys that the call does not write and must find as they are.
    guarded: BTreeSet<Place>,
}

impl KvPart {
    /// # Errors
    /// [`Error::Limit`] and [`Error::Invalid`], naming what is wrong.
    pub(crate) fn new(engine: &Engine, ops: Vec<KvOp>, token: &str) -> Result<Self, Error> {
        limit("key-value operations in one call", ops.len(), limits::KV_OPS)?;
        let mut keys = 0;
        for op in &ops {
            check_namespace(&op.namespace)?;
            for key in op.action.keys() {
                keys += 1;
                check_key(key)?;
            }
            if let KvAction::Put { value, .. } = &op.action {
                limit("bytes in a value", value.len(), limits::KV_VALUE_BYTES)?;
            }
            if let KvAction::Put { expiry: Expiry::Seconds(s), .. }
            | KvAction::Increment { expiry: Expiry::Seconds(s), .. } = &op.action
                && !(1..=limits::KV_SECONDS_MAX).contains(s)
            {
                let max = limits::KV_SECONDS_MAX;
                return Err(Error::Invalid(format!("a value lives for 1 to {max} s, not {s}")));
            }
        }
        limit("keys in one call", keys, limits::KV_KEYS)?;
        let mut part = Self {
            now_us: engine.env().now_us(),
            token: token.to_owned(),
            known: BTreeMap::new(),
            next: BTreeMap::new(),
            guarded: BTreeSet::new(),
            ops,
        };
        // To make a key is to expect that nothing is there: what refuses it brings what is.
        if let [KvOp { action: KvAction::Put { key, expect: Some(0), .. }, namespace, .. }] =
            part.ops.as_slice()
        {
            part.known.insert((namespace.clone(), key.clone()), None);
        }
        Ok(part)
    }

    /// True if what was decided writes anything.
    pub(crate) fn writes_any(&self) -> bool {
        !self.next.is_empty()
    }

    /// Reads what is not known yet.
    pub(crate) async fn read(&mut self, engine: &Engine) -> Result<(), Error> {
        let places: BTreeSet<Place> = self
            .ops
            .iter()
            .flat_map(|op| op.action.keys().map(|k| (op.namespace.clone(), k.to_owned())))
            .filter(|place| !self.known.contains_key(place))
            .collect();
        let places: Vec<Place> = places.into_iter().collect();
        for some in places.chunks(store_limits::BATCH_GET_KEYS) {
            let keys: Vec<Key> = some.iter().map(key_of).collect();
            let items = match keys.as_slice() {
                [key] => vec![engine.get(key).await?],
                keys => engine.batch_get(keys).await?,
            };
            for ((place, key), item) in some.iter().zip(&keys).zip(items) {
                let stored = item.map(|item| Stored::decode(key, &item)).transpose()?;
                self.known.insert(place.clone(), stored);
            }
        }
        Ok(())
    }

    /// Decides every operation in order, each on what the ones before it leave.
    pub(crate) fn decide(&mut self) -> Result<Vec<KvOutcome>, KvLost> {
        self.next.clear();
        self.guarded.clear();
        let ops = std::mem::take(&mut self.ops);
        let mut outcomes = Vec::with_capacity(ops.len());
        let mut lost = None;
        for (index, op) in ops.iter().enumerate() {
            let outcome = self.decide_one(op);
            if op.required
                && let KvOutcome::Refused { reason, current, .. } = &outcome
            {
                lost = Some(KvLost { index, reason: *reason, current: current.clone() });
                break;
            }
            outcomes.push(outcome);
        }
        self.ops = ops;
        lost.map_or(Ok(outcomes), Err)
    }

    fn stored(&self, place: &Place) -> Option<&Stored> {
        self.next.get(place).or_else(|| self.known.get(place).and_then(Option::as_ref))
    }

    fn row(&self, namespace: &str, key: &str) -> Option<KvRow> {
        self.stored(&(namespace.to_owned(), key.to_owned()))?.row(key, self.now_us)
    }

    fn decide_one(&mut self, op: &KvOp) -> KvOutcome {
        let namespace = &op.namespace;
        match &op.action {
            KvAction::Get { key } => KvOutcome::Found(self.row(namespace, key)),
            KvAction::GetMany { keys } => {
                let (mut rows, mut missing) = (Vec::new(), Vec::new());
                for key in keys {
                    match self.row(namespace, key) {
                        Some(row) => rows.push(row),
                        None => missing.push(key.clone()),
                    }
                }
                KvOutcome::Rows { rows, missing }
            }
            KvAction::Put { key, value, expect, expiry } => {
                let current = self.row(namespace, key);
                match unexpected(*expect, current.as_ref()) {
                    Some(reason) => KvOutcome::Refused { key: key.clone(), reason, current },
                    None => {
                        let expires_us = self.end_of(*expiry);
                        self.write(namespace, key, Some(value.clone()), expires_us)
                    }
                }
            }
            KvAction::Delete { key, expect } => {
                let current = self.row(namespace, key);
                // Deleting what is not there applies to nothing, whatever was expected.
                let reason = match &current {
                    None => Some(KvReason::Absent),
                    Some(_) => unexpected(*expect, current.as_ref()),
                };
                match reason {
                    Some(reason) => KvOutcome::Refused { key: key.clone(), reason, current },
                    None => self.write(namespace, key, None, None),
                }
            }
            KvAction::Increment { key, delta, min, max, expiry } => {
                let current = self.row(namespace, key);
                let before = match &current {
                    None => Ok(0),
                    Some(row) => serde_json::from_slice::<i64>(&row.value),
                };
                let within = |n: &i64| min.is_none_or(|m| *n >= m) && max.is_none_or(|m| *n <= m);
                let refused = |reason| KvOutcome::Refused {
                    key: key.clone(),
                    reason,
                    current: current.clone(),
                };
                let Ok(before) = before else { return refused(KvReason::Type) };
                let Some(after) = before.checked_add(*delta).filter(within) else {
                    return refused(KvReason::Limit);
                };
                let expires_us = match &current {
                    Some(row) => row.expires_us,
                    None => self.end_of(*expiry),
                };
                self.write(namespace, key, Some(after.to_string().into()), expires_us)
            }
            KvAction::Check { key, expect } => {
                let current = self.row(namespace, key);
                match unexpected(Some(*expect), current.as_ref()) {
                    Some(reason) => KvOutcome::Refused { key: key.clone(), reason, current },
                    None => {
                        if op.required {
                            self.guarded.insert((namespace.clone(), key.clone()));
                        }
                        KvOutcome::Applied { key: key.clone(), version: *expect, row: None }
                    }
                }
            }
        }
    }

    fn end_of(&self, expiry: Expiry) -> Option<i64> {
        match expiry {
            Expiry::Seconds(s) => Some(self.now_us.saturating_add(s.saturating_mul(1_000_000))),
            Expiry::Never => None,
        }
    }

    fn write(
        &mut self,
        namespace: &str,
        key: &str,
        value: Option<Bytes>,
        expires_us: Option<i64>,
    ) -> KvOutcome {
        let place = (namespace.to_owned(), key.to_owned());
        let before = self.stored(&place);
        let version = before.map_or(self.now_us, |b| self.now_us.max(b.version + 1));
        let mut recent = before.map(|b| b.recent.clone()).unwrap_or_default();
        if recent.last() != Some(&self.token) {
            recent.push(self.token.clone());
        }
        let surplus = recent.len().saturating_sub(RECENT);
        recent.drain(..surplus);
        let stored = Stored { value, version, expires_us, updated_us: self.now_us, recent };
        let row = stored.row(key, self.now_us);
        self.next.insert(place, stored);
        KvOutcome::Applied { key: key.to_owned(), version, row }
    }

    /// What was decided, as writes on the condition that nothing of it has changed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value is no text.
    pub(crate) fn writes(&self) -> Result<Vec<(Place, Write)>, Error> {
        let unchanged = |place: &Place, write: Write| {
            write.when(match self.known.get(place).and_then(Option::as_ref) {
                None => Condition::Absent,
                Some(stored) => Condition::Equals("version".into(), stored.version.into()),
            })
        };
        let mut writes = Vec::with_capacity(self.next.len() + self.guarded.len());
        for (place, stored) in &self.next {
            let put = Write::put(key_of(place), stored.encode()?);
            writes.push((place.clone(), unchanged(place, put)));
        }
        for place in self.guarded.iter().filter(|p| !self.next.contains_key(*p)) {
            writes.push((place.clone(), unchanged(place, Write::check(key_of(place)))));
        }
        Ok(writes)
    }

    /// Learns what a key is from a refusal.
    pub(crate) fn learn(&mut self, place: &Place, failed: &Failed) -> Result<(), Error> {
        let key = key_of(place);
        let stored = failed.current.as_ref().map(|item| Stored::decode(&key, item)).transpose()?;
        self.known.insert(place.clone(), stored);
        Ok(())
    }

    /// After a lost reply, or a refusal that may be by our own earlier attempt: whether the writes have happened;
    /// `None` if it cannot be told any more, or if there are none.
    pub(crate) async fn has_happened(&mut self, engine: &Engine) -> Result<Option<bool>, Error> {
        let Some(place) = self.next.keys().next().cloned() else { return Ok(None) };
        let key = key_of(&place);
        let before = self.known.get(&place).cloned().flatten();
        let item = engine.get(&key).await?;
        let now = item.map(|item| Stored::decode(&key, &item)).transpose()?;
        if now.as_ref().is_some_and(|n| n.recent.contains(&self.token)) {
            return Ok(Some(true));
        }
        // Not among the last writes. If these reach back to what was known, it has not happened.
        let told = match (&before, &now) {
            (None, None) => true,
            (None, Some(now)) => now.recent.len() < RECENT,
            (Some(_), None) => false,
            (Some(before), Some(now)) => {
                before.version == now.version
                    || before.recent.last().is_some_and(|t| now.recent.contains(t))
            }
        };
        self.known.remove(&place);
        Ok(told.then_some(false))
    }

    /// The namespaces that are written to.
    pub(crate) fn namespaces(&self) -> BTreeSet<&str> {
        self.next.keys().map(|(namespace, _)| namespace.as_str()).collect()
    }
}

impl KvAction {
    fn keys(&self) -> impl Iterator<Item = &str> {
        let keys: &[String] = match self {
            KvAction::Get { key }
            | KvAction::Put { key, .. }
            | KvAction::Delete { key, .. }
            | KvAction::Increment { key, .. }
            | KvAction::Check { key, .. } => std::slice::from_ref(key),
            KvAction::GetMany { keys } => keys,
        };
        keys.iter().map(String::as_str)
    }
}

fn key_of((namespace, key): &Place) -> Key {
    keys::kv(namespace, key)
}

/// Why what is there is not what was expected, if it is not.
fn unexpected(expect: Option<i64>, current: Option<&KvRow>) -> Option<KvReason> {
    match (expect, current) {
        (None, _) | (Some(0), None) => None,
        (Some(0), Some(_)) => Some(KvReason::Exists),
        (Some(_), None) => Some(KvReason::Absent),
        (Some(version), Some(row)) => (row.version != version).then_some(KvReason::Version),
    }
}

fn limit(what: &'static str, got: usize, limit: usize) -> Result<(), Error> {
    if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
}

fn check_namespace(namespace: &str) -> Result<(), Error> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let rest = |b: u8| plain(b) || matches!(b, b'.' | b'_' | b'-');
    let bytes = namespace.as_bytes();
    let good = bytes.first().is_some_and(|&b| plain(b))
        && bytes.len() <= limits::KV_NAMESPACE_BYTES
        && bytes.iter().all(|&b| rest(b));
    match good {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "a namespace is 1 to {} of a-z, 0-9, `.`, `_` and `-`, the first a letter or a digit",
            limits::KV_NAMESPACE_BYTES
        ))),
    }
}

fn check_key(key: &str) -> Result<(), Error> {
    Error::check_name("the key", key)
}

impl Engine {
    /// Carries out key-value operations: all that apply, in one commit. `Ok(Err(_))` if a required one did not apply;
    /// nothing was written then.
    pub async fn kv(&self, ops: Vec<KvOp>) -> Result<Result<Vec<KvOutcome>, KvLost>, Error> {
        let mut part = KvPart::new(self, ops, &write_token(self))?;
        let mut doubt = None;
        let answer = self.kv_until_decided(&mut part, &mut doubt).await;
        match (answer, doubt) {
            // What it lost against may be its own earlier attempt, arriving late.
            (Ok(Err(_)), Some(why)) => Err(Error::Unknown(why)),
            (answer, doubt) => Error::in_doubt(answer, doubt),
        }
    }

    async fn kv_until_decided(
        &self,
        part: &mut KvPart,
        doubt: &mut Option<String>,
    ) -> Result<Result<Vec<KvOutcome>, KvLost>, Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            part.read(self).await?;
            let outcomes = match part.decide() {
                Ok(outcomes) => outcomes,
                Err(lost) => return Ok(Err(lost)),
            };
            if part.next.is_empty() {
                return Ok(Ok(outcomes));
            }
            self.enter_namespaces(part).await?;
            let (places, writes): (Vec<_>, Vec<_>) = part.writes()?.into_iter().unzip();
            match self.commit(Commit::all(writes)).await {
                Ok(_) => return Ok(Ok(outcomes)),
                Err(CommitError::Conflict(failed)) => {
                    if doubt.is_some() && part.has_happened(self).await? == Some(true) {
                        return Ok(Ok(outcomes));
                    }
                    for one in &failed {
                        if let Some(place) = places.get(one.write) {
                            part.learn(place, one)?;
                        }
                    }
                }
                Err(CommitError::Unknown(e)) => {
                    *doubt = Some(e.clone());
                    match part.has_happened(self).await? {
                        Some(true) => {
                            Counts::add(&self.inner.counts.outcomes_resolved, 1);
                            return Ok(Ok(outcomes));
                        }
                        Some(false) => {}
                        None => return Err(Error::Unknown(e)),
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Lists the namespaces that a call is the first of this process to write to, so that sweeping finds them.
    pub(crate) async fn enter_namespaces(&self, part: &KvPart) -> Result<(), Error> {
        for namespace in part.namespaces() {
            if self.inner.kv_namespaces.get(namespace).is_some() {
                continue;
            }
            let entry = Write::put(keys::kv_namespace(namespace), Item::new().with("listed", true));
            for attempt in 0.. {
                match self.commit(Commit::one(entry.clone())).await {
                    Ok(_) => break,
                    // Written twice is written once.
                    Err(CommitError::Unknown(_)) if attempt < limits::COMMIT_ATTEMPTS => {}
                    Err(e) => return Err(e.into()),
                }
            }
            self.inner.kv_namespaces.insert(namespace.to_owned(), ());
        }
        Ok(())
    }

    /// Keys of a namespace that begin like this, in their order, after one; at most `limit`, which is at most
    /// [`limits::KV_PAGE`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty prefix: a namespace is no table to be listed.
    pub async fn kv_prefix(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KvPage, Error> {
        check_namespace(namespace)?;
        check_key(prefix)?;
        let limit = limit.clamp(1, limits::KV_PAGE);
        let now_us = self.env().now_us();
        let mut query = Query { limit, ..Query::prefix(keys::kv_pk(namespace), prefix) };
        if let Some(after) = after.filter(|&a| a >= prefix) {
            query.from = Some(format!("{after}\u{0}"));
        }
        let mut page = KvPage::default();
        let mut next = Some(query);
        while let Some(query) = next {
            let found = self.items(&query).await?;
            for (key, item) in &found.items {
                let Some(row) = Stored::decode(key, item)?.row(&key.sk, now_us) else { continue };
                if page.rows.len() == limit {
                    page.more = true;
                    return Ok(page);
                }
                page.rows.push(row);
            }
            next = query.following(&found);
        }
        Ok(page)
    }

    /// Deletes what was deleted, or has expired, long enough ago. Answers how many keys. It looks at all keys, so a process
    /// does it once in [`limits::KV_TOMBSTONE`], however often it is called.
    pub async fn sweep_kv(&self) -> Result<u64, Error> {
        let now_us = self.env().now_us();
        let last_us = self.inner.kv_swept_us.load(Relaxed);
        if now_us.saturating_sub(last_us) < limits::KV_TOMBSTONE.as_micros() as i64 {
            return Ok(0);
        }
        let mut swept = 0;
        let mut namespaces = Some(Query::all(keys::KV_NAMESPACES));
        while let Some(query) = namespaces {
            let page = self.items(&query).await?;
            for (key, _) in &page.items {
                swept += self.sweep_namespace(&key.sk).await?;
            }
            namespaces = query.following(&page);
        }
        self.inner.kv_swept_us.store(now_us, Relaxed);
        Ok(swept)
    }

    async fn sweep_namespace(&self, namespace: &str) -> Result<u64, Error> {
        let now_us = self.env().now_us();
        let mut swept = 0;
        let mut next = Some(Query::all(keys::kv_pk(namespace)));
        while let Some(query) = next {
            let page = self.items(&query).await?;
            for (key, item) in &page.items {
                let over = item.int("ends_us").is_some_and(|ends| ends <= now_us);
                let Some(version) = item.int("version").filter(|_| over) else { continue };
                let delete = Write::delete(key.clone())
                    .when(Condition::Equals("version".into(), version.into()));
                match self.commit(Commit::one(delete)).await {
                    Ok(_) => swept += 1,
                    // Somebody has written it, or it is gone all the same.
                    Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            next = query.following(&page);
        }
        Ok(swept)
    }
}
