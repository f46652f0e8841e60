//! JSON as a declaration needs it: members in the order that they were written in, because that is the order of columns,
//! and no name twice.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// The members of an object, in order.
#[derive(Debug)]
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads an object; `None` if it is something else.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// The first member that is none of these.
    pub(crate) fn other_than(&self, names: &[&str]) -> Option<&str> {
        self.0.iter().map(|(name, _)| name.as_ref()).find(|name| !names.contains(name))
    }
}

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

/// Checks that a text is one JSON value, in which no object has a name twice and no number is beyond all numbers.
///
/// # Errors
/// What is wrong.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Checked.deserialize(&mut reader).and_then(|()| reader.end()).map_err(|e| e.to_string())
}

struct Checked;

impl<'de> DeserializeSeed<'de> for Checked {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while elements.next_element_seed(Checked)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(Checked)?;
            if !names.insert(name) {
                return Err(de::Error::custom("an object has a name twice"));
            }
        }
        Ok(())
    }
}

/// A JSON text without the space between its parts.
pub(crate) fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut within, mut escaped) = (false, false);
    for c in text.chars() {
        if within {
            out.push(c);
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => within = false,
                _ => {}
            }
        } else if !matches!(c, ' ' | '\n' | '\r' | '\t') {
            within = c == '"';
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_between_parts_goes_and_within_texts_stays() {
        assert_eq!(compact("{ \"a b\" : [ 1 ,\n\"c\\\" d\" ] }"), r#"{"a b":[1,"c\" d"]}"#);
    }

    #[test]
    fn a_name_twice_is_found_at_any_depth() {
        assert!(check(r#"{"a":[{"b":1,"c":{"b":2}}],"b":1.5}"#).is_ok());
        for bad in [
            r#"{"a":1,"a":1}"#,
            r#"[{"x":{"a":1,"\u0061":2}}]"#,
            "NaN",
            "[1e999]",
            "{",
            "1 2",
            "",
            "[Infinity]",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check(&"[".repeat(100_000)).is_err());
    }
}
