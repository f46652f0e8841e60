//! The operations whose price is told, run in their steady state on the metered store.
//!
//! Producer, consumer and stream processor are processes of their own, as functions are, so that nobody profits from what
//! another has in memory. Rolls of the head's list, folds of positions and snapshots of state are within what is
//! measured: each row is the mean over many rounds.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{ObjectStore, memory::InMemory};
use tidewheel_engine::*;
use tidewheel_gateway::live::{
    Address, Connect, Invoke, Live, NotInvoked, Post, Posted, StopAt, Work,
};
use tidewheel_store::{Env, Memory, meter::Units};
use tidewheel_tables::Tables;

use super::{BATCHES, MESSAGE_BYTES};

const START_US: i64 = 1_767_225_600_000_000;

/// Requests of a measurement: a few rolls of the head's list, of which one comes every 24 segments.
const ROUNDS: usize = 120;

/// What something took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bill {
    /// For how many messages, cycles, frames or rows.
    pub of: u64,
    /// The store's units and requests.
    pub units: Units,
    /// Requests through the HTTP API.
    pub requests: u64,
    /// Invocations of functions.
    pub invocations: u64,
    /// Messages through the WebSocket API.
    pub socket_messages: u64,
    /// Files put into the bucket beside the store's own objects.
    pub file_puts: u64,
    /// Bytes kept for a month as items,
    pub item_bytes: u64,
    /// and as objects.
    pub object_bytes: u64,
}

/// A line of the table: a bill for each size of a request, as far as it depends on that.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is done a million times.
    pub what: &'static str,
    /// By [`BATCHES`]; one that does not depend on the size stands in the first place alone.
    pub bills: [Option<Bill>; BATCHES.len()],
}

impl Row {
    fn one(what: &'static str, bill: Bill) -> Self {
        Self { what, bills: [Some(bill), None, None, None] }
    }
}

/// Measures all of it.
///
/// # Panics
/// If an operation is refused, for then the figures would mean nothing.
pub async fn measure() -> Vec<Row> {
    let (mut push, mut consume, mut kept) = ([None; 4], [None; 4], [None; 4]);
    for (at, batch) in BATCHES.into_iter().enumerate() {
        push[at] = Some(pushes(batch).await);
        consume[at] = Some(consumed(batch).await);
        kept[at] = Some(storage(batch).await);
    }
    vec![
        Row { what: "push", bills: push },
        Row { what: "consume and acknowledge, each group", bills: consume },
        Row { what: "kept for a month in the log", bills: kept },
        Row::one("cycles of 100 messages, state and two sinks: the commit", cycles(2).await),
        Row::one("frames to sockets, 100 on a stream", fan_out(100).await),
        Row::one("rows into a table, 60,000 a minute", sealed(60_000).await),
    ]
}

struct World {
    store: Memory,
    seed: u64,
}

impl World {
    fn new() -> Self {
        Self { store: Memory::new(), seed: 0 }
    }

    /// A process that remembers nothing of the others.
    fn process(&mut self) -> Engine {
        self.seed += 1;
        let env = Env::simulated(self.seed, START_US, 0);
        Engine::new(Arc::new(self.store.clone()), env, Settings::default())
    }
}

/// A message of [`MESSAGE_BYTES`] that compresses to a quarter: half of a quarter's entropy is noise, the rest repeats.
fn message(n: u64) -> Bytes {
    let mut chance = fastrand::Rng::with_seed(n);
    // An alphanumeric character carries about six bits, so that these come to a little less than 250 bytes.
    let noise: String = (0..300).map(|_| chance.alphanumeric()).collect();
    let mut text = format!("{{\"reading\":{n},\"noise\":\"{noise}\",\"pad\":\"");
    let pad = MESSAGE_BYTES - text.len() - 2;
    text.extend(
        std::iter::repeat_n("all quiet. ", pad.div_ceil(11)).collect::<String>().chars().take(pad),
    );
    text.push_str("\"}");
    text.into()
}

fn items(stream: &str, partition: &str, batch: usize, round: usize) -> Vec<PushItem> {
    (0..batch)
        .map(|n| PushItem {
            stream: stream.into(),
            partition: partition.into(),
            payload: message((round * batch + n) as u64),
            ..PushItem::default()
        })
        .collect()
}

async fn push(engine: &Engine, items: Vec<PushItem>) {
    for pushed in engine.push(items).await {
        assert!(matches!(pushed, Pushed::Queued { .. }), "{pushed:?}");
    }
}

