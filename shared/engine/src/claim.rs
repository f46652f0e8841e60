//! Claims: a stream processor takes partitions that have nothing to read, to close their windows under a lease.
//!
//! A claim is a lease over an empty batch. It is granted in one transaction with the condition that the tail has not
//! moved, so its holder knows that the group has read all there is; while it lasts, a pop of the group gets nothing
//! from the partition. The cycle that acknowledges the empty batch ends it, and is refused whole if the lease is gone:
//! two processors never close one window, and none closes a window that another has just extended.
//!
//! Where claims are wanted is found without a scan of the source: the state heads of a query are listed by partition,
//! with when each was written. They lie in shards; a page is merged from all of them.

use std::{collections::VecDeque, sync::Arc};

use futures_util::{StreamExt, stream};
use tidewheel_store::{Commit, CommitError, Condition, Item, Query as StoreQuery, Write};

use crate::{
    ClaimStatus, ClaimedPartition, Claims, CursorId, Engine, Error, LeaseId, PartitionId,
    PartitionInfo, StatePartition, StatePartitions, Uuid,
    cursor::{Cursor, Lease, write_token},
    head::Head,
    keys, limits,
    warm::Counts,
};

/// Claims under way at a time.
const PARALLEL_CLAIMS: usize = 16;

/// State heads that one page of the listing looks at: the rest waits for the next page, also if the page is short.
const LOOKED_AT: usize = 10_000;

/// Items that a shard reads at a time, at least.
const SHARD_PAGE: usize = 32;

/// One shard of a query's state heads, by partition id.
struct Shard {
    next: Option<StoreQuery>,
    items: VecDeque<(String, Item)>,
}

impl Shard {
    async fn fill(&mut self, engine: &Engine) -> Result<(), Error> {
        while let (true, Some(query)) = (self.items.is_empty(), self.next.take()) {
            let page = engine.items(&query).await?;
            self.next = query.following(&page);
            self.items.extend(page.items.into_iter().map(|(key, item)| (key.sk, item)));
        }
        Ok(())
    }
}

