//! Acknowledging: an acknowledgement is a commit of the cursor.
//!
//! For one call, the items of one (partition, lease) are settled together in one conditional write. What is completed
//! moves the cursor to the highest completed offset, and everything silent below it is done too. The lowest offset
//! that is not completed holds the cursor: a try is charged, or it comes again, or it goes to the dead letters.
//! A dead letter is written in the same commit that moves the cursor past it.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use tidewheel_store::{Commit, CommitError};

use crate::{
    Ack, Acked, CursorId, Engine, Error, Extended, LeaseId, PartitionId, QUEUE_MODE_GROUP, Record,
    StreamOptions, Verdict,
    cursor::{Cursor, write_token},
    dead_letter,
    head::Head,
    letters, limits,
    stream::StreamRecord,
    warm::Counts,
};

/// Dead letters that one commit files; more are filed by further commits.
const DEAD_LETTERS_AT_ONCE: usize = 45;

/// Items of one call for one (partition, lease).
struct Settlement<'a> {
    partition: &'a str,
    lease: Option<&'a str>,
    places: Vec<usize>,
}

/// What the items of one settlement do to a cursor.
pub(crate) struct Settled {
    pub(crate) next: Option<Cursor>,
    /// One for each item.
    pub(crate) acked: Vec<Acked>,
    /// Offsets to dead-letter, with the item that says why.
    pub(crate) dead: Vec<(u64, usize)>,
}

impl Engine {
    /// Acknowledges messages for a group ([`QUEUE_MODE_GROUP`] if `None`). Answers stand in the order of the items;
    /// items of different partitions or leases succeed and fail independently.
    pub async fn ack(&self, group: Option<&str>, acks: Vec<Ack>) -> Result<Vec<Acked>, Error> {
        let group = group.unwrap_or(QUEUE_MODE_GROUP);
        let mut settlements: Vec<Settlement<'_>> = Vec::new();
        for (place, ack) in acks.iter().enumerate() {
            let lease = ack.lease_id.as_deref().filter(|l| !l.is_empty());
            let same =
                |s: &&mut Settlement<'_>| s.partition == ack.partition_id && s.lease == lease;
            match settlements.iter_mut().find(same) {
                Some(settlement) => settlement.places.push(place),
                None => settlements.push(Settlement {
                    partition: &ack.partition_id,
                    lease,
                    places: vec![place],
                }),
            }
        }
        let answers = join_all(settlements.iter().map(|s| async {
            let items: Vec<&Ack> = s.places.iter().map(|&p| &acks[p]).collect();
            self.settle_items(group, s.partition, s.lease, &items).await
        }))
        .await;
        let mut outcomes = vec![Acked::default(); acks.len()];
        for (settlement, answer) in settlements.iter().zip(answers) {
            match answer {
                Ok(acked) => {
                    for (&place, acked) in settlement.places.iter().zip(acked) {
                        outcomes[place] = acked;
                    }
                }
                Err(e) if e.is_transient() && settlements.len() == 1 => return Err(e),
                Err(e) => {
                    for &place in &settlement.places {
                        outcomes[place] = Acked { error: Some(e.to_string()), ..Acked::default() };
                    }
                }
            }
        }
        Counts::add(&self.inner.counts.acks, outcomes.iter().filter(|a| a.error.is_none()).count());
        Ok(outcomes)
    }

    async fn settle_items(
        &self,
        group: &str,
        partition: &str,
        lease: Option<&str>,
        items: &[&Ack],
    ) -> Result<Vec<Acked>, Error> {
        let mut doubt = None;
        let answer = self.settle_until_decided(group, partition, lease, items, &mut doubt).await;
        Error::in_doubt(answer, doubt)
    }

