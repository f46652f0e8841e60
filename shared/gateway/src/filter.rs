//! `where`: which rows a subscriber wants, as a JSON object from a column to a scalar or a list of scalars.
//!
//! All columns must match; a list matches any of its values. Values compare as in Python, which the protocol comes from:
//! `1`, `1.0` and `true` are equal, `null` equals an absent column, a text never equals a number. Columns are the
//! top-level keys of a row. A row that is no object has no columns.
//!
//! On a stream with a schema a filter names columns that there are, of scalar types. A value for a column of bytes is a
//! text in the column's encoding; it is brought into the spelling that rows have ([`Filter::bind`]), so that comparing
//! the texts compares the bytes.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, value::RawValue};
use tidewheel_schema::{Encoding, Kind, Schema};

use crate::{Close, limits};

/// A `where` filter.
#[derive(Clone, Debug)]
pub struct Filter {
    text: Box<RawValue>,
    terms: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    column: String,
    any_of: Vec<Value>,
}

impl Filter {
    /// Reads a filter.
    ///
    /// # Errors
    /// 4400 unless it is an object of scalars and non-empty lists of scalars, of at most [`limits::FILTER_BYTES`].
    pub fn parse(text: &str) -> Result<Self, Close> {
        let refuse = |why: String| Err(Close::bad_request(why));
        if text.len() > limits::FILTER_BYTES {
            let limit = limits::FILTER_BYTES;
            return refuse(format!("where has {} bytes; the limit is {limit}", text.len()));
        }
        let Ok(Value::Object(columns)) = serde_json::from_str(text) else {
            return refuse("where must be a JSON object".to_owned());
        };
        let scalar = |value: &Value| !value.is_array() && !value.is_object();
        let mut terms = Vec::with_capacity(columns.len());
        for (column, value) in columns {
            let any_of = match value {
                Value::Array(values) if values.is_empty() => {
                    return refuse(format!("where: the list for '{column}' is empty"));
                }
                Value::Array(values) => values,
                value => vec![value],
            };
            if !any_of.iter().all(scalar) {
                return refuse(format!("where: '{column}' must be a scalar or a list of scalars"));
            }
            terms.push(Term { column, any_of });
        }
        match RawValue::from_string(text.trim().to_owned()) {
            Ok(text) => Ok(Self { text, terms }),
            Err(_) => refuse("where must be a JSON object".to_owned()),
        }
    }

    /// Reads a filter for a stream with this schema.
    ///
    /// # Errors
    /// 4400 as for [`Filter::parse`], and for a column that is not there, is nested, or is of bytes that the value does
    /// not spell.
    pub fn bind(text: &str, schema: Option<&Schema>) -> Result<Self, Close> {
        let mut filter = Self::parse(text)?;
        let Some(schema) = schema else { return Ok(filter) };
        for term in &mut filter.terms {
            let name = &term.column;
            let Some(column) = schema.columns().iter().find(|column| column.name == *name) else {
                return Err(Close::bad_request(format!("where: no column '{name}'")));
            };
            match column.kind {
                Kind::Struct(_) | Kind::Map(_) | Kind::List(_) => {
                    let detail =
                        format!("where: column '{name}' is nested, and cannot be compared");
                    return Err(Close::bad_request(detail));
                }
                Kind::Binary { encoding, .. } => {
                    for value in &mut term.any_of {
                        let Value::String(text) = value else { continue };
                        let Some(spelled) = spelled(encoding, text) else {
                            let encoding = encoding.name();
                            let detail = format!("where: the value for '{name}' is not {encoding}");
                            return Err(Close::bad_request(detail));
                        };
                        *text = spelled;
                    }
                }
                _ => {}
            }
        }
        Ok(filter)
    }

    /// The filter as it was sent.
    pub fn text(&self) -> &RawValue {
        &self.text
    }

    /// True if a row (JSON text) is wanted.
    pub fn matches(&self, row: &str) -> bool {
        if self.terms.is_empty() {
            return true;
        }
        let found = serde_json::Deserializer::from_str(row).deserialize_map(Columns(&self.terms));
        let found = found.unwrap_or_else(|_| vec![Value::Null; self.terms.len()]);
        self.terms
            .iter()
            .zip(&found)
            .all(|(term, value)| term.any_of.iter().any(|wanted| equal(wanted, value)))
    }
}

/// Picks the named columns out of an object and skips the rest.
struct Columns<'a>(&'a [Term]);

impl<'de> Visitor<'de> for Columns<'_> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![Value::Null; self.0.len()];
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.0.iter().position(|term| term.column == key) {
                Some(at) => found[at] = map.next_value()?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// A text of bytes in the spelling that rows have; `None` if it is none of that encoding.
fn spelled(encoding: Encoding, text: &str) -> Option<String> {
    match encoding {
        Encoding::Base16 => {
            let digits =
                text.len().is_multiple_of(2) && text.bytes().all(|b| b.is_ascii_hexdigit());
            digits.then(|| text.to_ascii_lowercase())
        }
        Encoding::Base64 => BASE64_STANDARD.decode(text).ok().map(|b| BASE64_STANDARD.encode(b)),
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.equals(b),
        (None, None) => a == b,
        _ => false,
    }
}

#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    fn equals(self, other: Self) -> bool {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a == b,
            (Number::Float(a), Number::Float(b)) => a == b,
            // Exact: a float equals a whole number only if it is that number, not if it is the nearest to it.
            (Number::Whole(whole), Number::Float(float))
            | (Number::Float(float), Number::Whole(whole)) => {
                float.fract() == 0.0 && float.abs() < 1e38 && float as i128 == whole
            }
        }
    }
}

fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(b) => Some(Number::Whole(i128::from(*b))),
        Value::Number(n) => n
            .as_i64()
            .map(i128::from)
            .or(n.as_u64().map(i128::from))
            .map(Number::Whole)
            .or(n.as_f64().map(Number::Float)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(filter: &str, row: &str) -> bool {
        Filter::parse(filter).unwrap().matches(row)
    }

    #[test]
    fn values_compare_as_the_protocol_says() {
        let row =
            r#"{"s":"x","n":1,"f":2.5,"b":true,"z":null,"o":{"s":"y"},"big":9007199254740993}"#;
        for yes in [
            "{}",
            r#"{"s":"x"}"#,
            r#"{"n":1.0}"#,
            r#"{"n":true}"#,
            r#"{"b":1}"#,
            r#"{"f":2.5}"#,
            r#"{"z":null}"#,
            r#"{"absent":null}"#,
            r#"{"s":["y","x"],"n":[0,1]}"#,
            r#"{"absent":["x",null]}"#,
            r#"{"big":9007199254740993}"#,
        ] {
            assert!(matches(yes, row), "{yes}");
        }
        for no in [
            r#"{"s":"y"}"#,
            r#"{"n":"1"}"#,
            r#"{"s":"x","n":2}"#,
            r#"{"z":0}"#,
            r#"{"z":false}"#,
            r#"{"absent":"x"}"#,
            r#"{"o":"y"}"#,
            r#"{"big":9007199254740992.0}"#,
            r#"{"big":9007199254740992}"#,
        ] {
            assert!(!matches(no, row), "{no}");
        }
    }

    #[test]
    fn the_last_of_a_repeated_key_counts_and_escapes_are_read() {
        assert!(matches(r#"{"a":2}"#, r#"{"a":1,"a":2}"#));
        assert!(matches(r#"{"é\n":"ü"}"#, r#"{"\u00e9\n":"\u00fc"}"#));
    }

    #[test]
    fn a_row_that_is_no_object_has_no_columns() {
        for row in ["7", "[1]", "\"a\"", "null"] {
            assert!(
                matches("{}", row) && matches(r#"{"a":null}"#, row) && !matches(r#"{"a":1}"#, row)
            );
        }
    }

    #[test]
    fn a_schema_says_which_columns_there_are_and_how_bytes_are_spelled() {
        let schema = Schema::compile(
            r#"{"properties":{"s":{"type":"string"},"n":{"type":["integer","null"]},
                "hex":{"type":"string","contentEncoding":"base16"},
                "b64":{"type":["string","null"],"contentEncoding":"base64"},
                "st":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},
                "map":{"type":"object","additionalProperties":{"type":"string"}},
                "list":{"type":"array","items":{"type":"string"}}},
                "required":["s","hex","st","map","list"]}"#,
        )
        .unwrap();
        let bind = |text: &str| Filter::bind(text, Some(&schema));
        let row = r#"{"s":"x","n":1,"hex":"00ff","b64":"AP8=","st":{"a":"x"}}"#;
        for yes in [
            r#"{"hex":"00FF"}"#,
            r#"{"hex":["aa","00fF"]}"#,
            r#"{"b64":"AP8="}"#,
            r#"{"s":"x","n":true}"#,
            "{}",
        ] {
            assert!(bind(yes).unwrap().matches(row), "{yes}");
        }
        for no in [r#"{"hex":"00fe"}"#, r#"{"hex":7}"#, r#"{"b64":null}"#, r#"{"s":1}"#] {
            assert!(!bind(no).unwrap().matches(row), "{no}");
        }
        for (text, part) in [
            (r#"{"nothing":1}"#, "'nothing'"),
            (r#"{"hex":"0"}"#, "'hex' is not base16"),
            (r#"{"hex":"zz"}"#, "'hex' is not base16"),
            (r#"{"b64":"AP8"}"#, "'b64' is not base64"),
            (r#"{"b64":["AP8=","-_=="]}"#, "'b64' is not base64"),
            (r#"{"st":"x"}"#, "'st' is nested"),
            (r#"{"map":null}"#, "'map' is nested"),
            (r#"{"list":"x"}"#, "'list' is nested"),
            (r#"{"s":[]}"#, "empty"),
        ] {
            let close = bind(text).unwrap_err();
            assert!(close.code == 4400 && close.reason.contains(part), "{text}: {close:?}");
        }
        // As it was sent, not as it is compared.
        assert_eq!(bind(r#"{"hex":"00FF"}"#).unwrap().text().get(), r#"{"hex":"00FF"}"#);
    }

    #[test]
    fn a_filter_that_is_none_is_refused() {
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(limits::FILTER_BYTES));
        for text in
            ["", "1", "[]", "null", r#"{"a":[]}"#, r#"{"a":{}}"#, r#"{"a":[[1]]}"#, "{", &long]
        {
            assert_eq!(Filter::parse(text).unwrap_err().code, 4400, "{text}");
        }
    }
}
