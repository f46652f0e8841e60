//! Frames: `[offset, time, row]`, encoded once and shared.
//!
//! A row is the payload's bytes as they came, so a live frame and a replayed one are the same bytes, and so are the
//! frames of all subscribers. A payload that is no JSON text (another protocol may have stored one) is served as
//! a JSON string: one odd record never ends a subscription.
//!
//! The frames of a run lie one after the other in one buffer, each as a whole WebSocket message: a server masks nothing,
//! so the bytes are the same on every socket, and a run of any number of rows goes to a socket as one piece of
//! memory that nobody copies.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::IgnoredAny;
use tidewheel_engine::Record;

use crate::message;

/// Consecutive rows of one partition as frames.
#[derive(Debug)]
pub struct Run {
    start: u64,
    wire: Bytes,
    cuts: Vec<Cut>,
}

/// Where in the buffer a frame is.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Where the message's header begins.
    begin: usize,
    /// Where its text begins.
    text: usize,
    /// Where the row begins.
    row: usize,
    end: usize,
}

/// One encoded row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    run: &'a Run,
    cut: Cut,
}

impl Frame<'_> {
    /// `[offset, time, row]`, UTF-8.
    pub(crate) fn text(&self) -> Bytes {
        self.run.wire.slice(self.cut.text..self.cut.end)
    }

    /// The row's JSON text.
    pub(crate) fn row(&self) -> &str {
        let row = self.run.wire.get(self.cut.row..self.cut.end.saturating_sub(1));
        row.and_then(|row| std::str::from_utf8(row).ok()).unwrap_or("null")
    }
}

/// Frames of a run that somebody wants.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    run: &'a Run,
    /// Places in the run, in order, neighbours joined.
    wanted: Vec<Range<usize>>,
}

impl Frames<'_> {
    /// The frames as WebSocket messages, as few pieces as may be.
    pub fn wire(&self) -> impl Iterator<Item = Bytes> {
        self.wanted.iter().filter_map(|places| {
            let first = self.run.cuts.get(places.start)?;
            let last = self.run.cuts.get(places.end.checked_sub(1)?)?;
            Some(self.run.wire.slice(first.begin..last.end))
        })
    }

    /// The frames' texts, one by one.
    pub fn texts(&self) -> impl Iterator<Item = Bytes> {
        let cuts = self.wanted.iter().filter_map(|places| self.run.cuts.get(places.clone()));
        cuts.flatten().map(|cut| self.run.wire.slice(cut.text..cut.end))
    }
}

impl Run {
    /// Encodes records, whose offsets follow one another.
    pub fn encode(records: &[Record]) -> Self {
        let start = records.first().map_or(0, |r| r.offset);
        let rows = records.iter().map(|r| (Some(r.offset), r.time_us, &r.payload));
        Self::of(start, rows)
    }

    /// Encodes rows of a stream without a log: they have no offsets. `start` is their place among all that passed.
    pub(crate) fn unnumbered(start: u64, time_us: i64, rows: &[Bytes]) -> Self {
        Self::of(start, rows.iter().map(|row| (None, time_us, row)))
    }

    fn of<'a>(
        start: u64,
        rows: impl Iterator<Item = (Option<u64>, i64, &'a Bytes)> + Clone,
    ) -> Self {
        let room = rows.clone().map(|(_, _, payload)| payload.len() + FRAME_ROOM).sum();
        let mut wire = BytesMut::with_capacity(room);
        let mut cuts = Vec::with_capacity(rows.size_hint().0);
        let mut prefix = String::with_capacity(FRAME_ROOM);
        for (offset, time_us, payload) in rows {
            use std::fmt::Write as _;
            prefix.clear();
            // Writing to a text does not fail.
            let _ = match offset {
                Some(offset) => write!(prefix, "[{},{time_us},", offset + 1),
                None => write!(prefix, "[null,{time_us},"),
            };
            let odd;
            let row = match json_text(payload) {
                Some(text) => text,
                None => {
                    let text = String::from_utf8_lossy(payload);
                    odd = serde_json::to_string(&text).unwrap_or_else(|_| "null".to_owned());
                    &odd
                }
            };
            let begin = wire.len();
            message::header(prefix.len() + row.len() + 1, &mut wire);
            let text = wire.len();
            wire.put_slice(prefix.as_bytes());
            let at = wire.len();
            wire.put_slice(row.as_bytes());
            wire.put_u8(b']');
            cuts.push(Cut { begin, text, row: at, end: wire.len() });
        }
        Self { start, wire: wire.freeze(), cuts }
    }

