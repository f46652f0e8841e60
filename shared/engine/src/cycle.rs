//! The cycle: state writes, sink pushes and the source acknowledgement, all or nothing.
//!
//! A cycle is one transaction over the cursor head (lease and version checked), the state head and one head per sink
//! partition. Its number of keys and messages is bounded by bytes only; its number of sink partitions by the
//! transaction.
//!
//! **Stale computations.** What a worker read of the state must still hold when it commits. A cycle with a lease is
//! fenced by it, but a cycle without one (the idle flush, which closes ripe windows of a silent partition) is not. So:
//! - a cycle without a lease that deletes a row which is not there is refused: another has closed that window;
//! - a cycle without a lease leaves tombstones for what it deletes, and a cycle under a lease that was granted before
//!   that is refused if it touches one of those rows: it has read a row that has been emitted since. Its batch is
//!   given back at once, since the same batch computed anew will do.

use std::sync::Arc;

use tidewheel_store::{CommitError, Condition, Write};

use crate::{
    CursorId, Cycle, Cycled, Engine, Error, LeaseId, PartitionId, Pushed, Query, SinkPushed,
    StateOp,
    bundle::{self, Assembly, Bundle, Locks, failed_at},
    cursor::{Cursor, write_token},
    encryption::Sealer,
    keys, limits, push,
    state::{Fence, StateCommit, StateView},
    warm::Counts,
};

/// Where a cycle's source is.
struct Source {
    query: Query,
    stream: String,
    partition: PartitionId,
    cursor: Option<CursorId>,
    group: String,
    /// The key that the state is sealed with; `None` if the source is not encrypted.
    sealer: Option<Arc<Sealer>>,
}

/// The cursor's part of a cycle.
struct CursorPart {
    cursor: Arc<Cursor>,
    next: Option<Cursor>,
    acked: Option<(u64, bool)>,
}

impl Engine {
    /// Commits a cycle. A refusal changes nothing.
    ///
    /// # Errors
    /// [`Error::QueryNotFound`], [`Error::PartitionNotFound`], [`Error::Lease`], [`Error::StaleState`], limits; and
    /// the transient ones, after which nothing was written ([`Error::Busy`], [`Error::Unavailable`]) or the outcome is
    /// unknown ([`Error::Unknown`]).
    pub async fn cycle(&self, cycle: Cycle) -> Result<Cycled, Error> {
        let outcome = self.run_cycle(&cycle).await;
        let counts = &self.inner.counts;
        match &outcome {
            Ok(_) => Counts::add(&counts.cycles, 1),
            Err(_) => Counts::add(&counts.cycles_refused, 1),
        }
        outcome
    }

    async fn run_cycle(&self, cycle: &Cycle) -> Result<Cycled, Error> {
        check(cycle)?;
        let source = self.cycle_source(cycle).await?;
        self.check_lease(cycle, &source).await?;
        let items = first_of_each_id(cycle);
        let mut bundle = Bundle::new(self, &items).await?;
        if bundle.partitions() > limits::CYCLE_SINK_PARTITIONS {
            return Err(Error::Limit {
                what: "sink partitions of a cycle",
                got: bundle.partitions(),
                limit: limits::CYCLE_SINK_PARTITIONS,
            });
        }
        let view = self.state_view(&cycle.query_id, &source.partition);
        let mut view = view.lock().await;
        if view.seq == 0 && !cycle.state_ops.is_empty() {
            self.follow_state(&mut view, &cycle.query_id, &source.partition).await?;
        }
        let warms = bundle.warms();
        let mut locks = bundle::lock(&warms).await;
        let part = self.commit_cycle(cycle, &source, &mut view, &mut bundle, &mut locks).await?;
        drop(locks);
        bundle.ring().await;
        let (outcomes, groups) = bundle.outcomes(items.len());
        let pushed = groups.iter().map(|group| sink_pushed(group, &outcomes)).collect();
        let queued = outcomes.iter().filter(|o| matches!(o, Pushed::Queued { .. })).count();
        Counts::add(&self.inner.counts.records_pushed_by_cycles, queued);
        if part.is_some_and(|(_, released)| released) {
            self.wake_poppers(&source.stream);
        }
        Ok(Cycled { stream: source.stream, state_ops: cycle.state_ops.len(), pushed, acked: part })
    }

