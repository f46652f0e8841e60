//! Popping: finding partitions with something to deliver, and leasing a batch of each.
//!
//! A claim covers the contiguous visible offsets from the group's cursor, in one conditional write per partition. A
//! batch is read before it is claimed, so that what was claimed can always be delivered; a claim that loses is
//! repeated on what the refusal showed.

use std::{sync::Arc, time::Duration};

use tidewheel_store::{Commit, CommitError};

use crate::{
    CursorId, Engine, Error, LeaseId, Message, PartitionId, PartitionInfo, Pop, PopTarget, Popped,
    QUEUE_MODE_GROUP, SubscriptionMode, TABLE_GROUP,
    cursor::{Cursor, Lease, write_token},
    group::GroupRecord,
    head::Head,
    keys, limits,
    stream::StreamRecord,
    warm::Counts,
};

/// Ready entries that one look takes beyond what is wanted: some are leased by others.
const SPARE_ENTRIES: usize = 16;

/// Ready entries that one pop looks at before it gives up.
const ENTRIES_MAX: usize = 1000;

/// A buffered partition is released when this many records wait, even before its window has passed.
const WINDOW_BUFFER_RECORDS: u64 = 100;

/// What a pop still wants.
struct Want {
    token: String,
    records: usize,
    bytes: usize,
    partitions: usize,
    lease_seconds: Option<i64>,
    auto_ack: bool,
    /// A batch that is not full may wait for more until this time, µs.
    linger_until_us: i64,
}

/// What a look at one partition gave.
enum Claim {
    Messages(CursorId, Vec<Message>),
    /// Nothing there: drained up to this tail.
    Drained(u64),
    /// Nothing now; worth another look at this time, µs.
    Later(i64),
    /// No such partition, or no such group any more.
    Gone,
}

/// What was found so far.
#[derive(Default)]
struct Found {
    /// What the cursors hold; empty when the batch was committed at delivery.
    token: String,
    cursors: Vec<CursorId>,
    messages: Vec<Message>,
    /// When another look may find something, µs.
    due_us: Option<i64>,
    conflation: Conflation,
}

/// What groups said about conflation, and what was asked for.
#[derive(Default)]
struct Conflation {
    asked: Option<bool>,
    groups: usize,
    applied: bool,
    conflict: bool,
}

impl Conflation {
    fn met(&mut self, group: &GroupRecord) {
        self.groups += 1;
        self.applied |= group.conflation;
        self.conflict |= self.asked.is_some_and(|asked| asked != group.conflation);
    }

    /// Where no group was met, the wish holds.
    fn applies(&self) -> bool {
        self.applied || self.groups == 0 && self.asked == Some(true)
    }
}

impl Found {
    fn nothing(pop: &Pop) -> Self {
        let conflation = Conflation { asked: pop.conflation, ..Conflation::default() };
        Self { conflation, ..Self::default() }
    }

    fn due(&mut self, at_us: i64) {
        self.due_us = Some(self.due_us.map_or(at_us, |d| d.min(at_us)));
    }

    fn into_popped(self) -> Popped {
        let partitions = self.cursors.len();
        let lease_id = if self.token.is_empty() {
            String::new()
        } else {
            LeaseId { token: self.token, cursors: self.cursors }.to_string()
        };
        Popped {
            lease_id,
            messages: self.messages,
            partitions,
            conflation: self.conflation.applies(),
            conflation_conflict: self.conflation.conflict,
        }
    }
}

