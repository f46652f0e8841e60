//! The tables of all streams: declaring a schema, finding a table, and how fresh it is.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;
use object_store::{ObjectStore, path::Path};
use parking_lot::Mutex;
use tidewheel_engine::{Declaration, Engine, PartitionId, Uuid};
use tidewheel_schema::Schema;
use tidewheel_store::{Env, Store};

use crate::{
    Catalogue, Error, Mirrored,
    directory::Directory,
    files::Files,
    head::{self, Head},
    limits,
    logs::Target,
    positions::Loaded,
    seal::Flush,
    source::Source,
};

/// Settings of tables.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rows that one seal takes at most, about.
    pub seal_rows: usize,
    /// Payload bytes that one seal takes at most, about.
    pub seal_bytes: usize,
    /// Bytes at which a data file is full, about.
    pub file_bytes: usize,
    /// Snapshots that a table's metadata remembers, at least 1, and more if they were followed less than `pinned_us`
    /// ago. Older ones can no longer be travelled to; every row stays in the current one.
    pub snapshots: usize,
    /// How old a snapshot may get before it is forgotten, µs.
    pub snapshot_age_us: i64,
    /// How long whatever a reader may have opened stays as it is, µs: a snapshot after another has followed it, and
    /// every file that no snapshot names after it was made. It is also how far clocks may differ, so an hour at least.
    pub pinned_us: i64,
    /// Small files, one after another, that are worth a compaction, at least 2.
    pub compact_files: usize,
    /// Bytes of files that one compaction takes at most, about.
    pub compact_bytes: u64,
    /// Publishes the tables of streams that are encrypted at rest as well. A table's files are not encrypted, so that
    /// such a stream has no table unless this is set.
    pub publish_encrypted: bool,
    /// A catalogue that mirrors the tables, see [`Catalogue`].
    pub catalogue: Option<Arc<dyn Catalogue>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seal_rows: 2_000_000,
            seal_bytes: 1 << 30,
            file_bytes: limits::FILE_BYTES,
            snapshots: limits::SNAPSHOTS,
            snapshot_age_us: 24 * HOUR_US,
            pinned_us: HOUR_US,
            compact_files: 8,
            compact_bytes: 256 << 20,
            publish_encrypted: false,
            catalogue: None,
        }
    }
}

const HOUR_US: i64 = 3_600_000_000;

/// Where a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The table's location: what `iceberg_scan` of DuckDB takes.
    pub uri: String,
    /// The metadata file that counts: what PyIceberg and Polars take. `None` before the first seal.
    pub metadata: Option<String>,
    /// The version of the metadata; 0 before the first seal.
    pub version: u64,
}

/// How fresh a table is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Rows in the table.
    pub rows: u64,
    /// When the last snapshot was committed, µs; `None` before the first.
    pub sealed_us: Option<i64>,
    /// Records in the log that the table does not have yet: the translation lag.
    pub behind: u64,
    /// Partitions that have such records.
    pub partitions_behind: usize,
    /// Time of the oldest of such records, µs, of a few of those partitions; `None` if there are none.
    pub oldest_us: Option<i64>,
    /// False if there were more partitions to look at than one call looks at; then the two numbers are a lower bound.
    pub complete: bool,
}

/// How far a table reached in each partition when it was asked. It only moves forward, so this stays true.
pub struct Reach(Reached);

enum Reached {
    Each(Loaded),
    /// Of a declared stream's one partition.
    Only(u64),
}

impl Reach {
    /// The offset below which the table has every record of a partition that it will ever have.
    pub fn below(&self, partition: &PartitionId) -> u64 {
        match &self.0 {
            Reached::Each(positions) => positions.get(partition),
            Reached::Only(offset) => *offset,
        }
    }
}

/// The tables of all streams. Cheap to clone.
#[derive(Clone)]
pub struct Tables {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) env: Env,
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) root: Path,
    pub(crate) root_uri: String,
    pub(crate) settings: Settings,
    /// One seal of a table at a time in this process: two would only race. Sealers of other processes are kept apart by the
    /// condition on the head.
    sealing: Mutex<HashMap<Uuid, Arc<tokio::sync::Mutex<()>>>>,
    /// The stem at which a table's hint was seen. It only moves forward, so it need not be looked at again for that stem.
    pub(crate) hinted: Mutex<HashMap<Uuid, String>>,
    /// The stem that a table's mirror was told, and what became of it.
    pub(crate) mirrored: Mutex<HashMap<Uuid, (String, Mirrored)>>,
    /// Streams that are sealed at times of their own.
    pub(crate) flushes: Mutex<BTreeMap<String, Flush>>,
    /// Tables of generations that have all their rows.
    pub(crate) whole: Mutex<HashSet<Uuid>>,
    /// Where the next [`Tables::seal_all`] of this process goes on. Every process goes round for itself.
    pub(crate) resume: Mutex<Option<String>>,
}

impl Tables {
    /// Tables of an engine's streams, as files of `objects` under `root`. Readers see the same place as `root_uri`:
    /// `file:///data` for a local file system rooted at `/data`, or `s3://bucket/prefix`.
    pub fn new(
        engine: &Engine,
        objects: Arc<dyn ObjectStore>,
        root: Path,
        root_uri: &str,
        settings: Settings,
    ) -> Self {
        let source = Arc::new(engine.clone());
        let (store, env) = (engine.store().clone(), engine.env().clone());
        Self::with_source(source, store, env, objects, root, root_uri, settings)
    }

