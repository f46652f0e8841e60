//! How far groups have come: read for people and dashboards, relied on by nobody.
//!
//! What a call costs is in proportion to what it lists. A page of partitions costs a read of each head and of each
//! cursor asked for. Which partitions a group lags on is known without looking at them all: it is awake there, so that
//! the wake-up index names them. The tables' own group is not shown; it keeps its positions elsewhere.

use std::sync::Arc;

use tidewheel_store::{Change, Commit, CommitError, Condition, Write, limits as store_limits};

use crate::{
    CursorId, Engine, Error, Extent, GroupInfo, GroupPosition, Held, PartitionId, PartitionInfo,
    Position, Standing, SubscriptionMode, TABLE_GROUP,
    cursor::Cursor,
    group::{GroupRecord, encode_mode},
    head::Head,
    keys, limits,
    stream::StreamRecord,
};

/// Partitions of one step over all of a stream.
const PAGE: usize = 100;

impl GroupInfo {
    fn of(record: &GroupRecord) -> Self {
        Self {
            name: record.name.clone(),
            mode: record.mode,
            joined_us: record.joined_us,
            conflation: record.conflation,
        }
    }
}

impl Position {
    fn of(cursor: &Cursor, now_us: i64) -> Self {
        Self {
            committed: cursor.committed,
            held: cursor.live_lease(now_us).map(|lease| Held {
                token: lease.token.clone(),
                end: lease.end,
                until_us: lease.until_us,
            }),
            failures: cursor.failures,
            consumed: cursor.consumed,
            consumed_us: Some(cursor.consumed_us).filter(|us| *us > 0),
        }
    }
}

