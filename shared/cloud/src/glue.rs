//! Tables in the data catalogue (Glue), where Athena, EMR and whoever asks the account for its tables find them.
//!
//! A mirror is a table of the catalogue that names our metadata file. [`Glue`] makes it say at least what it is told:
//! it reads what is there, and makes the table, moves it, or leaves it. It moves only what is behind, by the number of the
//! metadata's version, and only on the condition that nobody has written since the read (`VersionId`); so any number of
//! sealers may tell it in any order, and a lost reply is nothing but one more look.
//!
//! What is not ours stays as it is: a table is ours if it bears our mark (the parameter `tidewheel.stream-id`) **and** lies at our
//! table's location. What people add to ours (parameters, a description) is kept.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use aws_config::{SdkConfig, timeout::TimeoutConfig};
use aws_sdk_glue::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{create_table::CreateTableError, update_table::UpdateTableError},
    types::{Column, DatabaseInput, StorageDescriptor, Table, TableInput},
};
use tidewheel_engine::Uuid;
use tidewheel_tables::{Catalogue, CatalogueColumn, CatalogueError, Entry, Mirrored};

use crate::failure::brief;

/// How long one attempt at a call may take: a seal waits for it, and the next round tells the catalogue again.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Looks at a table that others write at the same time.
const ATTEMPTS: usize = 4;
/// Characters of a table's name in the catalogue.
const NAME_CHARACTERS: usize = 128;
/// Characters of the hash at the end of a name that is not the stream's own.
const HASH_CHARACTERS: usize = 10;

/// The parameter that marks a mirror as ours: the stream's id.
const MARK: &str = "tidewheel.stream-id";
/// The parameter that names the stream.
const STREAM: &str = "tidewheel.stream";
/// What readers of Iceberg in the catalogue look for.
const TABLE_TYPE: &str = "table_type";
const METADATA: &str = "metadata_location";
const PREVIOUS: &str = "previous_metadata_location";

/// Mirrors in a database of the data catalogue. It is made with the first table if it is not there.
#[derive(Clone, Debug)]
pub struct Glue {
    client: Client,
    database: String,
}

/// A call failed: try again after another look, or not.
enum Failed {
    /// Somebody wrote in between.
    Raced,
    /// The database is not there.
    NoDatabase,
    Other(CatalogueError),
}

impl Glue {
    /// Mirrors in this database.
    pub fn new(sdk: &SdkConfig, database: &str) -> Self {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(ATTEMPT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let config = aws_sdk_glue::config::Builder::from(sdk).timeout_config(timeouts).build();
        Self::with_client(Client::from_conf(config), database)
    }

    /// Mirrors in this database, by a client of one's own.
    pub fn with_client(client: Client, database: &str) -> Self {
        Self { client, database: database.to_owned() }
    }

    async fn table(&self, name: &str) -> Result<Option<Table>, Failed> {
        match self.client.get_table().database_name(&self.database).name(name).send().await {
            Ok(found) => Ok(found.table),
            // The table is missing, or the whole database.
            Err(e) if code(&e) == "EntityNotFoundException" => Ok(None),
            Err(e) => Err(Failed::Other(CatalogueError(format!("GetTable: {}", brief(&e))))),
        }
    }

    async fn create(&self, input: TableInput) -> Result<(), Failed> {
        let create = self.client.create_table().database_name(&self.database);
        match create.table_input(input).send().await {
            Ok(_) => Ok(()),
            Err(e) => Err(match e.as_service_error() {
                Some(CreateTableError::AlreadyExistsException(_)) => Failed::Raced,
                Some(CreateTableError::EntityNotFoundException(_)) => Failed::NoDatabase,
                _ => Failed::Other(CatalogueError(format!("CreateTable: {}", brief(&e)))),
            }),
        }
    }

    async fn create_database(&self) -> Result<(), Failed> {
        let input = DatabaseInput::builder()
            .name(&self.database)
            .description("Tables of streams, mirrored by Tidewheel")
            .build()
            .map_err(malformed)?;
        match self.client.create_database().database_input(input).send().await {
            Ok(_) => Ok(()),
            Err(e) if code(&e) == "AlreadyExistsException" => Ok(()),
            Err(e) => Err(Failed::Other(CatalogueError(format!("CreateDatabase: {}", brief(&e))))),
        }
    }

    async fn update(&self, input: TableInput, version: Option<String>) -> Result<(), Failed> {
        let update = self.client.update_table().database_name(&self.database).table_input(input);
        // Older versions of the mirror are of no use: the table's own metadata has its history.
        match update.skip_archive(true).set_version_id(version).send().await {
            Ok(_) => Ok(()),
            Err(e) => Err(match e.as_service_error() {
                Some(
                    UpdateTableError::ConcurrentModificationException(_)
                    | UpdateTableError::EntityNotFoundException(_),
                ) => Failed::Raced,
                _ => Failed::Other(CatalogueError(format!("UpdateTable: {}", brief(&e)))),
            }),
        }
    }

    async fn step(&self, name: &str, entry: &Entry) -> Result<Mirrored, Failed> {
        let Some(found) = self.table(name).await? else {
            self.create(input(name, entry, None).map_err(malformed)?).await?;
            return Ok(Mirrored::Created);
        };
        if !is_ours(&found, &entry.location) {
            return Ok(Mirrored::Foreign);
        }
        let there = parameter(&found, METADATA).and_then(version_of).unwrap_or(0);
        if there == entry.version {
            return Ok(Mirrored::Unchanged);
        }
        if there > entry.version {
            return Ok(Mirrored::Newer);
        }
        let version = found.version_id().map(str::to_owned);
        self.update(input(name, entry, Some(&found)).map_err(malformed)?, version).await?;
        Ok(Mirrored::Moved)
    }
}

#[async_trait]
impl Catalogue for Glue {
    async fn mirror(&self, entry: &Entry) -> Result<Mirrored, CatalogueError> {
        let name = table_name(&entry.location);
        for _ in 0..ATTEMPTS {
            match self.step(&name, entry).await {
                Ok(mirrored) => return Ok(mirrored),
                Err(Failed::Raced) => {}
                Err(Failed::NoDatabase) => {
                    if let Err(Failed::Other(error)) = self.create_database().await {
                        return Err(error);
                    }
                }
                Err(Failed::Other(error)) => return Err(error),
            }
        }
        Err(CatalogueError(format!("table `{name}` was written by others {ATTEMPTS} times")))
    }

