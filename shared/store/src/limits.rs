//! The limits of every back end, in one place.
//!
//! They are those of the cloud's store (DynamoDB and S3) and hold everywhere, so that nothing works on a laptop
//! and fails deployed. Each back end enforces them through [`crate::Commit::check`]; none has limits of its own.

/// Bytes of one item: attribute names and values, as [`crate::Item::size`] counts them.
pub const ITEM_BYTES: usize = 400 * 1024;

/// Bytes of a partition key.
pub const PARTITION_KEY_BYTES: usize = 2048;

/// Bytes of a sort key.
pub const SORT_KEY_BYTES: usize = 1024;

/// Bytes of an attribute's name.
pub const ATTRIBUTE_NAME_BYTES: usize = 255;

/// How deep lists and maps may be nested in an attribute.
pub const VALUE_DEPTH: usize = 31;

/// Writes in one commit. A transaction may not name an item twice.
pub const TRANSACTION_ITEMS: usize = 100;

/// Bytes of all items in one transaction.
pub const TRANSACTION_BYTES: usize = 4 * 1024 * 1024;

/// Operators (comparisons, functions, and what joins them) in the conditions of one write. The cloud allows 300 in an
/// expression; the rest is room for what guards the changes.
pub const CONDITION_OPERATORS: usize = 200;

/// Keys in one `batch_get`.
pub const BATCH_GET_KEYS: usize = 100;

/// Items in one page of a query.
pub const QUERY_ITEMS: usize = 1000;

/// Bytes of items that one page of a query reads before it stops.
pub const QUERY_BYTES: usize = 1024 * 1024;

/// Bytes of one blob.
pub const BLOB_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of a blob's owner or id.
pub const BLOB_NAME_BYTES: usize = 256;

/// Blobs up to this many bytes live as items beside the heads; larger ones are objects.
pub const INLINE_BLOB_BYTES: usize = 8 * 1024;

/// Names in one `delete_blobs`.
pub const DELETE_BLOBS: usize = 1000;

/// Bytes that one write unit pays for.
pub const WRITE_UNIT_BYTES: usize = 1024;

/// Bytes that one strongly consistent read unit pays for.
pub const READ_UNIT_BYTES: usize = 4096;

const _: () = assert!(ITEM_BYTES < TRANSACTION_BYTES);
const _: () = assert!(INLINE_BLOB_BYTES < ITEM_BYTES);
