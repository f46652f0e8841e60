//! Transactions: pushes and acknowledgements across streams, all or nothing.
//!
//! A record that was pushed before rolls the whole bundle back, and so does an acknowledgement that cannot be carried
//! out, a lease that is not held, or a required key-value operation that does not apply. A repeat of an id within the
//! bundle is stored once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tidewheel_store::{CommitError, Condition, Write};

use crate::{
    Ack, Acked, CursorId, Engine, Error, KvOutcome, LeaseId, PushItem, Pushed, QUEUE_MODE_GROUP,
    Riders, RolledBack, TimerOutcome, TransactionOp, TransactionResult,
    ack::decide,
    bundle::{self, Assembly, Bundle, Locks, failed_at},
    cursor::{Cursor, write_token},
    keys,
    kv::KvPart,
    letters, limits, push,
    stream::StreamRecord,
    timer::TimerPart,
    warm::Counts,
};

/// Acknowledgements for one cursor under one lease.
struct AckGroup {
    stream: Arc<StreamRecord>,
    cursor: CursorId,
    lease: Option<String>,
    acks: Vec<Ack>,
    /// Their places in the results.
    places: Vec<usize>,
}

/// A transaction's operations, laid out.
#[derive(Default)]
struct Layout {
    items: Vec<PushItem>,
    /// For each result: the item it stands for and whether it repeats an earlier one, or an acknowledgement.
    slots: Vec<Slot>,
    acks: Vec<AckGroup>,
    required: Vec<LeaseId>,
}

enum Slot {
    Push { item: usize, repeat: bool },
    Ack { transaction_id: String },
}

/// What the acknowledgements of a transaction do.
#[derive(Default)]
struct Acknowledged {
    /// Cursors as they were, and as they become if they change.
    cursors: BTreeMap<CursorId, (Arc<Cursor>, Option<Cursor>)>,
    acked: HashMap<usize, Acked>,
    dead_letters: usize,
    kv: Vec<KvOutcome>,
    timers: Vec<TimerOutcome>,
}

/// The parts of a transaction that concern no stream.
struct Ridden {
    kv: KvPart,
    timers: TimerPart,
}

/// The places of a transaction's writes, by the part that they belong to.
#[derive(Default)]
struct Places {
    cursors: Vec<(CursorId, i64, Vec<usize>)>,
    kv: Vec<((String, String), Vec<usize>)>,
    timers: Vec<((String, String), Vec<usize>)>,
}

impl Engine {
    /// Carries out operations, all or nothing. `Ok(Err(_))` means that the bundle was rolled back and why; nothing was
    /// written.
    ///
    /// An acknowledgement is fenced by its own lease, or else by the one required lease, or else not at all.
    pub async fn transact(
        &self,
        ops: Vec<TransactionOp>,
        required_leases: Vec<String>,
    ) -> Result<Result<Vec<TransactionResult>, RolledBack>, Error> {
        self.transact_with(ops, required_leases, Riders::default()).await
    }

    /// [`Engine::transact`] together with key-value operations and timers. Results are those of the operations, then of
    /// the keys and values, then of the timers.
    pub async fn transact_with(
        &self,
        ops: Vec<TransactionOp>,
        required_leases: Vec<String>,
        riders: Riders,
    ) -> Result<Result<Vec<TransactionResult>, RolledBack>, Error> {
        let token = write_token(self);
        let mut ridden = Ridden {
            kv: KvPart::new(self, riders.kv, &token)?,
            timers: TimerPart::new(self, riders.timers).await?,
        };
        let layout = match self.lay_out(ops, required_leases).await? {
            Ok(layout) => layout,
            Err(rolled_back) => return Ok(Err(rolled_back)),
        };
        let mut bundle = Bundle::new(self, &layout.items).await?;
        let partitions = bundle.partitions() + layout.acks.len();
        if partitions > limits::TRANSACTION_PARTITIONS {
            return Err(Error::Limit {
                what: "partitions of a transaction",
                got: partitions,
                limit: limits::TRANSACTION_PARTITIONS,
            });
        }
        let warms = bundle.warms();
        let mut locks = bundle::lock(&warms).await;
        let outcome =
            self.commit_transaction(&layout, &mut bundle, &mut locks, &mut ridden, &token).await?;
        drop(locks);
        bundle.ring().await;
        let acknowledged = match outcome {
            Ok(acknowledged) => acknowledged,
            Err(rolled_back) => return Ok(Err(rolled_back)),
        };
        ridden.timers.announce(self);
        Counts::add(&self.inner.counts.records_dead_lettered, acknowledged.dead_letters);
        for group in &layout.acks {
            self.wake_poppers(&group.stream.info.name);
        }
        let (outcomes, _) = bundle.outcomes(layout.items.len());
        Ok(Ok(results(&layout, &outcomes, acknowledged)))
    }

