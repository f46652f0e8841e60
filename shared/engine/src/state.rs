//! The state of a query on one source partition: a snapshot, and the deltas since.
//!
//! | attribute | meaning |
//! |---|---|
//! | `seq` | counts commits; every commit is conditional on it |
//! | `snapshot` | the id of the snapshot's blob; absent before the first |
//! | `deltas` | ids and sizes of the delta blobs since, oldest first, each `<blob id> <bytes>` |
//! | `recent` | tokens of the last commits, to resolve a lost reply |
//! | `rows` | how many rows the state has |
//! | `updated_us` | when it was last written, µs |
//!
//! A cycle adds one delta, whatever the number of keys; a long chain is folded into a new snapshot by the cycle that
//! finds it long, which then deletes what it has superseded: a commit is pinned to `seq`, so no frozen writer can name
//! those again, and a reader that was about to read them reads the head again. Rows are kept by key in byte order; keys and values are opaque.
//!
//! A *tombstone* remembers that a cycle without a lease deleted a row while a lease of this epoch was the last one
//! granted: what that lease's holder computes with the row is stale (see [`crate::cycle`]). Tombstones of older
//! epochs mean nothing and are dropped.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
    sync::Arc,
};

use bytes::{Buf, Bytes};
use tidewheel_store::{Blob, BlobName, Item, Value};

use crate::{
    Engine, Error, PartitionId, StateFilter, StateOp, StateRow, Uuid,
    encryption::{self, Sealer},
    keys, limits,
    segment::{compress, decompress, put_bytes, put_length, take, take_bytes, take_length},
    warm::Counts,
};

/// Commits that a state head remembers.
const RECENT: usize = 6;

const UPSERT: u8 = 1;
const DELETE: u8 = 2;
const TOMBSTONE: u8 = 3;

#[derive(Clone, Debug, PartialEq)]
struct Row {
    value: Bytes,
    updated_us: i64,
}

/// The state as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct StateView {
    /// 0 while there is no head.
    pub(crate) seq: i64,
    snapshot: Option<String>,
    deltas: Vec<(String, u64)>,
    pub(crate) recent: Vec<String>,
    rows: BTreeMap<String, Row>,
    tombstones: BTreeMap<String, i64>,
    /// Bytes of the rows, about.
    bytes: u64,
}

/// What a cycle's operations were computed under.
#[derive(Clone, Copy)]
pub(crate) struct Fence<'a> {
    /// The epoch of the cycle's lease; `None` for a cycle without one.
    pub(crate) lease_epoch: Option<i64>,
    /// The epoch of the last lease that was granted.
    pub(crate) last_epoch: i64,
    /// The token that the commit leaves.
    pub(crate) token: &'a str,
}

/// A change to the state that is ready to commit.
pub(crate) struct StateCommit {
    pub(crate) blob: Blob,
    pub(crate) item: Item,
    seq: i64,
    changes: Vec<Changed>,
    /// Blobs that nothing names once this is committed.
    pub(crate) superseded: Vec<BlobName>,
    snapshot: bool,
    pub(crate) recent: Vec<String>,
}

#[derive(Clone, Debug)]
enum Changed {
    Upsert(String, Row),
    Delete(String),
    Tombstone(String, i64),
}

fn owner(query: &Uuid, partition: &PartitionId) -> String {
    Uuid::derived(&[b"state", query.as_bytes(), partition.0.as_bytes()]).simple()
}

/// Where a state is, for envelopes around its blobs.
fn place(query: &Uuid, partition: &PartitionId) -> String {
    format!("the state of query {query} on partition {partition}")
}

/// Reads a snapshot or a delta.
async fn load(
    engine: &Engine,
    query: &Uuid,
    partition: &PartitionId,
    id: &str,
) -> Result<Bytes, Error> {
    let body = engine.blob(&BlobName::new(owner(query, partition), id)).await?;
    match encryption::is_sealed(&body) {
        true => engine.unseal(&place(query, partition), body).await,
        false => Ok(body),
    }
}

