//! Typed conditional writes.
//!
//! A [`Write`] is a key, conditions and an [`Action`]. It is the cloud's own model reduced to what we use: a local
//! back end interprets it with [`Write::apply`], the cloud's back end translates it to an expression, and the
//! conformance suite holds both to the same answers. There are no closures and no interactive transactions.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::{Invalid, Item, Key, Value, blob::Blob, limits};

/// What must hold of the item as it is before the write. All of a write's conditions must hold.
///
/// An absent list has length 0, an absent set has no members, and a comparison with an absent attribute is false.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// The item does not exist.
    Absent,
    /// The item exists.
    Exists,
    /// The item has no such attribute (true of an item that does not exist).
    Lacks(String),
    /// The item has such an attribute.
    Has(String),
    /// The attribute is there and equal.
    Equals(String, Value),
    /// The attribute is there and differs.
    Differs(String, Value),
    /// The attribute is a number below this.
    LessThan(String, i64),
    /// The attribute is a number above this.
    MoreThan(String, i64),
    /// The list, or set, has fewer members than this.
    ShorterThan(String, usize),
    /// The set of byte strings does not contain this.
    SetLacks(String, Bytes),
    /// The set of texts contains this.
    SetHas(String, String),
}

impl Condition {
    /// True if the condition holds of the item.
    pub fn holds(&self, item: Option<&Item>) -> bool {
        let get = |name: &str| item.and_then(|i| i.get(name));
        match self {
            Condition::Absent => item.is_none(),
            Condition::Exists => item.is_some(),
            Condition::Lacks(a) => get(a).is_none(),
            Condition::Has(a) => get(a).is_some(),
            Condition::Equals(a, v) => get(a) == Some(v),
            Condition::Differs(a, v) => get(a).is_some_and(|x| x != v),
            Condition::LessThan(a, n) => matches!(get(a), Some(Value::Int(x)) if x < n),
            Condition::MoreThan(a, n) => matches!(get(a), Some(Value::Int(x)) if x > n),
            Condition::ShorterThan(a, n) => match get(a) {
                None => *n > 0,
                Some(Value::List(l)) => l.len() < *n,
                Some(Value::StrSet(s)) => s.len() < *n,
                Some(Value::BytesSet(s)) => s.len() < *n,
                Some(_) => false,
            },
            Condition::SetLacks(a, b) => match get(a) {
                None => true,
                Some(Value::BytesSet(s)) => !s.contains(b),
                Some(_) => false,
            },
            Condition::SetHas(a, m) => matches!(get(a), Some(Value::StrSet(s)) if s.contains(m)),
        }
    }

    /// Operators (comparisons, functions, and what joins them) that the condition takes in the cloud's expression.
    fn operators(&self) -> usize {
        match self {
            Condition::ShorterThan(..) => 11,
            Condition::Differs(..) | Condition::SetHas(..) => 4,
            _ => 2,
        }
    }
}

/// What each set beyond the first, of those that are asked for what they lack, takes on top.
const SET_OPERATORS: usize = 6;

/// Operators that conditions take together.
fn operators(conditions: &[Condition]) -> usize {
    let sets: BTreeSet<_> = conditions
        .iter()
        .filter_map(|c| match c {
            Condition::SetLacks(a, _) => Some(a),
            _ => None,
        })
        .collect();
    let each: usize = conditions.iter().map(Condition::operators).sum();
    each + SET_OPERATORS * sets.len().saturating_sub(1)
}

/// One change to an item's attributes. An attribute may be changed once in a write.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Sets the attribute.
    Set(String, Value),
    /// Removes the attribute, if it is there.
    Remove(String),
    /// Adds to a number; an absent one counts as 0.
    Add(String, i64),
    /// Appends to a list; an absent one counts as empty.
    Append(String, Vec<Value>),
    /// Adds members to a set of texts.
    Include(String, BTreeSet<String>),
    /// Removes members from a set of texts.
    Exclude(String, BTreeSet<String>),
    /// Adds members to a set of byte strings.
    IncludeBytes(String, BTreeSet<Bytes>),
}

