//! A source of records in memory, and a fuse that kills a process at any one of its calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory,
    path::Path,
};
use parking_lot::Mutex;
use tidewheel_engine::{
    Declaration, Declared, Extent, PartitionId, PartitionInfo, Read, Record, Uuid, message_id,
};
use tidewheel_store::{
    BlobName, Commit, CommitError, Committed, Consistency, Env, Item, Key, Memory, Page, Query,
    ReadError, Store,
};
use tidewheel_tables::{Error, Logs, Settings, Source, Tables};
use tokio::sync::Notify;

/// Records that one read answers: a few, so that a seal has many pieces.
pub(crate) const CHUNK: usize = 70;

pub(crate) const HOUR_US: i64 = 3_600_000_000;

/// When everything begins, µs.
pub(crate) const START_US: i64 = 1_764_000_000_000_000;

#[derive(Clone, Default)]
struct Log {
    name: String,
    floor: u64,
    records: Vec<Record>,
}

#[derive(Clone)]
struct Stream {
    id: Uuid,
    partitions: BTreeMap<PartitionId, Log>,
    ready: BTreeSet<PartitionId>,
    logs: Option<Logs>,
    declared: Option<Arc<Declared>>,
}

/// Streams in memory.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<BTreeMap<String, Stream>>>);

impl Streams {
    pub(crate) fn push(
        &self,
        stream: &str,
        partition: &str,
        payloads: impl IntoIterator<Item = String>,
    ) {
        let mut streams = self.0.lock();
        let stream = streams.entry(stream.to_owned()).or_insert_with(|| new_stream(stream));
        let id = PartitionId::of(&stream.id, partition);
        stream.ready.insert(id);
        let log = stream.partitions.entry(id).or_default();
        log.name = partition.to_owned();
        for payload in payloads {
            let offset = log.floor + log.records.len() as u64;
            let time_us = START_US + offset as i64;
            let message = message_id(&id, offset, time_us);
            log.records.push(Record {
                offset,
                time_us,
                id: message,
                transaction_id: message.to_string(),
                key: offset.is_multiple_of(2).then(|| format!("k{offset}")),
                headers: offset.is_multiple_of(3).then(|| Bytes::from_static(b"{\"h\":1}")),
                payload: payload.into(),
            });
        }
    }

    /// Says what a stream has declared.
    pub(crate) fn set_logs(&self, stream: &str, logs: Logs) {
        let mut streams = self.0.lock();
        let stream = streams.entry(stream.to_owned()).or_insert_with(|| new_stream(stream));
        stream.logs = Some(logs);
    }

    /// Deletes the records below an offset.
    pub(crate) fn trim(&self, stream: &str, partition: &str, floor: u64) {
        let mut streams = self.0.lock();
        let stream = streams.get_mut(stream).unwrap();
        let id = PartitionId::of(&stream.id, partition);
        let log = stream.partitions.get_mut(&id).unwrap();
        log.records.drain(..(floor - log.floor) as usize);
        log.floor = floor;
    }

    /// Partitions that are awake.
    pub(crate) fn awake(&self, stream: &str) -> usize {
        self.0.lock()[stream].ready.len()
    }

    /// Every record, as (partition, offset, payload).
    pub(crate) fn all(&self, stream: &str) -> BTreeSet<(String, i64, String)> {
        let streams = self.0.lock();
        let logs = streams[stream].partitions.values();
        let rows = logs.flat_map(|log| {
            log.records.iter().map(|r| {
                let payload = String::from_utf8(r.payload.to_vec()).unwrap();
                (log.name.clone(), r.offset as i64, payload)
            })
        });
        rows.collect()
    }

    fn log<T>(&self, id: &PartitionId, f: impl FnOnce(&Log) -> T) -> Option<T> {
        self.0.lock().values().find_map(|s| s.partitions.get(id)).map(f)
    }
}

fn new_stream(name: &str) -> Stream {
    Stream {
        id: Uuid::derived(&[name.as_bytes()]),
        partitions: BTreeMap::new(),
        ready: BTreeSet::new(),
        logs: None,
        declared: None,
    }
}

#[async_trait]
impl Source for Streams {
    async fn id(&self, stream: &str) -> Result<Option<Uuid>, Error> {
        Ok(self.0.lock().get(stream).map(|s| s.id))
    }

