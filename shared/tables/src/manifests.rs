//! Manifests: the lists of a table's data files, and the lists of those lists.

use std::collections::HashSet;

use bytes::Bytes;
use iceberg::{
    io::FileIO,
    spec::{
        DataFile, FormatVersion, Manifest, ManifestContentType, ManifestEntryRef, ManifestFile,
        ManifestList, ManifestListWriter, ManifestWriter, ManifestWriterBuilder, PartitionSpec,
        SchemaRef, Snapshot,
    },
};
use tidewheel_store::Env;

use crate::{Error, directory, files::Files, limits, snapshot::Tally};

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

/// A data file of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// How old its rows are: files of later commits have higher numbers.
    pub(crate) sequence: i64,
    pub(crate) data: DataFile,
}

/// The data files that some manifests name, in the order in which their rows came in.
pub(crate) async fn live_files(
    files: &Files,
    manifests: &[ManifestFile],
) -> Result<Vec<Live>, Error> {
    let mut live = Vec::new();
    for manifest in manifests {
        for entry in load_manifest(files, manifest).await?.entries() {
            if entry.is_alive() {
                let sequence = entry.sequence_number().unwrap_or(manifest.sequence_number);
                live.push(Live { sequence, data: entry.data_file().clone() });
            }
        }
    }
    live.sort_by_key(|file| file.sequence);
    Ok(live)
}

/// Adds an entry of another manifest as it is: what it does not say it inherits from that manifest.
fn keep(
    writer: &mut ManifestWriter,
    manifest: &ManifestFile,
    entry: &ManifestEntryRef,
) -> Result<(), Error> {
    writer.add_existing_file(
        entry.data_file().clone(),
        entry.snapshot_id().unwrap_or(manifest.added_snapshot_id),
        entry.sequence_number().unwrap_or(manifest.sequence_number),
        Some(entry.file_sequence_number.unwrap_or(manifest.sequence_number)),
    )?;
    Ok(())
}

/// Writes the manifests of one snapshot.
pub(crate) struct ManifestStore<'a> {
    pub(crate) files: &'a Files,
    pub(crate) env: &'a Env,
    /// Where a file is built.
    pub(crate) scratch: FileIO,
    pub(crate) schema: &'a SchemaRef,
    pub(crate) partition_spec: &'a PartitionSpec,
    pub(crate) snapshot_id: i64,
}