impl Change {
    /// The attribute that changes.
    pub fn attribute(&self) -> &str {
        match self {
            Change::Set(a, _)
            | Change::Remove(a)
            | Change::Add(a, _)
            | Change::Append(a, _)
            | Change::Include(a, _)
            | Change::Exclude(a, _)
            | Change::IncludeBytes(a, _) => a,
        }
    }
}

/// What a write does when its conditions hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Replaces the whole item.
    Put(Item),
    /// Changes attributes; creates the item if it is absent.
    Update(Vec<Change>),
    /// Deletes the item, if it is there.
    Delete,
    /// Changes nothing: the conditions guard the other writes of the commit.
    Check,
}

/// A conditional write to one item.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The item.
    pub key: Key,
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What then happens.
    pub action: Action,
}

impl Write {
    /// Replaces an item.
    pub fn put(key: Key, item: Item) -> Self {
        Self { key, conditions: Vec::new(), action: Action::Put(item) }
    }

    /// Changes attributes of an item.
    pub fn update(key: Key, changes: Vec<Change>) -> Self {
        Self { key, conditions: Vec::new(), action: Action::Update(changes) }
    }

    /// Deletes an item.
    pub fn delete(key: Key) -> Self {
        Self { key, conditions: Vec::new(), action: Action::Delete }
    }

    /// Guards a commit by an item that it does not change.
    pub fn check(key: Key) -> Self {
        Self { key, conditions: Vec::new(), action: Action::Check }
    }

    /// The same write under one more condition.
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Bytes that the write carries, roughly: what it takes to hold it while it waits.
    #[cfg(feature = "embedded")]
    pub(crate) fn carried_bytes(&self) -> usize {
        match &self.action {
            Action::Put(item) => item.size(),
            Action::Update(changes) => changes
                .iter()
                .map(|change| match change {
                    Change::Set(_, v) => v.size(),
                    Change::Append(_, l) => l.iter().map(Value::size).sum(),
                    Change::Include(_, s) | Change::Exclude(_, s) => {
                        s.iter().map(String::len).sum()
                    }
                    Change::IncludeBytes(_, s) => s.iter().map(Bytes::len).sum(),
                    Change::Remove(_) | Change::Add(..) => 0,
                })
                .sum(),
            Action::Delete | Action::Check => 0,
        }
    }

    /// Interprets the write: `None` if a condition fails, else the item as it is afterwards.
    ///
    /// # Errors
    /// [`Invalid`] if a change does not fit the attribute's type.
    pub fn apply(&self, current: Option<&Item>) -> Result<Option<Option<Item>>, Invalid> {
        if !self.conditions.iter().all(|c| c.holds(current)) {
            return Ok(None);
        }
        Ok(Some(match &self.action {
            Action::Put(item) => Some(item.clone()),
            Action::Delete => None,
            Action::Check => current.cloned(),
            Action::Update(changes) => {
                let mut item = current.cloned().unwrap_or_default();
                for change in changes {
                    apply_change(&mut item, change)?;
                }
                Some(item)
            }
        }))
    }
}

fn apply_change(item: &mut Item, change: &Change) -> Result<(), Invalid> {
    let wrong = || Invalid::AttributeType { attribute: change.attribute().to_owned() };
    let attributes = item.attributes_mut();
    match change {
        Change::Set(a, v) => {
            attributes.insert(a.clone(), v.clone());
        }
        Change::Remove(a) => {
            attributes.remove(a);
        }
        Change::Add(a, n) => match attributes.entry(a.clone()).or_insert(Value::Int(0)) {
            Value::Int(x) => *x = x.checked_add(*n).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        },
        Change::Append(a, more) => {
            match attributes.entry(a.clone()).or_insert_with(|| Value::List(Vec::new())) {
                Value::List(l) => l.extend(more.iter().cloned()),
                _ => return Err(wrong()),
            }
        }
        Change::Include(a, more) => {
            match attributes.entry(a.clone()).or_insert_with(|| Value::StrSet(BTreeSet::new())) {
                Value::StrSet(s) => s.extend(more.iter().cloned()),
                _ => return Err(wrong()),
            }
        }
        Change::IncludeBytes(a, more) => {
            match attributes.entry(a.clone()).or_insert_with(|| Value::BytesSet(BTreeSet::new())) {
                Value::BytesSet(s) => s.extend(more.iter().cloned()),
                _ => return Err(wrong()),
            }
        }
        Change::Exclude(a, less) => {
            let empty = match attributes.get_mut(a) {
                None => false,
                Some(Value::StrSet(s)) => {
                    s.retain(|m| !less.contains(m));
                    s.is_empty()
                }
                Some(_) => return Err(wrong()),
            };
            if empty {
                attributes.remove(a);
            }
        }
    }
    Ok(())
}

