//! What the gateway sends, as a request.
//!
//! An HTTP API (payload format 2.0) and a function URL send the same shape. What differs is the path: the HTTP API
//! decodes every escape but `%25`, the function URL none. Both become a valid URI again here, so that the router decodes
//! once, as it does on a socket. One thing is lost on the way through an HTTP API and cannot be got back: a `/` inside
//! a name, which arrives as one more segment. Such names need the function URL.

use std::collections::HashMap;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Method, Request, Uri, header},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode_byte};
use serde::Deserialize;

/// Bytes of a request's body that comes as text: what Lambda takes in one synchronous invocation.
pub(crate) const TEXT_BODY_BYTES: usize = 6 * 1024 * 1024;

/// Bytes of a request's body that is not text: it travels in base64, which is a third longer.
pub(crate) const BINARY_BODY_BYTES: usize = TEXT_BODY_BYTES / 4 * 3;

/// What may not stand in a URI's path as it is. `%` is looked at apart.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// What may not stand in a URI's query as it is.
const QUERY: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// An event of an HTTP API with payload format 2.0, or of a function URL: what of it becomes a request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    raw_path: String,
    #[serde(default)]
    raw_query_string: String,
    #[serde(default)]
    headers: HashMap<String, String>,
    #[serde(default)]
    cookies: Vec<String>,
    request_context: RequestContext,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Debug, Deserialize)]
struct RequestContext {
    #[serde(default)]
    stage: Option<String>,
    http: Http,
}

#[derive(Debug, Deserialize)]
struct Http {
    method: String,
}

/// Why an event is no request that can be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadRequest {
    /// The body is over what the gateway carries.
    #[error(
        "the request body is over the limit of {limit} bytes that this gateway carries ({form})"
    )]
    TooLarge { limit: usize, form: &'static str },
    /// The body says that it is base64 and is not.
    #[error("the request body is not base64")]
    Base64,
    /// No method.
    #[error("`{0}` is no method")]
    Method(String),
    /// No URI can be made of path and query.
    #[error("the request's path and query are no URI")]
    Uri,
}

impl Event {
    /// The request.
    pub(crate) fn into_request(self) -> Result<Request<Body>, BadRequest> {
        let method = &self.request_context.http.method;
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| BadRequest::Method(method.chars().take(32).collect()))?;
        let path = without_stage(&self.raw_path, self.request_context.stage.as_deref());
        let mut uri = escaped(path, PATH);
        if !uri.starts_with('/') {
            uri.insert(0, '/');
        }
        if !self.raw_query_string.is_empty() {
            uri.push('?');
            uri.push_str(&escaped(&self.raw_query_string, QUERY));
        }
        let uri: Uri = uri.parse().map_err(|_| BadRequest::Uri)?;
        let body = body(self.body.unwrap_or_default(), self.is_base64_encoded)?;
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        for (name, value) in &self.headers {
            // A gateway lets no other headers through; one that is none says nothing to the router either.
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::try_from(value))
            {
                headers.append(name, value);
            }
        }
        if let Ok(cookies) = HeaderValue::try_from(self.cookies.join("; "))
            && !cookies.is_empty()
        {
            headers.insert(header::COOKIE, cookies);
        }
        // The length of what the client sent may be that of another form of the body.
        headers.remove(header::CONTENT_LENGTH);
        Ok(request)
    }
}

fn body(text: String, base64: bool) -> Result<Bytes, BadRequest> {
    if !base64 {
        if text.len() > TEXT_BODY_BYTES {
            return Err(BadRequest::TooLarge { limit: TEXT_BODY_BYTES, form: "as text" });
        }
        return Ok(text.into());
    }
    let bytes = STANDARD.decode(text).map_err(|_| BadRequest::Base64)?;
    if bytes.len() > BINARY_BODY_BYTES {
        return Err(BadRequest::TooLarge { limit: BINARY_BODY_BYTES, form: "in base64" });
    }
    Ok(bytes.into())
}

/// A path without the name of its stage, which is there unless the stage is the default one or a domain name leads
/// to it.
fn without_stage<'a>(path: &'a str, stage: Option<&str>) -> &'a str {
    let Some(stage) = stage.filter(|stage| *stage != "$default") else { return path };
    match path.strip_prefix('/').and_then(|rest| rest.strip_prefix(stage)) {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Escapes what is not escaped and has to be. A `%` that begins an escape stays.
fn escaped(text: &str, set: &'static AsciiSet) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 8);
    for (at, &byte) in bytes.iter().enumerate() {
        let escape = match byte {
            b'%' => !bytes.get(at + 1..at + 3).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit)),
            _ => !byte.is_ascii() || set_has(set, byte),
        };
        if escape {
            out.push_str(percent_encode_byte(byte));
        } else {
            out.push(char::from(byte));
        }
    }
    out
}

