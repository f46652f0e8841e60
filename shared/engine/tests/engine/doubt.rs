//! What is said of a commit whose reply was lost and that cannot be found: it may still arrive.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::*;
use tidewheel_store::{
    Faulty,
    faulty::{Crash, Plan},
};

use crate::fixture::*;

/// An engine whose commits all arrive late, and what delays them.
fn late(f: &Fixture) -> (Engine, Faulty) {
    let plan = Plan { late: 1.0, late_calls: 1_000_000, ..Plan::none() };
    let faulty = Faulty::new(Arc::new(f.store.clone()), plan, f.env.clone());
    let engine = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
    (engine, faulty)
}

#[tokio::test(start_paused = true)]
async fn a_push_that_may_still_arrive_is_not_answered_with_nothing_was_written() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let (engine, faulty) = late(&f);
    let pushed = engine.push(vec![item("s", "p", "1")]).await;
    assert!(matches!(&pushed[0], Pushed::Refused(Error::Unknown(_))), "{pushed:?}");
    faulty.settle().await;
    assert_eq!(f.payloads("s", "p").await, ["0", "1"], "it arrives, once");
}

/// The first copy of a push arrives while the second is being planned. Its ids are there then, but they are its own:
/// the records without an id must not be appended again without them.
#[tokio::test(start_paused = true)]
async fn a_push_does_not_take_its_own_late_copy_for_anothers() {
    for late_calls in 1..12 {
        let f = Fixture::new();
        // A full list, so that the second plan rolls it and reads the head again.
        for n in 0..limits::HEAD_SEGMENTS - 1 {
            f.push("p", &[&n.to_string()]).await;
        }
        let plan = Plan { late: 1.0, late_calls, ..Plan::none() };
        let faulty = Faulty::new(Arc::new(f.store.clone()), plan, f.env.clone());
        let engine = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
        let push = vec![with_id(item("s", "p", "a"), "a"), item("s", "p", "b")];
        let pushed = engine.push(push).await;
        faulty.settle().await;
        let there = f.payloads("s", "p").await;
        let new = &there[limits::HEAD_SEGMENTS - 1..];
        assert_eq!(new, ["a", "b"], "late by {late_calls} calls at most: {pushed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nor_is_an_ack_a_transaction_or_a_cycle() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    f.engine.push(vec![item("out", "x", "0")]).await;
    let registered = f.engine.register_query("q", "s", None, "h", false).await.unwrap();
    let Registered::Fresh(query) = registered else { panic!("{registered:?}") };
    let batch = f.pop("streams.q", 3).await;
    let ack = |at: usize| ack_of(&batch.messages[at], Verdict::Completed, &batch);
    let group = || Some("streams.q".to_owned());

    let (engine, faulty) = late(&f);
    let acked = engine.ack(group().as_deref(), vec![ack(0)]).await;
    assert!(matches!(acked, Err(Error::Unknown(_))), "{acked:?}");
    faulty.settle().await;

    let (engine, faulty) = late(&f);
    let ops = vec![
        TransactionOp::Ack { group: group(), ack: ack(1) },
        TransactionOp::Push(vec![item("out", "x", "1")]),
    ];
    let transacted = engine.transact(ops, Vec::new()).await;
    assert!(matches!(transacted, Err(Error::Unknown(_))), "{transacted:?}");
    faulty.settle().await;

    let (engine, faulty) = late(&f);
    let cycle = Cycle {
        query_id: query.id,
        partition_id: batch.messages[0].partition.id,
        group: None,
        state_ops: vec![StateOp::Upsert { key: "k".into(), value: "1".into() }],
        push_items: Vec::new(),
        ack: Some(CycleAck { lease_id: batch.lease_id.clone(), completed: true, count: 1 }),
        release_lease: true,
    };
    let cycled = engine.cycle(cycle).await;
    assert!(matches!(cycled, Err(Error::Unknown(_))), "{cycled:?}");
    faulty.settle().await;

    f.pass(600.0).await;
    let left = f.restart().pop(pop_of("s", "streams.q", 10)).await.unwrap();
    assert_eq!(payloads(&left), [""; 0], "all three were done after all");
    assert_eq!(f.payloads("out", "x").await, ["0", "1"]);
}

/// A seek that dies leaves the position where it was, or a group that is woken to what is there.
#[tokio::test(start_paused = true)]
async fn a_seek_that_dies_does_not_leave_the_group_asleep_before_records() {
    for call in 1.. {
        let f = Fixture::new();
        f.push("p", &["0", "1"]).await;
        let batch = f.pop("g", 10).await;
        f.ack_all("g", &batch).await;
        assert!(f.pop("g", 10).await.messages.is_empty(), "drained, and asleep");
        let faulty = Faulty::new(Arc::new(f.store.clone()), Plan::none(), f.env.clone());
        faulty.crash_at(call, Crash::After);
        let engine = Engine::new(Arc::new(faulty), f.env.clone(), Settings::default());
        let seek = engine.seek("g", "s", None, Some(0));
        let ended = tokio::time::timeout(Duration::from_secs(60), seek).await.is_ok();
        let moved = f
            .store
            .items()
            .iter()
            .any(|(key, item)| key.pk.starts_with("c#") && item.int("committed") == Some(0));
        let got = f.restart().pop(pop_of("s", "g", 10)).await.unwrap().messages.len();
        assert_eq!(got, if moved { 2 } else { 0 }, "dead in call {call}");
        if ended {
            return assert!(moved);
        }
    }
}