/// Blobs to make durable and writes to make visible, all or nothing.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Durable before any write becomes visible. If the writes fail they may stay behind, unreachable.
    pub blobs: Vec<Blob>,
    /// At least one, at most [`limits::TRANSACTION_ITEMS`]; no item twice.
    pub writes: Vec<Write>,
}

impl Commit {
    /// A commit of one write.
    pub fn one(write: Write) -> Self {
        Self { blobs: Vec::new(), writes: vec![write] }
    }

    /// A commit of several writes.
    pub fn all(writes: Vec<Write>) -> Self {
        Self { blobs: Vec::new(), writes }
    }

    /// The same commit with one more blob.
    #[must_use]
    pub fn with_blob(mut self, blob: Blob) -> Self {
        self.blobs.push(blob);
        self
    }

    /// Checks every limit that does not depend on the items as they are. Every back end calls it first.
    ///
    /// # Errors
    /// [`Invalid`], naming the limit.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.writes.is_empty() {
            return Err(Invalid::NoWrites);
        }
        if self.writes.len() > limits::TRANSACTION_ITEMS {
            return Err(Invalid::TooManyWrites { writes: self.writes.len() });
        }
        let mut keys = BTreeSet::new();
        let mut bytes = 0;
        for write in &self.writes {
            check_key(&write.key)?;
            if !keys.insert(&write.key) {
                return Err(Invalid::ItemTwice { key: write.key.clone() });
            }
            let operators = operators(&write.conditions);
            if operators > limits::CONDITION_OPERATORS {
                return Err(Invalid::TooManyConditions { key: write.key.clone(), operators });
            }
            if let Action::Put(item) = &write.action {
                bytes += check_item(&write.key, item)?;
                for (name, value) in item.iter() {
                    check_attribute(name)?;
                    check_value(name, value, 0)?;
                }
            }
            if let Action::Update(changes) = &write.action {
                let mut attributes = BTreeSet::new();
                for change in changes {
                    check_change(change)?;
                    if !attributes.insert(change.attribute()) {
                        return Err(Invalid::AttributeTwice {
                            key: write.key.clone(),
                            attribute: change.attribute().to_owned(),
                        });
                    }
                }
            }
        }
        if self.writes.len() > 1 && bytes > limits::TRANSACTION_BYTES {
            return Err(Invalid::TransactionSize { bytes });
        }
        let mut names = BTreeSet::new();
        for blob in &self.blobs {
            blob.check()?;
            if !names.insert(&blob.name) {
                return Err(Invalid::BlobTwice { name: blob.name.clone() });
            }
        }
        Ok(())
    }
}

fn check_attribute(name: &str) -> Result<(), Invalid> {
    if name.is_empty() || name.len() > limits::ATTRIBUTE_NAME_BYTES || name == "pk" || name == "sk"
    {
        return Err(Invalid::AttributeName { attribute: name.to_owned() });
    }
    Ok(())
}

fn check_value(attribute: &str, value: &Value, depth: usize) -> Result<(), Invalid> {
    if depth > limits::VALUE_DEPTH {
        return Err(Invalid::AttributeDepth { attribute: attribute.to_owned() });
    }
    match value {
        Value::StrSet(s) if s.is_empty() => {
            Err(Invalid::EmptySet { attribute: attribute.to_owned() })
        }
        Value::BytesSet(s) if s.is_empty() => {
            Err(Invalid::EmptySet { attribute: attribute.to_owned() })
        }
        Value::List(l) => l.iter().try_for_each(|v| check_value(attribute, v, depth + 1)),
        Value::Map(m) => m.values().try_for_each(|v| check_value(attribute, v, depth + 1)),
        _ => Ok(()),
    }
}

/// True if an attribute can have this value; nothing that is stored equals another.
#[cfg(feature = "dynamodb")]
pub(crate) fn is_storable(value: &Value) -> bool {
    check_value("", value, 0).is_ok() && value.size() <= limits::ITEM_BYTES
}

