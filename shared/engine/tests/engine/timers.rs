//! Timers: fired once, under the ids that were promised, in the log's order, and not early.

use std::sync::Arc;

use bytes::Bytes;
use tidewheel_engine::*;
use tidewheel_store::{Faulty, faulty::Plan};

use crate::fixture::*;

fn schedule(key: &str, delay_ms: i64, payload: &'static str) -> TimerOp {
    TimerOp {
        stream: "s".into(),
        key: key.into(),
        action: TimerAction::Schedule {
            delay_ms,
            partition: "p".into(),
            transaction_id: format!("tx-{key}"),
            payload: Bytes::from_static(payload.as_bytes()),
        },
    }
}

fn cancel(key: &str) -> TimerOp {
    let action = TimerAction::Cancel { transaction_id: Some(format!("tx-{key}")) };
    TimerOp { stream: "s".into(), key: key.into(), action }
}

async fn one(f: &Fixture, op: TimerOp) -> TimerOutcome {
    f.engine.timers(vec![op]).await.unwrap().remove(0)
}

async fn records(f: &Fixture) -> Vec<Record> {
    let id = f.partition_id("s", "p").await;
    f.engine.read(&id, 0, 1000, usize::MAX).await.unwrap().records
}

#[tokio::test(start_paused = true)]
async fn a_timer_becomes_the_message_that_was_promised_and_not_before_its_time() {
    let f = Fixture::new();
    let promised = one(&f, schedule("k", 300, "{\"n\":1}")).await;
    assert_eq!(promised.status, TimerStatus::Scheduled);
    assert_eq!(f.engine.fire_timers().await.unwrap(), 0);
    f.pass(0.29).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 0, "not early");
    f.pass(0.02).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
    assert_eq!(f.engine.fire_timers().await.unwrap(), 0);
    let popped = f.pop("g", 10).await;
    assert_eq!(payloads(&popped), ["{\"n\":1}"]);
    let message = &popped.messages[0];
    assert_eq!(Some(message.record.id), promised.id);
    assert_eq!(message.record.transaction_id, "tx-k");
    assert_eq!(message.partition.name, "p");
    f.ack_all("g", &popped).await;
    let late = one(&f, cancel("k")).await;
    assert_eq!((late.status, late.transaction_id.as_deref()), (TimerStatus::Absent, Some("tx-k")));
    // Also a process that remembers nothing serves it under that id.
    let again = Fixture { engine: f.restart(), ..f };
    assert_eq!(Some(records(&again).await[0].id), promised.id);
}

