//! Items as the table has them: the store's types are the service's own, so an operator reads a head in the console.
//!
//! Text is `S`, a whole number `N`, a truth value `BOOL`, bytes `B`, a list `L`, a map `M`, sets `SS` and `BS`. The key
//! is the attributes `pk` and `sk`, which no item may have otherwise. What is there and fits none of these (a fraction,
//! a set of numbers, a null) was not written by this crate and is reported as damage, never dropped or rounded.

use std::collections::HashMap;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};

use crate::{Item, Key, ReadError, Value};

/// The name of the partition key's attribute.
pub(super) const PK: &str = "pk";
/// The name of the sort key's attribute.
pub(super) const SK: &str = "sk";

/// An item as the service sends it.
pub(super) type Attributes = HashMap<String, AttributeValue>;

pub(super) fn of_value(value: &Value) -> AttributeValue {
    match value {
        Value::Str(s) => AttributeValue::S(s.clone()),
        Value::Int(n) => AttributeValue::N(n.to_string()),
        Value::Bool(b) => AttributeValue::Bool(*b),
        Value::Bytes(b) => AttributeValue::B(Blob::new(b.as_ref())),
        Value::List(l) => AttributeValue::L(l.iter().map(of_value).collect()),
        Value::Map(m) => {
            AttributeValue::M(m.iter().map(|(name, v)| (name.clone(), of_value(v))).collect())
        }
        Value::StrSet(s) => AttributeValue::Ss(s.iter().cloned().collect()),
        Value::BytesSet(s) => {
            AttributeValue::Bs(s.iter().map(|member| Blob::new(member.as_ref())).collect())
        }
    }
}

pub(super) fn of_key(key: &Key) -> Attributes {
    [(PK, &key.pk), (SK, &key.sk)]
        .map(|(name, part)| (name.to_owned(), AttributeValue::S(part.clone())))
        .into()
}

pub(super) fn of_item(key: &Key, item: &Item) -> Attributes {
    let mut all = of_key(key);
    all.extend(item.iter().map(|(name, value)| (name.to_owned(), of_value(value))));
    all
}

fn to_value(attribute: AttributeValue) -> Result<Value, &'static str> {
    Ok(match attribute {
        AttributeValue::S(s) => Value::Str(s),
        AttributeValue::N(n) => Value::Int(n.parse().map_err(|_| "a number beyond 64 bits")?),
        AttributeValue::Bool(b) => Value::Bool(b),
        AttributeValue::B(b) => Value::Bytes(b.into_inner().into()),
        AttributeValue::L(l) => Value::List(l.into_iter().map(to_value).collect::<Result<_, _>>()?),
        AttributeValue::M(m) => Value::Map(
            m.into_iter()
                .map(|(name, v)| to_value(v).map(|v| (name, v)))
                .collect::<Result<_, _>>()?,
        ),
        AttributeValue::Ss(s) => Value::StrSet(s.into_iter().collect()),
        AttributeValue::Bs(s) => {
            Value::BytesSet(s.into_iter().map(|b| b.into_inner().into()).collect())
        }
        _ => return Err("a type that no item of ours has"),
    })
}

fn foreign(what: String, detail: String) -> ReadError {
    ReadError::Corrupt { what, detail }
}

/// An item's attributes without its key.
///
/// # Errors
/// [`ReadError::Corrupt`], naming item and attribute, if it is none that this crate writes.
pub(super) fn to_item(key: &Key, attributes: Attributes) -> Result<Item, ReadError> {
    attributes
        .into_iter()
        .filter(|(name, _)| name != PK && name != SK)
        .map(|(name, attribute)| match to_value(attribute) {
            Ok(value) => Ok((name, value)),
            Err(why) => Err(foreign(format!("item {key}"), format!("attribute `{name}` is {why}"))),
        })
        .collect()
}

/// The key of an item that was found, not asked for.
///
/// # Errors
/// [`ReadError::Corrupt`] if it has none.
pub(super) fn to_key(attributes: &Attributes) -> Result<Key, ReadError> {
    match (attributes.get(PK), attributes.get(SK)) {
        (Some(AttributeValue::S(pk)), Some(AttributeValue::S(sk))) => {
            Ok(Key::new(pk.as_str(), sk.as_str()))
        }
        _ => Err(foreign("an item".to_owned(), "its key is no pair of texts".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_named_and_refused() {
        let key = Key::new("p", "s");
        for (attribute, why) in [
            (AttributeValue::N("1.5".into()), "number"),
            (AttributeValue::N("9223372036854775808".into()), "number"),
            (AttributeValue::Null(true), "type"),
            (AttributeValue::Ns(vec!["1".into()]), "type"),
            (AttributeValue::L(vec![AttributeValue::Null(true)]), "type"),
        ] {
            let mut all = of_key(&key);
            all.insert("odd".into(), attribute);
            let Err(ReadError::Corrupt { what, detail }) = to_item(&key, all) else {
                panic!("it was taken")
            };
            assert_eq!(what, "item p/s");
            assert!(detail.contains("`odd`") && detail.contains(why), "{detail}");
        }
        assert!(to_key(&Attributes::new()).is_err());
    }
}
