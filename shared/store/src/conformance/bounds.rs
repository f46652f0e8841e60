//! Every limit: what lies at it is taken, what lies beyond is refused and changes nothing.

use bytes::Bytes;

use super::{Subject, commit, get, invalid, key, put, write};
use crate::{
    Blob, BlobName, Change, Commit, Condition, Consistency, Invalid, Item, Key, Query, ReadError,
    Value, Write, limits, write::item_bytes,
};

/// An item that has exactly this many bytes under the key.
fn item_of(key: &Key, bytes: usize) -> Item {
    let empty = item_bytes(key, Some(&Item::new().with("x", "")));
    Item::new().with("x", "x".repeat(bytes - empty))
}

/// An item of the largest size fits; one byte more does not.
pub async fn item_size_limit(store: Subject) {
    let k = key("limit-item", "item");
    let largest = item_of(&k, limits::ITEM_BYTES);
    put(&store, &k, largest.clone()).await;
    let beyond = item_of(&k, limits::ITEM_BYTES + 1);
    let why =
        invalid(write(&store, Write::put(k.clone(), beyond)).await, "an item beyond the limit");
    assert_eq!(why, Invalid::ItemSize { key: k.clone(), bytes: limits::ITEM_BYTES + 1 });
    assert!(get(&store, &k).await == Some(largest));
}

/// An update may not make an item grow beyond the limit.
pub async fn item_size_limit_of_an_update(store: Subject) {
    let k = key("limit-update", "item");
    let near = item_of(&k, limits::ITEM_BYTES - 8);
    put(&store, &k, near.clone()).await;
    let append =
        |text: &str| Write::update(k.clone(), vec![Change::Append("l".into(), vec![text.into()])]);
    // A name of 1 byte, a list of 3, an entry of 1: two more bytes fit in 8 with one to spare.
    invalid(write(&store, append("1234")).await, "an update beyond the limit");
    assert!(get(&store, &k).await == Some(near));
    write(&store, append("123")).await.expect("an update to the limit");
}

/// A hundred writes are taken, one more is not.
pub async fn transaction_count_limit(store: Subject) {
    let writes = |n: usize| {
        let one = |i| {
            Write::update(key("limit-count", &format!("{i}")), vec![Change::Add("n".into(), 1)])
        };
        Commit::all((0..n).map(one).collect())
    };
    commit(&store, writes(limits::TRANSACTION_ITEMS)).await.expect("writes up to the limit");
    let why =
        invalid(commit(&store, writes(limits::TRANSACTION_ITEMS + 1)).await, "one write more");
    assert_eq!(why, Invalid::TooManyWrites { writes: limits::TRANSACTION_ITEMS + 1 });
    assert_eq!(get(&store, &key("limit-count", "0")).await, Some(Item::new().with("n", 1)));
    assert_eq!(get(&store, &key("limit-count", "100")).await, None);
}

const PARTS: usize = 16;

/// The bytes of all items that a transaction puts have a limit.
pub async fn transaction_size_limit(store: Subject) {
    fill_a_transaction(&store, "limit-size").await;
}

/// So have the bytes of items that only grow. Not in the suite: see its page.
pub async fn transaction_size_limit_of_updates(store: Subject) {
    let keys = fill_a_transaction(&store, "limit-growth").await;
    let grow = |k: &Key| Write::update(k.clone(), vec![Change::Set("y".into(), "y".into())]);
    let all = Commit::all(keys.iter().map(grow).collect());
    invalid(commit(&store, all).await, "updates beyond the limit");
    assert!(get(&store, &keys[0]).await.is_some_and(|i| i.get("y").is_none()));
}

/// Puts as many bytes as a transaction takes, and not one more.
async fn fill_a_transaction(store: &Subject, behaviour: &str) -> Vec<Key> {
    let keys: Vec<_> = (0..PARTS).map(|n| key(behaviour, &format!("{n:02}"))).collect();
    let share = limits::TRANSACTION_BYTES / PARTS;
    let puts = |last: usize| {
        let item = |n: usize, k: &Key| item_of(k, if n + 1 == PARTS { last } else { share });
        Commit::all(
            keys.iter().enumerate().map(|(n, k)| Write::put(k.clone(), item(n, k))).collect(),
        )
    };
    let why = invalid(commit(store, puts(share + 1)).await, "one byte beyond the limit");
    assert_eq!(why, Invalid::TransactionSize { bytes: limits::TRANSACTION_BYTES + 1 });
    assert_eq!(get(store, &keys[0]).await, None);
    commit(store, puts(share)).await.expect("bytes up to the limit");
    keys
}

