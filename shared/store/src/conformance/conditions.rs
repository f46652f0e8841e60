//! Every condition, on items that are there and on items that are not.

use bytes::Bytes;

use super::{Subject, commit, conflict, get, key, put, write};
use crate::{Change, Commit, Condition, Item, Key, Value, Write};

fn subject_item() -> Item {
    Item::new()
        .with("text", "b")
        .with("empty", "")
        .with("number", 5)
        .with("yes", true)
        .with("bytes", Bytes::from_static(b"\x00\xff"))
        .with("list", vec![Value::Int(1), Value::Int(2)])
        .with("none", Vec::<Value>::new())
        .with("map", Value::Map([("x".to_owned(), Value::Int(1))].into()))
        .with("names", Value::StrSet(["a".to_owned(), "b".to_owned()].into()))
        .with("ids", Value::BytesSet([Bytes::from_static(b"1"), Bytes::from_static(b"22")].into()))
}

async fn holds(store: &Subject, key: &Key, condition: Condition, due: bool) {
    let before = get(store, key).await;
    let touch =
        Write::update(key.clone(), vec![Change::Add("touched".into(), 1)]).when(condition.clone());
    let answer = write(store, touch).await;
    if due {
        let image = answer.unwrap_or_else(|e| panic!("{condition:?} holds of {before:?}: {e}"));
        let touched = before.as_ref().and_then(|i| i.int("touched")).unwrap_or(0) + 1;
        assert_eq!(image.and_then(|i| i.int("touched")), Some(touched), "{condition:?}");
    } else {
        let failed = conflict(answer, &format!("{condition:?} of {before:?}"));
        assert_eq!(failed.len(), 1, "{condition:?}");
        assert_eq!((failed[0].write, &failed[0].current), (0, &before), "{condition:?}");
        assert_eq!(get(store, key).await, before, "{condition:?} failed and yet changed something");
    }
    // The same condition on a check, beside a write that has none.
    let current = get(store, key).await;
    let still = condition.holds(current.as_ref());
    let beside = Key::new(key.pk.as_str(), "beside");
    let both = Commit::all(vec![
        Write::check(key.clone()).when(condition.clone()),
        Write::update(beside, vec![Change::Add("n".into(), 1)]),
    ]);
    let answer = commit(store, both).await;
    assert_eq!(
        answer.is_ok(),
        still,
        "{condition:?} as a check of {current:?} answered {answer:?}"
    );
}

/// All conditions on an item that is there.
pub async fn every_condition_on_an_item(store: Subject) {
    let key = key("conditions", "item");
    put(&store, &key, subject_item()).await;
    let bytes = |b: &'static [u8]| Bytes::from_static(b);
    let c = |s: &str| s.to_owned();
    for (condition, due) in [
        (Condition::Absent, false),
        (Condition::Exists, true),
        (Condition::Lacks(c("other")), true),
        (Condition::Lacks(c("text")), false),
        (Condition::Lacks(c("empty")), false),
        (Condition::Has(c("text")), true),
        (Condition::Has(c("none")), true),
        (Condition::Has(c("other")), false),
        (Condition::Equals(c("text"), "b".into()), true),
        (Condition::Equals(c("text"), "c".into()), false),
        (Condition::Equals(c("empty"), "".into()), true),
        (Condition::Equals(c("number"), 5.into()), true),
        (Condition::Equals(c("number"), 6.into()), false),
        (Condition::Equals(c("number"), "5".into()), false),
        (Condition::Equals(c("yes"), true.into()), true),
        (Condition::Equals(c("yes"), false.into()), false),
        (Condition::Equals(c("bytes"), bytes(b"\x00\xff").into()), true),
        (Condition::Equals(c("bytes"), bytes(b"\x00").into()), false),
        (Condition::Equals(c("list"), vec![Value::Int(1), Value::Int(2)].into()), true),
        (Condition::Equals(c("list"), vec![Value::Int(2), Value::Int(1)].into()), false),
        (Condition::Equals(c("map"), Value::Map([(c("x"), Value::Int(1))].into())), true),
        (Condition::Equals(c("names"), Value::StrSet([c("b"), c("a")].into())), true),
        (Condition::Equals(c("names"), Value::StrSet([c("b")].into())), false),
        (Condition::Equals(c("other"), 5.into()), false),
        (Condition::Differs(c("text"), "c".into()), true),
        (Condition::Differs(c("text"), "b".into()), false),
        (Condition::Differs(c("number"), "5".into()), true),
        (Condition::Differs(c("other"), 5.into()), false),
        (Condition::LessThan(c("number"), 6), true),
        (Condition::LessThan(c("number"), 5), false),
        (Condition::LessThan(c("number"), -5), false),
        (Condition::LessThan(c("number"), 10), true),
        (Condition::LessThan(c("other"), 6), false),
        (Condition::MoreThan(c("number"), 4), true),
        (Condition::MoreThan(c("number"), 5), false),
        (Condition::MoreThan(c("number"), i64::MIN), true),
        (Condition::MoreThan(c("other"), 0), false),
        (Condition::ShorterThan(c("list"), 3), true),
        (Condition::ShorterThan(c("list"), 2), false),
        (Condition::ShorterThan(c("none"), 1), true),
        (Condition::ShorterThan(c("none"), 0), false),
        (Condition::ShorterThan(c("names"), 3), true),
        (Condition::ShorterThan(c("names"), 2), false),
        (Condition::ShorterThan(c("ids"), 3), true),
        (Condition::ShorterThan(c("ids"), 2), false),
        (Condition::ShorterThan(c("other"), 1), true),
        (Condition::ShorterThan(c("other"), 0), false),
        (Condition::SetLacks(c("ids"), bytes(b"3")), true),
        (Condition::SetLacks(c("ids"), bytes(b"2")), true),
        (Condition::SetLacks(c("ids"), bytes(b"22")), false),
        (Condition::SetLacks(c("other"), bytes(b"22")), true),
        (Condition::SetHas(c("names"), c("a")), true),
        (Condition::SetHas(c("names"), c("ab")), false),
        (Condition::SetHas(c("other"), c("a")), false),
    ] {
        holds(&store, &key, condition, due).await;
    }
}

