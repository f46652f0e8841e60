//! Rows as messages of the managed gateway: encoded once for all who want the same.
//!
//! A native message is `{"id":…,"from":position,"rows":[[offset,time,row],…],"next":position}`; only the id differs
//! between clients, so what follows it is made once. The managed gateway bills each 32 KB begun, so rows fill a message
//! up to that, and a row that is larger has a message of its own up to what one may have. `from` is where the message
//! begins; a subscription with a filter has none, because rows that it did not want lie between its messages.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tidewheel_engine::{PartitionId, Record};

use super::{native::Position, rows::Kind};
use crate::{Filter, Run, limits, run::Frame};

/// Consecutive rows of one partition, on their way.
#[derive(Debug)]
pub(crate) struct Rows {
    partition: PartitionId,
    /// Where they begin. Rows that are not there before the first have been deleted.
    start: u64,
    /// The offset after the last.
    next: u64,
    records: Vec<Record>,
    run: Run,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    /// For a native client, without the beginning that carries its id; else whole.
    pub(crate) body: Bytes,
    /// The offset after the last row in it.
    pub(crate) next: u64,
}

/// The messages for those who want the same.
#[derive(Debug, PartialEq)]
pub(crate) struct Messages {
    /// In order.
    pub(crate) messages: Vec<Message>,
    /// Not everything can be said: there is a row that is too large, or rows are missing.
    pub(crate) broken: bool,
}

