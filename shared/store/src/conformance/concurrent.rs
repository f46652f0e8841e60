//! Many callers at once.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::{Subject, commit, get, key, put, write};
use crate::{Blob, Change, Commit, CommitError, Condition, Env, Item, Value, Write};

const TASKS: i64 = 16;

/// Commutative appends need no retries: every one lands, and the images give every one a place of its own.
pub async fn concurrent_appends_are_dense(store: Subject) {
    const APPENDS: i64 = 20;
    let head = key("appends", "head");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, head) = (store.clone(), head.clone());
        tasks.spawn(async move {
            let env = Env::system();
            let mut places = Vec::new();
            for n in 0..APPENDS {
                let blob = Blob::fresh("conformance-appends", format!("{task}-{n}"), &env);
                let changes = vec![
                    Change::Add("tail".into(), 1),
                    Change::Append("segments".into(), vec![format!("{task}-{n}").into()]),
                ];
                let append = Write::update(head.clone(), changes)
                    .when(Condition::ShorterThan("segments".into(), (TASKS * APPENDS) as usize));
                let image = commit(&store, Commit::one(append).with_blob(blob)).await;
                let image = image.expect("an append").image.expect("an image");
                let tail = image.int("tail").expect("a tail");
                assert_eq!(image.list("segments").len() as i64, tail, "a torn image");
                let mine = Value::from(format!("{task}-{n}"));
                assert_eq!(
                    image.list("segments").last(),
                    Some(&mine),
                    "the image of another append"
                );
                places.push(tail);
            }
            assert!(places.is_sorted());
            places
        });
    }
    let places: BTreeSet<i64> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(places, (1..=TASKS * APPENDS).collect());
    let item = get(&store, &head).await.expect("the head");
    assert_eq!(item.int("tail"), Some(TASKS * APPENDS));
    let full = Write::update(head, vec![]).when(Condition::ShorterThan("segments".into(), 320));
    assert!(matches!(write(&store, full).await, Err(CommitError::Conflict(_))));
}

/// Of many who create the same item one wins, and all others are shown what it wrote.
pub async fn one_of_many_creates_wins(store: Subject) {
    for round in 0..5 {
        let k = key("creates", &format!("{round}"));
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (store, k) = (store.clone(), k.clone());
            tasks.spawn(async move {
                let create = Write::put(k, Item::new().with("by", task)).when(Condition::Absent);
                match write(&store, create).await {
                    Ok(image) => (task, image),
                    Err(CommitError::Conflict(mut failed)) => (-1, failed.remove(0).current),
                    Err(e) => panic!("{e}"),
                }
            });
        }
        let answers = tasks.join_all().await;
        let winners: Vec<_> = answers.iter().map(|(by, _)| *by).filter(|by| *by >= 0).collect();
        assert_eq!(winners.len(), 1, "winners {winners:?}");
        let won = Some(Item::new().with("by", winners[0]));
        assert!(answers.iter().all(|(_, seen)| *seen == won));
    }
}

/// Transactions that read, check and write two items of a few neither lose nor make anything.
pub async fn transfers_keep_the_sum(store: Subject) {
    const ACCOUNTS: i64 = 4;
    let account = |n: i64| key("transfers", &format!("{}", n.rem_euclid(ACCOUNTS)));
    for n in 0..ACCOUNTS {
        put(&store, &account(n), Item::new().with("n", 10)).await;
    }
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let store = store.clone();
        tasks.spawn(async move {
            for round in 0..5 {
                let (from, to) = (account(task + round), account(task + round + 1 + round % 3));
                loop {
                    let has =
                        get(&store, &from).await.and_then(|i| i.int("n")).expect("an account");
                    if has == 0 {
                        break;
                    }
                    let take = Write::update(
                        from.clone(),
                        vec![Change::Set("n".into(), (has - 1).into())],
                    )
                    .when(Condition::Equals("n".into(), has.into()));
                    let give = Write::update(to.clone(), vec![Change::Add("n".into(), 1)]);
                    match commit(&store, Commit::all(vec![take, give])).await {
                        Ok(_) => break,
                        Err(CommitError::Conflict(_)) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    let keys: Vec<_> = (0..ACCOUNTS).map(account).collect();
    let items = store.batch_get(&keys).await.expect("a batch");
    let sum: i64 = items.iter().flatten().filter_map(|i| i.int("n")).sum();
    assert_eq!(sum, 10 * ACCOUNTS);
}

/// Items that are only ever written together are equal whenever a transaction checks them.
pub async fn concurrent_transactions_tear_nothing(store: Subject) {
    let pair = [key("pair", "a"), key("pair", "b")];
    for k in &pair {
        put(&store, k, Item::new().with("n", 0)).await;
    }
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let (store, pair) = (store.clone(), pair.clone());
        tasks.spawn(async move {
            let mut landed = 0;
            for _ in 0..20 {
                let both = if task % 2 == 0 {
                    let up =
                        |k: &crate::Key| Write::update(k.clone(), vec![Change::Add("n".into(), 1)]);
                    Commit::all(pair.iter().map(up).collect())
                } else {
                    let n = get(&store, &pair[0]).await.and_then(|i| i.int("n")).expect("a number");
                    let same = |k: &crate::Key| {
                        Write::check(k.clone()).when(Condition::Equals("n".into(), n.into()))
                    };
                    Commit::all(pair.iter().map(same).collect())
                };
                match commit(&store, both).await {
                    Ok(_) => landed += i64::from(task % 2 == 0),
                    Err(CommitError::Conflict(failed)) => {
                        assert_eq!(failed.len(), 2, "one of the pair moved alone: {failed:?}");
                        assert_eq!(failed[0].current, failed[1].current);
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            landed
        });
    }
    let landed: i64 = tasks.join_all().await.iter().sum();
    assert_eq!(landed, 60);
    for k in &pair {
        assert_eq!(get(&store, k).await, Some(Item::new().with("n", landed)));
    }
}
