//! Cleaning: snapshots that are old are forgotten, and files that no snapshot names are deleted.
//!
//! What is collected are the files of sealers and compactions that died or lost, files that were compacted away, and
//! metadata that has long been superseded. A file is garbage if no snapshot that the metadata remembers names it, and
//! if it is older than anybody might still be about to name it ([`Settings::pinned_us`](crate::Settings::pinned_us)).
//!
//! A writer that was frozen for longer must not bring a deleted file back. So the collector raises a mark in the head
//! first. That write is one that the frozen writer's condition excludes; and whoever reads the head afterwards
//! and names a file older than the mark refuses itself.
//!
//! A reader that has opened a snapshot finishes: a snapshot is remembered for as long after another has followed it,
//! and so are its files; and a metadata file stays as long after it was superseded.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::try_join_all;
use iceberg::spec::TableMetadata;
use tidewheel_engine::Uuid;
use tidewheel_store::{BlobName, limits as store_limits};

use crate::{
    Error, Mirror,
    commit::Flip,
    directory::{metadata_file, metadata_version},
    files::{Files, Listed},
    head::{Head, owner},
    limits,
    logs::Target,
    manifests::{load_manifest, load_manifest_list},
    snapshot::{Base, Commit, load_metadata},
    tables::Tables,
};

/// What cleaning a table did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Snapshots that were forgotten.
    pub snapshots: usize,
    /// Files that were deleted.
    pub files: usize,
    /// Rows that retention took out of the table.
    pub rows: u64,
    /// Blobs with positions that were deleted.
    pub blobs: usize,
}

impl Tables {
    /// Forgets the old snapshots of a stream's table and deletes what nothing names any longer.
    ///
    /// # Errors
    /// What failed. It may be repeated, interrupted and run twice at once.
    pub async fn clean(&self, stream: &str) -> Result<Cleaned, Error> {
        let id = self.id(stream).await?;
        let mut cleaned = Cleaned::default();
        let (targets, logs) = self.targets(&id, stream).await?;
        if let Some(logs) = &logs {
            cleaned.rows = self.trim(&id, &targets, logs).await?;
        }
        for target in targets {
            cleaned.snapshots += self.expire(&target).await?;
            let (files, blobs) = self.collect(&target).await?;
            cleaned.files += files;
            cleaned.blobs += blobs;
        }
        Ok(cleaned)
    }

    async fn expire(&self, target: &Target) -> Result<usize, Error> {
        let env = &self.inner.env;
        let lock = self.sealing(&target.id);
        let _committing = lock.lock().await;
        let head = self.head(target).await?;
        let Some(stem) = &head.stem else { return Ok(0) };
        let files = self.files(&head);
        let commit_id = env.token();
        let version = head.version + 1;
        let commit = Commit { id: &commit_id, version, keep: self.keep() };
        let base = Base::load(&files, stem).await?;
        let Some((stem, forgotten)) = base.expire(&files, env, &commit).await? else {
            return Ok(0);
        };
        let before = head.commit.clone();
        let after = Head { version, stem: Some(stem.clone()), ..head };
        let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob: None };
        if !self.flip(target.of(), &files, flip).await? {
            // Whoever was first has forgotten them too, or the next round does.
            return Ok(0);
        }
        if let Err(e) = self.advance_hint(&target.id, &files, &stem).await {
            tracing::warn!(stream = target.stream, error = %e, "the table's hint lags; the next seal moves it");
        }
        self.mirror(&target.id, &files, &stem).await;
        Ok(forgotten)
    }

    async fn collect(&self, target: &Target) -> Result<(usize, usize), Error> {
        let (store, env) = (&*self.inner.store, &self.inner.env);
        let horizon_us = env.now_us() - self.inner.settings.pinned_us;
        let head = self.head(target).await?;
        let files = self.files(&head);
        // A mirror that lags may name metadata that has long been superseded, and whoever reads it reads that.
        if let Some(stem) = &head.stem
            && let Mirror::Lags(_) = self.mirror(&target.id, &files, stem).await
        {
            return Ok((0, 0));
        }

        let mut garbage = old_files(files.list().await?, &head, horizon_us);
        if let Some(stem) = head.stem.as_deref().filter(|_| !garbage.is_empty()) {
            let metadata = load_metadata(&files, stem).await?;
            unnamed(&files, &metadata, &mut garbage).await?;
        }
        let blobs = self.old_blobs(&target.id, &head, horizon_us).await?;
        if garbage.is_empty() && blobs.is_empty() {
            return Ok((0, 0));
        }
        if head.mark_us < horizon_us {
            let commit_id = env.token();
            let before = head.commit.clone();
            let after = Head { mark_us: horizon_us, ..head };
            let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob: None };
            if !self.flip(target.of(), &files, flip).await? {
                // Somebody commits: what they name is looked at in the next round.
                return Ok((0, 0));
            }
        }
        let garbage: Vec<_> = garbage.into_iter().collect();
        let deleted = files.delete(&garbage).await?;
        for names in blobs.chunks(store_limits::DELETE_BLOBS) {
            store.delete_blobs(names).await?;
        }
        Ok((deleted, blobs.len()))
    }

    /// Blobs of the head that it does not name and that nobody can be about to name.
    async fn old_blobs(
        &self,
        id: &Uuid,
        head: &Head,
        horizon_us: i64,
    ) -> Result<Vec<BlobName>, Error> {
        let owner = owner(id);
        let named: HashSet<&str> = head.positions.blobs().map(String::as_str).collect();
        let (mut old, mut after) = (Vec::new(), None::<String>);
        loop {
            let store = &self.inner.store;
            let limit = store_limits::DELETE_BLOBS;
            let names = store.list_blobs(&owner, after.as_deref(), limit).await?;
            after = names.last().filter(|_| names.len() == limit).map(|n| n.id.clone());
            old.extend(names.into_iter().filter(|name| {
                let made = name.made_us().is_some_and(|made| made <= horizon_us);
                made && !named.contains(name.id.as_str())
            }));
            if after.is_none() {
                return Ok(old);
            }
        }
    }
}

