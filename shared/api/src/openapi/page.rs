//! `/docs`: a page to read the description and to try it. It is one file, fetches nothing but `/openapi.json` and what
//! its reader sends, and puts what it is given into the page as text only.

use axum::http::{HeaderName, HeaderValue, header};

/// The page.
pub(super) const PAGE: &str = include_str!("page.html");

/// Nothing from elsewhere may run in it, and it talks to its own server only.
pub(super) const POLICY: (HeaderName, HeaderValue) = (
    header::CONTENT_SECURITY_POLICY,
    HeaderValue::from_static(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
);