impl Engine {
    /// Pops messages, leased to the caller.
    ///
    /// At most one live lease exists for a (partition, group); groups are independent of each other. A stream that a
    /// pop names comes into existence, and the group joins it. With `wait` the call lasts until there is a message or
    /// the time is over.
    ///
    /// # Errors
    /// Those of names and limits; [`Error::Busy`] and [`Error::Unavailable`] if the store cannot be read.
    pub async fn pop(&self, pop: Pop) -> Result<Popped, Error> {
        if pop.group.as_deref() == Some(TABLE_GROUP) {
            return Err(Error::Invalid(format!("group `{TABLE_GROUP}` is the tables' own")));
        }
        let counts = &self.inner.counts;
        Counts::add(&counts.pops, 1);
        let started_us = self.env().now_us();
        let wait = pop.wait.unwrap_or_default().min(limits::POP_WAIT_MAX);
        let deadline_us = started_us + wait.as_micros() as i64;
        let waker = self.waker(match &pop.target {
            PopTarget::Partition { stream, .. } | PopTarget::Stream { stream } => stream,
            PopTarget::Labels { .. } => "",
        });
        let mut looks = 0;
        loop {
            // Armed before the look: a push between look and wait is not missed.
            let woken = waker.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            // While pops are paused a pop finds nothing, however much there is.
            let paused = self.known_switches().await?.pop_paused;
            let found =
                if paused { Found::nothing(&pop) } else { self.look(&pop, deadline_us).await? };
            if !found.messages.is_empty() {
                Counts::add(&counts.records_popped, found.messages.len());
                return Ok(found.into_popped());
            }
            let now_us = self.env().now_us();
            if now_us >= deadline_us {
                Counts::add(&counts.pops_empty, 1);
                return Ok(Found { conflation: found.conflation, ..Found::default() }.into_popped());
            }
            let mut nap_us =
                (deadline_us - now_us).min(self.settings().pause(looks).as_micros() as i64);
            looks += 1;
            if let Some(due_us) = found.due_us {
                nap_us = nap_us.min((due_us - now_us).max(1_000));
            }
            let nap = Duration::from_micros(nap_us.max(1) as u64);
            let _ = tokio::time::timeout(nap, woken).await;
        }
    }

    /// One look, without waiting.
    async fn look(&self, pop: &Pop, deadline_us: i64) -> Result<Found, Error> {
        let mut want = Want {
            token: format!("{:016x}{:016x}", self.env().random(), self.env().random()),
            records: pop
                .batch
                .clamp(1, limits::POP_BATCH_MAX.min(self.settings().pop_batch_max).max(1)),
            bytes: limits::POP_BYTES.min(self.settings().pop_bytes),
            partitions: pop.partitions.clamp(1, limits::POP_PARTITIONS_MAX),
            lease_seconds: pop.lease_seconds,
            auto_ack: pop.auto_ack,
            linger_until_us: if pop.wait.is_some() { deadline_us } else { i64::MIN },
        };
        let group = pop.group.as_deref().unwrap_or(QUEUE_MODE_GROUP);
        let token = if pop.auto_ack { String::new() } else { want.token.clone() };
        let mut found = Found { token, ..Found::nothing(pop) };
        let conflates = pop.conflation == Some(true);
        match &pop.target {
            PopTarget::Partition { stream, partition } => {
                let mut stream = self.ensure_stream(stream).await?;
                let group = self.ensure_group(&mut stream, group, pop.mode, conflates).await?;
                found.conflation.met(&group);
                let id = PartitionId::of(&stream.info.id, partition);
                let claim = self.claim(&stream, &group, &id, &want, None, None).await?;
                self.take(claim, &mut want, &mut found);
            }
            PopTarget::Stream { stream } => {
                let mut stream = self.ensure_stream(stream).await?;
                let group = self.ensure_group(&mut stream, group, pop.mode, conflates).await?;
                found.conflation.met(&group);
                self.look_over(&stream, &group, &mut want, &mut found).await?;
            }
            PopTarget::Labels { namespace, task } => {
                self.look_by_labels(
                    namespace.as_deref(),
                    task.as_deref(),
                    group,
                    pop.mode,
                    &mut want,
                    &mut found,
                )
                .await?;
            }
        }
        Ok(found)
    }

