//! Iceberg metadata: a table's first version, and the next one with an appended snapshot.
//!
//! Nothing here commits anything. It writes files that no reader can find yet, and answers the name of a metadata
//! file; the head's conditional write makes it count.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use iceberg::{
    io::FileIO,
    spec::{
        DataFile, FormatVersion, MAIN_BRANCH, Manifest, ManifestContentType, ManifestFile,
        ManifestList, ManifestListWriter, ManifestWriterBuilder, Operation, SchemaRef, Snapshot,
        Summary, TableMetadata, TableMetadataBuilder, UnboundPartitionSpec,
    },
};
use tidewheel_engine::{PartitionId, Uuid};
use tidewheel_store::Env;

use crate::{Error, directory, files::Files, limits, shape::Shape};

/// Summary property: the commit's id, by which an unknown outcome is resolved.
pub(crate) const COMMIT_ID: &str = "tidewheel.commit-id";
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

/// What a snapshot appends.
pub(crate) struct Append<'a> {
    pub(crate) commit_id: &'a str,
    pub(crate) files: Vec<DataFile>,
    pub(crate) moved: &'a BTreeMap<PartitionId, u64>,
    /// The version that the metadata gets.
    pub(crate) version: u64,
    /// Snapshots that the metadata remembers.
    pub(crate) snapshots: usize,
}

/// A snapshot whose files are written.
pub(crate) struct Appended {
    pub(crate) stem: String,
    pub(crate) snapshot_id: i64,
}

