//! Transactions: all or nothing across streams.

use Verdict::*;
use tidewheel_engine::*;

use crate::fixture::*;

fn push(items: Vec<PushItem>) -> TransactionOp {
    TransactionOp::Push(items)
}

fn ack(popped: &Popped, at: usize, verdict: Verdict) -> TransactionOp {
    TransactionOp::Ack {
        group: Some("g".into()),
        ack: ack_of(&popped.messages[at], verdict, popped),
    }
}

#[tokio::test(start_paused = true)]
async fn pushes_and_acknowledgements_land_together() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let batch = f.pop("g", 1).await;
    let items = vec![
        item("a", "x", "1"),
        with_id(item("b", "y", "2"), "t"),
        with_id(item("b", "y", "3"), "t"),
    ];
    let results = f
        .engine
        .transact(vec![ack(&batch, 0, Completed), push(items)], Vec::new())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(results.len(), 4);
    assert!(matches!(&results[0], TransactionResult::Acked { acked, .. } if acked.error.is_none()));
    assert!(matches!(&results[3], TransactionResult::Pushed { repeat: true, .. }));
    assert_eq!(f.payloads("a", "x").await, ["1"]);
    assert_eq!(f.payloads("b", "y").await, ["2"]);
    assert!(f.pop("g", 1).await.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_rolls_back_and_leaves_the_lease_s33() {
    let f = Fixture::new();
    f.engine.push(vec![with_id(item("b", "y", "0"), "t"), item("s", "p", "0")]).await;
    let batch = f.pop("g", 1).await;
    let ops = vec![
        ack(&batch, 0, Completed),
        push(vec![item("a", "x", "1"), with_id(item("b", "y", "1"), "t")]),
    ];
    let rolled_back = f.engine.transact(ops, Vec::new()).await.unwrap().unwrap_err();
    assert_eq!(
        rolled_back,
        RolledBack::Duplicate { transaction_id: "t".into(), stream: "b".into() }
    );
    assert_eq!(f.payloads("a", "x").await, [""; 0]);
    f.ack_all("g", &batch).await;
}

#[tokio::test(start_paused = true)]
async fn one_dead_lease_rolls_all_back_s33_s34() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 5})).await;
    f.push("p", &["0"]).await;
    let dead = f.pop("g", 1).await;
    f.pass(3.0).await;
    f.push("q", &["1"]).await;
    let live = f.pop("g", 1).await;
    f.pass(3.0).await;
    let both =
        vec![push(vec![item("a", "x", "1")]), ack(&live, 0, Completed), ack(&dead, 0, Completed)];
    let rolled_back = f.engine.transact(both, Vec::new()).await.unwrap().unwrap_err();
    assert_eq!(rolled_back, RolledBack::AckRejected { error: "invalid or expired lease".into() });
    let required = vec![push(vec![item("a", "x", "1")])];
    let rolled_back =
        f.engine.transact(required.clone(), vec![dead.lease_id.clone()]).await.unwrap();
    assert!(rolled_back.is_err());
    assert_eq!(f.payloads("a", "x").await, [""; 0]);
    f.engine.transact(required, vec![live.lease_id.clone()]).await.unwrap().unwrap();
    f.ack_all("g", &live).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_may_join() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let batch = f.pop("g", 2).await;
    let ops = vec![ack(&batch, 0, DeadLetter), push(vec![item("a", "x", "1")])];
    f.engine.transact(ops, Vec::new()).await.unwrap().unwrap();
    assert_eq!(f.engine.dead_letters("s", Some("g"), 0, 10).await.unwrap().len(), 1);
    assert_eq!(payloads(&f.pop("g", 2).await), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_transactions_into_one_partition_all_land() {
    let f = Fixture::new();
    let engines: Vec<Engine> = (0..8).map(|_| f.restart()).collect();
    let runs = engines.iter().enumerate().map(|(n, engine)| async move {
        let items = vec![item("a", "x", &format!("{n}")), item("b", "y", &format!("{n}"))];
        engine.transact(vec![push(items)], Vec::new()).await.unwrap().unwrap();
    });
    futures_util::future::join_all(runs).await;
    let (mut a, b) = (f.payloads("a", "x").await, f.payloads("b", "y").await);
    assert_eq!(a, b, "one order for all");
    a.sort();
    assert_eq!(a, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_over_two_partitions_outlives_the_end_of_the_first() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    f.push("q", &["1"]).await;
    let pop = Pop { partitions: 2, ..pop_of("s", "g", 10) };
    let batch = f.engine.pop(pop).await.unwrap();
    assert_eq!(batch.partitions, 2);
    for at in 0..2 {
        let mut ack = ack_of(&batch.messages[at], Verdict::Completed, &batch);
        ack.lease_id = None;
        let ops = vec![
            TransactionOp::Ack { group: Some("g".into()), ack },
            push(vec![item("a", "x", &at.to_string())]),
        ];
        f.engine.transact(ops, vec![batch.lease_id.clone()]).await.unwrap().unwrap();
    }
    assert_eq!(f.payloads("a", "x").await, ["0", "1"]);
    let late = vec![push(vec![item("a", "x", "late")])];
    let refused = f.engine.transact(late, vec![batch.lease_id.clone()]).await.unwrap();
    assert!(matches!(refused, Err(RolledBack::AckRejected { .. })), "{refused:?}");
}
