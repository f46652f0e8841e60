//! What following costs, in the cloud's units.

use serde_json::json;
use tidewheel_gateway::live::Work;

use crate::world::World;

async fn followed(members: usize) -> World {
    let w = World::new(1);
    w.push(&[json!(0)]).await;
    for n in 0..members {
        let name = format!("c{n}");
        if n % 2 == 0 {
            w.connect(&name, &[("stream", "s")]).await.unwrap();
        } else {
            w.connect(&name, &[]).await.unwrap();
            w.say(&name, json!({"id": 1, "op": "subscribe", "stream": "s"})).await;
        }
    }
    w.drain().await;
    w
}

#[tokio::test(start_paused = true)]
async fn a_push_to_a_stream_that_nobody_follows_costs_nothing_more() {
    let w = World::new(2);
    let (engine, _) = w.process();
    let mut costs = Vec::new();
    for round in 0..3 {
        let push = || engine.push(vec![crate::world::item("1".into())]);
        push().await;
        w.store.reset_meter();
        push().await;
        costs.push(w.store.meter());
        assert!(w.take_asked().is_none(), "nobody is rung for");
        if round == 0 {
            // Somebody comes, and goes.
            w.connect("c", &[("stream", "s")]).await.unwrap();
            w.drain().await;
            w.disconnect("c").await;
            push().await;
        }
    }
    assert_eq!((costs[0].write_units, costs[0].read_units), (2.0, 0.0), "blob and head");
    assert_eq!((costs[0], costs[0]), (costs[1], costs[2]));
}

#[tokio::test(start_paused = true)]
async fn an_idle_cohort_costs_nothing_and_a_second_ring_one_read() {
    let w = followed(10).await;
    w.store.reset_meter();
    w.pass(3600).await;
    assert_eq!(w.store.meter().calls, 0);
    let (_, live) = w.process();
    let ring = Work::deliver(&w.partition().await);
    w.store.reset_meter();
    live.work(&ring, w.stop()).await.unwrap();
    let units = w.store.meter();
    assert_eq!((units.read_units, units.write_units), (1.0, 0.0));
    w.store.reset_meter();
    live.work(&Work::Sweep {}, w.stop()).await.unwrap();
    let units = w.store.meter();
    assert_eq!((units.read_units, units.write_units), (8.0, 0.0), "two short lists");
}

/// Writes to the cohort's own item, of one delivery of this many flushes.
async fn cohort_writes(members: usize, flushes: usize) -> (usize, f64) {
    let w = followed(members).await;
    for _ in 0..flushes {
        // A flush takes 128 rows to a cohort with a streamcast client in it.
        w.push(&vec![json!(1); 128]).await;
    }
    w.store.start_log();
    w.store.reset_meter();
    w.drain().await;
    let log = w.store.take_log();
    let cohort = |call: &&tidewheel_store::meter::Call| {
        call.method == "commit" && call.names.iter().any(|n| n.ends_with("/cohort"))
    };
    let writes = log.iter().filter(cohort).count();
    (writes, w.store.meter().write_units)
}

#[tokio::test(start_paused = true)]
async fn k_flushes_are_k_and_one_writes_whatever_the_number_of_members() {
    for members in [1, 4, 40] {
        for flushes in [1, 2, 5] {
            let (writes, units) = cohort_writes(members, flushes).await;
            assert_eq!(writes, flushes + 1, "{members} members, {flushes} flushes");
            // One unit for each flush; the last write is a transaction with the partition's head and the ready entry.
            let sleep = units - flushes as f64;
            assert!((6.0..=10.0).contains(&sleep), "{members} members, {flushes}: {units}");
        }
    }
}
