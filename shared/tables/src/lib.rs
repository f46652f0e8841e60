//! Streams as Iceberg tables: schemas, sealing, publishing.