    async fn forget(&self, location: &str) -> Result<(), CatalogueError> {
        let name = table_name(location);
        let found = match self.table(&name).await {
            Ok(found) => found,
            Err(Failed::Other(error)) => return Err(error),
            // A read meets neither.
            Err(Failed::Raced | Failed::NoDatabase) => None,
        };
        if !found.is_some_and(|found| is_ours(&found, location)) {
            return Ok(());
        }
        match self.client.delete_table().database_name(&self.database).name(name).send().await {
            Ok(_) => Ok(()),
            Err(e) if code(&e) == "EntityNotFoundException" => Ok(()),
            Err(e) => Err(CatalogueError(format!("DeleteTable: {}", brief(&e)))),
        }
    }
}

fn malformed(error: aws_sdk_glue::error::BuildError) -> Failed {
    Failed::Other(CatalogueError(error.to_string()))
}

/// The service's code for an error; empty if it did not answer.
fn code<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> &str {
    error.as_service_error().and_then(ProvideErrorMetadata::code).unwrap_or_default()
}

fn parameter<'a>(table: &'a Table, name: &str) -> Option<&'a str> {
    table.parameters().and_then(|p| p.get(name)).map(String::as_str)
}

/// Marked, and where our table is. A stream that was deleted and made again has another id, but lies in the same place
/// and counts its versions on.
fn is_ours(table: &Table, location: &str) -> bool {
    let place = table.storage_descriptor().and_then(StorageDescriptor::location);
    let here = place.map(|place| place.trim_end_matches('/')) == Some(location);
    here && parameter(table, MARK).is_some()
}

/// The version in the name of a metadata file: the digits that it begins with.
fn version_of(metadata: &str) -> Option<u64> {
    metadata.rsplit('/').next()?.split('-').next()?.parse().ok()
}

/// The name of a table in the catalogue, by the table's directory. Lower-case letters, digits and `_` stay, if nothing else
/// is in it. Any other name has `_` in the place of what Athena does not take and, so that no two meet, a hash at the end.
pub fn table_name(location: &str) -> String {
    let directory = location.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !directory.is_empty() && directory.len() <= NAME_CHARACTERS && directory.chars().all(plain) {
        return directory.to_owned();
    }
    let mut name = String::with_capacity(NAME_CHARACTERS);
    let mut characters = directory.chars();
    while let Some(c) = characters.next() {
        let c = c.to_ascii_lowercase();
        if plain(c) {
            name.push(c);
        } else if !name.ends_with('_') {
            name.push('_');
        }
        if c == '!' {
            // An escape: two digits that say nothing to a person.
            characters.by_ref().take(2).for_each(drop);
        }
    }
    name.truncate(NAME_CHARACTERS - HASH_CHARACTERS - 1);
    let hash = Uuid::derived(&[b"catalogue", directory.as_bytes()]).simple();
    let hash = hash.get(hash.len().saturating_sub(HASH_CHARACTERS)..).unwrap_or_default();
    let name = Some(name.trim_matches('_')).filter(|name| !name.is_empty()).unwrap_or("stream");
    format!("{name}_{hash}")
}

fn column(column: &CatalogueColumn) -> Result<Column, aws_sdk_glue::error::BuildError> {
    Column::builder()
        .name(&column.name)
        .r#type(&column.hive_type)
        .parameters("iceberg.field.id", column.field_id.to_string())
        .parameters("iceberg.field.optional", column.nullable.to_string())
        .parameters("iceberg.field.current", "true")
        .build()
}

/// The table as it shall be, with what people have added to the one that is there.
fn input(
    name: &str,
    entry: &Entry,
    found: Option<&Table>,
) -> Result<TableInput, aws_sdk_glue::error::BuildError> {
    let columns = entry.columns.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let mut parameters: HashMap<String, String> =
        found.and_then(|table| table.parameters().cloned()).unwrap_or_default();
    if let Some(previous) = found.and_then(|table| parameter(table, METADATA)) {
        parameters.insert(PREVIOUS.to_owned(), previous.to_owned());
    }
    for (name, value) in [
        (TABLE_TYPE, "ICEBERG"),
        (METADATA, &entry.metadata),
        (MARK, &entry.stream_id),
        (STREAM, &entry.stream),
    ] {
        parameters.insert(name.to_owned(), value.to_owned());
    }
    let description = match found.and_then(Table::description) {
        Some(own) => own.to_owned(),
        None => format!("Stream {}", entry.stream),
    };
    let storage =
        StorageDescriptor::builder().location(&entry.location).set_columns(Some(columns)).build();
    TableInput::builder()
        .name(name)
        .description(description)
        .set_owner(found.and_then(Table::owner).map(str::to_owned))
        .table_type("EXTERNAL_TABLE")
        .set_parameters(Some(parameters))
        .set_partition_keys(Some(Vec::new()))
        .storage_descriptor(storage)
        .build()
}

#[cfg(test)]
mod tests;
