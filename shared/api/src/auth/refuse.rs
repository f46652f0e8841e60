//! Refusals, each in the shape of the protocol whose route it is.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tidewheel_engine::{Action, Error, Target};

use crate::{control, error::Failure, json::Json};

/// What a client without credentials is asked for. A browser asks its user at the first, and the password is the key.
const CHALLENGES: [HeaderValue; 2] = [
    HeaderValue::from_static("Basic realm=\"tidewheel\", charset=\"UTF-8\""),
    HeaderValue::from_static("Bearer realm=\"tidewheel\""),
];

/// The stream that a refusal is about, beside the answer: for the audit log.
#[derive(Clone, Debug)]
pub(crate) struct AboutStream(pub(crate) String);

/// A request that is not let through.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    text: String,
    stream: Option<String>,
    retry_after: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, text: impl Into<String>) -> Self {
        Self { status, code, text: text.into(), stream: None, retry_after: None }
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        let text = "this server asks for an API key, and none was presented that counts";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_required", text)
    }

    /// 403.
    pub(crate) fn forbidden(action: Action, target: Target<'_>) -> Self {
        let (text, stream) = match target {
            Target::Stream(name) => {
                let name = crate::error::shortened(name);
                (format!("this key has no grant `{action}` for `{name}`"), Some(name.into_owned()))
            }
            Target::Everything => (format!("this key has no grant `{action}` for `*`"), None),
        };
        Self { stream, ..Self::new(StatusCode::FORBIDDEN, "forbidden", text) }
    }

    /// 429: a key has used up its quota; in so many seconds there is some again.
    pub(crate) fn over_quota(what: &str, seconds: u64) -> Self {
        let text = format!("this key is over its quota of {what}; try again in {seconds} s");
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self { retry_after: Some(seconds.max(1)), ..Self::new(status, "over_quota", text) }
    }

    /// 503: it cannot be found out who asks, so nobody is let in.
    pub(crate) fn unavailable(error: &Error) -> Self {
        tracing::warn!(%error, "keys cannot be looked up");
        let text = "keys cannot be looked up at the moment; nobody is let in";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { retry_after: Some(1), ..Self::new(status, "unavailable", text) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn stream(&self) -> Option<&str> {
        self.stream.as_deref()
    }

    /// The answer, in the shape that this path's protocol has.
    pub(crate) fn into_response(self, path: &str) -> Response {
        let mut json = Json::with_capacity(self.text.len() + 128);
        if path.starts_with(control::ROOT) {
            let retryable = self.retry_after.is_some();
            json.object().key("error").object().key("code").plain(self.code);
            json.key("message").string(&self.text).key("retryable").bool(retryable);
            json.key("operation_id").null().end_object().end_object();
        } else {
            json.object().key("error").string(&self.text).key("code").plain(self.code).end_object();
        }
        let mut response = json.into_response(self.status);
        self.dress(&mut response);
        response
    }

    /// Adds the headers, and what the audit log wants to know.
    fn dress(&self, response: &mut Response) {
        if self.status == StatusCode::UNAUTHORIZED {
            for challenge in CHALLENGES {
                response.headers_mut().append(header::WWW_AUTHENTICATE, challenge);
            }
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(stream) = &self.stream {
            response.extensions_mut().insert(AboutStream(stream.clone()));
        }
    }
}

/// From within a handler: the handler's protocol writes the error itself.
impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::refused(refusal.status, refusal.code, refusal.text, refusal.stream)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        Refusal::into_response(self, "/")
    }
}