/// The files that are old enough to be garbage, whether or not a snapshot names them.
fn old_files(listed: Vec<Listed>, head: &Head, horizon_us: i64) -> HashSet<String> {
    // When the youngest metadata file of each version was made: it supersedes the version before.
    let mut made: BTreeMap<u64, i64> = BTreeMap::new();
    for Listed { file, made_us } in &listed {
        if let Some(version) = metadata_version(file) {
            let made = made.entry(version).or_insert(*made_us);
            *made = (*made).max(*made_us);
        }
    }
    let current = head.stem.as_deref().map(metadata_file);
    let old = |listed: &Listed| {
        let superseded = metadata_version(&listed.file).is_none_or(|version| {
            let next_us = made.get(&(version + 1));
            version >= head.version || next_us.is_none_or(|made_us| *made_us <= horizon_us)
        });
        listed.made_us <= horizon_us && superseded && Some(&listed.file) != current.as_ref()
    };
    listed.into_iter().filter(old).map(|listed| listed.file).collect()
}

/// Takes out of `files` what a remembered snapshot names.
async fn unnamed(
    files: &Files,
    metadata: &TableMetadata,
    garbage: &mut HashSet<String>,
) -> Result<(), Error> {
    let mut named = |uri: &str| {
        // What lies elsewhere is not ours to delete.
        if let Some(file) = files.directory.file_of_uri(uri) {
            garbage.remove(file);
        }
    };
    let snapshots: Vec<_> = metadata.snapshots().collect();
    let mut manifests = BTreeMap::new();
    for some in snapshots.chunks(limits::FILES_AT_ONCE) {
        let lists = some.iter().map(|snapshot| load_manifest_list(files, snapshot));
        for list in try_join_all(lists).await? {
            for manifest in list {
                named(&manifest.manifest_path);
                manifests.entry(manifest.manifest_path.clone()).or_insert(manifest);
            }
        }
        some.iter().for_each(|snapshot| named(snapshot.manifest_list()));
    }
    let manifests: Vec<_> = manifests.into_values().collect();
    for some in manifests.chunks(limits::FILES_AT_ONCE) {
        let loads = some.iter().map(|manifest| load_manifest(files, manifest));
        for manifest in try_join_all(loads).await? {
            let alive = manifest.entries().iter().filter(|e| e.is_alive());
            alive.for_each(|entry| named(entry.file_path()));
        }
    }
    Ok(())
}
