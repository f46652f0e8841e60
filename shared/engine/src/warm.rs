//! What a process remembers of the store, and the calls through which it reads and writes it.
//!
//! Nothing here is trusted: a remembered head or cursor is a guess that a condition checks in the commit that relies
//! on it. A wrong guess costs a refused write, whose answer brings the truth.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use tidewheel_store::{
    BlobName, Commit, CommitError, Committed, Consistency, Env, Item, Key, ReadError, Store,
};
use tokio::sync::{Notify, watch};

use crate::{
    Counters, CursorId, Engine, Error, PartitionId, Settings, Uuid,
    credential::KnownCredentials,
    cursor::Cursor,
    encryption::{self, Keyring},
    group::GroupRecord,
    head::{Descriptor, Head},
    lane::Lane,
    limits,
    page::Page,
    publish::FrameLane,
    publisher::LandedRanges,
    relay::Relays,
    segment::{self, Segment},
    state::StateView,
    stream::StreamRecord,
    switches::KnownSwitches,
    timer::KnownDue,
    view::IdView,
};

/// Attempts at a call that the store answers with "busy" before the caller hears of it.
const BUSY_ATTEMPTS: u32 = 10;

/// Streams, groups, partitions, cursors and states that a process remembers.
const REMEMBERED: usize = 100_000;

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) env: Env,
    pub(crate) settings: Settings,
    pub(crate) streams: Cache<String, Arc<StreamRecord>>,
    pub(crate) groups: Cache<(String, String), Arc<GroupRecord>>,
    pub(crate) partitions: Cache<PartitionId, Arc<Warm>>,
    pub(crate) cursors: Cache<CursorId, Arc<Cursor>>,
    pub(crate) states: Cache<(Uuid, PartitionId), Arc<tokio::sync::Mutex<StateView>>>,
    segments: Cache<(PartitionId, String), Arc<Segment>, ByBytes>,
    pub(crate) keyring: Keyring,
    pub(crate) switches: KnownSwitches,
    pub(crate) credentials: KnownCredentials,
    /// Whether streams are there for sockets, and when that was read.
    pub(crate) admitted: Cache<String, (bool, i64)>,
    /// Namespaces of keys that are known to be listed.
    pub(crate) kv_namespaces: Cache<String, ()>,
    pub(crate) kv_swept_us: AtomicI64,
    pub(crate) timers: KnownDue,
    pub(crate) relays: Relays,
    pub(crate) watchers: Mutex<HashMap<PartitionId, watch::Sender<u64>>>,
    wakers: Mutex<HashMap<String, Arc<Notify>>>,
    pub(crate) counts: Counts,
}

/// What a process remembers of one partition.
#[derive(Default)]
pub(crate) struct Warm {
    head: Mutex<Option<Arc<Head>>>,
    page: Mutex<Option<Arc<Page>>>,
    /// The beginning of the last list of descriptors that this process has filled.
    filled: Mutex<Option<u64>>,
    /// Serialises this process's appends to the partition, so that they do not race each other's conditions. Other
    /// processes are kept apart by the conditions alone.
    pub(crate) append: tokio::sync::Mutex<IdView>,
    pub(crate) lane: Mutex<Lane>,
    pub(crate) frames: Mutex<FrameLane>,
    /// Ranges that publishers have landed through this process.
    pub(crate) landed: Mutex<LandedRanges>,
}

impl Warm {
    pub(crate) fn head(&self) -> Option<Arc<Head>> {
        self.head.lock().clone()
    }

    /// Remembers an image, unless a later one is known.
    pub(crate) fn learn(&self, head: Arc<Head>) {
        let mut known = self.head.lock();
        if known.as_ref().is_none_or(|k| k.tail <= head.tail || k.stream_id != head.stream_id) {
            *known = Some(head);
        }
    }

    /// Remembers that an append of this process has filled the list that begins there.
    pub(crate) fn fill(&self, base: u64) {
        *self.filled.lock() = Some(base);
    }

    /// True if it was this process that filled the list that begins there.
    pub(crate) fn has_filled(&self, base: u64) -> bool {
        *self.filled.lock() == Some(base)
    }

