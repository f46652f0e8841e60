//! What a publisher sends: one message is one row or a list of rows that land together; under an id, with the first
//! row's sequence number before it.
//!
//! Everything that can be wrong with a message by itself is found here, before it waits for the store: no JSON, a number
//! that nobody can hold, half a surrogate, a shape that is none.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::limits;

/// A publisher's message, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The sequence number of the first row; 0 for a publisher without an id.
    pub seq: u64,
    /// JSON objects.
    pub rows: Vec<Bytes>,
}

impl Frame {
    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn parse(message: &Bytes, exactly_once: bool) -> Result<Self, String> {
        let text = std::str::from_utf8(message).map_err(|_| "the message is not UTF-8")?;
        serde_json::from_str::<Sound>(text).map_err(|e| format!("the message is not JSON: {e}"))?;
        if !exactly_once {
            return Ok(Self { seq: 0, rows: rows(message, text.trim())? });
        }
        const SHAPE: &str = "a message under an id is [seq, row] or [seq, [row, ...]]";
        let parts: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| SHAPE)?;
        let [seq, body] = parts.as_slice() else { return Err(SHAPE.to_owned()) };
        let digits = seq.get();
        let seq =
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None };
        let Some(seq) = seq.filter(|seq: &u64| (1..=i64::MAX as u64).contains(seq)) else {
            return Err("seq must be an integer from 1".to_owned());
        };
        Ok(Self { seq, rows: rows(message, body.get())? })
    }
}

/// One row, or the rows of a list, each a part of the message's own memory.
fn rows(message: &Bytes, text: &str) -> Result<Vec<Bytes>, String> {
    const SHAPE: &str = "a message is a row (an object) or a list of rows";
    let row = |text: &str| {
        text.starts_with('{').then(|| message.slice_ref(text.as_bytes())).ok_or(SHAPE.to_owned())
    };
    if !text.starts_with('[') {
        return Ok(vec![row(text)?]);
    }
    let list: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| SHAPE)?;
    if list.is_empty() {
        return Err("a list of rows may not be empty".to_owned());
    }
    if list.len() > limits::MESSAGE_ROWS {
        let limit = limits::MESSAGE_ROWS;
        return Err(format!("a message has at most {limit} rows, not {}", list.len()));
    }
    list.into_iter().map(|value| row(value.get())).collect()
}

/// JSON in which every text can be read and every number held.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look)
    }
}

struct Look;

impl<'de> Visitor<'de> for Look {
    type Value = Sound;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_str<E>(self, _: &str) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sound, A::Error> {
        while list.next_element::<Sound>()?.is_some() {}
        Ok(Sound)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sound, A::Error> {
        while map.next_entry::<Sound, Sound>()?.is_some() {}
        Ok(Sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, exactly_once: bool) -> Result<(u64, Vec<String>), String> {
        let frame = Frame::parse(&Bytes::copy_from_slice(text.as_bytes()), exactly_once)?;
        let rows = frame.rows.iter().map(|row| String::from_utf8(row.to_vec()).unwrap());
        Ok((frame.seq, rows.collect()))
    }

    #[test]
    fn a_message_is_one_row_or_several() {
        let row = |text: &str| text.to_owned();
        assert_eq!(parse(r#" {"a": 1} "#, false), Ok((0, vec![row(r#"{"a": 1}"#)])));
        assert_eq!(parse(r#"[{"a":1}]"#, false), Ok((0, vec![row(r#"{"a":1}"#)])));
        assert_eq!(
            parse(r#"[{"a":[1,{}]} , {"b":"\u00e9"}]"#, false),
            Ok((0, vec![row(r#"{"a":[1,{}]}"#), row(r#"{"b":"\u00e9"}"#)]))
        );
        assert_eq!(parse(r#"[7,{"a":1}]"#, true), Ok((7, vec![row(r#"{"a":1}"#)])));
        assert_eq!(parse(r#"[1, [{},{}]]"#, true), Ok((1, vec![row("{}"), row("{}")])));
        // Twice the same key is one of them; a number that a double rounds is a number.
        assert!(parse(r#"{"a":1,"a":18446744073709551616}"#, false).is_ok());
    }

    #[test]
    fn what_is_no_message_is_refused_in_words() {
        for (text, word) in [
            ("", "JSON"),
            ("not json", "JSON"),
            (r#"{"a":NaN}"#, "JSON"),
            (r#"{"a":Infinity}"#, "JSON"),
            (r#"{"a":1e400}"#, "JSON"),
            (r#"{"a":-1e400}"#, "JSON"),
            (r#"{"a":"\ud800"}"#, "JSON"),
            (r#"{"\udc00":1}"#, "JSON"),
            (r#"{"a":1}{"#, "JSON"),
            ("{\"a\":\"\u{1}\"}", "JSON"),
            ("3", "object"),
            ("null", "object"),
            ("\"x\"", "object"),
            ("[]", "empty"),
            ("[1]", "object"),
            (r#"[{"a":1},2]"#, "object"),
            ("[[{}]]", "object"),
        ] {
            let why = parse(text, false).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
        assert!(parse(&deep, false).is_err());
        let many = format!("[{{}}{}]", ",{}".repeat(limits::MESSAGE_ROWS));
        assert!(parse(&many, false).unwrap_err().contains("50000"), "the limit is named");
        assert!(Frame::parse(&Bytes::from_static(b"{\"a\":\"\xff\"}"), false).is_err());
        for (text, word) in [
            (r#"{"a":1}"#, "[seq, row]"),
            (r#"[{"a":1},{"a":1}]"#, "integer from 1"),
            (r#"[1]"#, "[seq, row]"),
            (r#"[1,{},{}]"#, "[seq, row]"),
            (r#"[0,{}]"#, "integer from 1"),
            (r#"[-1,{}]"#, "integer from 1"),
            (r#"[1.0,{}]"#, "integer from 1"),
            (r#"[true,{}]"#, "integer from 1"),
            (r#"["1",{}]"#, "integer from 1"),
            (r#"[99999999999999999999,{}]"#, "integer from 1"),
            (r#"[3,[]]"#, "empty"),
            (r#"[3,4]"#, "object"),
            (r#"[3,[4]]"#, "object"),
        ] {
            let why = parse(text, true).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
