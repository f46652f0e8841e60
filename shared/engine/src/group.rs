//! Consumer groups: joining a stream, finding its partitions, being woken, leaving.
//!
//! The wake-up index. For each group and partition there is a *ready entry*, or the partition's head lists the group as
//! *asleep*, or nobody has told the group of the partition yet (see below). A pop over a stream reads ready entries
//! only, so it costs what it finds. A push to a head with sleepers wakes them in the transaction that appends. A group
//! that has drained a partition goes back to sleep in a transaction on the condition that the tail has not moved and
//! that its ready entry is the one that it looked at (a seek backwards writes a new one).
//!
//! A group that joins visits the partitions that are there, once, a page at a time; those made later are made on the
//! condition that their maker knows of the group, with a ready entry. Joining and making both go by the stream's
//! version, so no partition falls between.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tidewheel_store::{Change, Commit, CommitError, Condition, Item, Value, Write};

use crate::{
    CursorId, Engine, Error, GroupId, PartitionId, QUEUE_MODE_GROUP, SubscriptionMode, Uuid,
    cursor::Cursor, head::Head, keys, limits, stream::StreamRecord,
};

/// Partitions that a group visits in one step.
const VISIT_PAGE: usize = 100;
/// Steps that the pop which registers a group takes at once.
const VISIT_STEPS_AT_ONCE: usize = 10;
/// Visits under way at a time.
const PARALLEL_VISITS: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct GroupRecord {
    pub(crate) id: GroupId,
    pub(crate) name: String,
    stream_id: Uuid,
    /// The stream's version that its joining made.
    joined: i64,
    pub(crate) joined_us: i64,
    pub(crate) mode: SubscriptionMode,
    /// Only the newest record of a partition is delivered.
    pub(crate) conflation: bool,
    /// Partitions up to this id are visited; `None` when all that were there are.
    scan: Option<String>,
}

impl GroupRecord {
    fn encode(&self) -> Item {
        let (mode, from_us) = encode_mode(self.mode);
        let mut item = Item::new()
            .with("gid", self.id.0.to_string())
            .with("joined", self.joined)
            .with("joined_us", self.joined_us)
            .with("mode", mode)
            .with("from_us", from_us);
        if self.conflation {
            item.set("conflation", true);
        }
        if let Some(scan) = &self.scan {
            item.set("scan", scan.as_str());
        }
        item
    }

    pub(crate) fn decode(stream_id: Uuid, name: &str, item: &Item) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                id: GroupId(Uuid::parse(item.str("gid")?)?),
                name: name.to_owned(),
                stream_id,
                joined: item.int("joined")?,
                joined_us: item.int("joined_us")?,
                mode: match item.str("mode")? {
                    "all" => SubscriptionMode::All,
                    "new" => SubscriptionMode::New,
                    "from" => SubscriptionMode::From(item.int("from_us")?),
                    _ => return None,
                },
                conflation: item.get("conflation").is_some(),
                scan: item.str("scan").map(str::to_owned),
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("record of group `{name}`")))
    }

    /// Where a group begins holds for those that begin while it is so.
    fn unchanged(&self) -> Write {
        let (mode, from_us) = encode_mode(self.mode);
        Write::check(keys::group(&self.stream_id, &self.name))
            .when(Condition::Equals("gid".into(), self.id.0.to_string().into()))
            .when(Condition::Equals("mode".into(), mode.into()))
            .when(Condition::Equals("from_us".into(), from_us.into()))
    }

    pub(crate) fn cache_key(&self) -> (String, String) {
        (self.stream_id.simple(), self.name.clone())
    }
}

pub(crate) fn encode_mode(mode: SubscriptionMode) -> (&'static str, i64) {
    match mode {
        SubscriptionMode::All => ("all", 0),
        SubscriptionMode::New => ("new", 0),
        SubscriptionMode::From(us) => ("from", us),
    }
}

impl Engine {
    pub(crate) fn ready_put(&self, group: &GroupId, partition: &PartitionId) -> Write {
        let item = Item::new().with("version", self.env().random() as i64);
        Write::put(keys::ready(group, partition), item)
    }

    /// A group's record; `None` if it never joined the stream.
    pub(crate) async fn group_record(
        &self,
        stream: &StreamRecord,
        group: &str,
    ) -> Result<Option<Arc<GroupRecord>>, Error> {
        let cache_key = (stream.info.id.simple(), group.to_owned());
        if let Some(record) = self.inner.groups.get(&cache_key) {
            // A group that another process has deleted leaves the stream's record too, which is read now and then.
            if stream.groups.contains(&record.id.0.simple()) {
                return Ok(Some(record));
            }
            self.inner.groups.remove(&cache_key);
        }
        let item = self.get(&keys::group(&stream.info.id, group)).await?;
        let Some(item) = item else { return Ok(None) };
        let record = Arc::new(GroupRecord::decode(stream.info.id, group, &item)?);
        self.inner.groups.insert(cache_key, Arc::clone(&record));
        Ok(Some(record))
    }

