//! Who may ask, before there is any authentication: processes of this machine, and pages that come from it.
//!
//! A browser lets any page open a socket to a local port, send it simple requests, and (by a name that resolves to
//! 127.0.0.1) read the answers. So a request that names a foreign origin is refused, and, where only loopback is listened
//! on, one that came by a foreign host name. Programs other than browsers send no origin.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// The rules for one listening address.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    loopback_only: bool,
    allowed: Vec<String>,
}

impl Guard {
    pub(crate) fn new(loopback_only: bool, allowed_origins: &[String]) -> Self {
        let allowed = allowed_origins.iter().map(|o| o.trim_end_matches('/').to_owned());
        Self { loopback_only, allowed: allowed.collect() }
    }

    /// Why a request is refused, or `None` if it may pass.
    pub(crate) fn refusal(&self, headers: &HeaderMap, uri: &Uri) -> Option<String> {
        if let Some(origin) = headers.get(header::ORIGIN)
            && !self.allows(origin)
        {
            let origin = origin.to_str().unwrap_or("?");
            return Some(format!(
                "pages from origin `{origin}` may not use this server; --allow-origin lets them"
            ));
        }
        if !self.loopback_only {
            return None;
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or(uri.authority().map(|authority| authority.as_str()));
        match host {
            Some(host) if !is_loopback(host) => Some(format!(
                "host `{host}` is not a name of this machine; --insecure-listen serves other names"
            )),
            _ => None,
        }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let host = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        host.is_some_and(is_loopback)
            || self.allowed.iter().any(|a| a == "*" || a.eq_ignore_ascii_case(origin))
    }
}

/// True if `host` or `host:port` names this machine and no other.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    match name.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(guard: &Guard, host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        guard.refusal(&headers, &Uri::from_static("/")).is_some()
    }

    #[test]
    fn a_foreign_page_and_a_foreign_name_are_refused() {
        let guard = Guard::new(true, &["https://app.example/".to_owned()]);
        for host in ["127.0.0.1:6632", "localhost", "LOCALHOST:1", "[::1]:6632", "a.localhost:1"] {
            assert!(!refused(&guard, host, None), "{host}");
            assert!(!refused(&guard, host, Some("http://localhost:3000")));
            assert!(!refused(&guard, host, Some("https://app.example")));
            for origin in
                ["https://evil.example", "null", "http://localhost.evil.example", "file://"]
            {
                assert!(refused(&guard, host, Some(origin)), "{origin}");
            }
        }
        for host in ["evil.example:6632", "192.168.0.7", "127.0.0.1.evil.example", ""] {
            assert!(refused(&guard, host, None), "{host}");
        }
    }

    #[test]
    fn an_open_server_takes_every_name_but_still_not_every_page() {
        let guard = Guard::new(false, &[]);
        assert!(!refused(&guard, "tidewheel.internal", None));
        assert!(refused(&guard, "tidewheel.internal", Some("https://evil.example")));
        let guard = Guard::new(false, &["*".to_owned()]);
        assert!(!refused(&guard, "tidewheel.internal", Some("https://any.example")));
    }
}
