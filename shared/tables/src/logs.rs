//! Declared streams as their tables need them: one table for each generation of the schema.
//!
//! A declared stream has one partition, and its log is cut into generations wherever its schema changed. Each generation
//! is a table of its own, called as streamcast calls that log, below the stream's directory:
//!
//! ```text
//! tables/<stream>/<log>/metadata, /data     each generation's table
//! tables/<stream>/<stream>.metadata/        what the stream is made of: see `crate::stream_metadata`
//! ```
//!
//! They are sealed strictly one after another: nothing of a generation is in a table before the one before it is
//! whole, so that the highest published offset proves all below it.

use std::sync::Arc;

use tidewheel_engine::{DEFAULT_PARTITION, Declared, PartitionId, Uuid};
use tidewheel_schema::Schema;

use crate::{Error, directory::directory_name, head::Head, shape::Shape, tables::Tables};

/// One generation of a declared stream's log. Offsets are the engine's, which count from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// What streamcast calls it: the stream's name, then `<stream>-v2` and so on.
    pub name: String,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// Columns that its rows are sorted by where they are written again.
    pub sort_by: Vec<String>,
    /// The first offset.
    pub start: u64,
    /// When its first row could come in, µs.
    pub start_us: Option<i64>,
    /// The offset after the last; `None` of the live one.
    pub end: Option<u64>,
    /// When it ended, µs.
    pub end_us: Option<i64>,
}

/// A declared stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Logs {
    /// Its generations, the live one last.
    pub logs: Vec<Log>,
    /// When it was retired, µs, and the offset after its last row.
    pub retired: Option<(i64, u64)>,
    /// Rows below this offset are no longer shown.
    pub floor: u64,
    /// How old rows may get, µs.
    pub max_age_us: Option<i64>,
    /// How often it wants to be sealed, µs; `None` as often as all.
    pub flush_every_us: Option<i64>,
}

impl Logs {
    /// The generations of a stream's log; `None` if it stores nothing, or has rows without columns: then its table is as any
    /// stream's.
    pub fn of(declared: &Declared) -> Option<Self> {
        if !declared.declaration.log {
            return None;
        }
        let logs = declared.generations.iter().map(|generation| {
            Some(Log {
                name: generation.name.clone(),
                schema: generation.schema.clone()?,
                sort_by: generation.sort_by.clone(),
                start: generation.start,
                start_us: generation.start_us,
                end: generation.end,
                end_us: generation.end_us,
            })
        });
        Some(Self {
            logs: logs.collect::<Option<_>>()?,
            retired: declared.retired.map(|retired| (retired.at_us, retired.end)),
            floor: declared.floor,
            max_age_us: declared.declaration.max_age_us,
            flush_every_us: declared.declaration.flush_every_us,
        })
    }
}

/// A table: a stream's, or that of one generation of a declared one.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The table's id: the stream's, or one made of the stream's and the generation's number.
    pub(crate) id: Uuid,
    /// The stream's name.
    pub(crate) stream: String,
    /// The directory, below that of all tables.
    pub(crate) directory: String,
    pub(crate) log: Option<Log>,
    /// The schemas of the generations before, in order.
    pub(crate) earlier: Vec<Arc<Schema>>,
}

impl Target {
    /// The table of a stream that has not declared a schema.
    pub(crate) fn plain(id: Uuid, stream: &str) -> Self {
        let directory = directory_name(stream);
        Self { id, stream: stream.to_owned(), directory, log: None, earlier: Vec::new() }
    }

    /// The table of a generation, by its number from 0.
    pub(crate) fn of_log(stream_id: &Uuid, stream: &str, number: usize, logs: &[Log]) -> Self {
        let log = logs.get(number);
        let name = log.map_or(stream, |log| &log.name);
        Self {
            id: generation_id(stream_id, number),
            stream: stream.to_owned(),
            directory: format!("{}/{}", directory_name(stream), directory_name(name)),
            log: log.cloned(),
            earlier: logs.iter().take(number).map(|log| log.schema.clone()).collect(),
        }
    }

    /// The stream's name beside the table's id, as most of what is done to a table wants it.
    pub(crate) fn of(&self) -> (&Uuid, &str) {
        (&self.id, &self.stream)
    }

    /// What rows of it are.
    pub(crate) fn shape(&self) -> Shape {
        self.log.as_ref().map_or(Shape::Envelope, |log| Shape::Declared(log.schema.clone()))
    }

    /// Columns that rows are sorted by where they are written again, before their own order.
    pub(crate) fn sort_by(&self) -> &[String] {
        self.log.as_ref().map_or(&[], |log| &log.sort_by)
    }
}

/// The id of a generation's table.
pub(crate) fn generation_id(stream: &Uuid, number: usize) -> Uuid {
    Uuid::derived(&[b"generation", stream.as_bytes(), &(number as u64).to_be_bytes()])
}

impl Tables {
    /// The tables of a stream, and what it has declared.
    pub(crate) async fn targets(
        &self,
        id: &Uuid,
        stream: &str,
    ) -> Result<(Vec<Target>, Option<Logs>), Error> {
        let Some(logs) = self.inner.source.logs(stream).await? else {
            return Ok((vec![Target::plain(*id, stream)], None));
        };
        let numbers = 0..logs.logs.len();
        let targets = numbers.map(|n| Target::of_log(id, stream, n, &logs.logs)).collect();
        Ok((targets, Some(logs)))
    }

    /// The table that a reader of the stream as a whole is shown: of a declared stream that of the last generation that
    /// has one.
    pub(crate) async fn shown(&self, id: &Uuid, stream: &str) -> Result<(Target, Head), Error> {
        let (mut targets, _) = self.targets(id, stream).await?;
        loop {
            let Some(target) = targets.pop() else {
                return Err(Error::Corrupt(format!("stream `{stream}` has no generation")));
            };
            let head = self.head(&target).await?;
            if head.version > 0 || targets.is_empty() {
                return Ok((target, head));
            }
        }
    }

    /// The next offset of a generation that its table does not have.
    pub(crate) async fn reached(&self, stream: &Uuid, target: &Target) -> Result<u64, Error> {
        let Some(log) = &target.log else { return Ok(0) };
        if let Some(end) = log.end.filter(|_| self.inner.whole.lock().contains(&target.id)) {
            return Ok(end);
        }
        let head = self.head(target).await?;
        let owner = crate::head::owner(&target.id);
        let positions = head.positions.load(&*self.inner.store, &owner).await?;
        let reached = positions.get(&only_partition(stream)).max(log.start);
        if log.end.is_some_and(|end| reached >= end) {
            self.inner.whole.lock().insert(target.id);
        }
        Ok(reached)
    }
}

/// The one partition of a declared stream.
pub(crate) fn only_partition(stream: &Uuid) -> PartitionId {
    PartitionId::of(stream, DEFAULT_PARTITION)
}
