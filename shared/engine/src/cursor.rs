//! Cursors: how far a group has come on one partition, and who holds the next batch.
//!
//! | attribute | meaning |
//! |---|---|
//! | `gid` `group` `stream` `pid` | whose cursor, on what |
//! | `committed` | every offset below is done |
//! | `version` | counts every write; every write is conditional on it |
//! | `epoch` | counts leases granted |
//! | `lease` `lease_end` `lease_until` | token of the live lease, the end of its batch, when it lapses (µs); absent without one |
//! | `lease_newest` | true if only the newest record of the batch was delivered: the group conflates |
//! | `delivered` | every offset below was delivered at least once |
//! | `attempt` | deliveries of the batch at `committed` so far |
//! | `failures` | tries charged for the record at `committed` |
//! | `consumed` `consumed_us` | records done, in all, and when the last of them was, µs (0: none was) |
//! | `recent` | tokens of the last writes, to resolve a lost reply |
//!
//! A lease is for liveness; safety is the version. A worker whose lease lapsed and was granted anew finds another
//! token; one whose lease lapsed and was not granted anew is refused by comparison with the clock.
//! Invariants: `committed <= delivered`; with a lease `committed <= lease_end <= delivered`.

use std::sync::Arc;

use tidewheel_store::{Commit, CommitError, Condition, Item, Value, Write};

use crate::{
    CursorId, Engine, Error, GroupId, PartitionId, Uuid, group::GroupRecord, keys, limits,
    warm::Counts,
};

/// Writes that a cursor remembers. A lost reply is resolved while fewer others have written.
const RECENT: usize = 6;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) token: String,
    pub(crate) end: u64,
    pub(crate) until_us: i64,
    /// Only the newest record of the batch was delivered.
    pub(crate) newest: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cursor {
    pub(crate) id: CursorId,
    pub(crate) group_id: GroupId,
    pub(crate) group: String,
    pub(crate) stream: String,
    pub(crate) partition: PartitionId,
    pub(crate) committed: u64,
    pub(crate) version: i64,
    pub(crate) epoch: i64,
    pub(crate) lease: Option<Lease>,
    pub(crate) delivered: u64,
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    pub(crate) consumed: u64,
    pub(crate) consumed_us: i64,
    recent: Vec<String>,
}

impl Cursor {
    /// A group's first cursor on a partition.
    pub(crate) fn new(
        group: &GroupRecord,
        stream: &str,
        partition: PartitionId,
        start: u64,
    ) -> Self {
        Self {
            id: CursorId::of(&group.id, &partition),
            group_id: group.id,
            group: group.name.clone(),
            stream: stream.to_owned(),
            partition,
            committed: start,
            version: 1,
            epoch: 0,
            lease: None,
            delivered: start,
            attempt: 0,
            failures: 0,
            consumed: 0,
            consumed_us: 0,
            recent: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::new()
            .with("gid", self.group_id.0.to_string())
            .with("group", self.group.as_str())
            .with("stream", self.stream.as_str())
            .with("pid", self.partition.to_string())
            .with("committed", self.committed as i64)
            .with("version", self.version)
            .with("epoch", self.epoch)
            .with("delivered", self.delivered as i64)
            .with("attempt", i64::from(self.attempt))
            .with("failures", i64::from(self.failures))
            .with("consumed", self.consumed as i64)
            .with("consumed_us", self.consumed_us);
        if let Some(lease) = &self.lease {
            item.set("lease", lease.token.as_str());
            item.set("lease_end", lease.end as i64);
            item.set("lease_until", lease.until_us);
            if lease.newest {
                item.set("lease_newest", true);
            }
        }
        if !self.recent.is_empty() {
            item.set(
                "recent",
                self.recent.iter().map(|t| t.as_str().into()).collect::<Vec<Value>>(),
            );
        }
        item
    }

    pub(crate) fn decode(item: &Item) -> Result<Self, Error> {
        let count = |name| item.int(name).and_then(|n| u64::try_from(n).ok());
        let small = |name| item.int(name).and_then(|n| u32::try_from(n).ok());
        let read = || {
            let group_id = GroupId(Uuid::parse(item.str("gid")?)?);
            let partition = PartitionId::parse(item.str("pid")?)?;
            let lease = match item.str("lease") {
                None => None,
                Some(token) => Some(Lease {
                    token: token.to_owned(),
                    end: count("lease_end")?,
                    until_us: item.int("lease_until")?,
                    newest: item.get("lease_newest").is_some(),
                }),
            };
            let text = |v: &Value| if let Value::Str(s) = v { Some(s.clone()) } else { None };
            Some(Self {
                id: CursorId::of(&group_id, &partition),
                group_id,
                group: item.str("group")?.to_owned(),
                stream: item.str("stream")?.to_owned(),
                partition,
                committed: count("committed")?,
                version: item.int("version")?,
                epoch: item.int("epoch")?,
                lease,
                delivered: count("delivered")?,
                attempt: small("attempt")?,
                failures: small("failures")?,
                consumed: count("consumed")?,
                consumed_us: item.int("consumed_us").unwrap_or_default(),
                recent: item.list("recent").iter().map(text).collect::<Option<_>>()?,
            })
        };
        let cursor = read().ok_or_else(|| Error::Corrupt("a cursor does not decode".to_owned()))?;
        if cursor.committed > cursor.delivered {
            return Err(Error::Corrupt(format!(
                "cursor of group `{}` on partition {}: committed {} is beyond delivered {}",
                cursor.group, cursor.partition, cursor.committed, cursor.delivered
            )));
        }
        Ok(cursor)
    }

    /// The live lease at this time.
    pub(crate) fn live_lease(&self, now_us: i64) -> Option<&Lease> {
        self.lease.as_ref().filter(|l| l.until_us > now_us)
    }

    /// The live lease, if it is the one with this token.
    pub(crate) fn held(&self, token: &str, now_us: i64) -> Result<&Lease, Error> {
        self.live_lease(now_us).filter(|l| l.token == token).ok_or(Error::Lease)
    }

    /// Moves forward to an offset; what lies between is done. Ends the lease at its end.
    pub(crate) fn advance(&mut self, to: u64, now_us: i64) {
        debug_assert!(to >= self.committed);
        if to > self.committed {
            self.consumed += to - self.committed;
            self.consumed_us = now_us;
        }
        self.committed = to;
        self.delivered = self.delivered.max(to);
        if self.lease.as_ref().is_some_and(|l| l.end <= to) {
            self.lease = None;
            self.attempt = 0;
            self.failures = 0;
        }
    }

    /// Counts the write that this cursor becomes, and leaves its token.
    pub(crate) fn stamp(&mut self, token: &str) {
        self.version += 1;
        self.recent.push(token.to_owned());
        let surplus = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..surplus);
    }

