//! Several writes as one.

use super::{Subject, commit, conflict, get, invalid, key, put, write};
use crate::{Change, Commit, Condition, Failed, Item, Value, Write};

fn add(name: &str) -> Vec<Change> {
    vec![Change::Add(name.into(), 1)]
}

/// Several writes land together and return no image.
pub async fn a_transaction_returns_no_image(store: Subject) {
    let (a, b, c) = (key("tx", "a"), key("tx", "b"), key("tx", "c"));
    put(&store, &c, Item::new()).await;
    let all = Commit::all(vec![
        Write::put(a.clone(), Item::new().with("n", 1)),
        Write::update(b.clone(), add("n")),
        Write::delete(c.clone()),
    ]);
    assert_eq!(commit(&store, all).await.expect("a transaction").image, None);
    assert_eq!(get(&store, &a).await, Some(Item::new().with("n", 1)));
    assert_eq!(get(&store, &b).await, Some(Item::new().with("n", 1)));
    assert_eq!(get(&store, &c).await, None);
}

/// One write that fails keeps all the others from happening.
pub async fn a_transaction_is_all_or_nothing(store: Subject) {
    let (a, b, c) = (key("tx-none", "a"), key("tx-none", "b"), key("tx-none", "c"));
    put(&store, &c, Item::new().with("n", 5)).await;
    let all = Commit::all(vec![
        Write::put(a.clone(), Item::new().with("n", 1)),
        Write::update(b.clone(), add("n")).when(Condition::Exists),
        Write::delete(c.clone()),
    ]);
    let failed = conflict(commit(&store, all).await, "the second write fails");
    assert_eq!(failed, vec![Failed { write: 1, current: None }]);
    assert_eq!(get(&store, &a).await, None);
    assert_eq!(get(&store, &b).await, None);
    assert_eq!(get(&store, &c).await, Some(Item::new().with("n", 5)));
}

/// All writes whose conditions fail are named, in order, each with its item as it is; the others are not.
pub async fn a_conflict_names_every_failed_write(store: Subject) {
    let keys: Vec<_> = (0..6).map(|n| key("tx-failed", &format!("{n}"))).collect();
    for (n, k) in keys.iter().enumerate().take(4) {
        put(&store, k, Item::new().with("n", n as i64)).await;
    }
    let wants = |n: i64| Condition::Equals("n".into(), n.into());
    let all = Commit::all(vec![
        Write::put(keys[5].clone(), Item::new()),
        Write::update(keys[3].clone(), add("n")).when(wants(0)),
        Write::check(keys[2].clone()).when(wants(2)),
        Write::delete(keys[1].clone()).when(wants(0)),
        Write::check(keys[4].clone()).when(Condition::Exists),
        Write::put(keys[0].clone(), Item::new()).when(Condition::Absent),
    ]);
    let failed = conflict(commit(&store, all).await, "four writes fail");
    let item = |n: i64| Some(Item::new().with("n", n));
    let due = [(1, item(3)), (3, item(1)), (4, None), (5, item(0))];
    let due: Vec<_> = due.into_iter().map(|(write, current)| Failed { write, current }).collect();
    assert_eq!(failed, due);
    for (n, k) in keys.iter().enumerate() {
        assert_eq!(get(&store, k).await, if n < 4 { item(n as i64) } else { None }, "{k}");
    }
}

/// A check neither changes an item nor creates one.
pub async fn a_check_changes_nothing(store: Subject) {
    let (a, b, c) = (key("tx-check", "a"), key("tx-check", "b"), key("tx-check", "c"));
    put(&store, &a, Item::new().with("n", 1)).await;
    let all = Commit::all(vec![
        Write::check(a.clone()).when(Condition::Exists),
        Write::check(b.clone()).when(Condition::Absent),
        Write::update(c.clone(), add("n")),
    ]);
    commit(&store, all).await.expect("a transaction");
    assert_eq!(get(&store, &a).await, Some(Item::new().with("n", 1)));
    assert_eq!(get(&store, &b).await, None);
    assert_eq!(get(&store, &c).await, Some(Item::new().with("n", 1)));
}

/// A check may stand alone; it returns no image.
pub async fn a_single_check_is_a_transaction(store: Subject) {
    let a = key("tx-single", "a");
    let check = || Write::check(a.clone()).when(Condition::Exists);
    assert_eq!(conflict(write(&store, check()).await, "no item")[0].current, None);
    put(&store, &a, Item::new().with("n", 1)).await;
    assert_eq!(write(&store, check()).await.expect("the item exists"), None);
}

/// The refusal of a single write carries the item as it is.
pub async fn a_conflict_carries_the_current_item(store: Subject) {
    let a = key("current", "a");
    let item = Item::new().with("n", 1).with("l", vec![Value::from("x")]);
    let create = |i: &Item| Write::put(a.clone(), i.clone()).when(Condition::Absent);
    assert_eq!(write(&store, create(&item)).await.expect("the first"), Some(item.clone()));
    let failed = conflict(write(&store, create(&Item::new())).await, "the second");
    assert_eq!(failed, vec![Failed { write: 0, current: Some(item) }]);
}

/// A failed condition is reported even when another write of the transaction is at fault.
pub async fn conflicts_come_before_faults(store: Subject) {
    let (a, b) = (key("tx-fault", "a"), key("tx-fault", "b"));
    put(&store, &a, Item::new().with("text", "x")).await;
    let wrong = Write::update(a.clone(), add("text"));
    let fails = Write::check(b.clone()).when(Condition::Exists);
    let both = Commit::all(vec![wrong.clone(), fails]);
    assert_eq!(conflict(commit(&store, both).await, "one fails, one is at fault")[0].write, 1);
    let faulty = Commit::all(vec![Write::put(b.clone(), Item::new()), wrong]);
    invalid(commit(&store, faulty).await, "one is at fault");
    assert_eq!(get(&store, &b).await, None);
}