/// All conditions on an item that is not there.
pub async fn every_condition_on_no_item(store: Subject) {
    let c = |s: &str| s.to_owned();
    for (at, (condition, due)) in [
        (Condition::Absent, true),
        (Condition::Exists, false),
        (Condition::Lacks(c("a")), true),
        (Condition::Has(c("a")), false),
        (Condition::Equals(c("a"), 0.into()), false),
        (Condition::Differs(c("a"), 0.into()), false),
        (Condition::LessThan(c("a"), 1), false),
        (Condition::MoreThan(c("a"), -1), false),
        (Condition::ShorterThan(c("a"), 1), true),
        (Condition::ShorterThan(c("a"), 0), false),
        (Condition::SetLacks(c("a"), Bytes::from_static(b"x")), true),
        (Condition::SetHas(c("a"), c("x")), false),
    ]
    .into_iter()
    .enumerate()
    {
        holds(&store, &key("conditions-none", &format!("{at}")), condition, due).await;
    }
}

/// One failing condition among several is enough.
pub async fn conditions_are_all_needed(store: Subject) {
    let key = key("conditions-all", "item");
    put(&store, &key, subject_item()).await;
    let touch = |last: Condition| {
        Write::update(key.clone(), vec![Change::Set("touched".into(), true.into())])
            .when(Condition::Exists)
            .when(Condition::Equals("number".into(), 5.into()))
            .when(last)
    };
    conflict(write(&store, touch(Condition::LessThan("number".into(), 5))).await, "the last fails");
    let image = write(&store, touch(Condition::LessThan("number".into(), 6))).await;
    assert_eq!(image.expect("all hold").and_then(|i| i.bool("touched")), Some(true));
}

/// Conditions guard a put, an update, a delete and a check alike.
pub async fn conditions_guard_every_action(store: Subject) {
    let key = key("conditions-actions", "item");
    let item = Item::new().with("n", 1);
    put(&store, &key, item.clone()).await;
    let wrong = Condition::Equals("n".into(), 2.into());
    for guarded in [
        Write::put(key.clone(), Item::new().with("n", 9)),
        Write::update(key.clone(), vec![Change::Set("n".into(), 9.into())]),
        Write::delete(key.clone()),
        Write::check(key.clone()),
    ] {
        let what = format!("{:?}", guarded.action);
        let failed = conflict(write(&store, guarded.when(wrong.clone())).await, &what);
        assert_eq!(failed[0].current.as_ref(), Some(&item), "{what}");
        assert_eq!(get(&store, &key).await.as_ref(), Some(&item), "{what}");
    }
}
