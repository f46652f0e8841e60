//! What puts, updates and deletes leave behind.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Subject, get, invalid, key, put, write};
use crate::{Change, Consistency, Item, Value, Write};

fn texts(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|s| (*s).to_owned()).collect()
}

fn strings(of: &[&'static [u8]]) -> BTreeSet<Bytes> {
    of.iter().map(|s| Bytes::from_static(s)).collect()
}

/// A put leaves nothing of the old item, and its image is what it put.
pub async fn put_replaces_and_returns_the_image(store: Subject) {
    let key = key("put", "item");
    put(&store, &key, Item::new().with("old", 1).with("n", 1)).await;
    let new = Item::new().with("n", 2);
    let image = write(&store, Write::put(key.clone(), new.clone())).await.expect("a put");
    assert_eq!(image, Some(new.clone()));
    assert_eq!(get(&store, &key).await, Some(new));
}

/// The image of an update is the item as it left it.
pub async fn update_returns_the_image(store: Subject) {
    let key = key("update", "item");
    put(&store, &key, Item::new().with("n", 1).with("kept", "x")).await;
    let image = write(&store, Write::update(key.clone(), vec![Change::Add("n".into(), 41)])).await;
    let due = Some(Item::new().with("n", 42).with("kept", "x"));
    assert_eq!(image.expect("an update"), due);
    assert_eq!(get(&store, &key).await, due);
}

/// An update without changes creates an item without attributes, and leaves one that is there alone.
pub async fn update_without_changes_creates(store: Subject) {
    let key = key("update-nothing", "item");
    let image = write(&store, Write::update(key.clone(), vec![])).await.expect("an update");
    assert_eq!(image, Some(Item::new()));
    assert_eq!(get(&store, &key).await, Some(Item::new()));
    put(&store, &key, Item::new().with("n", 1)).await;
    let image = write(&store, Write::update(key.clone(), vec![])).await.expect("an update");
    assert_eq!(image, Some(Item::new().with("n", 1)));
}

/// All changes at once on an item that is there.
pub async fn every_change_on_an_item(store: Subject) {
    let key = key("changes", "item");
    let before = Item::new()
        .with("set", 1)
        .with("retyped", 1)
        .with("gone", "x")
        .with("up", 1)
        .with("down", i64::MIN + 1)
        .with("list", vec![Value::Int(1)])
        .with("names", Value::StrSet(texts(&["a", "b"])))
        .with("fewer", Value::StrSet(texts(&["a", "b"])))
        .with("ids", Value::BytesSet(strings(&[b"1"])))
        .with("kept", true);
    put(&store, &key, before).await;
    let c = |s: &str| s.to_owned();
    let changes = vec![
        Change::Set(c("set"), 2.into()),
        Change::Set(c("retyped"), "two".into()),
        Change::Set(c("fresh"), "three".into()),
        Change::Remove(c("gone")),
        Change::Remove(c("never")),
        Change::Add(c("up"), i64::MAX - 1),
        Change::Add(c("down"), -1),
        Change::Append(c("list"), vec![Value::Int(2), "x".into()]),
        Change::Include(c("names"), texts(&["b", "c"])),
        Change::Exclude(c("fewer"), texts(&["b", "z"])),
        Change::IncludeBytes(c("ids"), strings(&[b"1", b"", b"2"])),
    ];
    let after = Item::new()
        .with("set", 2)
        .with("retyped", "two")
        .with("fresh", "three")
        .with("up", i64::MAX)
        .with("down", i64::MIN)
        .with("list", vec![Value::Int(1), Value::Int(2), "x".into()])
        .with("names", Value::StrSet(texts(&["a", "b", "c"])))
        .with("fewer", Value::StrSet(texts(&["a"])))
        .with("ids", Value::BytesSet(strings(&[b"", b"1", b"2"])))
        .with("kept", true);
    let image = write(&store, Write::update(key.clone(), changes)).await.expect("all changes");
    assert_eq!(image, Some(after.clone()));
    assert_eq!(get(&store, &key).await, Some(after));
}

/// All changes at once on an item that is not there: absent numbers are 0, absent lists and sets empty.
pub async fn every_change_on_no_item(store: Subject) {
    let key = key("changes-none", "item");
    let c = |s: &str| s.to_owned();
    let changes = vec![
        Change::Set(c("set"), 2.into()),
        Change::Remove(c("never")),
        Change::Add(c("up"), 7),
        Change::Append(c("list"), vec![Value::Int(2)]),
        Change::Append(c("nothing"), vec![]),
        Change::Include(c("names"), texts(&["b"])),
        Change::Exclude(c("fewer"), texts(&["b"])),
        Change::IncludeBytes(c("ids"), strings(&[b"1"])),
    ];
    let after = Item::new()
        .with("set", 2)
        .with("up", 7)
        .with("list", vec![Value::Int(2)])
        .with("nothing", Vec::<Value>::new())
        .with("names", Value::StrSet(texts(&["b"])))
        .with("ids", Value::BytesSet(strings(&[b"1"])));
    let image = write(&store, Write::update(key.clone(), changes)).await.expect("all changes");
    assert_eq!(image, Some(after.clone()));
    assert_eq!(get(&store, &key).await, Some(after));
}

/// Removing the last member of a set removes the attribute; adding one brings it back.
pub async fn sets_vanish_with_their_last_member(store: Subject) {
    let key = key("sets", "item");
    put(&store, &key, Item::new().with("s", Value::StrSet(texts(&["a", "b"])))).await;
    let exclude =
        |of: &[&str]| Write::update(key.clone(), vec![Change::Exclude("s".into(), texts(of))]);
    let image = write(&store, exclude(&["a"])).await.expect("an update");
    assert_eq!(image, Some(Item::new().with("s", Value::StrSet(texts(&["b"])))));
    let image = write(&store, exclude(&["b", "c"])).await.expect("an update");
    assert_eq!(image, Some(Item::new()));
    let image = write(&store, exclude(&["b"])).await.expect("an update");
    assert_eq!(image, Some(Item::new()));
    let include = Change::Include("s".into(), texts(&["z"]));
    let image = write(&store, Write::update(key.clone(), vec![include])).await.expect("an update");
    assert_eq!(image, Some(Item::new().with("s", Value::StrSet(texts(&["z"])))));
}

/// A change that does not fit the attribute is refused as invalid and changes nothing.
pub async fn changes_of_the_wrong_type_are_refused(store: Subject) {
    let key = key("wrong-type", "item");
    let item = Item::new().with("text", "x").with("n", 1).with("s", Value::StrSet(texts(&["a"])));
    put(&store, &key, item.clone()).await;
    let c = |s: &str| s.to_owned();
    for change in [
        Change::Add(c("text"), 1),
        Change::Append(c("text"), vec![Value::Int(1)]),
        Change::Append(c("n"), vec![Value::Int(1)]),
        Change::Include(c("n"), texts(&["b"])),
        Change::Exclude(c("n"), texts(&["b"])),
        Change::IncludeBytes(c("s"), strings(&[b"b"])),
    ] {
        let what = format!("{change:?}");
        let good = Change::Set("other".into(), 1.into());
        invalid(write(&store, Write::update(key.clone(), vec![good, change])).await, &what);
        assert_eq!(get(&store, &key).await, Some(item.clone()), "{what}");
    }
}

/// A delete returns no image, and deleting what is not there is no error.
pub async fn delete_removes_and_is_idempotent(store: Subject) {
    let key = key("delete", "item");
    put(&store, &key, Item::new().with("n", 1)).await;
    for _ in 0..2 {
        assert_eq!(write(&store, Write::delete(key.clone())).await.expect("a delete"), None);
        assert_eq!(get(&store, &key).await, None);
    }
}

/// Values of every type, at their extremes and nested, come back as they were.
pub async fn every_value_survives(store: Subject) {
    let key = key("values", "ïtem/ with #odd?chars\u{1F30A}");
    let map: BTreeMap<String, Value> = [
        ("list".to_owned(), Value::List(vec![Value::Map(BTreeMap::new()), Value::Bool(false)])),
        ("bytes".to_owned(), Value::Bytes(Bytes::from_static(b"\x00\x01\xfe"))),
        ("names".to_owned(), Value::StrSet(texts(&["", "\u{1F30A}"]))),
    ]
    .into();
    let item = Item::new()
        .with("least", i64::MIN)
        .with("most", i64::MAX)
        .with("zero", 0)
        .with("round", 1_000_000_000_000_000_000)
        .with("text", "line\nbreak \u{0} \u{10FFFF} \"quoted\"")
        .with("empty", "")
        .with("no bytes", Bytes::new())
        .with("all bytes", Bytes::from_iter(0..=255u8))
        .with("list", vec![Value::List(vec![]), "x".into(), Value::Int(-1)])
        .with("map", Value::Map(map))
        .with("ids", Value::BytesSet(strings(&[b"", b"\x00", b"\xff\xff"])))
        .with("Ümläut and spaces.", true);
    put(&store, &key, item.clone()).await;
    assert_eq!(get(&store, &key).await, Some(item.clone()));
    let image = write(&store, Write::update(key.clone(), vec![])).await.expect("an update");
    assert_eq!(image, Some(item));
}

/// An item is there even when it has no attributes.
pub async fn an_item_without_attributes_exists(store: Subject) {
    let key = key("bare", "item");
    assert_eq!(get(&store, &key).await, None);
    put(&store, &key, Item::new()).await;
    assert_eq!(get(&store, &key).await, Some(Item::new()));
    let eventual = store.get(&key, Consistency::Eventual).await;
    assert!(eventual.is_ok());
}
