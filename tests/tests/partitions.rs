//! A stream of ten thousand partitions: made by pushes, consumed by four processes at once, each message once. What a
//! pop costs is what it finds: the same units as with a hundred.

use std::{collections::HashMap, sync::Arc};

use tidewheel_engine::*;
use tidewheel_store::{Env, Memory, meter::Units};

const START_US: i64 = 1_767_225_600_000_000;
const WORKERS: usize = 4;

/// Messages of each partition.
const EACH: usize = 1;

struct Installation {
    store: Memory,
    env: Env,
}

impl Installation {
    fn new() -> Self {
        Self { store: Memory::new(), env: Env::simulated(7, START_US, 0) }
    }

    /// A process, which remembers nothing of what others did.
    fn process(&self) -> Engine {
        Engine::new(Arc::new(self.store.clone()), self.env.clone(), Settings::default())
    }

    /// Pushes messages to so many partitions in calls of a thousand, which make them.
    async fn fill(&self, partitions: usize) {
        let producer = self.process();
        let items: Vec<_> = (0..EACH)
            .flat_map(|n| (0..partitions).map(move |p| item(&format!("p{p}"), &format!("{n}"))))
            .collect();
        for call in items.chunks(1000) {
            for pushed in producer.push(call.to_vec()).await {
                assert!(matches!(pushed, Pushed::Queued { .. }), "{pushed:?}");
            }
        }
    }

    /// Pops and acknowledges in several processes until there is nothing more; answers what each partition gave, in the
    /// order in which it came.
    async fn consume(&self) -> HashMap<String, Vec<String>> {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let engine = self.process();
                tokio::spawn(async move {
                    let mut got = Vec::new();
                    loop {
                        let popped = engine.pop(pop_of(limits::POP_PARTITIONS_MAX)).await.unwrap();
                        if popped.messages.is_empty() {
                            return got;
                        }
                        acknowledge(&engine, &popped).await;
                        for message in &popped.messages {
                            let payload = String::from_utf8_lossy(&message.record.payload);
                            got.push((message.partition.name.clone(), payload.into_owned()));
                        }
                    }
                })
            })
            .collect();
        let mut all: HashMap<String, Vec<String>> = HashMap::new();
        let mut idle = 0;
        for worker in workers {
            let got = worker.await.unwrap();
            idle += usize::from(got.is_empty());
            for (partition, payload) in got {
                all.entry(partition).or_default().push(payload);
            }
        }
        assert!(idle < WORKERS / 2, "{idle} of the workers got nothing to do");
        all
    }

    /// What a pop and its acknowledgement cost when one partition of a drained stream has something.
    async fn cost_of_finding_one(&self) -> [Units; 2] {
        let engine = self.process();
        // The process knows the stream and the group; what it knows of partitions is that they sleep.
        assert!(engine.pop(pop_of(1)).await.unwrap().messages.is_empty());
        for pushed in engine.push(vec![item("p3", "one"), item("p3", "two")]).await {
            assert!(matches!(pushed, Pushed::Queued { .. }), "{pushed:?}");
        }
        self.store.reset_meter();
        let popped = engine.pop(pop_of(1)).await.unwrap();
        let pop = self.store.meter();
        assert_eq!(popped.messages.len(), 2);
        self.store.reset_meter();
        acknowledge(&engine, &popped).await;
        [pop, self.store.meter()]
    }
}

fn item(partition: &str, payload: &str) -> PushItem {
    PushItem {
        stream: "s".into(),
        partition: partition.into(),
        payload: payload.to_owned().into(),
        ..PushItem::default()
    }
}

fn pop_of(partitions: usize) -> Pop {
    Pop {
        target: PopTarget::Stream { stream: "s".into() },
        group: Some("g".into()),
        batch: 1000,
        partitions,
        wait: None,
        lease_seconds: None,
        auto_ack: false,
        conflation: None,
        mode: SubscriptionMode::All,
    }
}

async fn acknowledge(engine: &Engine, popped: &Popped) {
    let acks = popped.messages.iter().map(|m| Ack {
        transaction_id: m.record.transaction_id.clone(),
        partition_id: m.partition.id.to_string(),
        verdict: Verdict::Completed,
        lease_id: Some(popped.lease_id.clone()),
        error: None,
    });
    for acked in engine.ack(Some("g"), acks.collect()).await.unwrap() {
        assert_eq!(acked.error, None);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_partitions_are_consumed_once_and_cost_no_more_than_a_hundred() {
    let mut costs = Vec::new();
    for partitions in [100, 10_000] {
        let installation = Installation::new();
        installation.fill(partitions).await;
        let got = installation.consume().await;
        assert_eq!(got.len(), partitions);
        for (partition, payloads) in &got {
            let expected: Vec<_> = (0..EACH).map(|n| n.to_string()).collect();
            assert_eq!(payloads, &expected, "{partition}");
        }
        costs.push(installation.cost_of_finding_one().await);
    }
    assert_eq!(
        costs[0], costs[1],
        "a pop and its acknowledgement, with 100 and with 10,000 partitions"
    );
    assert_eq!(costs[1][0].write_units, 1.0, "one partition is claimed: {:?}", costs[1]);
}
