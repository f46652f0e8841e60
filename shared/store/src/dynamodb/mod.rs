//! The deployed back end: heads and small blobs in one DynamoDB table, large blobs in one S3 bucket.
//!
//! # Layout
//!
//! | what | where | attributes |
//! |---|---|---|
//! | an item | `pk`, `sk` as its [`Key`] | its own, in the service's own types (`attributes`) |
//! | a blob up to [`crate::limits::INLINE_BLOB_BYTES`], frame included | `pk` = `b#<owner>#<shard>`, `sk` = `<id>` | `b`: the frame |
//! | a larger blob | object `blobs/<owner>/<id>` | the frame |
//!
//! The table has `pk` and `sk` as its key, both `S`, and no index. `expires` (seconds since 1970) is kept for the
//! service's own expiry; no item of the engine has an attribute of that name.
//!
//! # How a commit goes
//!
//! All blobs first, side by side; when they are durable, the writes: a plain conditional write, or a transaction. So a
//! commit takes two round trips if it has blobs, else one. What a process that dies between them leaves behind is blobs
//! that no head names.
//!
//! # What failures are told as
//!
//! | what the service or the network says | told as |
//! |---|---|
//! | a condition failed | `Conflict`, with the item that came with the refusal |
//! | a plain write met a transaction; a transaction met another | `Contended` |
//! | too many requests, capacity exceeded, slow down | `Throttled` |
//! | a validation that depends on the item (its size, an attribute's type) | `Invalid`, as the local back ends say it |
//! | any other refusal (access, no such table), no connection, no credentials | `Unavailable`: nothing was done |
//! | a time-out, a broken connection, a fault inside the service, an unreadable reply | `Unknown` |
//! | the same, while the blobs were stored | `Unavailable`: a blob without a head is nothing |
//!
//! Commits are sent once. Reads, and blobs, are repeated by the SDK as its client is told; nothing else here repeats
//! anything, waits, or reads a clock. See `commit` for cancelled transactions and `expression` for how conditions keep
//! their meaning.
//!
//! # What it costs
//!
//! Every request asks for the capacity that it consumed, and [`DynamoDb::meter`] adds it up in the units of
//! [`crate::meter`]. The reply of a refusal does not say; then the published rule is applied to the item that came with
//! it. Of a cancelled transaction only the items whose conditions failed come, so its figure is a lower bound.

mod attributes;
mod blobs;
mod commit;
mod expression;
mod failure;
mod query;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, ops::Range, sync::Arc};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{ConsumedCapacity, KeysAndAttributes, ReturnConsumedCapacity};
use bytes::Bytes;
use parking_lot::Mutex;
/// The SDKs that [`DynamoDb::new`] takes clients of.
pub use {aws_sdk_dynamodb, aws_sdk_s3};

use self::{
    attributes::{of_key, to_item, to_key},
    failure::Failure,
};
use crate::{
    BlobName, Commit, CommitError, Committed, Consistency, Item, Key, Page, Query, ReadError,
    Store, meter::Units, write::check_key,
};

/// Where the store is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The table.
    pub table: String,
    /// The bucket.
    pub bucket: String,
}

impl Options {
    /// A table and a bucket.
    pub fn new(table: impl Into<String>, bucket: impl Into<String>) -> Self {
        Self { table: table.into(), bucket: bucket.into() }
    }
}

/// Heads and blobs in the cloud. Cheap to clone; clones share the clients and the meter.
#[derive(Clone)]
pub struct DynamoDb {
    inner: Arc<Inner>,
}

struct Inner {
    dynamo: aws_sdk_dynamodb::Client,
    s3: aws_sdk_s3::Client,
    options: Options,
    units: Mutex<Units>,
}

