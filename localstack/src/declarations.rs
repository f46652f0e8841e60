//! Streams that are declared when the stack starts (`--declare FILE`).
//!
//! The file is a JSON object from a stream's name to what it declares. A stream that is there and has declared the same
//! stays as it is; one that has declared something else is an error, and the stack does not start.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tidewheel_engine::{Declaration, Engine};
use tidewheel_schema::Schema;

/// Why the streams could not be declared.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", file.display())]
pub struct DeclareError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, naming the stream.
    pub why: String,
}

/// A stream in the file. What is left out is as the engine has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stream {
    schema: Option<Box<RawValue>>,
    #[serde(default)]
    sort_by: Vec<String>,
    log: Option<bool>,
    group_commit: Option<bool>,
    exactly_once: Option<bool>,
    /// `null` is unbounded, which is not the same as nothing.
    #[serde(default, deserialize_with = "given")]
    max_replay: Option<Option<u64>>,
    #[serde(default)]
    limits: Limits,
    /// Seconds.
    flush_every: Option<f64>,
    /// Seconds.
    max_age: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    max_backlog: Option<u64>,
    max_message_bytes: Option<usize>,
    max_publishers: Option<usize>,
}

fn given<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Declares the streams of a file.
pub(crate) async fn declare(engine: &Engine, file: &Path) -> Result<(), DeclareError> {
    let failed = |why: String| DeclareError { file: file.to_owned(), why };
    let text = std::fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
    for (name, declaration) in read(&text).map_err(failed)? {
        let declared = engine.declare(&name, declaration).await;
        declared.map_err(|e| failed(e.to_string()))?;
    }
    Ok(())
}

fn read(text: &str) -> Result<Vec<(String, Declaration)>, String> {
    let streams: BTreeMap<String, Stream> =
        serde_json::from_str(text).map_err(|e| e.to_string())?;
    streams
        .into_iter()
        .map(|(name, stream)| {
            let declaration = declaration(stream).map_err(|why| format!("{name}: {why}"))?;
            Ok((name, declaration))
        })
        .collect()
}

fn declaration(stream: Stream) -> Result<Declaration, String> {
    let usual = Declaration::default();
    let schema = stream.schema.map(|text| Schema::compile(text.get())).transpose();
    let schema = schema.map_err(|e| e.to_string())?;
    let micros = |name: &str, seconds: Option<f64>| match seconds {
        Some(s) if !(s > 0.0 && s < 1e12) => Err(format!("{name} is {s}; it is seconds, above 0")),
        seconds => Ok(seconds.map(|s| (s * 1e6) as i64)),
    };
    Ok(Declaration {
        schema: schema.map(Arc::new),
        sort_by: stream.sort_by,
        log: stream.log.unwrap_or(usual.log),
        group_commit: stream.group_commit.unwrap_or(usual.group_commit),
        exactly_once: stream.exactly_once.unwrap_or(usual.exactly_once),
        max_publishers: stream.limits.max_publishers.unwrap_or(usual.max_publishers),
        max_replay: stream.max_replay.unwrap_or(usual.max_replay),
        max_backlog: stream.limits.max_backlog.unwrap_or(usual.max_backlog),
        max_message_bytes: stream.limits.max_message_bytes.unwrap_or(usual.max_message_bytes),
        flush_every_us: micros("flush_every", stream.flush_every)?,
        max_age_us: micros("max_age", stream.max_age)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_streams_declare() {
        let text = r#"{
            "trades": {"schema": {"properties": {"b": {"type": "string"}, "a": {"type": "integer"}},
                                  "required": ["a", "b"]},
                       "exactly_once": true, "max_replay": null, "limits": {"max_backlog": 16},
                       "flush_every": 2.5},
            "anything": {"log": false}
        }"#;
        let streams = read(text).unwrap();
        let (name, anything) = &streams[0];
        assert_eq!(
            (name.as_str(), anything.log, anything.schema.is_none()),
            ("anything", false, true)
        );
        assert_eq!(anything.max_replay, Declaration::default().max_replay);
        let (name, trades) = &streams[1];
        assert_eq!(name, "trades");
        let columns = trades.schema.as_ref().unwrap().columns();
        assert_eq!(columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!((trades.max_replay, trades.max_backlog), (None, 16));
        assert_eq!((trades.exactly_once, trades.flush_every_us), (true, Some(2_500_000)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("[]", "map"),
            (r#"{"s":{"colour":"red"}}"#, "colour"),
            (r#"{"s":{"schema":{"properties":{"a":{"type":"date"}}}}}"#, "s: "),
            (r#"{"s":{"flush_every":0}}"#, "flush_every"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
