//! Mirrors of our tables in a catalogue of the cloud's, where analysts look for tables.
//!
//! Our own head stays the catalogue that counts; a mirror says where the table's metadata was a moment ago. It follows
//! after every seal, and nobody waits for it: a catalogue that fails is told again by the next round, because what it is
//! told is the state of the table and not a step of it. It only moves forward, by the number of the metadata's version,
//! however many sealers tell it and in whatever order.

use std::fmt;

use async_trait::async_trait;
use iceberg::spec::{NestedFieldRef, PrimitiveType, TableMetadata, Type};
use tidewheel_engine::Uuid;

use crate::{Error, directory, files::Files, limits, snapshot, tables::Tables};

/// A table as a catalogue is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The stream.
    pub stream: String,
    /// The stream's id.
    pub stream_id: String,
    /// Where the table's files are: no other table is there.
    pub location: String,
    /// The metadata file that counts.
    pub metadata: String,
    /// Its version, by which an older one is known.
    pub version: u64,
    /// The columns, for people: who reads the table reads the metadata.
    pub columns: Vec<CatalogueColumn>,
}

/// A column as a catalogue shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueColumn {
    /// Its name.
    pub name: String,
    /// Its type in Hive's words, which catalogues of the cloud use: `bigint`, `array<string>`, ...
    pub hive_type: String,
    /// The field's id in the table's schema.
    pub field_id: i32,
    /// True if it may be null.
    pub nullable: bool,
}

/// What became of telling a catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirrored {
    /// The table was not there and was made.
    Created,
    /// An older version was there.
    Moved,
    /// This version was there.
    Unchanged,
    /// A newer version was there, by another sealer. It stays.
    Newer,
    /// A table is there by this name that is not a mirror of ours. It stays as it is.
    Foreign,
}

/// A catalogue did not do what it was asked, or its answer was lost. It may be told again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data catalogue: {0}")]
pub struct CatalogueError(pub String);

/// A catalogue that mirrors tables.
#[async_trait]
pub trait Catalogue: fmt::Debug + Send + Sync {
    /// Makes the catalogue say at least this of a table. The same again changes nothing, and nothing moves back.
    ///
    /// # Errors
    /// [`CatalogueError`], whatever became of it.
    async fn mirror(&self, entry: &Entry) -> Result<Mirrored, CatalogueError>;

    /// Takes the mirror of the table that lies there out of the catalogue, if there is one of ours.
    ///
    /// # Errors
    /// [`CatalogueError`]: it may be there still.
    async fn forget(&self, location: &str) -> Result<(), CatalogueError>;
}

/// What became of a table's mirror after a seal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mirror {
    /// There is no catalogue, or no table yet.
    #[default]
    Absent,
    /// The catalogue says what the table's head says, or more.
    Told(Mirrored),
    /// The catalogue lags; the next round tells it again.
    Lags(String),
}

impl Mirror {
    /// Why the catalogue does not say what it should, if so.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Mirror::Lags(why) => Some(why),
            Mirror::Told(Mirrored::Foreign) => {
                Some("a table that is not ours has the name in the data catalogue")
            }
            Mirror::Absent | Mirror::Told(_) => None,
        }
    }
}

