//! Blobs: small ones are items beside the heads, larger ones objects.
//!
//! The place follows from the name and the size, so that nobody needs to remember it: a name that says "object"
//! ([`BlobName::hints_object`]) is one, whatever its size; a name that does not is an item, unless the blob is too large
//! for that. So the first kind is looked for in the bucket only, and the second in the table and, if it is not there, in
//! the bucket. Both places hold the sealed frame.
//!
//! Items of one owner are spread over [`SHARDS`] partition keys by their ids, because one key takes 1,000 write units a
//! second and the owner's head alone can ask for blobs of several times that. A listing merges the shards and the bucket,
//! each read as far as the merge needs it.
//!
//! Storing a blob is repeated by the SDK if it fails: the name is nobody else's and the bytes are always the same, so a
//! second copy is the first one. An object is put only if there is none of its name, which spares a large upload the
//! second time. A read of an item that finds nothing is made again, strongly: the first one is the cheap kind, which may
//! be too old to know a blob that was just stored.

use std::{collections::VecDeque, ops::Range};

use aws_sdk_dynamodb::{
    error::{ProvideErrorMetadata, SdkError},
    primitives::Blob as Binary,
    types::{AttributeValue, DeleteRequest, ReturnConsumedCapacity, WriteRequest},
};
use aws_sdk_s3::{
    primitives::ByteStream,
    types::{Delete, ObjectIdentifier},
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{DynamoDb, attributes::of_key, failure::Failure};
use crate::{
    Blob, BlobName, CommitError, Key, ReadError,
    blob::{self, FRAME_BYTES},
    limits,
    meter::{self, Units},
};

/// Partition keys that one owner's small blobs are spread over. A single digit, in hexadecimal.
const SHARDS: u32 = 8;

/// The attribute that holds a blob's frame.
const FRAME: &str = "b";

/// Calls of one kind that one call of the trait has under way at a time.
const AT_ONCE: usize = 16;

/// Items in one `BatchWriteItem`.
const BATCH_DELETES: usize = 25;

/// Names in one `DeleteObjects`, and in one page of a listing.
const OBJECT_BATCH: usize = 1000;

/// Requests of a listing at the least: small ones cost as much as these.
const LIST_AHEAD: usize = 16;

fn shard_key(owner: &str, shard: u32) -> String {
    format!("b#{owner}#{shard:x}")
}

/// The key of a blob that is an item.
pub(super) fn item_key(name: &BlobName) -> Key {
    Key::new(shard_key(&name.owner, crc32c::crc32c(name.id.as_bytes()) % SHARDS), &name.id)
}

/// The key of a blob that is an object.
pub(super) fn object_key(name: &BlobName) -> String {
    format!("{}{}", prefix(&name.owner), name.id)
}

fn prefix(owner: &str) -> String {
    format!("blobs/{owner}/")
}

/// What a status means that S3 gives without a code of its own.
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 412;
const RANGE_NOT_SATISFIABLE: u16 = 416;

fn status<E>(
    error: &SdkError<E, aws_smithy_runtime_api::client::orchestrator::HttpResponse>,
) -> u16 {
    error.raw_response().map_or(0, |answer| answer.status().as_u16())
}

/// Carries calls out, a bounded number at a time, until one fails.
async fn at_once<E>(calls: Vec<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await
}

impl DynamoDb {
    /// Makes blobs durable, several at a time.
    pub(super) async fn store_blobs(&self, blobs: &[Blob]) -> Result<(), CommitError> {
        at_once(blobs.iter().map(|blob| self.store_blob(blob)).collect()).await
    }

    async fn store_blob(&self, blob: &Blob) -> Result<(), CommitError> {
        let frame = blob::seal(&blob.name, &blob.body);
        if meter::is_inline(&blob.name, blob.body.len()) {
            let mut item = of_key(&item_key(&blob.name));
            item.insert(FRAME.to_owned(), AttributeValue::B(Binary::new(frame)));
            let put = self
                .dynamo()
                .put_item()
                .table_name(self.table())
                .set_item(Some(item))
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let done = put
                .send()
                .await
                .map_err(|e| Failure::of("PutItem of a blob", &e).before_writes())?;
            self.bill_writes(done.consumed_capacity());
            return Ok(());
        }
        self.bill(Units { blob_puts: 1, ..Units::default() });
        let put = self
            .s3()
            .put_object()
            .bucket(self.bucket())
            .key(object_key(&blob.name))
            .if_none_match("*")
            .body(ByteStream::from(frame));
        match put.send().await {
            Ok(_) => Ok(()),
            // It is there already, from a copy of this commit.
            Err(e) if status(&e) == PRECONDITION_FAILED => Ok(()),
            Err(e) => Err(Failure::of("PutObject", &e).before_writes()),
        }
    }

    /// Reads a blob from where it is.
    pub(super) async fn read_blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        if !name.hints_object() {
            for strongly in [false, true] {
                if let Some(frame) = self.read_item_blob(name, strongly).await? {
                    return Ok(Some(blob::slice(blob::open(name, frame)?, range)));
                }
            }
        }
        self.bill(Units { blob_gets: 1, ..Units::default() });
        match range {
            None => match self.read_object(name, None).await? {
                Read::Bytes(frame) => Ok(Some(blob::open(name, frame)?)),
                Read::Missing => Ok(None),
                Read::BeyondTheEnd => Ok(Some(Bytes::new())),
            },
            Some(range) => {
                // An empty range asks for the frame, to know whether the blob is there.
                let frame = FRAME_BYTES as u64;
                let end = range.end.min(limits::BLOB_BYTES as u64);
                let wanted =
                    if range.start < end { range.start + frame..end + frame } else { 0..frame };
                let empty = wanted.start == 0;
                Ok(match self.read_object(name, Some(wanted)).await? {
                    Read::Bytes(bytes) => Some(if empty { Bytes::new() } else { bytes }),
                    Read::BeyondTheEnd => Some(Bytes::new()),
                    Read::Missing => None,
                })
            }
        }
    }

    async fn read_item_blob(
        &self,
        name: &BlobName,
        strongly: bool,
    ) -> Result<Option<Bytes>, ReadError> {
        let get = self
            .dynamo()
            .get_item()
            .table_name(self.table())
            .set_key(Some(of_key(&item_key(name))))
            .consistent_read(strongly)
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        let found = get.send().await.map_err(|e| Failure::of("GetItem of a blob", &e).of_read())?;
        self.bill_reads(found.consumed_capacity());
        match found.item.and_then(|mut item| item.remove(FRAME)) {
            None => Ok(None),
            Some(AttributeValue::B(frame)) => Ok(Some(frame.into_inner().into())),
            Some(_) => Err(ReadError::Corrupt {
                what: format!("blob {name}"),
                detail: "its item holds no bytes".to_owned(),
            }),
        }
    }

    async fn read_object(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Read, ReadError> {
        let get = self
            .s3()
            .get_object()
            .bucket(self.bucket())
            .key(object_key(name))
            .set_range(range.map(|r| format!("bytes={}-{}", r.start, r.end - 1)));
        let found = match get.send().await {
            Ok(found) => found,
            Err(e) if e.as_service_error().is_some_and(|e| e.is_no_such_key()) => {
                return Ok(Read::Missing);
            }
            Err(e) => {
                return match status(&e) {
                    // A bucket that is not there is no missing blob.
                    NOT_FOUND if e.code() != Some("NoSuchBucket") => Ok(Read::Missing),
                    RANGE_NOT_SATISFIABLE => Ok(Read::BeyondTheEnd),
                    _ => Err(Failure::of("GetObject", &e).of_read()),
                };
            }
        };
        match found.body.collect().await {
            Ok(body) => Ok(Read::Bytes(body.into_bytes())),
            Err(e) => Err(ReadError::Unavailable(format!("GetObject: the body broke off: {e}"))),
        }
    }

    /// Lists an owner's blobs, small and large, in the order of their ids.
    pub(super) async fn list_blob_names(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        // The service takes no empty bound, and no id is empty.
        let after = after.filter(|id| !id.is_empty());
        let mut names: Vec<BlobName> = Vec::new();
        if limit == 0 {
            return Ok(names);
        }
        self.bill(Units { blob_lists: 1, ..Units::default() });
        let ahead = limit.div_ceil(SHARDS as usize).max(LIST_AHEAD).min(limit);
        let mut lists: Vec<List> =
            (0..SHARDS).map(|shard| List::new(Place::Shard(shard), after)).collect();
        lists.push(List::new(Place::Bucket, after));
        loop {
            // The least of all is only known when each list shows its next, or has none.
            let short = lists.iter_mut().filter(|list| list.waiting());
            let most = |list: &List| if list.in_bucket() { limit } else { ahead };
            at_once(short.map(|list| self.read_on(owner, most(list), list)).collect()).await?;
            while !lists.iter().any(List::waiting) {
                let least = lists
                    .iter_mut()
                    .filter(|list| !list.ids.is_empty())
                    .min_by(|a, b| a.ids.front().cmp(&b.ids.front()));
                let Some(id) = least.and_then(|list| list.ids.pop_front()) else {
                    return Ok(names);
                };
                // The same id may be in both places, if a copy of it was stored by an older rule.
                if names.last().is_none_or(|last| last.id != id) {
                    names.push(BlobName::new(owner, id));
                }
                if names.len() == limit {
                    return Ok(names);
                }
            }
        }
    }

    async fn read_on(&self, owner: &str, most: usize, list: &mut List) -> Result<(), ReadError> {
        match list.place {
            Place::Shard(shard) => {
                let query = self
                    .dynamo()
                    .query()
                    .table_name(self.table())
                    .key_condition_expression(match list.after {
                        Some(_) => "#pk = :pk AND #sk > :after",
                        None => "#pk = :pk",
                    })
                    .projection_expression("#sk")
                    .expression_attribute_names("#pk", super::attributes::PK)
                    .expression_attribute_names("#sk", super::attributes::SK)
                    .expression_attribute_values(":pk", AttributeValue::S(shard_key(owner, shard)))
                    .limit(i32::try_from(most).unwrap_or(i32::MAX))
                    .return_consumed_capacity(ReturnConsumedCapacity::Total);
                let query = match &list.after {
                    Some(id) => {
                        query.expression_attribute_values(":after", AttributeValue::S(id.clone()))
                    }
                    None => query,
                };
                let page =
                    query.send().await.map_err(|e| Failure::of("Query of blobs", &e).of_read())?;
                self.bill_reads(page.consumed_capacity());
                list.done = page.last_evaluated_key().is_none();
                for item in page.items() {
                    match item.get(super::attributes::SK) {
                        Some(AttributeValue::S(id)) => list.ids.push_back(id.clone()),
                        _ => {
                            return Err(ReadError::Corrupt {
                                what: format!("the blobs of `{owner}`"),
                                detail: "an item has no sort key".to_owned(),
                            });
                        }
                    }
                }
            }
            Place::Bucket => {
                let prefix = prefix(owner);
                let page = self
                    .s3()
                    .list_objects_v2()
                    .bucket(self.bucket())
                    .prefix(&prefix)
                    .set_start_after(list.after.as_ref().map(|id| format!("{prefix}{id}")))
                    .max_keys(most.min(OBJECT_BATCH) as i32)
                    .send()
                    .await
                    .map_err(|e| Failure::of("ListObjectsV2", &e).of_read())?;
                list.done = page.is_truncated() != Some(true);
                for object in page.contents() {
                    let id = object.key().and_then(|key| key.strip_prefix(&prefix));
                    list.ids.extend(id.map(str::to_owned));
                }
            }
        }
        if let Some(last) = list.ids.back() {
            list.after = Some(last.clone());
        }
        Ok(())
    }

    /// Deletes blobs from wherever they are.
    ///
    /// A batch of items may come back in part, which is the service's way to throttle: that is what it is told as. The
    /// caller asks again; what is gone already does no harm.
    pub(super) async fn delete_blobs_everywhere(
        &self,
        names: &[BlobName],
    ) -> Result<(), CommitError> {
        // The service takes no name twice in a batch.
        let names: std::collections::BTreeSet<&BlobName> = names.iter().collect();
        let objects: Vec<String> = names.iter().map(|name| object_key(name)).collect();
        let items: Vec<Key> =
            names.iter().filter(|name| !name.hints_object()).map(|name| item_key(name)).collect();
        let items = at_once(items.chunks(BATCH_DELETES).map(|b| self.delete_items(b)).collect());
        let objects =
            at_once(objects.chunks(OBJECT_BATCH).map(|b| self.delete_objects(b)).collect());
        let (items, objects) = futures_util::future::join(items, objects).await;
        items.and(objects)
    }

    async fn delete_items(&self, keys: &[Key]) -> Result<(), CommitError> {
        let deletes = keys
            .iter()
            .map(|key| {
                let delete = DeleteRequest::builder().set_key(Some(of_key(key))).build()?;
                Ok(WriteRequest::builder().delete_request(delete).build())
            })
            .collect::<Result<Vec<_>, aws_smithy_types::error::operation::BuildError>>()
            .map_err(|e| CommitError::Unavailable(format!("BatchWriteItem: {e}")))?;
        let done = self
            .dynamo()
            .batch_write_item()
            .request_items(self.table(), deletes)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|e| Failure::of("BatchWriteItem", &e).of_commit())?;
        self.bill_writes(done.consumed_capacity());
        let left =
            done.unprocessed_items().is_some_and(|left| left.values().any(|l| !l.is_empty()));
        if left { Err(CommitError::Throttled) } else { Ok(()) }
    }

    async fn delete_objects(&self, keys: &[String]) -> Result<(), CommitError> {
        let broken =
            |e: &dyn std::fmt::Display| CommitError::Unavailable(format!("DeleteObjects: {e}"));
        let objects = keys
            .iter()
            .map(|key| ObjectIdentifier::builder().key(key).build())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| broken(&e))?;
        let delete = Delete::builder()
            .set_objects(Some(objects))
            .quiet(true)
            .build()
            .map_err(|e| broken(&e))?;
        let done = self
            .s3()
            .delete_objects()
            .bucket(self.bucket())
            .delete(delete)
            .send()
            .await
            .map_err(|e| Failure::of("DeleteObjects", &e).of_commit())?;
        match done.errors().first().map(|e| e.code().unwrap_or("no code")) {
            None | Some("NoSuchKey") => Ok(()),
            Some("SlowDown") => Err(CommitError::Throttled),
            Some(code) => Err(broken(&code)),
        }
    }
}

