//! Conditions and changes as the service's expressions, with the meaning that [`crate::Write::apply`] gives them.
//!
//! Names and values always stand as placeholders (`#0`, `:0`), so no name can be a reserved word or change what an
//! expression says. Where the service would decide otherwise than the store's own rules, the expression says more:
//!
//! - a comparison with an absent attribute is false, but the service's `<>` is true of it: `Differs` asks for presence;
//! - `size` counts a text's bytes and `contains` looks into texts: conditions on lists and sets ask for the type;
//! - a value that cannot be stored (an empty set, nesting beyond the limit) may not even be asked about: nothing is
//!   equal to it;
//! - a sum beyond 64 bits is a number to the service: `Add` is guarded by the room that is left, and a write that
//!   fails on this guard alone is told as invalid, not as a conflict (see [`super::commit`]).
//!
//! The service takes at most 300 operators in an expression; [`crate::Commit::check`] counts those of the conditions
//! as they are written here. What many conditions on one set have in common is therefore written once.

use std::collections::HashMap;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};

use super::attributes::{PK, of_value};
use crate::{
    Value,
    write::{Action, Change, Condition, Write, is_storable},
};

/// A write's expressions and what their placeholders stand for.
#[derive(Debug, Default)]
pub(super) struct Expressions {
    /// What must hold; `None` if nothing.
    pub(super) condition: Option<String>,
    /// What changes; `None` if nothing.
    pub(super) update: Option<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    /// The placeholders of names, and of types that are asked for, that are there already.
    known_names: HashMap<String, String>,
    known_types: HashMap<&'static str, String>,
}

impl Expressions {
    /// Translates a write.
    pub(super) fn of(write: &Write) -> Self {
        let mut all = Self::default();
        all.condition = all.conditions(write);
        if let Action::Update(changes) = &write.action {
            all.update = all.changes(changes);
        }
        all
    }

    /// What the names' placeholders stand for; `None` if there is none, since the service takes no empty map.
    pub(super) fn names(&mut self) -> Option<HashMap<String, String>> {
        Some(std::mem::take(&mut self.names)).filter(|names| !names.is_empty())
    }

    /// What the values' placeholders stand for; `None` if there is none.
    pub(super) fn values(&mut self) -> Option<HashMap<String, AttributeValue>> {
        Some(std::mem::take(&mut self.values)).filter(|values| !values.is_empty())
    }

    fn name(&mut self, attribute: &str) -> String {
        if let Some(known) = self.known_names.get(attribute) {
            return known.clone();
        }
        let placeholder = format!("#{}", self.names.len());
        self.names.insert(placeholder.clone(), attribute.to_owned());
        self.known_names.insert(attribute.to_owned(), placeholder.clone());
        placeholder
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn number(&mut self, n: i64) -> String {
        self.value(AttributeValue::N(n.to_string()))
    }

    /// `attribute_type(name, type)`.
    fn is_a(&mut self, name: &str, of: &'static str) -> String {
        let placeholder = match self.known_types.get(of) {
            Some(known) => known.clone(),
            None => {
                let placeholder = self.value(AttributeValue::S(of.to_owned()));
                self.known_types.insert(of, placeholder.clone());
                placeholder
            }
        };
        format!("attribute_type({name}, {placeholder})")
    }

    fn conditions(&mut self, write: &Write) -> Option<String> {
        let mut all = Vec::new();
        let mut sets: Vec<(&str, Vec<&[u8]>)> = Vec::new();
        for condition in &write.conditions {
            if let Condition::SetLacks(attribute, member) = condition {
                match sets.iter_mut().find(|(set, _)| set == attribute) {
                    Some((_, members)) => members.push(member),
                    None => sets.push((attribute, vec![member])),
                }
            } else {
                all.push(self.condition(condition));
            }
        }
        for (attribute, members) in sets {
            all.push(self.lacks_all(attribute, &members));
        }
        if let Action::Update(changes) = &write.action {
            for change in changes {
                if let Change::Add(attribute, n) = change {
                    all.push(self.has_room(attribute, *n));
                }
            }
        }
        if all.is_empty() && write.action == Action::Check {
            // The service takes no check without a condition.
            let pk = self.name(PK);
            all.push(format!("(attribute_exists({pk}) OR attribute_not_exists({pk}))"));
        }
        if all.is_empty() { None } else { Some(all.join(" AND ")) }
    }

    fn condition(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Absent => format!("attribute_not_exists({})", self.name(PK)),
            Condition::Exists => format!("attribute_exists({})", self.name(PK)),
            Condition::Lacks(a) => format!("attribute_not_exists({})", self.name(a)),
            Condition::Has(a) => format!("attribute_exists({})", self.name(a)),
            Condition::Equals(a, v) => match self.comparable(v) {
                Some(value) => format!("{} = {value}", self.name(a)),
                None => self.never(),
            },
            Condition::Differs(a, v) => {
                let name = self.name(a);
                match self.comparable(v) {
                    Some(value) => format!("(attribute_exists({name}) AND {name} <> {value})"),
                    None => format!("attribute_exists({name})"),
                }
            }
            Condition::LessThan(a, n) => format!("{} < {}", self.name(a), self.number(*n)),
            Condition::MoreThan(a, n) => format!("{} > {}", self.name(a), self.number(*n)),
            Condition::ShorterThan(_, 0) => self.never(),
            Condition::ShorterThan(a, n) => {
                let name = self.name(a);
                let types = ["L", "SS", "BS"].map(|of| self.is_a(&name, of)).join(" OR ");
                let most = self.value(AttributeValue::N(n.to_string()));
                format!("(attribute_not_exists({name}) OR (({types}) AND size({name}) < {most}))")
            }
            Condition::SetLacks(a, member) => self.lacks_all(a, &[member]),
            Condition::SetHas(a, member) => {
                let name = self.name(a);
                let set = self.is_a(&name, "SS");
                let member = self.value(AttributeValue::S(member.clone()));
                format!("({set} AND contains({name}, {member}))")
            }
        }
    }

