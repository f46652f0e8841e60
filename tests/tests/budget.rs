//! What operations cost in the cloud's units, against the budget of the design: measured on the metered store, in the
//! steady state, and asserted. The units are exact; a change that costs more fails here before it costs anybody money.

use std::sync::Arc;

use object_store::memory::InMemory;
use tidewheel_engine::*;
use tidewheel_store::{Env, Memory, meter::Units};
use tidewheel_tables::Tables;

const START_US: i64 = 1_767_225_600_000_000;

struct Fixture {
    store: Memory,
    engine: Engine,
}

impl Fixture {
    fn new() -> Self {
        let store = Memory::new();
        let env = Env::simulated(7, START_US, 0);
        let engine = Engine::new(Arc::new(store.clone()), env, Settings::default());
        Self { store, engine }
    }

    /// What an operation costs.
    async fn cost<T>(&self, operation: impl Future<Output = T>) -> (T, Units) {
        self.store.reset_meter();
        let answer = operation.await;
        (answer, self.store.meter())
    }

    async fn push(&self, stream: &str, partition: &str, records: usize, bytes: usize) {
        let items = (0..records).map(|n| item(stream, partition, n, bytes)).collect();
        for pushed in self.engine.push(items).await {
            assert!(matches!(pushed, Pushed::Queued { .. }), "{pushed:?}");
        }
    }

    async fn pop(&self, stream: &str, group: &str, batch: usize) -> Popped {
        self.engine.pop(pop_of(stream, group, batch)).await.unwrap()
    }

    async fn ack(&self, group: &str, popped: &Popped) {
        let acks = popped.messages.iter().map(|m| Ack {
            transaction_id: m.record.transaction_id.clone(),
            partition_id: m.partition.id.to_string(),
            verdict: Verdict::Completed,
            lease_id: Some(popped.lease_id.clone()),
            error: None,
        });
        for acked in self.engine.ack(Some(group), acks.collect()).await.unwrap() {
            assert_eq!(acked.error, None);
        }
    }

    /// A group that has consumed everything and sleeps.
    async fn drain(&self, stream: &str, group: &str) {
        loop {
            let popped = self.pop(stream, group, 1000).await;
            if popped.messages.is_empty() {
                return;
            }
            self.ack(group, &popped).await;
        }
    }
}

fn pop_of(stream: &str, group: &str, batch: usize) -> Pop {
    Pop {
        target: PopTarget::Stream { stream: stream.into() },
        group: Some(group.into()),
        batch,
        partitions: 1,
        wait: None,
        lease_seconds: None,
        auto_ack: false,
        conflation: None,
        mode: SubscriptionMode::All,
    }
}

