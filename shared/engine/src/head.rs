//! The partition head: the one item that makes a partition's segments real.
//!
//! | attribute | meaning |
//! |---|---|
//! | `stream` `sid` `name` | the stream's name and id, the partition's name |
//! | `born` | the stream's version when the partition was made: groups that joined later find it by visiting, groups that had joined were told |
//! | `tail` | the offset that the next record gets |
//! | `base` `base_us` | the offset and the running time at which the list below begins |
//! | `segs` | descriptors since the last index page, each `<blob id> <records> <bytes>` |
//! | `gen` `gen_tail` | the number of the present id set, and the offset from which it is complete |
//! | `ids` | hashes of the ids of the records from `gen_tail` on, and a token for each append without ids |
//! | `mark` | the collector's mark, µs: an append is refused when its blob is not younger |
//! | `floor` | the lowest offset that can be read |
//! | `floor_due` `floor_us` | what lies below this may be deleted a grace after this time, µs |
//! | `asleep` | group ids (simple) that wait for a push to wake them |
//! | `epoch` | of a declared stream: counts its generations, see [`crate::declare`]; absent on any other |
//! | `m.<publisher>` | the mark of a publisher, see [`crate::publisher`] |
//! | `publishers` | how many publishers have a mark, here or elsewhere |
//!
//! Invariants: `floor <= base <= tail`; `base` plus the counts of `segs` is `tail`; `gen_tail <= tail`; an id of a
//! record at or above `gen_tail` is in `ids`. Whoever takes ids out of the set counts `gen` up in the same write.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidewheel_store::{BlobName, Item, Value};

use crate::{Error, PartitionId, Uuid, publisher::Mark, segment};

/// Begins the attribute of a publisher's mark.
pub(crate) const MARK: &str = "m.";

/// A segment as a head or a page names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The blob's id. It begins with the time the segment was made, which is the time of its records.
    pub(crate) blob: String,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Descriptor {
    pub(crate) fn encode(&self) -> Value {
        Value::Str(format!("{} {} {}", self.blob, self.count, self.bytes))
    }

    fn decode(value: &Value) -> Option<Self> {
        let Value::Str(text) = value else { return None };
        let mut parts = text.split(' ');
        let blob = parts.next()?.to_owned();
        let count = parts.next()?.parse().ok()?;
        let bytes = parts.next()?.parse().ok()?;
        Some(Self { blob, count, bytes })
    }

    /// The time of its records, µs, before the running maximum is taken.
    pub(crate) fn time_us(&self) -> i64 {
        BlobName::new("", self.blob.as_str()).made_us().unwrap_or(0)
    }
}

/// A descriptor in its place.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) descriptor: Descriptor,
    /// The offset of its first record.
    pub(crate) base: u64,
    /// The served time of its records: the maximum of all times up to here, µs.
    pub(crate) time_us: i64,
}

impl Placed {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.descriptor.count
    }
}

/// Puts descriptors in their places.
pub(crate) fn place(
    descriptors: &[Descriptor],
    base: u64,
    base_us: i64,
) -> impl Iterator<Item = Placed> + '_ {
    let mut at = base;
    let mut time_us = base_us;
    descriptors.iter().map(move |d| {
        time_us = time_us.max(d.time_us());
        let placed = Placed { descriptor: d.clone(), base: at, time_us };
        at += d.count;
        placed
    })
}

pub(crate) fn decode_descriptors(item: &Item) -> Option<Vec<Descriptor>> {
    item.list("segs").iter().map(Descriptor::decode).collect()
}

fn decode_marks(item: &Item) -> Option<BTreeMap<String, Mark>> {
    let marks = item.iter().filter_map(|(name, value)| Some((name.strip_prefix(MARK)?, value)));
    marks.map(|(publisher, value)| Some((publisher.to_owned(), Mark::decode(value)?))).collect()
}

/// A partition head, decoded.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) stream: String,
    pub(crate) stream_id: Uuid,
    pub(crate) name: String,
    pub(crate) born: i64,
    pub(crate) tail: u64,
    pub(crate) base: u64,
    pub(crate) base_us: i64,
    pub(crate) segments: Vec<Descriptor>,
    pub(crate) generation: i64,
    pub(crate) generation_tail: u64,
    pub(crate) ids: BTreeSet<Bytes>,
    pub(crate) mark_us: i64,
    pub(crate) floor: u64,
    pub(crate) asleep: BTreeSet<String>,
    /// 0 on a stream that is not declared.
    pub(crate) epoch: i64,
    /// By the publisher's digest.
    pub(crate) marks: BTreeMap<String, Mark>,
    pub(crate) publishers: i64,
}

