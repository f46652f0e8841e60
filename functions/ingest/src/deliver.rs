//! Rows become pushes, and each learns alone what became of it.

use bytes::Bytes;
use serde_json::{Value, json};
use tidewheel_engine::{Engine, PushItem, Pushed};

use crate::routes::{Partition, Route};

/// What a stream of rejected rows is named like.
pub(crate) const REJECTED: &str = "-rejected";

/// Bytes of a rejected row that are kept with what was wrong.
const EXCERPT_BYTES: usize = 64 * 1024;

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    /// It is stored.
    Stored,
    /// It was stored before.
    Duplicate,
    /// It never will be.
    Refused(String),
    /// It may be, later.
    Failed(String),
}

/// A row of a source as a push.
pub(crate) fn item(route: &Route, id: String, key: Option<&str>, payload: Bytes) -> PushItem {
    let partition = match &route.partition {
        Partition::Named(name) => name.clone(),
        Partition::Key => key.unwrap_or_default().to_owned(),
        Partition::At(pointer) => at(pointer, &payload).unwrap_or_default(),
    };
    PushItem {
        stream: route.stream.clone(),
        partition,
        payload,
        transaction_id: Some(id),
        key: key.map(str::to_owned),
        headers: None,
    }
}

/// The text or number at a place of a row.
fn at(pointer: &str, payload: &[u8]) -> Option<String> {
    let row: Value = serde_json::from_slice(payload).ok()?;
    match row.pointer(pointer)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The row that tells of one that cannot be stored.
pub(crate) fn rejected(
    stream: &str,
    id: &str,
    source: &str,
    row: Option<u64>,
    why: &str,
    content: &[u8],
) -> PushItem {
    let excerpt = &content[..content.len().min(EXCERPT_BYTES)];
    let payload = json!({
        "source": source, "row": row, "error": why, "bytes": content.len(),
        "content": String::from_utf8_lossy(excerpt),
    });
    PushItem {
        stream: format!("{stream}{REJECTED}"),
        payload: payload.to_string().into(),
        transaction_id: Some(format!("{id}:rejected")),
        ..PushItem::default()
    }
}

/// Pushes rows, in their order. A row that can never be stored refuses the commit that it is in, so its neighbours are
/// pushed again without it.
pub(crate) async fn push(engine: &Engine, items: Vec<PushItem>) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = engine.push(items.clone()).await.iter().map(outcome).collect();
    if items.len() > 1 {
        for (at, item) in items.into_iter().enumerate() {
            if matches!(outcomes[at], Outcome::Refused(_)) {
                outcomes[at] = engine.push(vec![item]).await.first().map_or_else(
                    || Outcome::Failed("the engine did not answer".to_owned()),
                    outcome,
                );
            }
        }
    }
    outcomes
}

fn outcome(pushed: &Pushed) -> Outcome {
    match pushed {
        Pushed::Queued { .. } => Outcome::Stored,
        Pushed::Duplicate { .. } => Outcome::Duplicate,
        Pushed::Refused(error) if error.is_transient() => Outcome::Failed(error.to_string()),
        Pushed::Refused(error) => Outcome::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Routes;

    fn partition(rule: &str, key: Option<&str>, payload: &'static str) -> String {
        let text = format!(r#"[{{"source": "*", "partition": "{rule}"}}]"#);
        let route = Routes::parse(&text).unwrap().of("s", "stream");
        item(&route, "id".to_owned(), key, Bytes::from_static(payload.as_bytes())).partition
    }

    #[test]
    fn a_partition_is_a_name_a_place_or_the_sources_key() {
        assert_eq!(partition("eu", Some("k"), "{}"), "eu");
        assert_eq!(partition("$key", Some("k"), "{}"), "k");
        assert_eq!(partition("$key", None, "{}"), "");
        assert_eq!(partition("/a/0", None, r#"{"a": [7]}"#), "7");
        assert_eq!(partition("/a", None, r#"{"a": "x y"}"#), "x y");
        assert_eq!(partition("/a", None, r#"{"a": {}}"#), "");
        assert_eq!(partition("/a", None, "no json"), "");
    }
}
