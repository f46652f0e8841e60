//! The limits of tables, in one place. Those that a user can meet are named in the error that refuses.

/// Records that a seal reads at once.
pub(crate) const READ_RECORDS: usize = 8192;

/// Payload bytes that a seal reads at once, about.
pub(crate) const READ_BYTES: usize = 4 * 1024 * 1024;

/// Rows of a row group.
pub(crate) const GROUP_ROWS: usize = 128 * 1024;

/// A data file is closed when it has about this many bytes; what is being encoded counts as well, so that this also
/// bounds the memory that a seal takes.
pub(crate) const FILE_BYTES: usize = 64 * 1024 * 1024;

/// Partitions that one seal looks at.
pub(crate) const SEAL_PARTITIONS: usize = 10_000;

/// Small manifests of a table before they are merged into one.
pub(crate) const MANIFESTS: usize = 16;

/// Entries from which on a manifest is no longer small: it is not rewritten again.
pub(crate) const MANIFEST_ENTRIES: u64 = 2000;

/// Metadata files that the metadata's own log remembers.
pub(crate) const METADATA_LOG: usize = 100;

/// Bytes of positions that are kept in the table's head itself.
pub(crate) const HEAD_POSITION_BYTES: usize = 1536;

/// Position blobs that a head names before they are folded into one.
pub(crate) const POSITION_BLOBS: usize = 16;

/// Partitions whose positions are written into a snapshot's summary.
pub(crate) const SUMMARY_POSITIONS: usize = 32;

/// Bytes of a table's directory name. Longer names end in a hash.
pub(crate) const DIRECTORY_BYTES: usize = 200;

/// Attempts to find out what became of a commit.
pub(crate) const RESOLVE_ATTEMPTS: usize = 8;

/// Partitions that one look at a table's freshness counts.
pub(crate) const FRESHNESS_PARTITIONS: usize = 1000;

/// Partitions of which one look at a table's freshness reads the time of the oldest record that the table lacks.
pub(crate) const FRESHNESS_TIMES: usize = 16;

/// Streams that one round of sealing looks at.
pub(crate) const SEAL_STREAMS: usize = 1000;

/// Streams that one round seals at the same time: each holds up to one data file in memory.
pub(crate) const SEALS_AT_ONCE: usize = 4;

/// Tables of which a process remembers the schema, the hint and the lock.
pub(crate) const REMEMBERED_TABLES: usize = 10_000;

/// Snapshots that a table's metadata remembers: every seal writes all of them again.
pub(crate) const SNAPSHOTS: usize = 500;

/// Streams among which one call finds work.
pub const FIND_STREAMS: usize = 500;

/// Streams that finding work looks at at the same time.
pub(crate) const FIND_AT_ONCE: usize = 32;

/// Streams that are behind of which one call tells how far.
pub(crate) const FIND_LAGS: usize = 50;

/// Snapshots that a table's metadata remembers whatever their age: readers of so busy a table are cut short.
pub(crate) const SNAPSHOTS_AT_MOST: usize = 5000;

/// Files of a table that are read or deleted at the same time.
pub(crate) const FILES_AT_ONCE: usize = 16;

/// Attempts to put a compaction on top of what others commit meanwhile.
pub(crate) const REBASES: usize = 4;

/// Bytes of rows, as they are in memory, that a compaction sorts at once. A file is not larger than that.
pub(crate) const SORT_BYTES: usize = 192 * 1024 * 1024;

/// Files that one compaction takes at most.
pub(crate) const COMPACT_FILES_AT_MOST: usize = 1000;

/// A file that is no larger is compacted with any smaller one.
pub(crate) const TINY_BYTES: u64 = 64 * 1024;

/// Tables of deleted streams that one look lists.
pub(crate) const BURIED: usize = 100;

/// Rows of one commit of a load.
pub(crate) const INGEST_ROWS: usize = 8192;

/// Attempts of a load to commit rows that have certainly not landed.
pub(crate) const INGEST_ATTEMPTS: u32 = 6;

/// Versions of a declared stream's metadata that are kept.
pub(crate) const STREAM_VERSIONS: u64 = 10;
