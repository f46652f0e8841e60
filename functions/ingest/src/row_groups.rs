//! Parquet: each row becomes an object of its columns. One row group is in memory at a time.
//!
//! Times and decimals come out as the `parquet` crate writes them in JSON: times as text, decimals as text with all their
//! digits.

use std::{io::Read, sync::Mutex};

use bytes::{Buf, Bytes};
use parquet::{
    errors::{ParquetError, Result as ParquetResult},
    file::{
        metadata::RowGroupMetaData,
        reader::{ChunkReader, FileReader, Length, SerializedFileReader},
    },
};

use crate::{
    bucket::BucketError,
    object::{CHUNK_BYTES, CHUNK_ROWS, Chunk, Chunks, ObjectError, Parts, Row, Stop},
    source::Position,
};

/// Bytes of one row group: it is read whole, because its columns lie one behind the other.
const GROUP_BYTES: u64 = 512 * 1024 * 1024;

/// Bytes of the object's end that are read at first. The description of the columns is there.
const TAIL_BYTES: u64 = 256 * 1024;

/// The object for the `parquet` crate: what it asks for comes from the part that was read before, or is read now.
struct File {
    parts: Parts,
    part: Mutex<(u64, Bytes)>,
    failed: Mutex<Option<BucketError>>,
}

impl File {
    fn open(parts: Parts) -> Result<Self, BucketError> {
        let from = parts.size().saturating_sub(TAIL_BYTES);
        let tail = parts.get(from, TAIL_BYTES)?;
        Ok(Self { parts, part: Mutex::new((from, tail)), failed: Mutex::new(None) })
    }

    /// Reads a part that the next requests are for.
    fn load(&self, from: u64, bytes: u64) -> Result<(), BucketError> {
        // The one before goes first, so that two are never in memory.
        self.replace((0, Bytes::new()));
        let part = self.parts.get(from, bytes)?;
        self.replace((from, part));
        Ok(())
    }

    fn replace(&self, part: (u64, Bytes)) {
        // A thread that panicked while it held this lock has ended the object: nobody comes here then.
        if let Ok(mut held) = self.part.lock() {
            *held = part;
        }
    }

    fn slice(&self, from: u64, bytes: u64) -> Option<Bytes> {
        let held = self.part.lock().ok()?;
        let (start, part) = &*held;
        let begin = usize::try_from(from.checked_sub(*start)?).ok()?;
        let end = begin.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= part.len()).then(|| part.slice(begin..end))
    }

    fn fetch(&self, from: u64, bytes: u64) -> ParquetResult<Bytes> {
        if let Some(part) = self.slice(from, bytes) {
            return Ok(part);
        }
        self.parts.get(from, bytes).map_err(|failed| {
            if let Ok(mut held) = self.failed.lock() {
                *held = Some(failed.clone());
            }
            ParquetError::External(Box::new(failed))
        })
    }
}

/// The reader shares the file with whoever loads its parts.
struct Shared(std::sync::Arc<File>);

impl Length for Shared {
    fn len(&self) -> u64 {
        self.0.parts.size()
    }
}

impl ChunkReader for Shared {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        // The length that will be read is not said; what is in memory behind it is enough for the headers of pages.
        let rest = self.0.part.lock().ok().and_then(|held| {
            let at = usize::try_from(start.checked_sub(held.0)?).ok()?;
            (at < held.1.len()).then(|| held.1.slice(at..))
        });
        match rest {
            Some(rest) => Ok(rest.reader()),
            None => Ok(self.0.fetch(start, TAIL_BYTES)?.reader()),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut read = self.0.fetch(start, length as u64)?.reader();
        let mut bytes = Vec::with_capacity(length);
        read.read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!(
                "the object ends before byte {}",
                start + length as u64
            )));
        }
        Ok(bytes.into())
    }
}

/// Where a row group begins, and its bytes.
fn extent(group: &RowGroupMetaData) -> (u64, u64) {
    let ranges = group.columns().iter().map(|column| column.byte_range());
    let (from, to) = ranges.fold((u64::MAX, 0), |(from, to), (start, length)| {
        (from.min(start), to.max(start.saturating_add(length)))
    });
    (from, to.saturating_sub(from))
}