impl std::fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoDb").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl DynamoDb {
    /// The store in this table and this bucket. Opens no connection.
    ///
    /// The clients' time-outs and endpoints hold for every call, their retries for reads and blobs alone.
    pub fn new(dynamo: aws_sdk_dynamodb::Client, s3: aws_sdk_s3::Client, options: Options) -> Self {
        Self { inner: Arc::new(Inner { dynamo, s3, options, units: Mutex::default() }) }
    }

    /// Opens a connection to each of the two services, so that the first call does not.
    ///
    /// # Errors
    /// [`ReadError`] if one cannot be reached or the table cannot be read.
    pub async fn warm(&self) -> Result<(), ReadError> {
        let nothing = Key::new("warm", "warm");
        let bucket = self.s3().head_bucket().bucket(self.bucket()).send();
        let (table, bucket) =
            futures_util::future::join(self.get(&nothing, Consistency::Eventual), bucket).await;
        table?;
        match bucket {
            // Any answer will do: the connection is what was asked for.
            Err(e) if e.raw_response().is_none() => Err(Failure::of("HeadBucket", &e).of_read()),
            _ => Ok(()),
        }
    }

    /// What was billed since the start, or since the last [`DynamoDb::reset_meter`].
    pub fn meter(&self) -> Units {
        *self.inner.units.lock()
    }

    /// Sets the meter to nothing.
    pub fn reset_meter(&self) {
        *self.inner.units.lock() = Units::default();
    }

    fn dynamo(&self) -> &aws_sdk_dynamodb::Client {
        &self.inner.dynamo
    }

    fn s3(&self) -> &aws_sdk_s3::Client {
        &self.inner.s3
    }

    fn table(&self) -> &str {
        &self.inner.options.table
    }

    fn bucket(&self) -> &str {
        &self.inner.options.bucket
    }

    fn bill(&self, units: Units) {
        *self.inner.units.lock() += units;
    }

    fn count_call(&self) {
        self.bill(Units { calls: 1, ..Units::default() });
    }

    fn bill_writes<'a>(&self, consumed: impl IntoIterator<Item = &'a ConsumedCapacity>) {
        let write_units = consumed.into_iter().filter_map(ConsumedCapacity::capacity_units).sum();
        self.bill(Units { write_units, ..Units::default() });
    }

    fn bill_reads<'a>(&self, consumed: impl IntoIterator<Item = &'a ConsumedCapacity>) {
        let read_units = consumed.into_iter().filter_map(ConsumedCapacity::capacity_units).sum();
        self.bill(Units { read_units, ..Units::default() });
    }

    /// Reads items, each key once, in whatever order they come.
    async fn read_items(&self, keys: &[Key]) -> Result<HashMap<Key, Item>, ReadError> {
        let mut found = HashMap::new();
        let distinct: std::collections::BTreeSet<&Key> = keys.iter().collect();
        let mut wanted: Vec<_> = distinct.into_iter().map(of_key).collect();
        // An answer holds 16 MB; what does not fit is asked for again, and as long as there is less each time this ends.
        while !wanted.is_empty() {
            let asked = wanted.len();
            let request = KeysAndAttributes::builder()
                .set_keys(Some(std::mem::take(&mut wanted)))
                .consistent_read(true)
                .build()
                .map_err(|e| ReadError::Unavailable(format!("BatchGetItem: {e}")))?;
            let answer = self
                .dynamo()
                .batch_get_item()
                .request_items(self.table(), request)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|e| Failure::of("BatchGetItem", &e).of_read())?;
            self.bill_reads(answer.consumed_capacity());
            for attributes in answer.responses.unwrap_or_default().into_values().flatten() {
                let key = to_key(&attributes)?;
                let item = to_item(&key, attributes)?;
                found.insert(key, item);
            }
            for left in answer.unprocessed_keys.unwrap_or_default().into_values() {
                wanted.extend(left.keys);
            }
            if wanted.len() >= asked {
                return Err(ReadError::Throttled);
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Store for DynamoDb {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        check_key(key)?;
        self.count_call();
        let answer = self
            .dynamo()
            .get_item()
            .table_name(self.table())
            .set_key(Some(of_key(key)))
            .consistent_read(consistency == Consistency::Strong)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|e| Failure::of("GetItem", &e).of_read())?;
        self.bill_reads(answer.consumed_capacity());
        answer.item.map(|attributes| to_item(key, attributes)).transpose()
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        crate::check_batch(keys)?;
        self.count_call();
        let found = self.read_items(keys).await?;
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        query.check()?;
        self.count_call();
        self.read_page(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        commit.check()?;
        self.count_call();
        self.store_blobs(&commit.blobs).await?;
        self.write(&commit.writes).await
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        name.check()?;
        self.count_call();
        self.read_blob(name, range).await
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.count_call();
        self.list_blob_names(owner, after, limit).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        crate::check_deletes(names)?;
        self.count_call();
        self.delete_blobs_everywhere(names).await
    }
}