fn check_change(change: &Change) -> Result<(), Invalid> {
    let a = change.attribute();
    check_attribute(a)?;
    let members = match change {
        Change::Set(_, v) => return check_value(a, v, 0),
        Change::Append(_, l) => return l.iter().try_for_each(|v| check_value(a, v, 1)),
        Change::Include(_, s) | Change::Exclude(_, s) => s.len(),
        Change::IncludeBytes(_, s) => s.len(),
        Change::Remove(_) | Change::Add(..) => 1,
    };
    if members == 0 { Err(Invalid::EmptySet { attribute: a.to_owned() }) } else { Ok(()) }
}

pub(crate) fn check_key(key: &Key) -> Result<(), Invalid> {
    let fits = |part: &str, limit: usize| !part.is_empty() && part.len() <= limit;
    if fits(&key.pk, limits::PARTITION_KEY_BYTES) && fits(&key.sk, limits::SORT_KEY_BYTES) {
        Ok(())
    } else {
        Err(Invalid::KeySize { pk_bytes: key.pk.len(), sk_bytes: key.sk.len() })
    }
}

/// Checks the size of an item as a write leaves it.
///
/// # Errors
/// [`Invalid::ItemSize`] beyond [`limits::ITEM_BYTES`].
pub(crate) fn check_item(key: &Key, item: &Item) -> Result<usize, Invalid> {
    let bytes = item_bytes(key, Some(item));
    if bytes > limits::ITEM_BYTES {
        return Err(Invalid::ItemSize { key: key.clone(), bytes });
    }
    Ok(bytes)
}

/// Bytes that the cloud bills for an item under its key; 0 if there is none.
pub(crate) fn item_bytes(key: &Key, item: Option<&Item>) -> usize {
    // "pk" and "sk", the names of the key's attributes, are billed too.
    item.map_or(0, |i| 4 + key.pk.len() + key.sk.len() + i.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(item: &Item, change: Change) -> Result<Option<Item>, Invalid> {
        let write = Write::update(Key::new("p", "s"), vec![change]);
        Ok(write.apply(Some(item))?.flatten())
    }

    #[test]
    fn a_sum_beyond_64_bits_is_refused() {
        let item = Item::new().with("n", i64::MAX);
        assert!(matches!(
            applied(&item, Change::Add("n".into(), 1)),
            Err(Invalid::AttributeType { .. })
        ));
        let item = Item::new().with("n", i64::MIN);
        assert!(matches!(
            applied(&item, Change::Add("n".into(), -1)),
            Err(Invalid::AttributeType { .. })
        ));
        assert!(applied(&item, Change::Add("n".into(), i64::MAX)).is_ok());
    }

    #[test]
    fn conditions_on_other_types_are_false() {
        let item = Item::new().with("text", "5");
        assert!(!Condition::LessThan("text".into(), 9).holds(Some(&item)));
        assert!(!Condition::ShorterThan("text".into(), 9).holds(Some(&item)));
        assert!(!Condition::SetHas("text".into(), "5".into()).holds(Some(&item)));
    }

    /// The sizes that the cloud bills, by its published rules.
    #[test]
    fn items_have_the_size_that_the_cloud_bills() {
        let key = Key::new("p", "s");
        assert_eq!(item_bytes(&key, None), 0);
        assert_eq!(item_bytes(&key, Some(&Item::new())), 6);
        let of = |v: Value| Item::new().with("ab", v).size();
        assert_eq!(of("xyz".into()), 5);
        assert_eq!(of("ä".into()), 4);
        assert_eq!(of(true.into()), 3);
        assert_eq!([0, 7, 99, 100, 101, -12_345].map(|n| of(n.into())), [4, 4, 4, 4, 5, 6]);
        assert_eq!(of(vec![Value::Bool(true), "xy".into()].into()), 2 + 3 + (1 + 1) + (1 + 2));
        assert_eq!(of(Value::Map([("k".to_owned(), "xy".into())].into())), 2 + 3 + 1 + 1 + 2);
        assert_eq!(of(Value::StrSet(["a".to_owned(), "bc".to_owned()].into())), 2 + 3);
    }
}
