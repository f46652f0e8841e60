//! Rolling: a partition's full list of descriptors becomes an index page.
//!
//! One transaction puts the page and empties the head's list and its set of ids, on the condition that nothing has been
//! appended since. The writer that finds the list full rolls it and appends afterwards; whoever comes second finds it
//! rolled. The page's ids go into a blob of their own, for writers that check theirs.
//!
//! A crowd of writers finds a list full all at once. If all of them rolled, each would read the segments and all but one
//! would be refused. So whoever has not filled the list itself stands back for a moment and looks again.

use std::{sync::Arc, time::Duration};

use tidewheel_store::{Blob, Change, Commit, CommitError, Condition, Value, Write};

use crate::{
    Engine, Error, PartitionId,
    head::Head,
    keys, limits,
    page::Page,
    segment,
    view::{IdView, encode_page_ids},
    warm::Counts,
};

/// Steps of the longest wait, see [`Engine::stand_back`].
const STEPS: u32 = 5;
/// How many looks at the head a roll takes, about: segments side by side, page and head. Who looks a step later finds it
/// done.
const STEP_LOOKS: u32 = 3;
/// A step at least, and at most.
const STEP: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

impl Engine {
    /// Waits before rolling what others are about to roll as well, and looks at the head afresh.
    ///
    /// Nobody knows how many they are, so the waits are not evenly spread: half of the writers wait for the longest time, a
    /// quarter for a step less, and so on. However many there are, few are in the first step that has any. How long a step
    /// must be is told by how long a look takes here and now.
    pub(crate) async fn stand_back(&self, partition: &PartitionId) -> Result<(), Error> {
        let env = self.env();
        let began_us = env.now_us();
        let head = self.head(partition).await?;
        if head.is_none_or(|head| head.segments.len() < limits::HEAD_SEGMENTS) {
            return Ok(());
        }
        let took = Duration::from_micros((env.now_us() - began_us).unsigned_abs());
        let step = took.saturating_mul(STEP_LOOKS).clamp(STEP.0, STEP.1);
        let early = env.random().trailing_zeros().min(STEPS);
        let within = Duration::from_micros(env.below(step.as_micros() as u64));
        env.sleep(step * (STEPS - early) + within).await;
        self.head(partition).await.map(drop)
    }

    /// Moves a head's full list of descriptors into an index page. `window_us` is the stream's deduplication window.
    pub(crate) async fn roll(
        &self,
        partition: &PartitionId,
        head: &Arc<Head>,
        view: &mut IdView,
        window_us: i64,
    ) -> Result<(), Error> {
        let mut ids = None;
        if window_us > 0 {
            view.sync(self, partition, head, head.tail, window_us).await?;
            let mut runs = Vec::with_capacity(head.segments.len());
            for placed in head.placed() {
                let hashes = match view.hashes(placed.base) {
                    Some(hashes) => hashes,
                    None => {
                        let segment = self.segment(partition, &placed.descriptor).await?;
                        segment.hashes.as_slice().into()
                    }
                };
                runs.push((placed.descriptor.count, hashes));
            }
            ids = encode_page_ids(&runs)
                .map(|body| Blob::fresh(segment::owner(partition), body, self.env()));
        }
        let page = Page::of(head, ids.as_ref().map(|b| b.name.id.clone()));
        let rolled = Write::update(
            keys::head(partition),
            vec![
                Change::Set("base".into(), (head.tail as i64).into()),
                Change::Set("base_us".into(), head.last_us().into()),
                Change::Set("segs".into(), Value::List(Vec::new())),
                Change::Add("gen".into(), 1),
                Change::Set("gen_tail".into(), (head.tail as i64).into()),
                Change::Remove("ids".into()),
            ],
        )
        .when(Condition::Equals("tail".into(), (head.tail as i64).into()))
        .when(Condition::Equals("base".into(), (head.base as i64).into()))
        .when(Condition::Equals("gen".into(), head.generation.into()))
        .when(Condition::LessThan(
            "mark".into(),
            ids.as_ref().and_then(|b| b.name.made_us()).unwrap_or(i64::MAX),
        ));
        let put =
            Write::put(keys::page(partition, head.base), page.encode()).when(Condition::Absent);
        let mut commit = Commit::all(vec![rolled.clone(), put]);
        commit.blobs.extend(ids);
        match self.commit(commit).await {
            Ok(_) => {
                Counts::add(&self.inner.counts.rolls, 1);
                let item = rolled.apply(Some(&head.encode())).ok().flatten().flatten();
                if let Some(item) = item {
                    self.warm(partition).learn(Arc::new(Head::decode(partition, &item)?));
                }
                Ok(())
            }
            // Rolled by somebody, perhaps by us; or the tail has moved. The head tells.
            Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                self.head(partition).await.map(|_| ())
            }
            Err(e) => Err(e.into()),
        }
    }
}
