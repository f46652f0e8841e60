//! The ids that a partition has seen within the deduplication window, as a writer knows them.
//!
//! A view is a cache of what pages and segments say; it decides nothing alone. A writer checks its ids against the
//! view and then commits on the condition that the view is still complete: the head's generation is the one that the
//! view covers and the head's own set has none of the ids, or the tail has not moved. Hash matches are confirmed on
//! the ids themselves.
//!
//! Memory: about 32 bytes for each id within the window, for partitions that this process pushes to.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::{Buf, Bytes};
use futures_util::{StreamExt, stream};
use tidewheel_store::{BlobName, Direction, Query};

use crate::{
    Engine, Error, PartitionId,
    head::{Head, Placed},
    keys, limits,
    page::Page,
    segment,
};

/// Packed bytes of the segments that are read at the same time, about.
const READ_AT_ONCE_BYTES: u64 = 16 * 1024 * 1024;

/// The hashes of one segment's ids.
#[derive(Debug)]
struct Run {
    base: u64,
    time_us: i64,
    hashes: Arc<[u64]>,
}

#[derive(Debug, Default)]
pub(crate) struct IdView {
    /// All offsets from the window's start up to here are covered; `None` before the first sync.
    synced: Option<u64>,
    window_us: i64,
    runs: VecDeque<Run>,
    offsets: HashMap<u64, u64>,
}

impl IdView {
    /// The offset of the last record with this id hash, if one is within the window.
    pub(crate) fn find(&self, hash: u64) -> Option<u64> {
        self.offsets.get(&hash).copied()
    }

    /// The hashes of a segment, if the view holds them.
    pub(crate) fn hashes(&self, base: u64) -> Option<Arc<[u64]>> {
        let at = self.runs.binary_search_by_key(&base, |r| r.base).ok()?;
        Some(Arc::clone(&self.runs[at].hashes))
    }

    /// Adds a segment that the caller has just appended, if the view reaches up to it.
    pub(crate) fn appended(&mut self, placed: &Placed, hashes: Arc<[u64]>) {
        if self.synced == Some(placed.base) {
            self.add(placed.base, placed.descriptor.count, placed.time_us, hashes);
        }
    }

    /// Covers everything below `to`, which is a segment's boundary at or below the head's tail.
    pub(crate) async fn sync(
        &mut self,
        engine: &Engine,
        partition: &PartitionId,
        head: &Head,
        to: u64,
        window_us: i64,
    ) -> Result<(), Error> {
        let cutoff_us = engine.env().now_us() - window_us;
        if window_us > self.window_us {
            *self = Self { window_us, ..Self::default() };
        }
        self.expire(cutoff_us);
        let synced = match self.synced {
            Some(synced) => synced,
            None => self.load_window(engine, partition, head, cutoff_us).await?,
        };
        if synced < head.base {
            self.load_pages(engine, partition, head.base).await?;
        }
        let synced = self.synced;
        let lacks = |p: &Placed| p.end() <= to && synced.is_none_or(|s| s <= p.base);
        let lacking: Vec<Placed> = head.placed().filter(lacks).collect();
        // Side by side: who waits for each of them in turn is slower than whoever else appends meanwhile.
        let largest = lacking.iter().map(|p| p.descriptor.bytes).max().unwrap_or(0).max(1);
        let at_once = (READ_AT_ONCE_BYTES / largest).clamp(1, limits::HEAD_SEGMENTS as u64);
        let reads = lacking.into_iter().map(async |placed| {
            let segment = engine.segment(partition, &placed.descriptor).await?;
            Ok::<_, Error>((placed, Arc::<[u64]>::from(segment.hashes.as_slice())))
        });
        let mut reads = std::pin::pin!(stream::iter(reads).buffered(at_once as usize));
        while let Some(read) = reads.next().await {
            let (placed, hashes) = read?;
            self.add(placed.base, placed.descriptor.count, placed.time_us, hashes);
        }
        Ok(())
    }

