//! Producers: batches with and without ids, retried with the same ids until somebody has an answer, and sometimes
//! sent again long after.

use std::{collections::BTreeMap, sync::Arc};

use tidewheel_engine::{Error, PushItem, Pushed};

use super::{
    World,
    history::{Sent, SentBatch, Tag},
    process::Handle,
    world::{AGED, Chance, FROM, JOBS, ORDERS, PARTITIONS, TAPES},
};

/// Records of one call.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    number: u64,
    items: Vec<(Tag, PushItem)>,
}

const KEYS: u64 = 4;

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        let pause = if world.stormy() { chance.time(50, 900) } else { chance.time(500, 1500) };
        tokio::time::sleep(pause).await;
        if let Some(batch) = next(&world, &mut chance) {
            push(&world, &process, batch).await;
        }
    }
}

fn next(world: &World, chance: &mut Chance) -> Option<Batch> {
    let mut pending = world.pending.lock();
    if !pending.is_empty() && (chance.percent(40) || !world.stormy()) {
        let at = chance.below(pending.len() as u64) as usize;
        return pending.get(at).cloned();
    }
    if !world.stormy() {
        return None;
    }
    let stored = world.stored.lock();
    if !stored.is_empty() && chance.percent(12) {
        // Sent again, long after it was stored.
        let at = chance.below(stored.len() as u64) as usize;
        return stored.get(at).cloned();
    }
    drop(stored);
    let batch = invent(world, chance);
    pending.push_back(batch.clone());
    Some(batch)
}

fn invent(world: &World, chance: &mut Chance) -> Batch {
    let size = match chance.below(100) {
        0..50 => 1 + chance.below(3),
        50..92 => 3 + chance.below(14),
        _ => 50 + chance.below(60),
    };
    // All with ids, none, or some.
    let ids = match chance.below(10) {
        0..6 => 100,
        6..8 => 0,
        _ => 50,
    };
    let mut places = vec![place(world, chance)];
    if chance.percent(15) {
        places.push(place(world, chance));
    }
    let mut history = world.history.lock();
    let number = history.fresh_tag();
    let mut items = Vec::new();
    for _ in 0..size {
        let tag = history.fresh_tag();
        let (stream, partition) = &places[chance.below(places.len() as u64) as usize];
        let id = chance.percent(ids).then(|| format!("id-{tag}"));
        items.push((tag, item(stream, partition, tag, id, chance)));
    }
    note(&mut history.sent, &items);
    let mut groups: BTreeMap<(&str, &str), Vec<Tag>> = BTreeMap::new();
    for (tag, item) in &items {
        groups.entry((&item.stream, &item.partition)).or_default().push(*tag);
    }
    let batches: Vec<_> = groups.into_values().map(|tags| SentBatch { tags }).collect();
    history.batches.extend(batches);
    Batch { number, items }
}

fn note(sent: &mut BTreeMap<Tag, Sent>, items: &[(Tag, PushItem)]) {
    for (tag, item) in items {
        sent.insert(
            *tag,
            Sent {
                stream: item.stream.clone(),
                partition: item.partition.clone(),
                id: item.transaction_id.clone(),
                payload: item.payload.clone(),
                ..Sent::default()
            },
        );
    }
}

fn item(
    stream: &str,
    partition: &str,
    tag: Tag,
    id: Option<String>,
    chance: &mut Chance,
) -> PushItem {
    let (key, value) = (chance.below(KEYS), chance.below(1000));
    // A few are large, so that blobs become objects.
    let pad = if chance.one_in(60) {
        "x".repeat(1 + chance.below(12_000) as usize)
    } else {
        String::new()
    };
    let payload = format!("{{\"tag\":{tag},\"key\":\"k{key}\",\"v\":{value},\"pad\":\"{pad}\"}}");
    PushItem {
        stream: stream.to_owned(),
        partition: partition.to_owned(),
        payload: payload.into(),
        transaction_id: id,
        key: chance.one_in(4).then(|| format!("k{key}")),
        headers: None,
    }
}

