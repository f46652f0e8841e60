//! Workers of a query: each reads a batch under a lease, folds it into the query's state, emits windows that are full,
//! and commits all of it as one cycle. Flushers emit windows of a partition that has gone quiet, without a lease.
//!
//! The state has two kinds of rows: a total for each key, which is changed in place, and one open window for each key,
//! whose row's name holds the key's count and so is new with every change. So whoever closes or changes a window deletes the very row that it
//! read, and a computation on a row that is gone is refused. A window lists the offsets that went into it, so that the
//! checker can tell where each input is.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use tidewheel_engine::{
    Cycle, CycleAck, Error, Message, PartitionId, PushItem, Registered, StateFilter, StateOp,
    StateRow, SubscriptionMode, Uuid, Verdict,
};

use super::{
    World,
    consumer::{pop, pop_of, think},
    history::{Answer, By},
    process::Handle,
    world::{Chance, ORDERS, OUT},
};

pub(crate) const QUERY: &str = "totals-by-key";

/// The group that a query's workers pop for.
pub(crate) fn group() -> String {
    format!("streams.{QUERY}")
}

/// Inputs of a full window.
const FULL: usize = 15;

/// What is known of a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Total {
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

/// A window: open in the state, or emitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    pub(crate) partition: String,
    pub(crate) key: String,
    pub(crate) inputs: Vec<u64>,
    pub(crate) sum: u64,
}

/// What a record of the orders says.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Order {
    pub(crate) key: String,
    pub(crate) v: u64,
}

fn total_row(key: &str) -> String {
    format!("total#{key}")
}

fn window_row(key: &str, number: u64) -> String {
    format!("window#{key}#{number:08}")
}

/// An open window's key and number.
fn parse_window_row(row: &str) -> Option<(&str, u64)> {
    let (key, number) = row.strip_prefix("window#")?.rsplit_once('#')?;
    Some((key, number.parse().ok()?))
}

/// The state of one partition.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) totals: BTreeMap<String, Total>,
    pub(crate) windows: BTreeMap<String, (u64, Window)>,
}

impl State {
    /// Reads rows; `None` if one of them makes no sense.
    pub(crate) fn parse(rows: &[StateRow]) -> Option<Self> {
        let mut state = Self::default();
        for row in rows {
            if let Some(key) = row.key.strip_prefix("total#") {
                state.totals.insert(key.to_owned(), serde_json::from_slice(&row.value).ok()?);
            } else {
                let (key, number) = parse_window_row(&row.key)?;
                let window = serde_json::from_slice(&row.value).ok()?;
                if state.windows.insert(key.to_owned(), (number, window)).is_some() {
                    return None;
                }
            }
        }
        Some(state)
    }
}

fn json(value: &impl Serialize) -> bytes::Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn emission(world: &World, window: &Window) -> PushItem {
    #[derive(Serialize)]
    struct Emission<'a> {
        tag: u64,
        window: &'a Window,
    }
    let tag = world.history.lock().fresh_tag();
    PushItem {
        stream: OUT.to_owned(),
        partition: window.key.clone(),
        payload: json(&Emission { tag, window }),
        ..PushItem::default()
    }
}

/// The window in an emitted record.
pub(crate) fn emitted(payload: &[u8]) -> Option<Window> {
    #[derive(Deserialize)]
    struct Emission {
        window: Window,
    }
    serde_json::from_slice::<Emission>(payload).ok().map(|e| e.window)
}

async fn register(world: &World, process: &Handle, chance: &mut Chance) -> Uuid {
    loop {
        match process.engine.register_query(QUERY, ORDERS, Some(OUT), "h1", false).await {
            Ok(Registered::Fresh(query) | Registered::Same(query)) => return query.id,
            Ok(other) => {
                world.history.lock().violation("streams", format!("registering gave {other:?}"));
            }
            Err(e) if e.is_transient() => {}
            Err(e) => world.unexpected("register", &e),
        }
        tokio::time::sleep(chance.time(50, 500)).await;
    }
}

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    let query = register(&world, &process, &mut chance).await;
    loop {
        let group = group();
        let request = pop_of(ORDERS, &group, SubscriptionMode::All, &mut chance);
        let (popped, parts) = match pop(&world, &process, request, &group).await {
            Ok(found) => found,
            Err(e) => {
                if !e.is_transient() {
                    world.unexpected("pop of a query", &e);
                }
                tokio::time::sleep(chance.time(10, 300)).await;
                continue;
            }
        };
        for (delivery, messages) in parts {
            let batch = Batch { query, delivery, lease: popped.lease_id.clone(), messages };
            process_batch(&world, &process, &mut chance, batch).await;
        }
        tokio::time::sleep(chance.time(5, 100)).await;
    }
}

