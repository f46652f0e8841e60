//! The opening handshake of a WebSocket (RFC 6455, 4.2).

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha1::{Digest, Sha1};

/// What the protocol joins to a client's key before it is hashed.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The version of the protocol.
const VERSION: &str = "13";

/// True if a request asks to become a WebSocket.
pub(crate) fn is_upgrade(request: &Request) -> bool {
    request.method() == Method::GET && has(request.headers(), header::UPGRADE, "websocket")
}

/// The answer to a request for which [`is_upgrade`] holds: 101 if it is an opening handshake, else the refusal.
pub(crate) fn answer(headers: &HeaderMap) -> Response {
    let refuse = |status: StatusCode, why: &'static str| (status, why).into_response();
    if !has(headers, header::CONNECTION, "upgrade") {
        return refuse(StatusCode::BAD_REQUEST, "the `Connection` header does not say `upgrade`");
    }
    if !has(headers, header::SEC_WEBSOCKET_VERSION, VERSION) {
        let mut response =
            (StatusCode::UPGRADE_REQUIRED, "`Sec-WebSocket-Version` must be 13").into_response();
        let version = header::HeaderValue::from_static(VERSION);
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, version);
        return response;
    }
    let Some(key) = headers.get(header::SEC_WEBSOCKET_KEY) else {
        return refuse(StatusCode::BAD_REQUEST, "`Sec-WebSocket-Key` is missing");
    };
    let accept = accept_key(key.as_bytes());
    let headers = [
        (header::CONNECTION, "upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
}

/// True if a header, a list of words, has this one.
fn has(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

fn accept_key(key: &[u8]) -> String {
    BASE64_STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(changes: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let usual = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        for (name, value) in usual.iter().chain(changes) {
            if value.is_empty() {
                headers.remove(*name);
            } else {
                headers.insert(*name, header::HeaderValue::from_static(value));
            }
        }
        headers
    }

    #[test]
    fn the_answer_proves_that_the_key_was_read() {
        let response = answer(&headers(&[]));
        assert_eq!(response.status(), 101);
        // The example in the protocol's own text.
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn what_is_no_handshake_is_refused() {
        for (change, status) in [
            (("connection", "close"), 400),
            (("sec-websocket-version", "12"), 426),
            (("sec-websocket-version", ""), 426),
            (("sec-websocket-key", ""), 400),
        ] {
            assert_eq!(answer(&headers(&[change])).status(), status, "{change:?}");
        }
    }
}
