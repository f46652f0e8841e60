//! Readers by offset: whatever they saw on the way must be what is there in the end.

use std::sync::Arc;

use tidewheel_engine::Error;

use super::{History, World, keeper::STREAMS, process::Handle, world::Chance};

pub(crate) async fn work(world: Arc<World>, process: Handle, mut chance: Chance) {
    loop {
        tokio::time::sleep(chance.time(200, 2_000)).await;
        let stream = STREAMS[chance.below(STREAMS.len() as u64) as usize];
        let Ok(partitions) = process.engine.partitions(stream, None, 100).await else { continue };
        if partitions.is_empty() {
            continue;
        }
        let partition = partitions[chance.below(partitions.len() as u64) as usize].id;
        let Ok(Some(extent)) = process.engine.extent(&partition).await else { continue };
        let from = if chance.one_in(2) {
            extent.tail.saturating_sub(chance.below(20))
        } else {
            chance.below(extent.tail + 1)
        };
        let most = 1 + chance.below(60) as usize;
        match process.engine.read(&partition, from, most, 1 << 20).await {
            Ok(read) => {
                let mut history = world.history.lock();
                let dense = read.records.windows(2).all(|w| w[1].offset == w[0].offset + 1);
                if !dense {
                    history.violation("log", format!("a read of {partition} has a hole"));
                }
                history.read.extend(
                    read.records.iter().map(|r| (partition, r.offset, History::tag_of(&r.payload))),
                );
            }
            Err(e) if e.is_transient() => {}
            Err(Error::PartitionNotFound) => {}
            Err(e) => world.unexpected("read", &e),
        }
    }
}