struct Batch {
    query: Uuid,
    delivery: usize,
    lease: String,
    messages: Vec<Message>,
}

async fn process_batch(world: &World, process: &Handle, chance: &mut Chance, batch: Batch) {
    think(world, chance).await;
    if world.stormy() && chance.percent(5) {
        // Gives the batch back.
        cycle(world, process, chance, &batch, &batch.messages, Mode::GiveBack).await;
        return;
    }
    if world.stormy() && batch.messages.len() > 1 && chance.percent(20) {
        let half = batch.messages.len() / 2;
        if !cycle(world, process, chance, &batch, &batch.messages[..half], Mode::Part).await {
            return;
        }
        think(world, chance).await;
        cycle(world, process, chance, &batch, &batch.messages[half..], Mode::Whole).await;
        return;
    }
    cycle(world, process, chance, &batch, &batch.messages, Mode::Whole).await;
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// The rest of the batch; the lease ends.
    Whole,
    /// A part of the batch; the lease is kept.
    Part,
    /// Nothing.
    GiveBack,
}

/// Folds messages and commits; true if it is known to have happened.
async fn cycle(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    batch: &Batch,
    messages: &[Message],
    mode: Mode,
) -> bool {
    let Some(first) = messages.first() else { return false };
    let partition = first.partition.id;
    let (state_ops, push_items) = if mode == Mode::GiveBack {
        (Vec::new(), Vec::new())
    } else {
        match process.engine.state(&batch.query, &partition, &StateFilter::default()).await {
            Ok(rows) => {
                think(world, chance).await;
                fold(world, &first.partition.name, &rows, messages)
            }
            Err(e) => {
                if !e.is_transient() {
                    world.unexpected("state", &e);
                }
                return false;
            }
        }
    };
    let request = Cycle {
        query_id: batch.query,
        partition_id: partition,
        group: None,
        state_ops,
        push_items,
        ack: Some(CycleAck {
            lease_id: batch.lease.clone(),
            completed: mode != Mode::GiveBack,
            count: messages.len() as u64,
        }),
        release_lease: mode != Mode::Part,
    };
    let verdict = if mode == Mode::GiveBack { Verdict::Retry } else { Verdict::Completed };
    let verdicts: Vec<_> = messages.iter().map(|m| (m.record.offset, verdict)).collect();
    // A part is no request that may be repeated: the lease it names is still held afterwards.
    let attempts = if mode == Mode::Whole { 1 + chance.below(3) } else { 1 };
    for _ in 0..attempts {
        let now = world.now();
        let noted = world.history.lock().settling(batch.delivery, By::Cycle, verdicts.clone(), now);
        let answer = process.engine.cycle(request.clone()).await;
        let (answer, again) = match answer {
            Ok(_) => {
                (Answer::Done { at: world.now(), dead: Default::default(), noop: false }, false)
            }
            Err(Error::Unknown(_)) => (Answer::Doubtful, true),
            Err(e) if e.is_transient() => (Answer::Refused, true),
            Err(Error::Lease | Error::StaleState { .. }) => (Answer::Refused, false),
            Err(e) => {
                world.unexpected("cycle", &e);
                (Answer::Refused, false)
            }
        };
        let done = matches!(answer, Answer::Done { .. });
        let mut history = world.history.lock();
        history.settled(noted, answer);
        if done || !again {
            history.count(if done { "cycles done" } else { "cycles refused" });
            return done;
        }
    }
    false
}

