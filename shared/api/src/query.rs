//! Parameters in the query string. Unknown ones are ignored; of a repeated one the first counts; a `+` is a space.

use std::borrow::Cow;

use axum::{extract::FromRequestParts, http::request::Parts};
use percent_encoding::percent_decode;

use crate::{Api, error::Failure};

/// The parameters of a request.
pub(crate) struct Parameters(Vec<(String, String)>);

impl FromRequestParts<Api> for Parameters {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Failure> {
        Self::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Parameters {
    pub(crate) fn parse(query: &str) -> Result<Self, Failure> {
        query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decoded(name)?, decoded(value)?))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// A parameter; an empty one is absent.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// A parameter as it was given, empty or not.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The first parameter that is none of these.
    pub(crate) fn other_than(&self, names: &[&str]) -> Option<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).find(|name| !names.contains(name))
    }

    /// True if the parameter is `true` or `1`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), Some("true" | "1"))
    }

    /// A whole number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            Failure::bad_request(format!("parameter `{name}` must be a whole number, not `{text}`"))
        })
    }
}

fn decoded(text: &str) -> Result<String, Failure> {
    let spaced = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { text.into() };
    percent_decode(spaced.as_bytes())
        .decode_utf8()
        .map(Cow::into_owned)
        .map_err(|_| Failure::bad_request("the query string is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let p = Parameters::parse("a=1&b=x+y%2Bz&c&d=&a=2&e=%C3%A9&&wait=true&n=-7").unwrap();
        assert_eq!(p.text("a"), Some("1"));
        assert_eq!(p.text("b"), Some("x y+z"));
        assert_eq!(p.text("c"), None);
        assert_eq!(p.text("d"), None);
        assert_eq!(p.text("e"), Some("é"));
        assert!(p.flag("wait") && p.flag("a") && !p.flag("b") && !p.flag("zz"));
        assert_eq!(p.number("n").unwrap(), Some(-7));
        assert_eq!(p.number("zz").unwrap(), None);
        assert!(p.number("b").is_err());
        assert!(Parameters::parse("a=%ff").is_err());
        assert!(Parameters::parse("n=99999999999999999999").unwrap().number("n").is_err());
    }
}