impl Tables {
    /// Tells the catalogue, if there is one, where a table's metadata is. Whoever has moved the table's pointer calls it
    /// after the hint. Never an error: nothing but the collector waits for a mirror.
    pub(crate) async fn mirror(&self, id: &Uuid, files: &Files, stem: &str) -> Mirror {
        let inner = &*self.inner;
        let Some(catalogue) = &inner.settings.catalogue else { return Mirror::Absent };
        if let Some((_, told)) = inner.mirrored.lock().get(id).filter(|(seen, _)| seen == stem) {
            let foreign = *told == Mirrored::Foreign;
            return Mirror::Told(if foreign { *told } else { Mirrored::Unchanged });
        }
        let told = match entry(files, stem).await {
            Ok(entry) => catalogue.mirror(&entry).await.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        match told {
            Ok(told) => {
                if told == Mirrored::Foreign {
                    tracing::warn!(%id, stem, "a table that is not ours has the mirror's name");
                }
                let mut mirrored = inner.mirrored.lock();
                if mirrored.len() >= limits::REMEMBERED_TABLES {
                    mirrored.clear();
                }
                mirrored.insert(*id, (stem.to_owned(), told));
                Mirror::Told(told)
            }
            Err(why) => {
                tracing::warn!(%id, stem, why, "the table's mirror lags");
                Mirror::Lags(why)
            }
        }
    }

    /// Takes the mirror of a table that is about to be removed out of the catalogue, if there is one.
    pub(crate) async fn forget_mirror(&self, files: &Files) -> Result<(), Error> {
        let Some(catalogue) = &self.inner.settings.catalogue else { return Ok(()) };
        Ok(catalogue.forget(files.directory.uri()).await?)
    }
}

/// What a metadata file says to a catalogue.
async fn entry(files: &Files, stem: &str) -> Result<Entry, Error> {
    let metadata = snapshot::load_metadata(files, stem).await?;
    let property = |name: &str| metadata.properties().get(name).cloned().unwrap_or_default();
    Ok(Entry {
        // Each generation of a declared stream is a table of its own.
        stream: Some(property(snapshot::LOG))
            .filter(|log| !log.is_empty())
            .unwrap_or_else(|| property(snapshot::STREAM)),
        stream_id: property(snapshot::STREAM_ID),
        location: files.directory.uri().to_owned(),
        metadata: files.directory.uri_of(&directory::metadata_file(stem)),
        version: directory::stem_version(stem).unwrap_or(0),
        columns: columns(&metadata),
    })
}

fn columns(metadata: &TableMetadata) -> Vec<CatalogueColumn> {
    let column = |field: &NestedFieldRef| CatalogueColumn {
        name: field.name.clone(),
        hive_type: hive(&field.field_type),
        field_id: field.id,
        nullable: !field.required,
    };
    metadata.current_schema().as_struct().fields().iter().map(column).collect()
}

/// A type in Hive's words.
fn hive(ty: &Type) -> String {
    match ty {
        Type::Primitive(primitive) => match primitive {
            PrimitiveType::Boolean => "boolean".to_owned(),
            PrimitiveType::Int => "int".to_owned(),
            PrimitiveType::Long => "bigint".to_owned(),
            PrimitiveType::Float => "float".to_owned(),
            PrimitiveType::Double => "double".to_owned(),
            PrimitiveType::Decimal { precision, scale } => format!("decimal({precision},{scale})"),
            PrimitiveType::Date => "date".to_owned(),
            PrimitiveType::Timestamp
            | PrimitiveType::Timestamptz
            | PrimitiveType::TimestampNs
            | PrimitiveType::TimestamptzNs => "timestamp".to_owned(),
            PrimitiveType::Time | PrimitiveType::String | PrimitiveType::Uuid => {
                "string".to_owned()
            }
            PrimitiveType::Fixed(_) | PrimitiveType::Binary => "binary".to_owned(),
        },
        Type::Struct(fields) => {
            let field = |f: &NestedFieldRef| format!("{}:{}", f.name, hive(&f.field_type));
            format!("struct<{}>", fields.fields().iter().map(field).collect::<Vec<_>>().join(","))
        }
        Type::List(list) => format!("array<{}>", hive(&list.element_field.field_type)),
        Type::Map(map) => {
            let (key, value) = (&map.key_field.field_type, &map.value_field.field_type);
            format!("map<{},{}>", hive(key), hive(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    #[test]
    fn columns_have_the_catalogues_types() {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer"},"ok":{"type":["boolean","null"]},
            "tags":{"type":["array","null"],"items":{"type":"string"}},
            "at":{"type":["object","null"],"properties":{"x":{"type":"number"}},"required":["x"]}},"required":["n"]}"#;
        let schema = tidewheel_schema::Schema::compile(schema).unwrap();
        let iceberg = Shape::Declared(schema.into()).iceberg(&[]).unwrap();
        let found: Vec<_> = iceberg
            .as_struct()
            .fields()
            .iter()
            .map(|f| (f.name.as_str(), hive(&f.field_type)))
            .collect();
        let expected = [
            ("litelink_offset", "bigint"),
            ("n", "bigint"),
            ("ok", "boolean"),
            ("tags", "array<string>"),
            ("at", "struct<x:double>"),
            ("streamcast_ts", "bigint"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (name, ty) in expected {
            assert!(found.contains(&(name, ty.to_owned())), "{name} {ty}: {found:?}");
        }
        let envelope = Shape::Envelope.iceberg(&[]).unwrap();
        let time = envelope.field_by_name("time").unwrap();
        assert_eq!(hive(&time.field_type), "timestamp");
    }
}
