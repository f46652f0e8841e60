//! An object as rows, a piece at a time.
//!
//! The parsers are synchronous, so each runs on a thread of its own, asks for parts of the object as it comes to them,
//! and hands over chunks of rows; it waits while two are not taken. Memory is bounded by the parts and the chunks,
//! whatever the object's size.

use std::{
    io::{self, Read},
    sync::Arc,
};

use bytes::{Buf, Bytes};
use tokio::{runtime::Handle, sync::mpsc};

use crate::{
    bucket::{Bucket, BucketError},
    csv_rows, lines,
    routes::{Format, Route},
    source::{Object, Position},
};

/// Rows of one chunk.
pub(crate) const CHUNK_ROWS: usize = 1000;

/// Bytes of one chunk, roughly.
pub(crate) const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of one line or one record of CSV.
pub(crate) const RECORD_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of an object that are asked for at a time.
const PART_BYTES: u64 = 8 * 1024 * 1024;

/// Chunks that wait to be taken.
const CHUNKS: usize = 1;

/// One row of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Row {
    /// As JSON.
    Good(Bytes),
    /// Not what it should be.
    Bad { why: String, content: Bytes },
}

/// Some rows, and where those after them begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chunk {
    pub(crate) rows: Vec<Row>,
    pub(crate) after: Position,
}

/// Why an object's rows end before the object does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObjectError {
    /// It could not be read.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// It is not what it should be, from here on.
    #[error("{0}")]
    Unreadable(String),
}

/// What an object holds, by what its route says or its name ends in.
pub(crate) fn format(route: &Route, key: &str) -> Result<Format, ObjectError> {
    if let Some(format) = route.format {
        return Ok(format);
    }
    let name = key.to_ascii_lowercase();
    match name.rsplit('.').next().unwrap_or_default() {
        "jsonl" | "ndjson" | "json" => Ok(Format::Lines),
        "csv" | "tsv" => Ok(Format::Csv),
        "parquet" => Ok(Format::Parquet),
        _ => Err(ObjectError::Unreadable(
            "the object's name ends in none of .jsonl, .ndjson, .json, .csv, .tsv, .parquet, and its route names no \
             format"
                .to_owned(),
        )),
    }
}

/// What a parser hands its chunks to.
pub(crate) struct Chunks(mpsc::Sender<Result<Chunk, ObjectError>>);

/// Nobody takes chunks any more.
pub(crate) struct NotWanted;

impl Chunks {
    pub(crate) fn send(&self, chunk: Chunk) -> Result<(), NotWanted> {
        self.0.blocking_send(Ok(chunk)).map_err(|_| NotWanted)
    }

    fn fail(&self, error: ObjectError) {
        // Nobody listens if the rest is not wanted, and then the failure is not either.
        let _ = self.0.blocking_send(Err(error));
    }
}

/// How a parser ends early.
pub(crate) enum Stop {
    /// The rest is not wanted.
    NotWanted,
    /// The rest is not readable.
    Error(ObjectError),
}

impl From<NotWanted> for Stop {
    fn from(_: NotWanted) -> Self {
        Stop::NotWanted
    }
}

impl From<ObjectError> for Stop {
    fn from(error: ObjectError) -> Self {
        Stop::Error(error)
    }
}

/// Reads an object from its position on.
pub(crate) async fn rows(
    bucket: Arc<dyn Bucket>,
    object: Object,
    route: &Route,
) -> Result<mpsc::Receiver<Result<Chunk, ObjectError>>, ObjectError> {
    let format = format(route, &object.key)?;
    let size = bucket.size(&object).await?;
    let (sender, receiver) = mpsc::channel(CHUNKS);
    let position = object.position.clone();
    let route = route.clone();
    let parts = Parts { handle: Handle::current(), bucket, object, size };
    tokio::task::spawn_blocking(move || {
        let chunks = Chunks(sender);
        let read = std::panic::AssertUnwindSafe(|| match format {
            Format::Lines => lines::read(parts, position, &chunks),
            Format::Csv => csv_rows::read(parts, position, &route, &chunks),
            #[cfg(feature = "parquet")]
            Format::Parquet => crate::row_groups::read(parts, position, &chunks),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => {
                Err(ObjectError::Unreadable("this build reads no Parquet".to_owned()).into())
            }
        });
        // A parser that meets what its author did not think of may panic: that is the object's fault, not the process's end.
        match std::panic::catch_unwind(read) {
            Ok(Ok(()) | Err(Stop::NotWanted)) => {}
            Ok(Err(Stop::Error(error))) => chunks.fail(error),
            Err(_) => chunks.fail(ObjectError::Unreadable(
                "the object is damaged: its parser gave up".to_owned(),
            )),
        }
    });
    Ok(receiver)
}

/// An object's bytes for a parser on its own thread.
pub(crate) struct Parts {
    handle: Handle,
    bucket: Arc<dyn Bucket>,
    object: Object,
    size: u64,
}

