//! Timers: records that are pushed later, under the ids that were promised when they were scheduled.
//!
//! A timer is one head, named by its stream and a key of its owner's, and one entry in the order of what is due:
//!
//! | attribute | meaning |
//! |---|---|
//! | `partition` `tx` | where it will be pushed, and the transaction id |
//! | `id` | the message id that was promised; also what a condition knows the timer by |
//! | `due_us` `made_us` `updated_us` | when it is due, was first scheduled, and last |
//! | `payload` | the payload |
//! | `sealed` | true if the payload is in an envelope, see [`crate::encryption`] |
//!
//! **It fires once.** The push and the deletion of the timer are one commit, on the condition that the timer is still
//! the one that was read: whoever else fires, moves or cancels it loses or wins as a whole. So a timer that is not there
//! any more has been delivered or cancelled, and a record that was delivered is found by its transaction id.
//!
//! **It is not early, and may be late**: it fires when somebody calls [`Engine::fire_timers`] after it is due.
//!
//! **Its id was minted before its offset.** Clients sort by time and id, so a fired record is served in a millisecond
//! that nothing before it in its partition was served in: its id is older than that, and everything after it is newer.
//!
//! A timer belongs to a name: deleting the stream leaves it, and it makes the stream anew when it fires. On a stream
//! that is encrypted at rest its payload is sealed from the beginning.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tidewheel_store::{
    Commit, CommitError, Condition, Failed, Item, Key, Query, Write, limits as store_limits,
};

use crate::{
    DEFAULT_PARTITION, Engine, Error, PartitionId, PushItem, Uuid,
    bundle::{self, Assembly, Bundle, failed_at},
    keys, limits, push,
    warm::Counts,
};

/// Due timers that one query of a shard finds.
const DUE_AT_ONCE: usize = 100;

/// How long a process goes by what it knows of the next due timer: others may have scheduled one, µs.
const KNOWN_US: i64 = 5_000_000;

/// When what failed is tried again, µs.
const RETRY_US: i64 = 1_000_000;

/// One operation of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerOp {
    /// The stream that the timer pushes to.
    pub stream: String,
    /// The timer's key within the stream.
    pub key: String,
    /// What to do.
    pub action: TimerAction,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq)]
pub enum TimerAction {
    /// Schedules a record, in place of the one that waits under the same key.
    Schedule {
        /// Milliseconds from now; what is not positive is due at once.
        delay_ms: i64,
        /// The partition; empty for the default one.
        partition: String,
        /// The record's transaction id.
        transaction_id: String,
        /// The record's payload, JSON text.
        payload: Bytes,
    },
    /// Cancels the timer.
    Cancel {
        /// The transaction id that the caller remembers, to be echoed if there is no timer.
        transaction_id: Option<String>,
    },
}

/// What became of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerStatus {
    /// It is new.
    Scheduled,
    /// It took the place of another.
    Rescheduled,
    /// It will not fire.
    Cancelled,
    /// There is none: it was never scheduled, is cancelled, or has fired.
    Absent,
}

/// What one operation did.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerOutcome {
    /// What became of the timer.
    pub status: TimerStatus,
    /// The stream.
    pub stream: String,
    /// The timer's key.
    pub key: String,
    /// The record's transaction id, if known.
    pub transaction_id: Option<String>,
    /// The id that the record will have.
    pub id: Option<Uuid>,
    /// When it is due, µs.
    pub due_us: Option<i64>,
}

/// A timer that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// The stream.
    pub stream: String,
    /// The timer's key.
    pub key: String,
    /// The partition.
    pub partition: String,
    /// The record's transaction id.
    pub transaction_id: String,
    /// The id that the record will have.
    pub id: Uuid,
    /// When it is due, µs.
    pub due_us: i64,
    /// When it was first scheduled, µs.
    pub made_us: i64,
    /// When it was last scheduled, µs.
    pub updated_us: i64,
    /// The payload as it is stored.
    pub payload: Bytes,
    /// True if the payload is an envelope.
    pub sealed: bool,
}