impl Rows {
    /// Rows from `start` up to `next`, of which `records` are still there.
    pub(crate) fn new(partition: PartitionId, start: u64, next: u64, records: Vec<Record>) -> Self {
        let run = Run::encode(&records);
        Self { partition, start, next, records, run }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The messages for a follower that wants what comes from `from` on.
    pub(crate) fn messages(&self, kind: Kind, from: u64, filter: Option<&Filter>) -> Messages {
        match kind {
            Kind::Native => self.native(from, filter),
            Kind::Streamcast => self.streamcast(from, filter),
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    fn first(&self) -> u64 {
        self.records.first().map_or(self.next, |r| r.offset)
    }

    fn wanted<'a>(
        &'a self,
        from: u64,
        filter: Option<&'a Filter>,
    ) -> impl Iterator<Item = (&'a Record, Frame<'a>)> {
        self.records
            .iter()
            .zip(self.run.frames())
            .filter(move |(record, _)| record.offset >= from)
            .filter(move |(_, frame)| filter.is_none_or(|filter| filter.matches(frame.row())))
    }

    /// One message for each row, as the streamcast protocol has it.
    fn streamcast(&self, from: u64, filter: Option<&Filter>) -> Messages {
        let mut broken = self.first() > from.max(self.start);
        let mut messages = Vec::new();
        for (record, frame) in self.wanted(from, filter) {
            let text = frame.text();
            broken |= text.len() > limits::MESSAGE_BYTES;
            if broken {
                break;
            }
            messages.push(Message { body: text, next: record.offset + 1 });
        }
        Messages { messages, broken }
    }

    /// As few messages as may be.
    fn native(&self, from: u64, filter: Option<&Filter>) -> Messages {
        let mut out = Native {
            partition: self.partition,
            filtered: filter.is_some(),
            at: from.max(self.start),
            rows: BytesMut::new(),
            next: from.max(self.start),
            messages: Vec::new(),
        };
        let first = self.first();
        if first > out.at {
            let missed = json!({"offset": out.at, "rows": first - out.at});
            out.alone("missed", &missed, first);
        }
        for (record, frame) in self.wanted(from, filter) {
            out.row(record, frame.row());
        }
        // The rows after the last that it wanted need no message: it asks for them again, and they are passed over again.
        if filter.is_none() {
            out.next = self.next;
        }
        out.flush();
        Messages { messages: out.messages, broken: false }
    }
}

struct Native {
    partition: PartitionId,
    filtered: bool,
    /// Where the message that is being filled begins.
    at: u64,
    rows: BytesMut,
    /// The offset after the last row in it.
    next: u64,
    messages: Vec<Message>,
}

/// Bytes that a message needs beside its rows: the id, two positions, and the words.
const AROUND_BYTES: usize = 256;
const _: () = assert!(AROUND_BYTES > limits::NATIVE_ID_BYTES + 2 * (36 + 1 + 20) + 48);

impl Native {
    fn row(&mut self, record: &Record, row: &str) {
        let head = format!("[{},{},", record.offset, record.time_us);
        let bytes = head.len() + row.len() + 2;
        if bytes + AROUND_BYTES > limits::MESSAGE_BYTES {
            self.flush();
            let too_large = json!({
                "offset": record.offset,
                "bytes": row.len(),
                "limit": limits::MESSAGE_BYTES - AROUND_BYTES,
            });
            self.alone("too_large", &too_large, record.offset + 1);
            return;
        }
        if self.rows.len() + bytes + AROUND_BYTES > limits::FRAME_BYTES {
            self.flush();
        }
        if !self.rows.is_empty() {
            self.rows.put_u8(b',');
        }
        self.rows.put_slice(head.as_bytes());
        self.rows.put_slice(row.as_bytes());
        self.rows.put_u8(b']');
        self.next = record.offset + 1;
    }

    fn flush(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let mut message = self.begin();
        message.put_slice(b"\"rows\":[");
        message.put_slice(&self.rows);
        message.put_u8(b']');
        self.rows.clear();
        self.end(message, self.next);
    }

    fn alone(&mut self, name: &str, value: &Value, next: u64) {
        let mut message = self.begin();
        message.put_slice(format!("\"{name}\":{value}").as_bytes());
        self.end(message, next);
    }

    fn begin(&self) -> BytesMut {
        let mut message = BytesMut::with_capacity(self.rows.len() + AROUND_BYTES);
        if !self.filtered {
            let from = Position { partition: self.partition, offset: self.at };
            message.put_slice(format!("\"from\":\"{from}\",").as_bytes());
        }
        message
    }

    fn end(&mut self, mut message: BytesMut, next: u64) {
        let position = Position { partition: self.partition, offset: next };
        message.put_slice(format!(",\"next\":\"{position}\"}}").as_bytes());
        self.messages.push(Message { body: message.freeze(), next });
        self.at = next;
        self.next = next;
    }
}

/// A native message whole: its id, and what follows.
pub(crate) fn with_id(id: &str, rest: &Bytes) -> Bytes {
    let mut message = BytesMut::with_capacity(id.len() + rest.len() + 8);
    message.put_slice(b"{\"id\":");
    message.put_slice(id.as_bytes());
    message.put_u8(b',');
    message.put_slice(rest);
    message.freeze()
}

#[cfg(test)]
mod tests {
    use tidewheel_engine::Uuid;

    use super::*;
    use crate::run::tests::record;

    fn partition() -> PartitionId {
        PartitionId(Uuid::from_bytes([5; 16]))
    }

    fn rows(start: u64, payloads: &[&str]) -> Rows {
        let records: Vec<Record> = (start..)
            .zip(payloads)
            .map(|(offset, payload)| record(offset, payload.as_bytes()))
            .collect();
        Rows::new(partition(), start, start + payloads.len() as u64, records)
    }

    fn native(rows: &Rows, from: u64, filter: Option<&str>) -> Vec<Value> {
        let filter = filter.map(|text| Filter::parse(text).unwrap());
        let out = rows.native(from, filter.as_ref());
        assert!(!out.broken);
        out.messages
            .iter()
            .map(|rest| {
                let message = with_id("\"a\"", &rest.body);
                assert!(message.len() <= limits::MESSAGE_BYTES, "{}", message.len());
                serde_json::from_slice(&message).unwrap()
            })
            .collect()
    }

    fn at(offset: u64) -> String {
        Position { partition: partition(), offset }.to_string()
    }

    #[test]
    fn many_rows_travel_in_one_message_with_their_position() {
        let rows = rows(4, &[r#"{"n":4}"#, "5"]);
        let time = |n: u64| 1_700_000_000_000_000u64 + n;
        assert_eq!(
            native(&rows, 0, None),
            [json!({"id": "a", "from": at(4), "rows": [[4, time(4), {"n": 4}], [5, time(5), 5]],
                "next": at(6)})]
        );
        assert_eq!(
            native(&rows, 5, None),
            [json!({"id": "a", "from": at(5), "rows": [[5, time(5), 5]], "next": at(6)})]
        );
        assert_eq!(native(&rows, 6, None), [] as [Value; 0]);
    }

    #[test]
    fn messages_are_filled_to_a_frame_and_no_further() {
        let row = format!("\"{}\"", "1".repeat(998));
        let many = rows(0, &[row.as_str(); 100]);
        let messages = many.native(0, None).messages;
        assert_eq!(messages.len(), 4);
        assert!(messages.iter().all(|m| with_id("\"a\"", &m.body).len() <= limits::FRAME_BYTES));
        let mut next = at(0);
        for message in native(&many, 0, None) {
            assert_eq!(message["from"], json!(next), "no hole between messages");
            next = message["next"].as_str().unwrap().to_owned();
        }
        assert_eq!(next, at(100));
    }

    #[test]
    fn a_row_that_is_larger_than_a_frame_goes_alone_and_one_larger_than_a_message_is_named() {
        let large = format!("\"{}\"", "x".repeat(limits::FRAME_BYTES));
        let huge = format!("\"{}\"", "x".repeat(limits::MESSAGE_BYTES));
        let found = native(&rows(0, &["0", &large, &huge, "3"]), 0, None);
        assert_eq!(found.len(), 4);
        assert_eq!(found[1]["rows"][0][0], 1);
        assert_eq!(found[2]["too_large"]["offset"], 2);
        assert_eq!(found[2]["too_large"]["bytes"], huge.len());
        assert_eq!(found[2]["next"], at(3));
        assert_eq!(found[3]["rows"][0][0], 3);
        let all = rows(0, &["0", &large, &huge, "3"]).streamcast(0, None);
        assert_eq!((all.messages.len(), all.broken), (2, true), "it cannot be told");
    }

    #[test]
    fn what_was_deleted_before_it_could_be_sent_is_named() {
        let records = vec![record(5, b"5")];
        let rows = Rows::new(partition(), 3, 6, records);
        let found = native(&rows, 3, None);
        assert_eq!(found[0]["missed"], json!({"offset": 3, "rows": 2}));
        assert_eq!((&found[0]["from"], &found[0]["next"]), (&json!(at(3)), &json!(at(5))));
        assert_eq!(found[1]["rows"][0][0], 5);
        assert!(rows.streamcast(3, None).broken);
        assert!(!rows.streamcast(5, None).broken, "it has nothing to miss");
        let gone = Rows::new(partition(), 3, 6, Vec::new());
        assert_eq!(native(&gone, 3, None)[0]["missed"], json!({"offset": 3, "rows": 3}));
    }

    #[test]
    fn a_filter_leaves_rows_out_and_says_no_more_than_it_can() {
        let rows = rows(0, &[r#"{"k":1}"#, r#"{"k":2}"#, r#"{"k":1}"#, r#"{"k":2}"#]);
        let found = native(&rows, 0, Some(r#"{"k":1}"#));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].get("from"), None);
        assert_eq!(found[0]["rows"].as_array().unwrap().len(), 2);
        assert_eq!(found[0]["next"], at(3));
        assert_eq!(native(&rows, 0, Some(r#"{"k":3}"#)), [] as [Value; 0]);
    }
}
