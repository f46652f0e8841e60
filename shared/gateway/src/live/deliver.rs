//! Delivery: what is new on a partition goes to every member of its cohort, and the position moves.
//!
//! The writes of a delivery, of which each states the token of its lease, the position and the version that it saw:
//!
//! 1. *announce*: takes the lease if it has none, moves the position behind what was posted before, and says up to where
//!    it posts now. Then it posts. So a run of k flushes takes k announcements;
//! 2. the last write *puts to sleep*: together with the partition's head, if its tail has not moved, the cohort takes the
//!    last position and gives up the lease. Or, if the time is over, it *releases* the lease.
//!
//! A write that is refused because the version has changed means that somebody joined: whoever it is has everything
//! below the position that the item still shows, so the rows that were just posted are posted to it, and the write is
//! tried again.

use std::{collections::HashMap, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use tidewheel_engine::{Error, PartitionId};
use tidewheel_store::{Change, Condition, Item, Write};

use super::{
    Live, Progress, StopAt,
    calls::{COMMIT_ATTEMPTS, Outcome},
    frames::{Messages, Rows},
    keys,
    rows::{Cohort, Kind, Member},
    send::Lost,
    us,
};
use crate::limits;

/// Rows of one flush when a member takes one row in a message.
const STREAMCAST_ROWS: usize = 128;

/// Frames of one flush to one member, at most.
const FLUSH_FRAMES: usize = 8;

/// Connections that are forgotten at a time.
const PARALLEL_PARTINGS: usize = 16;

struct Delivery<'a> {
    live: &'a Live,
    partition: PartitionId,
    stop: StopAt,
    token: String,
    /// The cohort's item as the last look or write left it.
    cohort: Cohort,
    /// The lease is ours.
    held: bool,
    /// The version of the ready entry.
    ready: i64,
    /// Members that get what is posted next. Whoever was lost is not among them.
    members: Vec<Member>,
    /// What these members have, and the cohort's item does not tell yet.
    posted: Option<Rows>,
}

/// What became of a write of the cohort's item.
enum Written {
    Done,
    /// The item is as before, but for its version or other items: look again and try again.
    Retry,
    /// It is another's, or there is none.
    Over,
}

impl Live {
    pub(crate) async fn deliver(
        &self,
        partition: &PartitionId,
        stop: StopAt,
    ) -> Result<Progress, Error> {
        // Asleep, or nobody follows: the usual end of a second ring.
        let Some(ready) = self.engine().live_ready(partition).await? else {
            return Ok(Progress::Done);
        };
        let Some(cohort) = self.cohort(partition).await? else {
            // Only this entry: a cohort that is just being made has put a new one.
            let [_, forget] = self.engine().live_sleep(partition, 0, ready);
            self.commit(vec![forget]).await?;
            return Ok(Progress::Done);
        };
        if cohort.is_held(self.now_us()) {
            return Ok(Progress::Done);
        }
        let members = self.members(partition).await?;
        let token = self.engine().env().token();
        let delivery = Delivery {
            live: self,
            partition: *partition,
            stop,
            token,
            cohort,
            held: false,
            ready,
            members,
            posted: None,
        };
        delivery.run().await
    }
}