impl StateView {
    /// Brings the view up to the head's image.
    pub(crate) async fn follow(
        &mut self,
        engine: &Engine,
        query: &Uuid,
        partition: &PartitionId,
        item: Option<&Item>,
    ) -> Result<(), Error> {
        let Some(item) = item else {
            *self = Self::default();
            return Ok(());
        };
        let bad =
            || Error::Corrupt(format!("state head of query {query} on partition {partition}"));
        let seq = item.int("seq").ok_or_else(bad)?;
        let snapshot = item.str("snapshot").map(str::to_owned);
        let deltas = decode_deltas(item).ok_or_else(bad)?;
        let extends = self.seq > 0
            && self.snapshot == snapshot
            && deltas.len() >= self.deltas.len()
            && deltas[..self.deltas.len()] == self.deltas[..];
        if !extends {
            *self = Self::default();
            if let Some(id) = &snapshot {
                let body = load(engine, query, partition, id).await?;
                self.replay(body).ok_or_else(bad)?;
            }
        }
        for (id, _) in &deltas[self.deltas.len()..] {
            let body = load(engine, query, partition, id).await?;
            self.replay(body).ok_or_else(bad)?;
        }
        self.seq = seq;
        self.snapshot = snapshot;
        self.deltas = deltas;
        let text = |v: &Value| if let Value::Str(s) = v { Some(s.clone()) } else { None };
        self.recent = item.list("recent").iter().filter_map(text).collect();
        Ok(())
    }

    fn replay(&mut self, body: Bytes) -> Option<()> {
        for change in decode_changes(body)? {
            self.make(change);
        }
        Some(())
    }

    fn make(&mut self, change: Changed) {
        match change {
            Changed::Upsert(key, row) => {
                self.tombstones.remove(&key);
                let size = |key: &str, row: &Row| (key.len() + row.value.len() + 16) as u64;
                self.bytes += size(&key, &row);
                match self.rows.entry(key) {
                    Entry::Vacant(slot) => {
                        slot.insert(row);
                    }
                    Entry::Occupied(mut slot) => {
                        self.bytes -= size(slot.key(), slot.get());
                        slot.insert(row);
                    }
                }
            }
            Changed::Delete(key) => {
                if let Some(row) = self.rows.remove(&key) {
                    self.bytes -= (key.len() + row.value.len() + 16) as u64;
                }
            }
            Changed::Tombstone(key, epoch) => {
                self.tombstones.insert(key, epoch);
            }
        }
    }

