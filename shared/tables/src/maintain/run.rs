//! Doing a piece of work, step by step, and stopping before a given time.

use std::{pin::pin, time::Duration};

use futures_util::future::{Either, select};
use tidewheel_engine::{PartitionId, Uuid};

use super::{Maintenance, Work};

/// No step takes longer, µs.
const LONGEST_US: i64 = 24 * 3600 * 1_000_000;

/// Why a piece of work was not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A table's failure.
    #[error(transparent)]
    Tables(#[from] crate::Error),
    /// The engine's failure.
    #[error(transparent)]
    Engine(#[from] tidewheel_engine::Error),
    /// Not even the first step was done in the time that there was.
    #[error("{0}: not even the first step was done in time")]
    CutOff(String),
    /// The work names something that cannot be.
    #[error("{0} names something that cannot be")]
    Malformed(String),
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Rows that were published.
    pub rows: u64,
    /// Data files that hold them.
    pub files: usize,
    /// The longest that a row was in the log before its table had it, µs.
    pub commit_lag_us: Option<i64>,
    /// True if another sealer published at the same time; what is left is for the next round.
    pub raced: bool,
    /// True if a record does not fit its stream's declared schema: from it on nothing is published.
    pub unfit: bool,
    /// Small data files that were replaced by larger ones.
    pub compacted: usize,
    /// Snapshots that tables have forgotten.
    pub forgotten: usize,
    /// Files of tables that were deleted.
    pub deleted: usize,
    /// True if the data catalogue does not say what the table's head says. The next round tells it again.
    pub unmirrored: bool,
    /// Records that retention made unreadable.
    pub expired: u64,
    /// Unreachable blobs that were deleted.
    pub collected: u64,
    /// Partitions of deleted streams that were swept.
    pub swept: u64,
    /// Old traces that were deleted.
    pub traces: u64,
    /// Keys that had ended and were deleted.
    pub keys: u64,
    /// Timers that were fired.
    pub fired: u64,
}

/// What became of a piece of work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What was done.
    pub done: Done,
    /// What is left, if the time was over.
    pub rest: Option<Work>,
}