    /// Whether a write of this token, made on version `version`, has happened: `None` if too many others have written
    /// since to tell.
    pub(crate) fn has(&self, token: &str, version: i64) -> Option<bool> {
        if self.recent.iter().any(|t| t == token) {
            return Some(true);
        }
        (self.version - version < RECENT as i64).then_some(false)
    }

    /// The write that replaces the version this cursor was made from by this cursor.
    pub(crate) fn write(&self) -> Write {
        let before = self.version - 1;
        Write::put(keys::cursor(&self.id), self.encode())
            .when(Condition::Equals("version".into(), before.into()))
    }
}

/// A short token that names one write.
pub(crate) fn write_token(engine: &Engine) -> String {
    format!("{:012x}", engine.env().random() >> 16)
}

impl Engine {
    /// A group's cursor as this process remembers it, or as it is; `None` if there is none.
    pub(crate) async fn cursor(&self, id: &CursorId) -> Result<Option<Arc<Cursor>>, Error> {
        match self.inner.cursors.get(id) {
            Some(cursor) => Ok(Some(cursor)),
            None => self.reread_cursor(id).await,
        }
    }

    pub(crate) async fn reread_cursor(&self, id: &CursorId) -> Result<Option<Arc<Cursor>>, Error> {
        let item = self.get(&keys::cursor(id)).await?;
        self.learn_cursor(id, item.as_ref())
    }

    /// Remembers a cursor as it is.
    pub(crate) fn learn_cursor(
        &self,
        id: &CursorId,
        item: Option<&Item>,
    ) -> Result<Option<Arc<Cursor>>, Error> {
        match item {
            None => {
                self.inner.cursors.remove(id);
                Ok(None)
            }
            Some(item) => {
                let cursor = Arc::new(Cursor::decode(item)?);
                self.inner.cursors.insert(*id, Arc::clone(&cursor));
                Ok(Some(cursor))
            }
        }
    }

    /// Changes a cursor by compare-and-swap. `change` decides on the cursor as it is and may be called again with a
    /// later one; `None` leaves it as it is. `with` is written in the same commit, on no condition of its own.
    ///
    /// # Errors
    /// Those of `change`, and [`Error::GroupNotFound`] if there is no cursor.
    pub(crate) async fn change_cursor<T>(
        &self,
        id: &CursorId,
        group: &str,
        with: Option<Write>,
        change: impl FnMut(&Cursor) -> Result<(Option<Cursor>, T), Error>,
    ) -> Result<T, Error> {
        let mut doubt = None;
        let answer = self.change_cursor_until_decided(id, group, with, change, &mut doubt).await;
        Error::in_doubt(answer, doubt)
    }

    async fn change_cursor_until_decided<T>(
        &self,
        id: &CursorId,
        group: &str,
        with: Option<Write>,
        mut change: impl FnMut(&Cursor) -> Result<(Option<Cursor>, T), Error>,
        doubt: &mut Option<String>,
    ) -> Result<T, Error> {
        let token = write_token(self);
        let mut refreshed = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(cursor) = self.cursor(id).await? else {
                return Err(Error::GroupNotFound(group.to_owned()));
            };
            let (next, value) = match change(&cursor) {
                Ok(decided) => decided,
                // What this process remembers may be old; only the truth may refuse.
                Err(_) if !refreshed => {
                    refreshed = true;
                    self.reread_cursor(id).await?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            let Some(mut next) = next else { return Ok(value) };
            next.stamp(&token);
            let writes = std::iter::once(next.write()).chain(with.clone()).collect();
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    self.inner.cursors.insert(*id, Arc::new(next));
                    return Ok(value);
                }
                Err(CommitError::Conflict(failed)) => {
                    let current = failed.first().and_then(|f| f.current.as_ref());
                    let current = self.learn_cursor(id, current)?;
                    refreshed = true;
                    // What refused us may be our own earlier attempt.
                    if current.is_some_and(|c| c.has(&token, cursor.version) == Some(true)) {
                        return Ok(value);
                    }
                }
                Err(CommitError::Unknown(e)) => {
                    *doubt = Some(e.clone());
                    let current = self.reread_cursor(id).await?;
                    refreshed = true;
                    match current.map(|c| c.has(&token, cursor.version)) {
                        Some(Some(true)) => {
                            Counts::add(&self.inner.counts.outcomes_resolved, 1);
                            return Ok(value);
                        }
                        Some(Some(false)) | None => {}
                        Some(None) => return Err(Error::Unknown(e)),
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}
