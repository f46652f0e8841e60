//! Random histories, and the answers that a store gives to them.

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use tidewheel_store::{
    Blob, BlobName, Change, Commit, Condition, Consistency, Direction, Item, Key, Query, Store,
    Value, Write, blob::FRAME_BYTES, limits,
};

/// One call of a store, or its restart.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Commit(Commit),
    Get(Key),
    BatchGet(Vec<Key>),
    Query(Query),
    Blob(BlobName, Option<std::ops::Range<u64>>),
    ListBlobs(Option<String>, usize),
    DeleteBlobs(Vec<BlobName>),
    Restart,
}

fn key() -> impl Strategy<Value = Key> {
    ("[pq]", "[a-d]").prop_map(|(pk, sk)| Key::new(pk, sk))
}

/// Few names, so that changes and conditions meet attributes of every type.
fn attribute() -> impl Strategy<Value = String> {
    "[nslxb]".prop_map(String::from)
}

fn texts() -> impl Strategy<Value = BTreeSet<String>> {
    proptest::collection::btree_set("[a-c]", 0..3)
}

fn strings() -> impl Strategy<Value = BTreeSet<Bytes>> {
    proptest::collection::btree_set("[a-c]".prop_map(Bytes::from), 0..3)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::Int),
        (0i64..4).prop_map(Value::Int),
        "\\PC{0,6}".prop_map(Value::Str),
        any::<bool>().prop_map(Value::Bool),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(|b| Value::Bytes(b.into())),
        texts().prop_map(Value::StrSet),
        strings().prop_map(Value::BytesSet),
        Just(Value::Str("long".repeat(500))),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            proptest::collection::btree_map("[a-c]", inner, 0..3).prop_map(Value::Map),
        ]
    })
}

fn item() -> impl Strategy<Value = Item> {
    proptest::collection::vec((attribute(), value()), 0..4)
        .prop_map(|all| all.into_iter().collect())
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        Just(Condition::Absent),
        Just(Condition::Exists),
        attribute().prop_map(Condition::Lacks),
        attribute().prop_map(Condition::Has),
        (attribute(), value()).prop_map(|(a, v)| Condition::Equals(a, v)),
        (attribute(), value()).prop_map(|(a, v)| Condition::Differs(a, v)),
        (attribute(), -2i64..4).prop_map(|(a, n)| Condition::LessThan(a, n)),
        (attribute(), -2i64..4).prop_map(|(a, n)| Condition::MoreThan(a, n)),
        (attribute(), 0usize..4).prop_map(|(a, n)| Condition::ShorterThan(a, n)),
        (attribute(), "[a-c]").prop_map(|(a, b)| Condition::SetLacks(a, b.into())),
        (attribute(), "[a-c]").prop_map(|(a, m)| Condition::SetHas(a, m)),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (attribute(), value()).prop_map(|(a, v)| Change::Set(a, v)),
        attribute().prop_map(Change::Remove),
        (Just("n".to_owned()), -3i64..4).prop_map(|(a, n)| Change::Add(a, n)),
        (attribute(), any::<i64>()).prop_map(|(a, n)| Change::Add(a, n)),
        (attribute(), proptest::collection::vec(value(), 0..3))
            .prop_map(|(a, l)| Change::Append(a, l)),
        (attribute(), texts()).prop_map(|(a, s)| Change::Include(a, s)),
        (attribute(), texts()).prop_map(|(a, s)| Change::Exclude(a, s)),
        (attribute(), strings()).prop_map(|(a, s)| Change::IncludeBytes(a, s)),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let action = prop_oneof![
        3 => (key(), item()).prop_map(|(k, i)| Write::put(k, i)),
        5 => (key(), proptest::collection::vec(change(), 0..3)).prop_map(|(k, c)| Write::update(k, c)),
        1 => key().prop_map(Write::delete),
        1 => key().prop_map(Write::check),
    ];
    // Most writes have no condition: else few would ever happen.
    (action, proptest::collection::vec(condition(), 0..4)).prop_map(|(mut w, conditions)| {
        w.conditions = if conditions.len() > 1 { conditions[2..].to_vec() } else { conditions };
        w
    })
}

fn name() -> impl Strategy<Value = BlobName> {
    "[a-f]".prop_map(|id| BlobName::new("o", id))
}

fn blob() -> impl Strategy<Value = Blob> {
    name().prop_map(|name| {
        // A name always has the same bytes, as a fresh name has.
        let first = name.id.as_bytes()[0];
        let bytes = match first {
            b'a' => 0,
            b'b' => 17,
            b'c' => limits::INLINE_BLOB_BYTES - FRAME_BYTES,
            b'd' => limits::INLINE_BLOB_BYTES - FRAME_BYTES + 1,
            b'e' => 8_700,
            _ => 40_000,
        };
        Blob { name, body: (0..bytes).map(|n| n as u8 ^ first).collect() }
    })
}

fn commit() -> impl Strategy<Value = Commit> {
    (proptest::collection::vec(write(), 1..4), proptest::collection::vec(blob(), 0..2))
        .prop_map(|(writes, blobs)| Commit { writes, blobs })
}

fn query() -> impl Strategy<Value = Query> {
    let bound = || proptest::option::of("[a-d]".prop_map(String::from));
    ("[pqr]", bound(), bound(), any::<bool>(), 0usize..6).prop_map(
        |(pk, from, to, forward, limit)| Query {
            pk,
            from,
            to,
            direction: if forward { Direction::Forward } else { Direction::Backward },
            limit,
        },
    )
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => commit().prop_map(Step::Commit),
        2 => key().prop_map(Step::Get),
        1 => proptest::collection::vec(key(), 0..5).prop_map(Step::BatchGet),
        2 => query().prop_map(Step::Query),
        2 => (name(), proptest::option::of((0u64..30, 0u64..30).prop_map(|(a, b)| a..a + b)))
            .prop_map(|(n, r)| Step::Blob(n, r)),
        1 => (proptest::option::of("[a-f]".prop_map(String::from)), 0usize..8)
            .prop_map(|(a, l)| Step::ListBlobs(a, l)),
        1 => proptest::collection::vec(name(), 0..3).prop_map(Step::DeleteBlobs),
        1 => Just(Step::Restart),
    ]
}

/// Runs a step and writes down its answer.
pub(crate) async fn answer(store: &dyn Store, step: &Step) -> String {
    match step {
        Step::Commit(commit) => format!("{:?}", store.commit(commit.clone()).await),
        Step::Get(key) => format!("{:?}", store.get(key, Consistency::Strong).await),
        Step::BatchGet(keys) => format!("{:?}", store.batch_get(keys).await),
        Step::Query(query) => format!("{:?}", store.query(query).await),
        Step::Blob(name, range) => format!("{:?}", store.blob(name, range.clone()).await),
        Step::ListBlobs(after, limit) => {
            format!("{:?}", store.list_blobs("o", after.as_deref(), *limit).await)
        }
        Step::DeleteBlobs(names) => format!("{:?}", store.delete_blobs(names).await),
        Step::Restart => String::new(),
    }
}

/// Blobs of a refused commit stay in one back end and not in the other, and both are right: a commit that is
/// refused gives its blobs up.
pub(crate) async fn give_up_blobs(store: &dyn Store, step: &Step) {
    if let Step::Commit(commit) = step {
        let names: Vec<_> = commit.blobs.iter().map(|b| b.name.clone()).collect();
        store.delete_blobs(&names).await.expect("a delete");
    }
}
