//! Crash enumeration: for each operation the process dies in its k-th call of the store, for every k, with the call
//! not made, half made, and made. Then a process that remembers nothing finishes, and everything must be as if nothing
//! had happened.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow_array::{cast::AsArray, types::Int64Type};
use object_store::memory::InMemory;
use tidewheel_engine::*;
use tidewheel_store::{
    Env, Faulty, Memory, Store,
    faulty::{Crash, Plan},
};
use tidewheel_tables::Tables;

const START_US: i64 = 1_767_225_600_000_000;

/// A store at one moment, and the clock.
struct World {
    memory: Memory,
    objects: Arc<InMemory>,
    clock: Env,
    seed: u64,
}

impl World {
    fn new() -> Self {
        let clock = Env::simulated(0, START_US, 0);
        Self { memory: Memory::new(), objects: Arc::new(InMemory::new()), clock, seed: 1 }
    }

    /// The same at this moment; what happens to it does not happen to this one.
    fn fork(&self, seed: u64) -> Self {
        let (memory, objects) = (self.memory.fork(), Arc::new(self.objects.fork()));
        Self { memory, objects, clock: self.clock.clone(), seed }
    }

    /// A process that remembers nothing, on a store that may break.
    fn process_on(&mut self, store: Arc<dyn Store>) -> Process {
        self.seed += 1;
        let engine = Engine::new(
            store,
            Env::simulated(self.seed, self.clock.now_us(), 0),
            Settings::default(),
        );
        let root = object_store::path::Path::default();
        let settings = tidewheel_tables::Settings::default();
        let tables = Tables::new(&engine, self.objects.clone(), root, "mem://t", settings);
        Process { engine, tables }
    }

    fn process(&mut self) -> Process {
        self.process_on(Arc::new(self.memory.clone()))
    }
}

#[derive(Clone)]
struct Process {
    engine: Engine,
    tables: Tables,
}

impl Process {
    /// Everything in a partition; none if there is no such partition.
    async fn payloads(&self, stream: &str, partition: &str) -> Vec<String> {
        let Some(stream) = self.engine.stream(stream).await.unwrap() else { return Vec::new() };
        let id = PartitionId::of(&stream.id, partition);
        let read = match self.engine.read(&id, 0, 100_000, usize::MAX / 2).await {
            Ok(read) => read,
            Err(Error::PartitionNotFound) => return Vec::new(),
            Err(e) => panic!("{e}"),
        };
        assert!(read.records.iter().map(|r| r.offset).eq(read.extent.floor..read.extent.tail));
        read.records.iter().map(|r| String::from_utf8_lossy(&r.payload).into_owned()).collect()
    }

    async fn pop(&self, stream: &str, group: &str, batch: usize) -> Popped {
        let target = PopTarget::Stream { stream: stream.into() };
        let mode = SubscriptionMode::All;
        let pop = Pop {
            target,
            group: Some(group.into()),
            batch,
            partitions: 1,
            wait: None,
            lease_seconds: Some(10),
            auto_ack: false,
            conflation: None,
            mode,
        };
        self.engine.pop(pop).await.unwrap()
    }

    /// Pops and acknowledges until nothing comes; answers the payloads in the order of their coming.
    async fn drain(&self, stream: &str, group: &str) -> Vec<String> {
        let mut got = Vec::new();
        loop {
            let popped = self.pop(stream, group, 100).await;
            if popped.messages.is_empty() {
                return got;
            }
            let acks =
                popped.messages.iter().map(|m| ack(m, Verdict::Completed, &popped)).collect();
            for acked in self.engine.ack(Some(group), acks).await.unwrap() {
                assert_eq!(acked.error, None);
            }
            got.extend(popped.messages.iter().map(payload));
        }
    }

    async fn rows(&self, stream: &str) -> BTreeMap<(String, i64), u32> {
        let scan = self.tables.scan(stream).await.unwrap();
        let mut rows = BTreeMap::new();
        for batch in &scan.batches {
            let partitions = batch.column_by_name("partition").unwrap().as_string::<i32>();
            let offsets = batch.column_by_name("offset").unwrap().as_primitive::<Int64Type>();
            for at in 0..batch.num_rows() {
                let row = (partitions.value(at).to_owned(), offsets.value(at));
                *rows.entry(row).or_default() += 1;
            }
        }
        rows
    }
}

fn payload(message: &Message) -> String {
    String::from_utf8_lossy(&message.record.payload).into_owned()
}

fn ack(message: &Message, verdict: Verdict, popped: &Popped) -> Ack {
    Ack {
        transaction_id: message.record.transaction_id.clone(),
        partition_id: message.partition.id.to_string(),
        verdict,
        lease_id: Some(popped.lease_id.clone()),
        error: Some("no".into()),
    }
}