    /// Refuses a cycle whose lease is gone before it brings a sink stream into existence. The commit checks again.
    async fn check_lease(&self, cycle: &Cycle, source: &Source) -> Result<(), Error> {
        match (self.cursor_part(cycle, source, "").await, &source.cursor) {
            // What this process remembers may be old; only the truth may refuse.
            (Err(Error::Lease), Some(id)) => {
                self.reread_cursor(id).await?;
                self.cursor_part(cycle, source, "").await.map(|_| ())
            }
            (part, _) => part.map(|_| ()),
        }
    }

    async fn commit_cycle(
        &self,
        cycle: &Cycle,
        source: &Source,
        view: &mut StateView,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
    ) -> Result<Option<(u64, bool)>, Error> {
        let mut doubt = None;
        let answer =
            self.commit_cycle_until_decided(cycle, source, view, bundle, locks, &mut doubt).await;
        Error::in_doubt(answer, doubt)
    }

    async fn commit_cycle_until_decided(
        &self,
        cycle: &Cycle,
        source: &Source,
        view: &mut StateView,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
        doubt: &mut Option<String>,
    ) -> Result<Option<(u64, bool)>, Error> {
        let token = write_token(self);
        let mut refreshed = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let part = match self.cursor_part(cycle, source, &token).await {
                Ok(part) => part,
                Err(Error::Lease) if !refreshed => {
                    // What this process remembers may be old; only the truth may refuse.
                    refreshed = true;
                    if let Some(id) = &source.cursor {
                        self.reread_cursor(id).await?;
                    }
                    continue;
                }
                Err(e) => return Err(e),
            };
            let state = match self.state_part(cycle, source, view, part.as_ref(), &token) {
                Ok(state) => state,
                Err(e @ Error::StaleState { .. }) => {
                    let seq = view.seq;
                    self.follow_state(view, &cycle.query_id, &source.partition).await?;
                    if view.seq != seq {
                        continue;
                    }
                    if cycle.ack.is_some() {
                        self.give_back(cycle, source).await?;
                    }
                    return Err(e);
                }
                Err(e) => return Err(e),
            };
            let mut assembly = Assembly::default();
            let plans = bundle.plan(locks, &mut assembly).await?;
            let cursor_place = part.as_ref().map(|part| {
                let write = match &part.next {
                    Some(next) => next.write(),
                    None => Write::check(keys::cursor(&part.cursor.id))
                        .when(Condition::Equals("version".into(), part.cursor.version.into())),
                };
                assembly.add(&[write])
            });
            let state_place = state.as_ref().map(|state| {
                assembly.add_blob(state.blob.clone());
                let guard = match view.seq {
                    0 => Condition::Absent,
                    seq => Condition::Equals("seq".into(), seq.into()),
                };
                let key = keys::state(&cycle.query_id, &source.partition);
                assembly.add(&[Write::put(key, state.item.clone()).when(guard)])
            });
            assembly.check()?;
            let acked = part.as_ref().and_then(|p| p.acked);
            if assembly.commit.writes.iter().all(|w| w.action == tidewheel_store::Action::Check) {
                return Ok(acked);
            }
            let version = part.as_ref().map_or(0, |p| p.cursor.version);
            match self.commit(assembly.commit).await {
                Ok(_) => {
                    bundle.finish(locks, &plans)?;
                    self.cycle_committed(part, state, view).await;
                    return Ok(acked);
                }
                Err(CommitError::Conflict(failed)) => {
                    refreshed = true;
                    bundle.learn(&plans, &failed).await?;
                    if let Some(places) = &state_place
                        && !failed_at(&failed, places).is_empty()
                    {
                        self.follow_state(view, &cycle.query_id, &source.partition).await?;
                    }
                    if let (Some(places), Some(part)) = (&cursor_place, &part)
                        && let Some(f) = failed_at(&failed, places).first()
                    {
                        self.learn_cursor(&part.cursor.id, f.current.as_ref())?;
                    }
                    // What refused us may be our own earlier attempt.
                    if self
                        .cycle_has_happened(&token, version, source, view)
                        .await?
                        .unwrap_or(false)
                    {
                        bundle.resolve(locks, &plans).await?;
                        return Ok(acked);
                    }
                }
                Err(CommitError::Unknown(e)) => {
                    *doubt = Some(e.clone());
                    refreshed = true;
                    let landed = match (&state, part.as_ref().is_some_and(|p| p.next.is_some())) {
                        // Only sink pushes: the segments tell.
                        (None, false) => Some(bundle.resolve(locks, &plans).await?),
                        (Some(_), _) => {
                            self.follow_state(view, &cycle.query_id, &source.partition).await?;
                            self.cycle_has_happened(&token, version, source, view).await?
                        }
                        (None, true) => {
                            self.cycle_has_happened(&token, version, source, view).await?
                        }
                    };
                    match landed {
                        Some(true) => {
                            Counts::add(&self.inner.counts.outcomes_resolved, 1);
                            bundle.resolve(locks, &plans).await?;
                            return Ok(acked);
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

    async fn cycle_committed(
        &self,
        part: Option<CursorPart>,
        state: Option<StateCommit>,
        view: &mut StateView,
    ) {
        if let Some(CursorPart { next: Some(next), .. }) = part {
            self.inner.cursors.insert(next.id, Arc::new(next));
        }
        if let Some(state) = state {
            let superseded = state.superseded.clone();
            view.committed(state);
            for names in superseded.chunks(tidewheel_store::limits::DELETE_BLOBS) {
                // What stays behind is unreachable; it costs room, not truth.
                if let Err(error) = self.inner.store.delete_blobs(names).await {
                    tracing::warn!(%error, "superseded state blobs were not deleted");
                }
            }
        }
    }

    /// Whether a commit of this token is in the state head or in the cursor. `None` if that can no longer be told.
    async fn cycle_has_happened(
        &self,
        token: &str,
        version: i64,
        source: &Source,
        view: &StateView,
    ) -> Result<Option<bool>, Error> {
        if view.recent.iter().any(|t| t == token) {
            return Ok(Some(true));
        }
        match &source.cursor {
            Some(id) if version > 0 => {
                let cursor = self.reread_cursor(id).await?;
                Ok(cursor.map_or(Some(false), |c| c.has(token, version)))
            }
            _ => Ok(Some(false)),
        }
    }

    async fn cycle_source(&self, cycle: &Cycle) -> Result<Source, Error> {
        let query = self.query(&cycle.query_id).await?.ok_or(Error::QueryNotFound)?;
        let info = self.partition(&cycle.partition_id).await?.ok_or(Error::PartitionNotFound)?;
        let group = match &cycle.group {
            Some(group) => group.clone(),
            None => format!("streams.{}", query.name),
        };
        let (mut cursor, mut sealer) = (None, None);
        if let Some(stream) = self.stream_record(&info.stream).await? {
            if let Some(record) = self.group_record(&stream, &group).await? {
                cursor = Some(CursorId::of(&record.id, &cycle.partition_id));
            }
            // What is computed from payloads says as much as they do.
            if stream.info.options.encryption_enabled && !cycle.state_ops.is_empty() {
                sealer = Some(self.sealer().await?);
            }
        }
        let partition = cycle.partition_id;
        Ok(Source { query, stream: info.stream, partition, cursor, group, sealer })
    }

    /// What a cycle does to the cursor: an acknowledgement moves or releases it; a cycle without one that deletes state
    /// must know the last lease that was granted.
    async fn cursor_part(
        &self,
        cycle: &Cycle,
        source: &Source,
        token: &str,
    ) -> Result<Option<CursorPart>, Error> {
        let cursor = match &source.cursor {
            Some(id) => self.cursor(id).await?,
            None => None,
        };
        let Some(ack) = &cycle.ack else {
            let deletes = cycle.state_ops.iter().any(|op| matches!(op, StateOp::Delete { .. }));
            let part = |cursor| CursorPart { cursor, next: None, acked: None };
            return Ok(cursor.filter(|_| deletes).map(part));
        };
        let lease = LeaseId::parse(&ack.lease_id).ok_or(Error::Lease)?;
        let cursor = cursor.ok_or(Error::Lease)?;
        let now_us = self.env().now_us();
        let end = cursor.held(&lease.token, now_us)?.end;
        let mut next = (*cursor).clone();
        let acked = if !ack.completed {
            next.lease = None;
            (0, true)
        } else if cycle.release_lease {
            next.advance(end, now_us);
            next.lease = None;
            (ack.count, true)
        } else {
            // Offsets are dense, and what retention has taken counts for nothing.
            let floor = self.warm(&source.partition).head().map_or(0, |h| h.floor);
            let from = next.committed.max(floor.min(end));
            let to = from.saturating_add(ack.count).min(end);
            // The caller asked to keep the lease, also at its end: a claim's batch is empty from the start.
            let lease = next.lease.clone();
            next.advance(from, now_us);
            next.advance(to, now_us);
            next.lease = lease;
            (to - from, false)
        };
        let unchanged = next == *cursor;
        next.stamp(token);
        let next = if unchanged && cycle.state_ops.is_empty() && cycle.push_items.is_empty() {
            None
        } else {
            Some(next)
        };
        Ok(Some(CursorPart { cursor, next, acked: Some(acked) }))
    }

    fn state_part(
        &self,
        cycle: &Cycle,
        source: &Source,
        view: &StateView,
        part: Option<&CursorPart>,
        token: &str,
    ) -> Result<Option<StateCommit>, Error> {
        if cycle.state_ops.is_empty() {
            return Ok(None);
        }
        let last_epoch = part.map_or(0, |p| p.cursor.epoch);
        let lease_epoch = cycle.ack.as_ref().map(|_| last_epoch);
        let fence = Fence { lease_epoch, last_epoch, token };
        let (query, partition) = (&source.query.id, &source.partition);
        let sealer = source.sealer.as_deref();
        view.plan(self, (query, partition), &cycle.state_ops, fence, sealer).map(Some)
    }

    /// Gives a batch back whose computation was stale: computed anew it will do.
    async fn give_back(&self, cycle: &Cycle, source: &Source) -> Result<(), Error> {
        let (Some(ack), Some(id)) = (&cycle.ack, &source.cursor) else { return Ok(()) };
        let Some(lease) = LeaseId::parse(&ack.lease_id) else { return Ok(()) };
        let released = self
            .change_cursor(id, &source.group, None, |cursor| {
                cursor.held(&lease.token, self.env().now_us())?;
                let mut next = cursor.clone();
                next.lease = None;
                Ok((Some(next), ()))
            })
            .await;
        match released {
            Ok(()) | Err(Error::Lease | Error::GroupNotFound(_)) => {
                self.wake_poppers(&source.stream);
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

fn check(cycle: &Cycle) -> Result<(), Error> {
    for op in &cycle.state_ops {
        let (StateOp::Upsert { key, .. } | StateOp::Delete { key }) = op;
        if key.len() > limits::STATE_KEY_BYTES {
            return Err(Error::Limit {
                what: "bytes in a state key",
                got: key.len(),
                limit: limits::STATE_KEY_BYTES,
            });
        }
    }
    Ok(())
}

/// The items of a cycle without repeats of a transaction id in one partition: a repeat is skipped, the rest commits.
fn first_of_each_id(cycle: &Cycle) -> Vec<crate::PushItem> {
    let mut seen = std::collections::HashSet::new();
    let mut first = |item: &&crate::PushItem| match &item.transaction_id {
        None => true,
        Some(id) => {
            seen.insert((item.stream.clone(), push::partition_of(item).to_owned(), id.clone()))
        }
    };
    cycle.push_items.iter().filter(|i| first(i)).cloned().collect()
}

fn sink_pushed(group: &push::Group, outcomes: &[Pushed]) -> SinkPushed {
    let base_offset = group.places.iter().find_map(|&p| match outcomes[p] {
        Pushed::Queued { offset, .. } => Some(offset),
        _ => None,
    });
    SinkPushed { stream: group.stream.clone(), partition: group.partition.clone(), base_offset }
}
