//! Queries, state and cycles: the scenarios of the Queen contract.

use tidewheel_engine::*;

use crate::fixture::*;

pub(crate) const GROUP: &str = "streams.q";

pub(crate) async fn query(f: &Fixture) -> Uuid {
    match f.engine.register_query("q", "s", Some("out"), "h1", false).await.unwrap() {
        Registered::Fresh(query) | Registered::Same(query) => query.id,
        other => panic!("{other:?}"),
    }
}

pub(crate) struct Work {
    pub(crate) query: Uuid,
    pub(crate) partition: PartitionId,
    lease: String,
    count: u64,
}

pub(crate) async fn work(f: &Fixture, batch: usize) -> Work {
    let popped = f.pop(GROUP, batch).await;
    assert!(!popped.messages.is_empty());
    Work {
        query: query(f).await,
        partition: popped.messages[0].partition.id,
        lease: popped.lease_id.clone(),
        count: popped.messages.len() as u64,
    }
}

impl Work {
    pub(crate) fn of(query: Uuid, partition: PartitionId, lease: &str) -> Self {
        Self { query, partition, lease: lease.to_owned(), count: 0 }
    }

    pub(crate) fn cycle(&self, ops: Vec<StateOp>, sink: &[&str]) -> Cycle {
        Cycle {
            query_id: self.query,
            partition_id: self.partition,
            group: None,
            state_ops: ops,
            push_items: sink.iter().map(|p| item("out", "p", p)).collect(),
            ack: Some(CycleAck {
                lease_id: self.lease.clone(),
                completed: true,
                count: self.count,
            }),
            release_lease: true,
        }
    }

    pub(crate) fn partial(&self, count: u64) -> Cycle {
        let ack = CycleAck { lease_id: self.lease.clone(), completed: true, count };
        Cycle { ack: Some(ack), release_lease: false, ..self.cycle(Vec::new(), &[]) }
    }

    pub(crate) fn flush(&self, ops: Vec<StateOp>, sink: &[&str]) -> Cycle {
        Cycle { ack: None, ..self.cycle(ops, sink) }
    }
}

pub(crate) fn upsert(key: &str, value: &str) -> StateOp {
    StateOp::Upsert { key: key.into(), value: value.to_owned().into() }
}

pub(crate) fn delete(key: &str) -> StateOp {
    StateOp::Delete { key: key.into() }
}

pub(crate) async fn keys(engine: &Engine, work: &Work, filter: StateFilter) -> Vec<String> {
    let rows = engine.state(&work.query, &work.partition, &filter).await.unwrap();
    rows.into_iter().map(|r| r.key).collect()
}

#[tokio::test(start_paused = true)]
async fn a_cycle_commits_state_sink_and_source_together() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let w = work(&f, 10).await;
    let cycled = f
        .engine
        .cycle(w.cycle(vec![upsert("a", "1.0"), upsert("b", "{\"x\": 1}")], &["out"]))
        .await
        .unwrap();
    assert_eq!(cycled.acked, Some((2, true)));
    assert_eq!(
        cycled.pushed,
        [SinkPushed { stream: "out".into(), partition: "p".into(), base_offset: Some(0) }]
    );
    let rows = f.restart().state(&w.query, &w.partition, &StateFilter::default()).await.unwrap();
    let values: Vec<_> = rows.iter().map(|r| (r.key.as_str(), &r.value[..])).collect();
    assert_eq!(values, [("a", &b"1.0"[..]), ("b", &b"{\"x\": 1}"[..])]);
    assert_eq!(f.payloads("out", "p").await, ["out"]);
    assert!(f.pop(GROUP, 10).await.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_cycle_is_refused_and_changes_nothing_s1() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    let cycle = w.cycle(vec![upsert("a", "1")], &["out"]);
    f.engine.cycle(cycle.clone()).await.unwrap();
    for engine in [f.engine.clone(), f.restart()] {
        assert_eq!(engine.cycle(cycle.clone()).await, Err(Error::Lease));
    }
    assert_eq!(f.payloads("out", "p").await, ["out"]);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_worker_changes_nothing_s2() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 2})).await;
    f.push("p", &["0"]).await;
    let zombie = work(&f, 10).await;
    f.pass(3.0).await;
    let before = f.store.items();
    let refused = f.engine.cycle(zombie.cycle(vec![upsert("a", "zombie")], &["zombie"])).await;
    assert_eq!(refused, Err(Error::Lease), "also before anybody has popped again");
    assert_eq!(f.store.items(), before);
    let w = work(&f, 10).await;
    let refused = f.engine.cycle(zombie.cycle(vec![upsert("a", "zombie")], &["zombie"])).await;
    assert_eq!(refused, Err(Error::Lease));
    f.engine.cycle(w.cycle(vec![upsert("a", "1")], &["out"])).await.unwrap();
    assert_eq!(f.payloads("out", "p").await, ["out"]);
}