fn set_has(set: &'static AsciiSet, byte: u8) -> bool {
    percent_encoding::percent_encode(&[byte], set).next().is_some_and(|text| text.len() > 1)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(patch: Value) -> Event {
        let mut event = json!({
            "version": "2.0", "routeKey": "$default", "rawPath": "/", "rawQueryString": "",
            "headers": {"host": "x"}, "isBase64Encoded": false,
            "requestContext": {"stage": "$default", "http": {"method": "GET", "path": "/"}},
        });
        for (name, value) in patch.as_object().unwrap() {
            event[name] = value.clone();
        }
        serde_json::from_value(event).unwrap()
    }

    fn uri(patch: Value) -> String {
        event(patch).into_request().unwrap().uri().to_string()
    }

    #[test]
    fn a_decoded_path_becomes_the_uri_it_was_decoded_from() {
        for (raw, uri_path) in [
            ("/api/v1/pop", "/api/v1/pop"),
            ("/a b", "/a%20b"),
            ("/a?b#c", "/a%3Fb%23c"),
            ("/søen", "/s%C3%B8en"),
            // The gateway leaves an escaped percent sign alone, so this is the name `50%41`.
            ("/50%2541", "/50%2541"),
            ("/100%", "/100%25"),
            ("/already%20escaped", "/already%20escaped"),
            ("", "/"),
        ] {
            assert_eq!(uri(json!({"rawPath": raw})), uri_path, "{raw}");
        }
    }

    #[test]
    fn the_query_is_passed_as_it_came_with_repeated_names() {
        let query = "batch=10&tag=a&tag=b+c&x=%2F&empty=";
        assert_eq!(uri(json!({"rawPath": "/p", "rawQueryString": query})), format!("/p?{query}"));
        assert_eq!(uri(json!({"rawPath": "/p", "rawQueryString": "a=<é>"})), "/p?a=%3C%C3%A9%3E");
    }

    #[test]
    fn the_stage_is_no_part_of_the_path() {
        let staged = |path: &str, stage: &str| {
            uri(
                json!({"rawPath": path, "requestContext": {"stage": stage, "http": {"method": "GET"}}}),
            )
        };
        assert_eq!(staged("/live/api/v1/push", "live"), "/api/v1/push");
        assert_eq!(staged("/live", "live"), "/");
        assert_eq!(staged("/lively/a", "live"), "/lively/a");
        assert_eq!(staged("/api/v1/push", "live"), "/api/v1/push");
        assert_eq!(staged("/$default/a", "$default"), "/$default/a");
    }

    #[tokio::test]
    async fn bodies_come_as_text_and_as_base64() {
        let read = |event: Event| async {
            let body = event.into_request().unwrap().into_body();
            axum::body::to_bytes(body, usize::MAX).await.unwrap()
        };
        assert_eq!(read(event(json!({"body": "{\"a\": 1.0}"}))).await, "{\"a\": 1.0}");
        let encoded = STANDARD.encode([0u8, 159, 255]);
        let binary = event(json!({"body": encoded, "isBase64Encoded": true}));
        assert_eq!(read(binary).await, vec![0u8, 159, 255]);
        assert_eq!(read(event(json!({"body": null}))).await, "");
        let bad = event(json!({"body": "?", "isBase64Encoded": true}));
        assert_eq!(bad.into_request().unwrap_err(), BadRequest::Base64);
    }

    #[test]
    fn bodies_over_the_platforms_limits_name_them() {
        let text = event(json!({"body": "x".repeat(TEXT_BODY_BYTES + 1)}));
        assert!(text.into_request().unwrap_err().to_string().contains("6291456"));
        assert!(event(json!({"body": "x".repeat(TEXT_BODY_BYTES)})).into_request().is_ok());
        let encoded = STANDARD.encode(vec![0u8; BINARY_BODY_BYTES + 1]);
        let binary = event(json!({"body": encoded, "isBase64Encoded": true}));
        assert!(binary.into_request().unwrap_err().to_string().contains("4718592"));
    }

    #[test]
    fn headers_and_cookies_are_passed() {
        let request = event(json!({
            "headers": {"accept": "text/html", "bad name": "x", "content-length": "3"}, "cookies": ["a=1", "b=2"],
        }));
        let request = request.into_request().unwrap();
        assert_eq!(request.headers()["accept"], "text/html");
        assert_eq!(request.headers()["cookie"], "a=1; b=2");
        assert_eq!(request.headers().len(), 2);
    }

    #[test]
    fn a_method_that_is_none_is_named() {
        let bad = event(json!({"requestContext": {"http": {"method": "a b"}}}));
        assert_eq!(bad.into_request().unwrap_err(), BadRequest::Method("a b".to_owned()));
    }
}
