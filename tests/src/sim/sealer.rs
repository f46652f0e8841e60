//! Sealers: two of them race for the tables. What they commit is also read on the way.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow_array::{Array, cast::AsArray, types::Int64Type};
use tidewheel_tables::{Error, Scan, Tables};

use super::{
    History, World,
    history::Scanned,
    world::{AGED, Chance, ORDERS, OUT, TO},
};

/// Streams that are sealed.
pub(crate) const SEALED: [&str; 4] = [ORDERS, OUT, AGED, TO];

/// How often a stream is sealed, ms.
const ROUND_MS: u64 = 2_500;

pub(crate) async fn work(world: Arc<World>, tables: Tables, mut chance: Chance) {
    loop {
        // All sealers turn to the same stream at about the same time.
        let round = world.now().as_millis() as u64 / ROUND_MS + 1;
        let starts = Duration::from_millis(round * ROUND_MS) + chance.time(0, 40);
        tokio::time::sleep(starts.saturating_sub(world.now())).await;
        let stream = SEALED[(round % SEALED.len() as u64) as usize];
        match tables.seal(stream).await {
            Ok(sealed) => {
                let mut history = world.history.lock();
                history.count("seals");
                if let Some(id) = sealed.snapshot_id {
                    history.snapshots.entry(stream.to_owned()).or_default().insert(id);
                }
                if sealed.lost > 0 {
                    let lost = sealed.lost;
                    history.violation("tables", format!("{stream}: {lost} records were lost"));
                }
            }
            Err(Error::Conflict(_)) => world.history.lock().count("seals that lost a race"),
            Err(Error::Unknown { .. } | Error::Busy | Error::Store(_)) => {}
            Err(Error::Engine(e)) if e.is_transient() => {}
            Err(Error::StreamNotFound(_)) => {}
            Err(e) => world.history.lock().violation("errors", format!("seal of {stream}: {e}")),
        }
        if chance.one_in(3) {
            look_after(&world, &tables, stream, chance.one_in(3)).await;
        }
        if chance.one_in(5) {
            let began = world.now();
            if let Ok(scan) = tables.scan(stream).await {
                let (stream, ended, rows) = (stream.to_owned(), world.now(), rows(&scan));
                world.history.lock().scans.push(Scanned { stream, began, ended, rows });
            }
        }
    }
}

/// Compacts a table, and cleans it if it is its turn: none of that changes a row.
async fn look_after(world: &World, tables: &Tables, stream: &str, clean: bool) {
    let outcome = async {
        let compacted = tables.compact(stream).await?;
        let cleaned = if clean { tables.clean(stream).await? } else { Default::default() };
        Ok::<_, Error>((compacted, cleaned))
    };
    match outcome.await {
        Ok((compacted, cleaned)) => {
            let mut history = world.history.lock();
            if compacted.raced {
                history.count("compactions that lost a race");
            } else if compacted.replaced > 0 {
                history.count("compactions");
            }
            if cleaned.files > 0 {
                history.count("tables cleaned");
            }
        }
        Err(Error::Conflict(_) | Error::Unknown { .. } | Error::Busy | Error::Store(_)) => {}
        Err(Error::Engine(e)) if e.is_transient() => {}
        Err(Error::StreamNotFound(_) | Error::NoTable(_)) => {}
        // Cleaned away by another while it was read: whoever holds a snapshot for so long has lost it.
        Err(Error::File { .. }) => {}
        Err(e) => world.history.lock().violation("errors", format!("the table of {stream}: {e}")),
    }
}

/// The rows of a scan: the partition's name, the offset, and the tag in the payload.
pub(crate) fn rows(scan: &Scan) -> Vec<(String, u64, u64)> {
    full_rows(scan)
        .into_iter()
        .map(|(p, o, text)| (p, o, History::tag_of(text.as_bytes())))
        .collect()
}

/// The rows of a scan, with payloads.
pub(crate) fn full_rows(scan: &Scan) -> Vec<(String, u64, String)> {
    let mut rows = Vec::new();
    for batch in &scan.batches {
        let columns: BTreeMap<&str, &arrow_array::ArrayRef> = ["partition", "offset", "payload"]
            .into_iter()
            .filter_map(|name| Some((name, batch.column_by_name(name)?)))
            .collect();
        let (Some(partition), Some(offset), Some(payload)) =
            (columns.get("partition"), columns.get("offset"), columns.get("payload"))
        else {
            continue;
        };
        let (partition, payload) = (partition.as_string::<i32>(), payload.as_string::<i32>());
        let offset = offset.as_primitive::<Int64Type>();
        for at in 0..batch.num_rows() {
            let offset = if offset.is_null(at) { u64::MAX } else { offset.value(at) as u64 };
            rows.push((partition.value(at).to_owned(), offset, payload.value(at).to_owned()));
        }
    }
    rows
}
