//! Claims and the listing of a query's partitions: what lets two processors close each window once.

use tidewheel_engine::*;

use crate::{
    cycles::{GROUP, delete, keys, query, upsert, work},
    fixture::*,
};

async fn claim(engine: &Engine, query: &Uuid, partitions: &[PartitionId]) -> Claims {
    let ids: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    engine.claim_idle(query, &ids, None, None).await.unwrap()
}

/// A claim's answers as the words of the protocol.
fn words(claims: &Claims) -> Vec<&'static str> {
    let word = |p: &ClaimedPartition| match p.status {
        ClaimStatus::Claimed(_) => "claimed",
        ClaimStatus::Busy => "busy",
        ClaimStatus::Backlog => "backlog",
        ClaimStatus::Missing => "missing",
    };
    claims.partitions.iter().map(word).collect()
}

fn close(
    query: Uuid,
    partition: PartitionId,
    lease: &str,
    ops: Vec<StateOp>,
    sink: &[&str],
) -> Cycle {
    Cycle {
        query_id: query,
        partition_id: partition,
        group: None,
        state_ops: ops,
        push_items: sink.iter().map(|p| item("out", "p", p)).collect(),
        ack: Some(CycleAck { lease_id: lease.to_owned(), completed: true, count: 0 }),
        release_lease: true,
    }
}

/// One partition, drained, with a window open.
async fn open_window(f: &Fixture, partition: &str) -> (Uuid, PartitionId) {
    f.push(partition, &["0"]).await;
    let w = work(f, 10).await;
    f.engine.cycle(w.cycle(vec![upsert("w", "1")], &[])).await.unwrap();
    (w.query, w.partition)
}

