//! Reading many partitions by offset at once: no lease, no cursor, nothing that anybody else notices.
//!
//! Entries are answered in their order, each within its own bytes and all within the call's. With a wait the call lasts
//! until there is enough to answer, or something to say about an entry, or the time is over.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, future::select_all, stream};

use crate::{Engine, Error, Extent, PartitionId, Record, head::Head, keys, limits};

/// Partitions that one fetch reads at a time.
const PARALLEL_READS: usize = 8;

/// Where to read.
#[derive(Clone, Debug)]
pub struct FetchEntry {
    /// The stream.
    pub stream: String,
    /// The partition's name.
    pub partition: String,
    /// The first offset.
    pub offset: u64,
    /// Bytes of payload at most, but at least one record.
    pub bytes: usize,
}

/// What a fetch is to do.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Where to read, in the order of the answers.
    pub entries: Vec<FetchEntry>,
    /// Bytes of payload over all entries; an entry that comes after they are used up is answered empty.
    pub bytes: usize,
    /// Waits until there are this many bytes of payload.
    pub min_bytes: usize,
    /// Waits at most this long; `None` does not wait.
    pub wait: Option<Duration>,
}

/// What was found at one entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Fetched {
    /// Records, perhaps none, and how far the partition reaches. A partition that nobody has written to is empty.
    Records(Vec<Record>, Extent),
    /// The partition has no such offset: it is below the floor, or above the tail.
    OutOfRange(Extent),
    /// There is no such stream.
    NoStream,
}

/// A partition and a time.
#[derive(Clone, Debug)]
pub struct TimeEntry {
    /// The stream.
    pub stream: String,
    /// The partition's name.
    pub partition: String,
    /// The time, µs.
    pub time_us: i64,
}

/// Where a partition reaches a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeFound {
    /// The offset and time of the first record of that time or later, if there is one, and how far the partition reaches.
    At(Option<(u64, i64)>, Extent),
    /// There is no such stream.
    NoStream,
}

const EMPTY: Extent = Extent { floor: 0, tail: 0 };

/// A partition that was looked up.
enum Looked {
    Head(PartitionId, Arc<Head>),
    Empty,
    NoStream,
}

impl Engine {
    /// Reads by offset.
    ///
    /// # Errors
    /// Those of the store, [`Error::Encryption`] and [`Error::Corrupt`], for the whole call.
    pub async fn fetch(&self, fetch: &Fetch) -> Result<Vec<Fetched>, Error> {
        let wait = fetch.wait.unwrap_or_default().min(limits::POP_WAIT_MAX);
        let deadline_us = self.env().now_us() + wait.as_micros() as i64;
        let names: BTreeSet<&str> = fetch.entries.iter().map(|e| e.stream.as_str()).collect();
        let wakers: Vec<_> = match wait.is_zero() {
            true => Vec::new(),
            false => names.iter().map(|name| self.waker(name)).collect(),
        };
        let mut looks = 0;
        loop {
            // Armed before the look: a push between look and wait is not missed.
            let woken = wakers.iter().map(|waker| {
                let mut woken = Box::pin(waker.notified());
                woken.as_mut().enable();
                woken
            });
            let woken: Vec<_> = woken.collect();
            let found = self.fetch_now(fetch).await?;
            let now_us = self.env().now_us();
            if woken.is_empty() || now_us >= deadline_us || is_enough(&found, fetch.min_bytes) {
                return Ok(found);
            }
            let left = Duration::from_micros((deadline_us - now_us) as u64);
            let nap = left.min(self.settings().pause(looks));
            looks += 1;
            let _ = tokio::time::timeout(nap, select_all(woken)).await;
        }
    }

    async fn fetch_now(&self, fetch: &Fetch) -> Result<Vec<Fetched>, Error> {
        let names = fetch.entries.iter().map(|e| (e.stream.as_str(), e.partition.as_str()));
        let looked = self.look_up(names).await?;
        let reads: Vec<_> = fetch
            .entries
            .iter()
            .zip(looked)
            .map(|(e, looked)| self.fetch_one(looked, e.offset, e.bytes.min(fetch.bytes)))
            .collect();
        let mut reads = stream::iter(reads).buffered(PARALLEL_READS);
        let mut found = Vec::with_capacity(fetch.entries.len());
        let mut left = fetch.bytes;
        while let Some(mut fetched) = reads.try_next().await? {
            if let Fetched::Records(records, _) = &mut fetched {
                left = left.saturating_sub(trim(records, left));
            }
            found.push(fetched);
        }
        Ok(found)
    }

