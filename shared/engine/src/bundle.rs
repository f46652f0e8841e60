//! Several appends as part of one transaction, and the bookkeeping of a transaction's writes.
//!
//! Appends of a bundle are pinned to the tails that they know, hold their partitions' locks in one order (so that two
//! bundles of one process never wait for each other), and learn from the refusals that concern them.

use std::sync::Arc;

use tidewheel_store::{
    Action, Blob, Change, Commit, Committed, Failed, Write, limits as store_limits,
};
use tokio::sync::MutexGuard;

use crate::{
    Engine, Error, PushItem, Pushed,
    append::{Append, Candidate, Plan},
    push,
    view::IdView,
    warm::Warm,
};

/// Appends to several partitions that commit together.
pub(crate) struct Bundle {
    /// By partition id.
    pub(crate) appends: Vec<Append>,
    /// For each group of items, in the order of first mention, the append that carries it.
    order: Vec<usize>,
    groups: Vec<push::Group>,
}

/// The locks of a bundle's partitions, in the order of its appends.
pub(crate) struct Locks<'a>(Vec<MutexGuard<'a, IdView>>);

/// Writes of one transaction, with the place that each part's writes got.
#[derive(Default)]
pub(crate) struct Assembly {
    pub(crate) commit: Commit,
}

impl Assembly {
    /// Adds a part's writes; answers their places. The same check, or the same word left, from two parts is made once.
    pub(crate) fn add(&mut self, writes: &[Write]) -> Vec<usize> {
        writes
            .iter()
            .map(|write| {
                let shared = match &write.action {
                    Action::Check => true,
                    Action::Update(changes) => changes.iter().all(|c| matches!(c, Change::Set(..))),
                    _ => false,
                };
                let mut writes = self.commit.writes.iter();
                let known = writes.position(|w| shared && w == write);
                known.unwrap_or_else(|| {
                    self.commit.writes.push(write.clone());
                    self.commit.writes.len() - 1
                })
            })
            .collect()
    }

    pub(crate) fn add_blob(&mut self, blob: Blob) {
        self.commit.blobs.push(blob);
    }

    /// # Errors
    /// [`Error::Limit`] if one transaction cannot hold it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let got = self.commit.writes.len();
        if got > store_limits::TRANSACTION_ITEMS {
            return Err(Error::Limit {
                what: "heads in one commit (cursor, state, sink partitions and the groups they wake)",
                got,
                limit: store_limits::TRANSACTION_ITEMS,
            });
        }
        Ok(())
    }
}

/// The refusals that concern the writes at these places, by their index among them.
pub(crate) fn failed_at(failed: &[Failed], places: &[usize]) -> Vec<Failed> {
    let own = |f: &Failed| {
        let write = places.iter().position(|&p| p == f.write)?;
        Some(Failed { write, current: f.current.clone() })
    };
    failed.iter().filter_map(own).collect()
}

impl Bundle {
    /// Makes the appends of some items. Repeats of a transaction id within one partition must have been taken out.
    pub(crate) async fn new(engine: &Engine, items: &[PushItem]) -> Result<Self, Error> {
        for item in items {
            push::check(item)?;
        }
        if !items.is_empty() {
            engine.check_push_allowed().await?;
        }
        let groups = push::group(items);
        let mut appends = Vec::with_capacity(groups.len());
        for (at, group) in groups.iter().enumerate() {
            let stream = engine.ensure_stream(&group.stream).await?;
            let candidates = group.places.iter().map(|&p| Candidate::new(&items[p])).collect();
            appends.push((at, Append::new(engine, stream, &group.partition, candidates)));
        }
        appends.sort_by_key(|(_, append)| *append.id());
        let mut order = vec![0; groups.len()];
        appends.iter().enumerate().for_each(|(place, (at, _))| order[*at] = place);
        let appends = appends.into_iter().map(|(_, append)| append).collect();
        Ok(Self { appends, order, groups })
    }