    pub(crate) fn forget(&self) {
        *self.head.lock() = None;
        *self.page.lock() = None;
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(PartitionId, String), Arc<Segment>> for ByBytes {
    fn weight(&self, _: &(PartitionId, String), segment: &Arc<Segment>) -> u64 {
        segment.weight + 128
    }
}

macro_rules! counts {
    ($($name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub(crate) $name: AtomicU64),* }
        impl Counts {
            pub(crate) fn read(&self) -> Counters {
                Counters([$((stringify!($name), self.$name.load(Relaxed))),*].into_iter().collect())
            }
        }
    };
}

counts! {
    records_pushed, records_duplicate, rows_relayed, appends, append_conflicts, rolls, wakes, records_popped, pops, pops_empty,
    acks, records_dead_lettered, cycles, cycles_refused, records_pushed_by_cycles, state_folds, outcomes_resolved,
    store_busy, records_expired, blobs_collected,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64, n: usize) {
        count.fetch_add(n as u64, Relaxed);
    }
}

impl Inner {
    pub(crate) fn new(store: Arc<dyn Store>, env: Env, settings: Settings) -> Self {
        Self {
            keyring: Keyring::new(settings.keys.clone()),
            switches: KnownSwitches::default(),
            credentials: KnownCredentials::default(),
            admitted: Cache::new(REMEMBERED),
            kv_namespaces: Cache::new(REMEMBERED),
            kv_swept_us: AtomicI64::new(i64::MIN),
            timers: KnownDue::default(),
            relays: Relays::default(),
            store,
            env,
            settings,
            streams: Cache::new(REMEMBERED),
            groups: Cache::new(REMEMBERED),
            partitions: Cache::new(REMEMBERED),
            cursors: Cache::new(REMEMBERED),
            states: Cache::new(REMEMBERED / 10),
            segments: Cache::with_weighter(10_000, limits::SEGMENT_CACHE_BYTES, ByBytes),
            watchers: Mutex::default(),
            wakers: Mutex::default(),
            counts: Counts::default(),
        }
    }
}

impl Engine {
    pub(crate) fn warm(&self, partition: &PartitionId) -> Arc<Warm> {
        let fresh = || Ok::<_, std::convert::Infallible>(Arc::new(Warm::default()));
        match self.inner.partitions.get_or_insert_with(partition, fresh) {
            Ok(warm) => warm,
            Err(never) => match never {},
        }
    }

