//! Maintenance: retention, the collector, and the rest of deleted streams.
//!
//! Retention moves a partition's floor first, and deletes what lies below it in a later run, after a grace in which
//! readers with a position there finish. The floor never passes what a table has not sealed.
//!
//! The collector deletes blobs that no head or page names. It raises its mark in the head first: from then on an append
//! whose blob is not younger than the mark is refused, so what is unreachable then stays unreachable. Everything here
//! may be repeated, interrupted and run twice at once.

use std::{collections::HashSet, sync::Arc};

use tidewheel_store::{
    BlobName, Change, Commit, CommitError, Condition, Direction, Query, Write,
    limits as store_limits,
};

use crate::{
    CursorId, Engine, Error, PartitionId, PartitionInfo, TABLE_GROUP, Uuid, group::group_ids,
    head::Head, keys, limits, page::Page, segment, stream::StreamRecord, warm::Counts,
};

/// Offsets from which a partition's records are still needed by somebody that has no cursor here: the table that has
/// not sealed them yet.
pub type Hold<'a> = &'a (dyn Fn(&PartitionId) -> u64 + Sync);

/// Partitions of one page.
const PAGE: usize = 100;

impl Engine {
    /// Applies a stream's retention. `hold` keeps what it names. Answers how many records became unreadable.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn retain(&self, stream: &str, hold: Option<Hold<'_>>) -> Result<u64, Error> {
        let mut expired = 0;
        let mut after = None;
        loop {
            let (some, next) = self.retain_page(stream, hold, after.as_ref()).await?;
            expired += some;
            after = next;
            if after.is_none() {
                return Ok(expired);
            }
        }
    }

    /// Applies a stream's retention to its partitions after one, a hundred at most. Answers how many records became
    /// unreadable, and the partition to go on after unless this was the last page.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn retain_page(
        &self,
        stream: &str,
        hold: Option<Hold<'_>>,
        after: Option<&PartitionId>,
    ) -> Result<(u64, Option<PartitionId>), Error> {
        let Some(record) = self.reread_stream(stream).await? else { return Ok((0, None)) };
        let aged = record.declared.as_ref().is_some_and(|d| d.declaration.max_age_us.is_some());
        if !record.info.options.expires() && !aged {
            return Ok((0, None));
        }
        let page = self.partitions_of(&record, after, PAGE).await?;
        let mut expired = 0;
        for info in &page {
            expired += self.retain_partition(&record, info, hold).await?;
        }
        Counts::add(&self.inner.counts.records_expired, expired as usize);
        Ok((expired, page.last().filter(|_| page.len() == PAGE).map(|p| p.id)))
    }

    async fn retain_partition(
        &self,
        stream: &StreamRecord,
        info: &PartitionInfo,
        hold: Option<Hold<'_>>,
    ) -> Result<u64, Error> {
        let Some(item) = self.get(&keys::head(&info.id)).await? else { return Ok(0) };
        let head = Arc::new(Head::decode(&info.id, &item)?);
        self.warm(&info.id).learn(Arc::clone(&head));
        let options = &stream.info.options;
        let now_us = self.env().now_us();
        let older_than = |seconds: i64| now_us.saturating_sub(seconds.saturating_mul(1_000_000));
        let mut floor = head.floor;
        if options.retention_enabled && options.retention_seconds > 0 {
            let at = older_than(options.retention_seconds);
            floor = floor.max(self.offset_at_time(&info.id, &head, at).await?);
        }
        if options.max_wait_time_seconds > 0 {
            let at = older_than(options.max_wait_time_seconds);
            floor = floor.max(self.offset_at_time(&info.id, &head, at).await?);
        }
        if options.retention_enabled && options.completed_retention_seconds > 0 {
            let at = older_than(options.completed_retention_seconds);
            let old = self.offset_at_time(&info.id, &head, at).await?;
            floor = floor.max(old.min(self.completed(stream, &info.id).await?));
        }
        let max_age_us = stream.declared.as_ref().and_then(|d| d.declaration.max_age_us);
        if let Some(max_age_us) = max_age_us {
            let at = now_us.saturating_sub(max_age_us);
            floor = floor.max(self.offset_at_time(&info.id, &head, at).await?);
        }
        if let Some(hold) = hold {
            floor = floor.min(hold(&info.id));
        }
        let expired = floor.saturating_sub(head.floor);
        let floor = floor.max(head.floor);
        // Of a floor that moves in every run, the one is kept in mind that was there when the last grace began.
        let grace = if max_age_us.is_some() { limits::ROW_GRACE } else { limits::FLOOR_GRACE };
        let grace_us = grace.as_micros() as i64;
        let due = item.int("floor_due").and_then(|n| u64::try_from(n).ok()).unwrap_or(head.floor);
        let ripe = item.int("floor_us").is_none_or(|us| now_us.saturating_sub(us) >= grace_us);
        if ripe {
            self.delete_below(&info.id, due, now_us.saturating_sub(stream.window_us())).await?;
        }
        let begins = ripe && due < floor;
        if expired == 0 && !begins {
            return Ok(0);
        }
        let mut changes = vec![Change::Set("floor".into(), (floor as i64).into())];
        if begins {
            changes.push(Change::Set("floor_due".into(), (floor as i64).into()));
            changes.push(Change::Set("floor_us".into(), now_us.into()));
        }
        let moved = Write::update(keys::head(&info.id), changes)
            .when(Condition::Equals("floor".into(), (head.floor as i64).into()));
        match self.commit(Commit::one(moved)).await {
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
            Err(e) => return Err(e.into()),
        }
        self.head(&info.id).await?;
        Ok(expired)
    }

    /// The offset below which every group is done.
    async fn completed(
        &self,
        stream: &StreamRecord,
        partition: &PartitionId,
    ) -> Result<u64, Error> {
        let groups: Vec<_> = stream.groups.iter().map(|g| g.as_str().into()).collect();
        // The sealer keeps its own positions, which come in as a hold.
        let table = self.group_record(stream, TABLE_GROUP).await?.map(|record| record.id);
        let mut lowest = None;
        for group in group_ids(&groups).filter(|group| Some(*group) != table) {
            let cursor = self.reread_cursor(&CursorId::of(&group, partition)).await?;
            // A group that has not come here yet has consumed nothing.
            let committed = cursor.map_or(0, |c| c.committed);
            lowest = Some(lowest.map_or(committed, |l: u64| l.min(committed)));
        }
        Ok(lowest.unwrap_or(0))
    }

    /// Deletes the pages, and their segments, that lie wholly below a floor whose grace is over. A page whose ids are
    /// still within the deduplication window, which begins at `window_us`, stays.
    async fn delete_below(
        &self,
        partition: &PartitionId,
        floor: u64,
        window_us: i64,
    ) -> Result<(), Error> {
        loop {
            let query = Query {
                pk: keys::partition_pk(partition),
                from: Some(keys::page_sk(0)),
                to: Some(keys::page_sk(floor)),
                direction: Direction::Forward,
                limit: PAGE,
            };
            let mut deleted = 0;
            for (key, item) in self.items(&query).await?.items {
                let page = Page::decode(partition, &item)?;
                if page.tail > floor || page.last_us >= window_us {
                    return Ok(());
                }
                let owner = segment::owner(partition);
                let ids = page.segments.iter().map(|d| d.blob.as_str()).chain(page.ids.as_deref());
                let names: Vec<_> = ids.map(|id| BlobName::new(owner.as_str(), id)).collect();
                self.delete_blobs(&names).await?;
                self.delete_item(Write::delete(key)).await?;
                deleted += 1;
            }
            if deleted == 0 {
                return Ok(());
            }
        }
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), Error> {
        for names in names.chunks(store_limits::DELETE_BLOBS) {
            match self.inner.store.delete_blobs(names).await {
                // What is left is deleted by the next run.
                Ok(()) | Err(CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    async fn delete_item(&self, delete: Write) -> Result<(), Error> {
        match self.commit(Commit::one(delete)).await {
            Ok(_) | Err(CommitError::Unknown(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Deletes unreachable blobs of a stream's partitions that are older than [`limits::BLOB_GRACE`]. Answers how many.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn collect(&self, stream: &str) -> Result<u64, Error> {
        let mut collected = 0;
        let mut after = None;
        loop {
            let (some, next) = self.collect_page(stream, after.as_ref()).await?;
            collected += some;
            after = next;
            if after.is_none() {
                return Ok(collected);
            }
        }
    }

    /// Collects the unreachable blobs of a stream's partitions after one, a hundred partitions at most. Answers how many
    /// were deleted, and the partition to go on after unless this was the last page.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn collect_page(
        &self,
        stream: &str,
        after: Option<&PartitionId>,
    ) -> Result<(u64, Option<PartitionId>), Error> {
        let page = self.partitions(stream, after, PAGE).await?;
        let mut collected = if after.is_none() { self.collect_books(stream).await? } else { 0 };
        for info in &page {
            collected += self.collect_partition(&info.id).await?;
        }
        Counts::add(&self.inner.counts.blobs_collected, collected as usize);
        Ok((collected, page.last().filter(|_| page.len() == PAGE).map(|p| p.id)))
    }

    /// Deletes the books of a declared stream that its record does not name: of changes that were refused, or superseded.
    async fn collect_books(&self, stream: &str) -> Result<u64, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(0) };
        let Some(declared) = &record.declared else { return Ok(0) };
        let mark_us = self.env().now_us() - limits::BLOB_GRACE.as_micros() as i64;
        let names = self.list_blobs(&crate::declare::owner(&declared.stream), None).await?;
        let mut old: Vec<BlobName> = names
            .into_iter()
            .filter(|n| n.id != declared.book && n.made_us().is_some_and(|made| made <= mark_us))
            .collect();
        if old.is_empty() {
            return Ok(0);
        }
        let id = Condition::Equals("id".into(), declared.stream.to_string().into());
        let raise =
            Write::update(keys::stream(stream), vec![Change::Set("mark".into(), mark_us.into())])
                .when(id)
                .when(Condition::LessThan("mark".into(), mark_us));
        match self.commit(Commit::one(raise)).await {
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
            Err(e) => return Err(e.into()),
        }
        let Some(item) = self.get(&keys::stream(stream)).await? else { return Ok(0) };
        if item.int("mark").is_none_or(|mark| mark < mark_us) {
            return Ok(0);
        }
        old.retain(|name| item.str("book") != Some(name.id.as_str()));
        self.delete_blobs(&old).await?;
        Ok(old.len() as u64)
    }

    async fn collect_partition(&self, partition: &PartitionId) -> Result<u64, Error> {
        let mark_us = self.env().now_us() - limits::BLOB_GRACE.as_micros() as i64;
        let owner = segment::owner(partition);
        let mut after: Option<String> = None;
        let mut old: Vec<BlobName> = Vec::new();
        loop {
            let names = self.list_blobs(&owner, after.as_deref()).await?;
            let full = names.len() == store_limits::DELETE_BLOBS;
            after = names.last().map(|n| n.id.clone());
            let older = |n: &BlobName| n.made_us().is_some_and(|made| made <= mark_us);
            let before = old.len();
            old.extend(names.into_iter().filter(older));
            if !full || old.len() == before {
                break;
            }
        }
        if old.is_empty() {
            return Ok(0);
        }
        let raise =
            Write::update(keys::head(partition), vec![Change::Set("mark".into(), mark_us.into())])
                .when(Condition::LessThan("mark".into(), mark_us));
        match self.commit(Commit::one(raise)).await {
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
            Err(e) => return Err(e.into()),
        }
        let Some(head) = self.head(partition).await? else { return Ok(0) };
        if head.mark_us < mark_us {
            return Ok(0);
        }
        let reachable = self.reachable(partition, &head).await?;
        old.retain(|name| !reachable.contains(&name.id));
        self.delete_blobs(&old).await?;
        Ok(old.len() as u64)
    }

    async fn list_blobs(&self, owner: &str, after: Option<&str>) -> Result<Vec<BlobName>, Error> {
        let limit = store_limits::DELETE_BLOBS;
        Ok(self.inner.store.list_blobs(owner, after, limit).await?)
    }

    /// Ids of every blob that the head or a page names.
    async fn reachable(
        &self,
        partition: &PartitionId,
        head: &Head,
    ) -> Result<HashSet<String>, Error> {
        let mut reachable: HashSet<String> = head.segments.iter().map(|d| d.blob.clone()).collect();
        let mut from = keys::page_sk(0);
        loop {
            let query = Query {
                pk: keys::partition_pk(partition),
                from: Some(from.clone()),
                to: Some(keys::page_sk(u64::MAX)),
                direction: Direction::Forward,
                limit: store_limits::QUERY_ITEMS,
            };
            let found = self.items(&query).await?;
            for (key, item) in &found.items {
                let page = Page::decode(partition, item)?;
                reachable.extend(page.segments.into_iter().map(|d| d.blob).chain(page.ids));
                from = format!("{}\0", key.sk);
            }
            if !found.more {
                return Ok(reachable);
            }
        }
    }

    /// Deletes what deleted streams have left. Answers how many partitions were swept.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn sweep(&self) -> Result<u64, Error> {
        let mut swept = 0;
        for id in self.deleted_streams().await? {
            swept += self.sweep_stream(&id).await?;
        }
        Ok(swept)
    }

    /// Ids of deleted streams that have left something to sweep, a hundred at most.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn deleted_streams(&self) -> Result<Vec<Uuid>, Error> {
        let gone = self.list(keys::GONE, None, PAGE).await?;
        Ok(gone.into_iter().filter_map(|(key, _)| Uuid::parse(&key.sk)).collect())
    }

    /// Deletes everything that a deleted stream held, and nothing if it was not deleted. Answers how many partitions
    /// were swept. It may be interrupted, and goes on from there when it is called again.
    ///
    /// # Errors
    /// Those of the store. What was done stays done.
    pub async fn sweep_stream(&self, stream: &Uuid) -> Result<u64, Error> {
        let Some(gone) = self.get(&keys::gone(stream)).await? else { return Ok(0) };
        let groups: Vec<_> = group_ids(gone.list("groups")).collect();
        let mut swept = 0;
        loop {
            let page = self.list(&keys::partitions_pk(stream), None, PAGE).await?;
            for (key, _) in &page {
                if let Some(partition) = PartitionId::parse(&key.sk) {
                    // The head first: from then on no push can land here.
                    self.delete_head(&partition).await?;
                    self.warm(&partition).forget();
                    for group in &groups {
                        self.delete_cursor(group, &partition).await?;
                    }
                    self.delete_all(&keys::partition_pk(&partition)).await?;
                    self.delete_all(&keys::marks_pk(&partition)).await?;
                    self.delete_all(&keys::letters_by_message_pk(&partition)).await?;
                    self.delete_owner(&segment::owner(&partition)).await?;
                    swept += 1;
                }
                self.delete_item(Write::delete(key.clone())).await?;
            }
            if page.is_empty() {
                break;
            }
        }
        self.delete_all(&keys::groups_pk(stream)).await?;
        self.delete_all(&keys::dead_letters_pk(stream)).await?;
        self.delete_all(&keys::letter_counts_pk(stream)).await?;
        self.delete_owner(&crate::dead_letter::owner(stream)).await?;
        self.delete_owner(&crate::declare::owner(stream)).await?;
        self.delete_item(Write::delete(keys::gone(stream))).await?;
        Ok(swept)
    }

    async fn delete_all(&self, pk: &str) -> Result<(), Error> {
        loop {
            let page = self.list(pk, None, PAGE).await?;
            for (key, _) in &page {
                self.delete_item(Write::delete(key.clone())).await?;
            }
            if page.is_empty() {
                return Ok(());
            }
        }
    }

    async fn delete_owner(&self, owner: &str) -> Result<(), Error> {
        loop {
            let names = self.list_blobs(owner, None).await?;
            if names.is_empty() {
                return Ok(());
            }
            self.delete_blobs(&names).await?;
        }
    }
}
