//! `tidewheel ingest`: a Parquet or Arrow file into a declared stream, while no server runs on the data folder.

use std::{fs::File, path::Path, sync::Arc};

use tidewheel_engine::Engine;
use tidewheel_store::Env;
use tidewheel_tables::{IngestError, Ingested, ingest_file};

use crate::{StartError, options::Ingest, place::Place};

/// Why a file was not loaded, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum IngestFailed {
    /// The place cannot be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The load failed.
    #[error(transparent)]
    Load(#[from] IngestError),
}

/// Loads the file.
///
/// # Errors
/// See [`IngestFailed`]; what was loaded before stays.
pub async fn load(options: &Ingest) -> Result<Ingested, IngestFailed> {
    let failed =
        |path: &Path, source| IngestFailed::File { path: path.display().to_string(), source };
    let file = File::open(&options.file).map_err(|e| failed(&options.file, e))?;
    let place = Place::open(&options.serve()).await?;
    let engine = Engine::new(Arc::clone(&place.store), Env::system(), place.settings.clone());
    place.check_keys(&engine).await?;
    Ok(ingest_file(&engine, &options.stream, file).await?)
}
