//! Why a connection ends: a code that the client's library turns into an exception, and a reason with the numbers.
//!
//! A reason is compact JSON of at most [`limits::REASON_BYTES`] bytes. Its fields come most useful first and are dropped
//! whole, from the end, until it fits.

use serde_json::{Map, Value, json};

use crate::limits;

/// A close: code and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// The close code.
    pub code: u16,
    /// The reason, at most [`limits::REASON_BYTES`] bytes.
    pub reason: String,
}

impl Close {
    /// The server is going away; the client reconnects and resumes.
    pub fn going_away() -> Self {
        Self { code: 1001, reason: "going away".to_owned() }
    }

    /// The client did not answer a ping in time.
    pub fn ping_timeout() -> Self {
        Self { code: 1011, reason: "ping timeout".to_owned() }
    }

    /// A message larger than what is read at all.
    pub fn message_too_big(size: u64, limit: usize) -> Self {
        let reason = format!("frame with {size} bytes exceeds limit of {limit} bytes");
        Self { code: 1009, reason }
    }

    /// The client does not keep to the WebSocket protocol.
    pub fn protocol_error(why: &str) -> Self {
        Self { code: 1002, reason: why.to_owned() }
    }

    /// A text that is not UTF-8.
    pub fn not_text() -> Self {
        Self { code: 1007, reason: "invalid UTF-8".to_owned() }
    }

    /// The log cannot be read at the moment; the client may come back.
    pub fn unavailable() -> Self {
        Self { code: 1011, reason: "stream unavailable".to_owned() }
    }

    /// A request that cannot be understood or is not supported.
    pub(crate) fn bad_request(detail: impl AsRef<str>) -> Self {
        let detail: String = detail.as_ref().chars().take(limits::DETAIL_CHARS).collect();
        Self::with(4400, "bad_request", &[("detail", json!(detail))])
    }

    /// No such stream; those that there are, if they are few.
    pub(crate) fn no_such_stream(serves: &[String]) -> Self {
        if serves.is_empty() {
            return Self::with(4404, "no_such_stream", &[]);
        }
        Self::with(4404, "no_such_stream", &[("serves", json!(serves))])
    }

    /// Another connection publishes under the same id by now.
    pub(crate) fn superseded() -> Self {
        Self::with(4409, "superseded", &[])
    }

    /// The stream takes no more rows. The offset is a wire offset.
    pub(crate) fn retired(at_us: i64, end_offset: u64) -> Self {
        let fields = [("at", json!(at_us)), ("end_offset", json!(end_offset))];
        Self::with(4410, "stream_retired", &fields)
    }

    /// The stream keeps no marks of publishers.
    pub(crate) fn exactly_once_unavailable() -> Self {
        Self::with(4412, "exactly_once_unavailable", &[("why", json!("stream"))])
    }

    /// A publisher's message that is larger than its stream allows.
    pub(crate) fn too_big(size: usize, limit: usize, stream: &str) -> Self {
        let fields = [("size", json!(size)), ("limit", json!(limit)), ("stream", json!(stream))];
        Self::with(1009, "too_big", &fields)
    }

    /// The stream has no log to replay from.
    pub(crate) fn not_durable() -> Self {
        Self::not_replayable("not_durable", &[])
    }

    /// The offset lies beyond the next one to be assigned. All in wire offsets.
    pub(crate) fn ahead(offset: u64, end_offset: u64) -> Self {
        Self::not_replayable(
            "ahead",
            &[("offset", json!(offset)), ("end_offset", json!(end_offset))],
        )
    }

    /// The offset has been deleted. All in wire offsets.
    pub(crate) fn evicted(offset: u64, earliest: u64) -> Self {
        Self::not_replayable("evicted", &[("offset", json!(offset)), ("earliest", json!(earliest))])
    }

    /// More rows than may be replayed. The offset is a wire offset.
    pub(crate) fn too_old(offset: u64, behind: u64, max_replay: u64) -> Self {
        let fields = [
            ("offset", json!(offset)),
            ("behind", json!(behind)),
            ("max_replay", json!(max_replay)),
        ];
        Self::not_replayable("too_old", &fields)
    }

