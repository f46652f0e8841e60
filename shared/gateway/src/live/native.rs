//! Native frames: what a client may ask for, and what it is told.
//!
//! A frame is a JSON text. A request carries an `id`, a text or a whole number; every reply repeats it, and so does every
//! frame of rows: the id of a `subscribe` is the name of the subscription. A request that cannot be understood or not
//! be carried out is answered in band, with a word for programs, a sentence for people, and the limit if one was met:
//! the managed gateway knows no close codes.

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tidewheel_engine::{Error, PartitionId, Pushed};

use super::rows::Place;
use crate::{Close, Start, limits};

/// A position as a client keeps it: one opaque text that names the partition and the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) partition: PartitionId,
    pub(crate) offset: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

impl Position {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (partition, offset) = text.split_once('@')?;
        let digits = offset.bytes().all(|b| b.is_ascii_digit());
        Some(Self {
            partition: PartitionId::parse(partition)?,
            offset: offset.parse().ok().filter(|_| digits)?,
        })
    }
}

/// A refusal of a native request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) fields: Map<String, Value>,
}

impl Refusal {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), fields: Map::new() }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new("bad_request", message)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn no_such_stream(stream: &str) -> Self {
        Self::new("no_such_stream", format!("there is no stream '{stream}'"))
    }

    /// The refusal of what the engine refused.
    pub(crate) fn of(error: &Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Name { limit, .. } => Self::bad(message).with("limit", *limit),
            Error::Limit { limit, .. } => Self::new("too_large", message).with("limit", *limit),
            Error::Invalid(_) => Self::bad(message),
            Error::StreamNotFound(stream) => Self::no_such_stream(stream),
            Error::Busy => Self::new("busy", message),
            Error::Paused(_) => Self::new("paused", message),
            Error::Unknown(_) => Self::new("unknown_outcome", message),
            _ => {
                // What is wrong inside is the operator's to read.
                tracing::warn!(%error, "a request failed");
                Self::new("unavailable", "the request cannot be served at the moment")
            }
        }
    }

    /// The refusal of what the streamcast side of the gateway refuses.
    pub(crate) fn of_close(close: &Close) -> Self {
        let reason: Value = serde_json::from_str(&close.reason).unwrap_or_default();
        Self::bad(reason.get("detail").and_then(Value::as_str).unwrap_or(&close.reason))
    }

    /// The frame that answers the request of this id.
    pub(crate) fn frame(self, id: Option<&RawValue>) -> String {
        let mut error = Map::new();
        error.insert("code".to_owned(), self.code.into());
        error.insert("message".to_owned(), self.message.into());
        error.extend(self.fields);
        reply(id.map_or("null", RawValue::get), "error", &Value::Object(error))
    }
}

/// A frame that repeats an id (JSON text) and says one thing.
pub(crate) fn reply(id: &str, name: &str, value: &Value) -> String {
    format!("{{\"id\":{id},\"{name}\":{value}}}")
}

/// A request, not yet looked into.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    pub(crate) op: Option<String>,
}

impl<'a> Envelope<'a> {
    /// Reads what names a request; `None` if the text is no native request.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str::<Self>(text).ok().filter(|envelope| envelope.op.is_some())
    }

    /// The id, checked: its JSON text is the key of a subscription.
    pub(crate) fn id(&self) -> Result<&'a RawValue, Refusal> {
        let limit = limits::NATIVE_ID_BYTES;
        let bad = || {
            Refusal::bad(format!("id must be a text of 1 to {limit} bytes or a whole number"))
                .with("limit", limit)
        };
        let id = self.id.ok_or_else(bad)?;
        let fits = match serde_json::from_str(id.get()) {
            Ok(Value::String(text)) => !text.is_empty() && id.get().len() <= limit + 2,
            Ok(Value::Number(number)) => number.is_u64() || number.is_i64(),
            _ => false,
        };
        if fits { Ok(id) } else { Err(bad()) }
    }
}

/// `subscribe`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    #[serde(rename = "id")]
    _id: Value,
    #[serde(rename = "op")]
    _op: Value,
    pub(crate) stream: String,
    pub(crate) partition: Option<String>,
    #[serde(default)]
    pub(crate) from: From,
    #[serde(rename = "where")]
    pub(crate) filter: Option<Box<RawValue>>,
    #[serde(default)]
    pub(crate) window_ms: u64,
}

/// Where a subscription begins.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum From {
    #[default]
    Live,
    Earliest,
    Offset(u64),
    Position(String),
}

/// Where a subscription begins, by what the log holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) at: u64,
    pub(crate) start: Start,
    pub(crate) gapless: bool,
}

impl From {
    /// # Errors
    /// For an offset that lies ahead, and for a position that is none.
    pub(crate) fn begin(
        &self,
        place: &Place,
        extent: tidewheel_engine::Extent,
    ) -> Result<Begin, Refusal> {
        let tidewheel_engine::Extent { floor, tail } = extent;
        let at = |offset: u64, gapless: bool| {
            // What retention has deleted cannot be served, and is not passed over in silence.
            let begin = offset.clamp(floor, tail);
            Begin { at: begin, start: Start::At(begin), gapless: gapless && begin == offset }
        };
        match self {
            From::Live => Ok(Begin { at: tail, start: Start::Live, gapless: true }),
            From::Earliest => Ok(Begin { at: floor, start: Start::Earliest, gapless: true }),
            From::Offset(offset) if *offset > tail => {
                Err(Refusal::new("ahead", format!("offset {offset} lies beyond the next, {tail}"))
                    .with("next", tail))
            }
            From::Offset(offset) => Ok(at(*offset, true)),
            From::Position(text) => match Position::parse(text) {
                Some(position) if position.partition == place.id() => Ok(at(position.offset, true)),
                // Of another partition, or of a stream that was deleted and came back.
                Some(_) => Ok(at(floor, false)),
                None => Err(Refusal::bad("from.position is no position that this server gave")),
            },
        }
    }
}

