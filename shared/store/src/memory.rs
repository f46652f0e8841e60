//! The memory back end: deterministic, metered, for tests and simulations.
//!
//! Behaves like the cloud rather than like a database: the blobs of a commit are stored first and stay if its writes
//! conflict; a transaction returns no image; what a failed condition costs is billed. Everything inside a call
//! happens at once, and every call yields once before it (a commit with blobs once more between the blobs and the
//! writes), so that tasks on one thread interleave, and always in the same way.
//!
//! It keeps nothing when the process ends, and it never fails: wrap it in [`crate::Faulty`] for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, Range},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::task::yield_now;

use crate::{
    BlobName, Commit, CommitError, Committed, Consistency, Direction, Item, Key, Page, Query,
    ReadError, Store, blob,
    blob::FRAME_BYTES,
    decide::{decide, is_transaction},
    limits,
    meter::{self, Call, Units},
    write::{check_key, item_bytes},
};

/// Heads and blobs in memory. Cheap to clone; clones share everything.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    items: BTreeMap<Key, Item>,
    /// Framed.
    blobs: BTreeMap<BlobName, Bytes>,
    units: Units,
    log: Option<Vec<Call>>,
}

impl State {
    fn bill(
        &mut self,
        method: &'static str,
        names: Vec<String>,
        mut units: Units,
        outcome: &'static str,
    ) {
        units.calls += 1;
        self.units += units;
        if let Some(log) = &mut self.log {
            log.push(Call { method, names, units, outcome });
        }
    }

    fn body_bytes(&self, name: &BlobName) -> Option<usize> {
        self.blobs.get(name).map(|b| b.len().saturating_sub(FRAME_BYTES))
    }

    fn names<'a, T: std::fmt::Display + 'a>(
        &self,
        names: impl Iterator<Item = &'a T>,
    ) -> Vec<String> {
        if self.log.is_some() { names.map(T::to_string).collect() } else { Vec::new() }
    }
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was billed since the start, or since the last [`Memory::reset_meter`].
    pub fn meter(&self) -> Units {
        self.state.lock().units
    }

    /// Sets the meter to nothing.
    pub fn reset_meter(&self) {
        self.state.lock().units = Units::default();
    }

    /// Begins to keep a log of calls, or empties it. Without it none is kept.
    pub fn start_log(&self) {
        self.state.lock().log = Some(Vec::new());
    }

    /// The calls since [`Memory::start_log`] or the last taking; the log goes on, empty.
    pub fn take_log(&self) -> Vec<Call> {
        self.state.lock().log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A copy that shares nothing with this one: what a crash at this moment would leave behind.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state.lock().clone())) }
    }

    /// Every item, unbilled: for checkers, and to compare two histories.
    pub fn items(&self) -> BTreeMap<Key, Item> {
        self.state.lock().items.clone()
    }

    /// Every blob's name and the bytes of its body, unbilled: for checkers.
    pub fn blobs(&self) -> BTreeMap<BlobName, usize> {
        let state = self.state.lock();
        state.blobs.iter().map(|(n, b)| (n.clone(), b.len().saturating_sub(FRAME_BYTES))).collect()
    }

    /// Flips a bit of what is stored for a blob, frame included: for tests of damage. False if there is no such
    /// blob or byte.
    pub fn damage_blob(&self, name: &BlobName, byte: usize) -> bool {
        let mut state = self.state.lock();
        let Some(stored) = state.blobs.get_mut(name) else { return false };
        let mut bytes = stored.to_vec();
        let Some(b) = bytes.get_mut(byte) else { return false };
        *b ^= 1;
        *stored = bytes.into();
        true
    }
}