impl Timer {
    fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                stream: key.pk.split_once('#')?.1.to_owned(),
                key: key.sk.clone(),
                partition: item.str("partition")?.to_owned(),
                transaction_id: item.str("tx")?.to_owned(),
                id: Uuid::parse(item.str("id")?)?,
                due_us: item.int("due_us")?,
                made_us: item.int("made_us")?,
                updated_us: item.int("updated_us")?,
                payload: item.bytes("payload").cloned().unwrap_or_default(),
                sealed: item.get("sealed").is_some(),
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("timer {key}")))
    }

    fn encode(&self) -> Item {
        let mut item = Item::new()
            .with("partition", self.partition.as_str())
            .with("tx", self.transaction_id.as_str())
            .with("id", self.id.to_string())
            .with("due_us", self.due_us)
            .with("made_us", self.made_us)
            .with("updated_us", self.updated_us)
            .with("payload", self.payload.clone());
        if self.sealed {
            item.set("sealed", true);
        }
        item
    }

    fn due_key(&self) -> Key {
        keys::due(self.due_us, &self.stream, &self.key)
    }

    fn due_entry(&self) -> Write {
        let item = Item::new().with("stream", self.stream.as_str()).with("key", self.key.as_str());
        Write::put(self.due_key(), item)
    }

    /// Where the payload is, for an envelope around it.
    fn place(stream: &str, key: &str) -> String {
        format!("the timer `{key}` of stream `{stream}`")
    }

    /// What deletes it, if it is still this one.
    fn deletes(&self) -> [Write; 2] {
        let unchanged = Condition::Equals("id".into(), self.id.to_string().into());
        [
            Write::delete(keys::timer(&self.stream, &self.key)).when(unchanged),
            Write::delete(self.due_key()),
        ]
    }
}

/// When this process has to look for due timers again.
pub(crate) struct KnownDue {
    next_us: AtomicI64,
    read_us: AtomicI64,
}

impl Default for KnownDue {
    fn default() -> Self {
        Self { next_us: AtomicI64::new(i64::MIN), read_us: AtomicI64::new(i64::MIN) }
    }
}

/// A timer's stream and key.
type Place = (String, String);

/// The timer operations of one call, and the timers that they concern. As with keys and values, what is decided is a
/// function of what is stored and of what the call began with: its time and the ids that it promises.
pub(crate) struct TimerPart {
    ops: Vec<(TimerOp, Uuid, bool)>,
    now_us: i64,
    known: BTreeMap<Place, Option<Timer>>,
    next: BTreeMap<Place, Option<Timer>>,
}

impl TimerPart {
    /// # Errors
    /// [`Error::Limit`] and [`Error::Name`] for what is too large, [`Error::Encryption`] if a payload cannot be sealed.
    pub(crate) async fn new(engine: &Engine, ops: Vec<TimerOp>) -> Result<Self, Error> {
        limit("timer operations in one call", ops.len(), limits::TIMER_OPS)?;
        let now_us = engine.env().now_us();
        let mut prepared = Vec::with_capacity(ops.len());
        for mut op in ops {
            Error::check_name("the timer's key", &op.key)?;
            Error::check_name("the stream's name", &op.stream)?;
            let mut sealed = false;
            if let TimerAction::Schedule { delay_ms, partition, transaction_id, payload } =
                &mut op.action
            {
                if partition.is_empty() {
                    *partition = DEFAULT_PARTITION.to_owned();
                }
                limit("bytes in a timer's payload", payload.len(), limits::TIMER_PAYLOAD_BYTES)?;
                if *delay_ms > limits::TIMER_DELAY_MS_MAX {
                    let max = limits::TIMER_DELAY_MS_MAX;
                    return Err(Error::Invalid(format!("a timer waits for {max} ms at most")));
                }
                push::check(&PushItem {
                    stream: op.stream.clone(),
                    partition: partition.clone(),
                    transaction_id: Some(transaction_id.clone()),
                    ..PushItem::default()
                })?;
                let stream = engine.stream_record(&op.stream).await?;
                if let Some(stream) = &stream {
                    stream.check_partition(partition)?;
                    if let Some(declared) = &stream.declared {
                        // It is checked again when it fires; what fits now does so unless the schema changes.
                        declared.canonical(payload).map_err(|error| Error::Row {
                            stream: op.stream.clone(),
                            row: 0,
                            error,
                        })?;
                    }
                }
                if stream.is_some_and(|s| s.info.options.encryption_enabled) {
                    let place = Timer::place(&op.stream, &op.key);
                    *payload = engine.sealer().await?.seal(engine.env(), &place, payload)?;
                    sealed = true;
                }
            }
            prepared.push((op, promised_id(engine, now_us), sealed));
        }
        Ok(Self { ops: prepared, now_us, known: BTreeMap::new(), next: BTreeMap::new() })
    }