    /// A group's record; the group joins if it has not. Its mode, and whether it conflates, count only then.
    pub(crate) async fn ensure_group(
        &self,
        stream: &mut Arc<StreamRecord>,
        group: &str,
        mode: SubscriptionMode,
        conflation: bool,
    ) -> Result<Arc<GroupRecord>, Error> {
        Error::check_name("the group's name", group)?;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            if let Some(record) = self.group_record(stream, group).await? {
                if record.scan.is_none() {
                    return Ok(record);
                }
                return self.continue_visits(stream, record, 1, false).await;
            }
            if let Some(record) = self.join(stream, group, mode, conflation).await? {
                return self.continue_visits(stream, record, VISIT_STEPS_AT_ONCE, true).await;
            }
        }
        Err(Error::Busy)
    }

    /// Tries to join; `None` means to look again.
    async fn join(
        &self,
        stream: &mut Arc<StreamRecord>,
        group: &str,
        mode: SubscriptionMode,
        conflation: bool,
    ) -> Result<Option<Arc<GroupRecord>>, Error> {
        if stream.groups.len() >= limits::GROUPS {
            return Err(Error::Limit {
                what: "groups of a stream",
                got: stream.groups.len() + 1,
                limit: limits::GROUPS,
            });
        }
        let joined = stream.version + 1;
        let record = GroupRecord {
            id: GroupId::of(&stream.info.id, group, joined),
            name: group.to_owned(),
            stream_id: stream.info.id,
            joined,
            joined_us: self.env().now_us(),
            mode: if group == QUEUE_MODE_GROUP { SubscriptionMode::All } else { mode },
            conflation: conflation && group != QUEUE_MODE_GROUP,
            scan: Some("!".to_owned()), // sorts before every partition id
        };
        let joins = Write::update(
            keys::stream(&stream.info.name),
            vec![
                Change::Add("version".into(), 1),
                Change::Include("groups".into(), [record.id.0.simple()].into()),
            ],
        )
        .when(Condition::Equals("id".into(), stream.info.id.to_string().into()))
        .when(Condition::Equals("version".into(), stream.version.into()))
        .when(Condition::ShorterThan("groups".into(), limits::GROUPS));
        let put = Write::put(keys::group(&stream.info.id, group), record.encode())
            .when(Condition::Absent);
        let outcome = self.commit(Commit::all(vec![joins, put])).await;
        let again = match outcome {
            Ok(_) => false,
            Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => true,
            Err(e) => return Err(e.into()),
        };
        let name = stream.info.name.clone();
        *stream = match self.reread_stream(&name).await? {
            Some(stream) => stream,
            None => self.ensure_stream(&name).await?,
        };
        Ok(if again { None } else { Some(Arc::new(record)) })
    }

    /// Visits partitions that were there when the group joined.
    async fn continue_visits(
        &self,
        stream: &Arc<StreamRecord>,
        mut record: Arc<GroupRecord>,
        steps: usize,
        registering: bool,
    ) -> Result<Arc<GroupRecord>, Error> {
        for _ in 0..steps {
            let Some(scan) = record.scan.clone() else { break };
            let after = PartitionId::parse(&scan);
            let page = self.partitions_of(stream, after.as_ref(), VISIT_PAGE).await?;
            // Collected first: a lazy map over borrowed items makes a future that is not `Send` for its callers.
            let visits: Vec<_> =
                page.iter().map(|p| self.visit(stream, &record, &p.id, registering)).collect();
            stream::iter(visits).buffer_unordered(PARALLEL_VISITS).try_collect::<Vec<_>>().await?;
            let next = page.last().filter(|_| page.len() == VISIT_PAGE).map(|p| p.id.to_string());
            let change = match &next {
                Some(next) => Change::Set("scan".into(), next.as_str().into()),
                None => Change::Remove("scan".into()),
            };
            let write = Write::update(keys::group(&record.stream_id, &record.name), vec![change])
                .when(Condition::Equals("gid".into(), record.id.0.to_string().into()))
                .when(Condition::Equals("scan".into(), scan.as_str().into()));
            match self.commit(Commit::one(write)).await {
                Ok(_) => record = Arc::new(GroupRecord { scan: next, ..(*record).clone() }),
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                    // Another pop of the group is at it.
                    self.inner.groups.remove(&record.cache_key());
                    return match self.group_record(stream, &record.name.clone()).await? {
                        Some(record) => Ok(record),
                        None => Err(Error::Busy),
                    };
                }
                Err(e) => return Err(e.into()),
            }
        }
        self.inner.groups.insert(record.cache_key(), Arc::clone(&record));
        Ok(record)
    }

    /// Makes the group's cursor on a partition, with a ready entry, unless it is there. `None` if the partition does not
    /// exist.
    ///
    /// # Errors
    /// [`Error::GroupNotFound`] if the group has been deleted meanwhile.
    pub(crate) async fn visit(
        &self,
        stream: &StreamRecord,
        group: &GroupRecord,
        partition: &PartitionId,
        registering: bool,
    ) -> Result<Option<Arc<Cursor>>, Error> {
        let id = CursorId::of(&group.id, partition);
        let mut reread;
        let mut group = group;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            if let Some(cursor) = self.reread_cursor(&id).await? {
                return Ok(Some(cursor));
            }
            let Some(head) = self.head(partition).await? else { return Ok(None) };
            let start = self.start(group, partition, &head, registering).await?;
            let cursor = Cursor::new(group, &stream.info.name, *partition, start);
            let writes = vec![
                Write::put(keys::cursor(&id), cursor.encode()).when(Condition::Absent),
                group.unchanged(),
                self.ready_put(&group.id, partition),
            ];
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    let cursor = Arc::new(cursor);
                    self.inner.cursors.insert(id, Arc::clone(&cursor));
                    return Ok(Some(cursor));
                }
                Err(CommitError::Conflict(failed)) => {
                    if let Some(f) = failed.iter().find(|f| f.write == 1) {
                        self.inner.groups.remove(&group.cache_key());
                        let gone = || Error::GroupNotFound(group.name.clone());
                        let item = f.current.as_ref().ok_or_else(gone)?;
                        let now = GroupRecord::decode(group.stream_id, &group.name, item)?;
                        if now.id != group.id {
                            return Err(gone());
                        }
                        // It begins elsewhere since.
                        reread = now;
                        group = &reread;
                    }
                }
                Err(CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Where a group begins on a partition.
    pub(crate) async fn start(
        &self,
        group: &GroupRecord,
        partition: &PartitionId,
        head: &Arc<Head>,
        registering: bool,
    ) -> Result<u64, Error> {
        match group.mode {
            SubscriptionMode::All => Ok(head.floor),
            SubscriptionMode::From(us) => self.offset_at_time(partition, head, us).await,
            // A partition made after the group joined is new from its first record.
            SubscriptionMode::New if head.born >= group.joined => Ok(head.floor),
            SubscriptionMode::New if registering => Ok(head.tail),
            SubscriptionMode::New => self.offset_at_time(partition, head, group.joined_us).await,
        }
    }

    pub(crate) fn sleep_writes(
        &self,
        group: &GroupId,
        partition: &PartitionId,
        tail: u64,
        ready_version: i64,
    ) -> [Write; 2] {
        let asleep = Change::Include("asleep".into(), [group.0.simple()].into());
        [
            Write::update(keys::head(partition), vec![asleep])
                .when(Condition::Equals("tail".into(), (tail as i64).into())),
            Write::delete(keys::ready(group, partition))
                .when(Condition::Equals("version".into(), ready_version.into())),
        ]
    }

    /// Puts a group to sleep on a partition that it has drained up to `tail`. False if there is news: the tail has moved,
    /// or the ready entry is not the one that was looked at.
    pub(crate) async fn sleep(
        &self,
        group: &GroupId,
        partition: &PartitionId,
        tail: u64,
        ready_version: i64,
    ) -> Result<bool, Error> {
        let writes = self.sleep_writes(group, partition, tail, ready_version);
        match self.commit(Commit::all(writes.into())).await {
            Ok(_) => {
                // The remembered head lacks the sleeper; the next push would be refused for nothing.
                if let Some(head) = self.warm(partition).head().filter(|h| h.tail == tail) {
                    let mut head = (*head).clone();
                    head.asleep.insert(group.0.simple());
                    self.warm(partition).learn(Arc::new(head));
                }
                Ok(true)
            }
            // After a lost reply the group is asleep or awake; both are safe, and awake looks again.
            Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Ready entries of a group: partition and version, from a random place on, at most `limit`.
    pub(crate) async fn ready_entries(
        &self,
        group: &GroupId,
        limit: usize,
    ) -> Result<Vec<(PartitionId, i64)>, Error> {
        let mut found = Vec::new();
        // Consumers that all began at the first entry would meet there.
        let start = Uuid::random(self.env()).to_string();
        for (from, to) in [(Some(start.clone()), None), (None, Some(start))] {
            if found.len() >= limit {
                break;
            }
            let query = tidewheel_store::Query {
                pk: keys::ready_pk(group),
                from,
                to,
                direction: tidewheel_store::Direction::Forward,
                limit: (limit - found.len()).min(tidewheel_store::limits::QUERY_ITEMS),
            };
            let page = self.items(&query).await?;
            found.extend(page.items.iter().filter_map(|(key, item)| {
                Some((PartitionId::parse(&key.sk)?, item.int("version")?))
            }));
        }
        Ok(found)
    }

    /// Partitions of a stream that may have records which an internal group has not settled, at most `limit`. The group
    /// joins, from the oldest record, if it has not. It keeps its own positions and has no cursors that move.
    pub async fn ready(
        &self,
        stream: &str,
        group: &str,
        limit: usize,
    ) -> Result<Vec<PartitionId>, Error> {
        let Some(mut record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        let group = self.ensure_group(&mut record, group, SubscriptionMode::All, false).await?;
        Ok(self.ready_entries(&group.id, limit).await?.into_iter().map(|(id, _)| id).collect())
    }

    /// True if a stream has partitions that may have records which an internal group has not settled. Reads one entry,
    /// however many there are. The group joins as in [`Engine::ready`].
    ///
    /// # Errors
    /// Those of the store.
    pub async fn has_ready(&self, stream: &str, group: &str) -> Result<bool, Error> {
        let Some(mut record) = self.stream_record(stream).await? else { return Ok(false) };
        let group = self.ensure_group(&mut record, group, SubscriptionMode::All, false).await?;
        Ok(!self.list(&keys::ready_pk(&group.id), None, 1).await?.is_empty())
    }

    /// Puts an internal group to sleep on a partition whose records below `tail` it has dealt with; false if the tail
    /// has moved, or something else is new there: then it stays ready.
    pub async fn settle(
        &self,
        stream: &str,
        group: &str,
        partition: &PartitionId,
        tail: u64,
    ) -> Result<bool, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(true) };
        let Some(group) = self.group_record(&record, group).await? else { return Ok(true) };
        let Some(entry) = self.get(&keys::ready(&group.id, partition)).await? else {
            return Ok(true);
        };
        let version = entry.int("version").unwrap_or_default();
        self.sleep(&group.id, partition, tail, version).await
    }

    /// Moves a group's cursors on a stream, or on one partition of it: to the tail, or to the first record of this
    /// time or later. Leases end and tries are forgotten. Answers how many partitions moved.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`]; [`Error::GroupNotFound`].
    pub async fn seek(
        &self,
        group: &str,
        stream: &str,
        partition: Option<&str>,
        time_us: Option<i64>,
    ) -> Result<usize, Error> {
        let missing = || Error::StreamNotFound(stream.to_owned());
        let mut record = self.reread_stream(stream).await?.ok_or_else(missing)?;
        // A group that has not joined does so now, so that the position holds when it first pops.
        let group = self.ensure_group(&mut record, group, SubscriptionMode::All, false).await?;
        let mut moved = 0;
        let mut after: Option<PartitionId> = None;
        loop {
            let page = match partition {
                Some(name) => {
                    let id = PartitionId::of(&record.info.id, name);
                    self.partition(&id).await?.into_iter().collect()
                }
                None => self.partitions_of(&record, after.as_ref(), VISIT_PAGE).await?,
            };
            for info in &page {
                moved += usize::from(self.seek_one(&record, &group, &info.id, time_us).await?);
            }
            after = page.last().map(|p| p.id);
            if partition.is_some() || page.len() < VISIT_PAGE {
                self.wake_poppers(stream);
                return Ok(moved);
            }
        }
    }

    async fn seek_one(
        &self,
        stream: &StreamRecord,
        group: &GroupRecord,
        partition: &PartitionId,
        time_us: Option<i64>,
    ) -> Result<bool, Error> {
        let Some(head) = self.head(partition).await? else { return Ok(false) };
        let to = match time_us {
            None => head.tail,
            Some(us) => self.offset_at_time(partition, &head, us).await?,
        };
        if self.visit(stream, group, partition, false).await?.is_none() {
            return Ok(false);
        }
        let id = CursorId::of(&group.id, partition);
        // A new entry, also where there is one: whoever is about to put the group to sleep looked at the old. In the same
        // commit: a position that moved back without it would wait for the next push.
        let ready = self.ready_put(&group.id, partition);
        self.change_cursor(&id, &group.name, Some(ready), |cursor| {
            let mut next = cursor.clone();
            next.committed = to;
            next.delivered = to;
            next.lease = None;
            next.attempt = 0;
            next.failures = 0;
            next.epoch += 1;
            Ok((Some(next), ()))
        })
        .await?;
        Ok(true)
    }

    /// Deletes a group on one stream, or on all: cursors, leases, and what it remembers. A group of the same name
    /// starts anew. Answers how many cursors were deleted, and whether the group was registered.
    pub async fn delete_group(
        &self,
        group: &str,
        stream: Option<&str>,
    ) -> Result<(usize, bool), Error> {
        let mut total = (0, false);
        let mut after: Option<String> = None;
        loop {
            let names = match stream {
                Some(name) => vec![name.to_owned()],
                None => self.streams(after.as_deref(), 1000).await?,
            };
            for name in &names {
                if let Some(record) = self.reread_stream(name).await? {
                    let (cursors, registered) = self.delete_group_on(record, group).await?;
                    total = (total.0 + cursors, total.1 || registered);
                }
            }
            after = names.last().cloned();
            if stream.is_some() || names.len() < 1000 {
                return Ok(total);
            }
        }
    }

    async fn delete_group_on(
        &self,
        mut stream: Arc<StreamRecord>,
        group: &str,
    ) -> Result<(usize, bool), Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            self.inner.groups.remove(&(stream.info.id.simple(), group.to_owned()));
            let Some(record) = self.group_record(&stream, group).await? else {
                return Ok((0, false));
            };
            let gid = record.id.0.simple();
            let leaves = Write::update(
                keys::stream(&stream.info.name),
                vec![
                    Change::Add("version".into(), 1),
                    Change::Exclude("groups".into(), [gid].into()),
                ],
            )
            .when(Condition::Equals("id".into(), stream.info.id.to_string().into()))
            .when(Condition::Equals("version".into(), stream.version.into()));
            let delete = Write::delete(keys::group(&stream.info.id, group))
                .when(Condition::Equals("gid".into(), record.id.0.to_string().into()));
            let outcome = self.commit(Commit::all(vec![leaves, delete])).await;
            self.inner.groups.remove(&record.cache_key());
            let name = stream.info.name.clone();
            match self.reread_stream(&name).await? {
                Some(reread) => stream = reread,
                None => return Ok((0, false)),
            }
            match outcome {
                // No cursor can come back now: making one is conditional on the group's record.
                Ok(_) => return Ok((self.delete_cursors(&stream, &record.id).await?, true)),
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                    if !stream.groups.contains(&record.id.0.simple()) {
                        return Ok((self.delete_cursors(&stream, &record.id).await?, true));
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    async fn delete_cursors(&self, stream: &StreamRecord, group: &GroupId) -> Result<usize, Error> {
        let mut deleted = 0;
        let mut after: Option<PartitionId> = None;
        loop {
            let page = self.partitions_of(stream, after.as_ref(), VISIT_PAGE).await?;
            for info in &page {
                deleted += usize::from(self.delete_cursor(group, &info.id).await?);
            }
            after = page.last().map(|p| p.id);
            if page.len() < VISIT_PAGE {
                return Ok(deleted);
            }
        }
    }

    /// Deletes a group's cursor and ready entry on a partition; true if there was a cursor.
    pub(crate) async fn delete_cursor(
        &self,
        group: &GroupId,
        partition: &PartitionId,
    ) -> Result<bool, Error> {
        let id = CursorId::of(group, partition);
        let existed = self.get(&keys::cursor(&id)).await?.is_some();
        let writes =
            vec![Write::delete(keys::cursor(&id)), Write::delete(keys::ready(group, partition))];
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            match self.commit(Commit::all(writes.clone())).await {
                Ok(_) => {
                    self.inner.cursors.remove(&id);
                    return Ok(existed);
                }
                // Deleting twice is deleting once.
                Err(CommitError::Unknown(_)) => self.back_off(attempt).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}

/// Group ids as a list of attribute values has them.
pub(crate) fn group_ids(values: &[Value]) -> impl Iterator<Item = GroupId> + '_ {
    values.iter().filter_map(|v| {
        let Value::Str(text) = v else { return None };
        Some(GroupId(Uuid::from_bytes(u128::from_str_radix(text, 16).ok()?.to_be_bytes())))
    })
}
