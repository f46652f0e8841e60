//! Gets, batches and queries.

use super::{Subject, get, key, put, write};
use crate::{Change, Direction, Item, Key, Query, Write, limits};

/// A strong read, a batch and a query see every commit that was answered before.
pub async fn reads_see_what_was_answered(store: Subject) {
    let k = key("fresh", "item");
    for n in 1..=20 {
        let image = write(&store, Write::update(k.clone(), vec![Change::Add("n".into(), 1)])).await;
        let item = Item::new().with("n", n);
        let due = Some(item.clone());
        assert_eq!(image.expect("an update"), due);
        assert_eq!(get(&store, &k).await, due);
        assert_eq!(
            store.batch_get(std::slice::from_ref(&k)).await.expect("a read"),
            vec![due.clone()]
        );
        let page = store.query(&Query::all(k.pk.as_str())).await.expect("a read");
        assert_eq!(page.items, vec![(k.clone(), item)]);
    }
}

/// Answers of a batch stand in the order of its keys, the missing and the repeated included.
pub async fn batch_get_keeps_the_order(store: Subject) {
    let keys: Vec<_> = (0..5).map(|n| key(&format!("batch-{}", n % 2), &format!("{n}"))).collect();
    for (n, k) in keys.iter().enumerate().filter(|(n, _)| *n != 2) {
        put(&store, k, Item::new().with("n", n as i64)).await;
    }
    let asked: Vec<_> = [3, 2, 0, 4, 1, 3].iter().map(|n| keys[*n].clone()).collect();
    let found = store.batch_get(&asked).await.expect("a batch");
    let numbers: Vec<_> = found.iter().map(|i| i.as_ref().and_then(|i| i.int("n"))).collect();
    assert_eq!(numbers, [Some(3), None, Some(0), Some(4), Some(1), Some(3)]);
    assert_eq!(store.batch_get(&[]).await.expect("an empty batch"), vec![]);
}

async fn sort_keys(store: &Subject, query: &Query) -> Vec<String> {
    let page = store.query(query).await.expect("a query");
    for (k, i) in &page.items {
        assert_eq!(k.pk, query.pk);
        assert_eq!(i.str("sk_copy"), Some(k.sk.as_str()), "an item under the wrong key");
    }
    page.items.into_iter().map(|(k, _)| k.sk).collect()
}

async fn fill(store: &Subject, pk: &str, sks: &[&str]) {
    for sk in sks {
        put(store, &key(pk, sk), Item::new().with("sk_copy", *sk)).await;
    }
}

fn query(pk: &str) -> Query {
    Query::all(key(pk, "x").pk)
}

/// Neighbours whose partition keys begin alike stay out.
pub async fn query_reads_its_partition_key_only(store: Subject) {
    fill(&store, "q", &["1", "2"]).await;
    fill(&store, "q#", &["3"]).await;
    fill(&store, "q\u{0}", &["4"]).await;
    fill(&store, "p", &["5"]).await;
    assert_eq!(sort_keys(&store, &query("q")).await, ["1", "2"]);
    assert_eq!(sort_keys(&store, &query("q#")).await, ["3"]);
    assert_eq!(sort_keys(&store, &query("q\u{0}")).await, ["4"]);
}

/// Both bounds are inclusive, need not exist, and may be left out; reversed bounds enclose nothing.
pub async fn query_bounds_are_inclusive(store: Subject) {
    fill(&store, "q-bounds", &["a", "b", "c", "d", "e"]).await;
    let ask = |from: Option<&str>, to: Option<&str>| Query {
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
        ..query("q-bounds")
    };
    assert_eq!(sort_keys(&store, &ask(Some("b"), Some("d"))).await, ["b", "c", "d"]);
    assert_eq!(sort_keys(&store, &ask(Some("bb"), Some("dd"))).await, ["c", "d"]);
    assert_eq!(sort_keys(&store, &ask(Some("d"), None)).await, ["d", "e"]);
    assert_eq!(sort_keys(&store, &ask(None, Some("b"))).await, ["a", "b"]);
    assert_eq!(sort_keys(&store, &ask(Some("c"), Some("c"))).await, ["c"]);
    assert_eq!(sort_keys(&store, &ask(Some("d"), Some("b"))).await, [""; 0]);
    assert_eq!(sort_keys(&store, &ask(Some("f"), None)).await, [""; 0]);
}

/// Backward is forward reversed, under bounds and limits too.
pub async fn query_directions(store: Subject) {
    fill(&store, "q-dir", &["c", "a", "d", "b"]).await;
    let back = Query { direction: Direction::Backward, ..query("q-dir") };
    assert_eq!(sort_keys(&store, &query("q-dir")).await, ["a", "b", "c", "d"]);
    assert_eq!(sort_keys(&store, &back).await, ["d", "c", "b", "a"]);
    let last = Query { limit: 1, to: Some("c".into()), ..back };
    assert_eq!(sort_keys(&store, &last).await, ["c"]);
}

async fn all_pages(store: &Subject, mut query: Query) -> (Vec<String>, usize) {
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = store.query(&query).await.expect("a query");
        pages += 1;
        assert!(page.items.len() <= query.limit);
        found.extend(page.items.iter().map(|(k, _)| k.sk.clone()));
        match query.following(&page) {
            Some(next) => query = next,
            None => return (found, pages),
        }
    }
}