impl Engine {
    /// Partitions on which a query has state, in the order of their ids, after one, at most `limit`; with
    /// `untouched_us` only those whose state was not written for that long.
    ///
    /// A page looks at a bounded number of heads, so that it may be short although there is a next one. Partitions
    /// that are gone are left out.
    pub async fn state_partitions(
        &self,
        query: &Uuid,
        untouched_us: Option<i64>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<StatePartitions, Error> {
        let limit = limit.clamp(1, limits::STATE_PARTITIONS);
        let before_us = untouched_us.map(|us| self.env().now_us().saturating_sub(us.max(0)));
        let mut shards: Vec<Shard> = (0..keys::STATE_SHARDS)
            .map(|shard| Shard {
                next: Some(StoreQuery {
                    from: after.map(|a| format!("{a}\0")),
                    limit: (limit / usize::from(keys::STATE_SHARDS) * 2).max(SHARD_PAGE),
                    ..StoreQuery::all(keys::states_pk(query, shard))
                }),
                items: VecDeque::new(),
            })
            .collect();
        futures_util::future::try_join_all(shards.iter_mut().map(|s| s.fill(self))).await?;
        let mut found: Vec<(PartitionId, i64)> = Vec::new();
        let mut last = None;
        let mut looked_at = 0;
        let more = loop {
            let first = |s: &Shard| s.items.front().map(|(sk, _)| sk.clone());
            let lowest =
                shards.iter().enumerate().filter_map(|(at, s)| Some((first(s)?, at))).min();
            let Some((_, at)) = lowest else { break false };
            if found.len() == limit || looked_at == LOOKED_AT {
                break true;
            }
            let Some((sk, item)) = shards[at].items.pop_front() else { break false };
            shards[at].fill(self).await?;
            looked_at += 1;
            let updated_us = item.int("updated_us").unwrap_or_default();
            let has_rows = item.int("rows").is_none_or(|rows| rows > 0);
            if let Some(id) = PartitionId::parse(&sk)
                && has_rows
                && before_us.is_none_or(|before| updated_us <= before)
            {
                found.push((id, updated_us));
            }
            last = Some(sk);
        };
        let ids: Vec<PartitionId> = found.iter().map(|(id, _)| *id).collect();
        let infos = self.partition_infos(&ids).await?;
        let partitions = found
            .into_iter()
            .zip(infos)
            .filter_map(|((_, updated_us), info)| Some(StatePartition { info: info?, updated_us }))
            .collect();
        Ok(StatePartitions { partitions, next: last.filter(|_| more) })
    }

    /// What partitions are called; `None` for one that does not exist. Costs a read for each that this process does
    /// not remember.
    pub(crate) async fn partition_infos(
        &self,
        ids: &[PartitionId],
    ) -> Result<Vec<Option<PartitionInfo>>, Error> {
        let mut heads: Vec<Option<Arc<Head>>> = ids.iter().map(|id| self.warm(id).head()).collect();
        let cold: Vec<usize> = (0..ids.len()).filter(|&at| heads[at].is_none()).collect();
        for chunk in cold.chunks(tidewheel_store::limits::BATCH_GET_KEYS) {
            let wanted: Vec<_> = chunk.iter().map(|&at| keys::head(&ids[at])).collect();
            for (&at, item) in chunk.iter().zip(self.batch_get(&wanted).await?) {
                if let Some(item) = item {
                    let head = Arc::new(Head::decode(&ids[at], &item)?);
                    self.warm(&ids[at]).learn(Arc::clone(&head));
                    heads[at] = Some(head);
                }
            }
        }
        let info = |(id, head): (&PartitionId, Option<Arc<Head>>)| {
            head.map(|h| PartitionInfo { id: *id, stream: h.stream.clone(), name: h.name.clone() })
        };
        Ok(ids.iter().zip(heads).map(info).collect())
    }

    /// Claims idle partitions for a query's group, under one lease with an empty batch. Each partition answers for
    /// itself; a text that is no id of ours names a partition that is missing.
    ///
    /// # Errors
    /// [`Error::QueryNotFound`]; [`Error::Limit`] for more than [`limits::CLAIM_PARTITIONS`]; the transient ones.
    pub async fn claim_idle(
        &self,
        query: &Uuid,
        partitions: &[String],
        group: Option<&str>,
        lease_seconds: Option<i64>,
    ) -> Result<Claims, Error> {
        if partitions.len() > limits::CLAIM_PARTITIONS {
            return Err(Error::Limit {
                what: "partitions of a claim",
                got: partitions.len(),
                limit: limits::CLAIM_PARTITIONS,
            });
        }
        let query = self.query(query).await?.ok_or(Error::QueryNotFound)?;
        let group = group.map_or_else(|| format!("streams.{}", query.name), str::to_owned);
        let lease_seconds = lease_seconds
            .filter(|s| *s > 0)
            .unwrap_or(limits::CLAIM_SECONDS)
            .min(limits::CLAIM_SECONDS_MAX);
        // Taken before the look at each tail: what is served later is not older than this, but for what was on its way.
        let now_us = self.env().now_us();
        let until_us = now_us + lease_seconds * 1_000_000;
        let token = self.env().token();
        let mut ids: Vec<Option<PartitionId>> = Vec::with_capacity(partitions.len());
        for text in partitions {
            // Named twice, a partition is claimed once; the second finds it held.
            ids.push(PartitionId::parse(text));
        }
        // Collected first: a lazy map over borrowed items makes a future that is not `Send` for its callers.
        let claims: Vec<_> =
            ids.iter().map(|id| self.claim_one(*id, &group, &token, until_us)).collect();
        let answers: Vec<_> = stream::iter(claims).buffered(PARALLEL_CLAIMS).collect().await;
        let mut claimed = Vec::with_capacity(answers.len());
        let mut cursors = Vec::new();
        for (text, answer) in partitions.iter().zip(answers) {
            // One that cannot be told now is like one that is held: the caller comes back to it.
            let (info, status) = match answer {
                Ok(answer) => answer,
                Err(e) if e.is_transient() => (None, ClaimStatus::Busy),
                Err(e) => return Err(e),
            };
            if let ClaimStatus::Claimed(cursor) = status {
                cursors.push(cursor);
            }
            claimed.push(ClaimedPartition {
                id: text.clone(),
                name: info.map(|i| i.name).unwrap_or_default(),
                status,
            });
        }
        let lease_id =
            if cursors.is_empty() { String::new() } else { LeaseId { token, cursors }.to_string() };
        Ok(Claims { lease_id, lease_seconds, now_us, until_us, partitions: claimed })
    }

    async fn claim_one(
        &self,
        id: Option<PartitionId>,
        group: &str,
        lease: &str,
        until_us: i64,
    ) -> Result<(Option<PartitionInfo>, ClaimStatus), Error> {
        let Some(id) = id else { return Ok((None, ClaimStatus::Missing)) };
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(head) = self.head(&id).await? else { return Ok((None, ClaimStatus::Missing)) };
            let info = PartitionInfo { id, stream: head.stream.clone(), name: head.name.clone() };
            let Some(stream) = self.stream_record(&head.stream).await? else {
                return Ok((None, ClaimStatus::Missing));
            };
            // A group that has never popped here has all of it before it.
            let Some(record) = self.group_record(&stream, group).await? else {
                return Ok((Some(info), ClaimStatus::Backlog));
            };
            let cursor_id = CursorId::of(&record.id, &id);
            let Some(cursor) = self.reread_cursor(&cursor_id).await? else {
                return Ok((Some(info), ClaimStatus::Backlog));
            };
            if cursor.live_lease(self.env().now_us()).is_some() {
                return Ok((Some(info), ClaimStatus::Busy));
            }
            if cursor.committed.max(head.floor) < head.tail {
                return Ok((Some(info), ClaimStatus::Backlog));
            }
            let token = write_token(self);
            let mut next = granted_nothing(&cursor, head.tail, lease, until_us);
            next.stamp(&token);
            let unmoved = Write::check(keys::head(&id))
                .when(Condition::Equals("tail".into(), (head.tail as i64).into()));
            let happened = match self.commit(Commit::all(vec![next.write(), unmoved])).await {
                Ok(_) => {
                    self.inner.cursors.insert(cursor_id, Arc::new(next));
                    true
                }
                Err(CommitError::Conflict(_)) => {
                    let current = self.reread_cursor(&cursor_id).await?;
                    current.is_some_and(|c| c.has(&token, cursor.version) == Some(true))
                }
                Err(CommitError::Unknown(_)) => {
                    // Not claimed, or claimed for nobody: then the lease runs out by itself.
                    let current = self.reread_cursor(&cursor_id).await?;
                    let happened =
                        current.is_some_and(|c| c.has(&token, cursor.version) == Some(true));
                    Counts::add(&self.inner.counts.outcomes_resolved, usize::from(happened));
                    happened
                }
                Err(e) => return Err(e.into()),
            };
            if happened {
                return Ok((Some(info), ClaimStatus::Claimed(cursor_id)));
            }
        }
        Err(Error::Busy)
    }
}

/// The cursor with a lease over an empty batch at the tail. The reading position stays; it only steps over what
/// retention has taken.
fn granted_nothing(cursor: &Cursor, tail: u64, lease: &str, until_us: i64) -> Cursor {
    let mut next = cursor.clone();
    next.committed = cursor.committed.max(tail);
    next.delivered = next.delivered.max(next.committed);
    next.epoch += 1;
    next.lease =
        Some(Lease { token: lease.to_owned(), end: next.committed, until_us, newest: false });
    next
}