impl Engine {
    /// Groups that are registered on a stream, by name.
    pub async fn groups(&self, stream: &str) -> Result<Vec<GroupInfo>, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        let records = self.group_records(&record, None).await?;
        Ok(records.iter().map(|r| GroupInfo::of(r)).collect())
    }

    /// Records of one group of a stream, or of all but the tables' own.
    async fn group_records(
        &self,
        stream: &StreamRecord,
        group: Option<&str>,
    ) -> Result<Vec<Arc<GroupRecord>>, Error> {
        if let Some(group) = group {
            return Ok(self.group_record(stream, group).await?.into_iter().collect());
        }
        let items = self.list(&keys::groups_pk(&stream.info.id), None, limits::GROUPS).await?;
        items
            .iter()
            .filter(|(key, _)| key.sk != TABLE_GROUP)
            .map(|(key, item)| GroupRecord::decode(stream.info.id, &key.sk, item).map(Arc::new))
            .collect()
    }

    /// A page of a stream's partitions by id, after one, at most `limit` (and at most 1,000), with how far one group has
    /// come there, or every group.
    pub async fn standings(
        &self,
        stream: &str,
        group: Option<&str>,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<Standing>, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        let groups = self.group_records(&record, group).await?;
        let partitions = self.partitions_of(&record, after, limit).await?;
        let ids: Vec<PartitionId> = partitions.iter().map(|p| p.id).collect();
        self.stand(&ids, &groups).await
    }

    /// One partition, with every group; `None` if there is none of that id.
    pub async fn standing(&self, partition: &PartitionId) -> Result<Option<Standing>, Error> {
        let Some(info) = self.partition(partition).await? else { return Ok(None) };
        let Some(record) = self.stream_record(&info.stream).await? else { return Ok(None) };
        let groups = self.group_records(&record, None).await?;
        Ok(self.stand(&[*partition], &groups).await?.pop())
    }

    /// Partitions of a stream on which a group lags, at most `limit` looked at. Costs what is found: partitions that the
    /// group has finished are not looked at.
    pub async fn lagging(
        &self,
        stream: &str,
        group: &str,
        limit: usize,
    ) -> Result<Vec<Standing>, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        let groups = self.group_records(&record, Some(group)).await?;
        let Some(first) = groups.first() else { return Ok(Vec::new()) };
        let entries = self.ready_entries(&first.id, limit).await?;
        let ids: Vec<PartitionId> = entries.into_iter().map(|(id, _)| id).collect();
        let mut found = self.stand(&ids, &groups).await?;
        found.retain(|s| s.groups.iter().any(|g| s.owed(g.position.as_ref()) > 0));
        Ok(found)
    }

    /// Reads heads and cursors of some partitions. What is gone is left out.
    async fn stand(
        &self,
        ids: &[PartitionId],
        groups: &[Arc<GroupRecord>],
    ) -> Result<Vec<Standing>, Error> {
        let infos: Vec<Arc<GroupInfo>> =
            groups.iter().map(|g| Arc::new(GroupInfo::of(g))).collect();
        let now_us = self.env().now_us();
        let each = 1 + groups.len();
        let at_once = (store_limits::BATCH_GET_KEYS / each).max(1);
        let mut found = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(at_once) {
            let mut wanted = Vec::with_capacity(chunk.len() * each);
            for id in chunk {
                wanted.push(keys::head(id));
                wanted.extend(groups.iter().map(|g| keys::cursor(&CursorId::of(&g.id, id))));
            }
            let mut items = Vec::with_capacity(wanted.len());
            for part in wanted.chunks(store_limits::BATCH_GET_KEYS) {
                items.extend(self.batch_get(part).await?);
            }
            for (id, items) in chunk.iter().zip(items.chunks(each)) {
                let [Some(head), cursors @ ..] = items else { continue };
                let head = Head::decode(id, head)?;
                let positions = infos.iter().zip(cursors).map(|(group, item)| {
                    let cursor = item.as_ref().map(Cursor::decode).transpose()?;
                    let position = cursor.map(|c| Position::of(&c, now_us));
                    Ok(GroupPosition { group: Arc::clone(group), position })
                });
                let groups = positions.collect::<Result<Vec<_>, Error>>()?;
                found.push(standing(*id, &head, groups));
            }
        }
        Ok(found)
    }

    /// The served time of a record, µs; `None` if it cannot be read. Costs a read of an index page at most.
    pub async fn time_of(&self, standing: &Standing, offset: u64) -> Result<Option<i64>, Error> {
        let Extent { floor, tail } = standing.extent;
        if !(floor..tail).contains(&offset) {
            return Ok(None);
        }
        let id = &standing.partition.id;
        let known = self.warm(id).head().filter(|h| h.tail > offset);
        let head = match known {
            Some(head) => Some(head),
            None => self.head(id).await?,
        };
        let Some(head) = head else { return Ok(None) };
        if offset >= head.base {
            return Ok(head.placed().find(|p| offset < p.end()).map(|p| p.time_us));
        }
        let page = self.page_at(id, offset).await?;
        Ok(page.and_then(|p| p.placed().find(|p| offset < p.end()).map(|p| p.time_us)))
    }

    /// The offsets of a partition whose records were served from one time to another, µs, as far as they can be read.
    pub async fn offsets_between(
        &self,
        partition: &PartitionId,
        from_us: i64,
        to_us: i64,
    ) -> Result<Extent, Error> {
        let head = self.head(partition).await?.ok_or(Error::PartitionNotFound)?;
        let floor = self.offset_at_time(partition, &head, from_us).await?;
        let tail = self.offset_at_time(partition, &head, to_us.saturating_add(1)).await?;
        Ok(Extent { floor, tail: tail.max(floor) })
    }

    /// Sets the time from which a group reads partitions that it has not come to, on every stream where it is
    /// registered; answers on how many. Where it has come to, it stays.
    pub async fn set_subscription(&self, group: &str, from_us: i64) -> Result<usize, Error> {
        let mut changed = 0;
        let mut after: Option<String> = None;
        loop {
            let names = self.streams(after.as_deref(), 1000).await?;
            for name in &names {
                changed += usize::from(self.set_subscription_on(name, group, from_us).await?);
            }
            after = names.last().cloned();
            if names.len() < 1000 {
                return Ok(changed);
            }
        }
    }

    async fn set_subscription_on(
        &self,
        stream: &str,
        group: &str,
        from_us: i64,
    ) -> Result<bool, Error> {
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let Some(stream) = self.stream_record(stream).await? else { return Ok(false) };
            let Some(record) = self.group_record(&stream, group).await? else { return Ok(false) };
            let (mode, from_us) = encode_mode(SubscriptionMode::From(from_us));
            let changes = vec![
                Change::Set("mode".into(), mode.into()),
                Change::Set("from_us".into(), from_us.into()),
            ];
            let write = Write::update(keys::group(&stream.info.id, group), changes)
                .when(Condition::Equals("gid".into(), record.id.0.to_string().into()));
            let outcome = self.commit(Commit::one(write)).await;
            self.inner.groups.remove(&record.cache_key());
            match outcome {
                Ok(_) => return Ok(true),
                // Setting it twice is setting it once.
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                    self.back_off(attempt).await;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Puts a group back to where it began, on one stream or on all: leases end, and what it has consumed is forgotten.
    /// It stays registered as it was. Answers how many positions were put back.
    ///
    /// A position is put back and not deleted: a process that remembers it must not meet another of the same version.
    pub async fn restart_group(&self, group: &str, stream: Option<&str>) -> Result<usize, Error> {
        let mut moved = 0;
        let mut after: Option<String> = None;
        loop {
            let names = match stream {
                Some(name) => vec![name.to_owned()],
                None => self.streams(after.as_deref(), 1000).await?,
            };
            for name in &names {
                moved += self.restart_group_on(name, group).await?;
            }
            after = names.last().cloned();
            if stream.is_some() || names.len() < 1000 {
                return Ok(moved);
            }
        }
    }

    async fn restart_group_on(&self, name: &str, group: &str) -> Result<usize, Error> {
        let Some(stream) = self.reread_stream(name).await? else { return Ok(0) };
        let Some(record) = self.group_record(&stream, group).await? else { return Ok(0) };
        let mut moved = 0;
        let mut after: Option<PartitionId> = None;
        loop {
            let page = self.partitions_of(&stream, after.as_ref(), PAGE).await?;
            for info in &page {
                moved += usize::from(self.restart_on(&record, info).await?);
            }
            after = page.last().map(|p| p.id);
            if page.len() < PAGE {
                self.wake_poppers(name);
                return Ok(moved);
            }
        }
    }

    async fn restart_on(&self, group: &GroupRecord, info: &PartitionInfo) -> Result<bool, Error> {
        let Some(head) = self.head(&info.id).await? else { return Ok(false) };
        let id = CursorId::of(&group.id, &info.id);
        if self.reread_cursor(&id).await?.is_none() {
            return Ok(false);
        }
        let to = self.start(group, &info.id, &head, false).await?;
        // In the same commit, like a seek: a position that moved back without it would wait for the next push.
        let ready = self.ready_put(&group.id, &info.id);
        self.change_cursor(&id, &group.name, Some(ready), |cursor| {
            let mut next = cursor.clone();
            next.committed = to;
            next.delivered = to;
            next.lease = None;
            next.attempt = 0;
            next.failures = 0;
            next.consumed = 0;
            next.consumed_us = 0;
            next.epoch += 1;
            Ok((Some(next), ()))
        })
        .await?;
        Ok(true)
    }
}

fn standing(id: PartitionId, head: &Head, groups: Vec<GroupPosition>) -> Standing {
    let retained = head.placed().filter(|p| p.end() > head.floor);
    let in_head = head.floor >= head.base || head.base == 0;
    Standing {
        partition: PartitionInfo { id, stream: head.stream.clone(), name: head.name.clone() },
        extent: head.extent(),
        last_us: head.last_us(),
        bytes: in_head.then(|| retained.map(|p| p.descriptor.bytes).sum()),
        segments: head.segments.len(),
        groups,
    }
}
