//! Loading Parquet and Arrow files into a declared stream.
//!
//! Rows go through the log like any other, many in a commit: then there is one log, offsets have one giver, a loaded row
//! can be replayed, and the sealer makes table files of it. (Writing table files beside the log would save one pass over the
//! rows, and would need offsets reserved before the files exist: a load that dies would leave a hole that every
//! reader waits for.) The columns are checked against the declared ones before the first row is loaded. All rows of a
//! commit have the time of that commit.

use std::{
    fs::File,
    io::{BufReader, Read, Seek},
};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, Schema as ArrowSchema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidewheel_engine::{Engine, Frame, PublishError};

use crate::{Error, cells, limits};

/// What was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingested {
    /// Rows.
    pub rows: u64,
    /// Batches of the file that they came in.
    pub batches: u64,
    /// The offset of the first, as the engine counts.
    pub first: Option<u64>,
    /// The offset after the last.
    pub next: Option<u64>,
}

/// Why a load ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// The stream has declared no columns.
    #[error("stream `{0}` has declared no columns")]
    NotDeclared(String),
    /// The file's columns are not the declared ones. Nothing was loaded.
    #[error("stream `{stream}`: {detail}; nothing was loaded")]
    Columns {
        /// The stream.
        stream: String,
        /// Which column, and why.
        detail: String,
    },
    /// A batch was not loaded as a whole. What was loaded before stays.
    #[error(
        "stream `{stream}`: {rows_loaded} rows were loaded, then batch {batch} failed: {detail}"
    )]
    Failed {
        /// The stream.
        stream: String,
        /// Rows that are in the stream.
        rows_loaded: u64,
        /// The batch, from 0.
        batch: u64,
        /// Why.
        detail: String,
    },
    /// The stream could not be looked at.
    #[error(transparent)]
    Tables(#[from] Error),
}

/// Loads batches of these columns at the end of a declared stream.
///
/// # Errors
/// See [`IngestError`]: it says how many rows were loaded.
pub async fn ingest(
    engine: &Engine,
    stream: &str,
    columns: &ArrowSchema,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
) -> Result<Ingested, IngestError> {
    let declared = engine.declared_now(stream).await.map_err(Error::from)?;
    let schema = declared.and_then(|d| d.declaration.schema.clone());
    let schema = schema.ok_or_else(|| IngestError::NotDeclared(stream.to_owned()))?;
    if let Some(detail) = cells::misfit(&schema, columns) {
        return Err(IngestError::Columns { stream: stream.to_owned(), detail });
    }
    let mut done = Ingested::default();
    for batch in batches {
        let failed = |done: &Ingested, detail: String| IngestError::Failed {
            stream: stream.to_owned(),
            rows_loaded: done.rows,
            batch: done.batches,
            detail,
        };
        let batch = batch.map_err(|e| failed(&done, e.to_string()))?;
        let mut at = 0;
        while at < batch.num_rows() {
            let some = batch.slice(at, limits::INGEST_ROWS.min(batch.num_rows() - at));
            at += some.num_rows();
            let rows = cells::texts(&schema, &some).map_err(|e| failed(&done, e.to_string()))?;
            let offsets =
                load(engine, stream, rows).await.map_err(|e| failed(&done, e.to_string()))?;
            done.rows += offsets.len() as u64;
            done.first = done.first.or(offsets.first().copied().flatten());
            done.next = offsets.last().copied().flatten().map(|last| last + 1).or(done.next);
        }
        done.batches += 1;
    }
    Ok(done)
}

/// Loads a Parquet file, an Arrow file or an Arrow stream at the end of a declared stream.
///
/// # Errors
/// See [`IngestError`]: it says how many rows were loaded.
pub async fn ingest_file(
    engine: &Engine,
    stream: &str,
    mut file: File,
) -> Result<Ingested, IngestError> {
    let unreadable = |e: &dyn std::fmt::Display| IngestError::Columns {
        stream: stream.to_owned(),
        detail: format!("the file is neither Parquet nor Arrow: {e}"),
    };
    let mut magic = Vec::with_capacity(MAGIC_BYTES);
    let read = Read::by_ref(&mut file).take(MAGIC_BYTES as u64).read_to_end(&mut magic);
    read.and_then(|_| file.rewind()).map_err(|e| unreadable(&e))?;
    if magic.starts_with(b"PAR1") {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| unreadable(&e))?;
        let reader = reader.build().map_err(|e| unreadable(&e))?;
        let columns = reader.schema();
        ingest(engine, stream, &columns, reader).await
    } else if magic.starts_with(b"ARROW1") {
        let reader = FileReader::try_new(file, None).map_err(|e| unreadable(&e))?;
        let columns = reader.schema();
        ingest(engine, stream, &columns, reader).await
    } else {
        let reader = StreamReader::try_new(BufReader::new(file), None);
        let reader = reader.map_err(|e| unreadable(&e))?;
        let columns = reader.schema();
        ingest(engine, stream, &columns, reader).await
    }
}

/// Bytes by which a file says what it is.
const MAGIC_BYTES: usize = 6;

/// Commits some rows, trying again what has certainly not landed.
async fn load(
    engine: &Engine,
    stream: &str,
    rows: Vec<bytes::Bytes>,
) -> Result<Vec<Option<u64>>, PublishError> {
    let mut attempt = 0;
    loop {
        let frame = Frame { claim: None, seq: 0, rows: rows.clone() };
        let answer = engine.publish(stream, vec![frame]).await.pop();
        match answer {
            Some(Ok(landed)) => return Ok(landed.offsets),
            Some(Err(PublishError::Failed { .. })) | None if attempt < limits::INGEST_ATTEMPTS => {
                attempt += 1;
                engine.env().sleep(std::time::Duration::from_millis(20 << attempt)).await;
            }
            Some(Err(e)) => return Err(e),
            None => return Ok(Vec::new()),
        }
    }
}
