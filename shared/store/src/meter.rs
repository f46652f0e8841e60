//! What the cloud would bill.
//!
//! The rules are DynamoDB's published ones ("Read/write capacity mode", "Transactions: capacity management",
//! "Item sizes and formats" in its developer guide) and S3's (a price for each PUT, GET and LIST, none for DELETE):
//!
//! - A put, update or delete takes one write unit for each KiB, begun, of the larger of the item before and the item
//!   after; an item that is not there counts as one unit. **A failed condition takes the same.**
//! - A transaction takes twice that for each of its items, those that it only checks included, **also when it is
//!   cancelled**.
//! - A strongly consistent read takes one read unit for each 4 KiB, begun; an eventually consistent one takes half.
//!   Reading an item that is not there takes the least. A query is read by the sum of its items' bytes, not by
//!   their number; a batch is read item by item.
//! - A blob up to [`limits::INLINE_BLOB_BYTES`], frame included, is an item:
//!   storing it is a put of its own outside the transaction, reading it is an eventually consistent read (it never
//!   changes), deleting it is a delete. A larger one is one object put, one object get, and free to delete. A name that
//!   does not say "object" is looked for among the items first, and deleted there too.
//!
//! The meter counts; it never refuses.

use std::ops::{Add, AddAssign, Sub};

use crate::{
    Item, Key,
    blob::{BlobName, FRAME_BYTES},
    limits,
    write::{Write, item_bytes},
};

/// Units and requests that were billed. Differences of two readings tell what an operation costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Units {
    /// Write units.
    pub write_units: f64,
    /// Read units, in halves.
    pub read_units: f64,
    /// Objects stored.
    pub blob_puts: u64,
    /// Objects read.
    pub blob_gets: u64,
    /// Listings of objects.
    pub blob_lists: u64,
    /// Calls of the trait, whatever came of them.
    pub calls: u64,
}

impl Add for Units {
    type Output = Units;
    fn add(self, o: Units) -> Units {
        Units {
            write_units: self.write_units + o.write_units,
            read_units: self.read_units + o.read_units,
            blob_puts: self.blob_puts + o.blob_puts,
            blob_gets: self.blob_gets + o.blob_gets,
            blob_lists: self.blob_lists + o.blob_lists,
            calls: self.calls + o.calls,
        }
    }
}

impl AddAssign for Units {
    fn add_assign(&mut self, o: Units) {
        *self = *self + o;
    }
}

impl Sub for Units {
    type Output = Units;
    /// What was billed between two readings, the earlier one subtracted.
    fn sub(self, o: Units) -> Units {
        Units {
            write_units: self.write_units - o.write_units,
            read_units: self.read_units - o.read_units,
            blob_puts: self.blob_puts.saturating_sub(o.blob_puts),
            blob_gets: self.blob_gets.saturating_sub(o.blob_gets),
            blob_lists: self.blob_lists.saturating_sub(o.blob_lists),
            calls: self.calls.saturating_sub(o.calls),
        }
    }
}

/// One call as the log keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The method of the trait.
    pub method: &'static str,
    /// The items and blobs that it named.
    pub names: Vec<String>,
    /// What it cost.
    pub units: Units,
    /// `ok`, or the kind of failure.
    pub outcome: &'static str,
}

/// Write units for an item of this size; an item that is not there counts as one unit.
pub fn write_units(bytes: usize) -> f64 {
    bytes.div_ceil(limits::WRITE_UNIT_BYTES).max(1) as f64
}

/// Read units of a strongly consistent read of this size. An eventually consistent one costs half.
pub fn read_units(bytes: usize) -> f64 {
    bytes.div_ceil(limits::READ_UNIT_BYTES).max(1) as f64
}

/// Write units of one write, by the item before and the item after (`None` within if the write did not happen).
pub(crate) fn of_write(
    write: &Write,
    before: Option<&Item>,
    after: Option<&Item>,
    transaction: bool,
) -> f64 {
    let bytes = item_bytes(&write.key, before).max(item_bytes(&write.key, after));
    write_units(bytes) * if transaction { 2.0 } else { 1.0 }
}

/// Bytes of an item under its key, as a read is billed; 0 if there is none.
pub(crate) fn of_item(key: &Key, item: Option<&Item>) -> usize {
    item_bytes(key, item)
}

/// True if a blob of this many bytes, without its frame, is an item under this name rather than an object.
pub fn is_inline(name: &BlobName, body_bytes: usize) -> bool {
    !name.hints_object() && body_bytes + FRAME_BYTES <= limits::INLINE_BLOB_BYTES
}

/// Bytes of the item that an inline blob is: the frame and the body, the name, and what the key and the attributes'
/// names add.
pub(crate) fn blob_item_bytes(name: &BlobName, body_bytes: usize) -> usize {
    const NAMES: usize = 9;
    NAMES + name.owner.len() + name.id.len() + FRAME_BYTES + body_bytes
}

/// What storing a blob costs.
pub(crate) fn of_blob_put(name: &BlobName, body_bytes: usize) -> Units {
    if is_inline(name, body_bytes) {
        Units { write_units: write_units(blob_item_bytes(name, body_bytes)), ..Units::default() }
    } else {
        Units { blob_puts: 1, ..Units::default() }
    }
}

/// What reading a blob costs; `None` is one that is not there.
pub(crate) fn of_blob_get(name: &BlobName, body_bytes: Option<usize>) -> Units {
    match body_bytes {
        _ if name.hints_object() => Units { blob_gets: 1, ..Units::default() },
        Some(bytes) if is_inline(name, bytes) => {
            let read_units = read_units(blob_item_bytes(name, bytes)) / 2.0;
            Units { read_units, ..Units::default() }
        }
        // The cheap read finds no item, the strong one neither; then the bucket is asked.
        _ => Units { read_units: 0.5 + 1.0, blob_gets: 1, ..Units::default() },
    }
}

/// What deleting a blob costs.
pub(crate) fn of_blob_delete(name: &BlobName, body_bytes: Option<usize>) -> Units {
    if name.hints_object() {
        return Units::default();
    }
    let inline = body_bytes.filter(|bytes| is_inline(name, *bytes));
    let bytes = inline.map_or(0, |bytes| blob_item_bytes(name, bytes));
    Units { write_units: write_units(bytes), ..Units::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_begin_at_one_and_step_at_the_bounds() {
        assert_eq!(write_units(0), 1.0);
        assert_eq!(write_units(1024), 1.0);
        assert_eq!(write_units(1025), 2.0);
        assert_eq!(read_units(0), 1.0);
        assert_eq!(read_units(4096), 1.0);
        assert_eq!(read_units(4097), 2.0);
    }

    #[test]
    fn the_inline_bound_includes_the_frame() {
        let name = BlobName::new("o", "b");
        assert!(is_inline(&name, limits::INLINE_BLOB_BYTES - FRAME_BYTES));
        assert!(!is_inline(&name, limits::INLINE_BLOB_BYTES - FRAME_BYTES + 1));
    }
}
