//! Keys with values: what applies, what does not and why, and what a call does as a whole.

use std::sync::Arc;

use bytes::Bytes;
use tidewheel_engine::*;
use tidewheel_store::{Faulty, faulty::Plan};

use crate::fixture::*;

fn op(action: KvAction) -> KvOp {
    KvOp { namespace: "n".into(), action, required: false }
}

fn required(action: KvAction) -> KvOp {
    KvOp { required: true, ..op(action) }
}

fn put(key: &str, value: &'static str, expect: Option<i64>) -> KvAction {
    let value = Bytes::from_static(value.as_bytes());
    KvAction::Put { key: key.into(), value, expect, expiry: Expiry::Seconds(60) }
}

fn add(key: &str, delta: i64, max: Option<i64>) -> KvAction {
    KvAction::Increment { key: key.into(), delta, min: None, max, expiry: Expiry::Seconds(60) }
}

fn delete(key: &str, expect: Option<i64>) -> KvAction {
    KvAction::Delete { key: key.into(), expect }
}

async fn all(engine: &Engine, ops: Vec<KvOp>) -> Vec<KvOutcome> {
    engine.kv(ops).await.unwrap().unwrap()
}

async fn one(engine: &Engine, action: KvAction) -> KvOutcome {
    all(engine, vec![op(action)]).await.remove(0)
}

async fn read(engine: &Engine, key: &str) -> Option<KvRow> {
    match one(engine, KvAction::Get { key: key.into() }).await {
        KvOutcome::Found(row) => row,
        other => panic!("{other:?}"),
    }
}

async fn value(engine: &Engine, key: &str) -> Option<String> {
    Some(String::from_utf8(read(engine, key).await?.value.to_vec()).unwrap())
}

fn version(outcome: &KvOutcome) -> i64 {
    match outcome {
        KvOutcome::Applied { version, .. } => *version,
        other => panic!("{other:?}"),
    }
}