    async fn lay_out(
        &self,
        ops: Vec<TransactionOp>,
        required_leases: Vec<String>,
    ) -> Result<Result<Layout, RolledBack>, Error> {
        let mut layout = Layout::default();
        let mut firsts: HashMap<(String, String, String), usize> = HashMap::new();
        let rejected =
            |error: &Error| Ok(Err(RolledBack::AckRejected { error: error.to_string() }));
        for lease in &required_leases {
            match LeaseId::parse(lease) {
                Some(lease) => layout.required.push(lease),
                None => return rejected(&Error::Lease),
            }
        }
        let only_lease = <[String; 1]>::try_from(required_leases).ok().map(|[lease]| lease);
        for op in ops {
            match op {
                TransactionOp::Push(items) => {
                    for item in items {
                        if let Err(e) = push::check(&item) {
                            return Ok(Err(RolledBack::BadRequest { error: e.to_string() }));
                        }
                        let at = layout.items.len();
                        let partition = push::partition_of(&item).to_owned();
                        let first = match &item.transaction_id {
                            None => at,
                            Some(id) => *firsts
                                .entry((item.stream.clone(), partition, id.clone()))
                                .or_insert(at),
                        };
                        layout.slots.push(Slot::Push { item: first, repeat: first != at });
                        if first == at {
                            layout.items.push(item);
                        }
                    }
                }
                TransactionOp::Ack { group, mut ack } => {
                    let group = group.as_deref().unwrap_or(QUEUE_MODE_GROUP);
                    let (stream, _, cursor) = match self.ack_target(group, &ack.partition_id).await
                    {
                        Ok(target) => target,
                        Err(e) if e.is_transient() => return Err(e),
                        Err(e) => return rejected(&e),
                    };
                    ack.lease_id =
                        ack.lease_id.filter(|l| !l.is_empty()).or_else(|| only_lease.clone());
                    let place = layout.slots.len();
                    layout.slots.push(Slot::Ack { transaction_id: ack.transaction_id.clone() });
                    let lease = ack.lease_id.clone();
                    match layout.acks.iter_mut().find(|g| g.cursor == cursor && g.lease == lease) {
                        Some(group) => {
                            group.acks.push(ack);
                            group.places.push(place);
                        }
                        None => layout.acks.push(AckGroup {
                            stream,
                            cursor,
                            lease,
                            acks: vec![ack],
                            places: vec![place],
                        }),
                    }
                }
            }
        }
        Ok(Ok(layout))
    }

    async fn commit_transaction(
        &self,
        layout: &Layout,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
        ridden: &mut Ridden,
        token: &str,
    ) -> Result<Result<Acknowledged, RolledBack>, Error> {
        let mut doubt = None;
        let answer = self
            .commit_transaction_until_decided(layout, bundle, locks, ridden, token, &mut doubt)
            .await;
        match (answer, doubt) {
            // What it was refused for may be its own earlier attempt, arriving late.
            (Ok(Err(_)), Some(why)) => Err(Error::Unknown(why)),
            (answer, doubt) => Error::in_doubt(answer, doubt),
        }
    }

