//! JSON as this crate reads it: objects keep the order of their members, and scalars keep their text, so that `1`,
//! `1.0` and `9223372036854775808` stay apart. Nothing here recurses on the input's nesting.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// The members of an object, in the order of the text. A repeated key stands as often as it was written.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Ordered)
    }
}

/// The elements of an array.
pub(crate) struct Elements<'a>(pub(crate) Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Listed;
        impl<'de> Visitor<'de> for Listed {
            type Value = Elements<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = seq.next_element()? {
                    elements.push(element);
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(Listed)
    }
}

/// One value, looked at but not yet read further.
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    /// The number's text.
    Number(&'a str),
    /// The string's text, quotes and escapes included.
    Text(&'a str),
    Array(&'a str),
    Object(&'a str),
}

impl<'a> Value<'a> {
    /// What the value is, by its first byte. The text is one JSON value, checked.
    pub(crate) fn of(raw: &'a RawValue) -> Self {
        let text = raw.get();
        match text.as_bytes().first() {
            Some(b'n') => Value::Null,
            Some(b't') => Value::Bool(true),
            Some(b'f') => Value::Bool(false),
            Some(b'"') => Value::Text(text),
            Some(b'[') => Value::Array(text),
            Some(b'{') => Value::Object(text),
            _ => Value::Number(text),
        }
    }

    /// The JSON type's name, for messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if is_whole(n) => "integer",
            Value::Number(_) => "number",
            Value::Text(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }
}

/// True if a number is written without fraction and exponent.
pub(crate) fn is_whole(number: &str) -> bool {
    !number.bytes().any(|b| matches!(b, b'.' | b'e' | b'E'))
}

/// Reads a string's text.
pub(crate) fn text(raw: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    serde_json::from_str::<Name<'_>>(raw).map(|n| n.0)
}