fn pop(group: &str, batch: usize) -> Pop {
    Pop {
        target: PopTarget::Stream { stream: "s".into() },
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

/// Rounds that are not too many rows for one measurement.
fn rounds(batch: usize) -> usize {
    ROUNDS.min(30_000 / batch).max(48)
}

async fn pushes(batch: usize) -> Bill {
    let mut world = World::new();
    let producer = world.process();
    push(&producer, items("s", "p", batch, 0)).await;
    world.store.reset_meter();
    for round in 1..=rounds(batch) {
        push(&producer, items("s", "p", batch, round)).await;
    }
    let requests = rounds(batch) as u64;
    Bill {
        of: requests * batch as u64,
        units: world.store.meter(),
        requests,
        invocations: requests,
        ..Bill::default()
    }
}

async fn consumed(batch: usize) -> Bill {
    let mut world = World::new();
    let (producer, consumer) = (world.process(), world.process());
    let rounds = rounds(batch);
    // Always one batch ahead, so that the group stays awake as it does on a busy stream.
    push(&producer, items("s", "p", batch, 0)).await;
    let mut units = Units::default();
    for round in 1..=rounds {
        push(&producer, items("s", "p", batch, round)).await;
        world.store.reset_meter();
        let popped = consumer.pop(pop("g", batch)).await.expect("a batch");
        assert_eq!(popped.messages.len(), batch);
        let acks = popped.messages.iter().map(|m| Ack {
            transaction_id: m.record.transaction_id.clone(),
            partition_id: m.partition.id.to_string(),
            verdict: Verdict::Completed,
            lease_id: Some(popped.lease_id.clone()),
            error: None,
        });
        for acked in consumer.ack(Some("g"), acks.collect()).await.expect("acknowledged") {
            assert_eq!(acked.error, None);
        }
        units += world.store.meter();
    }
    let requests = 2 * rounds as u64;
    Bill { of: (rounds * batch) as u64, units, requests, invocations: requests, ..Bill::default() }
}

async fn storage(batch: usize) -> Bill {
    let mut world = World::new();
    let producer = world.process();
    for round in 0..rounds(batch) {
        push(&producer, items("s", "p", batch, round)).await;
    }
    let inline = tidewheel_store::limits::INLINE_BLOB_BYTES;
    let (small, large): (Vec<usize>, Vec<usize>) =
        world.store.blobs().into_values().partition(|&bytes| bytes <= inline);
    let heads = world.store.items();
    let items: usize =
        heads.iter().map(|(key, item)| key.pk.len() + key.sk.len() + item.size()).sum();
    Bill {
        of: (rounds(batch) * batch) as u64,
        // The cloud adds a hundred bytes to each item.
        item_bytes: (items + small.iter().sum::<usize>() + 100 * (heads.len() + small.len()))
            as u64,
        object_bytes: large.iter().sum::<usize>() as u64,
        ..Bill::default()
    }
}

async fn cycles(sinks: usize) -> Bill {
    const BATCH: usize = 100;
    let mut world = World::new();
    let (producer, processor) = (world.process(), world.process());
    let registered = processor.register_query("q", "s", None, "h", false).await;
    let Ok(Registered::Fresh(query)) = registered else { panic!("{registered:?}") };
    let mut units = Units::default();
    push(&producer, items("s", "p", BATCH, 0)).await;
    for round in 1..=ROUNDS {
        push(&producer, items("s", "p", BATCH, round)).await;
        let popped = processor.pop(pop("streams.q", BATCH)).await.expect("a batch");
        let upsert = |n: usize| StateOp::Upsert {
            key: format!("window {}", (round + n) % 40),
            value: format!("{{\"count\":{round},\"sum\":{n}}}").into(),
        };
        let out = |n: usize| PushItem {
            stream: "out".into(),
            partition: format!("o{n}"),
            payload: format!("{{\"window\":{round},\"total\":{n}}}").into(),
            ..PushItem::default()
        };
        let cycle = Cycle {
            query_id: query.id,
            partition_id: popped.messages[0].partition.id,
            group: None,
            state_ops: (0..4).map(upsert).collect(),
            push_items: (0..sinks).map(out).collect(),
            ack: Some(CycleAck {
                lease_id: popped.lease_id.clone(),
                completed: true,
                count: BATCH as u64,
            }),
            release_lease: true,
        };
        world.store.reset_meter();
        processor.cycle(cycle).await.expect("a cycle");
        // The first makes the sinks.
        if round > 1 {
            units += world.store.meter();
        }
    }
    let requests = ROUNDS as u64 - 1;
    Bill { of: requests, units, requests, invocations: requests, ..Bill::default() }
}

/// Sockets that take everything, and invocations that are asked for.
#[derive(Clone, Debug, Default)]
struct Outside(Arc<Mutex<(u64, Vec<Work>)>>);

impl Outside {
    fn with<T>(&self, see: impl FnOnce(&mut (u64, Vec<Work>)) -> T) -> T {
        see(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

#[async_trait]
impl Post for Outside {
    async fn post(&self, _: &Address, _: Bytes) -> Posted {
        self.with(|(posts, _)| *posts += 1);
        Posted::Delivered
    }

    async fn close(&self, _: &Address) -> bool {
        true
    }
}

#[async_trait]
impl Invoke for Outside {
    async fn invoke(&self, work: &Work) -> Result<(), NotInvoked> {
        self.with(|(_, asked)| asked.push(work.clone()));
        Ok(())
    }
}

#[async_trait]
impl Doorbell for Outside {
    async fn ring(&self, partition: &PartitionId) -> Result<(), NotRung> {
        self.with(|(_, asked)| asked.push(Work::deliver(partition)));
        Ok(())
    }
}

/// One row at a time to a stream that is idle before and after: the dearest way to deliver.
async fn fan_out(sockets: usize) -> Bill {
    let world = World::new();
    let outside = Outside::default();
    let env = Env::simulated(1, START_US, 0);
    let settings = Settings { doorbell: Some(Arc::new(outside.clone())), ..Settings::default() };
    let engine = Engine::new(Arc::new(world.store.clone()), env.clone(), settings);
    let live = Live::new(engine.clone(), Arc::new(outside.clone()), Arc::new(outside.clone()));
    let work = async || {
        let mut invocations = 0;
        while let Some(work) = outside.with(|(_, asked)| asked.pop()) {
            let stop = StopAt(env.now_us() + 50_000_000);
            live.work(&work, stop).await.expect("delivered");
            invocations += 1;
        }
        invocations
    };
    push(&engine, items("s", DEFAULT_PARTITION, 1, 0)).await;
    for n in 0..sockets {
        let request = Connect {
            connection: format!("c{n}"),
            endpoint: None,
            presented: None,
            query: vec![("stream".to_owned(), "s".to_owned())],
        };
        live.connect(request).await.expect("connected");
        work().await;
    }
    outside.with(|(posts, _)| *posts = 0);
    let (mut units, mut invocations) = (Units::default(), 0);
    for round in 1..=ROUNDS {
        world.store.reset_meter();
        push(&engine, items("s", DEFAULT_PARTITION, 1, round)).await;
        // The push itself has a row of its own.
        let pushed = Units { write_units: 2.0, ..Units::default() };
        invocations += work().await;
        units += world.store.meter() - pushed;
    }
    let frames = outside.with(|(posts, _)| *posts);
    assert_eq!(frames, (ROUNDS * sockets) as u64, "each row to each socket");
    Bill { of: frames, units, invocations, socket_messages: frames, ..Bill::default() }
}

async fn sealed(rows: usize) -> Bill {
    const SEALS: usize = 4;
    let mut world = World::new();
    let (producer, sealer) = (world.process(), world.process());
    let objects = Arc::new(InMemory::new());
    let root = object_store::path::Path::default();
    let tables = Tables::new(&sealer, objects.clone(), root, "mem://t", Default::default());
    let files = async || {
        let all: Vec<_> = objects.list(None).try_collect().await.expect("a listing");
        all.len() as u64
    };
    let (mut units, mut before) = (Units::default(), 0);
    for seal in 0..=SEALS {
        for round in 0..rows / 1000 {
            push(&producer, items("s", "p", 1000, seal * rows / 1000 + round)).await;
        }
        if seal == 0 {
            tables.seal("s").await.expect("sealed");
            before = files().await;
        }
        world.store.reset_meter();
        let sealed = tables.seal("s").await.expect("sealed");
        if seal > 0 {
            assert_eq!(sealed.rows, rows as u64);
            units += world.store.meter();
        }
    }
    // The hint is put again by each.
    let file_puts = files().await - before + SEALS as u64;
    Bill {
        of: (rows * SEALS) as u64,
        units,
        invocations: SEALS as u64,
        file_puts,
        ..Bill::default()
    }
}