    /// The rows that a filter lets through, by key.
    pub(crate) fn filter(&self, filter: &StateFilter) -> Vec<StateRow> {
        let row = |(key, row): (&String, &Row)| StateRow {
            key: key.clone(),
            value: row.value.clone(),
            updated_us: row.updated_us,
        };
        let wanted = |key: &str, row: &Row| {
            key.starts_with(&filter.prefix)
                && filter
                    .ripe_at_or_before
                    .is_none_or(|at| window_end(&row.value).is_some_and(|end| end <= at))
        };
        if filter.keys.is_empty() {
            let from = Bound::Included(filter.prefix.clone());
            return self
                .rows
                .range((from, Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(&filter.prefix))
                .filter(|(key, row)| wanted(key, row))
                .map(row)
                .collect();
        }
        let keys: std::collections::BTreeSet<&String> = filter.keys.iter().collect();
        keys.into_iter()
            .filter_map(|key| self.rows.get_key_value(key))
            .filter(|(key, row)| wanted(key, row))
            .map(row)
            .collect()
    }

    /// Plans the commit of a cycle's operations.
    ///
    /// # Errors
    /// [`Error::StaleState`] if an operation was computed on a row that another cycle has deleted since.
    pub(crate) fn plan(
        &self,
        engine: &Engine,
        (query, partition): (&Uuid, &PartitionId),
        ops: &[StateOp],
        fence: Fence<'_>,
        sealer: Option<&Sealer>,
    ) -> Result<StateCommit, Error> {
        let now_us = engine.env().now_us();
        let mut changes = Vec::with_capacity(ops.len());
        // Rows as the operations so far leave them.
        let mut present: BTreeMap<&str, bool> = BTreeMap::new();
        for op in ops {
            let (key, deletes) = match op {
                StateOp::Upsert { key, .. } => (key.as_str(), false),
                StateOp::Delete { key } => (key.as_str(), true),
            };
            let there = *present.entry(key).or_insert_with(|| self.rows.contains_key(key));
            let deleted_under = self.tombstones.get(key).copied();
            let stale = match fence.lease_epoch {
                Some(epoch) => deleted_under == Some(epoch),
                None => deletes && !there,
            };
            if stale {
                return Err(Error::StaleState { key: key.to_owned() });
            }
            present.insert(key, !deletes);
            match op {
                StateOp::Upsert { key, value } => {
                    changes.push(Changed::Upsert(
                        key.clone(),
                        Row { value: value.clone(), updated_us: now_us },
                    ));
                }
                StateOp::Delete { key } => {
                    changes.push(Changed::Delete(key.clone()));
                    if fence.lease_epoch.is_none() {
                        changes.push(Changed::Tombstone(key.clone(), fence.last_epoch));
                    }
                }
            }
        }
        let delta_bytes: u64 = self.deltas.iter().map(|(_, bytes)| bytes).sum();
        let fold = self.deltas.len() >= limits::STATE_DELTAS
            || delta_bytes > (limits::STATE_DELTA_BYTES as u64).max(self.bytes);
        let mut folded;
        let mut body = if fold {
            Counts::add(&engine.inner.counts.state_folds, 1);
            folded = StateView {
                rows: self.rows.clone(),
                tombstones: self.tombstones.clone(),
                bytes: self.bytes,
                ..Self::default()
            };
            changes.iter().cloned().for_each(|c| folded.make(c));
            folded.tombstones.retain(|_, epoch| *epoch >= fence.last_epoch);
            let rows = folded.rows.iter().map(|(k, r)| Changed::Upsert(k.clone(), r.clone()));
            let tombstones =
                folded.tombstones.iter().map(|(k, e)| Changed::Tombstone(k.clone(), *e));
            encode_changes(rows.chain(tombstones))?
        } else {
            encode_changes(changes.iter().cloned())?
        };
        if let Some(sealer) = sealer {
            body = sealer.seal(engine.env(), &place(query, partition), &body)?;
        }
        let blob = Blob::fresh(owner(query, partition), body, engine.env());
        let mut recent = self.recent.clone();
        recent.push(fence.token.to_owned());
        let surplus = recent.len().saturating_sub(RECENT);
        recent.drain(..surplus);
        let mut deltas = self.deltas.clone();
        // A state that is deleted and comes back must not look like the one before.
        let seq =
            if self.seq == 0 { 1 + (engine.env().random() >> 24) as i64 } else { self.seq + 1 };
        // Without the row before, one more; without the row after, one less.
        let before = present.keys().filter(|key| self.rows.contains_key(**key)).count();
        let after = present.values().filter(|there| **there).count();
        let mut item = Item::new()
            .with("seq", seq)
            .with("rows", (self.rows.len() + after - before) as i64)
            .with("updated_us", now_us)
            .with("recent", recent.iter().map(|t| t.as_str().into()).collect::<Vec<Value>>());
        if fold {
            deltas.clear();
            item.set("snapshot", blob.name.id.as_str());
        } else {
            deltas.push((blob.name.id.clone(), blob.body.len() as u64));
            if let Some(snapshot) = &self.snapshot {
                item.set("snapshot", snapshot.as_str());
            }
        }
        let list = deltas.iter().map(|(id, bytes)| format!("{id} {bytes}").into());
        item.set("deltas", list.collect::<Vec<Value>>());
        let superseded = if fold { self.blobs(query, partition) } else { Vec::new() };
        Ok(StateCommit { blob, item, seq, changes, superseded, snapshot: fold, recent })
    }

    /// Takes note that a planned commit has happened.
    pub(crate) fn committed(&mut self, commit: StateCommit) {
        self.seq = commit.seq;
        self.recent = commit.recent;
        commit.changes.into_iter().for_each(|c| self.make(c));
        let id = commit.blob.name.id;
        if commit.snapshot {
            self.snapshot = Some(id);
            self.deltas.clear();
        } else {
            self.deltas.push((id, commit.blob.body.len() as u64));
        }
    }

    /// The blobs that the head names.
    fn blobs(&self, query: &Uuid, partition: &PartitionId) -> Vec<BlobName> {
        let owner = owner(query, partition);
        let ids = self.snapshot.iter().chain(self.deltas.iter().map(|(id, _)| id));
        ids.map(|id| BlobName::new(owner.as_str(), id.as_str())).collect()
    }
}

fn decode_deltas(item: &Item) -> Option<Vec<(String, u64)>> {
    let entry = |value: &Value| {
        let Value::Str(text) = value else { return None };
        let (id, bytes) = text.split_once(' ')?;
        Some((id.to_owned(), bytes.parse().ok()?))
    };
    item.list("deltas").iter().map(entry).collect()
}

/// A row's `windowEnd`, if its value is an object that has one and it is a number.
fn window_end(value: &[u8]) -> Option<f64> {
    #[derive(serde::Deserialize)]
    struct Window {
        #[serde(rename = "windowEnd")]
        window_end: Option<serde_json::Value>,
    }
    let window: Window = serde_json::from_slice(value).ok()?;
    window.window_end?.as_f64()
}

/// Length of the unpacked bytes, then zstd of the changes.
fn encode_changes(changes: impl Iterator<Item = Changed>) -> Result<Bytes, Error> {
    let mut raw = Vec::new();
    for change in changes {
        match change {
            Changed::Upsert(key, row) => {
                raw.push(UPSERT);
                put_bytes(&mut raw, key.as_bytes());
                raw.extend_from_slice(&row.updated_us.to_le_bytes());
                put_bytes(&mut raw, &row.value);
            }
            Changed::Delete(key) => {
                raw.push(DELETE);
                put_bytes(&mut raw, key.as_bytes());
            }
            Changed::Tombstone(key, epoch) => {
                raw.push(TOMBSTONE);
                put_bytes(&mut raw, key.as_bytes());
                raw.extend_from_slice(&epoch.to_le_bytes());
            }
        }
    }
    if raw.len() > limits::STATE_BYTES {
        return Err(Error::Limit {
            what: "bytes of state on one partition",
            got: raw.len(),
            limit: limits::STATE_BYTES,
        });
    }
    let mut out = Vec::with_capacity(8 + raw.len() / 2);
    put_length(&mut out, raw.len());
    out.extend_from_slice(&compress(&raw)?);
    Ok(out.into())
}

fn decode_changes(mut body: Bytes) -> Option<Vec<Changed>> {
    let length = take_length(&mut body).filter(|&l| l <= limits::STATE_BYTES)?;
    let mut raw = Bytes::from(decompress(&body, length).ok()?);
    let mut changes = Vec::new();
    while !raw.is_empty() {
        let kind = take(&mut raw, 1)?.get_u8();
        let key = String::from_utf8(take_bytes(&mut raw)?.to_vec()).ok()?;
        changes.push(match kind {
            UPSERT => {
                let updated_us = take(&mut raw, 8)?.get_i64_le();
                Changed::Upsert(key, Row { value: take_bytes(&mut raw)?, updated_us })
            }
            DELETE => Changed::Delete(key),
            TOMBSTONE => Changed::Tombstone(key, take(&mut raw, 8)?.get_i64_le()),
            _ => return None,
        });
    }
    Some(changes)
}

impl Engine {
    pub(crate) fn state_view(
        &self,
        query: &Uuid,
        partition: &PartitionId,
    ) -> Arc<tokio::sync::Mutex<StateView>> {
        let fresh = || Ok::<_, std::convert::Infallible>(Arc::default());
        match self.inner.states.get_or_insert_with(&(*query, *partition), fresh) {
            Ok(view) => view,
            Err(never) => match never {},
        }
    }

    /// Reads the rows of a query's state on a partition, by key. An unknown query or partition has none.
    pub async fn state(
        &self,
        query: &Uuid,
        partition: &PartitionId,
        filter: &StateFilter,
    ) -> Result<Vec<StateRow>, Error> {
        let view = self.state_view(query, partition);
        let mut view = view.lock().await;
        self.follow_state(&mut view, query, partition).await?;
        Ok(view.filter(filter))
    }

    /// Brings a view up to the head as it is.
    pub(crate) async fn follow_state(
        &self,
        view: &mut StateView,
        query: &Uuid,
        partition: &PartitionId,
    ) -> Result<(), Error> {
        let mut outcome = Ok(());
        for _ in 0..3 {
            let item = self.get(&keys::state(query, partition)).await?;
            if item.as_ref().is_some_and(|i| i.int("seq") == Some(view.seq)) {
                return Ok(());
            }
            outcome = view.follow(self, query, partition, item.as_ref()).await;
            match outcome {
                // A fold may have deleted what the head still named a moment ago.
                Err(Error::Corrupt(_)) => *view = StateView::default(),
                _ => break,
            }
        }
        outcome
    }
}
