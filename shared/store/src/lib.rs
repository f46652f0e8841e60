//! Heads and blobs: the store's trait, its limits, and its back ends.
//!
//! Everything durable is one of two things. A **blob** is immutable bytes under a name that nobody can guess:
//! writing one changes nothing that anyone can see. A **head** is a small mutable [`Item`] that names the blobs
//! which count: one conditional write on it, or one small transaction over a few heads, makes the blobs real, all
//! at once.
//!
//! ```
//! # use tidewheel_store::*;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let env = Env::system();
//! let store = Memory::new();
//! let blob = Blob::fresh("p1", "a segment", &env);
//! let name = blob.name.clone();
//! let append = Write::update(
//!     Key::new("p#1", "head"),
//!     vec![
//!         Change::Add("tail".into(), 10),
//!         Change::Append("segments".into(), vec![name.id.as_str().into()]),
//!     ],
//! )
//! .when(Condition::ShorterThan("segments".into(), 24));
//! let head = store.commit(Commit::one(append).with_blob(blob)).await?.image.expect("one write has an image");
//! assert_eq!(head.int("tail"), Some(10));
//! assert_eq!(store.blob(&name, None).await?.as_deref(), Some(&b"a segment"[..]));
//! # Ok(()) }
//! ```
//!
//! This crate knows no streams. It never retries, never reads a clock (see [`Env`]), and never guesses an outcome.
//!
//! A back end passes the suite in [`conformance`] unchanged:
//!
//! | back end | feature | for |
//! |---|---|---|
//! | [`Memory`] | | tests: deterministic, and it meters what the cloud would bill |
//! | [`Embedded`] | `embedded` | the local stack: one folder, one process, power-safe |
//! | `DynamoDb` | `dynamodb` | the deployed stack: heads and small blobs in a table, large blobs in a bucket |
//! | [`Faulty`] | | wraps another and breaks it by a seed |

pub mod blob;
pub mod conformance;
mod decide;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "embedded")]
pub mod embedded;
mod env;
mod error;
pub mod faulty;
mod item;
pub mod limits;
pub mod memory;
pub mod meter;
mod write;

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

#[cfg(feature = "dynamodb")]
pub use crate::dynamodb::DynamoDb;
#[cfg(feature = "embedded")]
pub use crate::embedded::Embedded;
pub use crate::{
    blob::{Blob, BlobName},
    env::Env,
    error::{CommitError, Failed, Invalid, ReadError},
    faulty::Faulty,
    item::{Item, Key, Value},
    memory::Memory,
    write::{Action, Change, Commit, Condition, Write},
};

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees every commit that was answered before the read began. Costs twice.
    Strong,
    /// May be a little old.
    Eventual,
}

/// Which way a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending sort keys.
    Forward,
    /// Descending sort keys.
    Backward,
}

/// A query over the items of one partition key. Strongly consistent.
#[derive(Clone, Debug)]
pub struct Query {
    /// The partition key.
    pub pk: String,
    /// Lowest sort key, inclusive; `None` is no bound.
    pub from: Option<String>,
    /// Highest sort key, **inclusive**; `None` is no bound.
    pub to: Option<String>,
    /// Which way.
    pub direction: Direction,
    /// Items in the page at most; at most [`limits::QUERY_ITEMS`].
    pub limit: usize,
}

impl Query {
    /// Every item of a partition key, ascending, in pages of the largest size.
    pub fn all(pk: impl Into<String>) -> Self {
        Self {
            pk: pk.into(),
            from: None,
            to: None,
            direction: Direction::Forward,
            limit: limits::QUERY_ITEMS,
        }
    }
}

impl Query {
    /// Every item of a partition key whose sort key begins like this, ascending, in pages of the largest size.
    pub fn prefix(pk: impl Into<String>, prefix: impl Into<String>) -> Self {
        let from = prefix.into();
        let to = format!("{from}{}", char::MAX);
        Self { from: Some(from), to: Some(to), ..Self::all(pk) }
    }

    /// The query of the page after this one; `None` if there is nothing more to ask for.
    #[must_use]
    pub fn following(&self, page: &Page) -> Option<Self> {
        let (last, _) = page.items.last().filter(|_| page.more)?;
        let mut next = self.clone();
        match self.direction {
            // The least sort key above one is the same with a zero byte.
            Direction::Forward => next.from = Some(format!("{}\u{0}", last.sk)),
            Direction::Backward => next.to = Some(below(&last.sk)?),
        }
        Some(next)
    }

