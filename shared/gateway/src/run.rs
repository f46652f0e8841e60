//! Frames: `[offset, time, row]`, encoded once and shared.
//!
//! A row is the payload's bytes as they came, so a live frame and a replayed one are the same bytes, and so are the
//! frames of all subscribers. A payload that is no JSON text (another protocol may have stored one) is served as
//! a JSON string: one odd record never ends a subscription.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::IgnoredAny;
use tidewheel_engine::Record;

/// Consecutive records of one partition as frames.
#[derive(Debug)]
pub struct Run {
    start: u64,
    frames: Vec<Frame>,
    bytes: usize,
}

/// One encoded record.
#[derive(Debug)]
pub(crate) struct Frame {
    /// `[offset, time, row]`, UTF-8.
    pub(crate) text: Bytes,
    /// Where the row begins in it.
    row: usize,
}

impl Frame {
    /// The row's JSON text.
    pub(crate) fn row(&self) -> &str {
        let end = self.text.len().saturating_sub(1);
        self.text.get(self.row..end).and_then(|row| std::str::from_utf8(row).ok()).unwrap_or("null")
    }
}

impl Run {
    /// Encodes records, whose offsets follow one another.
    pub fn encode(records: &[Record]) -> Self {
        let room = records.iter().map(|r| r.payload.len() + 48).sum();
        let mut out = BytesMut::with_capacity(room);
        let mut cuts = Vec::with_capacity(records.len());
        for record in records {
            let begin = out.len();
            // Writing to memory does not fail.
            let _ = write!((&mut out).writer(), "[{},{},", record.offset + 1, record.time_us);
            let row = out.len() - begin;
            match json_text(&record.payload) {
                Some(text) => out.put_slice(text.as_bytes()),
                None => {
                    let text = String::from_utf8_lossy(&record.payload);
                    let _ = serde_json::to_writer((&mut out).writer(), &text);
                }
            }
            out.put_u8(b']');
            cuts.push((out.len() - begin, row));
        }
        let mut all = out.freeze();
        let bytes = all.len();
        let frames = cuts.into_iter().map(|(len, row)| Frame { text: all.split_to(len), row });
        Self { start: records.first().map_or(0, |r| r.offset), frames: frames.collect(), bytes }
    }

    /// The engine's offset of the first record.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The engine's offset after the last record.
    pub fn next(&self) -> u64 {
        self.start + self.frames.len() as u64
    }

    /// Bytes that it keeps in memory, about.
    pub fn weight(&self) -> u64 {
        (self.bytes + self.frames.len() * size_of::<Frame>() + size_of::<Self>()) as u64
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }
}

fn json_text(payload: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(payload).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use tidewheel_engine::Uuid;

    use super::*;

    pub(crate) fn record(offset: u64, payload: &[u8]) -> Record {
        Record {
            offset,
            time_us: 1_700_000_000_000_000 + offset as i64,
            id: Uuid::from_bytes([0; 16]),
            transaction_id: String::new(),
            key: None,
            headers: None,
            payload: Bytes::copy_from_slice(payload),
        }
    }

    #[test]
    fn a_payload_comes_out_byte_for_byte() {
        let row = "{\"z\":1.0,\"a\":12345678901234567890123, \"s\":\"\u{2028}\u{e9}/\\u0041\",\"a\":1e400}";
        let run = Run::encode(&[record(41, row.as_bytes()), record(42, b"7")]);
        let text = |at: usize| std::str::from_utf8(&run.frames()[at].text).unwrap().to_owned();
        assert_eq!(text(0), format!("[42,1700000000000041,{row}]"));
        assert_eq!(text(1), "[43,1700000000000042,7]");
        assert_eq!(run.frames()[0].row(), row);
        assert_eq!((run.start(), run.next()), (41, 43));
    }

    #[test]
    fn deep_payloads_are_served_and_odd_ones_become_texts() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let run = Run::encode(&[
            record(0, deep.as_bytes()),
            record(1, b"not \"json"),
            record(2, b""),
            record(3, b"\xff\x00"),
        ]);
        let rows: Vec<&str> = run.frames().iter().map(Frame::row).collect();
        assert_eq!(rows[0], deep);
        assert_eq!(rows[1], r#""not \"json""#);
        assert_eq!(rows[2], r#""""#);
        assert_eq!(rows[3], "\"\u{fffd}\\u0000\"");
    }
}
