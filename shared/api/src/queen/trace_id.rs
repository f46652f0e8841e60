//! The trace id of a record: a client's own, carried from a transaction's push to the pop. It is the member `traceId` of
//! the record's headers.

use bytes::Bytes;
use serde::Deserialize;
use tidewheel_engine::Uuid;

/// Headers that carry a trace id.
pub(crate) fn headers(trace_id: &Uuid) -> Bytes {
    format!("{{\"traceId\":\"{trace_id}\"}}").into()
}

/// The trace id that headers carry.
pub(crate) fn of(headers: Option<&Bytes>) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct Headers {
        #[serde(rename = "traceId")]
        trace_id: Option<String>,
    }
    let headers: Headers = serde_json::from_slice(headers?).ok()?;
    Uuid::parse(&headers.trace_id?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_comes_back_from_its_headers() {
        let id = Uuid::from_bytes([0xab; 16]);
        assert_eq!(of(Some(&headers(&id))), Some(id));
        for other in ["", "{}", "[]", r#"{"traceId":1}"#, r#"{"traceId":"x"}"#] {
            assert_eq!(of(Some(&Bytes::from(other))), None, "{other}");
        }
        assert_eq!(of(None), None);
    }
}
