//! Exactly-once publishers: who they are, how far each has come, and who speaks for them.
//!
//! A publisher numbers its rows from 1. Its *mark* says which number was committed last, and is written by the very
//! write that commits the rows, on the condition that it is the mark that the rows were judged by. A *claim* takes a
//! publisher over: it counts the mark's epoch up, so that what the claimant before still has on its way is refused,
//! and what had been committed counts.
//!
//! A mark is a text: `<life> <epoch> <last seq> [<first seq>:<first offset>:<rows>,..]`, the latest ranges last. Rows in
//! one row of numbers and offsets are one range. The life is the stream's: when it is revived, numbers begin again.
//!
//! Marks lie in the partition's head, where they cost nothing, under `m.<digest of the id>`. The head takes
//! [`limits::HEAD_MARKS`] of them. A claim that finds it full moves the one whose rows are the oldest into an item of
//! its own; from then on that publisher's commits are transactions over head and item, until it claims again. A mark
//! is in one of the two places: a claim that finds it in neither makes it on the condition that it is in neither.

use std::collections::{HashMap, VecDeque};

use tidewheel_store::{Change, Commit, CommitError, Condition, Item, Value, Write};

use crate::{
    Engine, Error, PartitionId, Uuid,
    generations::retired_error,
    head::{Head, MARK},
    keys, limits,
};

/// A publisher as it was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its id.
    pub publisher: String,
    /// Counts claims: only the latest may publish.
    pub epoch: i64,
    /// The number of its last committed row; 0 before the first.
    pub last_seq: u64,
    /// The offset of that row.
    pub last_offset: Option<u64>,
}

/// Rows in one row of numbers and offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) rows: u64,
}

impl Range {
    fn offset_of(&self, seq: u64) -> Option<u64> {
        let at = seq.checked_sub(self.seq).filter(|&at| at < self.rows)?;
        Some(self.offset + at)
    }
}

/// Adds a range at the end of others, and lets the oldest go.
fn extend(ranges: &mut VecDeque<Range>, range: Range, keep: usize) {
    match ranges.back_mut() {
        Some(last)
            if last.seq + last.rows == range.seq && last.offset + last.rows == range.offset =>
        {
            last.rows += range.rows;
        }
        _ => ranges.push_back(range),
    }
    while ranges.len() > keep {
        ranges.pop_front();
    }
}

/// How far a publisher has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) life: i64,
    pub(crate) epoch: i64,
    pub(crate) last_seq: u64,
    ranges: VecDeque<Range>,
}

impl Mark {
    pub(crate) fn encode(&self) -> Value {
        let ranges = self.ranges.iter().map(|r| format!("{}:{}:{}", r.seq, r.offset, r.rows));
        let ranges = ranges.collect::<Vec<_>>().join(",");
        Value::Str(format!("{} {} {} {ranges}", self.life, self.epoch, self.last_seq))
    }

    pub(crate) fn decode(value: &Value) -> Option<Self> {
        let Value::Str(text) = value else { return None };
        let mut parts = text.split(' ');
        let life = parts.next()?.parse().ok()?;
        let epoch = parts.next()?.parse().ok()?;
        let last_seq = parts.next()?.parse().ok()?;
        let range = |text: &str| {
            let mut numbers = text.split(':').map(|n| n.parse::<u64>().ok());
            Some(Range { seq: numbers.next()??, offset: numbers.next()??, rows: numbers.next()?? })
        };
        let ranges = parts.next()?.split(',').filter(|r| !r.is_empty());
        let ranges = ranges.map(range).collect::<Option<_>>()?;
        Some(Self { life, epoch, last_seq, ranges })
    }

    /// Takes note of rows that follow the last one.
    pub(crate) fn advance(&mut self, offset: u64, rows: u64) {
        let seq = self.last_seq + 1;
        self.last_seq += rows;
        extend(&mut self.ranges, Range { seq, offset, rows }, limits::MARK_RANGES);
    }

    pub(crate) fn offset_of(&self, seq: u64) -> Option<u64> {
        self.ranges.iter().rev().find_map(|r| r.offset_of(seq))
    }

    pub(crate) fn last_offset(&self) -> Option<u64> {
        self.offset_of(self.last_seq)
    }