    async fn settle_until_decided(
        &self,
        group: &str,
        partition: &str,
        lease: Option<&str>,
        items: &[&Ack],
        doubt: &mut Option<String>,
    ) -> Result<Vec<Acked>, Error> {
        let (stream, partition, cursor_id) = self.ack_target(group, partition).await?;
        let token = write_token(self);
        let mut refreshed = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(cursor) = self.cursor(&cursor_id).await? else {
                return Err(Error::GroupNotFound(group.to_owned()));
            };
            let offsets = self.resolve_offsets(&partition, &cursor, items).await?;
            let now_us = self.env().now_us();
            let settled =
                match decide(&cursor, lease, items, &offsets, &stream.info.options, now_us) {
                    Ok(settled) => settled,
                    Err(e) if refreshed => return Err(e),
                    Err(_) => {
                        // What this process remembers may be old; only the truth may refuse.
                        refreshed = true;
                        self.reread_cursor(&cursor_id).await?;
                        continue;
                    }
                };
            let refused = settled.acked.iter().any(|a| a.error.is_some());
            if let (true, Some(why)) = (refused, doubt.as_ref()) {
                return Err(Error::Unknown(why.clone()));
            }
            if (settled.next.is_none() || refused) && !refreshed {
                refreshed = true;
                self.reread_cursor(&cursor_id).await?;
                continue;
            }
            let Some(next) = settled.next else { return Ok(settled.acked) };
            let released = next.lease.is_none();
            let version = next.version;
            let mut commits = self
                .dead_letter_commits(&stream, &cursor, &settled.dead, items, next, &token)
                .await?;
            let last = commits.pop();
            for (commit, next) in commits {
                self.commit_settlement(commit, next, &token, version, doubt).await?;
            }
            let Some((commit, next)) = last else { return Ok(settled.acked) };
            if self.commit_settlement(commit, next, &token, version, doubt).await? {
                Counts::add(&self.inner.counts.records_dead_lettered, settled.dead.len());
                if released {
                    self.wake_poppers(&stream.info.name);
                }
                return Ok(settled.acked);
            }
            refreshed = true;
        }
        Err(Error::Busy)
    }

    /// Finds whose cursor an acknowledgement means.
    pub(crate) async fn ack_target(
        &self,
        group: &str,
        partition: &str,
    ) -> Result<(Arc<StreamRecord>, PartitionId, CursorId), Error> {
        let id = PartitionId::parse(partition).ok_or(Error::PartitionNotFound)?;
        let info = self.partition(&id).await?.ok_or(Error::PartitionNotFound)?;
        let stream = self.stream_record(&info.stream).await?.ok_or(Error::PartitionNotFound)?;
        let record = self.group_record(&stream, group).await?;
        let record = record.ok_or_else(|| Error::GroupNotFound(group.to_owned()))?;
        let cursor = CursorId::of(&record.id, &id);
        Ok((stream, id, cursor))
    }

    /// Commits one write of a settlement; false means to decide again.
    async fn commit_settlement(
        &self,
        commit: Commit,
        next: Cursor,
        token: &str,
        version: i64,
        doubt: &mut Option<String>,
    ) -> Result<bool, Error> {
        let id = next.id;
        match self.commit(commit).await {
            Ok(_) => {
                self.inner.cursors.insert(id, Arc::new(next));
                Ok(true)
            }
            Err(CommitError::Conflict(failed)) => {
                let image = failed.iter().find(|f| f.write == 0).and_then(|f| f.current.as_ref());
                let current = self.learn_cursor(&id, image)?;
                Ok(current.is_some_and(|c| c.has(token, version) == Some(true)))
            }
            Err(CommitError::Unknown(e)) => {
                *doubt = Some(e.clone());
                let current = self.reread_cursor(&id).await?;
                match current.map(|c| c.has(token, version)) {
                    Some(Some(true)) => {
                        Counts::add(&self.inner.counts.outcomes_resolved, 1);
                        Ok(true)
                    }
                    Some(Some(false)) | None => Ok(false),
                    Some(None) => Err(Error::Unknown(e)),
                }
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The commits of a settlement: one, or more if there are many dead letters.
    async fn dead_letter_commits(
        &self,
        stream: &StreamRecord,
        cursor: &Cursor,
        dead: &[(u64, usize)],
        items: &[&Ack],
        next: Cursor,
        token: &str,
    ) -> Result<Vec<(Commit, Cursor)>, Error> {
        let mut commits = Vec::new();
        let mut base = cursor.clone();
        let chunks: Vec<&[(u64, usize)]> = dead.chunks(DEAD_LETTERS_AT_ONCE).collect();
        for (at, chunk) in chunks.iter().enumerate() {
            let last = at + 1 == chunks.len();
            let mut after = if last { next.clone() } else { base.clone() };
            if !last {
                after.advance(chunk[chunk.len() - 1].0 + 1, self.env().now_us());
            }
            after.version = base.version;
            after.stamp(token);
            let mut commit = Commit::one(after.write());
            let mut filed = 0;
            for (offset, item) in *chunk {
                let ack = items[*item];
                filed += self.file_dead_letter(&mut commit, stream, cursor, *offset, ack).await?;
            }
            commit.writes.extend(letters::counted(stream, cursor, filed));
            base = after.clone();
            commits.push((commit, after));
        }
        if dead.is_empty() {
            let mut after = next;
            after.stamp(token);
            commits.push((Commit::one(after.write()), after));
        }
        Ok(commits)
    }

    /// Adds a dead letter to the commit that moves the cursor past it; answers how many, which is 0 if there is nothing
    /// left to keep. The caller counts them, once for each cursor of a commit.
    pub(crate) async fn file_dead_letter(
        &self,
        commit: &mut Commit,
        stream: &StreamRecord,
        cursor: &Cursor,
        offset: u64,
        ack: &Ack,
    ) -> Result<i64, Error> {
        let head = self.head(&cursor.partition).await?.ok_or(Error::PartitionNotFound)?;
        let read = self.read_under(&cursor.partition, &head, offset, offset + 1, 1).await?;
        // Retention may have taken the record; then there is nothing left to keep.
        let Some(record) = read.first() else { return Ok(0) };
        let reason = ack.error.as_deref().unwrap_or_default();
        let (write, blob) = dead_letter::encode(
            self,
            stream,
            &head.name,
            cursor,
            record,
            reason,
            self.env().now_us(),
        )
        .await?;
        commit.writes.push(letters::by_message(&cursor.partition, record, &write.key));
        commit.writes.push(write);
        commit.blobs.extend(blob);
        Ok(1)
    }

    /// Finds the offsets that transaction ids mean: first in what was delivered and is not done, then below it.
    pub(crate) async fn resolve_offsets(
        &self,
        partition: &PartitionId,
        cursor: &Cursor,
        items: &[&Ack],
    ) -> Result<Vec<Option<u64>>, Error> {
        let remembered = self.warm(partition).head().filter(|h| h.tail >= cursor.delivered);
        let head = match remembered {
            Some(head) => head,
            None => self.head(partition).await?.ok_or(Error::PartitionNotFound)?,
        };
        let mut open: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for item in items {
            open.insert(&item.transaction_id, None);
        }
        let mut missing = open.len();
        let end = cursor.delivered.min(head.tail);
        // A remembered cursor may be far behind: retention has passed what it knows of.
        let start = cursor.committed.max(head.floor).min(end);
        if let Some(newest) = cursor.lease.as_ref().filter(|l| l.newest && l.end > start) {
            // The one record that was delivered; one below it may have the same id.
            let to = newest.end.min(end);
            self.search(partition, &head, to.saturating_sub(1), to, &mut open, &mut missing)
                .await?;
        }
        self.search(partition, &head, start, end, &mut open, &mut missing).await?;
        let mut below = start;
        while missing > 0 && below > head.floor && start - below < LOOK_BACK {
            let from = below.saturating_sub(LOOK_BACK_STEP).max(head.floor);
            self.search(partition, &head, from, below, &mut open, &mut missing).await?;
            below = from;
        }
        Ok(items.iter().map(|i| open.get(i.transaction_id.as_str()).copied().flatten()).collect())
    }

    async fn search(
        &self,
        partition: &PartitionId,
        head: &Arc<Head>,
        from: u64,
        to: u64,
        open: &mut BTreeMap<&str, Option<u64>>,
        missing: &mut usize,
    ) -> Result<(), Error> {
        let mut at = from;
        while at < to && *missing > 0 {
            let records = self.read_under(partition, head, at, to, SEARCH_BYTES).await?;
            let Some(last) = records.last() else { return Ok(()) };
            at = last.offset + 1;
            for Record { offset, transaction_id, .. } in &records {
                if let Some(slot) = open.get_mut(transaction_id.as_str()) {
                    *missing -= usize::from(slot.is_none());
                    slot.get_or_insert(*offset);
                }
            }
        }
        Ok(())
    }

    /// Extends a lease on every partition where it is still held: to `seconds` from now, if that is later than what it
    /// has. A lapsed lease stays lapsed.
    pub async fn extend(&self, lease_id: &str, seconds: i64) -> Result<Extended, Error> {
        let Some(lease) = LeaseId::parse(lease_id) else { return Ok(Extended::default()) };
        let seconds = seconds.clamp(1, limits::LEASE_SECONDS_MAX);
        let mut extended = Extended::default();
        for cursor in &lease.cursors {
            let answer = self
                .change_cursor(cursor, "", None, |current| {
                    let now_us = self.env().now_us();
                    let until_us = current.held(&lease.token, now_us)?.until_us;
                    let until_us = until_us.max(now_us + seconds * 1_000_000);
                    let mut next = current.clone();
                    if let Some(lease) = &mut next.lease {
                        lease.until_us = until_us;
                    }
                    Ok((Some(next), until_us))
                })
                .await;
            match answer {
                Ok(until_us) => {
                    extended.renewed += 1;
                    let first = extended.expires_us.map_or(until_us, |e| e.min(until_us));
                    extended.expires_us = Some(first);
                }
                Err(Error::Lease | Error::GroupNotFound(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(extended)
    }

    /// The streams that a lease was granted on; `None` if it is none that was.
    pub async fn streams_of_lease(&self, lease_id: &str) -> Result<Option<Vec<String>>, Error> {
        let Some(lease) = LeaseId::parse(lease_id) else { return Ok(None) };
        let mut streams = Vec::with_capacity(lease.cursors.len());
        for cursor in &lease.cursors {
            let Some(cursor) = self.cursor(cursor).await? else { return Ok(None) };
            let Some(partition) = self.partition(&cursor.partition).await? else { return Ok(None) };
            streams.push(partition.stream);
        }
        Ok(Some(streams))
    }
}

/// How far below the cursor an id is looked for.
const LOOK_BACK: u64 = 20_000;
const LOOK_BACK_STEP: u64 = 2_000;
const SEARCH_BYTES: usize = 16 * 1024 * 1024;

/// Decides what items do to a cursor. `offsets` are where their ids were found.
///
/// # Errors
/// [`Error::Lease`] if a lease is named that is not the live one.
pub(crate) fn decide(
    cursor: &Cursor,
    lease: Option<&str>,
    items: &[&Ack],
    offsets: &[Option<u64>],
    options: &StreamOptions,
    now_us: i64,
) -> Result<Settled, Error> {
    if let Some(lease) = lease {
        let token = LeaseId::parse(lease).ok_or(Error::Lease)?.token;
        cursor.held(&token, now_us)?;
    }
    let mut acked = vec![Acked::default(); items.len()];
    // The strongest verdict at each offset that is still open.
    let mut open: BTreeMap<u64, (Verdict, usize)> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        match offsets[at] {
            Some(offset) if offset < cursor.committed => {
                if item.verdict == Verdict::Completed {
                    acked[at].noop = true;
                } else {
                    acked[at].error = Some(format!("already committed: offset {offset} is done"));
                }
            }
            Some(offset) if offset < cursor.delivered => {
                let slot = open.entry(offset).or_insert((item.verdict, at));
                if item.verdict > slot.0 {
                    *slot = (item.verdict, at);
                }
            }
            _ => {
                acked[at].error = Some(
                    "unresolvable transactionId: it is not in the batch that was delivered"
                        .to_owned(),
                );
            }
        }
    }
    if open.is_empty() {
        let released = cursor.live_lease(now_us).is_none();
        acked.iter_mut().for_each(|a| a.lease_released = released && a.error.is_none());
        return Ok(Settled { next: None, acked, dead: Vec::new() });
    }
    let mut next = cursor.clone();
    let mut dead = Vec::new();
    let limit = u32::try_from(options.retry_limit.max(0)).unwrap_or(u32::MAX);
    let mut held = false;
    let mut spent = false;
    // Where a group conflates, one record was delivered for all below it: they wait with it, and are done with it.
    let newest = cursor.lease.as_ref().filter(|l| l.newest).map(|l| l.end.saturating_sub(1));
    let mut conflated = None;
    for (&offset, &(verdict, at)) in &open {
        match verdict {
            Verdict::Completed => {
                if newest == Some(offset) {
                    conflated = Some((at, offset - cursor.committed));
                }
                next.advance(offset + 1, now_us);
                continue;
            }
            Verdict::Retry => {
                if newest != Some(offset) {
                    next.advance(offset, now_us);
                }
                held = true;
                break;
            }
            Verdict::Failed => {
                // One counter for each cursor: it is reset when a batch completes or poison is settled. Once a try
                // is over budget, the rest of a failed batch is settled with it.
                if !spent && cursor.failures < limit {
                    if newest != Some(offset) {
                        next.advance(offset, now_us);
                    }
                    next.failures = cursor.failures + 1;
                    held = true;
                    break;
                }
                spent = true;
                // With both switches off poison is dropped.
                if options.dead_letters() {
                    dead.push((offset, at));
                }
            }
            Verdict::DeadLetter => dead.push((offset, at)),
        }
        held = true;
        next.advance(offset + 1, now_us);
    }
    if held {
        // What is left comes again at once.
        next.lease = None;
    }
    if spent || !dead.is_empty() {
        next.failures = 0;
    }
    let released = next.lease.is_none();
    for (at, item) in acked.iter_mut().enumerate() {
        item.lease_released = released && item.error.is_none();
        let offset = offsets[at];
        item.conflated = conflated.filter(|(of, _)| *of == at).map(|(_, n)| n);
        item.dead_lettered = item.error.is_none() && dead.iter().any(|(o, _)| Some(*o) == offset);
    }
    Ok(Settled { next: Some(next), acked, dead })
}