#[tokio::test(start_paused = true)]
async fn partial_acknowledgements_keep_the_lease_s4_s5() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 5})).await;
    f.push("p", &["0", "1", "2", "3", "4", "5"]).await;
    let w = work(&f, 3).await;
    assert_eq!(f.engine.cycle(w.partial(0)).await.unwrap().acked, Some((0, false)));
    assert_eq!(f.engine.cycle(w.partial(1)).await.unwrap().acked, Some((1, false)));
    assert_eq!(f.engine.cycle(w.partial(1)).await.unwrap().acked, Some((1, false)));
    assert!(f.pop(GROUP, 10).await.messages.is_empty(), "the tail stays leased");
    assert_eq!(
        f.engine.cycle(w.partial(50)).await.unwrap().acked,
        Some((1, false)),
        "clamped to the batch"
    );
    f.pass(6.0).await;
    assert_eq!(payloads(&f.pop(GROUP, 10).await), ["3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_full_acknowledgement_takes_the_batch_whatever_the_count_s6() {
    let f = Fixture::new();
    f.push("p", &["0", "1", "2"]).await;
    let mut w = work(&f, 10).await;
    w.count = 1;
    assert_eq!(f.engine.cycle(w.cycle(Vec::new(), &[])).await.unwrap().acked, Some((1, true)));
    assert!(f.pop(GROUP, 10).await.messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_nack_gives_the_batch_back_and_keeps_the_rest_s8() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    let mut cycle = w.cycle(vec![upsert("a", "1")], &["out"]);
    cycle.ack.as_mut().unwrap().completed = false;
    assert_eq!(f.engine.cycle(cycle).await.unwrap().acked, Some((0, true)));
    assert_eq!(keys(&f.engine, &w, StateFilter::default()).await, ["a"]);
    assert_eq!(f.payloads("out", "p").await, ["out"]);
    let again = f.pop(GROUP, 10).await;
    assert_eq!((payloads(&again), again.messages[0].attempt), (vec!["0".to_owned()], 2));
}

#[tokio::test(start_paused = true)]
async fn filters_are_literal_and_joined_s10_s11() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    let ops = vec![
        upsert("a_1", "{\"windowEnd\":1000}"),
        upsert("axb", "{\"windowEnd\":\"500\"}"),
        upsert("a%2", "{\"windowEnd\":9000}"),
        upsert("null", "null"),
        upsert("ä", "{}"),
    ];
    f.engine.cycle(w.cycle(ops, &[])).await.unwrap();
    for engine in [f.engine.clone(), f.restart()] {
        let prefix = |p: &str| StateFilter { prefix: p.into(), ..StateFilter::default() };
        assert_eq!(keys(&engine, &w, prefix("a_")).await, ["a_1"]);
        assert_eq!(keys(&engine, &w, prefix("a%")).await, ["a%2"]);
        let ripe = |at| StateFilter { ripe_at_or_before: Some(at), ..StateFilter::default() };
        assert_eq!(keys(&engine, &w, ripe(1000.0)).await, ["a_1"]);
        assert_eq!(keys(&engine, &w, ripe(999.9)).await, [""; 0]);
        let both =
            StateFilter { keys: vec!["ä".into(), "a_1".into(), "no".into()], ..prefix("a") };
        assert_eq!(keys(&engine, &w, both).await, ["a_1"]);
        assert_eq!(
            keys(&engine, &w, StateFilter::default()).await,
            ["a%2", "a_1", "axb", "null", "ä"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn registering_is_idempotent_and_catches_another_chain_s13() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    let w = work(&f, 1).await;
    f.engine.cycle(w.cycle(vec![upsert("a", "1")], &[])).await.unwrap();
    let register = |hash: &'static str, reset| {
        let engine = f.engine.clone();
        async move { engine.register_query("q", "s", None, hash, reset).await.unwrap() }
    };
    assert!(matches!(register("h1", false).await, Registered::Same(q) if q.id == w.query));
    assert!(
        matches!(register("h2", false).await, Registered::Mismatch(q) if q.config_hash == "h1")
    );
    assert_eq!(keys(&f.engine, &w, StateFilter::default()).await, ["a"], "state intact");
    let other = f.restart();
    assert_eq!(keys(&other, &w, StateFilter::default()).await, ["a"]);
    assert!(matches!(register("h2", true).await, Registered::Reset(q) if q.id == w.query));
    assert_eq!(keys(&f.engine, &w, StateFilter::default()).await, [""; 0]);
    assert_eq!(keys(&other, &w, StateFilter::default()).await, [""; 0]);
    assert_eq!(payloads(&f.pop(GROUP, 10).await), ["1"], "the reading position stays");
}

#[tokio::test(start_paused = true)]
async fn two_flushes_close_a_window_once() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    f.engine.cycle(w.cycle(vec![upsert("w", "1"), upsert("v", "1")], &[])).await.unwrap();
    let other = f.restart();
    let flush = w.flush(vec![delete("w")], &["closed"]);
    let (a, b) = tokio::join!(f.engine.cycle(flush.clone()), other.cycle(flush.clone()));
    let refused = [a, b].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused, [Error::StaleState { key: "w".into() }]);
    assert_eq!(f.payloads("out", "p").await, ["closed"]);
    assert_eq!(keys(&f.engine, &w, StateFilter::default()).await, ["v"]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_computed_on_a_window_that_was_closed_meanwhile_is_computed_anew() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    f.engine.cycle(w.cycle(vec![upsert("w", "10")], &[])).await.unwrap();
    f.push("p", &["1"]).await;
    let late = work(&f, 10).await; // has read w = 10
    f.restart().cycle(w.flush(vec![delete("w")], &["10"])).await.unwrap();
    for ops in [vec![upsert("w", "15")], vec![delete("w")]] {
        let refused = f.engine.cycle(late.cycle(ops, &["15"])).await;
        assert!(matches!(refused, Err(Error::StaleState { .. } | Error::Lease)), "{refused:?}");
    }
    let again = work(&f, 10).await; // given back at once
    f.engine.cycle(again.cycle(vec![upsert("w", "5")], &[])).await.unwrap();
    assert_eq!(f.payloads("out", "p").await, ["10"]);
}

#[tokio::test(start_paused = true)]
async fn a_long_chain_of_deltas_is_folded_and_read_whole() {
    let f = Fixture::new();
    for n in 0..100 {
        f.push("p", &["x"]).await;
        let w = work(&f, 10).await;
        let mut ops = vec![upsert(&format!("k{:03}", n % 40), &format!("{n}"))];
        if n >= 40 && n % 10 == 0 {
            ops.push(delete(&format!("k{:03}", (n + 1) % 40)));
        }
        f.engine.cycle(w.cycle(ops, &[])).await.unwrap();
    }
    let id = query(&f).await;
    let partition = f.partition_id("s", "p").await;
    let all = StateFilter::default();
    let warm = f.engine.state(&id, &partition, &all).await.unwrap();
    assert_eq!(f.restart().state(&id, &partition, &all).await.unwrap(), warm);
    assert!(f.engine.counters().0["state_folds"] >= 3);
    assert!(warm.iter().any(|r| r.key == "k019" && &r.value[..] == b"99"));
    let superseded = f.store.blobs().len();
    assert!(superseded < 100 + 40, "folded deltas are deleted: {superseded} blobs");
}

#[tokio::test(start_paused = true)]
async fn bad_cycles_are_refused_and_change_nothing() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let w = work(&f, 10).await;
    let before = f.store.items();
    let mut cycle = w.cycle(vec![upsert("a", "1")], &["out"]);
    cycle.query_id = Uuid::from_bytes([1; 16]);
    assert_eq!(f.engine.cycle(cycle).await, Err(Error::QueryNotFound));
    let mut cycle = w.cycle(vec![upsert("a", "1")], &[]);
    cycle.partition_id = PartitionId(Uuid::from_bytes([1; 16]));
    assert_eq!(f.engine.cycle(cycle).await, Err(Error::PartitionNotFound));
    let mut cycle = w.cycle(vec![upsert("a", "1")], &[]);
    cycle.group = Some("never popped".into());
    assert_eq!(f.engine.cycle(cycle).await, Err(Error::Lease));
    for lease in ["", "nonsense", "0123456789abcdef0123456789abcdef"] {
        let mut cycle = w.cycle(vec![upsert("a", "1")], &[]);
        cycle.ack.as_mut().unwrap().lease_id = lease.into();
        assert_eq!(f.engine.cycle(cycle).await, Err(Error::Lease));
    }
    let long = "k".repeat(limits::STATE_KEY_BYTES + 1);
    let refused = f.engine.cycle(w.cycle(vec![upsert(&long, "1")], &[])).await;
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
    let mut cycle = w.cycle(Vec::new(), &[]);
    cycle.push_items = (0..30).map(|n| item("out", &format!("{n}"), "x")).collect();
    let refused = f.engine.cycle(cycle).await;
    assert!(matches!(refused, Err(Error::Limit { limit: 24, .. })), "{refused:?}");
    let heads = |items: std::collections::BTreeMap<tidewheel_store::Key, tidewheel_store::Item>| {
        items
            .into_iter()
            .filter(|(k, _)| !k.pk.starts_with("s#") && k.pk != "streams")
            .collect::<Vec<_>>()
    };
    assert_eq!(heads(f.store.items()), heads(before));
}

#[tokio::test(start_paused = true)]
async fn sink_duplicates_are_skipped_and_sinks_wake_consumers_s38() {
    let f = Fixture::new();
    f.push("p", &["0", "1"]).await;
    assert!(f.engine.pop(pop_of("out", "after", 1)).await.unwrap().messages.is_empty());
    let wait = Pop { wait: Some(std::time::Duration::from_secs(20)), ..pop_of("out", "after", 10) };
    let engine = f.engine.clone();
    let waiting = tokio::spawn(async move { engine.pop(wait).await.unwrap() });
    f.pass(0.1).await;
    let w = work(&f, 1).await;
    let mut cycle = w.cycle(Vec::new(), &[]);
    cycle.push_items = vec![
        with_id(item("out", "p", "1"), "a"),
        with_id(item("out", "p", "2"), "a"),
        with_id(item("out", "q", "3"), "a"),
    ];
    f.engine.cycle(cycle.clone()).await.unwrap();
    assert!(!waiting.await.unwrap().messages.is_empty());
    let w = work(&f, 1).await;
    cycle.ack = w.cycle(Vec::new(), &[]).ack;
    let cycled = f.engine.cycle(cycle).await.unwrap();
    assert!(cycled.pushed.iter().all(|p| p.base_offset.is_none()), "{cycled:?}");
    assert_eq!(f.payloads("out", "p").await, ["1"]);
    assert_eq!(f.payloads("out", "q").await, ["3"]);
}
