//! What operations cost in the cloud's units, and what becomes of damage: the memory store tells and does both.

use tidewheel_engine::*;

use crate::{cycles, fixture::*};

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