/// No item may be written twice in one commit, nor checked and written.
pub async fn no_item_twice(store: Subject) {
    let k = key("limit-twice", "item");
    for second in
        [Write::check(k.clone()), Write::delete(k.clone()), Write::put(k.clone(), Item::new())]
    {
        let both = Commit::all(vec![Write::put(k.clone(), Item::new()), second]);
        let why = invalid(commit(&store, both).await, "the same item twice");
        assert_eq!(why, Invalid::ItemTwice { key: k.clone() });
    }
    assert_eq!(get(&store, &k).await, None);
    let name = BlobName::new("conformance-twice", "b");
    let blob = |text: &'static str| Blob { name: name.clone(), body: text.into() };
    let twice =
        Commit::one(Write::put(k.clone(), Item::new())).with_blob(blob("a")).with_blob(blob("b"));
    assert_eq!(invalid(commit(&store, twice).await, "a blob twice"), Invalid::BlobTwice { name });
}

/// No attribute may be changed twice in one write.
pub async fn no_attribute_twice(store: Subject) {
    let k = key("limit-attribute", "item");
    let twice = vec![Change::Add("n".into(), 1), Change::Set("n".into(), 1.into())];
    let why = invalid(write(&store, Write::update(k.clone(), twice)).await, "an attribute twice");
    assert_eq!(why, Invalid::AttributeTwice { key: k.clone(), attribute: "n".into() });
    assert_eq!(get(&store, &k).await, None);
}

/// Keys have a least and a largest size, for writes and for reads.
pub async fn key_limits(store: Subject) {
    let (pk, sk) = ("p".repeat(limits::PARTITION_KEY_BYTES), "s".repeat(limits::SORT_KEY_BYTES));
    let largest = Key::new(pk.as_str(), sk.as_str());
    put(&store, &largest, Item::new().with("n", 1)).await;
    assert_eq!(get(&store, &largest).await, Some(Item::new().with("n", 1)));
    for k in [
        Key::new("", "s"),
        Key::new("p", ""),
        Key::new(format!("{pk}p"), "s"),
        Key::new("p", format!("{sk}s")),
    ] {
        let why = invalid(write(&store, Write::put(k.clone(), Item::new())).await, "a key's size");
        assert_eq!(why, Invalid::KeySize { pk_bytes: k.pk.len(), sk_bytes: k.sk.len() });
        let read = store.get(&k, Consistency::Strong).await;
        assert!(matches!(read, Err(ReadError::Invalid(Invalid::KeySize { .. }))), "{read:?}");
        let read = store.batch_get(std::slice::from_ref(&k)).await;
        assert!(matches!(read, Err(ReadError::Invalid(Invalid::KeySize { .. }))), "{read:?}");
    }
    for pk in [String::new(), format!("{pk}p")] {
        let read = store.query(&Query::all(pk)).await;
        assert!(matches!(read, Err(ReadError::Invalid(Invalid::KeySize { .. }))), "{read:?}");
    }
}

/// Attributes: the size of a name, the names of the key, empty sets, depth.
pub async fn attribute_limits(store: Subject) {
    let k = key("limit-names", "item");
    let nested = |levels: usize| (1..levels).fold(Value::List(vec![]), |v, _| Value::List(vec![v]));
    let longest = "n".repeat(limits::ATTRIBUTE_NAME_BYTES);
    let most = Item::new().with(longest.as_str(), 1).with("deep", nested(limits::VALUE_DEPTH + 1));
    put(&store, &k, most.clone()).await;
    assert_eq!(get(&store, &k).await, Some(most.clone()));

    let set = |name: &str, value: Value| {
        vec![
            Write::put(k.clone(), Item::new().with(name, value.clone())),
            Write::update(k.clone(), vec![Change::Set(name.to_owned(), value)]),
        ]
    };
    let none = Value::StrSet([].into());
    let refused = [
        set("", 1.into()),
        set(&format!("{longest}n"), 1.into()),
        set("pk", 1.into()),
        set("sk", 1.into()),
        set("s", none.clone()),
        set("s", Value::BytesSet([].into())),
        set("s", Value::List(vec![none])),
        set("deep", nested(limits::VALUE_DEPTH + 2)),
        vec![Write::update(k.clone(), vec![Change::Include("s".into(), [].into())])],
        vec![Write::update(k.clone(), vec![Change::IncludeBytes("s".into(), [].into())])],
    ];
    for w in refused.into_iter().flatten() {
        let what = format!("{:.80}", format!("{:?}", w.action));
        invalid(write(&store, w).await, &what);
    }
    assert_eq!(get(&store, &k).await, Some(most));
}

