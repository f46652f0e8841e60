//! Replays and claims over a store that fails, loses replies and delivers late.

use std::sync::Arc;

use Verdict::*;
use tidewheel_engine::*;
use tidewheel_store::{Env, Faulty, faulty::Plan};

use crate::{
    cycles::{delete, upsert, work},
    fixture::*,
};

/// An engine in a storm of its own.
fn in_a_storm(f: &Fixture, seed: u64) -> (Engine, Faulty) {
    let plan = Plan {
        lose_reply: 0.15,
        lose_request: 0.1,
        late: 0.15,
        late_calls: 12,
        slow: 0.0,
        latency: Plan::none().latency,
        ..Plan::stormy()
    };
    let env = Env::simulated(seed, START_US, 0);
    let faulty = Faulty::new(Arc::new(f.store.clone()), plan, env.clone());
    (Engine::new(Arc::new(faulty.clone()), env, Settings::default()), faulty)
}

#[tokio::test(start_paused = true)]
async fn a_replay_happens_once_in_a_storm_s42() {
    let mut unknown = 0;
    for seed in 0..30 {
        let f = Fixture::new();
        // Without a window no transaction id stands in the way of a second push.
        let window = if seed % 2 == 0 { 3600 } else { 0 };
        f.configure("s", serde_json::json!({"dedupWindowSeconds": window})).await;
        f.push("p", &["poison"]).await;
        let batch = f.pop("g", 1).await;
        f.ack("g", &batch, &[DeadLetter]).await;
        let id = f.engine.dead_letters("s", None, 0, 1).await.unwrap().remove(0).id;
        let storms = [in_a_storm(&f, 2 * seed), in_a_storm(&f, 2 * seed + 1)];
        let runs = storms.iter().map(|(engine, _)| async {
            let (mut pushed, mut doubts) = (0, 0);
            for _ in 0..20 {
                match engine.replay_dead_letter(&id).await {
                    Ok(Replayed::Pushed { .. }) => pushed += 1,
                    Ok(Replayed::Missing) => break,
                    Ok(duplicate) => panic!("{duplicate:?}"),
                    Err(Error::Unknown(_)) => doubts += 1,
                    Err(e) => assert!(e.is_transient(), "{e}"),
                }
            }
            (pushed, doubts)
        });
        let outcomes = futures_util::future::join_all(runs).await;
        for (_, faulty) in &storms {
            faulty.settle().await;
        }
        let (pushed, doubts) = outcomes.iter().fold((0, 0), |a, o| (a.0 + o.0, a.1 + o.1));
        unknown += doubts;
        assert!(pushed == 1 || pushed == 0 && doubts > 0, "seed {seed}: {pushed} {doubts}");
        assert_eq!(f.payloads("s", "p").await, ["poison", "poison"], "seed {seed}");
        assert!(f.restart().dead_letters("s", None, 0, 10).await.unwrap().is_empty());
        assert_eq!(f.restart().dead_letter_counts("s", None).await.unwrap(), [].into());
    }
    assert!(unknown > 0, "the storm was none");
}

/// Claims what is idle and closes the windows that it finds open there.
async fn close_windows(engine: &Engine, query: Uuid, partitions: &[PartitionId]) {
    let ids: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    let Ok(claims) = engine.claim_idle(&query, &ids, None, Some(10)).await else { return };
    for (at, claimed) in claims.partitions.iter().enumerate() {
        if !matches!(claimed.status, ClaimStatus::Claimed(_)) {
            continue;
        }
        let filter = StateFilter::default();
        let Ok(rows) = engine.state(&query, &partitions[at], &filter).await else { continue };
        let close = Cycle {
            query_id: query,
            partition_id: partitions[at],
            group: None,
            state_ops: rows.iter().map(|r| delete(&r.key)).collect(),
            push_items: rows.iter().map(|_| item("out", "p", &ids[at])).collect(),
            ack: Some(CycleAck { lease_id: claims.lease_id.clone(), completed: true, count: 0 }),
            release_lease: true,
        };
        let _ = engine.cycle(close).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_window_is_closed_once_in_a_storm_s17() {
    let mut in_storms = 0;
    for seed in 0..20 {
        let f = Fixture::new();
        let mut partitions = Vec::new();
        let mut query = None;
        for n in 0..4 {
            f.push(&format!("p{n}"), &["0"]).await;
            let w = work(&f, 10).await;
            f.engine.cycle(w.cycle(vec![upsert("w", "1")], &[])).await.unwrap();
            (query, _) = (Some(w.query), partitions.push(w.partition));
        }
        let query = query.unwrap();
        f.engine.push(vec![item("out", "first", "0")]).await;
        let storms = [in_a_storm(&f, 2 * seed + 1000), in_a_storm(&f, 2 * seed + 1001)];
        let runs = storms.iter().map(|(engine, _)| async {
            for _ in 0..12 {
                close_windows(engine, query, &partitions).await;
                // Leases that nobody knows of lapse.
                engine.env().sleep(std::time::Duration::from_secs(6)).await;
            }
        });
        futures_util::future::join_all(runs).await;
        for (_, faulty) in &storms {
            faulty.settle().await;
        }
        in_storms += f.payloads("out", "p").await.len();
        // What the storms left open, if they had no luck, is still open, and whoever comes next closes it.
        f.pass(60.0).await;
        close_windows(&f.restart(), query, &partitions).await;
        let mut out = f.payloads("out", "p").await;
        out.sort();
        let mut all: Vec<String> = partitions.iter().map(ToString::to_string).collect();
        all.sort();
        assert_eq!(out, all, "seed {seed}");
    }
    assert!(in_storms > 60, "the storms closed {in_storms} of 80");
}
