//! Which partitions of a stream were written to since a time, a page at a time.
//!
//! A pass over all pages meets every partition that existed when it began, in the order of their ids. What is written
//! while it runs may or may not show; the time that the first page names as safe makes up for it: the next pass, from
//! that time on, shows whatever this one may have missed.

use crate::{
    Engine, Error, Extent, PartitionId, PartitionInfo, limits::CHANGED_PARTITIONS as PAGE,
};

/// Partitions that one call looks at for one entry. A page may end early for it.
const LOOKED_AT: usize = 10_000;

/// How long before its commit a segment may have been made, and how far clocks of processes may be apart, together.
/// What is stamped earlier than that is in the log, or never will be.
pub(crate) const SAFE_MARGIN_US: i64 = 10_000_000;

/// Begins a page's cursor, so that nothing else passes for one.
const CURSOR: &str = "p1.";

/// A stream and a position in its pass.
#[derive(Clone, Debug)]
pub struct ChangedEntry {
    /// The stream.
    pub stream: String,
    /// Only partitions whose last record is of this time or later, µs; `None` shows all.
    pub since_us: Option<i64>,
    /// The cursor of the page before.
    pub after: Option<String>,
    /// Partitions in the page, at most [`crate::limits::CHANGED_PARTITIONS`].
    pub limit: usize,
}

/// A partition that was written to.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedPartition {
    /// The partition.
    pub info: PartitionInfo,
    /// How far it reaches.
    pub extent: Extent,
    /// The time of its last record, µs.
    pub written_us: i64,
}

/// A page of a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// Partitions, and the cursor of the next page unless this is the last.
    Page(Vec<ChangedPartition>, Option<String>),
    /// There is no such stream.
    NoStream,
    /// The cursor is none of ours.
    BadCursor,
}

impl Engine {
    /// A time of which every record that is stamped at or before it is in the log: the present, less a margin for
    /// commits under way and clocks that differ. µs.
    pub fn safe_time_us(&self) -> i64 {
        self.env().now_us() - SAFE_MARGIN_US
    }

    /// One page of a pass.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn changed(&self, entry: &ChangedEntry) -> Result<Changed, Error> {
        let mut after = match entry.after.as_deref().filter(|a| !a.is_empty()) {
            None => None,
            Some(cursor) => match cursor.strip_prefix(CURSOR).and_then(PartitionId::parse) {
                Some(id) => Some(id),
                None => return Ok(Changed::BadCursor),
            },
        };
        let Some(record) = self.stream_record(&entry.stream).await? else {
            return Ok(Changed::NoStream);
        };
        let limit = entry.limit.clamp(1, PAGE);
        let mut found = Vec::new();
        let mut looked_at = 0;
        let page = if entry.since_us.is_some() { PAGE } else { limit };
        loop {
            let infos = self.partitions_of(&record, after.as_ref(), page).await?;
            let last = infos.len() < page;
            looked_at += infos.len();
            let ids: Vec<PartitionId> = infos.iter().map(|i| i.id).collect();
            let heads = self.heads(&ids).await?;
            let count = infos.len();
            for (at, (info, head)) in infos.into_iter().zip(heads).enumerate() {
                after = Some(info.id);
                let Some(head) = head else { continue };
                let written_us = head.last_us();
                if entry.since_us.is_none_or(|since| written_us >= since) {
                    found.push(ChangedPartition { info, extent: head.extent(), written_us });
                }
                if found.len() == limit && !(last && at + 1 == count) {
                    return Ok(Changed::Page(found, after.map(|id| format!("{CURSOR}{id}"))));
                }
            }
            if last {
                return Ok(Changed::Page(found, None));
            }
            if looked_at >= LOOKED_AT {
                return Ok(Changed::Page(found, after.map(|id| format!("{CURSOR}{id}"))));
            }
        }
    }
}
