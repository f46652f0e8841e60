//! Maintenance: retention, the collector, the sweeper.

use std::{collections::BTreeMap, sync::Arc};

use tidewheel_engine::{Engine, Error, PartitionId, Uuid};
use tidewheel_store::{Consistency, Key};

use super::{
    World,
    process::Handle,
    publisher::ROWS,
    world::{AGED, Chance, FROM, JOBS, ORDERS, OUT, TAPES, TO},
};

/// Every stream of a run.
pub(crate) const STREAMS: [&str; 7] = [ORDERS, OUT, JOBS, FROM, TO, AGED, TAPES];

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        tokio::time::sleep(chance.time(3_000, 10_000)).await;
        retain(&world, &process.engine).await;
        let stream = STREAMS[chance.below(STREAMS.len() as u64) as usize];
        answer(&world, "collect", process.engine.collect(stream).await);
        answer(&world, "collect", process.engine.collect(ROWS).await);
        answer(&world, "sweep", process.engine.sweep().await);
    }
}

/// Collects all night.
pub(crate) async fn watch(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        tokio::time::sleep(chance.time(30_000, 90_000)).await;
        for stream in STREAMS.into_iter().chain([ROWS]) {
            answer(&world, "collect", process.engine.collect(stream).await);
        }
    }
}

fn answer(world: &World, what: &'static str, answer: Result<u64, Error>) {
    match answer {
        Ok(n) => *world.history.lock().counts.entry(what).or_default() += n,
        Err(e) if e.is_transient() => {}
        Err(e) => world.unexpected(what, &e),
    }
}

async fn retain(world: &World, engine: &Engine) {
    // Read first: what a table has it keeps.
    let Some(positions) = table_positions(engine, AGED).await else { return };
    let hold = |partition: &PartitionId| positions.get(partition).copied().unwrap_or(0);
    answer(world, "expired", engine.retain(AGED, Some(&hold)).await);
}

/// How far a stream's table reaches, by its head; `None` if that cannot be told now.
async fn table_positions(engine: &Engine, stream: &str) -> Option<BTreeMap<PartitionId, u64>> {
    let id = engine.stream(stream).await.ok()??.id;
    let key = Key::new(format!("t#{id}"), "table");
    let item = engine.store().get(&key, Consistency::Strong).await.ok()?;
    let Some(item) = item else { return Some(BTreeMap::new()) };
    let bytes = item.bytes("positions").cloned().unwrap_or_default();
    let entry = |entry: &[u8]| {
        let (id, next) = entry.split_at(16);
        let id = PartitionId(Uuid::from_bytes(id.try_into().ok()?));
        Some((id, u64::from_be_bytes(next.try_into().ok()?)))
    };
    bytes.chunks_exact(24).map(entry).collect()
}
