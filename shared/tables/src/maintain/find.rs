//! Finding work: which streams have something to seal, and what else is due in a round.
//!
//! Whether a stream has rows that its table lacks is told by the wake-up index of the tables' own group: two small reads
//! for each stream, whatever it holds. The rest is due every so many rounds; a stream's turn follows from its
//! id, so that the streams take turns and no record of the last turn is kept. A round that is skipped costs nothing but
//! time.

use futures_util::{StreamExt, stream};
use tidewheel_engine::{StreamInfo, TABLE_GROUP, Uuid};

use super::{Error, Maintenance, Work};
use crate::limits;

/// Rounds are minutes: a stream's retention is applied once in so many of them.
const RETAIN_ROUNDS: i64 = 5;
/// A stream's blobs are collected once in so many rounds. They cost room only, and listing them costs money.
const COLLECT_ROUNDS: i64 = 24 * 60;
/// A table's small files are looked for once in so many rounds. It is one small read if there is nothing new.
const COMPACT_ROUNDS: i64 = 5;
/// A table is cleaned once in so many rounds: its directory is listed.
const CLEAN_ROUNDS: i64 = 6 * 60;
/// Old traces are swept once in so many rounds.
const TRACES_ROUNDS: i64 = 60;

/// How far a stream's table is behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The stream.
    pub stream: String,
    /// Records in the log that the table does not have: the translation lag.
    pub rows: u64,
    /// How long the oldest of them has been in the log, µs.
    pub age_us: i64,
}

/// What is due.
#[derive(Debug, Default)]
pub struct Found {
    /// The work.
    pub work: Vec<Work>,
    /// Streams that may have rows to seal.
    pub behind: usize,
    /// How far tables are behind, of some of those streams; every round looks at others.
    pub lags: Vec<Lag>,
    /// Streams of which nothing could be found out; the others are not affected.
    pub failed: Vec<(String, Error)>,
    /// The stream after which to go on; `None` if these were the last.
    pub next: Option<String>,
}

/// What is due of one stream.
#[derive(Default)]
struct Due {
    seal: bool,
    retain: bool,
    collect: bool,
    compact: bool,
    clean: bool,
}

impl Maintenance {
    /// The round of a time, µs since 1970: its minute.
    pub fn round(time_us: i64) -> i64 {
        time_us.div_euclid(60_000_000)
    }

    /// Finds the work of a round among the streams after one, [`limits::FIND_STREAMS`] at most. What is not of one stream
    /// is found with the first of them.
    ///
    /// # Errors
    /// Only if the streams cannot be listed.
    pub async fn find(&self, round: i64, after: Option<&str>) -> Result<Found, Error> {
        let names = self.engine.streams(after, limits::FIND_STREAMS).await?;
        let mut found = Found {
            next: names.last().filter(|_| names.len() == limits::FIND_STREAMS).cloned(),
            ..Found::default()
        };
        if after.is_none() {
            let deleted = self.engine.deleted_streams().await?;
            found.work.extend(deleted.into_iter().map(|id| Work::Sweep { id: id.to_string() }));
            found.work.extend(self.removals().await?);
            if round.rem_euclid(TRACES_ROUNDS) == 0 {
                found.work.extend([Work::Traces, Work::Keys]);
            }
            if self.engine.timers_due().await? {
                found.work.push(Work::Timers);
            }
        }
        let looks = names.into_iter().map(|name| async move {
            let due = self.due(round, &name).await;
            (name, due)
        });
        let mut looks = stream::iter(looks).buffered(limits::FIND_AT_ONCE);
        let mut behind = Vec::new();
        while let Some((name, due)) = looks.next().await {
            let due = match due {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(stream = name, %error, "the stream's work was not found");
                    found.failed.push((name, error));
                    continue;
                }
            };
            let stream = || name.clone();
            if due.retain {
                found.work.push(Work::Retain { stream: stream(), after: None });
            }
            if due.collect {
                found.work.push(Work::Collect { stream: stream(), after: None });
            }
            if due.compact {
                found.work.push(Work::Compact { stream: stream() });
            }
            if due.clean {
                found.work.push(Work::Clean { stream: stream() });
            }
            if due.seal {
                found.work.push(Work::Seal { stream: stream() });
                behind.push(name);
            }
        }
        found.behind = behind.len();
        found.lags = self.lags(round, behind).await;
        Ok(found)
    }

    /// The tables of deleted streams whose time is over.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn removals(&self) -> Result<Vec<Work>, Error> {
        let buried = self.tables.buried().await?;
        Ok(buried.into_iter().map(|id| Work::Drop { id: id.to_string() }).collect())
    }

    async fn due(&self, round: i64, name: &str) -> Result<Due, Error> {
        // Deleted since it was listed.
        let Some(info) = self.engine.stream(name).await? else {
            return Ok(Due::default());
        };
        let declared = self.engine.declared(name).await?;
        let aged = declared.is_some_and(|d| d.declaration.max_age_us.is_some());
        let publishes = self.tables.inner.settings.publish_encrypted || !encrypted(&info);
        Ok(Due {
            seal: publishes && self.engine.has_ready(name, TABLE_GROUP).await?,
            retain: (info.options.expires() || aged) && turn(round, &info.id, RETAIN_ROUNDS),
            collect: turn(round, &info.id, COLLECT_ROUNDS),
            compact: publishes && turn(round, &info.id, COMPACT_ROUNDS),
            clean: publishes && turn(round, &info.id, CLEAN_ROUNDS),
        })
    }

    /// How far some of the tables are behind: not all, so that looking costs little beside the work, and each round others.
    async fn lags(&self, round: i64, mut behind: Vec<String>) -> Vec<Lag> {
        let now_us = self.engine.env().now_us();
        if !behind.is_empty() {
            let at = round.wrapping_mul(limits::FIND_LAGS as i64).rem_euclid(behind.len() as i64);
            behind.rotate_left(at as usize);
            behind.truncate(limits::FIND_LAGS);
        }
        let looks = behind.into_iter().map(|name| async move {
            let freshness = self.tables.freshness(&name).await;
            (name, freshness)
        });
        let mut looks = stream::iter(looks).buffered(limits::FIND_AT_ONCE);
        let mut lags = Vec::new();
        while let Some((stream, freshness)) = looks.next().await {
            match freshness {
                Ok(freshness) => {
                    let age_us = freshness.oldest_us.map_or(0, |us| (now_us - us).max(0));
                    lags.push(Lag { stream, rows: freshness.behind, age_us });
                }
                Err(error) => {
                    tracing::warn!(stream, %error, "how far the table is behind is unknown")
                }
            }
        }
        lags
    }
}

fn encrypted(info: &StreamInfo) -> bool {
    info.options.encryption_enabled
}

/// True if it is a stream's turn in this round: once in so many, and not all streams in the same.
fn turn(round: i64, stream: &Uuid, rounds: i64) -> bool {
    let bytes = stream.as_bytes();
    let at = i64::from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    (round + at).rem_euclid(rounds) == 0
}
