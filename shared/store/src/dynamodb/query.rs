//! Pages of one partition key's items.
//!
//! A page is one request: it ends at the query's limit or at the service's megabyte, and says that there is more when the
//! service gives a key to go on from. The service takes no bound that is empty, longer than a sort key, or above the
//! other, but the trait's callers may ask for such: [`Bounds`] says the same in bounds that it takes.

use aws_sdk_dynamodb::types::{AttributeValue, ReturnConsumedCapacity};

use super::{
    DynamoDb,
    attributes::{PK, SK, of_key, to_item, to_key},
    failure::Failure,
};
use crate::{Direction, Key, Page, Query, ReadError, greatest_after, limits};

impl DynamoDb {
    pub(super) async fn read_page(&self, query: &Query) -> Result<Page, ReadError> {
        let Some(bounds) = Bounds::of(query) else { return Ok(Page::default()) };
        let text = |s: &str| AttributeValue::S(s.to_owned());
        let mut request = self
            .dynamo()
            .query()
            .table_name(self.table())
            .consistent_read(true)
            .key_condition_expression(match (&bounds.from, &bounds.to) {
                (None, None) => "#pk = :pk",
                (Some(_), None) => "#pk = :pk AND #sk >= :from",
                (None, Some(_)) => "#pk = :pk AND #sk <= :to",
                (Some(_), Some(_)) => "#pk = :pk AND #sk BETWEEN :from AND :to",
            })
            .expression_attribute_names("#pk", PK)
            .expression_attribute_values(":pk", text(&query.pk))
            .set_exclusive_start_key(
                bounds.after.as_ref().map(|sk| of_key(&Key::new(query.pk.as_str(), sk))),
            )
            .scan_index_forward(query.direction == Direction::Forward)
            .limit(i32::try_from(query.limit).unwrap_or(i32::MAX))
            .return_consumed_capacity(ReturnConsumedCapacity::Total);
        for (placeholder, bound) in [(":from", &bounds.from), (":to", &bounds.to)] {
            if let Some(bound) = bound {
                request = request
                    .expression_attribute_names("#sk", SK)
                    .expression_attribute_values(placeholder, text(bound));
            }
        }
        let answer = request.send().await.map_err(|e| Failure::of("Query", &e).of_read())?;
        self.bill_reads(answer.consumed_capacity());
        let mut page = Page { items: Vec::new(), more: answer.last_evaluated_key.is_some() };
        for attributes in answer.items.unwrap_or_default() {
            let key = to_key(&attributes)?;
            if query.from.as_ref().is_some_and(|from| key.sk < *from) {
                // Backward, the one that the bound takes in too many; nothing below it was asked for.
                page.more = false;
                break;
            }
            let item = to_item(&key, attributes)?;
            page.items.push((key, item));
        }
        Ok(page)
    }
}

/// A query's bounds as the service takes them.
#[derive(Debug, PartialEq)]
struct Bounds {
    /// Inclusive.
    from: Option<String>,
    /// Exclusive, forward only.
    after: Option<String>,
    /// Inclusive.
    to: Option<String>,
}

impl Bounds {
    /// `None` if nothing can lie within.
    fn of(query: &Query) -> Option<Self> {
        if query.encloses_nothing() {
            return None;
        }
        let to = query.to.as_deref().map(|to| fitting(to).unwrap_or_else(|| to.to_owned()));
        let Some(from) = query.from.as_deref().filter(|from| !from.is_empty()) else {
            return Some(Self { from: None, after: None, to });
        };
        let Some(below) = fitting(from) else {
            return Some(Self { from: Some(from.to_owned()), after: None, to });
        };
        if to.as_ref().is_some_and(|to| below >= *to) {
            return None;
        }
        Some(match query.direction {
            Direction::Forward => Self { from: None, after: Some(below), to },
            // The one key that this takes in too many is dropped when it comes.
            Direction::Backward => Self { from: Some(below), after: None, to },
        })
    }
}

/// The greatest sort key below a bound that is longer than any sort key; `None` if the bound is not.
///
/// It begins like the bound: a key that does and is short enough goes on with characters of fewer bytes than the one
/// that did not fit, and those sort below it.
fn fitting(bound: &str) -> Option<String> {
    if bound.len() <= limits::SORT_KEY_BYTES {
        return None;
    }
    Some(greatest_after(bound[..bound.floor_char_boundary(limits::SORT_KEY_BYTES)].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(from: Option<&str>, to: Option<&str>, direction: Direction) -> Query {
        Query {
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
            direction,
            ..Query::all("p")
        }
    }

    #[test]
    fn bounds_that_enclose_nothing_are_never_asked_for() {
        for direction in [Direction::Forward, Direction::Backward] {
            let of = |from, to| Bounds::of(&query(from, to, direction));
            assert_eq!(of(Some("b"), Some("a")), None);
            assert_eq!(of(None, Some("")), None);
            assert!(of(Some("a"), Some("a")).is_some());
            let none = Bounds { from: None, after: None, to: None };
            assert_eq!(of(Some(""), None), Some(none));
        }
    }

    /// The bound after a key of the largest size, and a prefix of the largest size.
    #[test]
    fn bounds_longer_than_a_key_are_cut_to_what_they_mean() {
        let longest = "k".repeat(limits::SORT_KEY_BYTES);
        let after = format!("{longest}\u{0}");
        let bounds = Bounds::of(&query(Some(&after), None, Direction::Forward)).unwrap();
        assert_eq!(bounds, Bounds { from: None, after: Some(longest.clone()), to: None });
        let bounds = Bounds::of(&query(Some(&after), None, Direction::Backward)).unwrap();
        assert_eq!(bounds, Bounds { from: Some(longest.clone()), after: None, to: None });

        let prefix = "k".repeat(limits::SORT_KEY_BYTES - 2);
        let within = Query::prefix("p", prefix.as_str());
        let to = Bounds::of(&within).unwrap().to.unwrap();
        assert_eq!(to.len(), limits::SORT_KEY_BYTES);
        assert!(to < within.to.unwrap() && to > format!("{prefix}\u{7FE}"));
        let nothing = query(Some(&after), Some(&longest), Direction::Forward);
        assert_eq!(Bounds::of(&nothing), None);
        let nothing = query(Some(&after), Some(&format!("{longest}\u{0}")), Direction::Forward);
        assert_eq!(Bounds::of(&nothing), None);
    }
}
