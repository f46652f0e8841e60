//! Compaction: many small files become few large ones. No snapshot has other rows because of it.
//!
//! A seal writes what is new, however little, so a table that is kept fresh is a row of small files. A compaction takes
//! files that follow one another and are small, writes their rows again, in the table's order, and commits a snapshot
//! that has the new files in the old ones' place. Like a seal it is one conditional write of the head. A seal that lands
//! meanwhile is kept: the replacement is put on top of it, if the files that it replaces are all there still; if they
//! are not, it is given up, and what it wrote is garbage.
//!
//! Files are taken from the newest on back, as long as the next older one is not much larger than all taken so far. So a
//! row is written again once for each time that its file doubles, about, and not once for each compaction.

use std::{collections::HashSet, sync::Arc};

use arrow_array::{RecordBatch, UInt64Array};
use arrow_ord::sort::{SortColumn, SortOptions, lexsort_to_indices};
use arrow_select::{concat::concat_batches, take::take_record_batch};
use iceberg::spec::{DataFile, Operation};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::{
    Error,
    commit::{Flip, check_mark},
    data::{self, DataWriter},
    files::Files,
    head::Head,
    limits,
    logs::Target,
    manifests::{Live, live_files},
    shape::Shape,
    snapshot::{Base, Change, Commit},
    tables::{Settings, Tables},
};

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files that were replaced.
    pub replaced: usize,
    /// Files in their place.
    pub files: usize,
    /// Rows that were written again.
    pub rows: u64,
    /// The snapshot that was committed; `None` if there was nothing to do, or others were first.
    pub snapshot_id: Option<i64>,
    /// True if the files were replaced, or the table was written by others again and again, before this was done.
    pub raced: bool,
    /// True if the call's bound was reached: there may be more to compact.
    pub more: bool,
}

/// Files to be replaced.
struct Plan {
    files: Vec<Live>,
    more: bool,
}

impl Tables {
    /// Replaces one run of small files of a stream's table by large ones, if there is one that is worth it.
    ///
    /// # Errors
    /// What failed. After every error, and whatever dies, the table has the rows that it had.
    pub async fn compact(&self, stream: &str) -> Result<Compacted, Error> {
        let id = self.id(stream).await?;
        // The live one last.
        let (targets, _) = self.targets(&id, stream).await?;
        for target in targets.iter().rev() {
            let compacted = self.compact_table(target).await?;
            if compacted != Compacted::default() {
                let more = compacted.more || targets.len() > 1 && !compacted.raced;
                return Ok(Compacted { more, ..compacted });
            }
        }
        Ok(Compacted::default())
    }

    async fn compact_table(&self, target: &Target) -> Result<Compacted, Error> {
        let head = self.head(target).await?;
        let least = self.inner.settings.compact_files.max(2);
        // Each version brings a file at least, so there is nothing new to find before there are enough of them.
        let Some(stem) = &head.stem else { return Ok(Compacted::default()) };
        if head.version - head.compacted.min(head.version) < least as u64 {
            return Ok(Compacted::default());
        }
        let files = self.files(&head);
        let shape = target.shape();
        let base = Base::load(&files, stem).await?;
        let live = live_files(&files, base.manifests()).await?;
        let Some(plan) = plan(&live, &self.inner.settings) else {
            self.looked(target, head).await?;
            return Ok(Compacted::default());
        };
        let order = shape.row_order(target.sort_by());
        let rewritten = self.rewrite(&files, &shape, &order, &base, &plan.files).await?;
        let mut compacted = Compacted {
            replaced: plan.files.len(),
            files: rewritten.len(),
            rows: rewritten.iter().map(DataFile::record_count).sum(),
            more: plan.more,
            ..Compacted::default()
        };
        let seen = if plan.more { head.compacted } else { head.version };
        let snapshot = self.replace(target, &files, &plan.files, rewritten, seen).await?;
        compacted.raced = snapshot.is_none();
        compacted.snapshot_id = snapshot;
        if compacted.raced {
            (compacted.replaced, compacted.files, compacted.rows) = (0, 0, 0);
        }
        Ok(compacted)
    }