/// `unsubscribe`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsubscribe {
    #[serde(rename = "id")]
    _id: Value,
    #[serde(rename = "op")]
    _op: Value,
    pub(crate) subscription: Box<RawValue>,
}

/// `publish`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    #[serde(rename = "id")]
    _id: Value,
    #[serde(rename = "op")]
    _op: Value,
    pub(crate) stream: String,
    #[serde(default)]
    pub(crate) partition: String,
    pub(crate) rows: Vec<Box<RawValue>>,
    pub(crate) transaction_ids: Option<Vec<String>>,
}

/// Reads a request's own part.
pub(crate) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|e| Refusal::bad(e.to_string()))
}

/// What became of published rows, in their order; the first refusal refuses the frame.
pub(crate) fn published(outcomes: &[Pushed]) -> Result<Value, Refusal> {
    let one = |pushed: &Pushed| match pushed {
        Pushed::Queued { offset, .. } => Ok(json!({"offset": offset, "duplicate": false})),
        Pushed::Duplicate { offset, .. } => Ok(json!({"offset": offset, "duplicate": true})),
        Pushed::Refused(error) => Err(Refusal::of(error)),
    };
    outcomes.iter().map(one).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

#[cfg(test)]
mod tests {
    use tidewheel_engine::{Extent, Uuid};

    use super::*;

    fn place() -> Place {
        Place { stream: "s".into(), stream_id: Uuid::from_bytes([9; 16]), name: "p".into() }
    }

    #[test]
    fn a_position_is_one_text_and_comes_back() {
        let position = Position { partition: place().id(), offset: 7 };
        assert_eq!(Position::parse(&position.to_string()), Some(position));
        for bad in ["", "7", "x@7", &format!("{}@", place().id()), &format!("{}@+7", place().id())]
        {
            assert_eq!(Position::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_join_says_whether_it_is_gapless() {
        let extent = Extent { floor: 3, tail: 9 };
        let begin = |from: From| from.begin(&place(), extent).map(|b| (b.at, b.gapless));
        let position =
            |offset| From::Position(Position { partition: place().id(), offset }.to_string());
        assert_eq!(begin(From::Live), Ok((9, true)));
        assert_eq!(begin(From::Earliest), Ok((3, true)));
        assert_eq!(begin(position(5)), Ok((5, true)));
        assert_eq!(begin(position(9)), Ok((9, true)));
        assert_eq!(begin(position(1)), Ok((3, false)), "what retention has deleted");
        assert_eq!(begin(From::Offset(1)), Ok((3, false)));
        assert_eq!(begin(From::Offset(10)).unwrap_err().code, "ahead");
        let other = Place { stream_id: Uuid::from_bytes([8; 16]), ..place() };
        let other = Position { partition: other.id(), offset: 5 }.to_string();
        assert_eq!(begin(From::Position(other)), Ok((3, false)), "a stream that came back");
        assert_eq!(begin(From::Position("5".into())).unwrap_err().code, "bad_request");
    }

    #[test]
    fn ids_are_texts_and_whole_numbers_and_come_back_as_they_are() {
        let id = |text: &str| {
            let text = format!("{{\"op\":\"ping\",\"id\":{text}}}");
            Envelope::read(&text).unwrap().id().map(|id| id.get().to_owned())
        };
        assert_eq!(id("\"a\\u0041\"").as_deref(), Ok("\"a\\u0041\""));
        assert_eq!(id("17").as_deref(), Ok("17"));
        let long = format!("\"{}\"", "x".repeat(65));
        for bad in ["null", "\"\"", "1.5", "[]", "true", long.as_str()] {
            assert_eq!(id(bad).unwrap_err().code, "bad_request", "{bad}");
        }
        assert!(Envelope::read("{\"id\":1}").is_none());
        assert!(Envelope::read("[1]").is_none());
        assert!(Envelope::read("x").is_none());
    }

    #[test]
    fn a_refusal_repeats_the_id_and_names_the_limit() {
        let id: Box<RawValue> = RawValue::from_string("\"q\"".into()).unwrap();
        let error = Error::Limit { what: "bytes in one payload", got: 20, limit: 10 };
        let frame: Value = serde_json::from_str(&Refusal::of(&error).frame(Some(&id))).unwrap();
        let message = "bytes in one payload is 20; the limit is 10";
        let error = json!({"code": "too_large", "message": message, "limit": 10});
        assert_eq!(frame, json!({"id": "q", "error": error}));
        assert!(Refusal::bad("x").frame(None).starts_with(r#"{"id":null,"error":"#));
        let inside = Refusal::of(&Error::Unavailable("a secret place".into()));
        assert!(!inside.message.contains("secret"), "{inside:?}");
    }
}