    /// The engine's offset of the first row.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The engine's offset after the last row.
    pub fn next(&self) -> u64 {
        self.start + self.cuts.len() as u64
    }

    /// Bytes that it keeps in memory, about.
    pub fn weight(&self) -> u64 {
        (self.wire.len() + self.cuts.len() * size_of::<Cut>() + size_of::<Self>()) as u64
    }

    /// True if it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        self.cuts.iter().map(|&cut| Frame { run: self, cut })
    }

    /// The frames from a place on whose rows are wanted.
    pub(crate) fn select(&self, skip: usize, wanted: impl Fn(&str) -> bool) -> Frames<'_> {
        let mut places: Vec<Range<usize>> = Vec::new();
        for (place, frame) in self.frames().enumerate().skip(skip) {
            if !wanted(frame.row()) {
                continue;
            }
            match places.last_mut() {
                Some(last) if last.end == place => last.end = place + 1,
                _ => places.push(place..place + 1),
            }
        }
        Frames { run: self, wanted: places }
    }

    /// All frames from a place on.
    pub(crate) fn rest(&self, skip: usize) -> Frames<'_> {
        let skip = skip.min(self.cuts.len());
        let all = skip..self.cuts.len();
        Frames { run: self, wanted: if all.is_empty() { Vec::new() } else { vec![all] } }
    }
}

/// Bytes of a frame beside the row, about.
const FRAME_ROOM: usize = 64;

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

    fn text(frame: Frame<'_>) -> String {
        String::from_utf8(frame.text().to_vec()).unwrap()
    }

    #[test]
    fn a_payload_comes_out_byte_for_byte() {
        let row = "{\"z\":1.0,\"a\":12345678901234567890123, \"s\":\"\u{2028}\u{e9}/\\u0041\",\"a\":1e400}";
        let run = Run::encode(&[record(41, row.as_bytes()), record(42, b"7")]);
        let texts: Vec<String> = run.frames().map(text).collect();
        assert_eq!(texts[0], format!("[42,1700000000000041,{row}]"));
        assert_eq!(texts[1], "[43,1700000000000042,7]");
        assert_eq!(run.frames().next().unwrap().row(), row);
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
        let rows: Vec<String> = run.frames().map(|frame| frame.row().to_owned()).collect();
        assert_eq!(rows[0], deep);
        assert_eq!(rows[1], r#""not \"json""#);
        assert_eq!(rows[2], r#""""#);
        assert_eq!(rows[3], "\"\u{fffd}\\u0000\"");
    }

    #[test]
    fn a_run_is_messages_one_after_the_other() {
        let long = format!("\"{}\"", "x".repeat(200));
        let run = Run::encode(&[record(0, b"1"), record(1, long.as_bytes()), record(2, b"3")]);
        let whole: Vec<Bytes> = run.rest(0).wire().collect();
        assert_eq!(whole.len(), 1, "one piece of memory");
        let texts: Vec<Bytes> = run.rest(0).texts().collect();
        let mut expected = BytesMut::new();
        for text in &texts {
            message::header(text.len(), &mut expected);
            expected.put_slice(text);
        }
        assert_eq!(whole[0], expected);
        assert!(whole[0].starts_with(&[0x81, 22]) && whole[0][24..].starts_with(&[0x81, 126, 0]));
        // Neighbours that are wanted stay one piece.
        let odd = run.select(0, |row| row != long);
        assert_eq!(odd.wire().count(), 2);
        assert_eq!(odd.texts().collect::<Vec<_>>(), [texts[0].clone(), texts[2].clone()]);
        assert_eq!(run.select(1, |_| true).wire().count(), 1);
        assert_eq!(run.rest(3).wire().count(), 0);
    }
}