impl Parts {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn key(&self) -> &str {
        &self.object.key
    }

    /// A part, shorter at the object's end.
    pub(crate) fn get(&self, from: u64, bytes: u64) -> Result<Bytes, BucketError> {
        let bytes = bytes.min(self.size.saturating_sub(from));
        self.handle.block_on(self.bucket.read(&self.object, from, bytes))
    }
}

/// An object read from a byte to its end.
pub(crate) struct Text {
    parts: Parts,
    next: u64,
    part: Bytes,
    /// Bytes that may still be read for the present record.
    left: usize,
    failed: Option<BucketError>,
}

impl Text {
    pub(crate) fn new(parts: Parts, from: u64) -> Self {
        Self { parts, next: from, part: Bytes::new(), left: usize::MAX, failed: None }
    }

    /// Bounds what is read until this is called again: a parser that looks for the end of a record reads no further.
    pub(crate) fn bound(&mut self, bytes: usize) {
        self.left = bytes.saturating_add(PART_BYTES as usize);
    }

    /// What a failure of a read was.
    pub(crate) fn error(&self, otherwise: impl FnOnce() -> String) -> ObjectError {
        match &self.failed {
            Some(failed) => ObjectError::Bucket(failed.clone()),
            None => ObjectError::Unreadable(otherwise()),
        }
    }
}

impl Read for Text {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.part.is_empty() && self.next < self.parts.size() {
            self.part = self.parts.get(self.next, PART_BYTES).map_err(|failed| {
                self.failed = Some(failed.clone());
                io::Error::other(failed)
            })?;
            self.next += self.part.len() as u64;
        }
        let bytes = self.part.len().min(into.len());
        if bytes > self.left {
            return Err(io::Error::other(format!("a record is longer than {RECORD_BYTES} bytes")));
        }
        self.left -= bytes;
        self.part.copy_to_slice(&mut into[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use async_trait::async_trait;

    use super::*;

    /// A bucket that holds one object, and fails from a read on.
    pub(crate) struct One {
        pub(crate) bytes: Bytes,
        pub(crate) fail_from: usize,
        reads: AtomicUsize,
    }

    impl One {
        pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
            Self { bytes: bytes.into(), fail_from: usize::MAX, reads: AtomicUsize::new(0) }
        }
    }

    #[async_trait]
    impl Bucket for One {
        async fn size(&self, _: &Object) -> Result<u64, BucketError> {
            Ok(self.bytes.len() as u64)
        }

        async fn read(&self, _: &Object, from: u64, bytes: u64) -> Result<Bytes, BucketError> {
            if self.reads.fetch_add(1, Relaxed) >= self.fail_from {
                return Err(BucketError::Unavailable("busy".to_owned()));
            }
            Ok(self.bytes.slice(from as usize..(from + bytes) as usize))
        }
    }

    pub(crate) fn object(key: &str) -> Object {
        Object {
            bucket: "landing".to_owned(),
            key: key.to_owned(),
            etag: "tag".to_owned(),
            version: None,
            position: Position::default(),
        }
    }

    /// All rows of an object, read again from each position in between to see that nothing depends on where one begins.
    pub(crate) async fn all(
        key: &str,
        rules: &str,
        bytes: impl Into<Bytes>,
    ) -> (Vec<Row>, Option<ObjectError>) {
        let bytes = bytes.into();
        let route = crate::routes::Routes::parse(rules).unwrap().of("any", "landing");
        let from = |position: Position| {
            let (bytes, route) = (bytes.clone(), route.clone());
            async move {
                let object = Object { position, ..object(key) };
                let mut chunks = rows(Arc::new(One::new(bytes)), object, &route).await?;
                let (mut found, mut cuts) = (Vec::new(), Vec::new());
                while let Some(chunk) = chunks.recv().await {
                    match chunk {
                        Ok(chunk) => {
                            found.extend(chunk.rows);
                            cuts.push((found.len(), chunk.after));
                        }
                        Err(error) => return Ok((found, cuts, Some(error))),
                    }
                }
                Ok::<_, ObjectError>((found, cuts, None))
            }
        };
        let (found, cuts, error) = match from(Position::default()).await {
            Ok(read) => read,
            Err(error) => return (Vec::new(), Some(error)),
        };
        for (at, position) in cuts {
            assert_eq!(position.row, at as u64);
            let (rest, ..) = from(position).await.unwrap();
            assert_eq!(rest, found[at..]);
        }
        (found, error)
    }

    pub(crate) fn good(text: &str) -> Row {
        Row::Good(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[tokio::test]
    async fn an_object_of_no_known_format_is_named_so() {
        let (rows, error) = all("picture.png", "", "x").await;
        assert!(rows.is_empty());
        assert!(matches!(error, Some(ObjectError::Unreadable(why)) if why.contains(".parquet")));
    }
}
