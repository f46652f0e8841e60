//! What the clients of a run saw: every record sent, every batch delivered, every acknowledgement tried.
//!
//! A call is noted before it is made and its answer when it has come, so that a call whose caller died shows as one
//! without an answer: it may have happened or not. Times are the run's own, true for everybody.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use tidewheel_engine::{Message, PartitionId, Verdict};

use super::{Violation, publisher::Published};

/// Names one logical record through all its retries. It is in the payload.
pub type Tag = u64;

/// A record that some producer sent.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Where to.
    pub stream: String,
    /// Which partition.
    pub partition: String,
    /// Its id for deduplication, if it has one.
    pub id: Option<String>,
    /// Its payload.
    pub payload: Bytes,
    /// When it was first sent.
    pub first: Option<Duration>,
    /// Answers that name an offset, and when they came.
    pub placed: Vec<(u64, Duration)>,
    /// Calls without an answer, or whose answer was that the outcome is unknown.
    pub doubtful: u32,
    /// Calls that were answered with "nothing was written".
    pub refused: u32,
}

/// Records of one call to one partition: they land together.
#[derive(Clone, Debug)]
pub struct SentBatch {
    /// In the order of the call.
    pub tags: Vec<Tag>,
}

/// A batch that a consumer got.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// For which group.
    pub group: String,
    /// From where.
    pub stream: String,
    /// Which partition.
    pub partition: PartitionId,
    /// Under which lease; empty if it was committed at delivery.
    pub lease: String,
    /// Offsets and tags.
    pub records: Vec<(u64, Tag)>,
    /// When the pop was called, and when it answered.
    pub invoked: Duration,
    /// See [`Delivery::invoked`].
    pub returned: Duration,
    /// How far the clock of the process was off.
    pub skew_us: i64,
    /// For how long the lease was granted.
    pub lease_time: Duration,
}

impl Delivery {
    /// The first offset.
    pub fn from(&self) -> u64 {
        self.records.first().map_or(0, |r| r.0)
    }

    /// The offset after the last one.
    pub fn end(&self) -> u64 {
        self.records.last().map_or(0, |r| r.0 + 1)
    }
}

/// What came of an attempt to settle a delivery.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The caller heard nothing, or that the outcome is unknown.
    Doubtful,
    /// It happened.
    Done {
        /// When the caller heard of it.
        at: Duration,
        /// Offsets that were given up.
        dead: BTreeSet<u64>,
        /// It had all been done before: this call did nothing.
        noop: bool,
    },
    /// It did not happen.
    Refused,
}

/// How a delivery was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By acknowledging.
    Ack,
    /// By a cycle.
    Cycle,
    /// By a transaction.
    Transaction,
}

/// An attempt to settle a delivery, or a part of it.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Which delivery.
    pub delivery: usize,
    /// How.
    pub by: By,
    /// What was said of each offset, in order.
    pub verdicts: Vec<(u64, Verdict)>,
    /// When it was tried.
    pub invoked: Duration,
    /// What came of it.
    pub answer: Answer,
}

impl Settlement {
    /// Every offset of the delivery below this is done if the settlement happened: up to the first record that comes
    /// again. `None` if it left nothing done.
    pub fn done_to(&self) -> Option<u64> {
        let empty = BTreeSet::new();
        let dead = if let Answer::Done { dead, .. } = &self.answer { dead } else { &empty };
        let mut to = None;
        for (offset, verdict) in &self.verdicts {
            match verdict {
                Verdict::Retry => break,
                Verdict::Failed if !dead.contains(offset) => break,
                _ => to = Some(offset + 1),
            }
        }
        to
    }

    /// True if it happened and did something.
    pub fn is_done(&self) -> bool {
        matches!(self.answer, Answer::Done { noop: false, .. })
    }
}