    /// True if what was decided writes anything.
    pub(crate) fn writes_any(&self) -> bool {
        !self.next.is_empty()
    }

    /// Reads what is not known yet.
    pub(crate) async fn read(&mut self, engine: &Engine) -> Result<(), Error> {
        let mut places: Vec<Place> =
            self.ops.iter().map(|(op, ..)| (op.stream.clone(), op.key.clone())).collect();
        places.sort();
        places.dedup();
        places.retain(|place| !self.known.contains_key(place));
        let keys: Vec<Key> = places.iter().map(|(s, k)| keys::timer(s, k)).collect();
        let items = match keys.as_slice() {
            [] => return Ok(()),
            [key] => vec![engine.get(key).await?],
            keys => engine.batch_get(keys).await?,
        };
        for ((place, key), item) in places.into_iter().zip(&keys).zip(items) {
            let timer = item.map(|item| Timer::decode(key, &item)).transpose()?;
            self.known.insert(place, timer);
        }
        Ok(())
    }

    /// Decides every operation in order, each on what the ones before it leave.
    pub(crate) fn decide(&mut self) -> Vec<TimerOutcome> {
        self.next.clear();
        let mut outcomes = Vec::with_capacity(self.ops.len());
        for (op, id, sealed) in &self.ops {
            let place = (op.stream.clone(), op.key.clone());
            let known = || self.known.get(&place).cloned().flatten();
            let current = self.next.get(&place).cloned().unwrap_or_else(known);
            let outcome = |status, tx: Option<String>, id, due_us| TimerOutcome {
                status,
                stream: op.stream.clone(),
                key: op.key.clone(),
                transaction_id: tx,
                id,
                due_us,
            };
            outcomes.push(match (&op.action, current) {
                (
                    TimerAction::Schedule { delay_ms, partition, transaction_id, payload },
                    current,
                ) => {
                    let delay_us = (*delay_ms).max(0).saturating_mul(1000);
                    let timer = Timer {
                        stream: op.stream.clone(),
                        key: op.key.clone(),
                        partition: partition.clone(),
                        transaction_id: transaction_id.clone(),
                        id: *id,
                        due_us: self.now_us.saturating_add(delay_us),
                        made_us: current.as_ref().map_or(self.now_us, |t| t.made_us),
                        updated_us: self.now_us,
                        payload: payload.clone(),
                        sealed: *sealed,
                    };
                    let status = match current {
                        None => TimerStatus::Scheduled,
                        Some(_) => TimerStatus::Rescheduled,
                    };
                    let due_us = timer.due_us;
                    self.next.insert(place, Some(timer));
                    outcome(status, Some(transaction_id.clone()), Some(*id), Some(due_us))
                }
                (TimerAction::Cancel { .. }, Some(timer)) => {
                    self.next.insert(place, None);
                    let (id, due) = (Some(timer.id), Some(timer.due_us));
                    outcome(TimerStatus::Cancelled, Some(timer.transaction_id), id, due)
                }
                (TimerAction::Cancel { transaction_id }, None) => {
                    outcome(TimerStatus::Absent, transaction_id.clone(), None, None)
                }
            });
        }
        outcomes
    }