/// Conditions of one write have a limit on their operators.
pub async fn operator_limit(store: Subject) {
    let k = key("limit-operators", "item");
    let lacks = |n: usize| {
        let one = |n: usize| Condition::SetLacks("ids".into(), Bytes::from(format!("{n}")));
        let mut w = Write::update(k.clone(), vec![Change::Add("n".into(), 1)]);
        w.conditions = (0..n).map(one).collect();
        w
    };
    let most = limits::CONDITION_OPERATORS / 2;
    write(&store, lacks(most)).await.expect("operators up to the limit");
    let why = invalid(write(&store, lacks(most + 1)).await, "operators beyond the limit");
    assert_eq!(
        why,
        Invalid::TooManyConditions { key: k.clone(), operators: limits::CONDITION_OPERATORS + 2 }
    );
}

/// Reads have limits of their own.
pub async fn read_limits(store: Subject) {
    let keys: Vec<_> =
        (0..=limits::BATCH_GET_KEYS).map(|n| key("limit-batch", &format!("{n}"))).collect();
    let found = store.batch_get(&keys[1..]).await.expect("keys up to the limit");
    assert_eq!(found.len(), limits::BATCH_GET_KEYS);
    let beyond = store.batch_get(&keys).await;
    assert!(
        matches!(beyond, Err(ReadError::Invalid(Invalid::TooMany { count: 101, .. }))),
        "{beyond:?}"
    );
    let page = |limit| Query { limit, ..Query::all("conformance-limit-query") };
    store.query(&page(limits::QUERY_ITEMS)).await.expect("a page of the largest size");
    let beyond = store.query(&page(limits::QUERY_ITEMS + 1)).await;
    assert!(matches!(beyond, Err(ReadError::Invalid(Invalid::TooMany { .. }))), "{beyond:?}");
    let none = store.query(&page(0)).await;
    assert_eq!(none, Err(ReadError::Invalid(Invalid::NoLimit)));
}

/// Blobs: the size of the body, of the name, the characters of the name, names in one delete.
pub async fn blob_limits(store: Subject) {
    let k = key("limit-blob", "item");
    let body = Bytes::from(vec![7u8; limits::BLOB_BYTES + 1]);
    let with = |name: BlobName, body: Bytes| {
        Commit::one(Write::put(k.clone(), Item::new())).with_blob(Blob { name, body })
    };
    let name = BlobName::new("conformance-limit", "largest");
    let largest = body.slice(1..);
    commit(&store, with(name.clone(), largest.clone())).await.expect("a blob of the largest size");
    assert!(store.blob(&name, None).await.expect("a blob") == Some(largest));
    store.delete_blobs(std::slice::from_ref(&name)).await.expect("a delete");
    let beyond = commit(&store, with(name.clone(), body.clone())).await;
    assert_eq!(
        invalid(beyond, "a blob beyond the limit"),
        Invalid::BlobSize { name, bytes: limits::BLOB_BYTES + 1 }
    );

    let small = body.slice(..1);
    let longest = "n".repeat(limits::BLOB_NAME_BYTES);
    let name = BlobName::new(longest.as_str(), format!("Az09._-{}", &longest[7..]));
    commit(&store, with(name.clone(), small.clone())).await.expect("a name of the largest size");
    assert_eq!(store.blob(&name, None).await.expect("a blob"), Some(small.clone()));
    for (owner, id) in [
        ("", "a"),
        ("a", ""),
        ("a", "a/b"),
        ("..", "a"),
        ("a", ".hidden"),
        ("a", "ä"),
        ("a", "a b"),
        ("a", "a\u{0}"),
        (format!("{longest}n").as_str(), "a"),
    ] {
        let name = BlobName::new(owner, id);
        let due = Invalid::BlobName { name: name.clone() };
        assert_eq!(invalid(commit(&store, with(name.clone(), small.clone())).await, "a name"), due);
        assert_eq!(store.blob(&name, None).await, Err(ReadError::Invalid(due.clone())));
        assert_eq!(invalid(store.delete_blobs(std::slice::from_ref(&name)).await, "a name"), due);
    }
    let names: Vec<_> = (0..=limits::DELETE_BLOBS)
        .map(|n| BlobName::new("conformance-limit", format!("{n}")))
        .collect();
    store.delete_blobs(&names[1..]).await.expect("names up to the limit");
    invalid(store.delete_blobs(&names).await, "names beyond the limit");
}

/// A commit without writes is refused, with blobs or without.
pub async fn no_writes(store: Subject) {
    assert_eq!(invalid(commit(&store, Commit::default()).await, "nothing"), Invalid::NoWrites);
    let blob =
        Blob { name: BlobName::new("conformance-no-writes", "b"), body: Bytes::from_static(b"x") };
    let blobs = Commit { blobs: vec![blob], writes: vec![] };
    assert_eq!(invalid(commit(&store, blobs).await, "blobs alone"), Invalid::NoWrites);
}
