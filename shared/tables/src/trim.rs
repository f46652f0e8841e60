//! Retention of declared streams, its second half.
//!
//! Rows that are too old go in two steps, an hour apart. The first says so: the stream's metadata gets a higher floor, and
//! readers see nothing below it from then on ([`crate::stream_metadata`]). The second takes the files that lie wholly below
//! that floor out of the tables, by a snapshot without them; cleaning deletes them when no snapshot names them. A file
//! that the floor lies in stays as it is.

use std::collections::HashSet;

use iceberg::spec::{Operation, PrimitiveLiteral};
use tidewheel_engine::Uuid;

use crate::{
    Error,
    commit::Flip,
    head::Head,
    logs::{Logs, Target},
    manifests::{Live, live_files},
    snapshot::{Base, Change, Commit},
    tables::Tables,
};

impl Tables {
    /// Takes what retention has made unreadable long enough ago out of a declared stream's tables. Answers how many rows
    /// that were.
    pub(crate) async fn trim(
        &self,
        id: &Uuid,
        targets: &[Target],
        logs: &Logs,
    ) -> Result<u64, Error> {
        let Some(floor) = self.ripe_floor(id).await? else { return Ok(0) };
        let mut rows = 0;
        for (target, log) in targets.iter().zip(&logs.logs) {
            if log.start < floor {
                rows += self.trim_table(target, floor).await?;
            }
        }
        self.trimmed(id, floor).await?;
        Ok(rows)
    }

    async fn trim_table(&self, target: &Target, floor: u64) -> Result<u64, Error> {
        let inner = &*self.inner;
        let lock = self.sealing(&target.id);
        let _committing = lock.lock().await;
        let head = self.head(target).await?;
        let Some(stem) = &head.stem else { return Ok(0) };
        let files = self.files(&head);
        let base = Base::load(&files, stem).await?;
        let Some(column) = base.schema().field_id_by_name("litelink_offset") else { return Ok(0) };
        let below = |file: &Live| match file.data.upper_bounds().get(&column).map(|d| d.literal()) {
            // The readers' offsets count from 1, so this is the offset after the file's last.
            Some(PrimitiveLiteral::Long(last)) => u64::try_from(*last).is_ok_and(|l| l <= floor),
            _ => false,
        };
        let live = live_files(&files, base.manifests()).await?;
        let old: Vec<_> = live.into_iter().filter(below).collect();
        if old.is_empty() {
            return Ok(0);
        }
        let rows: u64 = old.iter().map(|f| f.data.record_count()).sum();
        let commit_id = inner.env.token();
        let version = head.version + 1;
        let commit = Commit { id: &commit_id, version, keep: self.keep() };
        let removed: HashSet<_> = old.iter().map(|f| f.data.file_path().to_owned()).collect();
        let change = Change {
            operation: Operation::Delete,
            added: Vec::new(),
            sequence: None,
            removed,
            moved: Default::default(),
        };
        let conflict = || Error::Conflict(target.stream.clone());
        let written = base.change(&files, &inner.env, &commit, change).await?;
        let written = written.ok_or_else(conflict)?;
        let before = head.commit.clone();
        let after = Head {
            version,
            stem: Some(written.stem.clone()),
            snapshot: written.snapshot_id,
            rows: head.rows.saturating_sub(rows),
            ..head
        };
        let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob: None };
        if !self.flip(target.of(), &files, flip).await? {
            return Err(conflict());
        }
        self.advance_hint(&target.id, &files, &written.stem).await?;
        Ok(rows)
    }
}