/// A table as somebody read it.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// The stream.
    pub stream: String,
    /// When the scan began, and when it ended.
    pub began: Duration,
    /// See [`Scanned::began`].
    pub ended: Duration,
    /// The partition's name, the offset and the tag of each row, in the table's order.
    pub rows: Vec<(String, u64, Tag)>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct History {
    /// Records by tag.
    pub sent: BTreeMap<Tag, Sent>,
    /// Batches.
    pub batches: Vec<SentBatch>,
    /// Deliveries.
    pub deliveries: Vec<Delivery>,
    /// Settlements.
    pub settlements: Vec<Settlement>,
    /// For each (stream, group): when a pop of it was first called, and when one was first answered.
    pub joined: BTreeMap<(String, String), (Duration, Option<Duration>)>,
    /// What readers by offset saw: (partition, offset) and the tag.
    pub read: Vec<(PartitionId, u64, Tag)>,
    /// Tables that were scanned on the way.
    pub scans: Vec<Scanned>,
    /// For each stream the snapshots that a sealer was told it had committed.
    pub snapshots: BTreeMap<String, BTreeSet<i64>>,
    /// What publishers into the declared stream saw.
    pub published: Published,
    /// What was seen to be wrong at once.
    pub violations: Vec<Violation>,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
    next_tag: Tag,
}

impl History {
    /// A tag that no record has.
    pub fn fresh_tag(&mut self) -> Tag {
        self.next_tag += 1;
        self.next_tag
    }

    /// Counts something.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Notes that something is wrong.
    pub fn violation(&mut self, check: &'static str, detail: impl Into<String>) {
        self.violations.push(Violation { check, detail: detail.into() });
    }

    /// Notes a delivery of one partition's messages; answers its place.
    pub fn delivered(&mut self, delivery: Delivery) -> usize {
        self.count("deliveries");
        self.deliveries.push(delivery);
        self.deliveries.len() - 1
    }

    /// Notes that a delivery is about to be settled; answers the settlement's place.
    pub fn settling(
        &mut self,
        delivery: usize,
        by: By,
        verdicts: Vec<(u64, Verdict)>,
        invoked: Duration,
    ) -> usize {
        let answer = Answer::Doubtful;
        self.settlements.push(Settlement { delivery, by, verdicts, invoked, answer });
        self.settlements.len() - 1
    }

    /// Notes what came of it.
    pub fn settled(&mut self, settlement: usize, answer: Answer) {
        self.count(match &answer {
            Answer::Doubtful => "settlements doubtful",
            Answer::Done { .. } => "settlements done",
            Answer::Refused => "settlements refused",
        });
        self.settlements[settlement].answer = answer;
    }

    /// The tag in a payload; 0 if there is none.
    pub fn tag_of(payload: &[u8]) -> Tag {
        #[derive(serde::Deserialize)]
        struct Tagged {
            tag: Tag,
        }
        serde_json::from_slice::<Tagged>(payload).map_or(0, |t| t.tag)
    }

    /// Offsets and tags of messages.
    pub fn records(messages: &[&Message]) -> Vec<(u64, Tag)> {
        messages.iter().map(|m| (m.record.offset, Self::tag_of(&m.record.payload))).collect()
    }

    /// What happened to a group on a partition, a line for each delivery and settlement, in the order of time: for a
    /// person who wants to know why a seed is broken.
    pub fn trace(&self, group: &str, partition: &PartitionId) -> Vec<String> {
        let mut lines = Vec::new();
        let own = |d: &Delivery| d.group == group && d.partition == *partition;
        for (place, d) in self.deliveries.iter().enumerate().filter(|(_, d)| own(d)) {
            let lease = d.lease.get(..6).unwrap_or_default();
            let (from, end, returned) = (d.from(), d.end(), d.returned);
            let text =
                format!("delivery {place}: {from}..{end} under {lease}, got at {returned:?}");
            lines.push((d.invoked, text));
            for s in self.settlements.iter().filter(|s| s.delivery == place) {
                let verdicts = (s.verdicts.first(), s.verdicts.last());
                let text = format!("delivery {place} {:?} {verdicts:?}: {:?}", s.by, s.answer);
                lines.push((s.invoked, text));
            }
        }
        lines.sort();
        lines.into_iter().map(|(at, text)| format!("{at:?} {text}")).collect()
    }
}
