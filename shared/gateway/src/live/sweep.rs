//! The sweep: finds what no invocation finished, and asks for one.
//!
//! It reads two short lists: the partitions whose followers are awake, which are those that have something to get, or
//! whose delivery died; and the subscriptions under way. What is held is left alone until its lease is over. What
//! expires, and members of a cohort that are gone, need no sweep: the store deletes the former, and the next delivery
//! finds the latter.

use tidewheel_engine::{Error, PartitionId, live::LIVE_SHARDS};
use tidewheel_store::{Query, Write};

use super::{Address, Live, Progress, StopAt, Work, keys, rows::State};

/// Partitions that are looked at in one step.
const STEP: usize = 100;

impl Live {
    /// The store has told of a change: a partition's followers are awake. Asks for a delivery unless there is nothing
    /// left to do or one is at it, which is the usual case, because the doorbell was first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn changed(&self, partition: &PartitionId) -> Result<(), Error> {
        if self.engine().live_ready(partition).await?.is_some() {
            self.ask_unless_held(partition).await?;
        }
        Ok(())
    }

    async fn ask_unless_held(&self, partition: &PartitionId) -> Result<(), Error> {
        let cohort = self.cohort(partition).await?;
        if cohort.is_none_or(|cohort| !cohort.is_held(self.now_us())) {
            self.ask(&Work::deliver(partition)).await;
        }
        Ok(())
    }

    /// Looks everything over once. What there was no time for is found the next time.
    pub(crate) async fn sweep(&self, stop: StopAt) -> Result<Progress, Error> {
        for shard in 0..keys::UNDER_WAY_SHARDS {
            for (key, item) in self.items(Query::all(keys::under_way_pk(shard))).await? {
                if self.now_us() > stop.0 {
                    return Ok(Progress::Done);
                }
                let (Some(connection), Some(subscription)) = (item.str("conn"), item.str("sub"))
                else {
                    return Err(Error::Corrupt(format!("item {key}")));
                };
                if item.get("closing").is_some() {
                    let endpoint = item.str("endpoint").map(str::to_owned);
                    let address = Address { connection: connection.to_owned(), endpoint };
                    if self.close(&address).await {
                        self.commit_surely(vec![Write::delete(key)]).await?;
                    }
                    continue;
                }
                // Whatever makes or ends a subscription makes or ends its entry: one that does not fit has changed since.
                match self.subscription(connection, subscription).await?.map(|found| found.state) {
                    None | Some(State::Member) => {}
                    Some(State::Held { until_us, .. }) if until_us > self.now_us() => {}
                    Some(State::Held { .. } | State::Open) => {
                        let connection = connection.to_owned();
                        let subscription = subscription.to_owned();
                        self.ask(&Work::Greet { connection, subscription }).await;
                    }
                }
            }
        }
        for shard in 0..LIVE_SHARDS {
            let mut after = None;
            loop {
                let page = self.engine().live_waiting(shard, after.as_ref(), STEP).await?;
                for partition in &page {
                    if self.now_us() > stop.0 {
                        return Ok(Progress::Done);
                    }
                    self.ask_unless_held(partition).await?;
                }
                after = page.last().copied();
                if page.len() < STEP {
                    break;
                }
            }
        }
        Ok(Progress::Done)
    }
}