/// A stream and a partition; there are more partitions as time goes by.
fn place(world: &World, chance: &mut Chance) -> (&'static str, String) {
    let stream = match chance.below(100) {
        0..45 => ORDERS,
        45..60 => JOBS,
        60..76 => FROM,
        76..90 => AGED,
        _ => TAPES,
    };
    let partitions = 2 + (world.now().as_secs() / 15).min(PARTITIONS - 2);
    // The first ones are hot, so that their lists roll.
    let partition = if chance.percent(55) { chance.below(2) } else { chance.below(partitions) };
    (stream, format!("p{partition}"))
}

/// Pushes a batch and notes what came of it. Records with ids stay pending until they are stored; those without are
/// sent once.
async fn push(world: &World, process: &Handle, batch: Batch) {
    {
        let mut history = world.history.lock();
        let now = world.now();
        for (tag, _) in &batch.items {
            if let Some(sent) = history.sent.get_mut(tag) {
                sent.first.get_or_insert(now);
                sent.doubtful += 1;
            }
        }
        history.count("pushes");
        // A late retry must not bring back what has no id.
        let mut pending = world.pending.lock();
        if let Some(at) = pending.iter().position(|b| b.number == batch.number) {
            pending[at].items.retain(|(_, item)| item.transaction_id.is_some());
            if pending[at].items.is_empty() {
                pending.remove(at);
            }
        }
    }
    let items: Vec<PushItem> = batch.items.iter().map(|(_, item)| item.clone()).collect();
    let outcomes = process.engine.push(items).await;
    let now = world.now();
    let mut stored = true;
    {
        let mut history = world.history.lock();
        for ((tag, item), outcome) in batch.items.iter().zip(outcomes) {
            let unknown = matches!(outcome, Pushed::Refused(Error::Unknown(_)));
            let Some(sent) = history.sent.get_mut(tag) else { continue };
            if !unknown {
                sent.doubtful -= 1;
            }
            match outcome {
                Pushed::Queued { offset, .. } => sent.placed.push((offset, now)),
                Pushed::Duplicate { offset: Some(offset), .. } => sent.placed.push((offset, now)),
                Pushed::Duplicate { offset: None, .. } => {
                    history.violation("log", format!("record {tag} is a duplicate of nothing"));
                }
                Pushed::Refused(e) => {
                    sent.refused += u32::from(!unknown);
                    if !e.is_transient() {
                        history.violation("errors", format!("push of record {tag}: {e}"));
                    }
                    stored &= item.transaction_id.is_none();
                }
            }
        }
        history.count(if stored { "pushes stored" } else { "pushes to be retried" });
    }
    if stored {
        world.pending.lock().retain(|b| b.number != batch.number);
        let items: Vec<_> =
            batch.items.into_iter().filter(|(_, i)| i.transaction_id.is_some()).collect();
        let mut stored = world.stored.lock();
        if !items.is_empty() && !stored.iter().any(|b| b.number == batch.number) {
            stored.push(Batch { number: batch.number, items });
        }
    }
}

/// Pushes two new records to every partition there is, one after another: the second comes at about the time when
/// those who have consumed the first go to sleep.
pub(crate) async fn two_for_each_partition(world: &World, process: &Handle, chance: &mut Chance) {
    for stream in [ORDERS, JOBS, FROM, AGED, TAPES] {
        let partitions = match process.engine.partitions(stream, None, 1000).await {
            Ok(partitions) => partitions,
            Err(e) => return world.unexpected("partitions", &e),
        };
        for partition in partitions {
            for _ in 0..2 {
                push(world, process, single(world, stream, &partition.name, chance)).await;
                tokio::time::sleep(chance.time(0, 250)).await;
            }
        }
    }
}

fn single(world: &World, stream: &str, partition: &str, chance: &mut Chance) -> Batch {
    let mut history = world.history.lock();
    let (number, tag) = (history.fresh_tag(), history.fresh_tag());
    let items = vec![(tag, item(stream, partition, tag, None, chance))];
    note(&mut history.sent, &items);
    Batch { number, items }
}

/// Pushes one batch: a producer that falls asleep on its feet.
pub(crate) async fn sleepwalk(world: Arc<World>, process: Handle, mut chance: Chance) {
    let batch = invent(&world, &mut chance);
    world.pending.lock().push_back(batch.clone());
    push(&world, &process, batch).await;
}
