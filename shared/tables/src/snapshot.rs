//! Iceberg metadata: a table's first version, and the next one, with one snapshot more or some fewer.
//!
//! The `iceberg` crate appends, but it has no action that replaces or removes data files, and none of its actions can be
//! committed anywhere but in its own catalogs. So the versions are written here on its public metadata types. A snapshot that
//! removes files writes the manifests that name them once more, with those entries deleted and every other as it was: entries
//! keep the snapshot and the sequence numbers that they had. Rows that are only written again keep the age of the
//! files that they come from, so that a table's order is the order in which rows came in, whatever was
//! compacted.
//!
//! Nothing here commits anything. It writes files that no reader can find yet, and answers the name of a metadata
//! file; the head's conditional write makes it count.

use std::collections::{BTreeMap, HashMap, HashSet};

use iceberg::{
    io::FileIO,
    spec::{
        DataFile, FormatVersion, MAIN_BRANCH, ManifestFile, Operation, SchemaRef, Snapshot,
        Summary, TableMetadata, TableMetadataBuilder, UnboundPartitionSpec,
    },
};
use tidewheel_engine::{PartitionId, Uuid};
use tidewheel_store::Env;

use crate::{
    Error, directory,
    files::Files,
    limits,
    logs::Target,
    manifests::{ManifestStore, load_manifest_list},
    shape::Shape,
};

/// Summary property: the commit's id, by which an unknown outcome is resolved.
pub(crate) const COMMIT_ID: &str = "tidewheel.commit-id";
/// Table property: the stream's name.
pub(crate) const STREAM: &str = "tidewheel.stream";
/// Table property: of a declared stream the generation's name.
pub(crate) const LOG: &str = "tidewheel.log";
/// Table property: the table's id, which is the stream's unless it has declared columns.
pub(crate) const STREAM_ID: &str = "tidewheel.stream-id";
/// Summary property: positions that the commit moved, as a JSON object, if they are few.
const POSITIONS: &str = "tidewheel.positions";
/// Summary property: how many partitions the commit moved.
const PARTITIONS: &str = "tidewheel.partitions";

/// A table's metadata as it is, or as it will first be.
pub(crate) struct Base {
    builder: TableMetadataBuilder,
    /// `None` before the first version.
    metadata: Option<TableMetadata>,
    schema: SchemaRef,
    partition_spec: iceberg::spec::PartitionSpec,
    manifests: Vec<ManifestFile>,
}

/// A version of the metadata that is about to be written.
pub(crate) struct Commit<'a> {
    /// Its id, by which it is found if its reply is lost.
    pub(crate) id: &'a str,
    /// The version that the metadata gets.
    pub(crate) version: u64,
    /// What the metadata goes on remembering.
    pub(crate) keep: Keep,
}

/// Which snapshots metadata remembers. The current one always, and whatever was current a short while ago, because
/// somebody may read it still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// Snapshots, the current one included.
    pub(crate) count: usize,
    /// How old a snapshot may get, ms.
    pub(crate) age_ms: i64,
    /// How long a snapshot is remembered at least after another has followed it, ms.
    pub(crate) pin_ms: i64,
}

/// What a snapshot changes.
pub(crate) struct Change {
    pub(crate) operation: Operation,
    pub(crate) added: Vec<DataFile>,
    /// How old the added rows are, if they are not new.
    pub(crate) sequence: Option<i64>,
    /// Files that it removes, by their location.
    pub(crate) removed: HashSet<String>,
    /// Positions that the commit moves.
    pub(crate) moved: BTreeMap<PartitionId, u64>,
}

/// A version whose files are written.
pub(crate) struct Written {
    pub(crate) stem: String,
    pub(crate) snapshot_id: i64,
}

