//! Pushes, joins, leaves, deliveries, twice and at once, under faults of the store and of posts, by a seed.

use std::time::Duration;

use serde_json::json;
use tidewheel_gateway::live::{Posted, Work};
use tidewheel_store::{Env, Faulty, faulty::Plan};
use tokio::task::JoinSet;

use crate::world::{Act, Client, Kind, World, settle};

/// What a storm does.
struct Storm {
    steps: usize,
    plan: fn() -> Plan,
    posts: bool,
    /// Nobody sweeps, and every ring is heard: what is pushed must arrive by the doorbell alone.
    doorbell_alone: bool,
}

async fn storm(seed: u64, storm: Storm) {
    let w = World::new(seed);
    w.push(&[json!("first")]).await;
    if storm.posts {
        let env = Env::simulated(seed ^ 0xfeed, 0, 0);
        w.sockets.script(move |_, _| match env.below(40) {
            0 => Act::LoseAnswer,
            1 => Act::Answer(Posted::Unknown),
            2 => Act::Answer(Posted::Slow),
            3 => Act::Late(Duration::from_secs(env.below(60))),
            4..=7 => Act::Answer(Posted::Throttled),
            8..=20 => Act::Late(Duration::from_millis(env.below(80))),
            _ => Act::Deliver,
        });
    }
    let mut clients: Vec<Client> = Vec::new();
    let mut running = JoinSet::new();
    let mut processes: Vec<Faulty> = Vec::new();
    for _ in 0..storm.steps {
        match w.chance(12) {
            0..=4 => {
                let rows = vec![json!({"n": 1}); 1 + w.chance(5) as usize];
                w.push(&rows).await;
            }
            5 | 6 if clients.len() < 8 => {
                let kind = if w.chance(2) == 0 { Kind::Native } else { Kind::Streamcast };
                let tail = w.tail().await;
                let from = if w.chance(3) == 0 { w.chance(tail + 1) } else { tail };
                let mut client = Client::new(&format!("c{}", clients.len()), kind, from);
                client.connect(&w).await;
                clients.push(client);
            }
            7 if clients.len() > 3 => {
                let at = w.chance(clients.len() as u64) as usize;
                if !clients[at].has_left() {
                    clients[at].leave(&w).await;
                }
            }
            8 if !storm.doorbell_alone => {
                for client in clients.iter_mut().filter(|c| !c.has_left()) {
                    client.read(&w);
                    if !client.is_open(&w) {
                        client.connect(&w).await;
                    }
                }
            }
            9 if !storm.doorbell_alone => {
                w.pass(w.chance(30)).await;
                let (_, live) = w.process();
                let _ = live.work(&Work::Sweep {}, w.stop()).await;
            }
            _ => w.env.sleep(Duration::from_millis(w.chance(60))).await,
        }
        while let Some(work) = w.take_asked() {
            for _ in 0..1 + w.chance(2) {
                let (faulty, live) = w.faulty((storm.plan)());
                processes.push(faulty);
                let (work, stop) = (work.clone(), w.stop());
                // A function is killed when its time is over; or it is frozen, and comes back.
                let killed_after = Duration::from_secs(if w.chance(4) == 0 { 600 } else { 60 });
                running.spawn(async move {
                    let _ = tokio::time::timeout(killed_after, live.work(&work, stop)).await;
                });
            }
        }
    }
    if storm.doorbell_alone {
        loop {
            while running.join_next().await.is_some() {}
            let Some(work) = w.take_asked() else { break };
            let (_, live) = w.faulty((storm.plan)());
            let stop = w.stop();
            running.spawn(async move { live.work(&work, stop).await.unwrap() });
        }
        let tail = w.tail().await;
        for client in clients.iter_mut().filter(|c| !c.has_left()) {
            client.read(&w);
            assert_eq!(client.next, tail, "seed {seed}: {}", client.connection());
        }
        assert!(w.sockets.most_in_flight() <= 1, "seed {seed}");
        return;
    }
    settle(&w, &mut clients).await;
    while running.join_next().await.is_some() {}
    for process in &processes {
        process.settle().await;
    }
    w.push(&[json!("last")]).await;
    settle(&w, &mut clients).await;
    for client in clients.iter_mut().filter(|c| !c.has_left()) {
        client.leave(&w).await;
    }
    w.push(&[json!("nobody")]).await;
    w.drain().await;
    w.recover().await;
    assert_eq!(w.items("wp#"), [] as [String; 0], "seed {seed}: no cohort without members");
    assert_eq!(w.items("r#"), [] as [String; 0], "seed {seed}: nobody is awake");
}

#[tokio::test(start_paused = true)]
async fn the_doorbell_alone_brings_every_row_whatever_the_interleaving() {
    for seed in 0..150 {
        storm(seed, Storm { steps: 60, plan: Plan::calm, posts: false, doorbell_alone: true })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn posts_that_fail_cost_nobody_a_row() {
    for seed in 1000..1060 {
        storm(seed, Storm { steps: 80, plan: Plan::calm, posts: true, doorbell_alone: false })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_breaks_costs_nobody_a_row() {
    for seed in 2000..2060 {
        storm(seed, Storm { steps: 80, plan: Plan::stormy, posts: true, doorbell_alone: false })
            .await;
    }
}