    /// Writes down that there is nothing to compact up to here, so that nobody looks again before there may be.
    async fn looked(&self, target: &Target, head: Head) -> Result<(), Error> {
        let files = self.files(&head);
        let lock = self.sealing(&target.id);
        let _committing = lock.lock().await;
        let commit_id = self.inner.env.token();
        let before = head.commit.clone();
        let after = Head { compacted: head.version, ..head };
        let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob: None };
        // Whoever was first has brought something to look at.
        self.flip(target.of(), &files, flip).await.map(drop)
    }

    /// Writes the rows of some files again, in the table's order.
    async fn rewrite(
        &self,
        files: &Files,
        shape: &Shape,
        order: &[&str],
        base: &Base,
        old: &[Live],
    ) -> Result<Vec<DataFile>, Error> {
        let inner = &*self.inner;
        let arrow = data::arrow_schema(base.schema())?;
        let (schema, spec) = (base.schema().clone(), base.partition_spec_id());
        let bytes = inner.settings.file_bytes;
        let mut writer =
            DataWriter::new(files.clone(), inner.env.clone(), shape, schema, spec, bytes)?;
        let (mut gathered, mut held) = (Vec::new(), 0);
        for file in old {
            let body = files.read_uri(file.data.file_path()).await?;
            for batch in ParquetRecordBatchReaderBuilder::try_new(body)?.build()? {
                // The file's schema is the table's; its metadata may say more.
                let batch = RecordBatch::try_new(Arc::clone(&arrow), batch?.columns().to_vec())?;
                held += batch.get_array_memory_size();
                gathered.push(batch);
            }
            if held >= limits::SORT_BYTES {
                write_sorted(&mut writer, &arrow, order, std::mem::take(&mut gathered)).await?;
                // Rows of the next part may belong before the last of this one.
                writer.cut().await?;
                held = 0;
            }
        }
        write_sorted(&mut writer, &arrow, order, gathered).await?;
        writer.finish().await
    }

    /// Commits a snapshot that has the new files in the old ones' place, on top of whatever is there. Answers `None` if
    /// the old files are gone, or others were first each time.
    async fn replace(
        &self,
        target: &Target,
        files: &Files,
        old: &[Live],
        new: Vec<DataFile>,
        seen: u64,
    ) -> Result<Option<i64>, Error> {
        let inner = &*self.inner;
        let removed: HashSet<_> = old.iter().map(|f| f.data.file_path().to_owned()).collect();
        // The rows are as old as the youngest of the files that they come from.
        let sequence = old.iter().map(|f| f.sequence).max();
        for _ in 0..limits::REBASES {
            // Only the commit excludes a seal of this process, never the work before it.
            let lock = self.sealing(&target.id);
            let _committing = lock.lock().await;
            let head = self.head(target).await?;
            let Some(stem) = &head.stem else { return Ok(None) };
            if check_mark(&new, &head).is_err() {
                return Ok(None);
            }
            let base = Base::load(files, stem).await?;
            let commit_id = inner.env.token();
            let version = head.version + 1;
            let commit = Commit { id: &commit_id, version, keep: self.keep() };
            let change = Change {
                operation: Operation::Replace,
                added: new.clone(),
                sequence,
                removed: removed.clone(),
                moved: Default::default(),
            };
            let Some(written) = base.change(files, &inner.env, &commit, change).await? else {
                return Ok(None);
            };
            let before = head.commit.clone();
            let after = Head {
                version,
                stem: Some(written.stem.clone()),
                snapshot: written.snapshot_id,
                compacted: seen,
                ..head
            };
            let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob: None };
            if self.flip(target.of(), files, flip).await? {
                if let Err(e) = self.advance_hint(&target.id, files, &written.stem).await {
                    tracing::warn!(stream = target.stream, error = %e, "the table's hint lags");
                }
                self.mirror(&target.id, files, &written.stem).await;
                return Ok(Some(written.snapshot_id));
            }
        }
        Ok(None)
    }
}

/// The files to be replaced: from the newest on back, those that follow one another and are small.
fn plan(live: &[Live], settings: &Settings) -> Option<Plan> {
    let least = settings.compact_files.max(2);
    let small = |file: &Live| file.data.file_size_in_bytes() < settings.file_bytes as u64 / 4 * 3;
    let mut end = live.len();
    while end >= least {
        let (mut start, mut bytes) = (end, 0);
        let mut full = false;
        while let Some(older) = start.checked_sub(1).and_then(|at| live.get(at)) {
            let size = older.data.file_size_in_bytes();
            // Of equals, it is chance which is larger.
            let times = if end - start < least { 4 } else { 1 };
            let fits = start == end || size <= (bytes * times + bytes / 2).max(limits::TINY_BYTES);
            if !small(older) || !fits {
                break;
            }
            full = bytes + size > settings.compact_bytes
                || end - start >= limits::COMPACT_FILES_AT_MOST;
            if full && end - start >= 2 {
                break;
            }
            bytes += size;
            start -= 1;
        }
        // Rows of one commit that stay in front of the run would come after it.
        let age = |at: usize| live.get(at).map(|f| f.sequence);
        let within = start > 0 && end > start && age(start - 1) == age(end - 1);
        if end - start >= least && !within {
            return Some(Plan { files: live.get(start..end)?.to_vec(), more: full || start > 0 });
        }
        end = if start == end { end - 1 } else { start };
    }
    None
}

/// Writes rows in the order of some columns.
async fn write_sorted(
    writer: &mut DataWriter,
    arrow: &arrow_schema::SchemaRef,
    order: &[&str],
    batches: Vec<RecordBatch>,
) -> Result<(), Error> {
    if batches.is_empty() {
        return Ok(());
    }
    let rows = concat_batches(arrow, &batches)?;
    drop(batches);
    let columns = order.iter().map(|name| {
        let values = rows.column_by_name(name).cloned();
        let values = values.ok_or_else(|| Error::Corrupt(format!("no column `{name}`")))?;
        let options = Some(SortOptions { descending: false, nulls_first: false });
        Ok(SortColumn { values, options })
    });
    let columns = columns.collect::<Result<Vec<_>, Error>>()?;
    let order = UInt64Array::from_iter_values(
        lexsort_to_indices(&columns, None)?.values().iter().map(|i| u64::from(*i)),
    );
    for from in (0..order.len()).step_by(limits::READ_RECORDS) {
        let some = order.slice(from, limits::READ_RECORDS.min(order.len() - from));
        writer.write(&take_record_batch(&rows, &some)?).await?;
    }
    Ok(())
}