/// Reads rows from a position on.
pub(crate) fn read(parts: Parts, mut position: Position, chunks: &Chunks) -> Result<(), Stop> {
    let file = std::sync::Arc::new(File::open(parts).map_err(ObjectError::from)?);
    let failed = |what: &str, e: ParquetError| {
        let unreachable = file.failed.lock().ok().and_then(|failed| failed.clone());
        match unreachable {
            Some(failed) => ObjectError::Bucket(failed),
            None => ObjectError::Unreadable(format!("{what}: {e}")),
        }
    };
    let reader = SerializedFileReader::new(Shared(std::sync::Arc::clone(&file)))
        .map_err(|e| failed("the object is no Parquet file", e))?;
    let groups = reader.metadata().row_groups();
    let first = usize::try_from(position.at).unwrap_or(usize::MAX);
    let rows_of = |group: &RowGroupMetaData| u64::try_from(group.num_rows()).unwrap_or(0);
    let mut begins = groups.iter().take(first).map(rows_of).sum::<u64>();
    for (number, group) in groups.iter().enumerate().skip(first) {
        let (from, length) = extent(group);
        if length > GROUP_BYTES {
            let why = format!("row group {number} has {length} bytes; the limit is {GROUP_BYTES}");
            return Err(ObjectError::Unreadable(why).into());
        }
        file.load(from, length).map_err(ObjectError::from)?;
        let what = format!("row group {number}");
        let group_reader = reader.get_row_group(number).map_err(|e| failed(&what, e))?;
        let found = group_reader.get_row_iter(None).map_err(|e| failed(&what, e))?;
        let skipped = usize::try_from(position.row - begins).unwrap_or(usize::MAX);
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for row in found.skip(skipped) {
            let row = row.map_err(|e| failed(&what, e))?.to_json_value().to_string();
            bytes += row.len();
            rows.push(Row::Good(row.into()));
            position.row += 1;
            if rows.len() >= CHUNK_ROWS || bytes >= CHUNK_BYTES {
                chunks.send(Chunk { rows: std::mem::take(&mut rows), after: position.clone() })?;
                bytes = 0;
            }
        }
        begins += rows_of(group);
        position.at = number as u64 + 1;
        if !rows.is_empty() {
            chunks.send(Chunk { rows, after: position.clone() })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::{
        basic::Compression,
        data_type::{ByteArray, ByteArrayType, Int64Type},
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };

    use super::*;
    use crate::object::tests::{all, good};

    /// A file of groups with these many rows.
    fn file(groups: &[i64], compression: Compression) -> Bytes {
        let schema = "message m { REQUIRED INT64 n; OPTIONAL BYTE_ARRAY t (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut out = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut out, schema, properties).unwrap();
        let mut next = 0;
        for rows in groups {
            let numbers: Vec<i64> = (next..next + rows).collect();
            next += rows;
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
            column.close().unwrap();
            // Every odd row has no text.
            let texts: Vec<ByteArray> = numbers
                .iter()
                .filter(|n| *n % 2 == 0)
                .map(|n| ByteArray::from(format!("row {n}").into_bytes()))
                .collect();
            let levels: Vec<i16> = numbers.iter().map(|n| i16::from(n % 2 == 0)).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
        out.into()
    }

    #[tokio::test]
    async fn rows_of_all_groups_come_out_in_order() {
        for compression in [Compression::SNAPPY, Compression::UNCOMPRESSED, Compression::LZ4_RAW] {
            let (rows, error) = all("a.parquet", "", file(&[3, 2500, 1], compression)).await;
            assert_eq!(error, None);
            assert_eq!(rows.len(), 2504);
            assert_eq!(rows[0], good(r#"{"n":0,"t":"row 0"}"#));
            assert_eq!(rows[2503], good(r#"{"n":2503,"t":null}"#));
        }
    }

    #[tokio::test]
    async fn a_file_larger_than_its_tail_is_read_by_its_groups() {
        let bytes = file(&[60_000], Compression::UNCOMPRESSED);
        assert!(bytes.len() as u64 > 2 * TAIL_BYTES);
        let route = crate::routes::Routes::default().of("any", "landing");
        let object = crate::object::tests::object("a.parquet");
        let bucket = Arc::new(crate::object::tests::One::new(bytes));
        let mut chunks = crate::object::rows(bucket, object, &route).await.unwrap();
        let mut count = 0;
        while let Some(chunk) = chunks.recv().await {
            count += chunk.unwrap().rows.len();
        }
        assert_eq!(count, 60_000);
    }

    #[tokio::test]
    async fn what_is_no_parquet_is_said_so() {
        for bytes in [Bytes::new(), Bytes::from_static(b"a,b\n1,2\n"), Bytes::from(vec![7u8; 4096])]
        {
            let (rows, error) = all("a.parquet", "", bytes).await;
            assert!(rows.is_empty());
            assert!(matches!(&error, Some(ObjectError::Unreadable(_))), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_cut_short_ends_with_an_error_and_no_panic() {
        let whole = file(&[50], Compression::SNAPPY);
        let mut damaged = whole.to_vec();
        damaged[20..60].fill(0xff);
        let (_, error) = all("a.parquet", "", damaged).await;
        assert!(error.is_some());
        let (_, error) = all("a.parquet", "", whole.slice(..whole.len() - 5)).await;
        assert!(error.is_some());
    }
}