    /// The mark as a claim in this life of the stream leaves it.
    fn claimed(&self, life: i64) -> Self {
        let epoch = self.epoch + 1;
        if self.life == life {
            return Self { epoch, ..self.clone() };
        }
        Self { life, epoch, ..Self::default() }
    }
}

/// Ranges that this process has committed, by life and publisher's digest. More than a mark remembers.
#[derive(Default)]
pub(crate) struct LandedRanges(HashMap<(i64, String), VecDeque<Range>>);

impl LandedRanges {
    pub(crate) fn landed(&mut self, life: i64, publisher: &str, range: Range) {
        if self.0.len() >= limits::PUBLISHERS {
            self.0.clear();
        }
        let ranges = self.0.entry((life, publisher.to_owned())).or_default();
        extend(ranges, range, limits::PUBLISHER_RANGES);
    }

    pub(crate) fn offset_of(&self, life: i64, publisher: &str, seq: u64) -> Option<u64> {
        let ranges = self.0.get(&(life, publisher.to_owned()))?;
        ranges.iter().rev().find_map(|r| r.offset_of(seq))
    }
}

/// What a publisher's mark is found by.
pub(crate) fn digest(publisher: &str) -> String {
    let mut digest = Uuid::derived(&[b"publisher", publisher.as_bytes()]).simple();
    // Eighty bits: the head has room for few, and these are kept.
    digest.truncate(20);
    digest
}

pub(crate) fn attribute(digest: &str) -> String {
    format!("{MARK}{digest}")
}

/// The condition that a mark of the head is this.
pub(crate) fn is_in_head(digest: &str, mark: &Mark) -> Condition {
    Condition::Equals(attribute(digest), mark.encode())
}

/// The write that moves a mark which lies in an item of its own.
pub(crate) fn item_write(
    partition: &PartitionId,
    digest: &str,
    before: &Mark,
    after: &Mark,
) -> Write {
    let changes = vec![Change::Set("mark".into(), after.encode())];
    Write::update(keys::mark(partition, digest), changes)
        .when(Condition::Equals("mark".into(), before.encode()))
}

impl Engine {
    /// A mark that lies in an item of its own.
    pub(crate) async fn mark_item(
        &self,
        partition: &PartitionId,
        digest: &str,
    ) -> Result<Option<Mark>, Error> {
        let Some(item) = self.get(&keys::mark(partition, digest)).await? else { return Ok(None) };
        let mark = item.get("mark").and_then(Mark::decode);
        let damaged = || Error::Corrupt(format!("mark {digest} of partition {partition}"));
        mark.map(Some).ok_or_else(damaged)
    }

