//! Traces, and the switches of an operator.

use std::time::Duration;

use tidewheel_engine::*;

use crate::fixture::*;

fn trace(partition: PartitionId, transaction_id: &str, names: &[&str], data: &str) -> NewTrace {
    NewTrace {
        partition,
        transaction_id: transaction_id.into(),
        group: "g".into(),
        event: "step".into(),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        data: data.to_owned().into(),
    }
}

#[tokio::test(start_paused = true)]
async fn traces_are_found_by_message_and_by_name() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let p = f.partition_id("s", "p").await;
    let long = "x".repeat(60_000);
    let first = f.engine.trace(trace(p, &long, &["b", "a", "b"], "{\"n\": 1.0}")).await.unwrap();
    f.pass(1.0).await;
    f.engine.trace(trace(p, &long, &["a"], "2")).await.unwrap();
    f.pass(1.0).await;
    f.engine.trace(trace(p, "other", &["a"], "3")).await.unwrap();
    f.engine.trace(trace(p, "other", &[], "4")).await.unwrap();

    let of = f.engine.traces_of(&p, &long).await.unwrap();
    assert_eq!(of.iter().map(|t| &t.data[..]).collect::<Vec<_>>(), [&b"{\"n\": 1.0}"[..], b"2"]);
    assert_eq!((of[0].id, of[0].transaction_id.as_str()), (first, long.as_str()));
    assert_eq!((of[0].stream.as_str(), of[0].partition_name.as_str()), ("s", "p"));
    assert_eq!(of[0].names, ["a", "b"]);
    assert!(f.engine.traces_of(&p, "nothing").await.unwrap().is_empty());

    let named = f.engine.traces_by_name("a", 0, 10).await.unwrap();
    assert_eq!(named.total, 3);
    assert_eq!(named.traces.iter().map(|t| &t.data[..]).collect::<Vec<_>>()[1..], [b"2", b"3"]);
    let page = f.engine.traces_by_name("a", 1, 1).await.unwrap();
    assert_eq!((page.total, page.traces.len(), &page.traces[0].data[..]), (3, 1, &b"2"[..]));

    let names = f.engine.trace_names(0, 10).await.unwrap();
    assert_eq!(names.total, 2);
    let a = TraceName { name: "a".into(), traces: 3, messages: 2, last_us: START_US + 2_000_000 };
    let b = TraceName { name: "b".into(), traces: 1, messages: 1, last_us: START_US };
    assert_eq!(names.names, [a, b.clone()]);
    assert_eq!(f.engine.trace_names(1, 10).await.unwrap().names, [b]);
}

#[tokio::test(start_paused = true)]
async fn traces_go_after_their_days_and_leave_nothing() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let p = f.partition_id("s", "p").await;
    let before = f.store.items();
    for n in 0..20 {
        f.engine.trace(trace(p, &format!("t{}", n % 3), &["a", "b"], "1")).await.unwrap();
    }
    f.pass(86_400.0 * 6.0).await;
    f.engine.trace(trace(p, "t0", &["a"], "2")).await.unwrap();
    assert_eq!(f.engine.sweep_traces().await.unwrap(), 0);
    f.pass(86_400.0 * 2.0).await;
    assert_eq!(f.engine.sweep_traces().await.unwrap(), 20);
    let names = f.engine.trace_names(0, 10).await.unwrap().names;
    assert_eq!(names.len(), 1);
    assert_eq!((names[0].traces, names[0].messages), (1, 1));
    assert_eq!(f.engine.traces_of(&p, "t0").await.unwrap().len(), 1);
    f.pass(86_400.0 * 7.0).await;
    assert_eq!(f.engine.sweep_traces().await.unwrap(), 1);
    assert_eq!(f.store.items(), before);
}

#[tokio::test(start_paused = true)]
async fn a_trace_too_large_names_its_limit() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let p = f.partition_id("s", "p").await;
    let nowhere = PartitionId::of(&Uuid::random(&f.env), "p");
    assert_eq!(f.engine.trace(trace(nowhere, "t", &[], "1")).await, Err(Error::PartitionNotFound));
    let data = "x".repeat(limits::TRACE_DATA_BYTES + 1);
    let names: Vec<String> = (0..=limits::TRACE_NAMES).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (bad, limit) in [
        (trace(p, "t", &[], &data), limits::TRACE_DATA_BYTES),
        (trace(p, "t", &names, "1"), limits::TRACE_NAMES),
        (trace(p, "t", &[&"n".repeat(513)], "1"), limits::NAME_BYTES),
    ] {
        let error = f.engine.trace(bad).await.unwrap_err().to_string();
        assert!(error.contains(&limit.to_string()), "{error}");
    }
    assert!(f.engine.traces_of(&p, "t").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn paused_pushes_are_refused_everywhere_and_store_nothing() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let other = f.restart();
    assert!(matches!(other.push(vec![item("s", "p", "1")]).await[0], Pushed::Queued { .. }));
    let switches = f.engine.pause_push(true).await.unwrap();
    assert_eq!(switches, Switches { push_paused: true, pop_paused: false });
    let before = f.store.items();
    for engine in [&f.engine, &other, &f.restart()] {
        let pushed = engine.push(vec![item("s", "p", "2"), item("new", "p", "2")]).await;
        for pushed in pushed {
            let Pushed::Refused(error) = pushed else { panic!("{pushed:?}") };
            assert!(error.is_transient() && error.to_string().contains("maintenance"), "{error}");
        }
        let push = TransactionOp::Push(vec![item("s", "p", "2")]);
        let refused = engine.transact(vec![push], Vec::new()).await;
        assert_eq!(refused.unwrap_err(), Error::Paused("pushing"));
    }
    assert_eq!(f.store.items(), before);
    // What is there goes on.
    let popped = f.pop("g", 10).await;
    assert_eq!(payloads(&popped), ["0", "1"]);
    f.ack_all("g", &popped).await;
    f.engine.pause_push(false).await.unwrap();
    assert!(matches!(f.push("p", &["3"]).await[0], Pushed::Queued { offset: 2, .. }));
}

#[tokio::test(start_paused = true)]
async fn paused_pops_find_nothing_until_they_go_on() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let other = f.restart();
    f.engine.pause_pop(true).await.unwrap();
    for engine in [&f.engine, &other] {
        assert!(engine.pop(pop_of("s", "g", 1)).await.unwrap().messages.is_empty());
    }
    assert!(f.engine.switches().await.unwrap().pop_paused);
    let waiting = f.engine.clone();
    let wait = Some(Duration::from_secs(30));
    let waiter =
        tokio::spawn(async move { waiting.pop(Pop { wait, ..pop_of("s", "g", 1) }).await });
    f.pass(5.0).await;
    f.push("p", &["1"]).await;
    f.pass(1.0).await;
    assert!(!waiter.is_finished(), "a waiting pop waits");
    other.pause_pop(false).await.unwrap();
    assert_eq!(payloads(&waiter.await.unwrap().unwrap()), ["0"]);
}