/// What a read of an object found.
enum Read {
    Bytes(Bytes),
    BeyondTheEnd,
    Missing,
}

/// Where a part of an owner's blobs is listed.
#[derive(Clone, Copy)]
enum Place {
    Shard(u32),
    Bucket,
}

/// Ids of one place, in order, as far as they have been read.
struct List {
    place: Place,
    ids: VecDeque<String>,
    /// The last one that was read, or the one to begin after.
    after: Option<String>,
    done: bool,
}

impl List {
    fn new(place: Place, after: Option<&str>) -> Self {
        Self { place, ids: VecDeque::new(), after: after.map(str::to_owned), done: false }
    }

    /// Its next id is not known yet.
    fn waiting(&self) -> bool {
        self.ids.is_empty() && !self.done
    }

    fn in_bucket(&self) -> bool {
        matches!(self.place, Place::Bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;

    /// Blobs outlive programs: a name leads to the same place forever.
    #[test]
    fn the_places_are_frozen() {
        let name = BlobName::new("owner", "0123456789ab0123456789abc");
        assert_eq!(item_key(&name), Key::new("b#owner#3", "0123456789ab0123456789abc"));
        assert_eq!(object_key(&name), "blobs/owner/0123456789ab0123456789abc");
    }

    #[test]
    fn the_blobs_of_one_owner_spread_evenly() {
        let env = Env::system();
        let mut shards = std::collections::BTreeMap::new();
        for _ in 0..8_000 {
            *shards.entry(item_key(&BlobName::fresh("o", &env)).pk).or_insert(0) += 1;
        }
        assert_eq!(shards.len(), SHARDS as usize);
        assert!(shards.values().all(|n| (700..1300).contains(n)), "{shards:?}");
    }
}