/// What a batch does to the state, and the windows that it fills.
fn fold(
    world: &World,
    partition: &str,
    rows: &[StateRow],
    messages: &[Message],
) -> (Vec<StateOp>, Vec<PushItem>) {
    let Some(mut state) = State::parse(rows) else {
        world
            .history
            .lock()
            .violation("streams", format!("the state of {partition} makes no sense"));
        return (Vec::new(), Vec::new());
    };
    let mut touched: BTreeMap<String, Option<u64>> = BTreeMap::new();
    let mut full = Vec::new();
    for message in messages {
        let Ok(order) = serde_json::from_slice::<Order>(&message.record.payload) else { continue };
        let total = state.totals.entry(order.key.clone()).or_default();
        total.count += 1;
        total.sum += order.v;
        let before = state.windows.get(&order.key).map(|(number, _)| *number);
        touched.entry(order.key.clone()).or_insert(before);
        let (_, window) = state.windows.entry(order.key.clone()).or_insert_with(|| {
            let (partition, key) = (partition.to_owned(), order.key.clone());
            (0, Window { partition, key, ..Window::default() })
        });
        window.inputs.push(message.record.offset);
        window.sum += order.v;
        if window.inputs.len() >= FULL
            && let Some((_, window)) = state.windows.remove(&order.key)
        {
            full.push(window);
        }
    }
    let mut ops = Vec::new();
    for (key, before) in touched {
        if let Some(number) = before {
            ops.push(StateOp::Delete { key: window_row(&key, number) });
        }
        if let Some((_, window)) = state.windows.get(&key) {
            // A name is never used again: the key's count only grows.
            let number = state.totals.get(&key).map_or(0, |t| t.count);
            ops.push(StateOp::Upsert { key: window_row(&key, number), value: json(window) });
        }
        if let Some(total) = state.totals.get(&key) {
            ops.push(StateOp::Upsert { key: total_row(&key), value: json(total) });
        }
    }
    (ops, full.iter().map(|w| emission(world, w)).collect())
}

/// Emits open windows of quiet partitions, without a lease.
pub(crate) async fn flush(world: Arc<World>, process: Handle, mut chance: Chance) {
    let query = register(&world, &process, &mut chance).await;
    loop {
        tokio::time::sleep(chance.time(1_000, 6_000)).await;
        let partitions = match process.engine.partitions(ORDERS, None, 100).await {
            Ok(partitions) if !partitions.is_empty() => partitions,
            Ok(_) => continue,
            Err(e) => {
                if !e.is_transient() {
                    world.unexpected("partitions", &e);
                }
                continue;
            }
        };
        let at = chance.below(partitions.len() as u64) as usize;
        flush_one(&world, &process, &mut chance, query, partitions[at].id).await;
    }
}

async fn flush_one(
    world: &World,
    process: &Handle,
    chance: &mut Chance,
    query: Uuid,
    partition: PartitionId,
) {
    let filter = StateFilter { prefix: "window#".to_owned(), ..StateFilter::default() };
    let Ok(rows) = process.engine.state(&query, &partition, &filter).await else { return };
    think(world, chance).await;
    let mut state_ops = Vec::new();
    let mut push_items = Vec::new();
    for row in rows.iter().take(1 + chance.below(3) as usize) {
        let Ok(window) = serde_json::from_slice::<Window>(&row.value) else { continue };
        state_ops.push(StateOp::Delete { key: row.key.clone() });
        push_items.push(emission(world, &window));
    }
    if state_ops.is_empty() {
        return;
    }
    let request = Cycle {
        query_id: query,
        partition_id: partition,
        group: None,
        state_ops,
        push_items,
        ack: None,
        release_lease: true,
    };
    for _ in 0..1 + chance.below(3) {
        let answer = process.engine.cycle(request.clone()).await;
        let mut history = world.history.lock();
        match answer {
            Ok(_) => return history.count("flushes done"),
            Err(Error::StaleState { .. }) => return history.count("flushes refused"),
            Err(e) if e.is_transient() => {}
            Err(e) => return history.violation("errors", format!("flush: {e}")),
        }
    }
}
