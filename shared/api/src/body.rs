//! Reading of requests' bodies. The size is bounded before anything is parsed, and what no parser would refuse is
//! refused here: bytes that are no UTF-8, half a surrogate pair in an escape, nesting too deep for the clients that
//! will read the payload again. None of it costs more than one pass over the bytes.

use std::{borrow::Cow, sync::atomic::Ordering::Relaxed};

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::{Deserialize, Deserializer, de};
use serde_json::{error::Category, value::RawValue};

use crate::{Api, error::Failure};

/// Levels of arrays and objects in a body. Whoever reads a payload with a common JSON parser must not meet the
/// parser's own limit, and 128 is the lowest in use.
pub(crate) const DEPTH: usize = 127;

/// Bytes of a body beyond the limit that are read and dropped, so that a client that writes everything before it
/// reads gets the refusal and not a broken connection.
const DISCARD_BYTES: usize = 64 * 1024 * 1024;

/// Bytes reserved on the word of a `Content-Length`; more is reserved as it comes.
const RESERVE_BYTES: usize = 1024 * 1024;

/// The body of a request, within the limit. What it holds of the memory for all bodies ends with it.
pub(crate) struct Body {
    bytes: Bytes,
    _held: Held,
}

/// A part of the memory for all bodies.
struct Held {
    api: Api,
    bytes: usize,
}

impl Held {
    fn nothing(api: &Api) -> Self {
        Self { api: api.clone(), bytes: 0 }
    }

    fn more(&mut self, bytes: usize) -> Result<(), Failure> {
        let limit = self.api.settings().max_in_flight_bytes;
        let before = self.api.body_bytes().fetch_add(bytes, Relaxed);
        self.bytes += bytes;
        if before.saturating_add(bytes) > limit {
            return Err(Failure::too_many_bytes(limit));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.api.body_bytes().fetch_sub(self.bytes, Relaxed);
    }
}

impl FromRequest<Api> for Body {
    type Rejection = Failure;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Failure> {
        let limit = api.settings().max_body_bytes;
        let declared = request
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|bytes| bytes > limit)
            && request.headers().contains_key(header::EXPECT)
        {
            // The client waits for a word before it sends anything.
            return Err(Failure::too_large(limit));
        }
        let mut chunks = request.into_body().into_data_stream();
        let mut held = Held::nothing(api);
        let mut body = BytesMut::new();
        let mut read = 0usize;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Failure::bad_request("the body ended early"))?;
            read = read.saturating_add(chunk.len());
            if declared.unwrap_or(read).max(read) > limit {
                (body, held) = (BytesMut::new(), Held::nothing(api));
                if read > limit.saturating_add(DISCARD_BYTES) {
                    break;
                }
                continue;
            }
            held.more(chunk.len())?;
            if body.is_empty() {
                if declared == Some(chunk.len()) {
                    return Ok(Self { bytes: chunk, _held: held });
                }
                body.reserve(declared.unwrap_or(0).min(RESERVE_BYTES));
            }
            body.extend_from_slice(&chunk);
        }
        if declared.unwrap_or(read).max(read) > limit {
            return Err(Failure::too_large(limit));
        }
        Ok(Self { bytes: body.freeze(), _held: held })
    }
}

