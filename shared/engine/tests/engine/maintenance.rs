//! Retention, the collector, and the wake-up index for sealers.

use std::time::Duration;

use tidewheel_engine::*;
use tidewheel_store::{Blob, Commit, Store, Write};

use crate::fixture::*;

#[tokio::test(start_paused = true)]
async fn retention_moves_the_floor_and_then_deletes() {
    let f = Fixture::new();
    f.configure(
        "s",
        serde_json::json!({
            "retentionEnabled": true, "retentionSeconds": 100, "dedupWindowSeconds": 60
        }),
    )
    .await;
    for n in 0..100 {
        f.push("p", &[&n.to_string()]).await;
        f.pass(2.0).await;
    }
    let blobs = f.store.blobs().len();
    let expired = f.engine.retain("s", None).await.unwrap();
    assert!((48..=52).contains(&expired), "{expired}");
    let id = f.partition_id("s", "p").await;
    let read = f.engine.read(&id, 0, 1000, usize::MAX).await.unwrap();
    assert_eq!(read.records[0].offset, expired);
    assert_eq!(f.store.blobs().len(), blobs, "readers finish first");
    f.pass(30.0).await;
    f.engine.retain("s", Some(&|_| expired)).await.unwrap();
    assert_eq!(f.store.blobs().len(), blobs, "the grace is not over");
    f.pass(40.0).await;
    f.engine.retain("s", Some(&|_| expired)).await.unwrap();
    assert!(f.store.blobs().len() <= blobs - 48, "two whole pages are deleted");
    assert_eq!(
        payloads(&f.pop("g", 1).await),
        [expired.to_string()],
        "a new group starts at the floor"
    );
    assert_eq!(f.payloads("s", "p").await.len() as u64, 100 - expired);
}

#[tokio::test(start_paused = true)]
async fn what_a_group_or_a_table_still_needs_is_kept() {
    let f = Fixture::new();
    f.configure(
        "s",
        serde_json::json!({"retentionEnabled": true, "completedRetentionSeconds": 10}),
    )
    .await;
    f.push("p", &["0", "1", "2"]).await;
    let batch = f.pop("g", 2).await;
    f.ack_all("g", &batch).await;
    f.pass(20.0).await;
    assert_eq!(f.engine.retain("s", Some(&|_| 1)).await.unwrap(), 1, "not sealed beyond 1");
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 1, "not consumed beyond 2");
    assert_eq!(f.payloads("s", "p").await, ["2"]);
    f.push("q", &["never popped"]).await;
    f.pass(20.0).await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn ids_of_expired_records_are_still_refused_within_the_window() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"maxWaitTimeSeconds": 10})).await;
    f.engine.push(vec![with_id(item("s", "p", "0"), "a")]).await;
    f.pass(20.0).await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 1);
    let again = f.engine.push(vec![with_id(item("s", "p", "0"), "a")]).await;
    assert_eq!(again[0], Pushed::Duplicate { id: None, offset: Some(0) });
}

#[tokio::test(start_paused = true)]
async fn the_collector_takes_what_nothing_names_and_bars_its_return() {
    let f = Fixture::new();
    for n in 0..60 {
        f.engine.push(vec![with_id(item("s", "p", "x"), &n.to_string())]).await;
    }
    let id = f.partition_id("s", "p").await;
    let orphan = Blob::fresh(id.0.simple(), "orphan", &f.env);
    let name = orphan.name.clone();
    let elsewhere = Write::put(tidewheel_store::Key::new("x", "y"), tidewheel_store::Item::new());
    f.store.commit(Commit::one(elsewhere).with_blob(orphan)).await.unwrap();
    assert_eq!(f.engine.collect("s").await.unwrap(), 0, "young");
    f.pass(limits::BLOB_GRACE.as_secs_f64() + 1.0).await;
    assert_eq!(f.engine.collect("s").await.unwrap(), 1);
    assert_eq!(f.store.blob(&name, None).await.unwrap(), None);
    assert_eq!(f.restart().read(&id, 0, 100, usize::MAX).await.unwrap().records.len(), 60);
    assert_eq!(offset(&f.push("p", &["after"]).await[0]), 60);
}