impl Base {
    /// A table that does not exist yet.
    pub(crate) fn create(
        files: &Files,
        shape: &Shape,
        uuid: &Uuid,
        target: &Target,
    ) -> Result<Self, Error> {
        let schema = shape.iceberg(&target.earlier)?;
        let order = shape.sort_order(&schema, target.sort_by())?;
        let mut properties = HashMap::from([
            (STREAM.to_owned(), target.stream.clone()),
            (STREAM_ID.to_owned(), target.id.to_string()),
            ("write.parquet.compression-codec".to_owned(), "zstd".to_owned()),
            ("write.metadata.previous-versions-max".to_owned(), limits::METADATA_LOG.to_string()),
        ]);
        if let Some(log) = &target.log {
            properties.insert(LOG.to_owned(), log.name.clone());
        }
        if let Shape::Declared(schema) = shape {
            properties.insert("tidewheel.schema".to_owned(), schema.to_text());
        }
        let spec = UnboundPartitionSpec::builder().build();
        let location = files.directory.uri().to_owned();
        let builder = TableMetadataBuilder::new(
            schema.clone(),
            spec,
            order,
            location,
            FormatVersion::V2,
            properties,
        )?
        .assign_uuid(uuid::Uuid::from_bytes(*uuid.as_bytes()));
        let draft = with_own_ids(&builder.build()?.metadata, &schema)?;
        let builder = draft.clone().into_builder(None);
        Ok(Self {
            builder,
            metadata: None,
            schema: draft.current_schema().clone(),
            partition_spec: draft.default_partition_spec().as_ref().clone(),
            manifests: Vec::new(),
        })
    }

