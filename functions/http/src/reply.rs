//! Responses, as the gateway wants them.
//!
//! A buffered reply is JSON with the body inside it: as text, where every quote and backslash takes two bytes, or as
//! base64, where everything takes a third more. Whichever fits is taken. A reply that fits in neither form would fail
//! the invocation, and the client would learn nothing; it gets an error that names the limit instead.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::event::BadRequest;

/// Bytes of a buffered reply: Lambda's 6 MB less room for status and headers.
pub(crate) const REPLY_BYTES: usize = 6 * 1024 * 1024 - 64 * 1024;

/// A reply in payload format 2.0.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reply {
    status_code: u16,
    headers: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cookies: Vec<String>,
    body: String,
    is_base64_encoded: bool,
}

impl Reply {
    /// A response, with its body read to the end.
    pub(crate) async fn from_response(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        // Replies are made in memory: reading one never waits, and fails only if making it failed.
        let bytes = match axum::body::to_bytes(body, usize::MAX).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "a reply broke off");
                return Self::plain(failure(
                    StatusCode::BAD_GATEWAY,
                    "reply",
                    "the reply broke off",
                ));
            }
        };
        let text = std::str::from_utf8(&bytes).ok().filter(|text| json_bytes(text) <= REPLY_BYTES);
        let (body, is_base64_encoded) = match text {
            Some(text) => (text.to_owned(), false),
            None if bytes.len().div_ceil(3) * 4 <= REPLY_BYTES => (STANDARD.encode(&bytes), true),
            None => {
                return Self::plain(failure(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "reply_too_large",
                    &format!(
                        "the reply has {} bytes and this gateway carries at most {}: ask for less at a time, \
                         or use the function's own URL",
                        bytes.len(),
                        REPLY_BYTES / 4 * 3,
                    ),
                ));
            }
        };
        let (headers, cookies) = headers(&parts.headers);
        Self { status_code: parts.status.as_u16(), headers, cookies, body, is_base64_encoded }
    }

    fn plain((status, body): (StatusCode, Value)) -> Self {
        let mut headers = Map::new();
        headers.insert("content-type".to_owned(), "application/json".into());
        Self {
            status_code: status.as_u16(),
            headers,
            cookies: Vec::new(),
            body: body.to_string(),
            is_base64_encoded: false,
        }
    }
}

/// Headers by name, several values of one joined by commas; and the cookies, which may not be.
fn headers(from: &HeaderMap) -> (Map<String, Value>, Vec<String>) {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut headers = Map::new();
    for name in from.keys().filter(|name| *name != header::SET_COOKIE) {
        let values: Vec<_> = from.get_all(name).iter().map(text).collect();
        headers.insert(name.as_str().to_owned(), values.join(", ").into());
    }
    (headers, from.get_all(header::SET_COOKIE).iter().map(text).collect())
}

/// Bytes of a text as a JSON string.
fn json_bytes(text: &str) -> usize {
    let escaped = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
        0..0x20 => 6,
        _ => 1,
    });
    escaped.sum::<usize>() + 2
}

fn failure(status: StatusCode, code: &str, text: &str) -> (StatusCode, Value) {
    (status, json!({"error": text, "code": code}))
}

impl BadRequest {
    /// The answer to an event that cannot be served.
    pub(crate) fn into_response(self) -> Response<Body> {
        let (status, code) = match self {
            BadRequest::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            _ => (StatusCode::BAD_REQUEST, "invalid"),
        };
        let (status, body) = failure(status, code, &self.to_string());
        (status, axum::Json(body)).into_response()
    }
}

/// The answer to a request that did not end before the function had to.
pub(crate) fn out_of_time() -> Response<Body> {
    let text = "the function's time is over; whether the request took effect is not known, and repeating it with the \
                same transaction ids is safe";
    let (status, body) = failure(StatusCode::SERVICE_UNAVAILABLE, "out_of_time", text);
    let mut response = (status, axum::Json(body)).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn reply(body: impl Into<Body>) -> Reply {
        Reply::from_response(Response::new(body.into())).await
    }

    #[test]
    fn the_length_of_a_json_string_is_what_is_written() {
        for text in ["", "plain", "{\"a\": \"\\\"\"}", "line\nline\r\t\u{8}\u{c}\u{1}é💧\u{7f}"]
        {
            assert_eq!(json_bytes(text), serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn text_goes_as_text_and_bytes_as_base64() {
        let text = reply("{\"a\":1}").await;
        assert_eq!((text.body.as_str(), text.is_base64_encoded), ("{\"a\":1}", false));
        let bytes = reply(vec![255u8, 0]).await;
        assert_eq!((bytes.body.as_str(), bytes.is_base64_encoded), ("/wA=", true));
    }

    #[tokio::test]
    async fn text_of_many_quotes_goes_as_base64_when_that_fits() {
        let quotes = reply("\"".repeat(REPLY_BYTES / 2 + 10)).await;
        assert_eq!((quotes.status_code, quotes.is_base64_encoded), (200, true));
        assert!(quotes.body.len() <= REPLY_BYTES);
    }

    #[tokio::test]
    async fn what_fits_in_no_form_is_an_error_that_names_the_limit() {
        let large = reply("\"".repeat(REPLY_BYTES)).await;
        assert_eq!((large.status_code, large.is_base64_encoded), (413, false));
        assert!(large.body.contains(&(REPLY_BYTES / 4 * 3).to_string()), "{}", large.body);
    }

    #[tokio::test]
    async fn headers_are_joined_and_cookies_are_not() {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        for (name, value) in
            [("vary", "a"), ("vary", "b"), ("set-cookie", "x=1"), ("set-cookie", "y=2")]
        {
            response.headers_mut().append(name, HeaderValue::from_static(value));
        }
        let reply = serde_json::to_value(Reply::from_response(response).await).unwrap();
        assert_eq!(
            reply,
            json!({"statusCode": 204, "headers": {"vary": "a, b"}, "cookies": ["x=1", "y=2"], "body": "",
                   "isBase64Encoded": false})
        );
    }
}
