//! What the engine refuses, and why. A message names the ids and limits that a person needs; no message carries a
//! payload or a secret.

use tidewheel_schema::RowError;
use tidewheel_store::{CommitError, ReadError};

use crate::{DEFAULT_PARTITION, encryption::KeyError, limits};

/// Why an operation did not happen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A name that is empty where it may not be, or too long.
    #[error("{what} has {bytes} bytes; 1 to {limit} are allowed")]
    Name {
        /// Whose name.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A value outside its limit.
    #[error("{what} is {got}; the limit is {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// A request whose parts do not fit together.
    #[error("{0}")]
    Invalid(String),
    /// No such stream.
    #[error("stream `{0}` not found")]
    StreamNotFound(String),
    /// No such partition.
    #[error("partition not found")]
    PartitionNotFound,
    /// No such query.
    #[error("query not found")]
    QueryNotFound,
    /// The group has never popped here.
    #[error("consumer not found: group `{0}` has never popped from this partition")]
    GroupNotFound(String),
    /// The lease is not, or no longer, the one that was granted.
    #[error("invalid or expired lease")]
    Lease,
    /// The computation that this commit carries read a state that has changed since.
    #[error("stale state: key `{key}` was deleted by another cycle since it was read")]
    StaleState {
        /// The state key.
        key: String,
    },
    /// The stream has declared nothing.
    #[error("stream `{0}` is not declared")]
    NotDeclared(String),
    /// The stream cannot be declared.
    #[error("stream `{stream}` cannot be declared: {detail}")]
    Declare {
        /// The stream.
        stream: String,
        /// Why.
        detail: String,
    },
    /// The stream has declared something else.
    #[error("stream `{stream}` has declared otherwise: {detail}")]
    Differs {
        /// The stream.
        stream: String,
        /// The first difference.
        detail: String,
    },
    /// The schema cannot become the stream's next.
    #[error("stream `{stream}` cannot change to this schema: {detail}")]
    Migrate {
        /// The stream.
        stream: String,
        /// Why.
        detail: String,
    },
    /// A row that does not fit the stream's schema.
    #[error("a row does not fit stream `{stream}`: {error}")]
    Row {
        /// The stream.
        stream: String,
        /// Its place among the rows that came with it to this stream.
        row: usize,
        /// The column, and what is wrong with it.
        error: RowError,
    },
    /// The stream is retired: it takes no more rows.
    #[error("stream `{stream}` is retired: it ends at offset {end}")]
    Retired {
        /// The stream.
        stream: String,
        /// When it was retired, µs.
        at_us: i64,
        /// One past its last offset.
        end: u64,
    },
    /// The stream has no log: nothing can be stored in it.
    #[error(
        "stream `{0}` has no log: its rows are relayed to those who listen, and are published, not pushed"
    )]
    NoLog(String),
    /// A declared stream has one partition.
    #[error(
        "stream `{stream}` is declared and has the partition `{DEFAULT_PARTITION}` alone, not `{partition}`"
    )]
    OnePartition {
        /// The stream.
        stream: String,
        /// What was asked for.
        partition: String,
    },
    /// The store takes no more at the moment, or others are always first. Nothing was written.
    #[error("the store is busy: nothing was written, try again")]
    Busy,
    /// The store is out of order. Nothing was written.
    #[error("the store is out of order: {0}")]
    Unavailable(String),
    /// An operator has paused this. Nothing was written.
    #[error("{0} is paused for maintenance: nothing was stored, try again later")]
    Paused(&'static str),
    /// Something could not be encrypted, and was not stored; or not decrypted, and is not served.
    #[error("encryption: {0}")]
    Encryption(#[from] KeyError),
    /// What is stored is damaged; it is not served.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// The outcome could not be found out: it may have happened or not. Repeating with the same ids is safe.
    #[error("the outcome is unknown: {0}; repeating the request with the same ids is safe")]
    Unknown(String),
}

impl Error {
    /// Checks a name's length.
    pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.len() > limits::NAME_BYTES {
            return Err(Error::Name { what, bytes: name.len(), limit: limits::NAME_BYTES });
        }
        Ok(())
    }

    /// An answer after a commit whose reply was lost and which was not found: it may still arrive, so that no refusal
    /// is certain any more.
    pub(crate) fn in_doubt<T>(answer: Result<T, Error>, doubt: Option<String>) -> Result<T, Error> {
        match (answer, doubt) {
            (Err(e), Some(why)) if !matches!(e, Error::Unknown(_)) => Err(Error::Unknown(why)),
            (answer, _) => answer,
        }
    }

    /// True if the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Busy | Error::Paused(_) | Error::Unavailable(_) | Error::Unknown(_) => true,
            Error::Encryption(e) => matches!(e, KeyError::Unavailable(_)),
            _ => false,
        }
    }
}

impl From<ReadError> for Error {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::Throttled => Error::Busy,
            ReadError::Invalid(e) => Error::Invalid(e.to_string()),
            ReadError::Unavailable(e) => Error::Unavailable(e),
            ReadError::Corrupt { .. } => Error::Corrupt(e.to_string()),
        }
    }
}

impl From<CommitError> for Error {
    fn from(e: CommitError) -> Self {
        match e {
            CommitError::Conflict(_) | CommitError::Contended | CommitError::Throttled => {
                Error::Busy
            }
            CommitError::Invalid(e) => Error::Invalid(e.to_string()),
            CommitError::Unavailable(e) => Error::Unavailable(e),
            CommitError::Unknown(e) => Error::Unknown(e),
        }
    }
}