impl Delivery<'_> {
    async fn run(mut self) -> Result<Progress, Error> {
        loop {
            if self.live.now_us() + 2 * us(limits::POST_WITHIN) > self.stop.0 {
                return self.release().await;
            }
            if self.members.is_empty() {
                self.live.dissolve_if_empty(&self.partition).await?;
                match self.live.cohort(&self.partition).await? {
                    None => return Ok(Progress::Done),
                    // Somebody joined meanwhile. What was posted, was posted to nobody who is left.
                    Some(cohort) if self.is_ours(&cohort) => {
                        self.cohort.version = cohort.version;
                        self.welcome().await?;
                    }
                    Some(_) => return Ok(Progress::Done),
                }
            }
            self.gather().await;
            let at = self.posted.as_ref().map_or(self.cohort.position, Rows::next);
            let (records, bytes) = self.room();
            let read = match self.live.engine().read(&self.partition, at, records, bytes).await {
                Err(Error::PartitionNotFound) => return self.end().await,
                read => read?,
            };
            let tail = read.extent.tail;
            // What a dead delivery has posted is dealt with under a lease.
            let doubt = self.cohort.sending.filter(|_| !self.held);
            if at >= tail && doubt.is_none() {
                match self.sleep(at, tail).await? {
                    Written::Done | Written::Over => return Ok(Progress::Done),
                    Written::Retry => continue,
                }
            }
            let next = read.records.last().map_or(tail, |r| r.offset + 1).max(at);
            let rows = Rows::new(self.partition, at, next, read.records);
            if !self.announce(&rows, doubt).await? {
                return Ok(Progress::Done);
            }
            if let Some(end) = doubt {
                self.part_with_the_doubtful(end).await?;
            }
            let members = std::mem::take(&mut self.members);
            let Some(members) = self.flush(&rows, members).await? else {
                return self.give_up().await;
            };
            self.live.count(|c| &c.flushes);
            self.members = members;
            self.posted = Some(rows);
        }
    }

    /// Lets rows gather for as long as every member allows.
    async fn gather(&self) {
        let window = |m: &Member| match m.follower.kind {
            Kind::Native => m.follower.window_ms.min(limits::WINDOW_MS),
            Kind::Streamcast => 0,
        };
        let window_ms = self.members.iter().map(window).min().unwrap_or(0);
        if window_ms > 0 {
            self.live.engine().env().sleep(std::time::Duration::from_millis(window_ms)).await;
        }
    }

    /// Records and bytes that a flush can take to every member within the lease.
    fn room(&self) -> (usize, usize) {
        let each = limits::FLUSH_POSTS / self.members.len().max(1);
        let one_by_one = self.members.iter().any(|m| m.follower.kind == Kind::Streamcast);
        let most = if one_by_one { STREAMCAST_ROWS } else { limits::RUN_RECORDS as usize };
        let records = if one_by_one { each.clamp(1, most) } else { most };
        (records, each.clamp(1, FLUSH_FRAMES) * limits::FRAME_BYTES)
    }

    /// True if an item is the one that we saw, but perhaps for its version.
    fn is_ours(&self, now: &Cohort) -> bool {
        let Cohort { place, position, version: _, lease, sending } = now;
        *place == self.cohort.place
            && *position == self.cohort.position
            && *sending == self.cohort.sending
            && if self.held { now.holds(&self.token) } else { *lease == self.cohort.lease }
    }

    /// A write of the cohort's item on the condition that it is as we saw it.
    fn write(&self, changes: Vec<Change>) -> Write {
        let lease = match &self.cohort.lease {
            Some((token, _)) => Condition::Equals("lease".into(), token.as_str().into()),
            None => Condition::Lacks("lease".into()),
        };
        let position = (self.cohort.position as i64).into();
        Write::update(keys::cohort(&self.partition), changes)
            .when(Condition::Equals("version".into(), self.cohort.version.into()))
            .when(Condition::Equals("position".into(), position))
            .when(lease)
    }

    /// Says that rows are being posted. False if the cohort is another's.
    async fn announce(&mut self, rows: &Rows, doubt: Option<u64>) -> Result<bool, Error> {
        let until_us = self.live.now_us() + us(limits::LEASE);
        let after = Cohort {
            position: rows.start(),
            lease: Some((self.token.clone(), until_us)),
            sending: Some(rows.next().max(doubt.unwrap_or(0))),
            ..self.cohort.clone()
        };
        let set = |name: &str, n: i64| Change::Set(name.into(), n.into());
        let changes = vec![
            set("position", rows.start() as i64),
            Change::Set("lease".into(), self.token.as_str().into()),
            set("until_us", until_us),
            set("sending", after.sending.unwrap_or(0) as i64),
        ];
        for attempt in 0..COMMIT_ATTEMPTS {
            let outcome = self.live.commit(vec![self.write(changes.clone())]).await?;
            let written = match &outcome {
                Outcome::Done => Written::Done,
                Outcome::Refused(_) => {
                    let now = outcome.refused_by(0).flatten();
                    let now = now.map(|item| self.decode(item)).transpose()?;
                    self.learn(now, &after).await?
                }
                Outcome::Unknown => {
                    let now = self.live.cohort(&self.partition).await?;
                    self.learn(now, &after).await?
                }
            };
            match written {
                Written::Done => {
                    self.cohort = Cohort { version: self.cohort.version, ..after };
                    self.held = true;
                    self.posted = None;
                    return Ok(true);
                }
                Written::Over => return Ok(false),
                Written::Retry => self.live.back_off(attempt).await,
            }
        }
        Err(Error::Busy)
    }

    fn decode(&self, item: &Item) -> Result<Cohort, Error> {
        Cohort::decode(&keys::cohort(&self.partition), item)
    }

    /// Learns from the item that is there instead of the one we saw.
    async fn learn(&mut self, now: Option<Cohort>, after: &Cohort) -> Result<Written, Error> {
        let Some(now) = now else { return Ok(Written::Over) };
        // Our own earlier attempt.
        if now == (Cohort { version: now.version, ..after.clone() }) {
            if now.version != self.cohort.version {
                self.cohort.version = now.version;
                self.welcome().await?;
            }
            return Ok(Written::Done);
        }
        if !self.is_ours(&now) {
            return Ok(Written::Over);
        }
        if now.version != self.cohort.version {
            self.cohort.version = now.version;
            self.welcome().await?;
        }
        Ok(Written::Retry)
    }

    /// Takes those in who joined since the members were listed: they get what the others were posted.
    async fn welcome(&mut self) -> Result<(), Error> {
        let known: std::collections::HashSet<(String, String)> = self
            .members
            .iter()
            .map(|m| (m.follower.connection.clone(), m.follower.subscription.clone()))
            .collect();
        let mut newcomers = self.live.members(&self.partition).await?;
        newcomers.retain(|m| {
            !known.contains(&(m.follower.connection.clone(), m.follower.subscription.clone()))
        });
        if let Some(rows) = self.posted.take() {
            let welcomed = self.flush(&rows, newcomers).await?;
            self.posted = Some(rows);
            newcomers = welcomed.ok_or(Error::Busy)?;
        }
        self.members.extend(newcomers);
        Ok(())
    }

    /// Closes those of whom nobody knows what a dead delivery, which was posting up to `end`, has posted to them.
    async fn part_with_the_doubtful(&mut self, end: u64) -> Result<(), Error> {
        let (doubtful, sure): (Vec<_>, Vec<_>) = std::mem::take(&mut self.members)
            .into_iter()
            .partition(|m| m.follower.kind == Kind::Streamcast && m.from < end);
        doubtful.iter().for_each(|_| self.live.count(|c| &c.doubtful));
        self.members = sure;
        let lost = doubtful.into_iter().map(|m| (m, Lost::Closed)).collect();
        self.part(lost).await
    }

    async fn part(&self, lost: Vec<(Member, Lost)>) -> Result<(), Error> {
        let partings = lost.iter().map(|(member, lost)| self.live.part(&member.follower, *lost));
        let partings: Vec<_> = partings.collect();
        stream::iter(partings).buffer_unordered(PARALLEL_PARTINGS).try_collect::<Vec<()>>().await?;
        Ok(())
    }

    /// Posts rows to members. Answers those who have them all; whoever was lost on the way is parted with. `None` if
    /// the time did not suffice for all.
    async fn flush(&self, rows: &Rows, members: Vec<Member>) -> Result<Option<Vec<Member>>, Error> {
        let lease_us = self.cohort.lease.as_ref().map_or(0, |(_, until_us)| *until_us);
        let until_us = self.stop.0.min(lease_us);
        let mut made: HashMap<(bool, Option<String>, u64), Arc<Messages>> = HashMap::new();
        let mut posts = Vec::with_capacity(members.len());
        for member in members {
            let Member { follower, from } = &member;
            let from = (*from).max(rows.start());
            let filter = follower.filter.as_ref();
            let wish = (
                follower.kind == Kind::Native,
                filter.map(|filter| filter.text().get().to_owned()),
                from,
            );
            let messages = made
                .entry(wish)
                .or_insert_with(|| Arc::new(rows.messages(follower.kind, from, filter)));
            posts.push((member, Arc::clone(messages)));
        }
        let posts: Vec<_> = posts
            .into_iter()
            .map(|(member, messages)| async move {
                let sent = self.live.send(&member.follower, &messages.messages, until_us).await;
                let broken = messages.broken.then_some(Lost::Closed);
                (member, sent.lost.or(broken))
            })
            .collect();
        let outcomes: Vec<_> =
            stream::iter(posts).buffer_unordered(limits::PARALLEL_POSTS).collect().await;
        let mut kept = Vec::with_capacity(outcomes.len());
        let mut lost = Vec::new();
        let mut late = false;
        for (member, outcome) in outcomes {
            match outcome {
                None => kept.push(member),
                Some(Lost::Late) => late = true,
                Some(why) => lost.push((member, why)),
            }
        }
        if late && self.live.now_us() >= lease_us {
            // The lease is over: whatever there is to do is another's.
            return Ok(None);
        }
        // Before the position may move: what a lost member lacks, nobody would send it.
        self.part(lost).await?;
        Ok((!late).then_some(kept))
    }

    /// Puts the cohort to sleep until the next push.
    async fn sleep(&mut self, at: u64, tail: u64) -> Result<Written, Error> {
        for attempt in 0..COMMIT_ATTEMPTS {
            let [head, entry] = self.live.engine().live_sleep(&self.partition, tail, self.ready);
            let rest = self
                .write(vec![
                    Change::Set("position".into(), (at as i64).into()),
                    Change::Remove("sending".into()),
                    Change::Remove("lease".into()),
                    Change::Remove("until_us".into()),
                ])
                .when(match self.cohort.sending {
                    Some(sending) => Condition::Equals("sending".into(), (sending as i64).into()),
                    None => Condition::Lacks("sending".into()),
                });
            let outcome = self.live.commit(vec![head, entry, rest]).await?;
            if matches!(outcome, Outcome::Done) {
                return Ok(Written::Done);
            }
            if matches!(outcome, Outcome::Unknown) || outcome.refused_by(1).is_some() {
                match self.live.engine().live_ready(&self.partition).await? {
                    // It is asleep, by us or by another who saw the same.
                    None => return Ok(Written::Done),
                    Some(ready) => self.ready = ready,
                }
            }
            let now = match outcome.refused_by(2) {
                Some(item) => item.map(|item| self.decode(item)).transpose()?,
                None => self.live.cohort(&self.partition).await?,
            };
            match now {
                Some(now) if self.is_ours(&now) => {
                    if now.version != self.cohort.version {
                        self.cohort.version = now.version;
                        self.welcome().await?;
                    }
                }
                _ => return Ok(Written::Over),
            }
            if outcome.refused_by(0).is_some() {
                return Ok(Written::Retry);
            }
            self.live.back_off(attempt).await;
        }
        Err(Error::Busy)
    }

    /// The time is over, and everything that was announced was posted: leaves the rest to the next invocation.
    async fn release(mut self) -> Result<Progress, Error> {
        let Some(at) = self.posted.as_ref().map(Rows::next).filter(|_| self.held) else {
            return Ok(Progress::Again);
        };
        let after = Cohort { position: at, lease: None, sending: None, ..self.cohort.clone() };
        for attempt in 0..COMMIT_ATTEMPTS {
            let write = self.write(vec![
                Change::Set("position".into(), (at as i64).into()),
                Change::Remove("sending".into()),
                Change::Remove("lease".into()),
                Change::Remove("until_us".into()),
            ]);
            let outcome = self.live.commit(vec![write]).await?;
            let now = match &outcome {
                Outcome::Done => return Ok(Progress::Again),
                Outcome::Refused(_) => {
                    let now = outcome.refused_by(0).flatten();
                    now.map(|item| self.decode(item)).transpose()?
                }
                Outcome::Unknown => self.live.cohort(&self.partition).await?,
            };
            match self.learn(now, &after).await? {
                Written::Done => return Ok(Progress::Again),
                Written::Over => return Ok(Progress::Done),
                Written::Retry => self.live.back_off(attempt).await,
            }
        }
        Err(Error::Busy)
    }

    /// The time did not suffice for what was announced. Gives up the lease and leaves word of what may have been posted.
    async fn give_up(self) -> Result<Progress, Error> {
        let mine = Condition::Equals("lease".into(), self.token.as_str().into());
        let write = Write::update(
            keys::cohort(&self.partition),
            vec![Change::Remove("lease".into()), Change::Remove("until_us".into())],
        )
        .when(mine);
        // If it is not ours any more, or the reply is lost, the lease is or will be over.
        self.live.commit(vec![write]).await?;
        Ok(Progress::Again)
    }

    /// The partition is not there any more: everybody is told, and the cohort is dissolved.
    async fn end(self) -> Result<Progress, Error> {
        let stream = &self.cohort.place.stream;
        let until_us = self.stop.0;
        let ends = self.members.iter().map(|m| self.live.end(&m.follower, stream, until_us));
        let ends: Vec<_> = ends.collect();
        stream::iter(ends).buffer_unordered(PARALLEL_PARTINGS).try_collect::<Vec<()>>().await?;
        self.live.dissolve_if_empty(&self.partition).await?;
        Ok(Progress::Done)
    }
}