    async fn commit_transaction_until_decided(
        &self,
        layout: &Layout,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
        ridden: &mut Ridden,
        token: &str,
        doubt: &mut Option<String>,
    ) -> Result<Result<Acknowledged, RolledBack>, Error> {
        let mut refreshed = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let mut assembly = Assembly::default();
            let plans = bundle.plan(locks, &mut assembly).await?;
            if let Some((id, stream)) =
                bundle.appends.iter().find_map(|a| Some((a.first_duplicate()?, a.stream_name())))
            {
                return Ok(Err(RolledBack::Duplicate {
                    transaction_id: id,
                    stream: stream.to_owned(),
                }));
            }
            ridden.kv.read(self).await?;
            let kv = match ridden.kv.decide() {
                Ok(outcomes) => outcomes,
                Err(lost) => return Ok(Err(RolledBack::Precondition(lost))),
            };
            self.enter_namespaces(&ridden.kv).await?;
            ridden.timers.read(self).await?;
            let timers = ridden.timers.decide();
            let mut acknowledged = match self.acknowledge(layout, &mut assembly).await {
                Ok(acknowledged) => acknowledged,
                Err(e) if e.is_transient() => return Err(e),
                Err(e) if refreshed => {
                    return Ok(Err(RolledBack::AckRejected { error: e.to_string() }));
                }
                Err(_) => {
                    // What this process remembers may be old; only the truth may refuse.
                    refreshed = true;
                    self.reread_cursors(layout).await?;
                    continue;
                }
            };
            (acknowledged.kv, acknowledged.timers) = (kv, timers);
            let mut places = Places::default();
            for (place, write) in ridden.kv.writes()? {
                places.kv.push((place, assembly.add(&[write])));
            }
            for (place, write) in ridden.timers.writes() {
                places.timers.push((place, assembly.add(&[write])));
            }
            for (id, (before, next)) in &mut acknowledged.cursors {
                let write = match next {
                    Some(next) => {
                        next.version = before.version;
                        next.stamp(token);
                        next.write()
                    }
                    None => Write::check(keys::cursor(id))
                        .when(Condition::Equals("version".into(), before.version.into())),
                };
                places.cursors.push((*id, before.version, assembly.add(&[write])));
            }
            assembly.check()?;
            let nothing = |w: &Write| w.action == tidewheel_store::Action::Check;
            if assembly.commit.writes.iter().all(nothing) {
                return Ok(Ok(acknowledged));
            }
            match self.commit(assembly.commit).await {
                Ok(_) => {
                    bundle.finish(locks, &plans)?;
                    for (id, (_, next)) in &acknowledged.cursors {
                        if let Some(next) = next {
                            self.inner.cursors.insert(*id, Arc::new(next.clone()));
                        }
                    }
                    return Ok(Ok(acknowledged));
                }
                Err(CommitError::Conflict(failed)) => {
                    refreshed = true;
                    bundle.learn(&plans, &failed).await?;
                    for (id, _, places) in &places.cursors {
                        if let Some(f) = failed_at(&failed, places).first() {
                            self.learn_cursor(id, f.current.as_ref())?;
                        }
                    }
                    let happened = self
                        .transaction_has_happened(token, &places, bundle, locks, &plans, ridden)
                        .await?;
                    if happened == Some(true) {
                        return Ok(Ok(acknowledged));
                    }
                    for (place, at) in &places.kv {
                        if let Some(f) = failed_at(&failed, at).first() {
                            ridden.kv.learn(place, f)?;
                        }
                    }
                    for (place, at) in &places.timers {
                        if let Some(f) = failed_at(&failed, at).first() {
                            ridden.timers.learn(place, f)?;
                        }
                    }
                }
                Err(CommitError::Unknown(e)) => {
                    *doubt = Some(e.clone());
                    refreshed = true;
                    match self
                        .transaction_has_happened(token, &places, bundle, locks, &plans, ridden)
                        .await?
                    {
                        Some(true) => {
                            Counts::add(&self.inner.counts.outcomes_resolved, 1);
                            return Ok(Ok(acknowledged));
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

    async fn transaction_has_happened(
        &self,
        token: &str,
        places: &Places,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
        plans: &[Option<(crate::append::Plan, Vec<usize>)>],
        ridden: &mut Ridden,
    ) -> Result<Option<bool>, Error> {
        if plans.iter().any(Option::is_some) {
            return bundle.resolve(locks, plans).await.map(Some);
        }
        // One part that writes tells for all: they land together.
        if ridden.kv.writes_any() {
            return ridden.kv.has_happened(self).await;
        }
        if ridden.timers.writes_any() {
            return ridden.timers.has_happened(self).await;
        }
        for (id, version, _) in &places.cursors {
            let cursor = self.reread_cursor(id).await?;
            match cursor.map(|c| c.has(token, *version)) {
                Some(Some(true)) => return Ok(Some(true)),
                Some(None) => return Ok(None),
                Some(Some(false)) | None => {}
            }
        }
        Ok(Some(false))
    }

    async fn reread_cursors(&self, layout: &Layout) -> Result<(), Error> {
        let required = layout.required.iter().flat_map(|l| &l.cursors);
        for id in layout.acks.iter().map(|g| &g.cursor).chain(required) {
            self.reread_cursor(id).await?;
        }
        Ok(())
    }

    /// Decides what the acknowledgements do.
    ///
    /// # Errors
    /// Any reason to roll back.
    async fn acknowledge(
        &self,
        layout: &Layout,
        assembly: &mut Assembly,
    ) -> Result<Acknowledged, Error> {
        let mut done = Acknowledged::default();
        let mut filed: BTreeMap<CursorId, (Arc<StreamRecord>, Arc<Cursor>, i64)> = BTreeMap::new();
        for group in &layout.acks {
            let before = match done.cursors.get(&group.cursor) {
                Some((before, _)) => Arc::clone(before),
                None => self.cursor(&group.cursor).await?.ok_or(Error::Lease)?,
            };
            let working = match done.cursors.get(&group.cursor) {
                Some((_, Some(next))) => next.clone(),
                _ => (*before).clone(),
            };
            let acks: Vec<&Ack> = group.acks.iter().collect();
            let offsets = self.resolve_offsets(&before.partition, &before, &acks).await?;
            let options = &group.stream.info.options;
            let now_us = self.env().now_us();
            let settled =
                decide(&working, group.lease.as_deref(), &acks, &offsets, options, now_us)?;
            if let Some(refused) = settled.acked.iter().find_map(|a| a.error.clone()) {
                return Err(Error::Invalid(refused));
            }
            for (offset, item) in &settled.dead {
                let commit = &mut assembly.commit;
                let n = self
                    .file_dead_letter(commit, &group.stream, &before, *offset, acks[*item])
                    .await?;
                let fresh = || (Arc::clone(&group.stream), Arc::clone(&before), 0);
                filed.entry(group.cursor).or_insert_with(fresh).2 += n;
            }
            done.dead_letters += settled.dead.len();
            done.acked.extend(group.places.iter().copied().zip(settled.acked));
            let next = settled
                .next
                .or_else(|| done.cursors.get(&group.cursor).and_then(|(_, n)| n.clone()));
            done.cursors.insert(group.cursor, (before, next));
        }
        for (stream, cursor, n) in filed.values() {
            assembly.commit.writes.extend(letters::counted(stream, cursor, *n));
        }
        let now_us = self.env().now_us();
        for lease in &layout.required {
            // A lease over several partitions ends on each when its batch there is done; it is lost when none is left.
            let mut held = false;
            for id in &lease.cursors {
                let cursor = match done.cursors.get(id) {
                    Some((before, _)) => Arc::clone(before),
                    None => match self.cursor(id).await? {
                        Some(cursor) => cursor,
                        None => continue,
                    },
                };
                if cursor.held(&lease.token, now_us).is_ok() {
                    held = true;
                    done.cursors.entry(*id).or_insert((cursor, None));
                }
            }
            if !held {
                return Err(Error::Lease);
            }
        }
        Ok(done)
    }
}

fn results(layout: &Layout, outcomes: &[Pushed], mut done: Acknowledged) -> Vec<TransactionResult> {
    let nil = crate::Uuid::from_bytes([0; 16]);
    let riders = std::mem::take(&mut done.kv).into_iter().map(TransactionResult::Kv);
    let timers = std::mem::take(&mut done.timers).into_iter().map(TransactionResult::Timer);
    let mut results = layout
        .slots
        .iter()
        .enumerate()
        .map(|(place, slot)| match slot {
            Slot::Ack { transaction_id } => TransactionResult::Acked {
                transaction_id: transaction_id.clone(),
                acked: done.acked.remove(&place).unwrap_or_default(),
            },
            Slot::Push { item, repeat } => {
                let id = match &outcomes[*item] {
                    Pushed::Queued { id, .. } => *id,
                    Pushed::Duplicate { id, .. } => id.unwrap_or(nil),
                    Pushed::Refused(_) => nil,
                };
                let pushed = &layout.items[*item];
                TransactionResult::Pushed {
                    stream: pushed.stream.clone(),
                    transaction_id: pushed.transaction_id.clone().unwrap_or_else(|| id.to_string()),
                    id,
                    repeat: *repeat,
                }
            }
        })
        .collect::<Vec<_>>();
    results.extend(riders.chain(timers));
    results
}
