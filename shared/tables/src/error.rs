//! What tables refuse, and why. A message names the stream, partition, offset and column that a person needs; none
//! carries a payload.

use std::sync::Arc;

use tidewheel_engine::PartitionId;
use tidewheel_store::{CommitError, ReadError};

use tidewheel_schema::{RowError, SchemaError};

/// A record that is in the log and does not fit its stream's schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream `{stream}`, partition `{partition}`, offset {offset}: {error}")]
pub struct UnfitRecord {
    /// The stream.
    pub stream: String,
    /// The partition's name.
    pub partition: String,
    /// The record's offset in the partition.
    pub offset: u64,
    /// Which column, and why.
    pub error: RowError,
}

/// Why something about a table did not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// No such stream.
    #[error("stream `{0}` not found")]
    StreamNotFound(String),
    /// The stream has no table yet: nothing of it has been sealed.
    #[error("stream `{0}` has no table yet")]
    NoTable(String),
    /// The text is no schema.
    #[error("schema: {0}")]
    Schema(#[from] SchemaError),
    /// The stream has a schema, and it is another one.
    #[error("stream `{0}` has declared another schema")]
    SchemaDiffers(String),
    /// The stream's table already has the columns of a stream without a schema.
    #[error(
        "stream `{0}` has published a table without a schema; a schema is declared before the first record"
    )]
    TableExists(String),
    /// The stream has declared no schema.
    #[error("stream `{0}` has declared no schema")]
    NotDeclared(String),
    /// A stream with a schema has one partition.
    #[error(
        "stream `{stream}` has a schema and so one partition, but there are records in {partitions} at least"
    )]
    Partitions {
        /// The stream.
        stream: String,
        /// How many were found.
        partitions: usize,
    },
    /// Another writer of the table was first. Nothing of this one counts; the next attempt starts from there.
    #[error("another writer of the table of stream `{0}` was first")]
    Conflict(String),
    /// The reply was lost and the outcome could not be found out in time. The next attempt finds out.
    #[error("the outcome of a commit to the table of stream `{stream}` is unknown: {detail}")]
    Unknown {
        /// The stream.
        stream: String,
        /// Why.
        detail: String,
    },
    /// The store takes no more at the moment. Nothing was committed.
    #[error("the store is busy: nothing was committed, try again")]
    Busy,
    /// The store failed.
    #[error("the store: {0}")]
    Store(String),
    /// The stream could not be read.
    #[error(transparent)]
    Engine(#[from] tidewheel_engine::Error),
    /// A file could not be written or read.
    #[error("file `{path}`: {source}")]
    File {
        /// Which, in the object store.
        path: String,
        /// Why.
        source: Arc<object_store::Error>,
    },
    /// A catalogue that mirrors tables failed.
    #[error(transparent)]
    Catalogue(#[from] crate::CatalogueError),
    /// What is stored is not what was written.
    #[error("the table is damaged: {0}")]
    Corrupt(String),
    /// A table format's own failure.
    #[error("table format: {0}")]
    Format(String),
}

impl Error {
    /// True if a file is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Error::File { source, .. } if matches!(**source, object_store::Error::NotFound { .. }))
    }

    pub(crate) fn partition(id: &PartitionId) -> Self {
        Error::Corrupt(format!("partition `{id}` is ready and does not exist"))
    }
}

impl From<ReadError> for Error {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::Throttled => Error::Busy,
            e @ ReadError::Corrupt { .. } => Error::Corrupt(e.to_string()),
            e => Error::Store(e.to_string()),
        }
    }
}

impl From<CommitError> for Error {
    fn from(e: CommitError) -> Self {
        match e {
            CommitError::Contended | CommitError::Throttled => Error::Busy,
            e => Error::Store(e.to_string()),
        }
    }
}

impl From<iceberg::Error> for Error {
    fn from(e: iceberg::Error) -> Self {
        Error::Format(e.to_string())
    }
}

impl From<arrow_schema::ArrowError> for Error {
    fn from(e: arrow_schema::ArrowError) -> Self {
        Error::Format(e.to_string())
    }
}

impl From<parquet::errors::ParquetError> for Error {
    fn from(e: parquet::errors::ParquetError) -> Self {
        Error::Format(e.to_string())
    }
}
