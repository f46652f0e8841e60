//! The database file: its schema, its settings, and the statements on it.
//!
//! Write-ahead log with `synchronous=FULL`: a commit is on the disk before another connection can see it, which is
//! what lets readers trust what they see. Keys are compared as bytes (SQLite's BINARY collation).
//!
//! A row's checksum shows that the row is damaged, and not that a row is missing: a bit that turns in a key hides a head,
//! and a partition without its head looks new. So each transaction also writes how many items there are and the sum of
//! their checksums, and opening reads all items once and compares. A folder in which something is missing is refused.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::codec;
use crate::{
    BlobName, Direction, Item, Key, Page, Query, ReadError, blob, limits, write::item_bytes,
};

/// The layout of the folder. Raised when a program of today would misread it.
pub(super) const LAYOUT: i64 = 2;

/// Bytes of a page: an item of a few KB and a leaf of keys fit in one.
const PAGE_BYTES: u32 = 8192;

/// Pages of log after which it is written back (16 MiB).
const CHECKPOINT_PAGES: u32 = 2048;

const SCHEMA: &str = "
    CREATE TABLE items (pk TEXT NOT NULL, sk TEXT NOT NULL, row BLOB NOT NULL, PRIMARY KEY (pk, sk)) WITHOUT ROWID;
    CREATE TABLE blobs (owner TEXT NOT NULL, id TEXT NOT NULL, stored BLOB NOT NULL, UNIQUE (owner, id));
    CREATE TABLE tally (id INTEGER PRIMARY KEY, items INTEGER NOT NULL, sum INTEGER NOT NULL);
    INSERT INTO tally VALUES (1, 0, 0);
";

/// How many items there are, and the sum of the checksums that their rows carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    items: i64,
    sum: i64,
}

impl Tally {
    fn add(&mut self, row: &[u8]) {
        self.items += 1;
        self.sum = self.sum.wrapping_add(i64::from(codec::carried(row)));
    }

    fn remove(&mut self, checksum: u32) {
        self.items -= 1;
        self.sum = self.sum.wrapping_sub(i64::from(checksum));
    }
}

fn connect(file: &Path, create: bool) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let db = Connection::open_with_flags(file, flags)?;
    // Only the checkpoint of a reader's closing connection could ever be in the way.
    db.busy_timeout(Duration::from_secs(10))?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

/// What the file turned out to be.
pub(super) enum Opened {
    /// A connection that may write, and what the items come to.
    Writer(Connection, Tally),
    /// Items are damaged or missing, and which.
    Damaged(String),
    /// A layout that this program does not know.
    OtherLayout(i64),
}

/// Opens the file for the one writer, and creates it if need be.
pub(super) fn open_writer(file: &Path, max_bytes: Option<u64>) -> rusqlite::Result<Opened> {
    let db = connect(file, true)?;
    let layout: i64 = db.query_row("PRAGMA user_version", [], |r| r.get(0))?;
    if layout != 0 && layout != LAYOUT {
        return Ok(Opened::OtherLayout(layout));
    }
    db.pragma_update(None, "page_size", PAGE_BYTES)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    // Where a plain fsync leaves data in the drive's cache.
    db.pragma_update(None, "fullfsync", true)?;
    db.pragma_update(None, "checkpoint_fullfsync", true)?;
    db.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    db.pragma_update(None, "cache_size", -32 * 1024)?;
    if let Some(max) = max_bytes {
        let pages = i64::try_from(max / u64::from(PAGE_BYTES)).unwrap_or(i64::MAX).max(16);
        db.pragma_update(None, "max_page_count", pages)?;
    }
    if layout == 0 {
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;"
        ))?;
    }
    let tally = match count(&db)? {
        Ok(tally) => tally,
        Err(damage) => return Ok(Opened::Damaged(damage)),
    };
    let written = db.query_row("SELECT items, sum FROM tally WHERE id = 1", [], |r| {
        Ok(Tally { items: r.get(0)?, sum: r.get(1)? })
    })?;
    if written != tally {
        return Ok(Opened::Damaged(format!(
            "there are {} items and there should be {}, or one is not the one that was written last",
            tally.items, written.items
        )));
    }
    Ok(Opened::Writer(db, tally))
}

/// Reads all items, verifies each, and counts them; a damaged one is told.
fn count(db: &Connection) -> rusqlite::Result<Result<Tally, String>> {
    let mut statement = db.prepare("SELECT pk, sk, row FROM items")?;
    let mut rows = statement.query([])?;
    let mut tally = Tally::default();
    while let Some(row) = rows.next()? {
        let key = Key::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?);
        let row = row.get_ref(2)?.as_blob()?;
        if !codec::verify(&key, row) {
            return Ok(Err(format!("the item `{key}` is damaged, or stands under another's key")));
        }
        tally.add(row);
    }
    Ok(Ok(tally))
}

/// Opens the file, which is there, for reading.
pub(super) fn open_reader(file: &Path) -> rusqlite::Result<Connection> {
    let db = connect(file, false)?;
    db.pragma_update(None, "query_only", true)?;
    db.pragma_update(None, "cache_size", -8 * 1024)?;
    Ok(db)
}

/// A failure of the database as a reader reports it.
pub(super) fn read_error(e: &rusqlite::Error) -> ReadError {
    match e.sqlite_error_code() {
        // Without a code it is a column of a type that this program never wrote.
        None | Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            ReadError::Corrupt { what: "the database".to_owned(), detail: e.to_string() }
        }
        _ => ReadError::Unavailable(e.to_string()),
    }
}

