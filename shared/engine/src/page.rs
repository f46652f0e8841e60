//! Index pages: the descriptors that left a partition's head, forever.
//!
//! | attribute | meaning |
//! |---|---|
//! | `base` `base_us` | the offset and the running time at which the page begins |
//! | `tail` `last_us` | the same at its end |
//! | `segs` | descriptors, as in the head |
//! | `ids` | the id of the blob with the page's id hashes (8 bytes a record, big-endian, 0 for none); absent if there are none |
//!
//! A page is written in the transaction that takes its descriptors out of the head, so pages and head always join
//! without a gap, and a writer that was frozen cannot put an old page in a new one's place. It is never changed;
//! retention deletes it whole.

use tidewheel_store::{Item, Value};

use crate::{
    Error, PartitionId,
    head::{Descriptor, Head, Placed, decode_descriptors, place},
};

#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) base: u64,
    pub(crate) base_us: i64,
    pub(crate) tail: u64,
    pub(crate) last_us: i64,
    pub(crate) segments: Vec<Descriptor>,
    pub(crate) ids: Option<String>,
}

impl Page {
    /// The page that the head's list becomes.
    pub(crate) fn of(head: &Head, ids: Option<String>) -> Self {
        Self {
            base: head.base,
            base_us: head.base_us,
            tail: head.tail,
            last_us: head.last_us(),
            segments: head.segments.clone(),
            ids,
        }
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::new()
            .with("base", self.base as i64)
            .with("base_us", self.base_us)
            .with("tail", self.tail as i64)
            .with("last_us", self.last_us)
            .with("segs", self.segments.iter().map(Descriptor::encode).collect::<Vec<Value>>());
        if let Some(ids) = &self.ids {
            item.set("ids", ids.as_str());
        }
        item
    }

    pub(crate) fn decode(partition: &PartitionId, item: &Item) -> Result<Self, Error> {
        let read = || {
            let count = |name| item.int(name).and_then(|n| u64::try_from(n).ok());
            Some(Self {
                base: count("base")?,
                base_us: item.int("base_us")?,
                tail: count("tail")?,
                last_us: item.int("last_us")?,
                segments: decode_descriptors(item)?,
                ids: item.str("ids").map(str::to_owned),
            })
        };
        let page =
            read().ok_or_else(|| Error::Corrupt(format!("a page of partition {partition}")))?;
        let counted: u64 = page.segments.iter().map(|d| d.count).sum();
        if page.base + counted != page.tail {
            return Err(Error::Corrupt(format!(
                "page {} of partition {partition} does not count up to {}",
                page.base, page.tail
            )));
        }
        Ok(page)
    }

    pub(crate) fn placed(&self) -> impl Iterator<Item = Placed> + '_ {
        place(&self.segments, self.base, self.base_us)
    }

    pub(crate) fn contains(&self, offset: u64) -> bool {
        (self.base..self.tail).contains(&offset)
    }
}