    /// The subscriber reads more slowly than the log grows. It resumes after the last row that it had.
    pub(crate) fn too_slow(backlog: u64) -> Self {
        Self::with(4429, "too_slow", &[("backlog", json!(backlog))])
    }

    fn not_replayable(why: &str, fields: &[(&str, Value)]) -> Self {
        let mut all = vec![("why", json!(why))];
        all.extend_from_slice(fields);
        Self::with(4416, "not_replayable", &all)
    }

    fn with(code: u16, error: &str, fields: &[(&str, Value)]) -> Self {
        let text = |count: usize| {
            let parts = fields[..count].iter().map(|(name, value)| {
                let mut one = Map::new();
                one.insert((*name).to_owned(), value.clone());
                let object = Value::Object(one).to_string();
                format!(",{}", &object[1..object.len() - 1])
            });
            format!("{{\"error\":\"{error}\"{}}}", parts.collect::<String>())
        };
        let reason = (0..=fields.len())
            .rev()
            .map(text)
            .find(|reason| reason.len() <= limits::REASON_BYTES)
            .unwrap_or_default();
        Self { code, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_documented_shapes() {
        let reason = |close: Close| (close.code, close.reason);
        assert_eq!(
            reason(Close::ahead(9, 4)),
            (4416, r#"{"error":"not_replayable","why":"ahead","offset":9,"end_offset":4}"#.into())
        );
        assert_eq!(
            reason(Close::too_old(1, 30, 10)),
            (
                4416,
                r#"{"error":"not_replayable","why":"too_old","offset":1,"behind":30,"max_replay":10}"#
                    .into()
            )
        );
        assert_eq!(
            reason(Close::too_slow(8192)),
            (4429, r#"{"error":"too_slow","backlog":8192}"#.into())
        );
        assert_eq!(
            reason(Close::no_such_stream(&[])),
            (4404, r#"{"error":"no_such_stream"}"#.into())
        );
        assert_eq!(
            reason(Close::no_such_stream(&["a".into(), "b".into()])),
            (4404, r#"{"error":"no_such_stream","serves":["a","b"]}"#.into())
        );
        assert_eq!(reason(Close::superseded()), (4409, r#"{"error":"superseded"}"#.into()));
        assert_eq!(
            reason(Close::retired(1_790_000_000_000_000, 41)),
            (4410, r#"{"error":"stream_retired","at":1790000000000000,"end_offset":41}"#.into())
        );
        assert_eq!(
            reason(Close::exactly_once_unavailable()),
            (4412, r#"{"error":"exactly_once_unavailable","why":"stream"}"#.into())
        );
        assert_eq!(
            reason(Close::not_durable()),
            (4416, r#"{"error":"not_replayable","why":"not_durable"}"#.into())
        );
        assert_eq!(
            reason(Close::too_big(11, 10, "trades")),
            (1009, r#"{"error":"too_big","size":11,"limit":10,"stream":"trades"}"#.into())
        );
    }

    #[test]
    fn a_reason_never_exceeds_a_control_frame() {
        let long = Close::bad_request("x".repeat(500));
        assert!(
            long.reason.len() <= limits::REASON_BYTES && long.reason.contains("xxx"),
            "{long:?}"
        );
        // 80 characters of four bytes do not fit: the detail goes, the word stays.
        let wide = Close::bad_request("\u{1f30a}".repeat(80));
        assert_eq!(wide.reason, r#"{"error":"bad_request"}"#);
        let many: Vec<String> = (0..40).map(|n| format!("stream-{n}")).collect();
        assert_eq!(Close::no_such_stream(&many).reason, r#"{"error":"no_such_stream"}"#);
        let named = Close::too_big(usize::MAX, usize::MAX, &"s".repeat(128));
        assert!(named.reason.ends_with(r#""limit":18446744073709551615}"#), "{named:?}");
        let quoted = Close::bad_request("\"".repeat(80));
        assert_eq!(quoted.reason, r#"{"error":"bad_request"}"#);
        let numbers = Close::too_old(u64::MAX, u64::MAX, u64::MAX);
        assert!(numbers.reason.len() <= limits::REASON_BYTES, "{numbers:?}");
        assert!(serde_json::from_str::<Value>(&numbers.reason).is_ok(), "{numbers:?}");
    }
}