    /// Gives the only record of a bundle of one the id that it was promised.
    pub(crate) fn promise(&mut self, id: crate::Uuid) {
        debug_assert!(self.appends.len() == 1);
        self.appends.iter_mut().for_each(|append| append.promise(id));
    }

    pub(crate) fn partitions(&self) -> usize {
        self.appends.len()
    }

    pub(crate) fn warms(&self) -> Vec<Arc<Warm>> {
        self.appends.iter().map(|a| Arc::clone(a.warm())).collect()
    }

    /// Plans every append and adds the plans to the transaction; answers them with the places of their writes.
    pub(crate) async fn plan(
        &mut self,
        locks: &mut Locks<'_>,
        assembly: &mut Assembly,
    ) -> Result<Vec<Option<(Plan, Vec<usize>)>>, Error> {
        let mut plans = Vec::with_capacity(self.appends.len());
        for (append, view) in self.appends.iter_mut().zip(&mut locks.0) {
            plans.push(match append.plan(view, true).await? {
                None => None,
                Some(plan) => {
                    assembly.add_blob(plan.blob.clone());
                    let places = assembly.add(&plan.writes);
                    Some((plan, places))
                }
            });
        }
        Ok(plans)
    }

    pub(crate) fn finish(
        &mut self,
        locks: &mut Locks<'_>,
        plans: &[Option<(Plan, Vec<usize>)>],
    ) -> Result<(), Error> {
        for ((append, view), plan) in self.appends.iter_mut().zip(&mut locks.0).zip(plans) {
            if let Some((plan, _)) = plan {
                append.finish(view, plan, &Committed::default())?;
            }
        }
        Ok(())
    }

    pub(crate) async fn learn(
        &mut self,
        plans: &[Option<(Plan, Vec<usize>)>],
        failed: &[Failed],
    ) -> Result<(), Error> {
        for (append, plan) in self.appends.iter_mut().zip(plans) {
            if let Some((_, places)) = plan {
                let own = failed_at(failed, places);
                if !own.is_empty() {
                    append.learn(&own).await?;
                }
            }
        }
        Ok(())
    }

    /// After a lost reply: true if the bundle is in the log. One append tells for all.
    pub(crate) async fn resolve(
        &mut self,
        locks: &mut Locks<'_>,
        plans: &[Option<(Plan, Vec<usize>)>],
    ) -> Result<bool, Error> {
        let mut found = false;
        for ((append, view), plan) in self.appends.iter_mut().zip(&mut locks.0).zip(plans) {
            if let Some((plan, _)) = plan {
                let here = append.resolve(view, plan).await?;
                if !here && !found {
                    return Ok(false);
                }
                found = true;
            }
        }
        Ok(found)
    }

    /// Rings the doorbell for every partition whose followers were woken. Not under the partitions' locks.
    pub(crate) async fn ring(&mut self) {
        futures_util::future::join_all(self.appends.iter_mut().map(Append::ring)).await;
    }

    /// What became of each item, in the order of the items; and the groups in the order of first mention.
    pub(crate) fn outcomes(self, items: usize) -> (Vec<Pushed>, Vec<push::Group>) {
        let mut outcomes = vec![Pushed::Refused(Error::Busy); items];
        let mut by_append: Vec<Vec<Pushed>> =
            self.appends.into_iter().map(Append::outcomes).collect();
        for (group, &place) in self.groups.iter().zip(&self.order) {
            for (&item, pushed) in group.places.iter().zip(std::mem::take(&mut by_append[place])) {
                outcomes[item] = pushed;
            }
        }
        (outcomes, self.groups)
    }
}

/// Locks partitions for appending, in the order given, which must be by id.
pub(crate) async fn lock(warms: &[Arc<Warm>]) -> Locks<'_> {
    let mut locks = Vec::with_capacity(warms.len());
    for warm in warms {
        locks.push(warm.append.lock().await);
    }
    Locks(locks)
}
