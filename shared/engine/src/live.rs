//! The live group: who follows a partition as it grows, by a process of its own.
//!
//! It is on no stream's list of groups, has no record and no cursor: it is an id that a partition's head may list among
//! those that sleep. So a push to a partition that nobody follows costs nothing for it, and a push to one whose
//! followers have had everything wakes them as it wakes any group: in the transaction that appends, with a ready
//! entry. Whoever commits that rings the [`Doorbell`] after it. Ringing may fail and may be done twice: the ready entry
//! is the truth, and [`Engine::live_waiting`] finds every one that is left.
//!
//! Who follows, and from where, is kept by those who deliver (the gateway), under keys of their own. They take part in
//! its transactions by the writes that this module makes.
//!
//! The ids are a fixed text and a shard: the ready entries of all live groups have a common beginning in their
//! partition key ([`READY_PREFIX`]), by which a stream of the store's changes can be filtered, and few partition keys,
//! so that all that waits is found by a few queries.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use tidewheel_store::{Change, Commit, CommitError, Condition, Item, Key, Value, Write};

use crate::{Engine, Error, Extent, GroupId, PartitionId, Uuid, head::Head, keys, limits};

/// Begins the partition key of every ready entry of a live group, and of no other item.
pub const READY_PREFIX: &str = "r#6c697665";

/// Partition keys over which the ready entries of live groups are spread. Each takes 500 idle-to-busy edges a second.
pub const LIVE_SHARDS: u8 = 4;

/// How long a push may wait for the doorbell. What is not rung is found by the change stream or the next sweep.
const RING_WITHIN: Duration = Duration::from_secs(3);

/// Tells whoever delivers that a partition with followers has gone from idle to busy.
#[async_trait]
pub trait Doorbell: fmt::Debug + Send + Sync {
    /// Rings. Called after the commit, once for each edge, and sometimes again after a lost reply.
    async fn ring(&self, partition: &PartitionId) -> Result<(), NotRung>;
}

/// Why the doorbell could not be rung.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the doorbell could not be rung: {0}")]
pub struct NotRung(pub String);

/// The live group of a partition.
fn group(partition: &PartitionId) -> GroupId {
    group_of_shard(partition.0.as_bytes()[2] % LIVE_SHARDS)
}

fn group_of_shard(shard: u8) -> GroupId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(b"live");
    bytes[4] = shard;
    GroupId(Uuid::from_bytes(bytes))
}

/// True if the followers of a partition are among those that sleep there.
pub(crate) fn sleeps(partition: &PartitionId, head: &Head) -> bool {
    head.asleep.contains(&group(partition).0.simple())
}

/// Reads the partition out of the key of a live group's ready entry; `None` for every other key.
pub fn ready_partition(key: &Key) -> Option<PartitionId> {
    key.pk.starts_with(READY_PREFIX).then(|| PartitionId::parse(&key.sk)).flatten()
}