    /// The set has none of these members.
    fn lacks_all(&mut self, attribute: &str, members: &[&[u8]]) -> String {
        let name = self.name(attribute);
        let set = self.is_a(&name, "BS");
        let any: Vec<_> = members
            .iter()
            .map(|member| {
                let member = self.value(AttributeValue::B(Blob::new(*member)));
                format!("contains({name}, {member})")
            })
            .collect();
        format!("((attribute_not_exists({name}) OR {set}) AND NOT ({}))", any.join(" OR "))
    }

    /// The number can take the sum. An attribute that is absent, or no number, has all the room: the first is 0, and the
    /// second is refused by the change itself.
    fn has_room(&mut self, attribute: &str, n: i64) -> String {
        let name = self.name(attribute);
        if n >= 0 {
            format!("(NOT {name} > {})", self.number(i64::MAX - n))
        } else {
            format!("(NOT {name} < {})", self.number(i64::MIN - n))
        }
    }

    /// What no item fulfils.
    fn never(&mut self) -> String {
        let pk = self.name(PK);
        format!("(attribute_exists({pk}) AND attribute_not_exists({pk}))")
    }

    fn comparable(&mut self, value: &Value) -> Option<String> {
        is_storable(value).then(|| self.value(of_value(value)))
    }

    fn changes(&mut self, changes: &[Change]) -> Option<String> {
        let (mut set, mut remove, mut add, mut delete) = (vec![], vec![], vec![], vec![]);
        for change in changes {
            let name = self.name(change.attribute());
            match change {
                Change::Set(_, v) => set.push(format!("{name} = {}", self.value(of_value(v)))),
                Change::Remove(_) => remove.push(name),
                Change::Add(_, n) => add.push(format!("{name} {}", self.number(*n))),
                Change::Append(_, more) => {
                    let none = self.value(AttributeValue::L(Vec::new()));
                    let more = self.value(AttributeValue::L(more.iter().map(of_value).collect()));
                    set.push(format!(
                        "{name} = list_append(if_not_exists({name}, {none}), {more})"
                    ));
                }
                Change::Include(_, s) => {
                    let members = self.value(AttributeValue::Ss(s.iter().cloned().collect()));
                    add.push(format!("{name} {members}"));
                }
                Change::Exclude(_, s) => {
                    let members = self.value(AttributeValue::Ss(s.iter().cloned().collect()));
                    delete.push(format!("{name} {members}"));
                }
                Change::IncludeBytes(_, s) => {
                    let members = s.iter().map(|b| Blob::new(b.as_ref())).collect();
                    add.push(format!("{name} {}", self.value(AttributeValue::Bs(members))));
                }
            }
        }
        let clauses: Vec<_> = [("SET", set), ("REMOVE", remove), ("ADD", add), ("DELETE", delete)]
            .into_iter()
            .filter(|(_, clause)| !clause.is_empty())
            .map(|(word, clause)| format!("{word} {}", clause.join(", ")))
            .collect();
        if clauses.is_empty() { None } else { Some(clauses.join(" ")) }
    }