impl ManifestStore<'_> {
    fn writer(&self) -> Result<(String, ManifestWriterBuilder), Error> {
        let file = format!("metadata/{}-m0.avro", directory::fresh_id(self.env));
        let output = self.scratch.new_output(self.files.directory.uri_of(&file))?;
        let (schema, spec) = (self.schema.clone(), self.partition_spec.clone());
        Ok((file, ManifestWriterBuilder::new(output, Some(self.snapshot_id), schema, spec)))
    }

    async fn store(&self, file: &str) -> Result<(), Error> {
        let uri = self.files.directory.uri_of(file);
        let body: Bytes = self.scratch.new_input(&uri)?.read().await?;
        self.files.write(file, body).await
    }

    /// The manifest of the files that the snapshot adds. Their rows are as old as `sequence` says, or new.
    pub(crate) async fn added(
        &self,
        added: Vec<DataFile>,
        sequence: Option<i64>,
    ) -> Result<ManifestFile, Error> {
        let (file, builder) = self.writer()?;
        let mut writer = builder.build_v2_data();
        for data in added {
            // Below zero is none: the sequence number is inherited from the list.
            writer.add_file(data, sequence.unwrap_or(-1))?;
        }
        let manifest = writer.write_manifest_file().await?;
        self.store(&file).await?;
        Ok(manifest)
    }

    /// The manifests that there are, small ones merged into one when they are many. A reader opens every manifest, so
    /// their number must not grow with the number of commits.
    pub(crate) async fn merged(
        &self,
        manifests: Vec<ManifestFile>,
    ) -> Result<Vec<ManifestFile>, Error> {
        let entries = |m: &ManifestFile| {
            u64::from(m.added_files_count.unwrap_or(0))
                + u64::from(m.existing_files_count.unwrap_or(0))
        };
        let is_small = |m: &ManifestFile| {
            m.content == ManifestContentType::Data && entries(m) < limits::MANIFEST_ENTRIES
        };
        // One that has only what was deleted says so to the snapshot that it was written for, and to no later one.
        let manifests = manifests
            .into_iter()
            .filter(|m| entries(m) > 0 || m.added_snapshot_id == self.snapshot_id);
        let (small, mut rest): (Vec<_>, Vec<_>) = manifests.partition(is_small);
        // What this snapshot deletes must stay in a manifest of its own.
        let (small, own): (Vec<_>, Vec<_>) =
            small.into_iter().partition(|m| m.added_snapshot_id != self.snapshot_id);
        rest.splice(..0, own);
        if small.len() < limits::MANIFESTS {
            return Ok(small.into_iter().chain(rest).collect());
        }
        let (file, builder) = self.writer()?;
        let mut writer = builder.build_v2_data();
        for manifest in &small {
            for entry in load_manifest(self.files, manifest).await?.entries() {
                if entry.is_alive() {
                    keep(&mut writer, manifest, entry)?;
                }
            }
        }
        let manifest = writer.write_manifest_file().await?;
        self.store(&file).await?;
        rest.insert(0, manifest);
        Ok(rest)
    }

    /// The manifests without some data files, and what of those was found.
    pub(crate) async fn removing(
        &self,
        manifests: Vec<ManifestFile>,
        removed: &HashSet<String>,
    ) -> Result<(Vec<ManifestFile>, Tally), Error> {
        if removed.is_empty() {
            return Ok((manifests, Tally::default()));
        }
        let (mut rest, mut found) = (Vec::with_capacity(manifests.len()), Tally::default());
        for manifest in manifests {
            let loaded = load_manifest(self.files, &manifest).await?;
            let entries = loaded.entries().iter();
            let goes = entries.filter(|e| e.is_alive() && removed.contains(e.file_path()));
            let goes = Tally::of(goes.map(|e| e.data_file()));
            if goes.files == 0 {
                rest.push(manifest);
                continue;
            }
            rest.push(self.without(&manifest, loaded.entries(), removed).await?);
            found.files += goes.files;
            found.rows += goes.rows;
            found.bytes += goes.bytes;
        }
        Ok((rest, found))
    }

    /// A manifest once more, with some of its files deleted. What stays keeps its sequence numbers, and so does what
    /// goes.
    async fn without(
        &self,
        manifest: &ManifestFile,
        entries: &[ManifestEntryRef],
        removed: &HashSet<String>,
    ) -> Result<ManifestFile, Error> {
        let (file, builder) = self.writer()?;
        let mut writer = builder.build_v2_data();
        for entry in entries.iter().filter(|e| e.is_alive()) {
            if removed.contains(entry.file_path()) {
                writer.add_delete_file(
                    entry.data_file().clone(),
                    entry.sequence_number().unwrap_or(manifest.sequence_number),
                    Some(entry.file_sequence_number.unwrap_or(manifest.sequence_number)),
                )?;
            } else {
                keep(&mut writer, manifest, entry)?;
            }
        }
        let manifest = writer.write_manifest_file().await?;
        self.store(&file).await?;
        Ok(manifest)
    }

    /// The snapshot's list of manifests; answers its location.
    pub(crate) async fn list(
        &self,
        manifests: Vec<ManifestFile>,
        parent: Option<i64>,
        sequence: i64,
    ) -> Result<String, Error> {
        let file =
            format!("metadata/snap-{}-{}.avro", self.snapshot_id, directory::fresh_id(self.env));
        let uri = self.files.directory.uri_of(&file);
        let output = self.scratch.new_output(&uri)?.writer().await?;
        let mut list = ManifestListWriter::v2(output, self.snapshot_id, parent, sequence);
        list.add_manifests(manifests.into_iter())?;
        list.close().await?;
        self.store(&file).await?;
        Ok(uri)
    }
}
