//! The embedded back end: everything in one folder, owned by one process, power-safe.
//!
//! One writer thread commits all callers that wait in one SQLite transaction with one fsync (`writer`); reads come
//! from a cache of decoded heads that changes when a batch is durable (`heads`), else from connections of their own,
//! off the runtime's threads. What a read shows is durable, always. A second process on the folder is refused.
//! Items and blobs carry checksums that every read verifies; what fails is reported, never served. That no item is
//! missing is verified when the folder is opened, which reads them all: a second or two for a few million partitions.
//!
//! It never serves two processes, never answers a commit before the fsync, and has no limits of its own but the disk.
//! Room that deleted blobs leave is used again; the file does not shrink.
//!
//! # Why SQLite, and why blobs of every size are in it
//!
//! Both were measured on two cores that were busy with other work (so read the ratios; each cell is the range of
//! seven runs). A transaction reads a head, checks it, stores a blob of 2 KB and writes the head of 1 KB, durably:
//!
//! | callers | SQLite, WAL, FULL | fjall 3.1, `SyncData` | this back end, checksums and all |
//! |---|---|---|---|
//! | 1 | 170 – 1,270 /s | 270 – 3,150 /s | 150 – 3,040 /s |
//! | 10 | 1,640 – 6,550 /s | 1,760 – 7,370 /s | 1,400 – 5,710 /s |
//! | 100 | 4,400 – 9,830 /s | 5,150 – 9,280 /s | 3,660 – 12,090 /s |
//!
//! `cargo run --release -p tidewheel-store --features bench --example group_commit`
//!
//! Under group commit the disk decides, not the file: run by run fjall was 0.7 to 1.4 times as fast at ten callers
//! and 0.8 to 1.2 times at a hundred. Alone it is up to three times as fast, which the cache of heads makes up for.
//! That is not enough to give up a file that the `sqlite3` shell opens and whose recovery is proven.
//!
//! A blob and its head together, in the database with one fsync, or as a file synced by `object_store` and the head
//! after it, stored per second and read per second, one caller:
//!
//! | bytes | database | files |
//! |---|---|---|
//! | 16 KB | 3,460, read 22,800 | 1,010, read 23,300 |
//! | 256 KB | 830, read 7,600 | 430, read 7,000 |
//! | 1 MB | 122, read 450 | 40, read 2,600 |
//! | 4 MB | 34, read 180 | 22, read 440 |
//!
//! `cargo run --release -p tidewheel-store --features bench --example blob_place`
//!
//! The database stores faster at every size with one caller; files win from 1 MB on when eight callers write at
//! once (1.5 times) and when large blobs are read. Segments and deltas are smaller than that nearly always, so one
//! place with one fsync, and no files to collect after a crash, is the better bargain.

mod codec;
mod database;
mod heads;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fs::{File, TryLockError},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::spawn_blocking,
};

use self::{
    database::Opened,
    heads::Heads,
    writer::{Request, Work, Writer},
};
use crate::{
    BlobName, Commit, CommitError, Committed, Consistency, Item, Key, Page, Query, ReadError,
    Store, blob, write::check_key,
};

/// The database, in the folder.
const DATABASE: &str = "tidewheel.sqlite3";
/// Locked while a process has the folder open.
const LOCK: &str = "lock";

/// Room for what waits, and for what is kept in memory.
#[derive(Clone, Debug)]
pub struct Options {
    /// Commits that may wait for the writer; more callers wait before the queue.
    pub queue: usize,
    /// Bytes of blobs and items that may wait for the writer.
    pub queue_bytes: usize,
    /// Bytes of memory for decoded items.
    pub cache_bytes: usize,
    /// Connections for reads.
    pub readers: usize,
    /// Bytes that the database file may take; commits beyond are refused as unavailable. `None` is the disk's size.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: 4096,
            queue_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            readers: 4,
            max_bytes: None,
        }
    }
}

/// Why a folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("the folder `{}` is in use by another process; one process at a time may have it open", .dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// It was written by a program that is newer than this one.
    #[error("the folder `{}` has layout {found}; this program knows layout {}", .dir.display(), database::LAYOUT)]
    Layout {
        /// The folder.
        dir: PathBuf,
        /// The layout it has.
        found: i64,
    },
    /// The folder or a file in it cannot be made, read or written.
    #[error("the folder `{}` cannot be opened", .dir.display())]
    Io {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The database cannot be opened, or an item in it is damaged or missing.
    #[error("the database in `{}` cannot be opened: {detail}", .dir.display())]
    Database {
        /// The folder.
        dir: PathBuf,
        /// Why.
        detail: String,
    },
}

/// Heads and blobs in a folder. Cheap to clone; the folder is free for another process when the last clone is gone.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    queue: Option<mpsc::Sender<Request>>,
    queue_kib: Arc<Semaphore>,
    queue_kib_most: usize,
    heads: Arc<Heads>,
    readers: Arc<Readers>,
    writer: Option<std::thread::JoinHandle<()>>,
    /// Dropped, and so unlocked, after the writer has ended.
    _lock: File,
}

impl Drop for Inner {
    /// Waits until the writer has carried out what was queued.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so when it did.
            let _ = writer.join();
        }
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("dir", &self.inner.dir).finish_non_exhaustive()
    }
}

/// Read connections: a caller takes the first that is free, or waits for the one whose turn it is.
struct Readers {
    connections: Vec<Mutex<Connection>>,
    turn: AtomicUsize,
}

impl Readers {
    fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.connections.len();
        for n in 0..count {
            if let Some(db) = self.connections[(turn + n) % count].try_lock() {
                return read(&db);
            }
        }
        read(&self.connections[turn % count].lock())
    }
}