/// A page holds no more than the limit, and following `more` finds everything once.
pub async fn query_limits_and_pages(store: Subject) {
    let sks: Vec<_> = (0..10).map(|n| format!("{n:02}")).collect();
    fill(&store, "q-pages", &sks.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for limit in [1, 3, 5, 9, 10, 11, limits::QUERY_ITEMS] {
        let (found, pages) = all_pages(&store, Query { limit, ..query("q-pages") }).await;
        assert_eq!(found, sks, "limit {limit}");
        assert!(pages >= 10usize.div_ceil(limit), "limit {limit}: {pages} pages");
        let back = Query { limit, direction: Direction::Backward, ..query("q-pages") };
        let (mut found, _) = all_pages(&store, back).await;
        found.reverse();
        assert_eq!(found, sks, "limit {limit}, backward");
    }
    let page = store.query(&Query { limit: 4, ..query("q-pages") }).await.expect("a query");
    assert_eq!((page.items.len(), page.more), (4, true));
}

/// Sort keys of the largest size are found, paged over in both directions, and bounded by what is longer than any key.
pub async fn keys_of_the_largest_size(store: Subject) {
    let of = |last: &str| format!("{}{last}", "k".repeat(limits::SORT_KEY_BYTES - last.len()));
    let mut sks = vec![of("a"), of("b"), of("\u{7FF}"), of("\u{FFFD}"), of("\u{1F30A}"), of("z")];
    sks.sort_unstable_by_key(|sk| sk.clone().into_bytes());
    fill(&store, "q-longest", &sks.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for limit in [1, 2, 4, limits::QUERY_ITEMS] {
        let (found, _) = all_pages(&store, Query { limit, ..query("q-longest") }).await;
        assert!(found == sks, "limit {limit}: {} of {}", found.len(), sks.len());
        let back = Query { limit, direction: Direction::Backward, ..query("q-longest") };
        let (mut found, _) = all_pages(&store, back).await;
        found.reverse();
        assert!(found == sks, "limit {limit}, backward: {} of {}", found.len(), sks.len());
    }
    for (at, sk) in sks.iter().enumerate() {
        for direction in [Direction::Forward, Direction::Backward] {
            let beyond = format!("{sk}\u{0}");
            let above = Query { from: Some(beyond.clone()), direction, ..query("q-longest") };
            let mut found = sort_keys(&store, &above).await;
            found.sort_unstable();
            let mut due = sks[at + 1..].to_vec();
            due.sort_unstable();
            assert!(found == due, "above key {at}: {} of {}", found.len(), due.len());
            let below = Query { to: Some(beyond), direction, ..query("q-longest") };
            assert_eq!(sort_keys(&store, &below).await.len(), at + 1, "up to key {at}");
        }
    }
}

/// A page stops at its bytes, not in the middle of nothing, and says that there is more.
pub async fn query_stops_at_its_bytes(store: Subject) {
    let large = "x".repeat(limits::QUERY_BYTES / 3);
    let sks: Vec<_> = (0..7).map(|n| format!("{n}")).collect();
    for sk in &sks {
        put(&store, &key("q-bytes", sk), Item::new().with("large", large.as_str())).await;
    }
    let page = store.query(&query("q-bytes")).await.expect("a query");
    assert!(page.more);
    assert!((1..=3).contains(&page.items.len()), "{} items", page.items.len());
    let back = Query { direction: Direction::Backward, ..query("q-bytes") };
    let page = store.query(&back).await.expect("a query");
    assert!(page.more);
    assert_eq!(page.items[0].0.sk, "6");
    let (found, pages) = all_pages(&store, query("q-bytes")).await;
    assert_eq!(found, sks);
    assert!(pages >= 3);
}

/// A partition key without items has an empty page and nothing more.
pub async fn query_of_nothing_is_empty(store: Subject) {
    let page = store.query(&query("q-nothing")).await.expect("a query");
    assert_eq!((page.items.len(), page.more), (0, false));
}

/// Sort keys sort by their UTF-8 bytes, whatever language they are in.
pub async fn keys_sort_by_bytes(store: Subject) {
    let mut sks =
        vec!["Z", "a", "B", "ä", "z", "10", "9", "\u{FFFD}", "\u{1F30A}", "a\u{0}", "ab", " "];
    fill(&store, "q-bytewise", &sks).await;
    sks.sort_unstable_by_key(|sk| sk.as_bytes());
    assert_eq!(sort_keys(&store, &query("q-bytewise")).await, sks);
    let back = Query { limit: 1, direction: Direction::Backward, ..query("q-bytewise") };
    let (mut found, _) = all_pages(&store, back).await;
    found.reverse();
    assert_eq!(found, sks);
    let prefix = Query::prefix(key("q-bytewise", "x").pk, "a");
    assert_eq!(sort_keys(&store, &prefix).await, ["a", "a\u{0}", "ab"]);
    let between = Query { from: Some("a".into()), to: Some("ab".into()), ..query("q-bytewise") };
    assert_eq!(sort_keys(&store, &between).await, ["a", "a\u{0}", "ab"]);
    let first = Key::new(key("q-bytewise", "x").pk, "Z");
    assert!(get(&store, &first).await.is_some());
}