    /// The table as a metadata file describes it.
    pub(crate) async fn load(files: &Files, stem: &str) -> Result<Self, Error> {
        let metadata = load_metadata(files, stem).await?;
        let manifests = match metadata.current_snapshot() {
            Some(snapshot) => load_manifest_list(files, snapshot).await?,
            None => Vec::new(),
        };
        let location = files.directory.uri_of(&directory::metadata_file(stem));
        Ok(Self {
            builder: metadata.clone().into_builder(Some(location)),
            schema: metadata.current_schema().clone(),
            partition_spec: metadata.default_partition_spec().as_ref().clone(),
            manifests,
            metadata: Some(metadata),
        })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn partition_spec_id(&self) -> i32 {
        self.partition_spec.spec_id()
    }

    /// The manifests of the current snapshot.
    pub(crate) fn manifests(&self) -> &[ManifestFile] {
        &self.manifests
    }

    /// Writes the manifests and the metadata file of the next version, with one snapshot more. `None` if the change
    /// removes a file that is not there any more.
    pub(crate) async fn change(
        mut self,
        files: &Files,
        env: &Env,
        commit: &Commit<'_>,
        change: Change,
    ) -> Result<Option<Written>, Error> {
        let snapshot_id = self.fresh_snapshot_id(env);
        let parent = self.metadata.as_ref().and_then(|m| m.current_snapshot()).cloned();
        let sequence = self.metadata.as_ref().map_or(1, TableMetadata::next_sequence_number);

        let writer = ManifestStore {
            files,
            env,
            scratch: FileIO::new_with_memory(),
            schema: &self.schema,
            partition_spec: &self.partition_spec,
            snapshot_id,
        };
        let present = std::mem::take(&mut self.manifests);
        let (rest, removed) = writer.removing(present, &change.removed).await?;
        if removed.files != change.removed.len() as u64 {
            return Ok(None);
        }
        let added = Tally::of(&change.added);
        let summary =
            summary(parent.as_ref().map(|s| s.summary()), commit.id, &change, &added, &removed)?;
        let mut manifests = Vec::new();
        if !change.added.is_empty() {
            manifests.push(writer.added(change.added, change.sequence).await?);
        }
        manifests.extend(writer.merged(rest).await?);
        let list =
            writer.list(manifests, parent.as_ref().map(|s| s.snapshot_id()), sequence).await?;

        // A reader walks snapshots by time, and clocks of different writers disagree.
        let last = self.metadata.as_ref().map_or(0, TableMetadata::last_updated_ms);
        let now_ms = (env.now_us() / 1000).max(last);
        let snapshot = Snapshot::builder()
            .with_snapshot_id(snapshot_id)
            .with_parent_snapshot_id(parent.map(|s| s.snapshot_id()))
            .with_sequence_number(sequence)
            .with_timestamp_ms(now_ms)
            .with_manifest_list(list)
            .with_schema_id(self.schema.schema_id())
            .with_summary(summary)
            .build();
        let expired = match &self.metadata {
            Some(metadata) => expired(metadata, commit.keep, now_ms, 1),
            None => Vec::new(),
        };
        let builder = self.builder.remove_snapshots(&expired);
        let metadata = builder.set_branch_snapshot(snapshot, MAIN_BRANCH)?.build()?.metadata;
        let body = serde_json::to_vec(&metadata).map_err(|e| Error::Format(e.to_string()))?;
        let stem = directory::metadata_stem(commit.version, env);
        files.write(&directory::metadata_file(&stem), body.into()).await?;
        Ok(Some(Written { stem, snapshot_id }))
    }

    /// Writes the metadata file of a version that only forgets snapshots. `None` if there is none to forget.
    pub(crate) async fn expire(
        self,
        files: &Files,
        env: &Env,
        commit: &Commit<'_>,
    ) -> Result<Option<(String, usize)>, Error> {
        let Some(before) = &self.metadata else { return Ok(None) };
        let now_ms = (env.now_us() / 1000).max(before.last_updated_ms());
        let expired = expired(before, commit.keep, now_ms, 0);
        if expired.is_empty() {
            return Ok(None);
        }
        let metadata = self.builder.remove_snapshots(&expired).build()?.metadata;
        let mut body = serde_json::to_value(&metadata).map_err(|e| Error::Format(e.to_string()))?;
        // Without a new snapshot the builder would take the time from a clock of its own.
        if let Some(updated) = body.get_mut("last-updated-ms") {
            *updated = now_ms.into();
        }
        let stem = directory::metadata_stem(commit.version, env);
        files.write(&directory::metadata_file(&stem), body.to_string().into()).await?;
        Ok(Some((stem, expired.len())))
    }

    fn fresh_snapshot_id(&self, env: &Env) -> i64 {
        loop {
            let id = (env.random() >> 1) as i64;
            let taken = self.metadata.as_ref().is_some_and(|m| m.snapshot_by_id(id).is_some());
            if id > 0 && !taken {
                return id;
            }
        }
    }
}

/// Metadata whose fields have the ids of `schema`: the builder of a new table counts them anew.
fn with_own_ids(
    draft: &TableMetadata,
    schema: &iceberg::spec::Schema,
) -> Result<TableMetadata, Error> {
    let format = |e: serde_json::Error| Error::Format(e.to_string());
    let mut text = serde_json::to_value(draft).map_err(format)?;
    let counted = draft.current_schema();
    for order in text["sort-orders"].as_array_mut().into_iter().flatten() {
        for field in order["fields"].as_array_mut().into_iter().flatten() {
            let source = field["source-id"].as_i64().and_then(|id| i32::try_from(id).ok());
            let name = source.and_then(|id| counted.name_by_field_id(id));
            if let Some(id) = name.and_then(|name| schema.field_id_by_name(name)) {
                field["source-id"] = id.into();
            }
        }
    }
    text["schemas"] = serde_json::json!([schema]);
    text["last-column-id"] = schema.highest_field_id().into();
    // It has never been written; the first version has the time of its snapshot.
    text["last-updated-ms"] = 0.into();
    serde_json::from_value(text).map_err(format)
}

/// The snapshots that metadata need not remember any longer once it has so many more.
fn expired(metadata: &TableMetadata, keep: Keep, now_ms: i64, more: usize) -> Vec<i64> {
    let mut snapshots: Vec<_> = metadata
        .snapshots()
        .map(|s| (s.sequence_number(), s.timestamp_ms(), s.snapshot_id()))
        .collect();
    snapshots.sort_unstable();
    let count = snapshots.len() + more;
    let followed = snapshots.iter().skip(1).map(|next| next.1).chain([now_ms]);
    let ripe = |(at, ((_, made_ms, id), followed_ms)): (usize, (&(i64, i64, i64), i64))| {
        let left = count - at;
        let unread = now_ms - followed_ms >= keep.pin_ms;
        let old = now_ms - made_ms >= keep.age_ms || left > keep.count.max(1);
        let goes = unread && old || left > limits::SNAPSHOTS_AT_MOST;
        (goes && Some(*id) != metadata.current_snapshot_id()).then_some(*id)
    };
    snapshots.iter().zip(followed).enumerate().filter_map(ripe).collect()
}

/// Reads a metadata file.
pub(crate) async fn load_metadata(files: &Files, stem: &str) -> Result<TableMetadata, Error> {
    let body = files.read(&directory::metadata_file(stem)).await?;
    serde_json::from_slice(&body).map_err(|e| Error::Corrupt(format!("metadata `{stem}`: {e}")))
}

/// True if a commit of this id is among the table's snapshots.
pub(crate) fn has_commit(metadata: &TableMetadata, commit_id: &str) -> bool {
    metadata.snapshots().any(|s| {
        s.summary().additional_properties.get(COMMIT_ID).is_some_and(|found| found == commit_id)
    })
}

/// What some data files hold.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl Tally {
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a DataFile>) -> Self {
        files.into_iter().fold(Self::default(), |mut sum, file| {
            sum.files += 1;
            sum.rows += file.record_count();
            sum.bytes += file.file_size_in_bytes();
            sum
        })
    }
}