fn reason(outcome: &KvOutcome) -> KvReason {
    match outcome {
        KvOutcome::Refused { reason, .. } => *reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_is_a_condition_and_rises_with_every_write_and_deletion() {
    let f = Fixture::new();
    assert_eq!(reason(&one(&f.engine, put("k", "1", Some(7))).await), KvReason::Absent);
    assert_eq!(read(&f.engine, "k").await, None, "a condition makes nothing");
    let mut versions = vec![version(&one(&f.engine, put("k", "1", Some(0))).await)];
    assert_eq!(reason(&one(&f.engine, put("k", "2", Some(0))).await), KvReason::Exists);
    assert_eq!(
        reason(&one(&f.engine, put("k", "2", Some(versions[0] + 1))).await),
        KvReason::Version
    );
    versions.push(version(&one(&f.engine, put("k", "2", Some(versions[0]))).await));
    versions.push(version(&one(&f.engine, put("k", "3", None)).await));
    assert_eq!(reason(&one(&f.engine, delete("k", Some(versions[0]))).await), KvReason::Version);
    versions.push(version(&one(&f.engine, delete("k", Some(versions[2]))).await));
    assert_eq!(reason(&one(&f.engine, delete("k", None)).await), KvReason::Absent);
    versions.push(version(&one(&f.restart(), put("k", "4", Some(0))).await));
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    assert_eq!(value(&f.engine, "k").await.as_deref(), Some("4"));
}

#[tokio::test(start_paused = true)]
async fn a_value_ends_and_a_new_one_has_a_later_version() {
    let f = Fixture::new();
    let first = version(&one(&f.engine, put("k", "1", None)).await);
    assert!(read(&f.engine, "k").await.unwrap().expires_us.is_some());
    f.pass(61.0).await;
    assert_eq!(read(&f.engine, "k").await, None);
    assert_eq!(reason(&one(&f.engine, delete("k", None)).await), KvReason::Absent);
    assert_eq!(f.engine.kv_prefix("n", "k", None, 10).await.unwrap().rows, []);
    let second = version(&one(&f.engine, put("k", "2", Some(0))).await);
    assert!(second > first);
}

#[tokio::test(start_paused = true)]
async fn a_counter_stops_at_its_bound_and_its_window_closes() {
    let f = Fixture::new();
    for expected in ["1", "2", "3"] {
        one(&f.engine, add("quota", 1, Some(3))).await;
        assert_eq!(value(&f.engine, "quota").await.as_deref(), Some(expected));
        f.pass(15.0).await;
    }
    assert_eq!(reason(&one(&f.engine, add("quota", 1, Some(3))).await), KvReason::Limit);
    assert_eq!(reason(&one(&f.engine, add("burst", 10, Some(5))).await), KvReason::Limit);
    assert_eq!(read(&f.engine, "burst").await, None);
    // The first increment opened the window of sixty seconds; those after it did not prolong it.
    f.pass(16.0).await;
    one(&f.engine, add("quota", 1, Some(3))).await;
    assert_eq!(value(&f.engine, "quota").await.as_deref(), Some("1"));
    one(&f.engine, put("text", "\"x\"", None)).await;
    assert_eq!(reason(&one(&f.engine, add("text", 1, None)).await), KvReason::Type);
    one(&f.engine, add("most", i64::MAX, None)).await;
    assert_eq!(reason(&one(&f.engine, add("most", 1, None)).await), KvReason::Limit);
}

#[tokio::test(start_paused = true)]
async fn increments_that_race_all_count_and_one_of_many_makes_a_key() {
    let f = Fixture::new();
    let mut makers = 0;
    let racing = (0..20).map(|n| {
        let engine = f.restart();
        tokio::spawn(async move {
            one(&engine, add("count", 1, None)).await;
            matches!(
                one(&engine, put("maker", if n % 2 == 0 { "0" } else { "1" }, Some(0))).await,
                KvOutcome::Applied { .. }
            )
        })
    });
    for made in racing.collect::<Vec<_>>() {
        makers += usize::from(made.await.unwrap());
    }
    assert_eq!(makers, 1);
    assert_eq!(value(&f.engine, "count").await.as_deref(), Some("20"));
}

#[tokio::test(start_paused = true)]
async fn a_call_sees_its_own_writes_and_a_required_operation_undoes_it() {
    let f = Fixture::new();
    let outcomes = all(
        &f.engine,
        vec![
            op(put("a", "1", None)),
            op(add("a", 2, None)),
            op(KvAction::GetMany { keys: vec!["a".into(), "b".into()] }),
            op(put("b", "1", Some(9))),
            op(delete("a", None)),
            op(add("a", 7, None)),
        ],
    )
    .await;
    let KvOutcome::Rows { rows, missing } = &outcomes[2] else { panic!("{outcomes:?}") };
    assert_eq!((rows[0].value.as_ref(), missing.as_slice()), (&b"3"[..], &["b".to_owned()][..]));
    assert_eq!(reason(&outcomes[3]), KvReason::Absent, "what does not apply stops nothing");
    assert_eq!(value(&f.engine, "a").await.as_deref(), Some("7"));

    let held = read(&f.engine, "a").await.unwrap().version;
    let check = |expect| required(KvAction::Check { key: "a".into(), expect });
    let call = vec![op(put("c", "1", None)), check(held + 1)];
    let lost = f.engine.kv(call).await.unwrap().unwrap_err();
    assert_eq!((lost.index, lost.reason), (1, KvReason::Version));
    assert_eq!(lost.current.unwrap().version, held);
    assert_eq!(read(&f.engine, "c").await, None);
    all(&f.engine, vec![op(put("c", "1", None)), check(held)]).await;
    assert_eq!(value(&f.engine, "c").await.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn keys_are_paged_by_prefix_in_their_order() {
    let f = Fixture::new();
    for key in ["p:1", "p:2", "p:3", "p:4", "q:1"] {
        one(&f.engine, put(key, "1", None)).await;
    }
    one(&f.engine, delete("p:2", None)).await;
    let keys = |page: &KvPage| page.rows.iter().map(|r| r.key.clone()).collect::<Vec<_>>();
    let first = f.engine.kv_prefix("n", "p:", None, 2).await.unwrap();
    assert_eq!((keys(&first), first.more), (vec!["p:1".to_owned(), "p:3".to_owned()], true));
    let second = f.engine.kv_prefix("n", "p:", Some("p:3"), 2).await.unwrap();
    assert_eq!((keys(&second), second.more), (vec!["p:4".to_owned()], false));
    assert!(matches!(f.engine.kv_prefix("n", "", None, 2).await, Err(Error::Name { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused_with_its_limit() {
    let f = Fixture::new();
    let big: &'static str = Box::leak("9".repeat(limits::KV_VALUE_BYTES + 1).into_boxed_str());
    let refused = f.engine.kv(vec![op(put("k", big, None))]).await.unwrap_err().to_string();
    assert!(refused.contains(&limits::KV_VALUE_BYTES.to_string()), "{refused}");
    for namespace in ["", "Upper", ".dot", "sp ace", &"x".repeat(65)] {
        let op = KvOp { namespace: namespace.into(), ..op(delete("k", None)) };
        assert!(matches!(f.engine.kv(vec![op]).await, Err(Error::Invalid(_))), "{namespace}");
    }
    let many = vec![op(delete("k", None)); limits::KV_OPS + 1];
    assert!(matches!(f.engine.kv(many).await, Err(Error::Limit { .. })));
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_swept_once_no_version_can_come_back() {
    let f = Fixture::new();
    one(&f.engine, put("expires", "1", None)).await;
    one(&f.engine, put("deleted", "1", None)).await;
    one(&f.engine, put("stays", "1", None)).await;
    one(&f.engine, delete("deleted", None)).await;
    let forever = KvAction::Put {
        key: "stays".into(),
        value: Bytes::from_static(b"2"),
        expect: None,
        expiry: Expiry::Never,
    };
    one(&f.engine, forever).await;
    assert_eq!(f.restart().sweep_kv().await.unwrap(), 0);
    f.pass(3660.0).await;
    assert_eq!(f.restart().sweep_kv().await.unwrap(), 2);
    assert_eq!(value(&f.engine, "stays").await.as_deref(), Some("2"));
}

/// A lost reply is looked up: an increment counts once, and is answered with what it made of the counter.
#[tokio::test(start_paused = true)]
async fn an_increment_whose_reply_is_lost_counts_once() {
    for seed in 0..40 {
        let f = Fixture::new();
        let plan = Plan { lose_reply: 0.4, ..Plan::none() };
        let faulty = Faulty::new(
            Arc::new(f.store.clone()),
            plan,
            tidewheel_store::Env::simulated(seed, START_US, 0),
        );
        let engine = Engine::new(Arc::new(faulty), f.env.clone(), Settings::default());
        for n in 1..=10 {
            match engine.kv(vec![op(add("count", 1, None))]).await {
                Ok(answer) => {
                    let KvOutcome::Applied { row, .. } = &answer.unwrap()[0] else { panic!() };
                    assert_eq!(row.as_ref().unwrap().value, Bytes::from(n.to_string()), "{seed}");
                }
                Err(e) => panic!("seed {seed}: {e}"),
            }
        }
        assert_eq!(value(&f.engine, "count").await.as_deref(), Some("10"));
    }
}

#[tokio::test(start_paused = true)]
async fn keys_land_with_a_transaction_or_not_at_all() {
    let f = Fixture::new();
    f.push("p", &["1"]).await;
    let popped = f.pop("g", 1).await;
    let transact = |marker: &'static str| {
        let ack = TransactionOp::Ack {
            group: Some("g".into()),
            ack: ack_of(&popped.messages[0], Verdict::Completed, &popped),
        };
        let push = TransactionOp::Push(vec![item("out", "x", marker)]);
        let riders = Riders {
            kv: vec![required(put("done", marker, Some(0))), op(add("count", 1, None))],
            timers: vec![],
        };
        f.engine.transact_with(vec![ack, push], vec![], riders)
    };
    let results = transact("1").await.unwrap().unwrap();
    assert_eq!(results.len(), 4);
    assert!(matches!(&results[2], TransactionResult::Kv(KvOutcome::Applied { .. })));
    // The same work again, as a redelivery: the marker is there, so nothing happens.
    let lost = transact("2").await.unwrap().unwrap_err();
    let RolledBack::Precondition(lost) = lost else { panic!("{lost:?}") };
    assert_eq!((lost.index, lost.reason), (0, KvReason::Exists));
    assert_eq!(lost.current.unwrap().value, Bytes::from_static(b"1"));
    assert_eq!(f.payloads("out", "x").await, ["1"]);
    assert_eq!(value(&f.engine, "count").await.as_deref(), Some("1"));
}