    async fn look_by_labels(
        &self,
        namespace: Option<&str>,
        task: Option<&str>,
        group: &str,
        mode: SubscriptionMode,
        want: &mut Want,
        found: &mut Found,
    ) -> Result<(), Error> {
        let fits = |wanted: Option<&str>, label: &str| wanted.is_none_or(|w| w == label);
        let mut after: Option<String> = None;
        loop {
            let names = self.streams(after.as_deref(), 1000).await?;
            for name in &names {
                let Some(mut stream) = self.stream_record(name).await? else { continue };
                if !fits(namespace, &stream.info.namespace) || !fits(task, &stream.info.task) {
                    continue;
                }
                let conflates = found.conflation.asked == Some(true);
                let group = self.ensure_group(&mut stream, group, mode, conflates).await?;
                found.conflation.met(&group);
                self.look_over(&stream, &group, want, found).await?;
                if want.records == 0 || want.partitions == 0 {
                    return Ok(());
                }
            }
            after = names.last().cloned();
            if names.len() < 1000 {
                return Ok(());
            }
        }
    }

    /// Looks at what is ready on a stream.
    async fn look_over(
        &self,
        stream: &Arc<StreamRecord>,
        group: &Arc<GroupRecord>,
        want: &mut Want,
        found: &mut Found,
    ) -> Result<(), Error> {
        let mut limit = want.partitions + SPARE_ENTRIES;
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let entries = self.ready_entries(&group.id, limit).await?;
            let looked_at_all = entries.len() < limit;
            let fresh: Vec<_> = entries.into_iter().filter(|(id, _)| seen.insert(*id)).collect();
            for chunk in fresh.chunks(tidewheel_store::limits::BATCH_GET_KEYS / 2) {
                self.look_at(stream, group, chunk, want, found).await?;
                if want.records == 0 || want.partitions == 0 {
                    return Ok(());
                }
            }
            if looked_at_all || limit >= ENTRIES_MAX {
                return Ok(());
            }
            // All that were looked at are held by others.
            limit = (limit * 8).min(ENTRIES_MAX);
        }
    }

    async fn look_at(
        &self,
        stream: &Arc<StreamRecord>,
        group: &Arc<GroupRecord>,
        entries: &[(PartitionId, i64)],
        want: &mut Want,
        found: &mut Found,
    ) -> Result<(), Error> {
        let cursor_ids: Vec<CursorId> =
            entries.iter().map(|(id, _)| CursorId::of(&group.id, id)).collect();
        let heads = entries.iter().map(|(id, _)| keys::head(id));
        let wanted: Vec<_> = heads.chain(cursor_ids.iter().map(keys::cursor)).collect();
        let items = self.batch_get(&wanted).await?;
        let (heads, cursors) = items.split_at(entries.len());
        for (at, (id, ready_version)) in entries.iter().enumerate() {
            if want.records == 0 || want.partitions == 0 {
                return Ok(());
            }
            let head =
                heads[at].as_ref().map(|item| Head::decode(id, item)).transpose()?.map(Arc::new);
            let cursor = self.learn_cursor(&cursor_ids[at], cursors[at].as_ref())?;
            match self.claim(stream, group, id, want, head, cursor).await? {
                Claim::Drained(tail) => {
                    if !self.sleep(&group.id, id, tail, *ready_version).await? {
                        found.due(self.env().now_us());
                    }
                }
                Claim::Gone => {
                    self.delete_cursor(&group.id, id).await?;
                }
                claim => self.take(claim, want, found),
            }
        }
        Ok(())
    }

    fn take(&self, claim: Claim, want: &mut Want, found: &mut Found) {
        match claim {
            Claim::Messages(cursor, messages) => {
                want.records = want.records.saturating_sub(messages.len());
                let size: usize = messages.iter().map(|m| m.record.payload.len()).sum();
                want.bytes = want.bytes.saturating_sub(size);
                want.partitions -= 1;
                if want.bytes == 0 {
                    want.partitions = 0;
                }
                found.cursors.push(cursor);
                found.messages.extend(messages);
            }
            Claim::Later(at_us) => found.due(at_us),
            Claim::Drained(_) | Claim::Gone => {}
        }
    }

    /// Claims a batch of one partition.
    async fn claim(
        &self,
        stream: &Arc<StreamRecord>,
        group: &Arc<GroupRecord>,
        partition: &PartitionId,
        want: &Want,
        head: Option<Arc<Head>>,
        cursor: Option<Arc<Cursor>>,
    ) -> Result<Claim, Error> {
        let id = CursorId::of(&group.id, partition);
        let mut head = match head {
            Some(head) => head,
            None => match self.head(partition).await? {
                Some(head) => head,
                None => return Ok(Claim::Gone),
            },
        };
        let mut cursor = match cursor {
            Some(cursor) => Some(cursor),
            None => self.cursor(&id).await?,
        };
        let mut trusted = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let now_us = self.env().now_us();
            let Some(current) = &cursor else {
                cursor = match self.visit(stream, group, partition, false).await {
                    Ok(Some(cursor)) => Some(cursor),
                    Ok(None) | Err(Error::GroupNotFound(_)) => return Ok(Claim::Gone),
                    Err(e) => return Err(e),
                };
                trusted = true;
                continue;
            };
            if let Some(lease) = current.live_lease(now_us) {
                if trusted {
                    return Ok(Claim::Later(lease.until_us));
                }
                // What this process remembers may be old.
                cursor = self.reread_cursor(&id).await?;
                trusted = true;
                continue;
            }
            let from = current.committed.max(head.floor);
            if from >= head.tail {
                if !trusted {
                    cursor = self.reread_cursor(&id).await?;
                    trusted = true;
                    continue;
                }
                return Ok(Claim::Drained(head.tail));
            }
            let visible = match self.visible(stream, partition, &head, from, now_us).await? {
                Ok(to) => to,
                Err(due_us) => return Ok(Claim::Later(due_us)),
            };
            if let Some(due_us) = self.lingers(stream, group, &head, from, want, now_us) {
                return Ok(Claim::Later(due_us));
            }
            // A group that conflates gets the newest, which stands for all.
            let (first, to) = if group.conflation {
                (visible.saturating_sub(1).max(from), visible)
            } else {
                (from, visible.min(from.saturating_add(want.records as u64)))
            };
            let records = self.read_under(partition, &head, first, to, want.bytes).await?;
            let Some(end) = records.last().map(|r| r.offset + 1) else {
                // Retention has moved the floor under us.
                head = match self.head(partition).await? {
                    Some(head) => head,
                    None => return Ok(Claim::Gone),
                };
                continue;
            };
            let seconds = stream.info.options.lease_seconds(want.lease_seconds);
            let mut next = (**current).clone();
            let token = write_token(self);
            let until_us = now_us + seconds * 1_000_000;
            let attempt = grant(&mut next, from, end, want, group.conflation, until_us, now_us);
            next.stamp(&token);
            match self.commit(Commit::one(next.write())).await {
                Ok(_) => {}
                Err(CommitError::Conflict(failed)) => {
                    let image = failed.first().and_then(|f| f.current.as_ref());
                    cursor = self.learn_cursor(&id, image)?;
                    trusted = true;
                    if cursor
                        .as_ref()
                        .is_none_or(|c| c.has(&token, current_version(&next)) != Some(true))
                    {
                        continue;
                    }
                }
                Err(CommitError::Unknown(_)) => {
                    let version = current_version(&next);
                    cursor = self.reread_cursor(&id).await?;
                    trusted = true;
                    if cursor.as_ref().is_none_or(|c| c.has(&token, version) != Some(true)) {
                        // Not claimed, or claimed for nobody: then the lease runs out by itself.
                        continue;
                    }
                    Counts::add(&self.inner.counts.outcomes_resolved, 1);
                }
                Err(e) => return Err(e.into()),
            }
            let delivered_before = cursor_delivered(&cursor, &next, from, attempt);
            self.inner.cursors.insert(id, Arc::new(next));
            let info = Arc::new(PartitionInfo {
                id: *partition,
                stream: stream.info.name.clone(),
                name: head.name.clone(),
            });
            let messages = records
                .into_iter()
                .map(|record| Message {
                    attempt: if record.offset < delivered_before { attempt } else { 1 },
                    record,
                    partition: Arc::clone(&info),
                })
                .collect();
            return Ok(Claim::Messages(id, messages));
        }
        Err(Error::Busy)
    }

    /// When a waiting pop should look again because a batch that is not full may still grow; `None` to take it now.
    fn lingers(
        &self,
        stream: &StreamRecord,
        group: &GroupRecord,
        head: &Head,
        from: u64,
        want: &Want,
        now_us: i64,
    ) -> Option<i64> {
        let linger_us = stream.info.options.min_pop_wait_time.saturating_mul(1000);
        let full = head.tail - from >= want.records as u64;
        if linger_us <= 0 || full || group.conflation || now_us >= want.linger_until_us {
            return None;
        }
        // What lies below the head's list has waited long enough.
        let first_us = head.placed().find(|p| from < p.end()).filter(|p| from >= p.base)?.time_us;
        let due_us = (first_us + linger_us).min(want.linger_until_us);
        (due_us > now_us).then_some(due_us)
    }

    /// Up to where a stream's options let records be seen: the end, or the time at which there is something to see.
    async fn visible(
        &self,
        stream: &StreamRecord,
        partition: &PartitionId,
        head: &Arc<Head>,
        from: u64,
        now_us: i64,
    ) -> Result<Result<u64, i64>, Error> {
        let options = &stream.info.options;
        let (delay_us, buffer_us) =
            (options.delayed_processing * 1_000_000, options.window_buffer * 1_000_000);
        if delay_us <= 0 && buffer_us <= 0 {
            return Ok(Ok(head.tail));
        }
        let first = self.read_under(partition, head, from, from + 1, 1).await?;
        let Some(first_us) = first.first().map(|r| r.time_us) else { return Ok(Ok(head.tail)) };
        if delay_us > 0 && first_us + delay_us > now_us {
            return Ok(Err(first_us + delay_us));
        }
        if buffer_us > 0
            && head.tail - from < WINDOW_BUFFER_RECORDS
            && first_us + buffer_us > now_us
        {
            return Ok(Err(first_us + buffer_us));
        }
        if delay_us <= 0 {
            return Ok(Ok(head.tail));
        }
        Ok(Ok(self.offset_at_time(partition, head, now_us - delay_us + 1).await?.max(from + 1)))
    }
}

