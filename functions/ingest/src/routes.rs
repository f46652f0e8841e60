//! What goes where.
//!
//! `TIDEWHEEL_INGEST` is a list of routes; the first whose `source` fits is taken:
//!
//! ```json
//! [{"source": "arn:aws:sqs:*:*:orders-*", "stream": "orders", "partition": "/customer/id"},
//!  {"source": "arn:aws:s3:::landing/sales/*", "stream": "sales", "format": "csv", "delimiter": ";", "numbers": ["amount"]}]
//! ```
//!
//! - `source`: a pattern of ARNs, where `*` stands for any text and `?` for one letter. Queues, topics and Kinesis streams
//!   have theirs; an object is `arn:aws:s3:::<bucket>/<key>`; an event of EventBridge is `events:<source>/<detail-type>`,
//!   because it does not say which bus it came by.
//! - `stream`: the stream. Without a route it is the queue's, topic's, Kinesis stream's or bucket's name, or an event's
//!   source.
//! - `partition`: a name; or a JSON pointer, `/customer/id`, into each row, whose text or number is the name; or `$key`,
//!   the source's own key (Kinesis's partition key, a FIFO queue's message group). Without it, and for a row that
//!   has nothing there, it is the default partition.
//! - of objects, `format`: `lines` (JSON lines), `csv` or `parquet`; without it the name's ending tells;
//!   `delimiter` of CSV; `numbers`: columns of CSV whose values become numbers. All others stay text, because nothing
//!   else is sure: `007` is no number, and neither are most that look like one.

use serde::Deserialize;

/// Where the rows of a source go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    /// The stream.
    pub(crate) stream: String,
    /// How the partition is found.
    pub(crate) partition: Partition,
    /// What an object holds, if it is said.
    pub(crate) format: Option<Format>,
    /// Between two fields of CSV.
    pub(crate) delimiter: Option<u8>,
    /// Columns of CSV that hold numbers.
    pub(crate) numbers: Vec<String>,
}

/// How a row's partition is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Partition {
    /// The same for all; the default one if empty.
    Named(String),
    /// What is at this place in the row.
    At(String),
    /// The source's own key.
    Key,
}

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// A JSON value on each line.
    Lines,
    /// Comma-separated values with a header.
    Csv,
    /// Parquet.
    Parquet,
}

/// Why the routes cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoutesError {
    /// They are not what they should be.
    #[error("TIDEWHEEL_INGEST is no list of routes: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A delimiter is not one ASCII letter.
    #[error("TIDEWHEEL_INGEST: the delimiter of `{0}` must be one ASCII character")]
    Delimiter(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    source: String,
    stream: Option<String>,
    #[serde(default)]
    partition: String,
    format: Option<Format>,
    delimiter: Option<String>,
    #[serde(default)]
    numbers: Vec<String>,
}

/// All routes.
#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<(String, Option<String>, Route)>);

impl Routes {
    /// Reads the variable. Nothing in it is no routes.
    pub(crate) fn parse(text: &str) -> Result<Self, RoutesError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let rules: Vec<Rule> = serde_json::from_str(text)?;
        let routes = rules.into_iter().map(|rule| {
            let delimiter = match rule.delimiter.as_deref().map(str::as_bytes) {
                None => None,
                Some([one]) if one.is_ascii() => Some(*one),
                Some(_) => return Err(RoutesError::Delimiter(rule.source)),
            };
            let partition = match rule.partition.as_str() {
                "$key" => Partition::Key,
                pointer if pointer.starts_with('/') => Partition::At(rule.partition),
                _ => Partition::Named(rule.partition),
            };
            let route = Route {
                stream: String::new(),
                partition,
                format: rule.format,
                delimiter,
                numbers: rule.numbers,
            };
            Ok((rule.source, rule.stream, route))
        });
        Ok(Self(routes.collect::<Result<_, _>>()?))
    }

    /// The route of a source, whose own name is the stream's unless a route says another.
    pub(crate) fn of(&self, source: &str, name: &str) -> Route {
        match self.0.iter().find(|(pattern, ..)| fits(pattern.as_bytes(), source.as_bytes())) {
            Some((_, stream, route)) => {
                Route { stream: stream.clone().unwrap_or_else(|| name.to_owned()), ..route.clone() }
            }
            None => Route {
                stream: name.to_owned(),
                partition: Partition::Named(String::new()),
                format: None,
                delimiter: None,
                numbers: Vec::new(),
            },
        }
    }
}

/// True if a text fits a pattern of `*` and `?`. Takes as many steps as the two are long, multiplied.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                // The star before takes one letter more.
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_they_say() {
        for (pattern, text, expected) in [
            ("arn:aws:sqs:*:*:orders-*", "arn:aws:sqs:eu-north-1:123:orders-eu", true),
            ("arn:aws:sqs:*:*:orders-*", "arn:aws:sqs:eu-north-1:123:order", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b", "xaxxbxab", true),
            ("*a*b", "xaxxbxa", false),
            ("", "", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_route_that_fits_counts_and_without_one_the_sources_name_is_the_stream() {
        let routes = Routes::parse(
            r#"[{"source": "*:special", "stream": "a", "partition": "/id"},
                {"source": "*:s*", "partition": "$key"}]"#,
        )
        .unwrap();
        let route = routes.of("arn:special", "special");
        assert_eq!(
            (route.stream.as_str(), route.partition),
            ("a", Partition::At("/id".to_owned()))
        );
        let route = routes.of("arn:some", "some");
        assert_eq!((route.stream.as_str(), route.partition), ("some", Partition::Key));
        let route = routes.of("arn:other", "other");
        assert_eq!(
            (route.stream.as_str(), route.partition),
            ("other", Partition::Named(String::new()))
        );
    }

    #[test]
    fn mistakes_are_named_and_nothing_is_guessed() {
        assert!(Routes::parse(" ").unwrap().0.is_empty());
        let error = |text| Routes::parse(text).unwrap_err().to_string();
        assert!(error(r#"[{"source": "x", "steam": "y"}]"#).contains("steam"));
        assert!(error(r#"[{"stream": "y"}]"#).contains("source"));
        assert!(error(r#"[{"source": "x", "format": "xml"}]"#).contains("xml"));
        assert!(error(r#"[{"source": "x", "delimiter": "::"}]"#).contains("`x`"));
    }
}