/// Reads an item.
pub(super) fn item(db: &Connection, key: &Key) -> Result<Option<Item>, ReadError> {
    let row: rusqlite::Result<Option<Result<Item, ReadError>>> =
        db.prepare_cached("SELECT row FROM items WHERE pk = ?1 AND sk = ?2").and_then(|mut s| {
            s.query_row(params![key.pk, key.sk], |r| {
                Ok(codec::decode(key, r.get_ref(0)?.as_blob()?))
            })
            .optional()
        });
    row.map_err(|e| read_error(&e))?.transpose()
}

/// Reads a page of items.
pub(super) fn page(db: &Connection, query: &Query) -> Result<Page, ReadError> {
    read_page(db, query).map_err(|e| read_error(&e))?
}

fn read_page(db: &Connection, query: &Query) -> rusqlite::Result<Result<Page, ReadError>> {
    let order = match query.direction {
        Direction::Forward => "ASC",
        Direction::Backward => "DESC",
    };
    let upper = if query.to.is_some() { "AND sk <= ?3" } else { "" };
    let mut statement = db.prepare_cached(&format!(
        "SELECT sk, row FROM items WHERE pk = ?1 AND sk >= ?2 {upper} ORDER BY sk {order}"
    ))?;
    let from = query.from.as_deref().unwrap_or("");
    let mut rows = match &query.to {
        Some(to) => statement.query(params![query.pk, from, to])?,
        None => statement.query(params![query.pk, from])?,
    };
    let mut page = Page::default();
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let key = Key::new(query.pk.as_str(), row.get::<_, String>(0)?);
        let item = match codec::decode(&key, row.get_ref(1)?.as_blob()?) {
            Ok(item) => item,
            Err(e) => return Ok(Err(e)),
        };
        let size = item_bytes(&key, Some(&item));
        if !page.items.is_empty() && bytes + size > limits::QUERY_BYTES {
            page.more = true;
            break;
        }
        bytes += size;
        page.items.push((key, item));
        if page.items.len() == query.limit {
            page.more = true;
            break;
        }
    }
    Ok(Ok(page))
}

/// Reads a blob and verifies it.
pub(super) fn blob(db: &Connection, name: &BlobName) -> Result<Option<Bytes>, ReadError> {
    let stored: rusqlite::Result<Option<Vec<u8>>> = db
        .prepare_cached("SELECT stored FROM blobs WHERE owner = ?1 AND id = ?2")
        .and_then(|mut s| {
            s.query_row(params![name.owner, name.id], |r| Ok(r.get_ref(0)?.as_blob()?.to_vec()))
                .optional()
        });
    stored.map_err(|e| read_error(&e))?.map(|s| blob::open(name, s.into())).transpose()
}

/// Lists an owner's blobs.
pub(super) fn names(
    db: &Connection,
    owner: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<BlobName>, ReadError> {
    let found: rusqlite::Result<Vec<BlobName>> = db
        .prepare_cached("SELECT id FROM blobs WHERE owner = ?1 AND id > ?2 ORDER BY id LIMIT ?3")
        .and_then(|mut s| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            s.query_map(params![owner, after.unwrap_or(""), limit], |r| {
                Ok(BlobName::new(owner, r.get::<_, String>(0)?))
            })?
            .collect()
        });
    found.map_err(|e| read_error(&e))
}

/// Writes an item, or deletes it, and keeps the tally.
pub(super) fn set_item(
    db: &Connection,
    key: &Key,
    item: Option<&Item>,
    tally: &mut Tally,
) -> rusqlite::Result<()> {
    let before: Option<u32> = db
        .prepare_cached("SELECT substr(row, 1, 5) FROM items WHERE pk = ?1 AND sk = ?2")?
        .query_row(params![key.pk, key.sk], |r| Ok(codec::carried(r.get_ref(0)?.as_blob()?)))
        .optional()?;
    if let Some(checksum) = before {
        tally.remove(checksum);
    }
    match item {
        Some(item) => {
            let row = codec::encode(key, item);
            tally.add(&row);
            db.prepare_cached("INSERT OR REPLACE INTO items (pk, sk, row) VALUES (?1, ?2, ?3)")?
                .execute(params![key.pk, key.sk, row])?
        }
        None => db
            .prepare_cached("DELETE FROM items WHERE pk = ?1 AND sk = ?2")?
            .execute(params![key.pk, key.sk])?,
    };
    Ok(())
}

/// Writes what the items come to.
pub(super) fn set_tally(db: &Connection, tally: Tally) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE tally SET items = ?1, sum = ?2 WHERE id = 1")?
        .execute(params![tally.items, tally.sum])?;
    Ok(())
}

/// Stores a blob's frame.
pub(super) fn set_blob(db: &Connection, name: &BlobName, stored: &[u8]) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO blobs (owner, id, stored) VALUES (?1, ?2, ?3)
         ON CONFLICT (owner, id) DO UPDATE SET stored = excluded.stored",
    )?
    .execute(params![name.owner, name.id, stored])?;
    Ok(())
}

/// Deletes a blob, if it is there.
pub(super) fn delete_blob(db: &Connection, name: &BlobName) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM blobs WHERE owner = ?1 AND id = ?2")?
        .execute(params![name.owner, name.id])?;
    Ok(())
}
