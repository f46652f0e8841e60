//! Reading a table back, whole: for checkers and small tables.

use std::collections::HashMap;

use arrow_array::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::{
    Error, data,
    files::Files,
    manifests::{live_files, load_manifest_list},
    shape,
    snapshot::load_metadata,
    tables::Tables,
};

/// A table's current snapshot.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The rows, file by file in the order in which the files were added, and within a file in the file's order.
    pub batches: Vec<RecordBatch>,
    /// Data files.
    pub files: usize,
    /// Manifests.
    pub manifests: usize,
    /// The snapshot's id.
    pub snapshot_id: i64,
    /// Snapshots that the table remembers.
    pub snapshots: usize,
    /// The current snapshot's summary.
    pub summary: HashMap<String, String>,
}

impl Tables {
    /// Reads the whole table of a stream into memory; of a declared stream that of its last generation.
    ///
    /// # Errors
    /// [`Error::NoTable`] before the first seal.
    pub async fn scan(&self, stream: &str) -> Result<Scan, Error> {
        let (_, head) = self.shown(&self.id(stream).await?, stream).await?;
        let files = self.files(&head);
        let stem = head.stem.ok_or_else(|| Error::NoTable(stream.to_owned()))?;
        scan(&files, &stem).await
    }

    /// Reads the tables of all generations of a declared stream, by the name of each log.
    ///
    /// # Errors
    /// The store's, or that a file cannot be read.
    pub async fn scan_logs(&self, stream: &str) -> Result<Vec<(String, Scan)>, Error> {
        let (targets, _) = self.targets(&self.id(stream).await?, stream).await?;
        let mut scans = Vec::new();
        for target in targets {
            let head = self.head(&target).await?;
            let name = target.log.as_ref().map_or(stream, |log| &log.name).to_owned();
            if let Some(stem) = &head.stem {
                scans.push((name, scan(&self.files(&head), stem).await?));
            }
        }
        Ok(scans)
    }
}

async fn scan(files: &Files, stem: &str) -> Result<Scan, Error> {
    let metadata = load_metadata(files, stem).await?;
    let snapshot = metadata
        .current_snapshot()
        .ok_or_else(|| Error::Corrupt(format!("metadata `{stem}` has no snapshot")))?;
    let manifests = load_manifest_list(files, snapshot).await?;
    let data_files = live_files(files, &manifests).await?;
    let mut batches = Vec::new();
    for file in &data_files {
        let body = files.read_uri(file.data.file_path()).await?;
        for batch in ParquetRecordBatchReaderBuilder::try_new(body)?.build()? {
            batches.push(batch?);
        }
    }
    if batches.is_empty() {
        batches.push(shape::empty(&data::arrow_schema(metadata.current_schema())?)?);
    }
    Ok(Scan {
        batches,
        files: data_files.len(),
        manifests: manifests.len(),
        snapshot_id: snapshot.snapshot_id(),
        snapshots: metadata.snapshots().len(),
        summary: snapshot.summary().additional_properties.clone(),
    })
}