    /// True if no sort key can lie within the bounds. The cloud refuses such a query; nothing is asked of it, or billed.
    pub(crate) fn encloses_nothing(&self) -> bool {
        match (&self.from, &self.to) {
            (_, None) => false,
            (None, Some(to)) => to.is_empty(),
            (Some(from), Some(to)) => to.is_empty() || from > to,
        }
    }

    /// Checks the query's limits. Every back end calls it first.
    ///
    /// # Errors
    /// [`Invalid`], naming the limit.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.pk.is_empty() || self.pk.len() > limits::PARTITION_KEY_BYTES {
            return Err(Invalid::KeySize { pk_bytes: self.pk.len(), sk_bytes: 1 });
        }
        if self.limit == 0 {
            return Err(Invalid::NoLimit);
        }
        too_many("items in a page", self.limit, limits::QUERY_ITEMS)
    }
}

/// The greatest sort key below this one, of those that are not too long; `None` below the least.
fn below(sk: &str) -> Option<String> {
    let mut at: Vec<char> = sk.chars().collect();
    match at.pop()? {
        '\0' => return Some(at.into_iter().collect::<String>()).filter(|sk| !sk.is_empty()),
        last => at.push(char::from_u32(last as u32 - 1).unwrap_or('\u{D7FF}')),
    }
    Some(greatest_after(at.into_iter().collect()))
}

/// The greatest sort key, of those that are not too long, that begins like this.
fn greatest_after(mut sk: String) -> String {
    for greatest in [char::MAX, '\u{FFFF}', '\u{7FF}', '\u{7F}'] {
        while sk.len() + greatest.len_utf8() <= limits::SORT_KEY_BYTES {
            sk.push(greatest);
        }
    }
    sk
}

fn too_many(what: &'static str, count: usize, limit: usize) -> Result<(), Invalid> {
    if count > limit { Err(Invalid::TooMany { what, count, limit }) } else { Ok(()) }
}

/// Checks the keys of a `batch_get`.
pub(crate) fn check_batch(keys: &[Key]) -> Result<(), Invalid> {
    too_many("keys", keys.len(), limits::BATCH_GET_KEYS)?;
    keys.iter().try_for_each(write::check_key)
}

/// Checks the names of a `delete_blobs`.
pub(crate) fn check_deletes(names: &[BlobName]) -> Result<(), Invalid> {
    too_many("blobs to delete", names.len(), limits::DELETE_BLOBS)?;
    names.iter().try_for_each(BlobName::check)
}

/// A page of a query's items.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The items, in the query's direction.
    pub items: Vec<(Key, Item)>,
    /// True if there may be more beyond the last one.
    pub more: bool,
}

/// What a commit left behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Committed {
    /// The item as the write left it, if the commit was one put or update. A transaction returns no images (the
    /// cloud's does not), so a caller that must know what a transaction left pins it by conditions.
    pub image: Option<Item>,
}

/// Heads and blobs. See the [crate's page](crate) for the model and [`limits`] for the limits.
///
/// Dropping a future before it is ready leaves its outcome unknown, exactly like a lost reply.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads one item.
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError>;

    /// Reads several items, strongly consistent each for itself; at most [`limits::BATCH_GET_KEYS`]. Answers stand
    /// in the order of the keys.
    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError>;

    /// Reads a page of one partition key's items.
    async fn query(&self, query: &Query) -> Result<Page, ReadError>;

    /// Makes the blobs durable, then the writes visible, all or nothing. When it has answered success, the commit
    /// survives a power failure.
    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError>;

    /// Reads a blob, or a range of its bytes; `None` if there is none of that name. The checksum of the whole blob
    /// is verified unless a range is asked for and the back end reads only that.
    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError>;

    /// Lists the blobs of an owner in the order of their ids, after one, at most `limit`.
    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError>;

    /// Deletes blobs; a name without a blob is no error. At most [`limits::DELETE_BLOBS`].
    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Nothing fits between a sort key and the one below it.
        #[test]
        fn nothing_lies_between_a_key_and_the_one_below(a in "[\u{0}ab\u{E000}\u{10FFFF}]{1,4}", b in "[\u{0}ab\u{E000}\u{10FFFF}]{1,4}") {
            match below(&a) {
                Some(below) => {
                    prop_assert!(below < a && below.len() <= limits::SORT_KEY_BYTES);
                    prop_assert!(b <= below || b >= a);
                }
                None => prop_assert!(b >= a),
            }
        }
    }
}
