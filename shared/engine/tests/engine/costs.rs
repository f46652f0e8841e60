//! What operations cost in the cloud's units, and what becomes of damage: the memory store tells and does both.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::*;
use tidewheel_store::Store;

use crate::{cycles, declared::*, fixture::*};

#[tokio::test(start_paused = true)]
async fn a_steady_push_costs_its_blob_and_two() {
    let f = Fixture::new();
    f.push("p", &["warm"]).await;
    for n in 0..60 {
        let before = f.engine.counters().0["rolls"];
        f.store.reset_meter();
        f.push("p", &["{\"n\":1}"]).await;
        let units = f.store.meter();
        if f.engine.counters().0["rolls"] == before {
            assert!(units.write_units <= 1.0 + 2.0, "push {n}: {units:?}");
            assert_eq!(units.read_units, 0.0, "push {n}: {units:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn steady_consumption_costs_one_write_a_step() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2", "3"]).await;
    let named = || Pop {
        target: PopTarget::Partition { stream: "s".into(), partition: "p".into() },
        ..pop_of("s", "g", 1)
    };
    let warm = f.engine.pop(named()).await.unwrap();
    f.ack_all("g", &warm).await;
    f.store.reset_meter();
    let batch = f.engine.pop(named()).await.unwrap();
    let units = f.store.meter();
    assert_eq!((units.write_units, units.read_units), (1.0, 1.0), "pop: a write and the head");
    f.store.reset_meter();
    assert_eq!(f.engine.extend(&batch.lease_id, 60).await.unwrap().renewed, 1);
    let units = f.store.meter();
    assert_eq!((units.write_units, units.read_units), (1.0, 0.0), "extend");
    f.store.reset_meter();
    f.ack_all("g", &batch).await;
    let units = f.store.meter();
    assert_eq!((units.write_units, units.read_units), (1.0, 0.0), "ack");
}

#[tokio::test(start_paused = true)]
async fn a_pop_costs_what_it_finds_and_not_what_exists() {
    let mut costs = Vec::new();
    for partitions in [20, 400] {
        let f = Fixture::new();
        for n in 0..partitions {
            f.push(&format!("p{n}"), &["x"]).await;
        }
        loop {
            let batch =
                f.engine.pop(Pop { partitions: 64, ..pop_of("s", "g", 1000) }).await.unwrap();
            if batch.messages.is_empty() {
                break;
            }
            f.ack_all("g", &batch).await;
        }
        assert!(f.pop("g", 10).await.messages.is_empty(), "everybody sleeps");
        f.store.reset_meter();
        assert!(f.pop("g", 10).await.messages.is_empty());
        let empty = f.store.meter();
        f.store.reset_meter();
        f.push("p7", &["y"]).await;
        let push = f.store.meter();
        f.store.reset_meter();
        assert_eq!(payloads(&f.pop("g", 10).await), ["y"]);
        let pop = f.store.meter();
        assert!(push.write_units <= 1.0 + 2.0 * 3.0, "waking one group: {push:?}");
        assert_eq!(pop.write_units, 1.0, "{pop:?}");
        costs.push((empty.read_units, pop.read_units));
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_costs_two_for_each_head_and_reads_nothing_warm() {
    let f = Fixture::new();
    for n in 0..3 {
        f.push("p", &[&n.to_string()]).await;
    }
    for n in 0..3 {
        let w = cycles::work(&f, 1).await;
        f.engine.state(&w.query, &w.partition, &StateFilter::default()).await.unwrap();
        f.store.reset_meter();
        let cycle =
            w.cycle((0..50).map(|k| cycles::upsert(&format!("k{k}"), "{}")).collect(), &["out"]);
        f.engine.cycle(cycle).await.unwrap();
        let units = f.store.meter();
        if n > 0 {
            let blobs = 2.0;
            assert!(units.write_units <= blobs + 2.0 * (2.0 + 1.0), "{units:?}");
            assert_eq!(units.read_units, 1.0, "the query's record: {units:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_segment_is_never_served() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let (name, _) = f.store.blobs().into_iter().next().unwrap();
    assert!(f.store.damage_blob(&name, 20));
    let id = f.partition_id("s", "p").await;
    let read = f.restart().read(&id, 0, 10, usize::MAX).await;
    assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
    let pop = f.restart().pop(pop_of("s", "g", 1)).await;
    assert!(matches!(pop, Err(Error::Corrupt(_))), "{pop:?}");
}

/// A push of another process wakes nobody here, so that a waiting pop looks again: soon at first, for whoever waits for
/// an answer to what he did, and seldom later, because looking is billed.
#[tokio::test(start_paused = true)]
async fn a_waiting_pop_looks_soon_at_first_and_seldom_later() {
    let f = Fixture::new();
    let settings = Settings {
        poll_first: Duration::from_millis(25),
        poll_every: Duration::from_secs(1),
        ..Settings::default()
    };
    let waiting = Engine::new(Arc::new(f.store.clone()) as Arc<dyn Store>, f.env.clone(), settings);
    let wait = |seconds| Pop { wait: Some(Duration::from_secs(seconds)), ..pop_of("s", "g", 10) };
    assert!(waiting.pop(wait(0)).await.unwrap().messages.is_empty());

    let begun_us = f.env.now_us();
    let (popped, _) = tokio::join!(waiting.pop(wait(30)), async {
        f.pass(0.03).await;
        f.push("p", &["1"]).await
    });
    let popped = popped.unwrap();
    assert_eq!(payloads(&popped), ["1"]);
    assert!(f.env.now_us() - begun_us < 200_000, "after {} us", f.env.now_us() - begun_us);
    f.ack_all("g", &popped).await;
    assert!(waiting.pop(wait(0)).await.unwrap().messages.is_empty());

    f.store.reset_meter();
    assert!(waiting.pop(wait(30)).await.unwrap().messages.is_empty());
    let units = f.store.meter();
    // Three dozen looks: two reads of the wake-up index each, and now and then the switches and the stream.
    assert!(units.read_units <= 120.0, "30 seconds of nothing: {units:?}");
    assert_eq!(units.write_units, 0.0);
}

#[tokio::test(start_paused = true)]
async fn keys_and_timers_cost_their_heads() {
    let f = Fixture::new();
    let op = |action| vec![KvOp { namespace: "n".into(), action, required: false }];
    let put = |expect| KvAction::Put {
        key: "k".into(),
        value: bytes::Bytes::from_static(b"{\"n\":1}"),
        expect,
        expiry: Expiry::Seconds(60),
    };
    let get = || KvAction::Get { key: "k".into() };
    let units = |f: &Fixture| (f.store.meter().write_units, f.store.meter().read_units);
    let warm = KvAction::Delete { key: "other".into(), expect: None };
    f.engine.kv(op(warm)).await.unwrap().unwrap();
    f.engine
        .kv(op(KvAction::Put {
            key: "other".into(),
            value: "1".into(),
            expect: None,
            expiry: Expiry::Never,
        }))
        .await
        .unwrap()
        .unwrap();
    for (what, action, expected) in [
        ("making a key", put(Some(0)), (1.0, 0.0)),
        ("losing against one", put(Some(0)), (1.0, 0.0)),
        ("writing one", put(None), (1.0, 1.0)),
        ("reading one", get(), (0.0, 1.0)),
        ("refusing by the version", put(Some(7)), (0.0, 1.0)),
    ] {
        f.store.reset_meter();
        f.engine.kv(op(action)).await.unwrap().unwrap();
        assert_eq!(units(&f), expected, "{what}");
    }

    f.push("p", &["warm"]).await;
    let timer = |action| vec![TimerOp { stream: "s".into(), key: "t".into(), action }];
    let schedule = || TimerAction::Schedule {
        delay_ms: 5,
        partition: "p".into(),
        transaction_id: "t".into(),
        payload: bytes::Bytes::from_static(b"{\"n\":1}"),
    };
    f.engine.fire_timers().await.unwrap();
    for (what, action, expected) in [
        ("scheduling", schedule(), (4.0, 1.0)),
        ("rescheduling", schedule(), (4.0, 1.0)),
        ("cancelling", TimerAction::Cancel { transaction_id: None }, (4.0, 1.0)),
        ("scheduling again", schedule(), (4.0, 1.0)),
    ] {
        f.store.reset_meter();
        f.engine.timers(timer(action)).await.unwrap();
        assert_eq!(units(&f), expected, "{what}");
        // Nothing is read while it is known that nothing is due.
        f.store.reset_meter();
        assert_eq!(f.engine.fire_timers().await.unwrap(), 0);
        assert_eq!(units(&f), (0.0, 0.0), "{what}");
    }
    f.pass(0.01).await;
    f.store.reset_meter();
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
    let (written, read) = units(&f);
    // The segment, and head, timer and due entry in one transaction; a look at each shard, and the timer.
    assert!(written <= 1.0 + 2.0 * 3.0, "{written}");
    assert!(read <= 16.0, "{read}");
}

/// The mark of a numbered publisher lies in the head, and costs nothing; a repeat is answered from it.
#[tokio::test(start_paused = true)]
async fn an_exactly_once_push_costs_what_any_push_does_and_a_repeat_nothing() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    publish(&f.engine, frame(&[r#"{"n":0}"#])).await.unwrap();
    for n in 1..60 {
        let before = f.engine.counters().0["rolls"];
        f.store.reset_meter();
        publish(&f.engine, claimed(&claim, n, &[r#"{"n":1}"#])).await.unwrap();
        let units = f.store.meter();
        if f.engine.counters().0["rolls"] == before {
            assert!(units.write_units <= 1.0 + 2.0, "{n}: {units:?}");
            assert_eq!(units.read_units, 0.0, "{n}: {units:?}");
        }
        f.store.reset_meter();
        publish(&f.engine, claimed(&claim, n, &[r#"{"n":1}"#])).await.unwrap();
        let units = f.store.meter();
        assert_eq!((units.write_units, units.read_units), (0.0, 0.0), "{n}: {units:?}");
    }
}

/// A publisher for whose mark the head has no room pays for a transaction over the head and the mark's own item.
#[tokio::test(start_paused = true)]
async fn a_mark_outside_the_head_costs_a_transaction() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    for p in 0..limits::HEAD_MARKS {
        f.engine.claim_publisher("s", &format!("o{p}")).await.unwrap();
    }
    publish(&f.engine, claimed(&claim, 1, &[r#"{"n":1}"#])).await.unwrap();
    f.store.reset_meter();
    publish(&f.engine, claimed(&claim, 2, &[r#"{"n":1}"#])).await.unwrap();
    let units = f.store.meter();
    assert!(units.write_units <= 1.0 + 2.0 * (2.0 + 1.0), "{units:?}");
    assert!(units.read_units <= 1.0, "{units:?}");
}

/// Frames that wait share one blob and one write.
#[tokio::test(start_paused = true)]
async fn frames_of_one_commit_cost_one_push() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    publish(&f.engine, frame(&[r#"{"n":0}"#])).await.unwrap();
    f.store.reset_meter();
    let frames = (0..100).map(|n| frame(&[&format!(r#"{{"n":{n}}}"#)])).collect();
    assert!(f.engine.publish("s", frames).await.iter().all(Result::is_ok));
    let units = f.store.meter();
    assert!(units.write_units <= 1.0 + 2.0 && units.read_units == 0.0, "{units:?}");
}