impl Maintenance {
    /// Does a piece of work, until it is done or it is `until_us`. A step that runs at that time is cut off: that is
    /// as if the process had died in it.
    ///
    /// Work of a stream that is not there any more is done. [`Work::Find`] is not for this call: see
    /// [`Maintenance::find`].
    ///
    /// # Errors
    /// What failed. After every error the same work may be done again.
    pub async fn run(&self, work: &Work, until_us: i64) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        if self.engine.env().now_us() >= until_us {
            outcome.rest = Some(work.clone());
            return Ok(outcome);
        }
        match work {
            Work::Seal { stream } => self.seal(stream, work, until_us, &mut outcome).await?,
            Work::Retain { stream, after } => {
                self.retain(stream, after.as_deref(), work, until_us, &mut outcome).await?;
            }
            Work::Collect { stream, after } => {
                self.collect(stream, after.as_deref(), work, until_us, &mut outcome).await?;
            }
            Work::Compact { stream } => self.compact(stream, work, until_us, &mut outcome).await?,
            // What follows goes on where it was cut off.
            Work::Clean { stream } => {
                match self.before(until_us, self.tables.clean(stream)).await {
                    Some(Ok(cleaned)) => {
                        outcome.done.forgotten = cleaned.snapshots;
                        outcome.done.deleted = cleaned.files;
                    }
                    Some(Err(crate::Error::StreamNotFound(_))) => {}
                    Some(Err(e)) => return Err(e.into()),
                    None => outcome.rest = Some(work.clone()),
                }
            }
            Work::Drop { id } => {
                let id = Uuid::parse(id).ok_or_else(|| malformed(work))?;
                match self.before(until_us, self.tables.remove(&id)).await {
                    Some(deleted) => outcome.done.deleted = deleted?,
                    None => outcome.rest = Some(work.clone()),
                }
            }
            Work::Sweep { id } => {
                let id = Uuid::parse(id).ok_or_else(|| malformed(work))?;
                let sweep = async {
                    // First, so that the table is not forgotten.
                    self.tables.bury(&id).await?;
                    Ok::<_, Error>(self.engine.sweep_stream(&id).await?)
                };
                match self.before(until_us, sweep).await {
                    Some(swept) => outcome.done.swept = swept?,
                    None => outcome.rest = Some(work.clone()),
                }
            }
            Work::Traces => match self.before(until_us, self.engine.sweep_traces()).await {
                Some(traces) => outcome.done.traces = traces?,
                None => outcome.rest = Some(work.clone()),
            },
            Work::Keys => match self.before(until_us, self.engine.sweep_kv()).await {
                Some(keys) => outcome.done.keys = keys?,
                None => outcome.rest = Some(work.clone()),
            },
            Work::Timers => match self.before(until_us, self.engine.fire_timers()).await {
                Some(fired) => outcome.done.fired = fired? as u64,
                None => outcome.rest = Some(work.clone()),
            },
            Work::Find { .. } => return Err(malformed(work)),
        }
        Ok(outcome)
    }

    async fn seal(
        &self,
        stream: &str,
        work: &Work,
        until_us: i64,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let mut first = true;
        loop {
            let Some(sealed) = self.before(until_us, self.tables.seal(stream)).await else {
                return cut_off(first, work, outcome);
            };
            let done = &mut outcome.done;
            match sealed {
                Ok(sealed) => {
                    done.rows += sealed.rows;
                    done.files += sealed.files;
                    done.unmirrored = sealed.mirror.failure().is_some();
                    done.commit_lag_us = done.commit_lag_us.max(sealed.commit_lag_us);
                    if let Some(unfit) = &sealed.unfit {
                        tracing::warn!(stream, %unfit, "a record does not fit the declared schema");
                        done.unfit = true;
                    }
                    if sealed.lost > 0 {
                        let lost = sealed.lost;
                        tracing::warn!(
                            stream,
                            lost,
                            "retention took records before they were sealed"
                        );
                    }
                    if !sealed.more {
                        return Ok(());
                    }
                }
                Err(crate::Error::Conflict(_)) => {
                    done.raced = true;
                    return Ok(());
                }
                Err(crate::Error::StreamNotFound(_)) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
            first = false;
            if self.engine.env().now_us() >= until_us {
                outcome.rest = Some(work.clone());
                return Ok(());
            }
        }
    }

    async fn compact(
        &self,
        stream: &str,
        work: &Work,
        until_us: i64,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let mut first = true;
        loop {
            let Some(compacted) = self.before(until_us, self.tables.compact(stream)).await else {
                return cut_off(first, work, outcome);
            };
            match compacted {
                Ok(compacted) => {
                    outcome.done.compacted += compacted.replaced;
                    outcome.done.raced |= compacted.raced;
                    if compacted.raced || !compacted.more {
                        return Ok(());
                    }
                }
                Err(crate::Error::StreamNotFound(_)) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
            first = false;
            if self.engine.env().now_us() >= until_us {
                outcome.rest = Some(work.clone());
                return Ok(());
            }
        }
    }

    async fn retain(
        &self,
        stream: &str,
        after: Option<&str>,
        work: &Work,
        until_us: i64,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let mut after = parse(after, work)?;
        let mut first = true;
        loop {
            let step = self.before(until_us, self.retain_page(stream, after.as_ref())).await;
            let rest = |after: Option<PartitionId>| Work::Retain {
                stream: stream.to_owned(),
                after: after.map(|id| id.to_string()),
            };
            let Some(step) = step else { return cut_off(first, &rest(after), outcome) };
            let (expired, next) = step?;
            outcome.done.expired += expired;
            if next.is_none() {
                return Ok(());
            }
            (after, first) = (next, false);
            if self.engine.env().now_us() >= until_us {
                outcome.rest = Some(rest(after));
                return Ok(());
            }
        }
    }

    /// One page of a stream's retention. Records that the table does not have yet are kept, whatever their age.
    async fn retain_page(
        &self,
        stream: &str,
        after: Option<&PartitionId>,
    ) -> Result<(u64, Option<PartitionId>), Error> {
        let Some(info) = self.engine.stream(stream).await? else { return Ok((0, None)) };
        let declared = self.engine.declared(stream).await?;
        let aged = declared.is_some_and(|d| d.declaration.max_age_us.is_some());
        if !info.options.expires() && !aged {
            return Ok((0, None));
        }
        if !self.tables.publishes(stream).await? {
            // Nothing waits to be published.
            return Ok(self.engine.retain_page(stream, None, after).await?);
        }
        // Without knowing what the table has, nothing may go.
        match self.tables.reach(stream).await {
            Ok(reach) => {
                let hold = |partition: &PartitionId| reach.below(partition);
                Ok(self.engine.retain_page(stream, Some(&hold), after).await?)
            }
            Err(crate::Error::StreamNotFound(_)) => Ok((0, None)),
            Err(e) => Err(e.into()),
        }
    }

    async fn collect(
        &self,
        stream: &str,
        after: Option<&str>,
        work: &Work,
        until_us: i64,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let mut after = parse(after, work)?;
        let mut first = true;
        loop {
            let step = self.engine.collect_page(stream, after.as_ref());
            let step = self.before(until_us, step).await;
            let rest = |after: Option<PartitionId>| Work::Collect {
                stream: stream.to_owned(),
                after: after.map(|id| id.to_string()),
            };
            let Some(step) = step else { return cut_off(first, &rest(after), outcome) };
            let (collected, next) = step?;
            outcome.done.collected += collected;
            if next.is_none() {
                return Ok(());
            }
            (after, first) = (next, false);
            if self.engine.env().now_us() >= until_us {
                outcome.rest = Some(rest(after));
                return Ok(());
            }
        }
    }

    /// Runs a step until it is done or it is `until_us`; `None` if it was cut off.
    async fn before<T>(&self, until_us: i64, step: impl Future<Output = T>) -> Option<T> {
        let env = self.engine.env();
        let left = until_us.saturating_sub(env.now_us()).clamp(0, LONGEST_US);
        let left = Duration::from_micros(left.unsigned_abs());
        match select(pin!(step), pin!(env.sleep(left))).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

/// A step was cut off. If it was the first there has been no progress, and going on would end the same way.
fn cut_off(first: bool, rest: &Work, outcome: &mut Outcome) -> Result<(), Error> {
    if first {
        return Err(Error::CutOff(rest.to_string()));
    }
    outcome.rest = Some(rest.clone());
    Ok(())
}

fn parse(after: Option<&str>, work: &Work) -> Result<Option<PartitionId>, Error> {
    match after {
        None => Ok(None),
        Some(text) => PartitionId::parse(text).map(Some).ok_or_else(|| malformed(work)),
    }
}

fn malformed(work: &Work) -> Error {
    Error::Malformed(work.to_string())
}