    /// Reads an item, strongly consistent.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Item>, Error> {
        self.reading(|| self.inner.store.get(key, Consistency::Strong)).await
    }

    pub(crate) async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, Error> {
        self.reading(|| self.inner.store.batch_get(keys)).await
    }

    pub(crate) async fn items(
        &self,
        query: &tidewheel_store::Query,
    ) -> Result<tidewheel_store::Page, Error> {
        self.reading(|| self.inner.store.query(query)).await
    }

    async fn reading<T, F>(&self, call: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        for attempt in 0.. {
            match call().await {
                Err(ReadError::Throttled) if attempt < BUSY_ATTEMPTS => {
                    self.back_off(attempt).await
                }
                answer => return Ok(answer?),
            }
        }
        Err(Error::Busy)
    }

    /// Commits; repeats while the store is busy, which writes nothing.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        for attempt in 0..BUSY_ATTEMPTS {
            match self.inner.store.commit(commit.clone()).await {
                Err(CommitError::Contended | CommitError::Throttled) => {
                    self.back_off(attempt).await
                }
                answer => return answer,
            }
        }
        Err(CommitError::Throttled)
    }

    /// Waits a little, longer each time, at random within the bound.
    pub(crate) async fn back_off(&self, attempt: u32) {
        Counts::add(&self.inner.counts.store_busy, 1);
        let bound_us = 2_000u64 << attempt.min(8);
        self.inner.env.sleep(Duration::from_micros(1 + self.inner.env.below(bound_us))).await;
    }

    pub(crate) async fn blob_if_there(&self, name: &BlobName) -> Result<Option<Bytes>, Error> {
        self.reading(|| self.inner.store.blob(name, None)).await
    }

    /// Reads a blob that a head or page names: it must be there.
    pub(crate) async fn blob(&self, name: &BlobName) -> Result<Bytes, Error> {
        match self.blob_if_there(name).await? {
            Some(body) => Ok(body),
            None => Err(Error::Corrupt(format!("blob {name} is named by a head but missing"))),
        }
    }

    pub(crate) async fn segment(
        &self,
        partition: &PartitionId,
        descriptor: &Descriptor,
    ) -> Result<Arc<Segment>, Error> {
        let key = (*partition, descriptor.blob.clone());
        if let Some(segment) = self.inner.segments.get(&key) {
            return Ok(segment);
        }
        let mut body = self.blob(&segment::blob_name(partition, &descriptor.blob)).await?;
        if encryption::is_sealed(&body) {
            body = self.unseal(&segment::place(partition), body).await?;
        }
        let segment = Arc::new(segment::decode(body)?);
        if segment.records.len() as u64 != descriptor.count {
            return Err(Error::Corrupt(format!(
                "segment {} of partition {partition} has {} records, not {}",
                descriptor.blob,
                segment.records.len(),
                descriptor.count
            )));
        }
        self.inner.segments.insert(key, Arc::clone(&segment));
        Ok(segment)
    }

    /// Remembers a segment that this process has just written.
    pub(crate) fn remember_segment(&self, partition: &PartitionId, blob: &str, segment: Segment) {
        self.inner.segments.insert((*partition, blob.to_owned()), Arc::new(segment));
    }

    /// Reads a partition's head, strongly consistent.
    pub(crate) async fn head(&self, partition: &PartitionId) -> Result<Option<Arc<Head>>, Error> {
        let warm = self.warm(partition);
        match self.get(&crate::keys::head(partition)).await? {
            None => {
                warm.forget();
                Ok(None)
            }
            Some(item) => {
                let head = Arc::new(Head::decode(partition, &item)?);
                warm.learn(Arc::clone(&head));
                Ok(Some(head))
            }
        }
    }

    /// The index page that contains an offset below the head's list.
    pub(crate) async fn page_at(
        &self,
        partition: &PartitionId,
        offset: u64,
    ) -> Result<Option<Arc<Page>>, Error> {
        let warm = self.warm(partition);
        if let Some(page) = warm.page.lock().as_ref().filter(|p| p.contains(offset)) {
            return Ok(Some(Arc::clone(page)));
        }
        let page = self.page_below(partition, offset + 1).await?.filter(|p| p.contains(offset));
        let page = page.map(Arc::new);
        if let Some(page) = &page {
            *warm.page.lock() = Some(Arc::clone(page));
        }
        Ok(page)
    }

    /// The index page with the highest base below an offset.
    pub(crate) async fn page_below(
        &self,
        partition: &PartitionId,
        offset: u64,
    ) -> Result<Option<Page>, Error> {
        let Some(highest) = offset.checked_sub(1) else { return Ok(None) };
        let query = tidewheel_store::Query {
            pk: crate::keys::partition_pk(partition),
            from: Some(crate::keys::page_sk(0)),
            to: Some(crate::keys::page_sk(highest)),
            direction: tidewheel_store::Direction::Backward,
            limit: 1,
        };
        let page = self.items(&query).await?;
        page.items.first().map(|(_, item)| Page::decode(partition, item)).transpose()
    }

    /// A channel that changes when the partition's tail moves in this process. Other processes' pushes do not show.
    pub fn watch(&self, partition: &PartitionId) -> watch::Receiver<u64> {
        let mut watchers = self.inner.watchers.lock();
        // Channels that nobody listens to go when the table has grown.
        if watchers.len() > 1024 && watchers.len().is_power_of_two() {
            watchers.retain(|_, sender| sender.receiver_count() > 0);
        }
        watchers.entry(*partition).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    /// Tells this process that a partition has new records.
    pub(crate) fn announce(&self, stream: &str, partition: &PartitionId, tail: u64) {
        self.tell_watchers(partition, tail);
        self.wake_poppers(stream);
    }

    /// Tells those who watch a partition how far it reaches; true if any of them did not know.
    pub(crate) fn tell_watchers(&self, partition: &PartitionId, tail: u64) -> bool {
        self.inner.watchers.lock().get(partition).is_some_and(|sender| {
            sender.send_if_modified(|t| {
                let moved = tail > *t;
                *t = tail.max(*t);
                moved
            })
        })
    }

    /// Wakes the pops that wait on a stream in this process.
    pub(crate) fn wake_poppers(&self, stream: &str) {
        if let Some(waker) = self.inner.wakers.lock().get(stream) {
            waker.notify_waiters();
        }
        if let Some(waker) = self.inner.wakers.lock().get("") {
            waker.notify_waiters();
        }
    }

    /// Where pops on a stream wait; the empty name is for pops over many streams.
    pub(crate) fn waker(&self, stream: &str) -> Arc<Notify> {
        let mut wakers = self.inner.wakers.lock();
        if wakers.len() > 1024 && wakers.len().is_power_of_two() {
            wakers.retain(|_, waker| Arc::strong_count(waker) > 1);
        }
        Arc::clone(wakers.entry(stream.to_owned()).or_default())
    }
}
