//! How long a request may wait for messages, when whoever serves it knows an end that the client does not.

use std::{convert::Infallible, time::Duration};

use axum::{extract::FromRequestParts, http::request::Parts};

use crate::Api;

/// The longest that a request may wait for messages. A server that must answer by a certain time puts one into the
/// request's extensions; a pop or a fetch that asks for longer is answered then with what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimit(pub Duration);

impl WaitLimit {
    /// The wait that was asked for, cut to the limit. `None` if there is nothing left to wait.
    pub(crate) fn cut(self, wait: Duration) -> Option<Duration> {
        Some(wait.min(self.0)).filter(|wait| !wait.is_zero())
    }
}

impl FromRequestParts<Api> for WaitLimit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self(Duration::MAX)))
    }
}