/// Grants a batch to a lease, or commits it at delivery. Answers how often its first record is delivered with this.
fn grant(
    cursor: &mut Cursor,
    from: u64,
    end: u64,
    want: &Want,
    newest: bool,
    until_us: i64,
    now_us: i64,
) -> u32 {
    let attempt = if from < cursor.delivered { cursor.attempt.saturating_add(1) } else { 1 };
    cursor.committed = from;
    cursor.delivered = cursor.delivered.max(from);
    cursor.epoch += 1;
    cursor.attempt = attempt;
    if want.auto_ack {
        cursor.lease = None;
        cursor.advance(end, now_us);
    } else {
        cursor.delivered = cursor.delivered.max(end);
        cursor.lease = Some(Lease { token: want.token.clone(), end, until_us, newest });
    }
    attempt
}

fn current_version(next: &Cursor) -> i64 {
    next.version - 1
}

/// Every offset below this was delivered before this claim.
fn cursor_delivered(before: &Option<Arc<Cursor>>, next: &Cursor, from: u64, attempt: u32) -> u64 {
    match before {
        // The cursor as it was before the claim, unless a refusal showed the claim itself.
        Some(c) if c.version < next.version => c.delivered,
        _ if attempt > 1 => next.delivered,
        _ => from,
    }
}