    /// Loads the pages that reach into the window, newest first until one does not; answers where the view begins.
    async fn load_window(
        &mut self,
        engine: &Engine,
        partition: &PartitionId,
        head: &Head,
        cutoff_us: i64,
    ) -> Result<u64, Error> {
        let mut pages = Vec::new();
        let mut before = head.base;
        // Also below the floor: what retention has taken is still a duplicate within the window.
        while before > 0 {
            let Some(page) = engine.page_below(partition, before).await? else { break };
            if page.last_us < cutoff_us {
                break;
            }
            before = page.base;
            pages.push(page);
        }
        self.synced = Some(before);
        for page in pages.iter().rev() {
            self.add_page(engine, partition, page).await?;
        }
        Ok(self.synced.unwrap_or(before))
    }

    async fn load_pages(
        &mut self,
        engine: &Engine,
        partition: &PartitionId,
        to: u64,
    ) -> Result<(), Error> {
        while let Some(synced) = self.synced.filter(|&s| s < to) {
            // The page may begin below: the view ended in the middle of what another process has rolled since.
            let across =
                engine.page_below(partition, synced + 1).await?.filter(|p| p.tail > synced);
            let query = Query {
                pk: keys::partition_pk(partition),
                from: Some(keys::page_sk(across.map_or(synced, |p| p.base))),
                to: Some(keys::page_sk(to - 1)),
                direction: Direction::Forward,
                limit: 100,
            };
            let page = engine.items(&query).await?;
            if page.items.is_empty() {
                // Retention has taken the pages; what they held is older than any window.
                self.synced = Some(to);
            }
            for (_, item) in &page.items {
                let page = Page::decode(partition, item)?;
                self.add_page(engine, partition, &page).await?;
            }
        }
        Ok(())
    }

    async fn add_page(
        &mut self,
        engine: &Engine,
        partition: &PartitionId,
        page: &Page,
    ) -> Result<(), Error> {
        let mut ids = match &page.ids {
            None => Bytes::new(),
            Some(id) => {
                let name = BlobName::new(segment::owner(partition), id.as_str());
                engine.blob(&name).await?
            }
        };
        for placed in page.placed() {
            let count = placed.descriptor.count;
            let hashes: Arc<[u64]> = match segment::take(&mut ids, 8 * count as usize) {
                Some(mut bytes) => (0..count).map(|_| bytes.get_u64()).collect(),
                None => Arc::new([]),
            };
            if self.synced.is_none_or(|s| s <= placed.base) {
                self.add(placed.base, count, placed.time_us, hashes);
            }
        }
        Ok(())
    }

    fn add(&mut self, base: u64, count: u64, time_us: i64, hashes: Arc<[u64]>) {
        self.synced = Some(base + count);
        for (offset, &hash) in (base..).zip(hashes.iter()) {
            if hash != 0 {
                self.offsets.insert(hash, offset);
            }
        }
        self.runs.push_back(Run { base, time_us, hashes });
    }

    fn expire(&mut self, cutoff_us: i64) {
        while self.runs.front().is_some_and(|r| r.time_us < cutoff_us) {
            let Some(run) = self.runs.pop_front() else { break };
            for (offset, hash) in (run.base..).zip(run.hashes.iter()) {
                if self.offsets.get(hash) == Some(&offset) {
                    self.offsets.remove(hash);
                }
            }
        }
    }
}

/// The ids blob of a page: the hashes of every record, in order.
pub(crate) fn encode_page_ids(runs: &[(u64, Arc<[u64]>)]) -> Option<Bytes> {
    if runs.iter().all(|(_, hashes)| hashes.iter().all(|&h| h == 0)) {
        return None;
    }
    let mut out = Vec::new();
    for (count, hashes) in runs {
        for at in 0..*count as usize {
            out.extend_from_slice(&hashes.get(at).copied().unwrap_or(0).to_be_bytes());
        }
    }
    Some(out.into())
}