    async fn logs(&self, stream: &str) -> Result<Option<Logs>, Error> {
        tokio::task::yield_now().await;
        let streams = self.0.lock();
        let Some(stream) = streams.get(stream) else { return Ok(None) };
        Ok(stream.logs.clone().or_else(|| stream.declared.as_deref().and_then(Logs::of)))
    }

    async fn create(&self, stream: &str) -> Result<Uuid, Error> {
        let mut streams = self.0.lock();
        Ok(streams.entry(stream.to_owned()).or_insert_with(|| new_stream(stream)).id)
    }

    async fn has_logs(&self, stream: &str) -> Result<bool, Error> {
        Ok(self.logs(stream).await?.is_some())
    }

    async fn declared(&self, stream: &str) -> Result<Option<Arc<Declared>>, Error> {
        Ok(self.0.lock().get(stream).and_then(|s| s.declared.clone()))
    }

    async fn declare(
        &self,
        stream: &str,
        declaration: Declaration,
    ) -> Result<Arc<Declared>, Error> {
        let mut streams = self.0.lock();
        let of = streams.entry(stream.to_owned()).or_insert_with(|| new_stream(stream));
        let columns = |d: &Declaration| d.schema.as_ref().map(|s| s.columns().to_vec());
        match &of.declared {
            Some(declared) if columns(&declared.declaration) == columns(&declaration) => {}
            Some(_) => return Err(Error::SchemaDiffers(stream.to_owned())),
            None if !of.partitions.is_empty() => return Err(Error::TableExists(stream.to_owned())),
            None => of.declared = Some(Arc::new(Declared::first(of.id, stream, declaration))),
        }
        of.declared.clone().ok_or_else(|| Error::NotDeclared(stream.to_owned()))
    }

    async fn streams(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let streams = self.0.lock();
        let names = streams.keys().filter(|n| after.is_none_or(|a| n.as_str() > a));
        Ok(names.take(limit).cloned().collect())
    }

    async fn ready(&self, stream: &str, limit: usize) -> Result<Vec<PartitionInfo>, Error> {
        tokio::task::yield_now().await;
        let streams = self.0.lock();
        let of = &streams[stream];
        let infos = of.ready.iter().take(limit).map(|id| PartitionInfo {
            id: *id,
            stream: stream.to_owned(),
            name: of.partitions[id].name.clone(),
        });
        Ok(infos.collect())
    }

    async fn settle(
        &self,
        stream: &str,
        partition: &PartitionId,
        tail: u64,
    ) -> Result<bool, Error> {
        let mut streams = self.0.lock();
        let of = streams.get_mut(stream).unwrap();
        let log = &of.partitions[partition];
        let asleep = log.floor + log.records.len() as u64 == tail;
        if asleep {
            of.ready.remove(partition);
        }
        Ok(asleep)
    }

    async fn read(
        &self,
        partition: &PartitionId,
        from: u64,
        records: usize,
        _bytes: usize,
    ) -> Result<Read, Error> {
        tokio::task::yield_now().await;
        let read = self.log(partition, |log| {
            let tail = log.floor + log.records.len() as u64;
            let start = (from.max(log.floor) - log.floor) as usize;
            let found: Vec<_> =
                log.records.iter().skip(start).take(records.min(CHUNK)).cloned().collect();
            let next = found.last().map_or(from.max(log.floor), |r| r.offset + 1);
            Read { records: found, next, extent: Extent { floor: log.floor, tail } }
        });
        Ok(read.unwrap())
    }

    async fn extent(&self, partition: &PartitionId) -> Result<Option<Extent>, Error> {
        Ok(self.log(partition, |log| Extent {
            floor: log.floor,
            tail: log.floor + log.records.len() as u64,
        }))
    }
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before the call; every later call fails as well.
    DieBefore,
    /// The process dies after the call was carried out.
    DieAfter,
    /// The call fails once, and nothing was done.
    Refuse,
    /// The call is carried out and its reply is lost, once.
    LoseReply,
}

/// Counts down calls, then strikes.
#[derive(Clone)]
pub(crate) struct Fuse {
    left: Arc<AtomicI64>,
    fault: Fault,
}

enum Strike {
    Pass,
    Before,
    After,
}

impl Fuse {
    /// A fuse that strikes at the call of this number, from 0.
    pub(crate) fn at(call: i64, fault: Fault) -> Self {
        Self { left: Arc::new(AtomicI64::new(call)), fault }
    }