impl Embedded {
    /// Opens a folder, and makes it if it is not there.
    ///
    /// # Errors
    /// [`OpenError::InUse`] if another process has it open; see there for the others.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { dir: dir.to_owned(), source };
        let database =
            |e: rusqlite::Error| OpenError::Database { dir: dir.to_owned(), detail: e.to_string() };
        std::fs::create_dir_all(dir).map_err(io)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join(LOCK))
            .map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { dir: dir.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(io(e)),
        }
        let file = dir.join(DATABASE);
        let (db, tally) = match database::open_writer(&file, options.max_bytes).map_err(database)? {
            Opened::Writer(db, tally) => (db, tally),
            Opened::Damaged(detail) => {
                return Err(OpenError::Database { dir: dir.to_owned(), detail });
            }
            Opened::OtherLayout(found) => {
                return Err(OpenError::Layout { dir: dir.to_owned(), found });
            }
        };
        sync_dir(dir).map_err(io)?;
        let connections = (0..options.readers.max(1))
            .map(|_| database::open_reader(&file).map(Mutex::new))
            .collect::<Result<_, _>>()
            .map_err(database)?;

        let heads = Arc::new(Heads::new(options.cache_bytes));
        let (queue, requests) = mpsc::channel(options.queue.max(1));
        let writer = Writer::new(db, tally, heads.clone(), requests);
        let writer = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(io)?;
        let queue_kib_most = options.queue_bytes.div_ceil(1024).clamp(1, u32::MAX as usize >> 4);
        let inner = Inner {
            dir: dir.to_owned(),
            queue: Some(queue),
            queue_kib: Arc::new(Semaphore::new(queue_kib_most)),
            queue_kib_most,
            heads,
            readers: Arc::new(Readers { connections, turn: AtomicUsize::new(0) }),
            writer: Some(writer),
            _lock: lock,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Hands work to the writer and waits for its answer. Dropped before the work is queued it leaves nothing;
    /// dropped after, the work is carried out whole.
    async fn submit(&self, work: Work, bytes: usize) -> Result<Committed, CommitError> {
        let gone = || CommitError::Unavailable("the store's writer has ended".to_owned());
        let queue = self.inner.queue.as_ref().ok_or_else(gone)?;
        let kib = bytes.div_ceil(1024).clamp(1, self.inner.queue_kib_most) as u32;
        let permit =
            self.inner.queue_kib.clone().acquire_many_owned(kib).await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        let request = Request { work, bytes, answer, permit: Some(permit) };
        queue.send(request).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| {
            Err(CommitError::Unknown("the store's writer ended before it answered".to_owned()))
        })
    }

    /// Reads from the database, off the runtime's threads.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, &Heads) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let (readers, heads) = (self.inner.readers.clone(), self.inner.heads.clone());
        spawn_blocking(move || readers.with(|db| read(db, &heads)))
            .await
            .unwrap_or_else(|e| Err(ReadError::Unavailable(e.to_string())))
    }

    /// Reads items that the cache does not know, and keeps them there.
    async fn read_items(&self, keys: Vec<Key>) -> Result<Vec<Option<Item>>, ReadError> {
        self.read(move |db, heads| {
            let before = heads.before_read();
            let items = keys
                .iter()
                .map(|k| database::item(db, k))
                .collect::<Result<Vec<_>, ReadError>>()?;
            heads.settle(|flight| keys.iter().any(|k| flight.contains(k)));
            for (key, item) in keys.iter().zip(&items) {
                heads.offer(before, key, item.clone().map(Arc::new));
            }
            Ok(items)
        })
        .await
    }
}

/// Makes the names in a folder durable.
fn sync_dir(dir: &Path) -> std::io::Result<()> {
    // Elsewhere a folder cannot be opened as a file, and names are durable with their files.
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &Key, _: Consistency) -> Result<Option<Item>, ReadError> {
        check_key(key)?;
        if let Some(known) = self.inner.heads.get(key) {
            return Ok(known.map(|item| (*item).clone()));
        }
        Ok(self.read_items(vec![key.clone()]).await?.pop().flatten())
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        crate::check_batch(keys)?;
        let mut items = vec![None; keys.len()];
        let (mut places, mut unknown) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            match self.inner.heads.get(key) {
                Some(known) => items[at] = known.map(|item| (*item).clone()),
                None => {
                    places.push(at);
                    unknown.push(key.clone());
                }
            }
        }
        if !unknown.is_empty() {
            for (at, item) in places.into_iter().zip(self.read_items(unknown).await?) {
                items[at] = item;
            }
        }
        Ok(items)
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        query.check()?;
        let query = query.clone();
        self.read(move |db, heads| {
            let page = database::page(db, &query)?;
            heads.settle(|flight| {
                flight
                    .range(Key::new(query.pk.as_str(), "")..)
                    .next()
                    .is_some_and(|k| k.pk == query.pk)
            });
            Ok(page)
        })
        .await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        commit.check()?;
        let blobs: usize = commit.blobs.iter().map(|b| b.body.len()).sum();
        let writes: usize = commit.writes.iter().map(|w| w.carried_bytes()).sum();
        self.submit(Work::Commit(commit), blobs + writes).await
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        name.check()?;
        let name = name.clone();
        let body = self.read(move |db, _| database::blob(db, &name)).await?;
        Ok(body.map(|body| blob::slice(body, range)))
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        let (owner, after) = (owner.to_owned(), after.map(str::to_owned));
        self.read(move |db, _| database::names(db, &owner, after.as_deref(), limit)).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        crate::check_deletes(names)?;
        if names.is_empty() {
            return Ok(());
        }
        self.submit(Work::DeleteBlobs(names.to_vec()), 0).await.map(drop)
    }
}