impl Engine {
    /// Rings for a partition. A failure is logged: it has other ways to be noticed.
    pub(crate) async fn ring(&self, partition: &PartitionId) {
        let Some(doorbell) = &self.inner.settings.doorbell else { return };
        match tokio::time::timeout(RING_WITHIN, doorbell.ring(partition)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, %partition, "followers hear of it later"),
            Err(_) => {
                tracing::warn!(%partition, "the doorbell is slow: followers hear of it later")
            }
        }
    }

    /// The write that makes the followers of a partition awake: a ready entry of a new version.
    pub fn live_wake(&self, partition: &PartitionId) -> Write {
        self.ready_put(&group(partition), partition)
    }

    /// The writes that put the followers of a partition to sleep, which hold only if its tail is this and the ready entry
    /// is the one of this version: the next push wakes them.
    pub fn live_sleep(&self, partition: &PartitionId, tail: u64, version: i64) -> [Write; 2] {
        self.sleep_writes(&group(partition), partition, tail, version)
    }

    /// The writes by which the followers of a partition leave it: no push wakes them any more. `exists` tells whether the
    /// partition does, and is a condition of the writes.
    pub fn live_leave(&self, partition: &PartitionId, exists: bool) -> Vec<Write> {
        let group = group(partition);
        let mut writes = vec![Write::delete(keys::ready(&group, partition))];
        if exists {
            let awake = Change::Exclude("asleep".into(), [group.0.simple()].into());
            let leave = Write::update(keys::head(partition), vec![awake]).when(Condition::Exists);
            writes.push(leave);
        }
        writes
    }

    /// The version of the ready entry of a partition's followers; `None` if they sleep, or there are none.
    pub async fn live_ready(&self, partition: &PartitionId) -> Result<Option<i64>, Error> {
        let entry = self.get(&keys::ready(&group(partition), partition)).await?;
        Ok(entry.map(|entry| entry.int("version").unwrap_or_default()))
    }

    /// Partitions of one shard whose followers are awake, after one, at most `limit` (and at most 1,000).
    pub async fn live_waiting(
        &self,
        shard: u8,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionId>, Error> {
        let pk = keys::ready_pk(&group_of_shard(shard % LIVE_SHARDS));
        let found = self.list(&pk, after.map(PartitionId::to_string).as_deref(), limit).await?;
        Ok(found.iter().filter_map(|(key, _)| PartitionId::parse(&key.sk)).collect())
    }

    /// How far a partition reaches; makes it, without records, if the stream is there and it is not: what does not exist
    /// cannot wake anybody.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`]; [`Error::Name`].
    pub async fn ensure_partition(&self, stream: &str, partition: &str) -> Result<Extent, Error> {
        Error::check_name("the partition's name", partition)?;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let missing = || Error::StreamNotFound(stream.to_owned());
            let record = self.reread_stream(stream).await?.ok_or_else(missing)?;
            record.check_partition(partition)?;
            let id = PartitionId::of(&record.info.id, partition);
            if let Some(head) = self.head(&id).await? {
                return Ok(head.extent());
            }
            if record.declared.is_some() {
                return Err(Error::NoLog(stream.to_owned()));
            }
            let mut head = Head::new(stream, record.info.id, partition, record.version);
            // Every group is told of it, as it is of one that a push makes. There is nothing to read yet, so it is told
            // in its sleep.
            head.asleep.clone_from(&record.groups);
            let entry = Item::new().with("name", partition);
            let writes = vec![
                Write::put(keys::head(&id), head.encode()).when(Condition::Absent),
                Write::put(keys::partition_entry(&record.info.id, &id), entry),
                record.held(),
            ];
            match self.commit(Commit::all(writes)).await {
                // Made by somebody, perhaps by us, or refused by a group that has just joined: the next read tells.
                Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Looks how far a partition reaches, and tells those who [watch](Engine::watch) it in this process: for partitions
    /// that other processes push to. Costs a read of the head.
    pub async fn refresh_tail(&self, partition: &PartitionId) -> Result<Option<Extent>, Error> {
        let Some(head) = self.head(partition).await? else { return Ok(None) };
        if self.tell_watchers(partition, head.tail) {
            self.wake_poppers(&head.stream);
        }
        Ok(Some(head.extent()))
    }

    /// Partitions that somebody [watches](Engine::watch) in this process.
    pub fn watched_partitions(&self) -> Vec<PartitionId> {
        let watchers = self.inner.watchers.lock();
        let watched = watchers.iter().filter(|(_, sender)| sender.receiver_count() > 0);
        watched.map(|(id, _)| *id).collect()
    }

    /// Deletes the head of a deleted stream's partition. Followers that sleep there are woken by it, so that they hear of
    /// the end.
    pub(crate) async fn delete_head(&self, partition: &PartitionId) -> Result<(), Error> {
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let Some(head) = self.head(partition).await? else { return Ok(()) };
            let wakes = sleeps(partition, &head);
            let as_seen = if head.asleep.is_empty() {
                Condition::Lacks("asleep".into())
            } else {
                Condition::Equals("asleep".into(), Value::StrSet(head.asleep.clone()))
            };
            let mut writes = vec![Write::delete(keys::head(partition)).when(as_seen)];
            if wakes {
                writes.push(self.live_wake(partition));
            }
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    if wakes {
                        self.ring(partition).await;
                    }
                    return Ok(());
                }
                Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Unknown(_)) => self.back_off(attempt).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_that_of_every_live_group_and_the_key_tells_the_partition() {
        let partition = PartitionId::of(&Uuid::from_bytes([7; 16]), "p");
        for shard in 0..LIVE_SHARDS {
            let pk = keys::ready_pk(&group_of_shard(shard));
            assert!(pk.starts_with(READY_PREFIX), "{pk}");
        }
        let key = keys::ready(&group(&partition), &partition);
        assert_eq!(ready_partition(&key), Some(partition));
        let other = GroupId::of(&Uuid::from_bytes([7; 16]), "g", 1);
        assert_eq!(ready_partition(&keys::ready(&other, &partition)), None);
        assert_eq!(ready_partition(&keys::head(&partition)), None);
    }
}
