//! What can go wrong, by kind. The kinds matter more than the words: a caller acts on a conflict, repeats after
//! contention, resolves an unknown outcome by its commit's id, and reports the rest.

use crate::{Item, Key, blob::BlobName, limits};

/// A request that no back end takes, whatever the items are.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// A commit without writes.
    #[error("a commit needs at least one write")]
    NoWrites,
    /// Too many writes.
    #[error("{writes} writes in one commit; the limit is {}", limits::TRANSACTION_ITEMS)]
    TooManyWrites {
        /// How many there are.
        writes: usize,
    },
    /// An item named twice in one commit.
    #[error("item `{key}` is written twice in one commit")]
    ItemTwice {
        /// The item.
        key: Key,
    },
    /// An attribute changed twice in one write.
    #[error("attribute `{attribute}` of item `{key}` is changed twice in one write")]
    AttributeTwice {
        /// The item.
        key: Key,
        /// The attribute.
        attribute: String,
    },
    /// Too many conditions in one write.
    #[error(
        "{operators} operators in the conditions on `{key}`; the limit is {}",
        limits::CONDITION_OPERATORS
    )]
    TooManyConditions {
        /// The item.
        key: Key,
        /// How many there are.
        operators: usize,
    },
    /// A key that is empty or too long.
    #[error(
        "a key of {pk_bytes} + {sk_bytes} bytes; each part needs 1 byte at least, at most {} + {}",
        limits::PARTITION_KEY_BYTES,
        limits::SORT_KEY_BYTES
    )]
    KeySize {
        /// Bytes of the partition key.
        pk_bytes: usize,
        /// Bytes of the sort key.
        sk_bytes: usize,
    },
    /// An item that would grow too large.
    #[error("item `{key}` would have {bytes} bytes; the limit is {}", limits::ITEM_BYTES)]
    ItemSize {
        /// The item.
        key: Key,
        /// Its size after the write.
        bytes: usize,
    },
    /// A transaction of too many bytes.
    #[error("{bytes} bytes in one transaction; the limit is {}", limits::TRANSACTION_BYTES)]
    TransactionSize {
        /// Their sum.
        bytes: usize,
    },
    /// A change that does not fit the attribute's type.
    #[error("the change does not fit the type or range of attribute `{attribute}`")]
    AttributeType {
        /// The attribute.
        attribute: String,
    },
    /// A blob that is too large.
    #[error("blob `{name}` has {bytes} bytes; the limit is {}", limits::BLOB_BYTES)]
    BlobSize {
        /// The blob.
        name: BlobName,
        /// Its size.
        bytes: usize,
    },
    /// A blob's name that is empty, too long, or has a character outside `A-Za-z0-9._-`.
    #[error("`{name}` is no blob name")]
    BlobName {
        /// The name.
        name: BlobName,
    },
    /// A set without members, which the cloud does not know.
    #[error("attribute `{attribute}` would be an empty set")]
    EmptySet {
        /// The attribute.
        attribute: String,
    },
    /// An attribute's name that is empty, too long, or a key's.
    #[error(
        "`{attribute}` is no attribute name: 1 to {} bytes, and neither `pk` nor `sk`",
        limits::ATTRIBUTE_NAME_BYTES
    )]
    AttributeName {
        /// The name.
        attribute: String,
    },
    /// Values nested too deep.
    #[error("attribute `{attribute}` is nested too deep; the limit is {}", limits::VALUE_DEPTH)]
    AttributeDepth {
        /// The attribute.
        attribute: String,
    },
    /// A blob named twice in one commit.
    #[error("blob `{name}` is stored twice in one commit")]
    BlobTwice {
        /// The blob.
        name: BlobName,
    },
    /// A page of no items.
    #[error("a page needs a limit of at least 1")]
    NoLimit,
    /// Too many keys or names in one call.
    #[error("{count} {what} in one call; the limit is {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many may be.
        limit: usize,
    },
}

/// A write whose conditions did not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Its place in [`crate::Commit::writes`].
    pub write: usize,
    /// The item as it is. It comes free with the refusal.
    pub current: Option<Item>,
}

/// Why a commit did not, or perhaps did not, happen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommitError {
    /// Conditions did not hold; nothing was written. Every write whose conditions failed is named.
    #[error("the conditions of {} write(s) did not hold", .0.len())]
    Conflict(Vec<Failed>),
    /// Another transaction is at work on one of the items; nothing was written, nothing is known of the
    /// conditions. Repeat.
    #[error("another transaction is at work on the item")]
    Contended,
    /// The store takes no more at the moment; nothing was written. Repeat later.
    #[error("the store is throttling")]
    Throttled,
    /// The request is at fault; nothing was written.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store is out of order (a full disk, say); nothing was written.
    #[error("the store refused the commit: {0}")]
    Unavailable(String),
    /// The reply was lost: the commit may have happened, may not have, or may still happen. Resolve it by what
    /// the commit would have left behind.
    #[error("the outcome of the commit is unknown: {0}")]
    Unknown(String),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReadError {
    /// The store takes no more at the moment.
    #[error("the store is throttling")]
    Throttled,
    /// The request is at fault.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store is out of order or out of reach.
    #[error("the store cannot be read: {0}")]
    Unavailable(String),
    /// What is stored is not what was written.
    #[error("`{what}` is damaged: {detail}")]
    Corrupt {
        /// The item or blob.
        what: String,
        /// How it shows.
        detail: String,
    },
}