#[tokio::test(start_paused = true)]
async fn a_timer_is_moved_and_cancelled() {
    let f = Fixture::new();
    one(&f, schedule("moved", 1000, "1")).await;
    assert_eq!(one(&f, schedule("moved", 5000, "2")).await.status, TimerStatus::Rescheduled);
    one(&f, schedule("cancelled", 1000, "3")).await;
    assert_eq!(one(&f, cancel("cancelled")).await.status, TimerStatus::Cancelled);
    assert_eq!(one(&f, cancel("never")).await.status, TimerStatus::Absent);
    let (waiting, more) = f.engine.list_timers("s", None, 10).await.unwrap();
    assert_eq!((waiting.len(), more), (1, false));
    assert_eq!((waiting[0].key.as_str(), waiting[0].payload.as_ref()), ("moved", &b"2"[..]));
    f.pass(2.0).await;
    assert_eq!(f.restart().fire_timers().await.unwrap(), 0);
    f.pass(4.0).await;
    assert_eq!(f.restart().fire_timers().await.unwrap(), 1);
    assert_eq!(f.payloads("s", "p").await, ["2"]);
    assert!(!f.engine.timers_due().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_call_schedules_and_cancels_in_order_and_as_one() {
    let f = Fixture::new();
    let ops = vec![
        schedule("a", 0, "1"),
        cancel("a"),
        cancel("a"),
        schedule("a", 0, "2"),
        schedule("b", -5, "3"),
    ];
    let statuses: Vec<_> =
        f.engine.timers(ops).await.unwrap().into_iter().map(|o| o.status).collect();
    use TimerStatus::*;
    assert_eq!(statuses, [Scheduled, Cancelled, Absent, Scheduled, Scheduled]);
    f.pass(0.001).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 2);
    let mut fired = f.payloads("s", "p").await;
    fired.sort();
    assert_eq!(fired, ["2", "3"]);
}

/// Clients sort what they get by time and id: that must be the order of the offsets, also where an id was promised
/// before its offset was known.
#[tokio::test(start_paused = true)]
async fn fired_messages_keep_the_order_of_time_and_id() {
    let f = Fixture::new();
    for n in 0..5 {
        one(&f, schedule(&format!("k{n}"), 0, "\"timer\"")).await;
        f.push("p", &["\"before\""]).await;
        f.engine.fire_timers().await.unwrap();
        f.push("p", &["\"after\"", "\"after\""]).await;
    }
    f.pass(0.01).await;
    f.engine.fire_timers().await.unwrap();
    let records = records(&f).await;
    assert_eq!(records.iter().filter(|r| r.payload == "\"timer\"").count(), 5);
    let order: Vec<_> = records.iter().map(|r| (r.time_us / 1000, r.id.to_string())).collect();
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn processes_that_fire_at_once_fire_each_timer_once() {
    let f = Fixture::new();
    for n in 0..30 {
        one(&f, schedule(&format!("k{n}"), 10, "1")).await;
    }
    f.pass(1.0).await;
    let firing = (0..4).map(|_| {
        let engine = f.restart();
        tokio::spawn(async move { engine.fire_timers().await })
    });
    let mut fired = 0;
    for one in firing.collect::<Vec<_>>() {
        // One that was always second may say that the store is busy.
        fired += one.await.unwrap().unwrap_or(0);
    }
    while f.engine.timers_due().await.unwrap() {
        fired += f.restart().fire_timers().await.unwrap_or(0);
    }
    assert_eq!(f.payloads("s", "p").await.len(), 30);
    assert!(fired <= 30, "{fired}");
}

#[tokio::test(start_paused = true)]
async fn a_timer_fires_once_whatever_replies_are_lost() {
    for seed in 0..30 {
        let f = Fixture::new();
        let plan = Plan { lose_reply: 0.3, ..Plan::none() };
        let chance = tidewheel_store::Env::simulated(seed, START_US, 0);
        let faulty = Faulty::new(Arc::new(f.store.clone()), plan, chance);
        let engine = Engine::new(Arc::new(faulty), f.env.clone(), Settings::default());
        for n in 0..6 {
            // Its own outcome may stay unknown; the caller then schedules it again.
            while engine.timers(vec![schedule(&format!("k{n}"), 0, "1")]).await.is_err() {}
        }
        f.pass(0.01).await;
        for _ in 0..20 {
            let _ = engine.fire_timers().await;
            f.pass(6.0).await;
        }
        let ids: Vec<_> = records(&f).await.into_iter().map(|r| r.transaction_id).collect();
        assert_eq!(ids.len(), 6, "seed {seed}: {ids:?}");
        assert!(!f.engine.timers_due().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_timer_of_a_transaction_waits_for_its_commit() {
    let f = Fixture::new();
    let riders = |required_version| Riders {
        kv: vec![KvOp {
            namespace: "n".into(),
            action: KvAction::Check { key: "k".into(), expect: required_version },
            required: true,
        }],
        timers: vec![schedule("t", 0, "1")],
    };
    let undone = f.engine.transact_with(vec![], vec![], riders(7)).await.unwrap();
    assert!(matches!(undone, Err(RolledBack::Precondition(_))), "{undone:?}");
    assert!(f.engine.timer("s", "t").await.unwrap().is_none());
    let done = f.engine.transact_with(vec![], vec![], riders(0)).await.unwrap().unwrap();
    assert!(matches!(&done[1], TransactionResult::Timer(t) if t.status == TimerStatus::Scheduled));
    f.pass(0.01).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_another_process_scheduled_is_found() {
    let f = Fixture::new();
    assert_eq!(f.engine.fire_timers().await.unwrap(), 0);
    f.restart().timers(vec![schedule("k", 0, "1")]).await.unwrap();
    f.pass(5.5).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn timers_wait_while_pushes_are_paused() {
    let f = Fixture::new();
    one(&f, schedule("k", 0, "1")).await;
    f.engine.pause_push(true).await.unwrap();
    assert_eq!(f.engine.fire_timers().await.unwrap(), 0);
    f.engine.pause_push(false).await.unwrap();
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused_when_it_is_scheduled() {
    let f = Fixture::new();
    let big: &'static str = Box::leak("9".repeat(limits::TIMER_PAYLOAD_BYTES + 1).into_boxed_str());
    assert!(matches!(f.engine.timers(vec![schedule("k", 0, big)]).await, Err(Error::Limit { .. })));
    let late = schedule("k", limits::TIMER_DELAY_MS_MAX + 1, "1");
    assert!(matches!(f.engine.timers(vec![late]).await, Err(Error::Invalid(_))));
    assert!(f.engine.timers(vec![schedule("", 0, "1")]).await.is_err());
    assert!(matches!(
        f.engine.timers(vec![schedule("k", 0, "1"); limits::TIMER_OPS + 1]).await,
        Err(Error::Limit { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_fired_timer_wakes_a_waiting_consumer_at_once_s38() {
    let f = Fixture::new();
    assert_eq!(f.pop("g", 1).await.messages.len(), 0);
    one(&f, schedule("k", 50, "1")).await;
    f.pass(0.1).await;
    let waiting = {
        let engine = f.engine.clone();
        let wait = Some(std::time::Duration::from_secs(60));
        tokio::spawn(async move { engine.pop(Pop { wait, ..pop_of("s", "g", 1) }).await.unwrap() })
    };
    tokio::task::yield_now().await;
    let before_us = f.env.now_us();
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
    assert_eq!(payloads(&waiting.await.unwrap()), ["1"]);
    assert!(f.env.now_us() - before_us < 100_000, "{}", f.env.now_us() - before_us);
}