    /// Takes a publisher over. Whoever had it before publishes nothing more as it, and what was committed counts in
    /// `last_seq`. A claim whose reply was lost is made again, which does no harm.
    ///
    /// # Errors
    /// [`Error::NotDeclared`]; [`Error::Invalid`] if the stream's publishers are not exactly once; [`Error::Retired`];
    /// [`Error::Limit`] beyond the stream's publishers; [`Error::Name`].
    pub async fn claim_publisher(&self, name: &str, publisher: &str) -> Result<Claim, Error> {
        if publisher.is_empty() || publisher.len() > limits::PUBLISHER_BYTES {
            let (bytes, limit) = (publisher.len(), limits::PUBLISHER_BYTES);
            return Err(Error::Name { what: "the publisher's id", bytes, limit });
        }
        let digest = digest(publisher);
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let record = self.reread_stream(name).await?;
            let record = record.ok_or_else(|| Error::StreamNotFound(name.to_owned()))?;
            let Some(declared) = &record.declared else {
                return Err(Error::NotDeclared(name.to_owned()));
            };
            if !declared.declaration.exactly_once {
                return Err(Error::Invalid(format!("stream `{name}` is not exactly once")));
            }
            if let Some(retired) = declared.retired {
                return Err(retired_error(name, retired));
            }
            let partition = declared.partition();
            let Some(head) = self.head(&partition).await? else { continue };
            if head.epoch != declared.epoch {
                continue;
            }
            let (claimed, writes) = self
                .claim_writes(&head, &partition, &digest, declared.life, || {
                    let limit = declared.declaration.max_publishers;
                    let got = head.publishers as usize + 1;
                    let what = "exactly-once publishers of the stream";
                    if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
                })
                .await?;
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    // A transaction brings no image.
                    self.head(&partition).await?;
                    return Ok(Claim {
                        publisher: publisher.to_owned(),
                        epoch: claimed.epoch,
                        last_seq: claimed.last_seq,
                        last_offset: claimed.last_offset(),
                    });
                }
                Err(CommitError::Conflict(_)) => {}
                // Ours or not, it is claimed again, over whoever has it now.
                Err(CommitError::Unknown(_)) => self.back_off(attempt).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// The mark as a claim leaves it, and the writes that do so.
    async fn claim_writes(
        &self,
        head: &Head,
        partition: &PartitionId,
        digest: &str,
        life: i64,
        room: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(Mark, Vec<Write>), Error> {
        let key = keys::head(partition);
        let epoch = Condition::Equals("epoch".into(), head.epoch.into());
        if let Some(mark) = head.marks.get(digest) {
            let claimed = mark.claimed(life);
            let changes = vec![Change::Set(attribute(digest), claimed.encode())];
            let write = Write::update(key, changes).when(epoch).when(is_in_head(digest, mark));
            return Ok((claimed, vec![write]));
        }
        let item = self.mark_item(partition, digest).await?;
        let claimed = item.clone().unwrap_or_default().claimed(life);
        let mut changes = vec![Change::Set(attribute(digest), claimed.encode())];
        let mut conditions = vec![epoch, Condition::Lacks(attribute(digest))];
        let mut writes = Vec::with_capacity(3);
        let place = keys::mark(partition, digest);
        match &item {
            Some(mark) => writes
                .push(Write::delete(place).when(Condition::Equals("mark".into(), mark.encode()))),
            None => {
                room()?;
                writes.push(Write::check(place).when(Condition::Absent));
                changes.push(Change::Set("publishers".into(), (head.publishers + 1).into()));
                conditions.push(match head.publishers {
                    0 => Condition::Lacks("publishers".into()),
                    n => Condition::Equals("publishers".into(), n.into()),
                });
            }
        }
        if head.marks.len() >= limits::HEAD_MARKS {
            let oldest = head.marks.iter().min_by_key(|(_, mark)| mark.last_offset());
            if let Some((other, mark)) = oldest {
                changes.push(Change::Remove(attribute(other)));
                conditions.push(is_in_head(other, mark));
                let moved = Item::new().with("mark", mark.encode());
                writes.push(Write::put(keys::mark(partition, other), moved));
            }
        }
        let mut write = Write::update(key, changes);
        write.conditions = conditions;
        writes.insert(0, write);
        Ok((claimed, writes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_out_as_it_went_in_and_remembers_its_last_ranges() {
        let mut mark = Mark { life: 2, epoch: 7, ..Mark::default() };
        assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
        mark.advance(10, 5);
        mark.advance(15, 5);
        assert_eq!(mark.ranges.len(), 1, "one row of offsets is one range");
        for n in 1..10 {
            mark.advance(100 * n, 2);
        }
        assert_eq!(mark.ranges.len(), limits::MARK_RANGES);
        assert_eq!(mark.last_seq, 28);
        assert_eq!((mark.last_offset(), mark.offset_of(27)), (Some(901), Some(900)));
        assert_eq!((mark.offset_of(1), mark.offset_of(29)), (None, None));
        assert_eq!(Mark::decode(&mark.encode()).unwrap(), mark);
        assert_eq!(Mark::decode(&Value::Str("1 2".into())), None);
        assert_eq!(Mark::decode(&Value::Str("1 2 3 4:5".into())), None);
    }

    #[test]
    fn a_revived_stream_begins_again_under_another_epoch() {
        let mut mark = Mark { life: 0, epoch: 3, ..Mark::default() };
        mark.advance(0, 9);
        let again = mark.claimed(0);
        assert_eq!((again.epoch, again.last_seq), (4, 9));
        let revived = mark.claimed(1);
        assert_eq!((revived.epoch, revived.last_seq, revived.last_offset()), (4, 0, None));
    }
}
