//! Errors of the control plane, in its envelope: a word for programs, a sentence for people, and whether the same request
//! may succeed later. A message names no path of this machine, no credential and no row.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tidewheel_engine::Error;

use crate::{auth::Refusal, error::shortened, json::Json};

/// A failed request.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The protocol's own.
    Word {
        /// The status.
        status: StatusCode,
        /// The word.
        code: &'static str,
        /// The sentence.
        message: String,
    },
    /// Not let through.
    Refused(Refusal),
}

impl Fault {
    pub(crate) fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::Word { status, code, message: message.into() }
    }

    /// 422: a declaration that cannot be kept.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, "invalid_declaration", message)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        if error.is_transient() {
            return Self::new(503, "unavailable", "the store takes no more at the moment");
        }
        tracing::warn!(%error, "a request to the control plane failed");
        Self::new(500, "internal_error", "what is stored cannot be used")
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let (status, code, message) = match self {
            Self::Refused(refusal) => return refusal.into_response(super::ROOT),
            Self::Word { status, code, message } => (status, code, message),
        };
        let retryable = matches!(status.as_u16(), 429 | 503);
        let mut json = Json::with_capacity(160 + message.len());
        json.object().key("error").object().key("code").plain(code);
        json.key("message").string(&shortened(&message)).key("retryable").bool(retryable);
        json.key("operation_id").null().end_object().end_object();
        let mut response = json.into_response(status);
        if retryable {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