    /// What was decided, as writes on the condition that no timer has changed; each with the timer that it is about.
    pub(crate) fn writes(&self) -> Vec<(Place, Write)> {
        let mut writes = Vec::new();
        for (place, next) in &self.next {
            let known = self.known.get(place).and_then(Option::as_ref);
            match (known, next) {
                (None, None) => {}
                (Some(known), None) => {
                    writes.extend(known.deletes().map(|w| (place.clone(), w)));
                }
                (known, Some(next)) => {
                    let unchanged = match known {
                        None => Condition::Absent,
                        Some(known) => Condition::Equals("id".into(), known.id.to_string().into()),
                    };
                    let put = Write::put(keys::timer(&place.0, &place.1), next.encode());
                    writes.push((place.clone(), put.when(unchanged)));
                    let entry = next.due_entry();
                    if let Some(known) = known.filter(|k| k.due_key() != entry.key) {
                        writes.push((place.clone(), Write::delete(known.due_key())));
                    }
                    writes.push((place.clone(), entry));
                }
            }
        }
        writes
    }

    pub(crate) fn learn(&mut self, place: &Place, failed: &Failed) -> Result<(), Error> {
        let key = keys::timer(&place.0, &place.1);
        let timer = failed.current.as_ref().map(|item| Timer::decode(&key, item)).transpose()?;
        self.known.insert(place.clone(), timer);
        Ok(())
    }

    /// After a lost reply: whether the writes have happened; `None` if it cannot be told, since a timer that is gone
    /// has fired, was cancelled by us, or by somebody else.
    pub(crate) async fn has_happened(&mut self, engine: &Engine) -> Result<Option<bool>, Error> {
        let Some((place, next)) = self.next.iter().next() else { return Ok(None) };
        let key = keys::timer(&place.0, &place.1);
        let item = engine.get(&key).await?;
        let now = item.map(|item| Timer::decode(&key, &item)).transpose()?.map(|t| t.id);
        let known = self.known.get(place).and_then(Option::as_ref).map(|t| t.id);
        let promised = next.as_ref().map(|t| t.id);
        Ok(if now.is_some() && now == promised {
            Some(true)
        } else if now == known && now.is_some() {
            Some(false)
        } else {
            None
        })
    }

    /// Tells this process when it has something to fire.
    pub(crate) fn announce(&self, engine: &Engine) {
        if let Some(due_us) = self.next.values().flatten().map(|t| t.due_us).min() {
            engine.inner.timers.next_us.fetch_min(due_us, Relaxed);
        }
    }
}

fn limit(what: &'static str, got: usize, limit: usize) -> Result<(), Error> {
    if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
}

/// An id for a record that has no offset yet: a UUIDv7 of this time.
fn promised_id(engine: &Engine, now_us: i64) -> Uuid {
    let mut bytes = *Uuid::random(engine.env()).as_bytes();
    let ms = (now_us.max(0) as u64) / 1000;
    bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    bytes[6] = bytes[6] & 0x0f | 0x70;
    Uuid::from_bytes(bytes)
}

impl Engine {
    /// Schedules and cancels timers, all in one commit.
    pub async fn timers(&self, ops: Vec<TimerOp>) -> Result<Vec<TimerOutcome>, Error> {
        let mut part = TimerPart::new(self, ops).await?;
        let mut doubt = None;
        let answer = self.timers_until_decided(&mut part, &mut doubt).await;
        Error::in_doubt(answer, doubt)
    }

