//! Data files: batches of rows become Parquet files of a bounded size.
//!
//! A file is built in memory and written when it is full, so what a seal holds is one file, however much it seals.

use std::sync::Arc;

use arrow_array::RecordBatch;
use iceberg::{
    io::FileIO,
    spec::{DataFile, SchemaRef},
    writer::{
        CurrentFileStatus,
        file_writer::{FileWriter, FileWriterBuilder, ParquetWriter, ParquetWriterBuilder},
    },
};
use parquet::{
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::WriterProperties,
    schema::types::ColumnPath,
};
use tidewheel_store::Env;

use crate::{Error, directory, files::Files, limits, shape::Shape};

/// Writes the data files of one seal.
pub(crate) struct DataWriter {
    files: Files,
    env: Env,
    parquet: ParquetWriterBuilder,
    /// Where a file is built.
    scratch: FileIO,
    partition_spec: i32,
    file_bytes: usize,
    /// The sort order that the rows have; 0 is none.
    sort_order: i32,
    open: Option<Open>,
    done: Vec<DataFile>,
}

struct Open {
    file: String,
    uri: String,
    writer: ParquetWriter,
}

impl DataWriter {
    pub(crate) fn new(
        files: Files,
        env: Env,
        shape: &Shape,
        schema: SchemaRef,
        partition_spec: i32,
        file_bytes: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            files,
            env,
            parquet: ParquetWriterBuilder::new(properties(shape)?, schema),
            scratch: FileIO::new_with_memory(),
            partition_spec,
            file_bytes,
            sort_order: 1,
            open: None,
            done: Vec::new(),
        })
    }

    /// The rows come in the order of the log, which the table's is not.
    pub(crate) fn unsorted(mut self) -> Self {
        self.sort_order = 0;
        self
    }

    /// Adds rows; writes the file if it is full.
    pub(crate) async fn write(&mut self, batch: &RecordBatch) -> Result<(), Error> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => {
                let file = format!("data/{}.parquet", directory::fresh_id(&self.env));
                let uri = self.files.directory.uri_of(&file);
                let writer = self.parquet.build(self.scratch.new_output(&uri)?).await?;
                Open { file, uri, writer }
            }
        };
        open.writer.write(batch).await?;
        if open.writer.current_written_size() >= self.file_bytes {
            self.close(open).await
        } else {
            self.open = Some(open);
            Ok(())
        }
    }

    /// Writes what there is of the open file, so that the next row begins another.
    pub(crate) async fn cut(&mut self) -> Result<(), Error> {
        match self.open.take() {
            Some(open) => self.close(open).await,
            None => Ok(()),
        }
    }

    /// Writes what is left and answers the files.
    pub(crate) async fn finish(mut self) -> Result<Vec<DataFile>, Error> {
        self.cut().await?;
        Ok(self.done)
    }

    async fn close(&mut self, open: Open) -> Result<(), Error> {
        let Open { file, uri, writer } = open;
        let built = writer.close().await?;
        let body = self.scratch.new_input(&uri)?.read().await?;
        self.scratch.delete(&uri).await?;
        self.files.write(&file, body).await?;
        for mut data in built {
            data.partition_spec_id(self.partition_spec).sort_order_id(self.sort_order);
            self.done.push(data.build().map_err(|e| Error::Format(e.to_string()))?);
        }
        Ok(())
    }
}

fn properties(shape: &Shape) -> Result<WriterProperties, Error> {
    // Values that seldom repeat, for which a dictionary would only be built to be thrown away; and values that count
    // up, whose differences take a fraction of the space. Declared columns are known by neither.
    let (unique, rising): (&[&str], &[&str]) = match shape {
        Shape::Envelope => (&["id", "transaction_id", "payload"], &["offset", "time"]),
        Shape::Declared(_) => (&[], &["litelink_offset", "streamcast_ts"]),
    };
    let path = |name: &str| ColumnPath::new(vec![name.to_owned()]);
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_max_row_group_row_count(Some(limits::GROUP_ROWS))
        .set_created_by(concat!("tidewheel ", env!("CARGO_PKG_VERSION")).to_owned());
    for name in unique {
        properties = properties.set_column_dictionary_enabled(path(name), false);
    }
    for name in rising {
        properties = properties
            .set_column_dictionary_enabled(path(name), false)
            .set_column_encoding(path(name), Encoding::DELTA_BINARY_PACKED);
    }
    Ok(properties.build())
}

/// The Arrow schema of a table's schema, field ids included.
pub(crate) fn arrow_schema(schema: &SchemaRef) -> Result<arrow_schema::SchemaRef, Error> {
    Ok(Arc::new(iceberg::arrow::schema_to_arrow_schema(schema)?))
}
