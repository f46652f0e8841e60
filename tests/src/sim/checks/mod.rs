//! Checkers: each compares what clients saw with what is stored, for one promise.
//!
//! | module | promise |
//! |---|---|
//! | `log` | acknowledged means kept; offsets are dense, increasing, never reused, and one order for everybody; a retried request has one effect |
//! | `queue` | a lease excludes others; nothing is skipped, nothing comes again after it was settled |
//! | `streams` | a cycle is all or nothing: state is the fold of its input, outputs are there exactly once |
//! | `transactions` | acknowledgement and push, both or neither |
//! | `dead_letters` | what was given up, exactly |
//! | `tables` | a table holds each row once, at every snapshot that was read, and agrees with the log row for row |
//! | `publishers` | numbered rows once and in order, frames whole, every row in its generation's schema |
//! | `garbage` | what a head names is there, also after collecting; what nothing names goes |
//! | `wake_up` | no message waits while a consumer polls |

mod dead_letters;
mod garbage;
mod log;
mod publishers;
mod queue;
mod streams;
mod tables;
mod transactions;
mod wake_up;

use std::collections::BTreeMap;

use bytes::Bytes;
use tidewheel_engine::{Engine, PartitionId, PartitionInfo};

use super::{History, World, history::Tag, keeper::STREAMS, world::Chance};

pub(crate) use wake_up::waiting;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker says so.
    pub check: &'static str,
    /// What it saw.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.detail)
    }
}

/// Violations that one checker keeps; one bug breaks many records.
const KEPT: usize = 20;

/// What a checker found.
pub(crate) struct Found {
    check: &'static str,
    violations: Vec<Violation>,
    more: usize,
}

impl Found {
    pub(crate) fn new(check: &'static str) -> Self {
        Self { check, violations: Vec::new(), more: 0 }
    }

    pub(crate) fn add(&mut self, detail: impl Into<String>) {
        if self.violations.len() < KEPT {
            self.violations.push(Violation { check: self.check, detail: detail.into() });
        } else {
            self.more += 1;
        }
    }

    fn into_violations(mut self) -> Vec<Violation> {
        if self.more > 0 {
            let detail = format!("and {} more", self.more);
            self.violations.push(Violation { check: self.check, detail });
        }
        self.violations
    }
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stored {
    pub(crate) offset: u64,
    pub(crate) tag: Tag,
    pub(crate) id: String,
    pub(crate) transaction_id: String,
    pub(crate) time_us: i64,
    pub(crate) payload: Bytes,
}

/// A partition as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Partition {
    pub(crate) info: PartitionInfo,
    pub(crate) floor: u64,
    pub(crate) tail: u64,
    pub(crate) records: Vec<Stored>,
}

impl Partition {
    pub(crate) fn at(&self, offset: u64) -> Option<&Stored> {
        self.records.get(usize::try_from(offset.checked_sub(self.floor)?).ok()?)
    }
}

/// Everything that is stored in logs, by stream and partition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Logs {
    pub(crate) streams: BTreeMap<&'static str, Vec<Partition>>,
}

impl Logs {
    pub(crate) fn of(&self, stream: &str) -> &[Partition] {
        self.streams.get(stream).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn partition(&self, id: &PartitionId) -> Option<&Partition> {
        self.streams.values().flatten().find(|p| p.info.id == *id)
    }

    /// Reads everything with an engine that remembers nothing.
    pub(crate) async fn read(engine: &Engine, found: &mut Found) -> Self {
        let mut logs = Self::default();
        for stream in STREAMS {
            let infos = match engine.partitions(stream, None, 1000).await {
                Ok(infos) => infos,
                Err(e) => {
                    found.add(format!("partitions of {stream}: {e}"));
                    continue;
                }
            };
            let mut partitions = Vec::new();
            for info in infos {
                match read_partition(engine, info.clone()).await {
                    Ok(partition) => partitions.push(partition),
                    Err(e) => found.add(format!("{stream}/{} cannot be read: {e}", info.name)),
                }
            }
            partitions.sort_by(|a, b| a.info.name.cmp(&b.info.name));
            logs.streams.insert(stream, partitions);
        }
        logs
    }
}

async fn read_partition(engine: &Engine, info: PartitionInfo) -> Result<Partition, String> {
    let mut records: Vec<Stored> = Vec::new();
    let mut next = 0;
    loop {
        let read =
            engine.read(&info.id, next, 1000, usize::MAX / 2).await.map_err(|e| e.to_string())?;
        for r in &read.records {
            let expected = records.last().map_or(read.extent.floor, |l| l.offset + 1);
            if r.offset != expected {
                return Err(format!("offset {} where {expected} belongs", r.offset));
            }
            records.push(Stored {
                offset: r.offset,
                tag: History::tag_of(&r.payload),
                id: r.id.to_string(),
                transaction_id: r.transaction_id.clone(),
                time_us: r.time_us,
                payload: r.payload.clone(),
            });
        }
        next = read.next;
        if read.records.is_empty() || next >= read.extent.tail {
            if records.last().map_or(read.extent.floor, |l| l.offset + 1) != read.extent.tail {
                return Err(format!("it ends before its tail {}", read.extent.tail));
            }
            let (floor, tail) = (read.extent.floor, read.extent.tail);
            return Ok(Partition { info, floor, tail, records });
        }
    }
}

/// Checks a run that is over.
pub(crate) async fn check(world: &World, chance: &mut Chance) -> Vec<Violation> {
    let engine = world.clean_engine(chance.seed());
    let mut found = Found::new("log");
    let logs = Logs::read(&engine, &mut found).await;
    let mut all = found.into_violations();
    {
        let history = world.history.lock();
        all.extend(log::check(&history, &logs).into_violations());
        all.extend(queue::check(&history, &logs).into_violations());
    }
    all.extend(streams::check(&engine, &logs).await.into_violations());
    {
        let history = world.history.lock();
        all.extend(transactions::check(&history, &logs).into_violations());
    }
    all.extend(dead_letters::check(world, &engine, &logs).await.into_violations());
    all.extend(tables::check(world, &engine, &logs).await.into_violations());
    all.extend(publishers::check(world, &engine).await.into_violations());
    all.extend(queue::check_replay(world, &engine, &logs).await.into_violations());
    all.extend(garbage::check(world, chance, &logs).await.into_violations());
    all
}