    /// A fuse that never strikes.
    pub(crate) fn never() -> Self {
        Self::at(i64::MAX, Fault::Refuse)
    }

    /// True once it has struck.
    pub(crate) fn struck(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    fn strike(&self) -> Strike {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        match (left, self.fault) {
            (1.., _) => Strike::Pass,
            (0, Fault::DieBefore | Fault::Refuse) => Strike::Before,
            (0, Fault::DieAfter | Fault::LoseReply) => Strike::After,
            (_, Fault::DieBefore | Fault::DieAfter) => Strike::Before,
            (_, Fault::Refuse | Fault::LoseReply) => Strike::Pass,
        }
    }
}

/// A store behind a fuse.
pub(crate) struct FusedStore {
    store: Memory,
    fuse: Fuse,
}

fn unread() -> ReadError {
    ReadError::Unavailable("fuse".to_owned())
}

impl FusedStore {
    async fn reading<T>(
        &self,
        read: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        match self.fuse.strike() {
            Strike::Pass => read.await,
            Strike::Before | Strike::After => Err(unread()),
        }
    }

    async fn writing<T>(
        &self,
        write: impl Future<Output = Result<T, CommitError>>,
    ) -> Result<T, CommitError> {
        match self.fuse.strike() {
            Strike::Pass => write.await,
            Strike::Before => Err(CommitError::Unavailable("fuse".to_owned())),
            Strike::After => {
                let _ = write.await;
                Err(CommitError::Unknown("fuse".to_owned()))
            }
        }
    }
}

#[async_trait]
impl Store for FusedStore {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.reading(self.store.get(key, consistency)).await
    }
    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.reading(self.store.batch_get(keys)).await
    }
    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.reading(self.store.query(query)).await
    }
    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        self.writing(self.store.commit(commit)).await
    }
    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.reading(self.store.blob(name, range)).await
    }
    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.reading(self.store.list_blobs(owner, after, limit)).await
    }
    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.writing(self.store.delete_blobs(names)).await
    }
}

/// An object store behind a fuse.
#[derive(Clone)]
pub(crate) struct FusedObjects {
    objects: Arc<dyn ObjectStore>,
    fuse: Fuse,
}

impl FusedObjects {
    fn error() -> object_store::Error {
        object_store::Error::Generic { store: "fuse", source: "fuse".into() }
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        match self.fuse.strike() {
            Strike::Pass => call.await,
            Strike::Before => Err(Self::error()),
            Strike::After => {
                let _ = call.await;
                Err(Self::error())
            }
        }
    }
}

impl fmt::Debug for FusedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FusedObjects")
    }
}

impl fmt::Display for FusedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FusedObjects")
    }
}

#[async_trait]
impl ObjectStore for FusedObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.call(self.objects.put_opts(location, payload, options)).await
    }
    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.call(self.objects.put_multipart_opts(location, options)).await
    }
    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.call(self.objects.get_opts(location, options)).await
    }
    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (objects, fuse) = (self.clone(), self.fuse.clone());
        let deletes = locations.then(move |location| {
            let (objects, fuse) = (objects.objects.clone(), fuse.clone());
            async move {
                let location = location?;
                let this = FusedObjects { objects: objects.clone(), fuse };
                this.call(objects.delete(&location)).await.map(|()| location)
            }
        });
        deletes.boxed()
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.call(self.objects.list_with_delimiter(prefix)).await
    }
    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.call(self.objects.copy_opts(from, to, options)).await
    }
}

/// A place that no other world of this or any other run has.
fn fresh_root() -> Path {
    Path::from(format!("root-{}", Env::system().token()))
}

/// What outlives a process: the streams, the store and the files.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) streams: Streams,
    pub(crate) store: Memory,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Where in `objects` this world's files are. Metadata names another place, the same in every world.
    pub(crate) root: Path,
    seed: Arc<AtomicI64>,
    /// How much later than the beginning it is when a process starts, µs.
    late_us: Arc<AtomicI64>,
}

impl World {
    /// A world whose files are in memory.
    pub(crate) fn new() -> Self {
        Self::with_objects(Arc::new(InMemory::new()))
    }

