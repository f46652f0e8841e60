//! Calls of the store: repeated while it is busy, which writes nothing, and no more than that.

use std::time::Duration;

use tidewheel_engine::{Error, PartitionId};
use tidewheel_store::{
    Commit, CommitError, Consistency, Failed, Item, Key, Page, Query, ReadError, Write,
};

use super::{
    Live, keys,
    rows::{Cohort, ConnectionRow, Member, Subscription},
};

/// Attempts at a call that the store answers with "busy".
const ATTEMPTS: u32 = 10;

/// Attempts at a commit that others, or lost replies, keep from being decided.
pub(crate) const COMMIT_ATTEMPTS: u32 = 64;

/// What became of a commit.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It happened.
    Done,
    /// It did not, because of these.
    Refused(Vec<Failed>),
    /// It may have, or may yet.
    Unknown,
}

impl Outcome {
    /// The item that refused the write at this place, if that write was refused: `None` within if there is none.
    pub(crate) fn refused_by(&self, write: usize) -> Option<Option<&Item>> {
        let Outcome::Refused(failed) = self else { return None };
        failed.iter().find(|f| f.write == write).map(|f| f.current.as_ref())
    }
}

impl Live {
    pub(crate) async fn commit(&self, writes: Vec<Write>) -> Result<Outcome, Error> {
        let commit = Commit::all(writes);
        for attempt in 0..ATTEMPTS {
            match self.engine().store().commit(commit.clone()).await {
                Ok(_) => return Ok(Outcome::Done),
                Err(CommitError::Conflict(failed)) => return Ok(Outcome::Refused(failed)),
                Err(CommitError::Unknown(why)) => {
                    tracing::debug!(why, "a reply was lost");
                    return Ok(Outcome::Unknown);
                }
                Err(CommitError::Contended | CommitError::Throttled) => {
                    self.back_off(attempt).await;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Repeats a commit without conditions until its outcome is known. Doing it twice is doing it once.
    pub(crate) async fn commit_surely(&self, writes: Vec<Write>) -> Result<(), Error> {
        for attempt in 0..ATTEMPTS {
            match self.commit(writes.clone()).await? {
                Outcome::Done => return Ok(()),
                Outcome::Refused(_) => return Err(Error::Busy),
                Outcome::Unknown => self.back_off(attempt).await,
            }
        }
        Err(Error::Busy)
    }

    /// Waits a little, longer each time, at random within the bound.
    pub(crate) async fn back_off(&self, attempt: u32) {
        let env = self.engine().env();
        let bound_us = 4_000u64 << attempt.min(8);
        env.sleep(Duration::from_micros(1 + env.below(bound_us))).await;
    }

    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Item>, Error> {
        for attempt in 0..ATTEMPTS {
            match self.engine().store().get(key, Consistency::Strong).await {
                Err(ReadError::Throttled) => self.back_off(attempt).await,
                answer => return Ok(answer?),
            }
        }
        Err(Error::Busy)
    }

    async fn page(&self, query: &Query) -> Result<Page, Error> {
        for attempt in 0..ATTEMPTS {
            match self.engine().store().query(query).await {
                Err(ReadError::Throttled) => self.back_off(attempt).await,
                answer => return Ok(answer?),
            }
        }
        Err(Error::Busy)
    }

    pub(crate) async fn items(&self, query: Query) -> Result<Vec<(Key, Item)>, Error> {
        let mut items = Vec::new();
        let mut next = Some(query);
        while let Some(query) = next {
            let page = self.page(&query).await?;
            next = query.following(&page);
            items.extend(page.items);
        }
        Ok(items)
    }

    pub(crate) async fn cohort(&self, partition: &PartitionId) -> Result<Option<Cohort>, Error> {
        let key = keys::cohort(partition);
        self.get(&key).await?.map(|item| Cohort::decode(&key, &item)).transpose()
    }

    /// The members of a cohort. To be read after the cohort's item: whoever its version counts is among them then.
    pub(crate) async fn members(&self, partition: &PartitionId) -> Result<Vec<Member>, Error> {
        let query = Query::prefix(keys::cohort_pk(partition), keys::MEMBERS);
        let items = self.items(query).await?;
        items.iter().map(|(key, item)| Member::decode(key, item)).collect()
    }

    pub(crate) async fn has_members(&self, partition: &PartitionId) -> Result<bool, Error> {
        let query = Query { limit: 1, ..Query::prefix(keys::cohort_pk(partition), keys::MEMBERS) };
        Ok(!self.page(&query).await?.items.is_empty())
    }

    pub(crate) async fn subscription(
        &self,
        connection: &str,
        subscription: &str,
    ) -> Result<Option<Subscription>, Error> {
        let key = keys::subscription(connection, subscription);
        self.get(&key).await?.map(|item| Subscription::decode(&key, &item)).transpose()
    }

    /// A connection, and its subscriptions.
    pub(crate) async fn connection(
        &self,
        connection: &str,
    ) -> Result<(Option<ConnectionRow>, Vec<Subscription>), Error> {
        let mut row = None;
        let mut subscriptions = Vec::new();
        for (key, item) in self.items(Query::all(keys::connection_pk(connection))).await? {
            if key.sk == keys::CONNECTION {
                row = Some(ConnectionRow::decode(&key, &item)?);
            } else {
                subscriptions.push(Subscription::decode(&key, &item)?);
            }
        }
        Ok((row, subscriptions))
    }
}
