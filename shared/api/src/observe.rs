//! One span and one measurement for each request. Neither carries a payload, a name or a header: the route is its
//! pattern, not its path.

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use tracing::{Instrument, Span, field::Empty};

use crate::Api;

/// The status that is counted when the client left before the answer.
const CLIENT_GONE: u16 = 499;

/// The route of requests that no route took.
const UNMATCHED: &str = "unmatched";

/// Serves a request inside its span and counts it, also when the client leaves before the answer.
pub(crate) async fn observe(State(api): State<Api>, request: Request, next: Next) -> Response {
    let method = method_label(request.method());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let span = tracing::info_span!(
        "request",
        method,
        route = path.as_ref().map_or(UNMATCHED, MatchedPath::as_str),
        status = Empty,
        duration_us = Empty,
    );
    let mut in_flight = InFlight::begin(&api, method, path, span.clone());
    let response = next.run(request).instrument(span).await;
    in_flight.end(response.status().as_u16());
    response
}

/// A request between its arrival and its answer.
struct InFlight<'a> {
    api: &'a Api,
    method: &'static str,
    path: Option<MatchedPath>,
    span: Span,
    started_us: i64,
    counted: bool,
}

impl<'a> InFlight<'a> {
    fn begin(api: &'a Api, method: &'static str, path: Option<MatchedPath>, span: Span) -> Self {
        api.http().begin();
        let started_us = api.now_us();
        // Before it does anything: it is of the minute that begins with it.
        api.series().note(started_us, || api.totals());
        Self { api, method, path, span, started_us, counted: false }
    }

    fn end(&mut self, status: u16) {
        self.counted = true;
        let duration_us = u64::try_from(self.api.now_us() - self.started_us).unwrap_or(0);
        let route = self.path.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
        self.api.http().end(self.method, route, status, duration_us);
        self.span.record("status", status).record("duration_us", duration_us);
        self.span.in_scope(|| match status {
            500.. => tracing::warn!("request failed"),
            _ => tracing::debug!("request served"),
        });
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.counted {
            self.end(CLIENT_GONE);
        }
    }
}

/// The method, out of a bounded set.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        _ => "OTHER",
    }
}