    /// Tables of any source of records; heads are kept in `store`.
    pub fn with_source(
        source: Arc<dyn Source>,
        store: Arc<dyn Store>,
        env: Env,
        objects: Arc<dyn ObjectStore>,
        root: Path,
        root_uri: &str,
        settings: Settings,
    ) -> Self {
        let inner = Inner {
            source,
            store,
            env,
            objects,
            root,
            root_uri: root_uri.to_owned(),
            settings,
            sealing: Mutex::default(),
            hinted: Mutex::default(),
            mirrored: Mutex::default(),
            flushes: Mutex::default(),
            whole: Mutex::default(),
            resume: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Declares the schema of a stream, which is made if it does not exist. Declaring the same again does nothing.
    ///
    /// # Errors
    /// [`Error::Schema`]; [`Error::SchemaDiffers`] and [`Error::TableExists`] if it is too late.
    pub async fn declare(&self, stream: &str, schema: &str) -> Result<Arc<Schema>, Error> {
        let schema = Some(Arc::new(Schema::compile(schema)?));
        let declaration = Declaration { schema, ..Declaration::default() };
        let declared = self.inner.source.declare(stream, declaration).await?;
        declared.declaration.schema.clone().ok_or_else(|| Error::NotDeclared(stream.to_owned()))
    }

    /// The schema that a stream has declared, if it has. Rows are checked against it before they are accepted.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`], or the store's.
    pub async fn schema(&self, stream: &str) -> Result<Option<Arc<Schema>>, Error> {
        self.id(stream).await?;
        let declared = self.inner.source.declared(stream).await?;
        Ok(declared.and_then(|d| d.declaration.schema.clone()))
    }

    /// Where a stream's table is, or will be.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`], or the store's.
    pub async fn location(&self, stream: &str) -> Result<Location, Error> {
        let (_, head) = self.shown(&self.id(stream).await?, stream).await?;
        let files = self.files(&head);
        let metadata = head.stem.as_deref().map(crate::directory::metadata_file);
        Ok(Location {
            uri: files.directory.uri().to_owned(),
            metadata: metadata.map(|file| files.directory.uri_of(&file)),
            version: head.version,
        })
    }

    /// The metadata that counts: its location, and its text. `None` before the first seal.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`], the store's, or that the file cannot be read.
    pub async fn metadata(&self, stream: &str) -> Result<Option<(String, Bytes)>, Error> {
        let (_, head) = self.shown(&self.id(stream).await?, stream).await?;
        let Some(stem) = head.stem.as_deref() else { return Ok(None) };
        let (files, file) = (self.files(&head), crate::directory::metadata_file(stem));
        Ok(Some((files.directory.uri_of(&file), files.read(&file).await?)))
    }

    /// How fresh a stream's table is. Costs one read for each partition that is behind, and one more for the time of a
    /// few of them.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`], or the store's.
    pub async fn freshness(&self, stream: &str) -> Result<Freshness, Error> {
        let inner = &*self.inner;
        let id = self.id(stream).await?;
        let ready = inner.source.ready(stream, limits::FRESHNESS_PARTITIONS).await?;
        let mut freshness = Freshness {
            complete: ready.len() < limits::FRESHNESS_PARTITIONS,
            ..Freshness::default()
        };
        for target in self.targets(&id, stream).await?.0 {
            let head = self.head(&target).await?;
            freshness.rows += head.rows;
            if head.version > 0 {
                freshness.sealed_us = freshness.sealed_us.max(Some(head.sealed_us));
            }
        }
        let reach = self.reach(stream).await?;
        for partition in ready {
            let Some(extent) = inner.source.extent(&partition.id).await? else { continue };
            let from = reach.below(&partition.id).max(extent.floor);
            if extent.tail <= from {
                continue;
            }
            freshness.behind += extent.tail - from;
            freshness.partitions_behind += 1;
            if freshness.partitions_behind <= limits::FRESHNESS_TIMES {
                let read = inner.source.read(&partition.id, from, 1, 1).await?;
                let time_us = read.records.first().map(|r| r.time_us);
                freshness.oldest_us = match (freshness.oldest_us, time_us) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        Ok(freshness)
    }

    /// How far the table of a stream reaches: what retention may take without taking it from the table.
    ///
    /// # Errors
    /// [`Error::StreamNotFound`], or the store's.
    pub async fn reach(&self, stream: &str) -> Result<Reach, Error> {
        let id = self.id(stream).await?;
        let (targets, logs) = self.targets(&id, stream).await?;
        if logs.is_none() {
            let head = self.head(&Target::plain(id, stream)).await?;
            let positions = head.positions.load(&*self.inner.store, &head::owner(&id)).await?;
            return Ok(Reach(Reached::Each(positions)));
        }
        let mut reached = 0;
        for target in &targets {
            reached = self.reached(&id, target).await?;
            if target.log.as_ref().is_none_or(|log| log.end.is_none_or(|end| reached < end)) {
                break;
            }
        }
        Ok(Reach(Reached::Only(reached)))
    }

    pub(crate) async fn id(&self, stream: &str) -> Result<Uuid, Error> {
        let id = self.inner.source.id(stream).await?;
        id.ok_or_else(|| Error::StreamNotFound(stream.to_owned()))
    }

    pub(crate) async fn head(&self, target: &Target) -> Result<Head, Error> {
        let inner = &*self.inner;
        Head::load(&*inner.store, &target.id, &target.directory, &inner.env).await
    }

    pub(crate) fn files(&self, head: &Head) -> Files {
        let inner = &*self.inner;
        let directory = Directory::new(&inner.root, &inner.root_uri, &head.directory);
        Files::new(inner.objects.clone(), directory)
    }

    pub(crate) fn sealing(&self, id: &Uuid) -> Arc<tokio::sync::Mutex<()>> {
        let mut sealing = self.inner.sealing.lock();
        // Forget the ones that nobody holds, now and then.
        if sealing.len() >= limits::REMEMBERED_TABLES {
            sealing.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        sealing.entry(*id).or_default().clone()
    }
}
