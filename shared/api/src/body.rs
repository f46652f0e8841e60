//! Reading of requests' bodies. The size is bounded before anything is parsed, and what no parser would refuse is
//! refused here: bytes that are no UTF-8, half a surrogate pair in an escape, and payloads nested too deep for those
//! who will read them. For the usual body these checks cost next to nothing beside parsing it.

use std::{
    borrow::Cow, marker::PhantomData, pin::pin, sync::atomic::Ordering::Relaxed, time::Duration,
};

use axum::{
    body::BodyDataStream,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, future::select};
use serde::{Deserialize, Deserializer, de};
use serde_json::{error::Category, value::RawValue};

use crate::{Api, auth::Caller, error::Failure};

/// Levels of arrays and objects in a payload. Whoever reads it with a common JSON parser must not meet the parser's
/// own limit: the lowest in use allows 127 levels, and an answer puts three around the payload.
pub(crate) const DEPTH: usize = 124;

/// Bytes of a refused body that are still read, and dropped, while the refusal is on its way: a client that writes
/// everything before it reads gets the refusal and not a broken connection.
const DISCARD_BYTES: usize = 256 * 1024 * 1024;

/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Bytes reserved on the word of a `Content-Length`; more is reserved as it comes.
const RESERVE_BYTES: usize = 1024 * 1024;

/// The body of a request, within the limit. What it holds of the memory for all bodies ends with it.
pub(crate) struct Body {
    bytes: Bytes,
    caller: Caller,
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
        let headers = request.headers();
        let declared = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        let waits = headers.contains_key(header::EXPECT);
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.unwrap_or_else(Caller::nobody);
        let mut chunks = request.into_body().into_data_stream();
        if declared.is_some_and(|bytes| bytes > limit) {
            let refusal = Failure::too_large(limit);
            // A client that waits for a word before it sends has nothing under way.
            return Err(if waits {
                refusal
            } else {
                refusal.while_reading(rest(chunks, api.clone()))
            });
        }
        let mut held = Held::nothing(api);
        let mut body = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Failure::bad_request("the body ended early"))?;
            if body.len().saturating_add(chunk.len()) > limit {
                return Err(Failure::too_large(limit).while_reading(rest(chunks, api.clone())));
            }
            held.more(chunk.len())?;
            if body.is_empty() {
                if declared == Some(chunk.len()) {
                    return Ok(Self { bytes: chunk, caller, _held: held });
                }
                body.reserve(declared.unwrap_or(0).min(RESERVE_BYTES));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self { bytes: body.freeze(), caller, _held: held })
    }
}

/// Reads the rest of a body and drops it.
async fn rest(mut chunks: BodyDataStream, api: Api) {
    let mut read = 0usize;
    let reading = async {
        while let Some(Ok(chunk)) = chunks.next().await {
            read += chunk.len();
            if read > DISCARD_BYTES {
                break;
            }
        }
    };
    let enough = api.engine().env().sleep(DISCARD_TIME);
    let (reading, enough) = (pin!(reading), pin!(enough));
    select(reading, enough).await;
}

impl Body {
    /// Who sent it: to be asked about every stream that it names.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

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
    let text = checked(body)?;
    match serde_json::from_str(text) {
        Ok(Object(request)) => Ok(request),
        Err(e) => Err(Failure::bad_request(match e.classify() {
            Category::Data => format!("invalid request: {}{e}", field_at_fault::<T>(text)),
            _ => format!("malformed JSON: {e}"),
        })),
    }
}

/// The field that a request fails on, as `items[1].queue: `, or nothing if it is the request itself. The request is
/// read a second time for it: keeping track of where one is costs time that a good request need not spend.
fn field_at_fault<'a, T: Deserialize<'a>>(text: &'a str) -> String {
    let reader = &mut serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, Object<T>>(reader) {
        Err(e) if e.path().iter().len() > 0 => format!("{}: ", e.path()),
        _ => String::new(),
    }
}