    async fn timers_until_decided(
        &self,
        part: &mut TimerPart,
        doubt: &mut Option<String>,
    ) -> Result<Vec<TimerOutcome>, Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            part.read(self).await?;
            let outcomes = part.decide();
            let (places, writes): (Vec<_>, Vec<_>) = part.writes().into_iter().unzip();
            if writes.is_empty() {
                return match doubt.take() {
                    // What is gone may be gone by our own earlier attempt.
                    Some(why) => Err(Error::Unknown(why)),
                    None => Ok(outcomes),
                };
            }
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    part.announce(self);
                    return Ok(outcomes);
                }
                Err(CommitError::Conflict(failed)) => {
                    if let Some(why) = doubt.take() {
                        return match part.has_happened(self).await? {
                            Some(true) => Ok(outcomes),
                            _ => Err(Error::Unknown(why)),
                        };
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
                            part.announce(self);
                            return Ok(outcomes);
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

    /// A timer that waits; `None` if there is none.
    pub async fn timer(&self, stream: &str, key: &str) -> Result<Option<Timer>, Error> {
        Error::check_name("the stream's name", stream)?;
        Error::check_name("the timer's key", key)?;
        let key = keys::timer(stream, key);
        self.get(&key).await?.map(|item| Timer::decode(&key, &item)).transpose()
    }

    /// The timers of a stream in the order of their keys, after one; at most `limit`, which is at most
    /// [`limits::TIMER_PAGE`]. The flag is true if there may be more.
    pub async fn list_timers(
        &self,
        stream: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Timer>, bool), Error> {
        Error::check_name("the stream's name", stream)?;
        let limit = limit.clamp(1, limits::TIMER_PAGE);
        let mut timers = Vec::new();
        let mut next = Some(Query {
            from: after.map(|after| format!("{after}\u{0}")),
            limit: store_limits::QUERY_ITEMS.min(limit + 1),
            ..Query::all(keys::timers_pk(stream))
        });
        while let Some(query) = next {
            let page = self.items(&query).await?;
            for (key, item) in &page.items {
                if timers.len() == limit {
                    return Ok((timers, true));
                }
                timers.push(Timer::decode(key, item)?);
            }
            next = query.following(&page);
        }
        Ok((timers, false))
    }

    /// Fires the timers that are due, unless this process knows that there are none; answers how many it fired.
    ///
    /// One that fails stays, and is tried again by a call a second later; the others are fired all the same. While pushes
    /// are paused nothing fires.
    ///
    /// # Errors
    /// The first failure.
    pub async fn fire_timers(&self) -> Result<usize, Error> {
        let due = &self.inner.timers;
        let now_us = self.env().now_us();
        let known = now_us.saturating_sub(due.read_us.load(Relaxed)) < KNOWN_US;
        if known && now_us < due.next_us.load(Relaxed) {
            return Ok(0);
        }
        if self.known_switches().await?.push_paused {
            return Ok(0);
        }
        // Who schedules from now on lowers it again.
        due.next_us.store(i64::MAX, Relaxed);
        let mut fired = 0;
        let mut failed = None;
        for shard in 0..keys::TIMER_SHARDS {
            match self.fire_shard(shard, now_us).await {
                Ok(n) => fired += n,
                Err(e) => {
                    due.next_us.fetch_min(now_us.saturating_add(RETRY_US), Relaxed);
                    failed.get_or_insert(e);
                }
            }
        }
        due.read_us.store(now_us, Relaxed);
        failed.map_or(Ok(fired), Err)
    }

    /// True if a timer is due.
    pub async fn timers_due(&self) -> Result<bool, Error> {
        let ready = format!("{:016x}", self.env().now_us().max(0) + 1);
        for shard in 0..keys::TIMER_SHARDS {
            let first = Query { limit: 1, ..Query::all(keys::due_pk(shard)) };
            let page = self.items(&first).await?;
            if page.items.first().is_some_and(|(entry, _)| entry.sk < ready) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn fire_shard(&self, shard: u8, now_us: i64) -> Result<usize, Error> {
        let ready = format!("{:016x}", now_us.max(0) + 1);
        let mut fired = 0;
        let mut failed = None;
        let mut next = Some(Query { limit: DUE_AT_ONCE, ..Query::all(keys::due_pk(shard)) });
        while let Some(query) = next {
            let page = self.items(&query).await?;
            for (entry, item) in &page.items {
                if entry.sk >= ready {
                    let digits = entry.sk.get(..16).unwrap_or_default();
                    let due_us = i64::from_str_radix(digits, 16).unwrap_or(now_us);
                    self.inner.timers.next_us.fetch_min(due_us, Relaxed);
                    return failed.map_or(Ok(fired), Err);
                }
                match self.fire(entry, item).await {
                    Ok(true) => fired += 1,
                    Ok(false) => {}
                    Err(e) => {
                        failed.get_or_insert(e);
                    }
                }
            }
            next = query.following(&page);
        }
        failed.map_or(Ok(fired), Err)
    }

    /// Fires the timer of an entry; false if another has, or it was moved or cancelled.
    async fn fire(&self, entry: &Key, item: &Item) -> Result<bool, Error> {
        let bad = || Error::Corrupt(format!("due timer {entry}"));
        let stream = item.str("stream").ok_or_else(bad)?;
        let key = item.str("key").ok_or_else(bad)?;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(timer) = self.timer(stream, key).await?.filter(|t| t.due_key() == *entry)
            else {
                return Ok(false);
            };
            let payload = match timer.sealed {
                true => self.unseal(&Timer::place(stream, key), timer.payload.clone()).await?,
                false => timer.payload.clone(),
            };
            let record = PushItem {
                stream: timer.stream.clone(),
                partition: timer.partition.clone(),
                payload,
                transaction_id: Some(timer.transaction_id.clone()),
                ..PushItem::default()
            };
            if self.fire_once(&timer, &record).await? {
                return Ok(true);
            }
        }
        Err(Error::Busy)
    }

    /// One attempt: pushes the record and deletes the timer. False if neither is certain to have happened.
    async fn fire_once(&self, timer: &Timer, record: &PushItem) -> Result<bool, Error> {
        let mut bundle = Bundle::new(self, std::slice::from_ref(record)).await?;
        bundle.promise(timer.id);
        let warms = bundle.warms();
        let mut locks = bundle::lock(&warms).await;
        if let Some(id) = bundle.appends.first().map(|a| *a.id()) {
            self.later_millisecond(&id, timer).await?;
        }
        let mut assembly = Assembly::default();
        let plans = bundle.plan(&mut locks, &mut assembly).await?;
        let places = assembly.add(&timer.deletes());
        assembly.check()?;
        match self.commit(assembly.commit).await {
            Ok(_) => {
                bundle.finish(&mut locks, &plans)?;
                Ok(true)
            }
            Err(CommitError::Conflict(failed)) => {
                if failed_at(&failed, &places).is_empty() {
                    bundle.learn(&plans, &failed).await?;
                }
                Ok(false)
            }
            // The timer is there or not: the next attempt finds out.
            Err(CommitError::Unknown(_)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits until a millisecond begins that is later than the partition's last and than the timer's own.
    async fn later_millisecond(&self, partition: &PartitionId, timer: &Timer) -> Result<(), Error> {
        let head = match self.warm(partition).head() {
            Some(head) => Some(head),
            None => self.head(partition).await?,
        };
        let last_us = head.map_or(0, |h| h.placed().last().map_or(h.base_us, |p| p.time_us));
        let after_ms = last_us.max(timer.updated_us) / 1000;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            if self.env().now_us() / 1000 > after_ms {
                return Ok(());
            }
            self.env().sleep(Duration::from_millis(1)).await;
        }
        // Another process's clock is ahead of ours: the next round tries again.
        Err(Error::Busy)
    }
}