impl Body {
    /// Parses the body as JSON.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        parse(&self.bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of a part of this body, shared with it.
    pub(crate) fn part(&self, raw: &RawValue) -> Bytes {
        self.bytes.slice_ref(raw.get().as_bytes())
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_str(checked(body)?).map_err(|e| {
        Failure::bad_request(match e.classify() {
            Category::Data => format!("invalid request: {e}"),
            _ => format!("malformed JSON: {e}"),
        })
    })
}

/// The body as text that a JSON parser may see.
fn checked(body: &[u8]) -> Result<&str, Failure> {
    if body.starts_with(b"QPB1") || body.starts_with(b"QTB1") {
        return Err(Failure::unsupported("binary bodies are not supported; send JSON"));
    }
    let text = std::str::from_utf8(body).map_err(|e| {
        Failure::bad_request(format!("the body is not UTF-8 at byte {}", e.valid_up_to()))
    })?;
    if text.trim_ascii_start().is_empty() {
        return Err(Failure::bad_request("malformed JSON: the body is empty"));
    }
    scan(text.as_bytes()).map_err(|(what, at)| {
        Failure::bad_request(match what {
            Fault::Surrogate => {
                format!("malformed JSON: half a surrogate pair in an escape at byte {at}")
            }
            Fault::Depth => {
                format!("the JSON is nested deeper than the limit of {DEPTH} levels at byte {at}")
            }
        })
    })?;
    Ok(text)
}

#[derive(Debug, PartialEq)]
enum Fault {
    Surrogate,
    Depth,
}

/// Looks for what the parser lets pass. A text that is no JSON at all is the parser's to refuse.
fn scan(json: &[u8]) -> Result<(), (Fault, usize)> {
    let mut depth = 0usize;
    let mut i = 0;
    while let Some(&byte) = json.get(i) {
        match byte {
            b'"' => i = scan_string(json, i + 1)?,
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH {
                    return Err((Fault::Depth, i));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    Ok(())
}

/// Scans the inside of a string that begins at `i`; answers where its closing quote is.
fn scan_string(json: &[u8], mut i: usize) -> Result<usize, (Fault, usize)> {
    while let Some(&byte) = json.get(i) {
        match byte {
            b'"' => return Ok(i),
            b'\\' => match escaped_unit(json, i) {
                Some(0xd800..=0xdbff) => {
                    if !matches!(escaped_unit(json, i + 6), Some(0xdc00..=0xdfff)) {
                        return Err((Fault::Surrogate, i));
                    }
                    i += 12;
                }
                Some(0xdc00..=0xdfff) => return Err((Fault::Surrogate, i)),
                _ => i += 2,
            },
            _ => i += 1,
        }
    }
    Ok(json.len())
}

/// The UTF-16 unit of a `\uXXXX` at `i`, if there is one.
fn escaped_unit(json: &[u8], i: usize) -> Option<u16> {
    let escape = json.get(i..i + 6)?;
    if !escape.starts_with(b"\\u") {
        return None;
    }
    let digits = std::str::from_utf8(&escape[2..]).ok()?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
}

/// A text of a request, borrowed from the body where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The text of an optional field; absent, `null` and empty are one.
pub(crate) fn filled<'b>(text: &'b Option<Text<'_>>) -> Option<&'b str> {
    text.as_deref().filter(|t| !t.is_empty())
}

/// Reads a field of any JSON such that a `null` is there and only an absent one is `None`. For `deserialize_with`,
/// together with `default`.
pub(crate) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Segments of the path, percent-decoded; a `+` is a plus.
pub(crate) struct Segments<T>(pub(crate) T);

impl<T: de::DeserializeOwned + Send> FromRequestParts<Api> for Segments<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Failure> {
        Path::<T>::from_request_parts(parts, api)
            .await
            .map(|Path(segments)| Self(segments))
            .map_err(|e| Failure::bad_request(format!("invalid path: {}", e.body_text())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_is_found_wherever_it_hides() {
        for bad in [
            r#""\ud800""#,
            r#""\udfff""#,
            r#""\ud800x""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#"{"a":["x\\\uDBFF"]}"#,
            r#"{"\udc00":1}"#,
        ] {
            assert!(matches!(scan(bad.as_bytes()), Err((Fault::Surrogate, _))), "{bad}");
        }
        for good in [
            r#""\ud83d\ude00""#,
            r#""\\ud800""#,
            r#""\u0041\"\\""#,
            r#""\uzzzz""#,
            r#""\u12"#,
            r#""\"#,
        ] {
            assert_eq!(scan(good.as_bytes()), Ok(()), "{good}");
        }
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(scan(nested(DEPTH).as_bytes()), Ok(()));
        assert_eq!(scan(nested(DEPTH + 1).as_bytes()), Err((Fault::Depth, DEPTH)));
        assert!(serde_json::from_str::<serde_json::Value>(&nested(DEPTH)).is_ok());
        assert_eq!(scan(format!("\"{}\"", "[\\\"".repeat(1000)).as_bytes()), Ok(()));
        assert_eq!(scan("[],".repeat(1000).as_bytes()), Ok(()));
        assert!(scan("[".repeat(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn a_part_of_the_body_is_its_own_bytes() {
        #[derive(Deserialize)]
        struct Item<'a> {
            #[serde(borrow)]
            name: Text<'a>,
            #[serde(borrow, default, deserialize_with = "present")]
            payload: Option<&'a RawValue>,
        }
        let body =
            br#"{"name":"a\u0062","payload": {"z":1.0, "a":123456789012345678901234567890} }"#;
        let item: Item<'_> = parse(body).unwrap();
        assert_eq!(&*item.name, "ab");
        let payload = item.payload.unwrap().get();
        assert_eq!(payload, r#"{"z":1.0, "a":123456789012345678901234567890}"#);
        assert!(body.as_ptr_range().contains(&payload.as_ptr()), "no copy");

        let item: Item<'_> = parse(br#"{"name":"b","payload":null}"#).unwrap();
        assert_eq!(item.payload.unwrap().get(), "null");
        let item: Item<'_> = parse(br#"{"name":"b"}"#).unwrap();
        assert!(item.payload.is_none());
    }
}