#[async_trait]
impl Store for Memory {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        check_key(key)?;
        yield_now().await;
        let mut state = self.state.lock();
        let item = state.items.get(key).cloned();
        let strong = meter::read_units(meter::of_item(key, item.as_ref()));
        let read_units = match consistency {
            Consistency::Strong => strong,
            Consistency::Eventual => strong / 2.0,
        };
        let names = state.names([key].into_iter());
        state.bill("get", names, Units { read_units, ..Units::default() }, "ok");
        Ok(item)
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        crate::check_batch(keys)?;
        yield_now().await;
        let mut state = self.state.lock();
        let items: Vec<_> = keys.iter().map(|k| state.items.get(k).cloned()).collect();
        // The cloud takes no key twice in a batch, so a key that is asked for twice is read once.
        let distinct: BTreeMap<_, _> = keys.iter().zip(&items).collect();
        let read_units = distinct
            .into_iter()
            .map(|(k, i)| meter::read_units(meter::of_item(k, i.as_ref())))
            .sum();
        let names = state.names(keys.iter());
        state.bill("batch_get", names, Units { read_units, ..Units::default() }, "ok");
        Ok(items)
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        query.check()?;
        yield_now().await;
        let mut state = self.state.lock();
        if query.encloses_nothing() {
            let names = state.names([&query.pk].into_iter());
            state.bill("query", names, Units::default(), "ok");
            return Ok(Page::default());
        }
        let key = |sk: &str| Key::new(query.pk.as_str(), sk);
        let from = key(query.from.as_deref().unwrap_or(""));
        let to = query.to.as_deref();
        let within = state
            .items
            .range((Bound::Included(from), Bound::Unbounded))
            .take_while(|(k, _)| k.pk == query.pk && to.is_none_or(|to| k.sk.as_str() <= to));
        let mut page = Page::default();
        let mut bytes = 0;
        let mut take = |(k, i): (&Key, &Item)| {
            let size = item_bytes(k, Some(i));
            let full = !page.items.is_empty() && bytes + size > limits::QUERY_BYTES;
            if !full {
                bytes += size;
                page.items.push((k.clone(), i.clone()));
            }
            // Like the cloud: a full page says that there may be more, even when it happens to end at the end.
            page.more = full || page.items.len() == query.limit;
            !page.more
        };
        match query.direction {
            Direction::Forward => within.map(&mut take).take_while(|go| *go).for_each(drop),
            Direction::Backward => {
                let all: Vec<_> = within.collect();
                all.into_iter().rev().map(&mut take).take_while(|go| *go).for_each(drop);
            }
        }
        let names = state.names([&query.pk].into_iter());
        let units = Units { read_units: meter::read_units(bytes), ..Units::default() };
        state.bill("query", names, units, "ok");
        Ok(page)
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        commit.check()?;
        yield_now().await;
        let mut units = Units::default();
        if !commit.blobs.is_empty() {
            {
                let mut state = self.state.lock();
                for blob in &commit.blobs {
                    units += meter::of_blob_put(&blob.name, blob.body.len());
                    state
                        .blobs
                        .insert(blob.name.clone(), blob::seal(&blob.name, &blob.body).into());
                }
            }
            yield_now().await;
        }

        let mut state = self.state.lock();
        let current: Vec<_> = commit.writes.iter().map(|w| state.items.get(&w.key)).collect();
        let decided = decide(&commit.writes, &current);
        let transaction = is_transaction(&commit.writes);
        for (at, (write, before)) in commit.writes.iter().zip(&current).enumerate() {
            let after = decided.as_ref().ok().and_then(|d| d.after[at].as_ref());
            units.write_units += meter::of_write(write, *before, after, transaction);
        }
        let names = state.names(commit.writes.iter().map(|w| &w.key));
        let decided = match decided {
            Ok(decided) => decided,
            Err(e) => {
                let outcome =
                    if matches!(e, CommitError::Conflict(_)) { "conflict" } else { "invalid" };
                state.bill("commit", names, units, outcome);
                return Err(e);
            }
        };
        let image = if transaction { None } else { decided.after.first().cloned().flatten() };
        for (write, after) in commit.writes.into_iter().zip(decided.after) {
            match after {
                Some(item) => state.items.insert(write.key, item),
                None => state.items.remove(&write.key),
            };
        }
        state.bill("commit", names, units, "ok");
        Ok(Committed { image })
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        name.check()?;
        yield_now().await;
        let mut state = self.state.lock();
        let units = meter::of_blob_get(name, state.body_bytes(name));
        let names = state.names([name].into_iter());
        state.bill("blob", names, units, "ok");
        let Some(stored) = state.blobs.get(name).cloned() else { return Ok(None) };
        Ok(Some(blob::slice(blob::open(name, stored)?, range)))
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        yield_now().await;
        let mut state = self.state.lock();
        if limit == 0 {
            state.bill("list_blobs", vec![owner.to_owned()], Units::default(), "ok");
            return Ok(Vec::new());
        }
        let from = match after {
            Some(id) => Bound::Excluded(BlobName::new(owner, id)),
            None => Bound::Included(BlobName::new(owner, "")),
        };
        let found: Vec<_> = state
            .blobs
            .range((from, Bound::Unbounded))
            .take_while(|(n, _)| n.owner == owner)
            .take(limit)
            .map(|(n, b)| (n.clone(), b.len().saturating_sub(FRAME_BYTES)))
            .collect();
        // Items have no listing of names alone: the query reads, and bills, their bytes.
        let bytes: usize = found
            .iter()
            .filter(|(n, body)| meter::is_inline(n, *body))
            .map(|(n, body)| meter::blob_item_bytes(n, *body))
            .sum();
        let units =
            Units { read_units: meter::read_units(bytes) / 2.0, blob_lists: 1, ..Units::default() };
        state.bill("list_blobs", vec![owner.to_owned()], units, "ok");
        Ok(found.into_iter().map(|(n, _)| n).collect())
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        crate::check_deletes(names)?;
        yield_now().await;
        let mut state = self.state.lock();
        let mut units = Units::default();
        for name in names.iter().collect::<BTreeSet<_>>() {
            units += meter::of_blob_delete(name, state.body_bytes(name));
            state.blobs.remove(name);
        }
        let names = state.names(names.iter());
        state.bill("delete_blobs", names, units, "ok");
        Ok(())
    }
}