    /// The update expression of a transaction, which takes none without: where nothing changes, an attribute that no
    /// item has is removed.
    pub(super) fn update_in_transaction(&mut self) -> String {
        self.update.take().unwrap_or_else(|| format!("REMOVE {}", self.name(NOTHING)))
    }
}

/// An attribute that no item has.
const NOTHING: &str = "nothing";

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Key, limits};

    fn update(changes: Vec<Change>, conditions: Vec<Condition>) -> Write {
        let mut write = Write::update(Key::new("p", "head"), changes);
        write.conditions = conditions;
        write
    }

    /// Names that are words of the language, or would end an expression, say nothing in it.
    #[test]
    fn names_and_values_are_placeholders() {
        for odd in ["size", "a) OR (b", "#0", ":0", "ä.b[0]"] {
            let changes = vec![Change::Set(odd.into(), "x".into())];
            let mut said = Expressions::of(&update(changes, vec![Condition::Has(odd.into())]));
            assert_eq!(said.condition.as_deref(), Some("attribute_exists(#0)"));
            assert_eq!(said.update.as_deref(), Some("SET #0 = :0"));
            assert_eq!(said.names().unwrap(), [("#0".to_owned(), odd.to_owned())].into());
        }
    }

    #[test]
    fn an_append_to_a_head_reads_as_it_should() {
        let write = update(
            vec![
                Change::Add("tail".into(), 3),
                Change::Append("segs".into(), vec!["s".into()]),
                Change::IncludeBytes("ids".into(), [Bytes::from_static(b"1")].into()),
            ],
            vec![
                Condition::Exists,
                Condition::SetLacks("ids".into(), Bytes::from_static(b"1")),
                Condition::SetLacks("ids".into(), Bytes::from_static(b"2")),
            ],
        );
        let said = Expressions::of(&write);
        assert_eq!(
            said.condition.as_deref(),
            Some(
                "attribute_exists(#0) AND ((attribute_not_exists(#1) OR attribute_type(#1, :0)) AND NOT \
                 (contains(#1, :1) OR contains(#1, :2))) AND (NOT #2 > :3)"
            )
        );
        assert_eq!(
            said.update.as_deref(),
            Some("SET #3 = list_append(if_not_exists(#3, :5), :6) ADD #2 :4, #1 :7")
        );
    }

    /// The service takes 300 operators and 4 KB in an expression.
    #[test]
    fn the_most_that_a_write_may_ask_fits() {
        let most = limits::CONDITION_OPERATORS / 2;
        let ids = |n: usize| Condition::SetLacks("ids".into(), Bytes::from(format!("{n:08}")));
        let simple = |n: usize| Condition::Has(format!("{n}"));
        let shorter = |n: usize| Condition::ShorterThan(format!("{n}"), 9);
        let sets = |n: usize| Condition::SetLacks(format!("{n}"), Bytes::from_static(b"1"));
        let all: [Vec<Condition>; 4] = [
            (0..most).map(ids).collect(),
            (0..most).map(simple).collect(),
            (0..limits::CONDITION_OPERATORS / 11).map(shorter).collect(),
            (0..limits::CONDITION_OPERATORS / 8).map(sets).collect(),
        ];
        for conditions in all {
            let write = update(vec![Change::Add("tail".into(), 3)], conditions);
            crate::Commit::one(write.clone()).check().expect("within the limit");
            let said = Expressions::of(&write).condition.unwrap();
            let operators =
                ["attribute_", "contains", "size(", " AND ", " OR ", "NOT ", " < ", " > "]
                    .map(|word| said.matches(word).count())
                    .iter()
                    .sum::<usize>();
            assert!(operators <= 300, "{operators} operators: {said}");
            assert!(said.len() <= 4096, "{} bytes", said.len());
        }
    }

    #[test]
    fn what_cannot_be_stored_is_not_asked_about() {
        let none = Value::StrSet([].into());
        let asked = |condition| Expressions::of(&update(vec![], vec![condition])).condition;
        let never = "(attribute_exists(#0) AND attribute_not_exists(#0))";
        assert_eq!(asked(Condition::Equals("s".into(), none.clone())).as_deref(), Some(never));
        let differs = asked(Condition::Differs("s".into(), none));
        assert_eq!(differs.as_deref(), Some("attribute_exists(#0)"));
    }
}