/// A value that is written as an object. Left to itself, the parser also takes an array for a structure, field by
/// field, and a request is too easily misunderstood that way.
pub(crate) struct Object<T>(pub(crate) T);

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData)).map(Object)
    }
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
    if let Some(at) = half_a_pair(text.as_bytes()) {
        return Err(Failure::bad_request(format!(
            "malformed JSON: half a surrogate pair in an escape at byte {at}"
        )));
    }
    Ok(text)
}

/// Where an escape stands for half a surrogate pair, which no text can hold. Backslashes stand in strings only, so a
/// text without one needs no second look, and a text that is no JSON is the parser's to refuse.
fn half_a_pair(json: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(found) = memchr::memchr(b'\\', json.get(from..)?) {
        let at = from + found;
        from = match escaped_unit(json, at) {
            Some(0xd800..=0xdbff) => match escaped_unit(json, at + 6) {
                Some(0xdc00..=0xdfff) => at + 12,
                _ => return Some(at),
            },
            Some(0xdc00..=0xdfff) => return Some(at),
            _ => at + 2,
        };
    }
    None
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

/// True if a JSON value has more than [`DEPTH`] levels.
fn is_too_deep(json: &[u8]) -> bool {
    // Most values do not have that many arrays and objects at all.
    json.iter().filter(|b| matches!(b, b'[' | b'{')).count() > DEPTH && depth(json) > DEPTH
}

/// The levels of a JSON value.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// A text of a request, borrowed from the body where it has no escapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl<'a> From<Cow<'a, str>> for Text<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(text)
    }
}

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

/// Reads a field of any JSON, at most [`DEPTH`] levels, such that a `null` is there and only an absent one is `None`.
/// For `deserialize_with`, together with `default`.
pub(crate) fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    if is_too_deep(raw.get().as_bytes()) {
        let text = format!("a value is nested deeper than the limit of {DEPTH} levels");
        return Err(de::Error::custom(text));
    }
    Ok(Some(raw))
}

/// Checks bytes that are to become a payload: JSON, of at most [`DEPTH`] levels, with whole surrogate pairs.
///
/// # Errors
/// What is wrong with it, to stand behind its name.
pub(crate) fn payload(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    serde_json::from_str::<&RawValue>(text).map_err(|e| format!("is not JSON: {e}"))?;
    if half_a_pair(bytes).is_some() {
        return Err("has half a surrogate pair in an escape".to_owned());
    }
    if is_too_deep(bytes) {
        return Err(format!("is nested deeper than the limit of {DEPTH} levels"));
    }
    Ok(())
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
            assert!(half_a_pair(bad.as_bytes()).is_some(), "{bad}");
        }
        for good in [
            "",
            r#""\ud83d\ude00""#,
            r#""\\ud800""#,
            r#""\u0041\"\\""#,
            r#""\uzzzz""#,
            r#""\u12"#,
            r#""\"#,
            "\"\\\u{e9}\"",
        ] {
            assert_eq!(half_a_pair(good.as_bytes()), None, "{good}");
        }
        assert_eq!(half_a_pair(br#"["\n\ud800"]"#), Some(4));
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        for (json, levels) in [
            ("1".to_owned(), 0),
            (r#"{"a":[1,{"b":[]}],"c":{}}"#.to_owned(), 4),
            (r#"["[[[[\"[[[[","\\",[]]"#.to_owned(), 2),
            (nested(1000), 1000),
            (format!("[{}]", vec!["[]"; 1000].join(",")), 2),
        ] {
            assert_eq!(depth(json.as_bytes()), levels, "{json}");
            assert_eq!(is_too_deep(json.as_bytes()), levels > DEPTH, "{json}");
        }
        // An answer puts three levels around a payload, and a reader of the usual depth takes it.
        let answer = |n: usize| format!("{{\"m\":[{{\"data\":{}}}]}}", nested(n));
        assert!(serde_json::from_str::<serde_json::Value>(&answer(DEPTH)).is_ok());
        assert!(serde_json::from_str::<serde_json::Value>(&answer(DEPTH + 1)).is_err());
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