fn summary(
    parent: Option<&Summary>,
    commit_id: &str,
    change: &Change,
    added: &Tally,
    removed: &Tally,
) -> Result<Summary, Error> {
    let before = |name: &str| {
        let text = parent.and_then(|p| p.additional_properties.get(name));
        text.and_then(|t| t.parse::<u64>().ok()).unwrap_or(0)
    };
    let total =
        |name: &str, added: u64, removed: u64| (before(name) + added).saturating_sub(removed);
    let mut properties = HashMap::from([(COMMIT_ID.to_owned(), commit_id.to_owned())]);
    for (name, value) in [
        ("added-data-files", added.files),
        ("added-records", added.rows),
        ("added-files-size", added.bytes),
        ("total-data-files", total("total-data-files", added.files, removed.files)),
        ("total-records", total("total-records", added.rows, removed.rows)),
        ("total-files-size", total("total-files-size", added.bytes, removed.bytes)),
        ("total-delete-files", 0),
        ("total-position-deletes", 0),
        ("total-equality-deletes", 0),
    ] {
        properties.insert(name.to_owned(), value.to_string());
    }
    if removed.files > 0 {
        for (name, value) in [
            ("deleted-data-files", removed.files),
            ("deleted-records", removed.rows),
            ("removed-files-size", removed.bytes),
        ] {
            properties.insert(name.to_owned(), value.to_string());
        }
    }
    let moved = &change.moved;
    if !moved.is_empty() {
        properties.insert(PARTITIONS.to_owned(), moved.len().to_string());
    }
    if !moved.is_empty() && moved.len() <= limits::SUMMARY_POSITIONS {
        let positions: BTreeMap<String, u64> =
            moved.iter().map(|(p, next)| (p.to_string(), *next)).collect();
        let text = serde_json::to_string(&positions).map_err(|e| Error::Format(e.to_string()))?;
        properties.insert(POSITIONS.to_owned(), text);
    }
    let operation = change.operation.clone();
    Ok(Summary { operation, additional_properties: properties })
}
