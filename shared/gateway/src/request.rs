//! What a client asks for in its URL: `/{stream}?offset=…&where=…` to follow, `/{stream}?publish&publisher=…` to publish.
//!
//! `partition` is Tidewheel's own extension: the protocol knows streams of one partition. Keys are case-sensitive, the last
//! of a repeated key wins, and an unknown key is refused rather than ignored.

use percent_encoding::percent_decode_str;
use tidewheel_engine::DEFAULT_PARTITION;

use crate::{Close, limits};

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the next row.
    Live,
    /// With the first row that can be served.
    Earliest,
    /// With this row, an offset of the engine.
    At(u64),
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To follow.
    Subscribe(Subscribe),
    /// To publish.
    Publish(Publish),
}

/// A subscription request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// The stream.
    pub stream: String,
    /// The partition's name.
    pub partition: String,
    /// Where to begin.
    pub start: Start,
    /// Which rows are wanted: the text of a [`Filter`](crate::Filter), not yet read, because what it may say depends on
    /// the stream.
    pub filter: Option<String>,
}

/// A publishing request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The stream.
    pub stream: String,
    /// The partition's name.
    pub partition: String,
    /// Under which id every row lands once, if under any.
    pub publisher: Option<String>,
}

impl Request {
    /// The stream that it is about.
    pub fn stream(&self) -> &str {
        match self {
            Self::Subscribe(request) => &request.stream,
            Self::Publish(request) => &request.stream,
        }
    }

    /// Reads a request from a URL's path and query.
    ///
    /// # Errors
    /// 4400, naming the part, for anything that is not understood or not supported.
    pub fn parse(path: &str, query: Option<&str>) -> Result<Self, Close> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let stream = percent_decode_str(path).decode_utf8();
        let stream = stream.map_err(|_| Close::bad_request("invalid stream name"))?;
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs: Vec<_> = pairs
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((decoded(key)?, decoded(value)?))
            })
            .collect::<Result<_, Close>>()?;
        Self::of(&stream, pairs)
    }

    /// Reads a request from a stream's name and the parameters of a query, all decoded.
    ///
    /// # Errors
    /// 4400, naming the part, for anything that is not understood or not supported.
    pub fn of(
        stream: &str,
        parameters: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Close> {
        let stream = stream_name(stream)?;
        let (mut offset, mut filter, mut partition, mut publisher) = (None, None, None, None);
        let mut publish = false;
        for (key, value) in parameters {
            match key.as_str() {
                "offset" => offset = Some(value),
                "where" => filter = Some(value),
                "partition" => partition = Some(value),
                "publish" => publish = true,
                "publisher" => publisher = Some(value),
                _ => return Err(Close::bad_request(format!("unknown query parameter '{key}'"))),
            }
        }
        if publisher.is_some() && !publish {
            return Err(Close::bad_request("'publisher' needs 'publish'"));
        }
        if publish && (offset.is_some() || filter.is_some()) {
            let other = if offset.is_some() { "offset" } else { "where" };
            return Err(Close::bad_request(format!("'publish' and '{other}' exclude each other")));
        }
        let partition = partition.unwrap_or_else(|| DEFAULT_PARTITION.to_owned());
        let limit = tidewheel_engine::limits::NAME_BYTES;
        if partition.is_empty() || partition.len() > limit {
            return Err(Close::bad_request(format!("partition must have 1 to {limit} bytes")));
        }
        if publish {
            let limit = limits::PUBLISHER_BYTES;
            if publisher.as_ref().is_some_and(|id| id.is_empty() || id.len() > limit) {
                let detail = format!("an exactly-once id must have 1 to {limit} bytes");
                return Err(Close::bad_request(detail));
            }
            return Ok(Self::Publish(Publish { stream, partition, publisher }));
        }
        let start = offset.map_or(Ok(Start::Live), |text| start(&text))?;
        Ok(Self::Subscribe(Subscribe { stream, partition, start, filter }))
    }
}

fn stream_name(name: &str) -> Result<String, Close> {
    let valid = name.len() <= limits::STREAM_NAME_BYTES
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if valid { Ok(name.to_owned()) } else { Err(Close::bad_request("invalid stream name")) }
}