impl Base {
    /// A table that does not exist yet.
    pub(crate) fn create(
        files: &Files,
        shape: &Shape,
        uuid: &Uuid,
        stream: (&Uuid, &str),
    ) -> Result<Self, Error> {
        let schema = shape.iceberg()?;
        let order = shape.sort_order(&schema)?;
        let mut properties = HashMap::from([
            ("tidewheel.stream".to_owned(), stream.1.to_owned()),
            ("tidewheel.stream-id".to_owned(), stream.0.to_string()),
            ("write.parquet.compression-codec".to_owned(), "zstd".to_owned()),
            ("write.metadata.previous-versions-max".to_owned(), limits::METADATA_LOG.to_string()),
        ]);
        if let Shape::Declared(schema) = shape {
            properties.insert("tidewheel.schema".to_owned(), schema.to_text());
        }
        let builder = TableMetadataBuilder::new(
            schema,
            UnboundPartitionSpec::builder().build(),
            order,
            files.directory.uri().to_owned(),
            FormatVersion::V2,
            properties,
        )?
        .assign_uuid(uuid::Uuid::from_bytes(*uuid.as_bytes()));
        // Built only to learn the ids that the fields have got.
        let draft = builder.clone().build()?.metadata;
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

    /// Writes the manifests and the metadata file of the next version.
    pub(crate) async fn append(
        self,
        files: &Files,
        env: &Env,
        append: Append<'_>,
    ) -> Result<Appended, Error> {
        let snapshot_id = self.fresh_snapshot_id(env);
        let parent = self.metadata.as_ref().and_then(|m| m.current_snapshot()).cloned();
        let sequence = self.metadata.as_ref().map_or(1, TableMetadata::next_sequence_number);
        let summary = summary(parent.as_ref().map(|s| s.summary()), &append)?;

        let writer = ManifestStore {
            files,
            env,
            scratch: FileIO::new_with_memory(),
            schema: &self.schema,
            partition_spec: &self.partition_spec,
            snapshot_id,
        };
        let added = writer.added(append.files).await?;
        let mut manifests = vec![added];
        manifests.extend(writer.merged(self.manifests).await?);
        let list =
            writer.list(manifests, parent.as_ref().map(|s| s.snapshot_id()), sequence).await?;

        // A reader walks snapshots by time, and clocks of different writers disagree.
        let last = self.metadata.as_ref().map_or(0, TableMetadata::last_updated_ms);
        let snapshot = Snapshot::builder()
            .with_snapshot_id(snapshot_id)
            .with_parent_snapshot_id(parent.map(|s| s.snapshot_id()))
            .with_sequence_number(sequence)
            .with_timestamp_ms((env.now_us() / 1000).max(last))
            .with_manifest_list(list)
            .with_schema_id(self.schema.schema_id())
            .with_summary(summary)
            .build();
        let oldest =
            self.metadata.as_ref().map(|m| beyond(m, append.snapshots)).unwrap_or_default();
        let builder = self.builder.remove_snapshots(&oldest);
        let metadata = builder.set_branch_snapshot(snapshot, MAIN_BRANCH)?.build()?.metadata;
        let body = serde_json::to_vec(&metadata).map_err(|e| Error::Format(e.to_string()))?;
        let stem = directory::metadata_stem(append.version, env);
        files.write(&directory::metadata_file(&stem), body.into()).await?;
        Ok(Appended { stem, snapshot_id })
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

/// The oldest snapshots, those too many once one more is added. The current one is never among them.
fn beyond(metadata: &TableMetadata, keep: usize) -> Vec<i64> {
    let mut snapshots: Vec<_> =
        metadata.snapshots().map(|s| (s.sequence_number(), s.snapshot_id())).collect();
    snapshots.sort_unstable();
    let excess = (snapshots.len() + 1).saturating_sub(keep.max(1));
    snapshots.truncate(excess);
    snapshots
        .into_iter()
        .map(|(_, id)| id)
        .filter(|id| Some(*id) != metadata.current_snapshot_id())
        .collect()
}

/// Reads a metadata file.
pub(crate) async fn load_metadata(files: &Files, stem: &str) -> Result<TableMetadata, Error> {
    let body = files.read(&directory::metadata_file(stem)).await?;
    serde_json::from_slice(&body).map_err(|e| Error::Corrupt(format!("metadata `{stem}`: {e}")))
}

/// Reads a snapshot's list of manifests.
pub(crate) async fn load_manifest_list(
    files: &Files,
    snapshot: &Snapshot,
) -> Result<Vec<ManifestFile>, Error> {
    let body = files.read_uri(snapshot.manifest_list()).await?;
    let list = ManifestList::parse_with_version(&body, FormatVersion::V2)?;
    Ok(list.consume_entries().into_iter().collect())
}

/// Reads a manifest.
pub(crate) async fn load_manifest(
    files: &Files,
    manifest: &ManifestFile,
) -> Result<Manifest, Error> {
    let body = files.read_uri(&manifest.manifest_path).await?;
    Ok(Manifest::parse_avro(&body)?)
}

/// True if a commit of this id is among the table's snapshots.
pub(crate) fn has_commit(metadata: &TableMetadata, commit_id: &str) -> bool {
    metadata.snapshots().any(|s| {
        s.summary().additional_properties.get(COMMIT_ID).is_some_and(|found| found == commit_id)
    })
}

/// Writes the manifests of one snapshot.
struct ManifestStore<'a> {
    files: &'a Files,
    env: &'a Env,
    /// Where a file is built.
    scratch: FileIO,
    schema: &'a SchemaRef,
    partition_spec: &'a iceberg::spec::PartitionSpec,
    snapshot_id: i64,
}

impl ManifestStore<'_> {
    fn writer(&self) -> Result<(String, ManifestWriterBuilder), Error> {
        let file = format!("metadata/{}-m0.avro", Uuid::random(self.env));
        let output = self.scratch.new_output(self.files.directory.uri_of(&file))?;
        let (schema, spec) = (self.schema.clone(), self.partition_spec.clone());
        Ok((file, ManifestWriterBuilder::new(output, Some(self.snapshot_id), schema, spec)))
    }

    async fn store(&self, file: &str) -> Result<(), Error> {
        let uri = self.files.directory.uri_of(file);
        let body: Bytes = self.scratch.new_input(&uri)?.read().await?;
        self.files.write(file, body).await
    }

    /// The manifest of the files that the snapshot adds.
    async fn added(&self, added: Vec<DataFile>) -> Result<ManifestFile, Error> {
        let (file, builder) = self.writer()?;
        let mut writer = builder.build_v2_data();
        for data in added {
            // Below zero is none: the sequence number is inherited from the list.
            writer.add_file(data, -1)?;
        }
        let manifest = writer.write_manifest_file().await?;
        self.store(&file).await?;
        Ok(manifest)
    }

    /// The manifests that there are, small ones merged into one when they are many. A reader opens every manifest, so
    /// their number must not grow with the number of commits.
    async fn merged(&self, manifests: Vec<ManifestFile>) -> Result<Vec<ManifestFile>, Error> {
        let entries = |m: &ManifestFile| {
            u64::from(m.added_files_count.unwrap_or(0))
                + u64::from(m.existing_files_count.unwrap_or(0))
        };
        let (small, mut rest): (Vec<_>, Vec<_>) = manifests.into_iter().partition(|m| {
            m.content == ManifestContentType::Data && entries(m) < limits::MANIFEST_ENTRIES
        });
        if small.len() < limits::MANIFESTS {
            return Ok(small.into_iter().chain(rest).collect());
        }
        let (file, builder) = self.writer()?;
        let mut writer = builder.build_v2_data();
        for manifest in &small {
            for entry in load_manifest(self.files, manifest).await?.entries() {
                if entry.is_alive() {
                    // What an entry does not say it inherits from its manifest.
                    writer.add_existing_file(
                        entry.data_file().clone(),
                        entry.snapshot_id().unwrap_or(manifest.added_snapshot_id),
                        entry.sequence_number().unwrap_or(manifest.sequence_number),
                        Some(entry.file_sequence_number.unwrap_or(manifest.sequence_number)),
                    )?;
                }
            }
        }
        let manifest = writer.write_manifest_file().await?;
        self.store(&file).await?;
        rest.insert(0, manifest);
        Ok(rest)
    }

    /// The snapshot's list of manifests; answers its location.
    async fn list(
        &self,
        manifests: Vec<ManifestFile>,
        parent: Option<i64>,
        sequence: i64,
    ) -> Result<String, Error> {
        let file = format!("metadata/snap-{}-{}.avro", self.snapshot_id, Uuid::random(self.env));
        let uri = self.files.directory.uri_of(&file);
        let output = self.scratch.new_output(&uri)?.writer().await?;
        let mut list = ManifestListWriter::v2(output, self.snapshot_id, parent, sequence);
        list.add_manifests(manifests.into_iter())?;
        list.close().await?;
        self.store(&file).await?;
        Ok(uri)
    }
}

fn summary(parent: Option<&Summary>, append: &Append<'_>) -> Result<Summary, Error> {
    let before = |name: &str| {
        let text = parent.and_then(|p| p.additional_properties.get(name));
        text.and_then(|t| t.parse::<u64>().ok()).unwrap_or(0)
    };
    let files = append.files.len() as u64;
    let rows: u64 = append.files.iter().map(DataFile::record_count).sum();
    let bytes: u64 = append.files.iter().map(DataFile::file_size_in_bytes).sum();
    let mut properties = HashMap::from([
        (COMMIT_ID.to_owned(), append.commit_id.to_owned()),
        (PARTITIONS.to_owned(), append.moved.len().to_string()),
    ]);
    for (name, value) in [
        ("added-data-files", files),
        ("added-records", rows),
        ("added-files-size", bytes),
        ("total-data-files", before("total-data-files") + files),
        ("total-records", before("total-records") + rows),
        ("total-files-size", before("total-files-size") + bytes),
        ("total-delete-files", 0),
        ("total-position-deletes", 0),
        ("total-equality-deletes", 0),
    ] {
        properties.insert(name.to_owned(), value.to_string());
    }
    if append.moved.len() <= limits::SUMMARY_POSITIONS {
        let positions: BTreeMap<String, u64> =
            append.moved.iter().map(|(p, next)| (p.to_string(), *next)).collect();
        let text = serde_json::to_string(&positions).map_err(|e| Error::Format(e.to_string()))?;
        properties.insert(POSITIONS.to_owned(), text);
    }
    Ok(Summary { operation: Operation::Append, additional_properties: properties })
}