    async fn fetch_one(&self, looked: Looked, offset: u64, bytes: usize) -> Result<Fetched, Error> {
        let (id, head) = match looked {
            Looked::NoStream => return Ok(Fetched::NoStream),
            Looked::Empty => return Ok(Fetched::Records(Vec::new(), EMPTY)),
            Looked::Head(id, head) => (id, head),
        };
        let extent = head.extent();
        if offset < extent.floor || offset > extent.tail {
            return Ok(Fetched::OutOfRange(extent));
        }
        let to = extent.tail.min(offset.saturating_add(limits::FETCH_RECORDS));
        Ok(Fetched::Records(self.read_under(&id, &head, offset, to, bytes).await?, extent))
    }

    /// Finds where partitions reach a time: for each the first record of that time or later.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    pub async fn offsets_at(&self, entries: &[TimeEntry]) -> Result<Vec<TimeFound>, Error> {
        let names = entries.iter().map(|e| (e.stream.as_str(), e.partition.as_str()));
        let looked = self.look_up(names).await?;
        let searches: Vec<_> = entries
            .iter()
            .zip(looked)
            .map(|(entry, looked)| self.offset_at(looked, entry.time_us))
            .collect();
        stream::iter(searches).buffered(PARALLEL_READS).try_collect().await
    }

    async fn offset_at(&self, looked: Looked, time_us: i64) -> Result<TimeFound, Error> {
        let (id, head) = match looked {
            Looked::NoStream => return Ok(TimeFound::NoStream),
            Looked::Empty => return Ok(TimeFound::At(None, EMPTY)),
            Looked::Head(id, head) => (id, head),
        };
        let extent = head.extent();
        let offset = self.offset_at_time(&id, &head, time_us).await?;
        if offset >= extent.tail {
            return Ok(TimeFound::At(None, extent));
        }
        let record = self.read_under(&id, &head, offset, offset + 1, 1).await?;
        Ok(TimeFound::At(record.first().map(|r| (r.offset, r.time_us)), extent))
    }

    /// Finds partitions by name, and reads their heads.
    async fn look_up(
        &self,
        names: impl Iterator<Item = (&str, &str)>,
    ) -> Result<Vec<Looked>, Error> {
        let mut streams = HashMap::new();
        let mut ids = Vec::new();
        for (stream, partition) in names {
            if !streams.contains_key(stream) {
                let record = self.stream_record(stream).await?;
                streams.insert(stream.to_owned(), record.map(|r| r.info.id));
            }
            let id = streams.get(stream).copied().flatten();
            ids.push(id.map(|id| PartitionId::of(&id, partition)));
        }
        let wanted: Vec<PartitionId> = ids.iter().flatten().copied().collect();
        let mut heads = self.heads(&wanted).await?.into_iter();
        Ok(ids
            .into_iter()
            .map(|id| match id {
                None => Looked::NoStream,
                Some(id) => heads.next().flatten().map_or(Looked::Empty, |h| Looked::Head(id, h)),
            })
            .collect())
    }

    /// Reads many heads.
    pub(crate) async fn heads(
        &self,
        partitions: &[PartitionId],
    ) -> Result<Vec<Option<Arc<Head>>>, Error> {
        let mut heads = Vec::with_capacity(partitions.len());
        for chunk in partitions.chunks(tidewheel_store::limits::BATCH_GET_KEYS) {
            // The store takes each key once.
            let distinct: BTreeSet<&PartitionId> = chunk.iter().collect();
            let wanted: Vec<_> = distinct.iter().map(|id| keys::head(id)).collect();
            let items = self.batch_get(&wanted).await?;
            let mut found = HashMap::with_capacity(chunk.len());
            for (id, item) in distinct.into_iter().zip(&items) {
                let head = item.as_ref().map(|item| Head::decode(id, item)).transpose()?;
                found.insert(*id, head.map(Arc::new));
            }
            heads.extend(chunk.iter().map(|id| found.get(id).cloned().flatten()));
        }
        Ok(heads)
    }
}

/// Cuts records to about `bytes` of payload, but to at least one unless nothing is left. Answers their bytes.
fn trim(records: &mut Vec<Record>, bytes: usize) -> usize {
    let (mut kept, mut size) = (0, 0usize);
    for record in records.iter() {
        let more = record.payload.len().max(1);
        if bytes == 0 || kept > 0 && size + more > bytes {
            break;
        }
        size += more;
        kept += 1;
    }
    records.truncate(kept);
    size
}

/// True if there is nothing to wait for.
fn is_enough(found: &[Fetched], min_bytes: usize) -> bool {
    let mut bytes = 0;
    for fetched in found {
        match fetched {
            Fetched::Records(records, _) => {
                bytes += records.iter().map(|r| r.payload.len().max(1)).sum::<usize>();
            }
            Fetched::OutOfRange(_) | Fetched::NoStream => return true,
        }
    }
    bytes >= min_bytes.max(1)
}