#[tokio::test(start_paused = true)]
async fn a_claim_holds_an_empty_batch_and_an_empty_acknowledgement_frees_it_s19() {
    let f = Fixture::new();
    let (query, p) = open_window(&f, "p").await;
    f.push("q", &["waits"]).await;
    let q = f.partition_id("s", "q").await;
    let nowhere = PartitionId(Uuid::from_bytes([1; 16]));
    let claims = claim(&f.engine, &query, &[q, p, nowhere]).await;
    assert_eq!(words(&claims), ["backlog", "claimed", "missing"]);
    assert_eq!((claims.partitions[1].name.as_str(), claims.lease_seconds), ("p", 30));
    let other = f.restart();
    assert_eq!(words(&claim(&other, &query, &[p]).await), ["busy"]);
    assert_eq!(
        words(&other.claim_idle(&query, &["nonsense".into()], None, None).await.unwrap()),
        ["missing"]
    );

    // A pop meanwhile gets nothing from the claimed partition, also once something has come.
    f.push("p", &["1"]).await;
    let pop = Pop {
        target: PopTarget::Partition { stream: "s".into(), partition: "p".into() },
        ..pop_of("s", GROUP, 10)
    };
    for engine in [&f.engine, &other] {
        assert!(engine.pop(pop.clone()).await.unwrap().messages.is_empty());
    }
    // The empty acknowledgement frees it at once, and the reading position is where it was.
    let cycled = f.engine.cycle(close(query, p, &claims.lease_id, Vec::new(), &[])).await.unwrap();
    assert_eq!(cycled.acked, Some((0, true)));
    let popped = other.pop(pop.clone()).await.unwrap();
    assert_eq!((payloads(&popped), popped.messages[0].attempt), (vec!["1".to_owned()], 1));
    assert_eq!(words(&claim(&f.engine, &query, &[p]).await), ["busy"], "a batch is out");
    f.ack_all(GROUP, &popped).await;
    assert_eq!(words(&claim(&f.engine, &query, &[p]).await), ["claimed"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pop_is_woken_when_a_claim_ends() {
    let f = Fixture::new();
    let (query, p) = open_window(&f, "p").await;
    let claims = claim(&f.engine, &query, &[p]).await;
    f.push("p", &["1"]).await;
    let wait = Pop { wait: Some(std::time::Duration::from_secs(20)), ..pop_of("s", GROUP, 10) };
    let engine = f.engine.clone();
    let waiting = tokio::spawn(async move { engine.pop(wait).await.unwrap() });
    f.pass(5.0).await;
    assert!(!waiting.is_finished());
    let freed_us = f.env.now_us();
    f.engine.cycle(close(query, p, &claims.lease_id, Vec::new(), &[])).await.unwrap();
    assert_eq!(payloads(&waiting.await.unwrap()), ["1"]);
    assert!(f.env.now_us() - freed_us < 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_claim_lapses_and_its_holder_changes_nothing() {
    let f = Fixture::new();
    let (query, p) = open_window(&f, "p").await;
    let ids = [p.to_string()];
    let zombie = f.engine.claim_idle(&query, &ids, None, Some(5)).await.unwrap();
    assert_eq!(zombie.lease_seconds, 5);
    f.pass(4.0).await;
    assert_eq!(f.engine.extend(&zombie.lease_id, 5).await.unwrap().renewed, 1);
    f.pass(6.0).await;
    f.push("p", &["1"]).await;
    let batch = f.pop(GROUP, 10).await;
    assert_eq!(payloads(&batch), ["1"], "what has lapsed holds nobody");
    let late = close(query, p, &zombie.lease_id, vec![delete("w")], &["zombie"]);
    assert_eq!(f.engine.cycle(late).await, Err(Error::Lease));
    assert_eq!(f.engine.stream("out").await.unwrap(), None);
    let long = f.engine.claim_idle(&query, &ids, None, Some(10_000)).await.unwrap();
    assert_eq!(long.lease_seconds, limits::CLAIM_SECONDS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_kept_claim_stays_held() {
    let f = Fixture::new();
    let (query, p) = open_window(&f, "p").await;
    let claims = claim(&f.engine, &query, &[p]).await;
    let mut keep = close(query, p, &claims.lease_id, vec![upsert("w", "2")], &[]);
    keep.release_lease = false;
    assert_eq!(f.engine.cycle(keep).await.unwrap().acked, Some((0, false)));
    assert_eq!(words(&claim(&f.restart(), &query, &[p]).await), ["busy"]);
    f.engine.cycle(close(query, p, &claims.lease_id, Vec::new(), &[])).await.unwrap();
    assert_eq!(words(&claim(&f.restart(), &query, &[p]).await), ["claimed"]);
}

#[tokio::test(start_paused = true)]
async fn two_processors_close_each_window_once_s17() {
    let f = Fixture::new();
    let mut windows = Vec::new();
    for n in 0..6 {
        windows.push(open_window(&f, &format!("p{n}")).await);
    }
    let query = windows[0].0;
    let partitions: Vec<PartitionId> = windows.iter().map(|(_, p)| *p).collect();
    let run = |engine: Engine| {
        let partitions = partitions.clone();
        async move {
            let claims = claim(&engine, &query, &partitions).await;
            let mut closed = 0;
            for (at, status) in words(&claims).into_iter().enumerate() {
                if status != "claimed" {
                    continue;
                }
                let rows =
                    engine.state(&query, &partitions[at], &StateFilter::default()).await.unwrap();
                let ops = rows.iter().map(|r| delete(&r.key)).collect();
                let sink: Vec<String> = rows.iter().map(|_| at.to_string()).collect();
                let sink: Vec<&str> = sink.iter().map(String::as_str).collect();
                let cycle = close(query, partitions[at], &claims.lease_id, ops, &sink);
                engine.cycle(cycle).await.unwrap();
                closed += sink.len();
            }
            closed
        }
    };
    let (a, b) = tokio::join!(run(f.engine.clone()), run(f.restart()));
    let again = run(f.restart()).await;
    assert_eq!((a + b, again), (6, 0));
    let mut out = f.payloads("out", "p").await;
    out.sort();
    assert_eq!(out, ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn of_two_who_claim_at_once_one_does() {
    let f = Fixture::new();
    let mut partitions = Vec::new();
    let mut query = Uuid::from_bytes([0; 16]);
    for n in 0..20 {
        let (id, p) = open_window(&f, &format!("p{n}")).await;
        query = id;
        partitions.push(p);
    }
    let other = f.restart();
    let (a, b) =
        tokio::join!(claim(&f.engine, &query, &partitions), claim(&other, &query, &partitions));
    for pair in words(&a).into_iter().zip(words(&b)) {
        assert!(matches!(pair, ("claimed", "busy") | ("busy", "claimed")), "{pair:?}");
    }
}

/// After a restart nobody remembers which partitions have windows open: the listing does.
#[tokio::test(start_paused = true)]
async fn a_restart_finds_what_was_left_open_s17() {
    let f = Fixture::new();
    let (query, old) = open_window(&f, "old").await;
    f.pass(60.0).await;
    let (_, young) = open_window(&f, "young").await;
    let (_, closed) = open_window(&f, "closed").await;
    let claims = claim(&f.engine, &query, &[closed]).await;
    f.engine.cycle(close(query, closed, &claims.lease_id, vec![delete("w")], &[])).await.unwrap();

    let fresh = f.restart();
    let all = fresh.state_partitions(&query, None, None, 100).await.unwrap();
    let mut both = vec![old, young];
    both.sort();
    let ids: Vec<PartitionId> = all.partitions.iter().map(|p| p.info.id).collect();
    assert_eq!((ids, all.next), (both, None), "what has no rows is not listed");
    let untouched = fresh.state_partitions(&query, Some(30_000_000), None, 100).await.unwrap();
    assert_eq!(untouched.partitions.len(), 1);
    let found = &untouched.partitions[0];
    assert_eq!(
        (found.info.id, found.info.name.as_str(), found.info.stream.as_str()),
        (old, "old", "s")
    );
    assert_eq!(found.updated_us, START_US);

    let claims = claim(&fresh, &query, &[found.info.id]).await;
    fresh.cycle(close(query, old, &claims.lease_id, vec![delete("w")], &["closed"])).await.unwrap();
    assert_eq!(f.payloads("out", "p").await, ["closed"]);
    let stranger = Uuid::from_bytes([3; 16]);
    assert_eq!(
        fresh.state_partitions(&stranger, None, None, 10).await.unwrap(),
        StatePartitions::default()
    );
    assert_eq!(fresh.claim_idle(&stranger, &[], None, None).await, Err(Error::QueryNotFound));
}

#[tokio::test(start_paused = true)]
async fn the_listing_is_in_the_order_of_ids_and_its_pages_join() {
    let f = Fixture::new();
    let id = query(&f).await;
    let mut partitions = Vec::new();
    for n in 0..70 {
        f.push(&format!("p{n}"), &["x"]).await;
        let partition = f.partition_id("s", &format!("p{n}")).await;
        let flush = Cycle { ack: None, ..close(id, partition, "", vec![upsert("w", "1")], &[]) };
        f.engine.cycle(flush).await.unwrap();
        partitions.push(partition);
    }
    partitions.sort();
    for limit in [1000, 7, 1] {
        let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = f.engine.state_partitions(&id, None, after.as_deref(), limit).await.unwrap();
            listed.extend(page.partitions.iter().map(|p| p.info.id));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, partitions, "in pages of {limit}");
        assert_eq!(pages, 70usize.div_ceil(limit));
    }
    // What is gone is not listed.
    f.engine.delete_stream("s").await.unwrap();
    let gone = f.restart().state_partitions(&id, None, None, 100).await.unwrap();
    assert_eq!((gone.partitions, gone.next), (Vec::new(), None));
}

#[tokio::test(start_paused = true)]
async fn a_claim_fences_the_flush_of_nobody_and_is_fenced_by_it() {
    let f = Fixture::new();
    let (query, p) = open_window(&f, "p").await;
    let claims = claim(&f.engine, &query, &[p]).await;
    // An old processor flushes without a lease; the claim's holder, who has read the same window, is refused.
    let flush = Cycle { ack: None, ..close(query, p, "", vec![delete("w")], &["once"]) };
    f.restart().cycle(flush).await.unwrap();
    let late =
        f.engine.cycle(close(query, p, &claims.lease_id, vec![delete("w")], &["twice"])).await;
    assert!(matches!(late, Err(Error::StaleState { .. })), "{late:?}");
    assert_eq!(f.payloads("out", "p").await, ["once"]);
    let again = claim(&f.engine, &query, &[p]).await;
    assert_eq!(words(&again), ["claimed"], "a refused claim is given back");
    let w = crate::cycles::Work::of(query, p, &again.lease_id);
    assert_eq!(keys(&f.engine, &w, StateFilter::default()).await, [""; 0]);
}