impl Head {
    /// A head's first image, before its first append.
    pub(crate) fn new(stream: &str, stream_id: Uuid, name: &str, born: i64) -> Self {
        Self {
            stream: stream.to_owned(),
            stream_id,
            name: name.to_owned(),
            born,
            tail: 0,
            base: 0,
            base_us: 0,
            segments: Vec::new(),
            generation: 0,
            generation_tail: 0,
            ids: BTreeSet::new(),
            mark_us: 0,
            floor: 0,
            asleep: BTreeSet::new(),
            epoch: 0,
            marks: BTreeMap::new(),
            publishers: 0,
        }
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::new()
            .with("stream", self.stream.as_str())
            .with("sid", self.stream_id.to_string())
            .with("name", self.name.as_str())
            .with("born", self.born)
            .with("tail", self.tail as i64)
            .with("base", self.base as i64)
            .with("base_us", self.base_us)
            .with("segs", self.segments.iter().map(Descriptor::encode).collect::<Vec<_>>())
            .with("gen", self.generation)
            .with("gen_tail", self.generation_tail as i64)
            .with("mark", self.mark_us)
            .with("floor", self.floor as i64);
        if !self.ids.is_empty() {
            item.set("ids", Value::BytesSet(self.ids.clone()));
        }
        if !self.asleep.is_empty() {
            item.set("asleep", Value::StrSet(self.asleep.clone()));
        }
        if self.epoch > 0 {
            item.set("epoch", self.epoch);
        }
        if self.publishers > 0 {
            item.set("publishers", self.publishers);
        }
        for (publisher, mark) in &self.marks {
            item.set(format!("{MARK}{publisher}"), mark.encode());
        }
        item
    }

    pub(crate) fn decode(partition: &PartitionId, item: &Item) -> Result<Self, Error> {
        let read = || {
            let count = |name| item.int(name).and_then(|n| u64::try_from(n).ok());
            Some(Self {
                stream: item.str("stream")?.to_owned(),
                stream_id: Uuid::parse(item.str("sid")?)?,
                name: item.str("name")?.to_owned(),
                born: item.int("born")?,
                tail: count("tail")?,
                base: count("base")?,
                base_us: item.int("base_us")?,
                segments: decode_descriptors(item)?,
                generation: item.int("gen")?,
                generation_tail: count("gen_tail")?,
                ids: item.bytes_set("ids").cloned().unwrap_or_default(),
                mark_us: item.int("mark")?,
                floor: count("floor")?,
                asleep: item.str_set("asleep").cloned().unwrap_or_default(),
                epoch: item.int("epoch").unwrap_or_default(),
                marks: decode_marks(item)?,
                publishers: item.int("publishers").unwrap_or_default(),
            })
        };
        let head =
            read().ok_or_else(|| Error::Corrupt(format!("head of partition {partition}")))?;
        let counted: u64 = head.segments.iter().map(|d| d.count).sum();
        if head.base + counted != head.tail || head.floor > head.tail {
            return Err(Error::Corrupt(format!(
                "head of partition {partition}: base {} and {counted} records do not make tail {}, floor {}",
                head.base, head.tail, head.floor
            )));
        }
        Ok(head)
    }

    /// The segments since the last index page, in their places.
    pub(crate) fn placed(&self) -> impl Iterator<Item = Placed> + '_ {
        place(&self.segments, self.base, self.base_us)
    }

    /// The served time of the last record, µs.
    pub(crate) fn last_us(&self) -> i64 {
        self.segments.iter().map(Descriptor::time_us).fold(self.base_us, i64::max)
    }

    /// The segment of this blob, if it is in the list.
    pub(crate) fn find(&self, blob: &str) -> Option<Placed> {
        self.placed().find(|p| p.descriptor.blob == blob)
    }

    pub(crate) fn extent(&self) -> crate::Extent {
        crate::Extent { floor: self.floor, tail: self.tail }
    }
}

/// An id hash as the head's set holds it.
pub(crate) fn id_bytes(hash: u64) -> Bytes {
    Bytes::copy_from_slice(&hash.to_be_bytes())
}

/// The token of an append that carries no ids: a late copy of it is refused like any duplicate.
pub(crate) fn commit_token(blob: &str) -> u64 {
    segment::id_hash(blob)
}