/// Decodes a part of a query: `+` is a space, `%XX` a byte.
fn decoded(text: &str) -> Result<String, Close> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| Close::bad_request("the query is not UTF-8"))
}

fn start(text: &str) -> Result<Start, Close> {
    let digits = text.trim();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Close::bad_request(format!(
            "offset must be a whole number from 0, not '{text}'"
        )));
    }
    // A number too large for an offset is one that lies ahead of every log.
    match digits.parse().unwrap_or(u64::MAX) {
        0 => Ok(Start::Earliest),
        offset => Ok(Start::At(offset - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Request, Close> {
        let (path, query) = url.split_once('?').map_or((url, None), |(p, q)| (p, Some(q)));
        Request::parse(path, query)
    }

    fn subscribe(url: &str) -> Subscribe {
        match parse(url).unwrap() {
            Request::Subscribe(subscribe) => subscribe,
            other => panic!("{url}: {other:?}"),
        }
    }

    fn publisher(url: &str) -> Option<String> {
        match parse(url).unwrap() {
            Request::Publish(publish) => publish.publisher,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn a_url_says_what_is_wanted() {
        let request = subscribe("/tr%61des?offset=7&partition=a%2Fb+c");
        assert_eq!(request.stream, "trades");
        assert_eq!(request.partition, "a/b c");
        assert_eq!(request.start, Start::At(6));
        let request = subscribe("/trades");
        assert_eq!((request.partition.as_str(), request.start), ("Default", Start::Live));
        assert_eq!(subscribe("/t?offset=0").start, Start::Earliest);
        assert_eq!(subscribe("/t?offset=%31").start, Start::At(0));
        assert_eq!(subscribe("/t?offset=+1").start, Start::At(0));
        assert_eq!(subscribe("/t?offset=1&offset=3").start, Start::At(2));
        assert_eq!(subscribe("/t?offset=99999999999999999999999").start, Start::At(u64::MAX - 1));
        assert_eq!(subscribe("/t?where=%7B%7D").filter.unwrap(), "{}");
    }

    #[test]
    fn the_presence_of_publish_is_enough() {
        for url in ["/t?publish", "/t?publish=0", "/t?publish&publish", "/t?publish=no"] {
            assert_eq!(publisher(url), None, "{url}");
        }
        assert_eq!(publisher("/t?publish&publisher=p%2F%C3%A9").unwrap(), "p/é");
        assert_eq!(publisher("/t?publisher=a&publish&publisher=b").unwrap(), "b");
        let longest = "%C3%A9".repeat(64);
        assert_eq!(publisher(&format!("/t?publish&publisher={longest}")).unwrap(), "é".repeat(64));
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let long = format!("/{}", "a".repeat(129));
        let id = format!("/a?publish&publisher={}", "p".repeat(129));
        for (url, detail) in [
            ("/", "invalid stream name"),
            ("/a/b", "invalid stream name"),
            ("/a/", "invalid stream name"),
            ("//a", "invalid stream name"),
            ("/-a", "invalid stream name"),
            ("/%ff", "invalid stream name"),
            (long.as_str(), "invalid stream name"),
            ("/a?Offset=1", "Offset"),
            ("/a?Publish", "Publish"),
            ("/a?x", "'x'"),
            ("/a?offset=", "offset"),
            ("/a?offset=-1", "offset"),
            ("/a?offset=1.0", "offset"),
            ("/a?offset=%ff", "UTF-8"),
            ("/a?partition=", "partition"),
            ("/a?publish&publisher=", "1 to 128 bytes"),
            (id.as_str(), "1 to 128 bytes"),
            ("/a?publisher=p", "needs 'publish'"),
            ("/a?publish&offset=1", "'offset'"),
            ("/a?publish=0&where={}", "'where'"),
        ] {
            let close = parse(url).unwrap_err();
            assert_eq!(close.code, 4400, "{url}");
            assert!(close.reason.contains(detail), "{url}: {}", close.reason);
        }
    }
}