fn item(stream: &str, partition: &str, payload: impl ToString, id: bool) -> PushItem {
    let payload = payload.to_string();
    PushItem {
        stream: stream.into(),
        partition: partition.into(),
        transaction_id: id.then(|| format!("id-{payload}")),
        payload: payload.into(),
        ..PushItem::default()
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// Runs `operate` in a process that dies in every call, one after another, then lets `finish` check. `finish` is told
/// what the operation answered, if it did. Answers in how many calls it could die.
async fn enumerate<T, O, F>(
    start: &World,
    operate: impl Fn(Process) -> O,
    finish: impl Fn(Process, World, Option<T>, String) -> F,
) -> u64
where
    O: Future<Output = T>,
    F: Future<Output = ()>,
{
    let mut most = 0;
    for crash in Crash::ALL {
        for call in 1.. {
            let what = format!("died {crash:?} in call {call}");
            let mut world = start.fork(call * 100);
            let env = Env::simulated(7, START_US, 0);
            let faulty = Faulty::new(Arc::new(world.memory.clone()), Plan::none(), env);
            faulty.crash_at(call, crash);
            let process = world.process_on(Arc::new(faulty.clone()));
            // The dead do not answer; the clock moves on when nothing else can happen.
            let while_ids_count = Duration::from_secs(300);
            let answer = tokio::time::timeout(while_ids_count, operate(process)).await.ok();
            let ended = faulty.calls() < call;
            assert!(!ended || answer.is_some(), "{what}: it hangs");
            let fresh = world.process();
            finish(fresh, world, answer, what).await;
            if ended {
                break;
            }
            most = most.max(call);
        }
    }
    most
}

/// A group that has drained `p` and sleeps there.
async fn with_sleeper(world: &mut World, records: u32) {
    let process = world.process();
    for n in 0..records {
        process.engine.push(vec![item("s", "p", n, true)]).await;
    }
    process.drain("s", "g").await;
}

/// A push of these records dies; the same push is made again, and the group gets all of it once.
async fn push_dies(before: u32, batch: u32, calls: u64) {
    let mut start = World::new();
    if before > 0 {
        with_sleeper(&mut start, before).await;
    }
    let push = move |engine: Engine| async move {
        engine.push((before..before + batch).map(|n| item("s", "p", n, true)).collect()).await
    };
    let died = enumerate(
        &start,
        |process| push(process.engine),
        |fresh, _, answer, what| async move {
            let again = push(fresh.engine.clone()).await;
            let offset = |pushed: &Pushed| match pushed {
                Pushed::Queued { offset, .. } => *offset,
                Pushed::Duplicate { offset: Some(offset), .. } => *offset,
                other => panic!("{what}: {other:?}"),
            };
            let expected: Vec<u64> = (u64::from(before)..u64::from(before + batch)).collect();
            for pushed in answer.iter().chain([&again]) {
                assert_eq!(pushed.iter().map(offset).collect::<Vec<_>>(), expected, "{what}");
            }
            let all = numbers(0..before + batch);
            assert_eq!(fresh.payloads("s", "p").await, all, "{what}");
            let got = fresh.drain("s", "g").await;
            assert_eq!(got, all[before as usize..], "{what}");
        },
    )
    .await;
    assert!(died >= calls, "it could die in {died} calls only");
}

#[tokio::test(start_paused = true)]
async fn a_first_push_may_die_anywhere() {
    push_dies(0, 3, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_push_that_wakes_a_group_may_die_anywhere() {
    push_dies(3, 3, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_push_of_more_ids_than_the_head_takes_may_die_anywhere() {
    push_dies(3, 100, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_push_that_rolls_the_list_may_die_anywhere() {
    push_dies(limits::HEAD_SEGMENTS as u32, 2, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_push_without_ids_is_there_whole_and_once_or_not_at_all() {
    let mut start = World::new();
    with_sleeper(&mut start, 2).await;
    enumerate(
        &start,
        |process| async move {
            process.engine.push((2..6).map(|n| item("s", "p", n, false)).collect()).await
        },
        |fresh, _, answer, what| async move {
            let there = fresh.payloads("s", "p").await;
            let whole = there == numbers(0..6);
            assert!(whole || (answer.is_none() && there == numbers(0..2)), "{what}: {there:?}");
            assert_eq!(fresh.drain("s", "g").await, there[2..], "{what}");
        },
    )
    .await;
}

/// Consuming dies anywhere; the next consumer gets what was not acknowledged, in order, and nothing is left out.
#[tokio::test(start_paused = true)]
async fn a_pop_and_its_ack_may_die_anywhere() {
    let mut start = World::new();
    start.process().engine.push((0..6).map(|n| item("s", "p", n, true)).collect()).await;
    let died = enumerate(
        &start,
        |process| async move {
            let popped = process.pop("s", "g", 4).await;
            let acks =
                popped.messages.iter().map(|m| ack(m, Verdict::Completed, &popped)).collect();
            process.engine.ack(Some("g"), acks).await.unwrap()
        },
        |fresh, _, answer, what| async move {
            // Until the lease of the dead has lapsed.
            tokio::time::sleep(Duration::from_secs(11)).await;
            let got = fresh.drain("s", "g").await;
            let (all, rest) = (numbers(0..6), numbers(4..6));
            assert!(got == rest || (answer.is_none() && got == all), "{what}: {got:?}");
        },
    )
    .await;
    assert!(died > 8, "it could die in {died} calls only");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_filed_once_wherever_it_dies() {
    let mut start = World::new();
    start.process().engine.push((0..3).map(|n| item("s", "p", n, true)).collect()).await;
    let settle = |process: Process| async move {
        loop {
            let popped = process.pop("s", "g", 1).await;
            let Some(message) = popped.messages.first() else { return };
            let poison = payload(message) == "1";
            let verdict = if poison { Verdict::DeadLetter } else { Verdict::Completed };
            process.engine.ack(Some("g"), vec![ack(message, verdict, &popped)]).await.unwrap();
        }
    };
    enumerate(&start, settle, |fresh, _, _, what| async move {
        tokio::time::sleep(Duration::from_secs(11)).await;
        settle(fresh.clone()).await;
        let letters = fresh.engine.dead_letters("s", Some("g"), 0, 10).await.unwrap();
        let payloads: Vec<_> = letters.iter().map(|l| &l.record.payload[..]).collect();
        assert_eq!(payloads, [b"1"], "{what}");
    })
    .await;
}

const QUERY: &str = "q";

/// Pops a batch and commits it as a cycle: the state counts, and each record goes to two sinks.
async fn one_cycle(process: Process) {
    let group = format!("streams.{QUERY}");
    let registered = process.engine.register_query(QUERY, "s", None, "h", false).await.unwrap();
    let (Registered::Fresh(query) | Registered::Same(query)) = registered else { panic!() };
    let popped = process.pop("s", &group, 4).await;
    let Some(first) = popped.messages.first() else { return };
    let partition = first.partition.id;
    let rows = process.engine.state(&query.id, &partition, &StateFilter::default()).await.unwrap();
    let before: usize =
        rows.first().map_or(0, |r| String::from_utf8_lossy(&r.value).parse().unwrap());
    let count = before + popped.messages.len();
    let sinks = popped
        .messages
        .iter()
        .flat_map(|m| ["a", "b"].map(|partition| item("out", partition, payload(m), false)));
    let cycle = Cycle {
        query_id: query.id,
        partition_id: partition,
        group: None,
        state_ops: vec![StateOp::Upsert { key: "n".into(), value: count.to_string().into() }],
        push_items: sinks.collect(),
        ack: Some(CycleAck {
            lease_id: popped.lease_id.clone(),
            completed: true,
            count: popped.messages.len() as u64,
        }),
        release_lease: true,
    };
    process.engine.cycle(cycle).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_cycle_may_die_anywhere() {
    let mut start = World::new();
    start.process().engine.push((0..4).map(|n| item("s", "p", n, true)).collect()).await;
    let died = enumerate(&start, one_cycle, |fresh, _, _, what| async move {
        tokio::time::sleep(Duration::from_secs(11)).await;
        for _ in 0..2 {
            one_cycle(fresh.clone()).await;
        }
        let id = Uuid::derived(&[b"query", QUERY.as_bytes()]);
        let stream = fresh.engine.stream("s").await.unwrap().unwrap();
        let partition = PartitionId::of(&stream.id, "p");
        let rows = fresh.engine.state(&id, &partition, &StateFilter::default()).await.unwrap();
        assert_eq!(rows.len(), 1, "{what}");
        assert_eq!(&rows[0].value[..], b"4", "{what}: each input is counted once");
        for sink in ["a", "b"] {
            assert_eq!(fresh.payloads("out", sink).await, numbers(0..4), "{what}: sink {sink}");
        }
    })
    .await;
    assert!(died > 15, "it could die in {died} calls only");
}

async fn one_transaction(process: Process) {
    let popped = process.pop("s", "g", 4).await;
    if popped.messages.is_empty() {
        return;
    }
    let mut ops: Vec<TransactionOp> = popped
        .messages
        .iter()
        .map(|m| TransactionOp::Ack {
            group: Some("g".into()),
            ack: ack(m, Verdict::Completed, &popped),
        })
        .collect();
    let items = popped.messages.iter().map(|m| item("out", "x", payload(m), false)).collect();
    ops.push(TransactionOp::Push(items));
    process.engine.transact(ops, vec![popped.lease_id.clone()]).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_transaction_may_die_anywhere() {
    let mut start = World::new();
    start.process().engine.push((0..4).map(|n| item("s", "p", n, true)).collect()).await;
    let died = enumerate(&start, one_transaction, |fresh, _, _, what| async move {
        tokio::time::sleep(Duration::from_secs(11)).await;
        for _ in 0..2 {
            one_transaction(fresh.clone()).await;
        }
        assert_eq!(fresh.payloads("out", "x").await, numbers(0..4), "{what}");
    })
    .await;
    assert!(died > 10, "it could die in {died} calls only");
}

#[tokio::test(start_paused = true)]
async fn a_seal_may_die_anywhere() {
    let mut start = World::new();
    let process = start.process();
    for partition in ["p", "q"] {
        process.engine.push((0..5).map(|n| item("s", partition, n, true)).collect()).await;
    }
    process.tables.seal("s").await.unwrap();
    process.engine.push((5..9).map(|n| item("s", "p", n, true)).collect()).await;
    process.engine.push((0..3).map(|n| item("s", "r", n, true)).collect()).await;
    let died = enumerate(
        &start,
        |process| async move { process.tables.seal("s").await.unwrap() },
        |fresh, _, _, what| async move {
            fresh.tables.seal("s").await.unwrap();
            let rows = fresh.rows("s").await;
            assert_eq!(rows.len(), 9 + 5 + 3, "{what}");
            assert!(rows.values().all(|times| *times == 1), "{what}: {rows:?}");
        },
    )
    .await;
    assert!(died >= 6, "it could die in {died} calls only");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_joins_may_die_anywhere() {
    let mut start = World::new();
    let process = start.process();
    for partition in ["p", "q"] {
        process.engine.push(vec![item("s", partition, partition, true)]).await;
    }
    enumerate(
        &start,
        |process| async move { process.pop("s", "g", 1).await },
        |fresh, _, _, what| async move {
            fresh.engine.push(vec![item("s", "r", "r", true)]).await;
            tokio::time::sleep(Duration::from_secs(11)).await;
            let mut got = fresh.drain("s", "g").await;
            got.sort();
            assert_eq!(got, ["p", "q", "r"], "{what}");
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn retention_and_collection_may_die_anywhere() {
    let mut start = World::new();
    let process = start.process();
    let options = serde_json::json!({"maxWaitTimeSeconds": 60, "dedupWindowSeconds": 60});
    let options = options.as_object().unwrap().clone();
    process.engine.configure("s", Configure { options, ..Configure::default() }).await.unwrap();
    for n in 0..60 {
        process.engine.push(vec![item("s", "p", n, true)]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let expired = process.engine.retain("s", None).await.unwrap();
    assert!((25..35).contains(&expired), "{expired}");
    tokio::time::sleep(limits::BLOB_GRACE).await;
    let left: Vec<String> = (0..60).map(|n| n.to_string()).skip(expired as usize).collect();
    let maintain = |process: Process| async move {
        // Deletes below the floor: everything left is old by now, so the floor must not move.
        process.engine.retain("s", Some(&|_| 0)).await.unwrap();
        process.engine.collect("s").await.unwrap();
    };
    let died = enumerate(&start, maintain, |fresh, world, _, what| {
        let left = left.clone();
        async move {
            maintain(fresh.clone()).await;
            assert_eq!(fresh.payloads("s", "p").await, left, "{what}");
            let pages = world.memory.items().keys().filter(|k| k.sk.starts_with("page#")).count();
            assert_eq!(pages, 1, "{what}: the page below the floor is gone");
        }
    })
    .await;
    assert!(died > 6, "it could die in {died} calls only");
}

#[tokio::test(start_paused = true)]
async fn deleting_a_stream_may_die_anywhere() {
    let mut start = World::new();
    let process = start.process();
    process.engine.push(vec![item("other", "p", "kept", true)]).await;
    let items_before = start.memory.items().len();
    with_sleeper(&mut start, 30).await;
    enumerate(
        &start,
        |process| async move { process.engine.delete_stream("s").await.unwrap() },
        |fresh, world, _, what| async move {
            fresh.engine.delete_stream("s").await.unwrap();
            fresh.engine.sweep().await.unwrap();
            let items = world.memory.items();
            let left: Vec<_> = items.keys().map(ToString::to_string).collect();
            assert_eq!(items.len(), items_before, "{what}: {left:?}");
            assert_eq!(world.memory.blobs().len(), 1, "{what}");
            assert_eq!(fresh.payloads("other", "p").await, ["kept"], "{what}");
        },
    )
    .await;
}
