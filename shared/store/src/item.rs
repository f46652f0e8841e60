//! Items: a key and typed attributes. The types are the cloud's own, so that an operator can read a head in its
//! console and no back end needs a format of its own for the content.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

/// The name of an item: partition key and sort key. Items of one partition key can be queried in sort-key order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Partition key. At most [`crate::limits::PARTITION_KEY_BYTES`].
    pub pk: String,
    /// Sort key. At most [`crate::limits::SORT_KEY_BYTES`].
    pub sk: String,
}

impl Key {
    /// A key of these two parts.
    pub fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self { pk: pk.into(), sk: sk.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.pk, self.sk)
    }
}

/// An attribute's value. A set is never empty: the cloud has no empty sets, so removing the last member removes
/// the attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text.
    Str(String),
    /// A whole number. Times are microseconds since 1970 in UTC.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// Bytes.
    Bytes(Bytes),
    /// A list of values.
    List(Vec<Value>),
    /// A map from names to values.
    Map(BTreeMap<String, Value>),
    /// A set of texts, not empty.
    StrSet(BTreeSet<String>),
    /// A set of byte strings, not empty.
    BytesSet(BTreeSet<Bytes>),
}

impl Value {
    /// Bytes that the cloud bills for this value.
    pub fn size(&self) -> usize {
        match self {
            Value::Str(s) => s.len(),
            Value::Int(n) => number_size(*n),
            Value::Bool(_) => 1,
            Value::Bytes(b) => b.len(),
            Value::List(l) => 3 + l.iter().map(|v| 1 + v.size()).sum::<usize>(),
            Value::Map(m) => 3 + m.iter().map(|(k, v)| 1 + k.len() + v.size()).sum::<usize>(),
            Value::StrSet(s) => s.iter().map(String::len).sum(),
            Value::BytesSet(s) => s.iter().map(Bytes::len).sum(),
        }
    }
}

/// About one byte for each two significant digits, plus one, as the cloud counts numbers.
fn number_size(n: i64) -> usize {
    let mut n = n.unsigned_abs();
    while n != 0 && n.is_multiple_of(10) {
        n /= 10;
    }
    let digits = if n == 0 { 1 } else { n.ilog10() as usize + 1 };
    1 + digits.div_ceil(2)
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Str(v.to_owned())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Str(v)
    }
}
impl From<i64> for Value {
    fn from(v: i64) -> Self {
        Value::Int(v)
    }
}
impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}
impl From<Bytes> for Value {
    fn from(v: Bytes) -> Self {
        Value::Bytes(v)
    }
}
impl From<Vec<Value>> for Value {
    fn from(v: Vec<Value>) -> Self {
        Value::List(v)
    }
}

/// An item's attributes. The key is not among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
    attributes: BTreeMap<String, Value>,
}

impl Item {
    /// An item without attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same item with one more attribute.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.attributes.insert(name.into(), value.into());
    }

    /// Removes an attribute and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.attributes.remove(name)
    }

    /// An attribute.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.attributes.get(name)
    }

    /// A text attribute; `None` if it is absent or of another type.
    pub fn str(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Str(s)) => Some(s),
            _ => None,
        }
    }

    /// A number attribute; `None` if it is absent or of another type.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Value::Int(n)) => Some(*n),
            _ => None,
        }
    }

    /// A truth value; `None` if it is absent or of another type.
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.get(name) {
            Some(Value::Bool(b)) => Some(*b),
            _ => None,
        }
    }

    /// A byte string; `None` if it is absent or of another type.
    pub fn bytes(&self, name: &str) -> Option<&Bytes> {
        match self.get(name) {
            Some(Value::Bytes(b)) => Some(b),
            _ => None,
        }
    }

    /// A list; empty if it is absent or of another type.
    pub fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(l)) => l,
            _ => &[],
        }
    }

    /// A set of texts; `None` if it is absent or of another type.
    pub fn str_set(&self, name: &str) -> Option<&BTreeSet<String>> {
        match self.get(name) {
            Some(Value::StrSet(s)) => Some(s),
            _ => None,
        }
    }

    /// A set of byte strings; `None` if it is absent or of another type.
    pub fn bytes_set(&self, name: &str) -> Option<&BTreeSet<Bytes>> {
        match self.get(name) {
            Some(Value::BytesSet(s)) => Some(s),
            _ => None,
        }
    }

    /// Names and values, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.attributes.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// True if there is no attribute.
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// Bytes that the cloud bills for the attributes: names and values. The key's bytes come on top.
    pub fn size(&self) -> usize {
        self.attributes.iter().map(|(k, v)| k.len() + v.size()).sum()
    }

    pub(crate) fn attributes_mut(&mut self) -> &mut BTreeMap<String, Value> {
        &mut self.attributes
    }
}

impl FromIterator<(String, Value)> for Item {
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(iter: T) -> Self {
        Self { attributes: iter.into_iter().collect() }
    }
}
