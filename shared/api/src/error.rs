//! The one place where a failure becomes a status and a body: `{"error": "<text>", "code": "<word>"}`.
//!
//! Clients repeat every 5xx and never another 4xx, so the split matters: 503 (with `Retry-After`) says that the same
//! request may succeed later, 400 that it never will. A text names what was wrong and where; it never carries more
//! than [`TEXT_BYTES`] of what the client sent.

use std::{borrow::Cow, convert::Infallible, future::ready, pin::Pin};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};
use tidewheel_engine::{Error, KeyError};

use crate::{
    auth::AboutStream,
    json::{APPLICATION_JSON, Json},
};

/// Bytes of an error's text. The middle of a longer one is left out.
pub(crate) const TEXT_BYTES: usize = 600;

/// Seconds after which a refused request may be repeated.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A failed request.
pub(crate) struct Failure {
    status: StatusCode,
    code: Option<&'static str>,
    text: String,
    /// The stream that a refusal is about.
    stream: Option<String>,
    /// Goes on while the answer is on its way, and ends it.
    meanwhile: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Failure {
    fn new(status: StatusCode, code: Option<&'static str>, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into(), stream: None, meanwhile: None }
    }

    /// 400: the request is malformed or its parts do not fit.
    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, None, text)
    }

    /// 400, with a word for programs.
    pub(crate) fn coded(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Some(code), text)
    }

    /// A request that is not let through.
    pub(crate) fn refused(
        status: StatusCode,
        code: &'static str,
        text: String,
        stream: Option<String>,
    ) -> Self {
        Self { stream, ..Self::new(status, Some(code), text) }
    }

    /// 404: no such object.
    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, Some("not_found"), text)
    }

    /// 413: the body is over the limit.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Some("body_too_large"),
            format!("the request body is over the limit of {limit} bytes"),
        )
    }

    /// The same, answered at once, while the rest of the request is read and dropped.
    pub(crate) fn while_reading(self, rest: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { meanwhile: Some(Box::pin(rest)), ..self }
    }

    /// 503: other requests' bodies fill the memory set aside for them.
    pub(crate) fn too_many_bytes(limit: usize) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Some("busy"),
            format!("requests being served hold the limit of {limit} bytes; try again"),
        )
    }

    /// 400: this server does not have what the request asks for.
    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Some("unsupported"), text)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.status, self.text)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        let (status, code) = match &e {
            Error::Name { .. } | Error::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid"),
            Error::Limit { .. } => (StatusCode::BAD_REQUEST, "limit"),
            Error::NotDeclared(_) => (StatusCode::NOT_FOUND, "not_declared"),
            Error::Declare { .. } | Error::Differs { .. } | Error::Migrate { .. } => {
                (StatusCode::CONFLICT, "declared_otherwise")
            }
            Error::Row { .. } => (StatusCode::BAD_REQUEST, "row_does_not_fit"),
            Error::Retired { .. } => (StatusCode::BAD_REQUEST, "stream_retired"),
            Error::NoLog(_) => (StatusCode::BAD_REQUEST, "no_log"),
            Error::OnePartition { .. } => (StatusCode::BAD_REQUEST, "one_partition"),
            Error::Lease => (StatusCode::BAD_REQUEST, "lease"),
            Error::StaleState { .. } => (StatusCode::BAD_REQUEST, "stale_state"),
            Error::StreamNotFound(_) => {
                return Self {
                    code: Some("queue_not_found"),
                    ..Self::not_found("Queue not found")
                };
            }
            Error::PartitionNotFound => (StatusCode::NOT_FOUND, "partition_not_found"),
            Error::QueryNotFound => (StatusCode::NOT_FOUND, "query_not_found"),
            Error::GroupNotFound(_) => (StatusCode::NOT_FOUND, "group_not_found"),
            Error::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Error::Paused(_) => (StatusCode::SERVICE_UNAVAILABLE, "maintenance"),
            Error::Encryption(KeyError::Unavailable(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "encryption")
            }
            Error::Encryption(_) => (StatusCode::INTERNAL_SERVER_ERROR, "encryption"),
            Error::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Error::Unknown(_) => (StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown"),
            Error::Corrupt(_) => (StatusCode::INTERNAL_SERVER_ERROR, "corrupt"),
        };
        Self::new(status, Some(code), e.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut json = Json::with_capacity(self.text.len() + 64);
        json.object().key("error").string(&shortened(&self.text));
        if let Some(code) = self.code {
            json.key("code").string(code);
        }
        json.end_object();
        let mut response = match self.meanwhile {
            None => json.into_response(self.status),
            Some(meanwhile) => {
                // The text goes out first; the end of the answer waits.
                let text = stream::once(ready(Ok::<_, Infallible>(json.into_bytes())));
                let end = stream::once(meanwhile).filter_map(|()| ready(None));
                let mut response = Response::new(Body::from_stream(text.chain(end)));
                *response.status_mut() = self.status;
                response.headers_mut().insert(header::CONTENT_TYPE, APPLICATION_JSON);
                response
            }
        };
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        if let Some(stream) = self.stream {
            response.extensions_mut().insert(AboutStream(stream));
        }
        response
    }
}

/// A text of at most about [`TEXT_BYTES`]: its beginning and its end, which says where.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES {
        return Cow::Borrowed(text);
    }
    let head = (0..=TEXT_BYTES * 2 / 3).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    let tail = (text.len() - TEXT_BYTES / 3..text.len())
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(text.len());
    Cow::Owned(format!("{} … {}", &text[..head], &text[tail..]))
}

/// Answers a path that no route has.
pub(crate) async fn no_such_route() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, Some("no_such_route"), "Not Found")
}

/// Answers a method that the route does not have.
pub(crate) async fn method_not_allowed() -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), "Method Not Allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        let text = format!("wrong type {} at line 1 column 9", "é".repeat(100_000));
        let short = shortened(&text);
        assert!(short.len() <= TEXT_BYTES + 8, "{}", short.len());
        assert!(short.starts_with("wrong type é") && short.ends_with("at line 1 column 9"));
        assert_eq!(shortened("short"), "short");
    }
}
