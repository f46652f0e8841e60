//! Building of answers: JSON is written straight into a byte buffer, and payloads are copied into it as they are.
//!
//! The writer puts the commas; its caller puts keys and values in the right order. It never parses what it is given
//! as raw JSON, so only bytes that were checked on their way in may be given to it.

use std::{fmt::Display, io::Write};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};

use crate::time;

pub(crate) const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A JSON text in the making.
pub(crate) struct Json {
    out: Vec<u8>,
    /// The next key or element is not the first of its kind.
    comma: bool,
}

impl Json {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { out: Vec::with_capacity(bytes), comma: false }
    }

    /// Answers with this text.
    pub(crate) fn into_response(self, status: StatusCode) -> Response {
        let mut response = Response::new(Body::from(self.out));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, APPLICATION_JSON);
        response
    }

    /// The text so far.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    fn begin(&mut self) {
        if self.comma {
            self.out.push(b',');
        }
        self.comma = true;
    }

    pub(crate) fn object(&mut self) -> &mut Self {
        self.begin();
        self.out.push(b'{');
        self.comma = false;
        self
    }

    pub(crate) fn end_object(&mut self) -> &mut Self {
        self.out.push(b'}');
        self.comma = true;
        self
    }

    pub(crate) fn array(&mut self) -> &mut Self {
        self.begin();
        self.out.push(b'[');
        self.comma = false;
        self
    }

    pub(crate) fn end_array(&mut self) -> &mut Self {
        self.out.push(b']');
        self.comma = true;
        self
    }

    /// A key; its value must follow.
    pub(crate) fn key(&mut self, key: &str) -> &mut Self {
        self.string(key);
        self.out.push(b':');
        self.comma = false;
        self
    }

    pub(crate) fn string(&mut self, text: &str) -> &mut Self {
        self.begin();
        write_string(&mut self.out, text);
        self
    }

    /// A string, or null.
    pub(crate) fn string_or_null(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.string(text),
            None => self.raw(b"null"),
        }
    }

    /// A string whose text needs no escapes: an id, a word of ours.
    pub(crate) fn plain(&mut self, text: impl Display) -> &mut Self {
        self.begin();
        // Writing to a vector cannot fail.
        let _ = write!(self.out, "\"{text}\"");
        self
    }

    /// A number.
    pub(crate) fn number(&mut self, number: impl Display) -> &mut Self {
        self.begin();
        let _ = write!(self.out, "{number}");
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.raw(if value { b"true" } else { b"false" })
    }

    pub(crate) fn null(&mut self) -> &mut Self {
        self.raw(b"null")
    }

    /// A time in µs, as ISO 8601 text.
    pub(crate) fn time(&mut self, us: i64) -> &mut Self {
        self.begin();
        self.out.push(b'"');
        self.out.extend_from_slice(&time::format(us));
        self.out.push(b'"');
        self
    }

    /// A value that is JSON already.
    pub(crate) fn raw(&mut self, json: &[u8]) -> &mut Self {
        self.begin();
        self.out.extend_from_slice(json);
        self
    }

    /// Keys and values that are JSON already, without braces and outer commas.
    pub(crate) fn members(&mut self, members: &[u8]) -> &mut Self {
        self.raw(members)
    }
}

/// Writes a text in quotes. Only what JSON demands is escaped.
fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut done = 0;
    for (i, &byte) in bytes.iter().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&bytes[done..i]);
        done = i + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
    }
    out.extend_from_slice(&bytes[done..]);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_read_back_as_they_were() {
        let all: String = (0u8..128).map(char::from).chain("é\u{2028}😀\u{ffff}".chars()).collect();
        for text in ["", "plain", "\"", "\\", "a\"b\\c\n", &all] {
            let mut out = Vec::new();
            write_string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }

    #[test]
    fn commas_stand_between_and_nowhere_else() {
        let mut json = Json::with_capacity(0);
        json.object().key("a").array().end_array().key("b").array().number(1).string("x").null();
        json.object().end_object().end_array().key("c").object().key("d").bool(true).end_object();
        json.key("e").raw(b"1.0").end_object();
        assert_eq!(
            String::from_utf8(json.into_bytes()).unwrap(),
            r#"{"a":[],"b":[1,"x",null,{}],"c":{"d":true},"e":1.0}"#
        );
    }
}