#[tokio::test(start_paused = true)]
async fn a_sealer_is_told_of_news_and_sleeps_otherwise() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    f.push("q", &["0"]).await;
    let (p, q) = (f.partition_id("s", "p").await, f.partition_id("s", "q").await);
    let mut ready = f.engine.ready("s", "__table__", 10).await.unwrap();
    ready.sort();
    let mut both = vec![p, q];
    both.sort();
    assert_eq!(ready, both);
    assert!(f.engine.settle("s", "__table__", &p, 1).await.unwrap());
    f.push("q", &["1"]).await;
    assert!(!f.engine.settle("s", "__table__", &q, 1).await.unwrap(), "the tail has moved");
    assert!(f.engine.settle("s", "__table__", &q, 2).await.unwrap());
    assert_eq!(f.engine.ready("s", "__table__", 10).await.unwrap(), []);
    f.push("p", &["1"]).await;
    assert_eq!(f.engine.ready("s", "__table__", 10).await.unwrap(), [p]);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_sees_the_tail_move() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let id = f.partition_id("s", "p").await;
    let mut watch = f.engine.watch(&id);
    let engine = f.engine.clone();
    let push = tokio::spawn(async move { engine.push(vec![item("s", "p", "1")]).await });
    tokio::time::timeout(Duration::from_secs(1), watch.changed()).await.unwrap().unwrap();
    assert_eq!(*watch.borrow(), 2);
    push.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn partitions_that_the_table_never_popped_from_expire_like_others() {
    let f = Fixture::new();
    f.configure(
        "s",
        serde_json::json!({"retentionEnabled": true, "completedRetentionSeconds": 10}),
    )
    .await;
    f.push("early", &["0"]).await;
    f.engine.ready("s", TABLE_GROUP, 10).await.unwrap();
    f.push("late", &["0", "1"]).await;
    f.pass(20.0).await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 0, "nobody has consumed anything");
    for _ in 0..2 {
        let batch = f.pop("g", 10).await;
        f.ack_all("g", &batch).await;
    }
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_ack_of_what_retention_has_taken_is_refused() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 5, "maxWaitTimeSeconds": 10})).await;
    f.push("p", &["0", "1", "2", "3"]).await;
    let batch = f.pop("g", 2).await;
    // Another process gets on with it, and what there was expires.
    let other = f.restart();
    f.pass(6.0).await;
    for _ in 0..2 {
        let popped = other.pop(pop_of("s", "g", 2)).await.unwrap();
        let acks = popped.messages.iter().map(|m| ack_of(m, Verdict::Completed, &popped)).collect();
        other.ack(Some("g"), acks).await.unwrap();
    }
    f.pass(10.0).await;
    assert_eq!(other.retain("s", None).await.unwrap(), 4);
    // This one knows how far retention has come, but remembers the cursor as it was.
    f.payloads("s", "p").await;
    let acked = f.ack("g", &batch, &[Verdict::Completed; 2]).await;
    assert!(acked.iter().all(|a| a.error.is_some()), "{acked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_moves_in_every_run_does_not_keep_what_is_below_it() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"maxWaitTimeSeconds": 60, "dedupWindowSeconds": 60})).await;
    let mut most = 0;
    for n in 0..600 {
        f.push("p", &[&n.to_string()]).await;
        f.pass(2.0).await;
        if n % 10 == 0 {
            f.engine.retain("s", None).await.unwrap();
        }
        most = most.max(f.store.blobs().len());
    }
    assert!(most < 150, "{most} blobs for 30 readable records and a grace of a minute");
}

#[tokio::test(start_paused = true)]
async fn ids_in_expired_pages_are_still_refused_within_the_window() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"maxWaitTimeSeconds": 10, "dedupWindowSeconds": 600}))
        .await;
    let push = |engine: Engine, n: u64| async move {
        engine.push(vec![with_id(item("s", "p", "x"), &n.to_string())]).await.remove(0)
    };
    for n in 0..60 {
        push(f.engine.clone(), n).await;
    }
    f.pass(20.0).await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), 60);
    f.pass(120.0).await;
    f.engine.retain("s", None).await.unwrap();
    for n in [0, 30, 59] {
        let again = push(f.restart(), n).await;
        assert_eq!(again, Pushed::Duplicate { id: None, offset: Some(n) });
    }
    f.pass(600.0).await;
    f.engine.retain("s", None).await.unwrap();
    assert!(matches!(push(f.restart(), 0).await, Pushed::Queued { offset: 60, .. }));
    let pages = f.store.items().keys().filter(|k| k.sk.starts_with("page#")).count();
    assert_eq!(pages, 0, "the window has passed over them");
}