    /// A world whose files are in this object store, where they meet no other world's.
    pub(crate) fn with_objects(objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            streams: Streams::default(),
            store: Memory::new(),
            objects,
            root: fresh_root(),
            seed: Arc::new(AtomicI64::new(1)),
            late_us: Arc::default(),
        }
    }

    /// Lets time pass before the next process starts.
    pub(crate) fn pass(&self, hours: i64) {
        self.late_us.fetch_add(hours * HOUR_US, Ordering::SeqCst);
    }

    /// The time at which a process would start now, µs.
    pub(crate) fn now_us(&self) -> i64 {
        START_US + self.late_us.load(Ordering::SeqCst)
    }

    /// The names of all files.
    pub(crate) async fn listed(&self) -> BTreeSet<String> {
        let files: Vec<_> = self.objects.list(Some(&self.root)).try_collect().await.unwrap();
        files.into_iter().map(|f| f.location.to_string()).collect()
    }

    /// A world of its own that begins as this one is now.
    pub(crate) async fn fork(&self) -> Self {
        let root = fresh_root();
        let files: Vec<_> = self.objects.list(Some(&self.root)).try_collect().await.unwrap();
        for file in files {
            let rest = file.location.prefix_match(&self.root).unwrap();
            let to: Path = root.parts().chain(rest).collect();
            self.objects.copy(&file.location, &to).await.unwrap();
        }
        Self {
            streams: Streams(Arc::new(Mutex::new(self.streams.0.lock().clone()))),
            store: self.store.fork(),
            objects: self.objects.clone(),
            root,
            seed: Arc::new(AtomicI64::new(self.seed.load(Ordering::SeqCst))),
            late_us: Arc::new(AtomicI64::new(self.late_us.load(Ordering::SeqCst))),
        }
    }

    /// A process: tables whose calls go through a fuse.
    pub(crate) fn process(&self, fuse: &Fuse) -> Tables {
        self.process_with(fuse, Settings::default())
    }

    pub(crate) fn process_with(&self, fuse: &Fuse, settings: Settings) -> Tables {
        let seed = self.seed.fetch_add(1, Ordering::SeqCst) as u64;
        Tables::with_source(
            Arc::new(self.streams.clone()),
            Arc::new(FusedStore { store: self.store.clone(), fuse: fuse.clone() }),
            Env::simulated(seed, self.now_us(), 0),
            Arc::new(FusedObjects { objects: self.objects.clone(), fuse: fuse.clone() }),
            self.root.clone(),
            "mem://root",
            settings,
        )
    }

    /// A process whose files go through another object store.
    pub(crate) fn process_on(&self, objects: Arc<dyn ObjectStore>, settings: Settings) -> Tables {
        let seed = self.seed.fetch_add(1, Ordering::SeqCst) as u64;
        Tables::with_source(
            Arc::new(self.streams.clone()),
            Arc::new(self.store.clone()),
            Env::simulated(seed, self.now_us(), 0),
            objects,
            self.root.clone(),
            "mem://root",
            settings,
        )
    }

    /// A process that nothing happens to.
    pub(crate) fn tables(&self) -> Tables {
        self.process(&Fuse::never())
    }

    /// A file, by its name below the folder of all tables.
    pub(crate) async fn file(&self, file: &str) -> Option<Bytes> {
        let path = Path::from(format!("{}/tables/{file}", self.root));
        Some(self.objects.get(&path).await.ok()?.bytes().await.unwrap())
    }

    /// The hint of a table.
    pub(crate) async fn hint(&self, directory: &str) -> Option<String> {
        let hint = self.file(&format!("{directory}/metadata/version-hint.text")).await?;
        Some(String::from_utf8(hint.to_vec()).unwrap())
    }
}

/// Files in an object store that stops once after it has written a name of one kind.
pub(crate) struct Gate {
    objects: Arc<dyn ObjectStore>,
    at: &'static str,
    pub(crate) reached: Notify,
    pub(crate) open: Notify,
}

impl Gate {
    pub(crate) fn new(world: &World, at: &'static str) -> Self {
        let objects = world.objects.clone();
        Self { objects, at, reached: Notify::new(), open: Notify::new() }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

#[async_trait]
impl ObjectStore for Gate {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let put = self.objects.put_opts(location, payload, options).await;
        if location.as_ref().ends_with(self.at) {
            self.reached.notify_one();
            self.open.notified().await;
        }
        put
    }
    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }
    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.objects.get_opts(location, options).await
    }
    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(locations)
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }
    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