/// A record whose payload does not compress below a quarter.
fn item(stream: &str, partition: &str, n: usize, bytes: usize) -> PushItem {
    let mut chance = fastrand::Rng::with_seed(n as u64);
    let noise: String = (0..bytes).map(|_| chance.alphanumeric()).collect();
    PushItem {
        stream: stream.into(),
        partition: partition.into(),
        payload: format!("{{\"n\":{n},\"noise\":\"{noise}\"}}").into(),
        ..PushItem::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_costs_its_blob_and_one_write_of_the_head() {
    let f = Fixture::new();
    f.push("s", "p", 1, 10).await;
    for (records, bytes) in [(1, 100), (10, 100), (50, 100)] {
        let (_, cost) = f.cost(f.push("s", "p", records, bytes)).await;
        let packed = (records * (bytes + 30)) as f64 / 1024.0;
        assert!(cost.write_units <= packed.ceil() + 2.0, "{records} records: {cost:?}");
        assert_eq!((cost.read_units, cost.blob_puts), (0.0, 0), "{records} records: {cost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_push_costs_one_object_and_one_write_of_the_head() {
    let f = Fixture::new();
    f.push("s", "p", 1, 10).await;
    for records in [100, 1000] {
        let (_, cost) = f.cost(f.push("s", "p", records, 400)).await;
        assert_eq!((cost.blob_puts, cost.read_units), (1, 0.0), "{records} records: {cost:?}");
        assert!(cost.write_units <= 2.0, "{records} records: {cost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_pays_for_the_groups_that_it_wakes_and_only_then() {
    for groups in [1usize, 3, 8] {
        let f = Fixture::new();
        f.push("s", "p", 1, 10).await;
        for group in 0..groups {
            f.drain("s", &format!("g{group}")).await;
        }
        // The first push after they fell asleep learns of it from the head that this process remembers.
        let (_, cost) = f.cost(f.push("s", "p", 1, 10)).await;
        let bound = 1.0 + 2.0 * (1.0 + groups as f64);
        assert!(cost.write_units <= bound, "{groups} groups: {cost:?}");
        assert_eq!(cost.read_units, 0.0, "{groups} groups: {cost:?}");
        let (_, cost) = f.cost(f.push("s", "p", 1, 10)).await;
        assert!(cost.write_units <= 3.0, "{groups} groups, awake: {cost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pop_costs_what_it_finds_however_many_partitions_there_are() {
    let mut reads = Vec::new();
    for partitions in [10, 300] {
        let f = Fixture::new();
        for p in 0..partitions {
            f.push("s", &format!("p{p}"), 1, 10).await;
        }
        f.drain("s", "g").await;
        f.push("s", "p3", 5, 10).await;
        let (popped, cost) = f.cost(f.pop("s", "g", 10)).await;
        assert_eq!(popped.messages.len(), 5);
        assert_eq!(cost.write_units, 1.0, "one partition is claimed: {cost:?}");
        reads.push(cost.read_units);
        let (_, cost) = f.cost(f.ack("g", &popped)).await;
        assert_eq!((cost.write_units, cost.read_units), (1.0, 0.0), "an ack: {cost:?}");
    }
    assert!(reads[1] <= reads[0], "{reads:?} for 10 and 300 partitions");
    assert!(reads[0] <= 6.0, "{reads:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cycle_costs_its_blobs_and_one_head_for_each_part() {
    for sinks in [1usize, 4, 16] {
        let f = Fixture::new();
        let registered = f.engine.register_query("q", "s", None, "h", false).await.unwrap();
        let Registered::Fresh(query) = registered else { panic!() };
        let mut costs = Vec::new();
        for round in 0..4u32 {
            f.push("s", "p", 20, 10).await;
            let popped = f.pop("s", "streams.q", 20).await;
            let cycle = Cycle {
                query_id: query.id,
                partition_id: popped.messages[0].partition.id,
                group: None,
                state_ops: (0..100)
                    .map(|n| StateOp::Upsert {
                        key: format!("k{n}"),
                        value: format!("{round}").into(),
                    })
                    .collect(),
                push_items: (0..sinks * 5)
                    .map(|n| item("out", &format!("o{}", n % sinks), n, 10))
                    .collect(),
                ack: Some(CycleAck {
                    lease_id: popped.lease_id.clone(),
                    completed: true,
                    count: 20,
                }),
                release_lease: true,
            };
            let (cycled, cost) = f.cost(f.engine.cycle(cycle)).await;
            cycled.unwrap();
            costs.push(cost);
        }
        // The first one makes the sinks.
        for cost in &costs[1..] {
            let blobs = 1.0 + sinks as f64;
            let heads = 2.0 * (2.0 + sinks as f64);
            assert!(cost.write_units <= blobs + heads, "{sinks} sinks: {cost:?}");
            assert!(cost.read_units <= 1.0, "{sinks} sinks, the query's record at most: {cost:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_seal_writes_one_head_and_reads_what_is_new_once() {
    let f = Fixture::new();
    let root = object_store::path::Path::default();
    let objects = Arc::new(InMemory::new());
    let tables = Tables::new(&f.engine, objects, root, "mem://t", Default::default());
    let mut writes = Vec::new();
    for partitions in [2usize, 20] {
        for p in 0..partitions {
            f.push("s", &format!("p{p}"), 30, 50).await;
        }
        tables.seal("s").await.unwrap();
        tables.seal("s").await.unwrap();
        // All asleep. One record each wakes them, and one seal takes all of it.
        for p in 0..partitions {
            f.push("s", &format!("p{p}"), 1, 50).await;
        }
        let (sealed, cost) = f.cost(tables.seal("s")).await;
        assert_eq!(sealed.unwrap().rows, partitions as u64);
        writes.push(cost.write_units);
        assert!(cost.write_units <= 4.0, "{partitions} partitions, one head: {cost:?}");
        // A head for each partition, twice looked at; segments are remembered by the process that wrote them.
        let heads = 3.0 * partitions as f64 + 8.0;
        assert!(cost.read_units <= heads, "{partitions} partitions: {cost:?}");
    }
}
