//! Tables: each row once, in order, and the same as the log.

use std::collections::{BTreeMap, BTreeSet};

use tidewheel_engine::Engine;

use super::{Found, Logs};
use crate::sim::{
    World,
    history::Scanned,
    process,
    sealer::{SEALED, full_rows},
    world::{AGED, OUT, TO},
};

pub(super) async fn check(world: &World, engine: &Engine, logs: &Logs) -> Found {
    let mut found = Found::new("tables");
    let tables = process::tables(engine, world);
    for stream in SEALED {
        // Twice: the second finds nothing new.
        for _ in 0..2 {
            match tables.seal(stream).await {
                Ok(sealed) if sealed.lost > 0 => found.add(format!("{stream}: rows were lost")),
                Ok(_) => {}
                Err(e) => found.add(format!("{stream} cannot be sealed: {e}")),
            }
        }
        let scan = match tables.scan(stream).await {
            Ok(scan) => scan,
            Err(e) => {
                found.add(format!("the table of {stream} cannot be read: {e}"));
                continue;
            }
        };
        let mut by_partition: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
        for (partition, offset, payload) in full_rows(&scan) {
            by_partition.entry(partition).or_default().push((offset, payload));
        }
        for partition in logs.of(stream) {
            let name = &partition.info.name;
            let rows = by_partition.remove(name).unwrap_or_default();
            if !rows.iter().map(|r| r.0).eq(0..partition.tail) {
                let offsets: Vec<u64> = rows.iter().map(|r| r.0).collect();
                let tail = partition.tail;
                found.add(format!(
                    "{stream}/{name} has {tail} records; the table has {}",
                    runs(&offsets)
                ));
                continue;
            }
            for (offset, payload) in rows {
                let differs = partition.at(offset).is_some_and(|r| r.payload != payload.as_bytes());
                if differs {
                    found.add(format!("{stream}/{name}@{offset} is another row in the table"));
                }
            }
        }
        if !by_partition.is_empty() {
            found.add(format!("the table of {stream} has partitions that are not there"));
        }
        if scan.summary.get("total-records").map(String::as_str)
            != Some(scan.batches.iter().map(|b| b.num_rows()).sum::<usize>().to_string().as_str())
        {
            found.add(format!("the table of {stream} does not say how many rows it has"));
        }
    }
    scanned(world, logs, &mut found);
    never_back(world, &mut found);
    let told = world.history.lock().snapshots.clone();
    for (stream, snapshots) in told {
        // Each snapshot counts the version up by one, on the one before.
        match tables.location(&stream).await {
            Ok(location) if location.version >= snapshots.len() as u64 => {}
            Ok(location) => found.add(format!(
                "{} snapshots of {stream} were committed; its version is {}",
                snapshots.len(),
                location.version
            )),
            Err(e) => found.add(format!("the table of {stream}: {e}")),
        }
    }
    found
}

/// What one reader of a table saw, a later one sees as well.
fn never_back(world: &World, found: &mut Found) {
    let history = world.history.lock();
    for (at, later) in history.scans.iter().enumerate() {
        for earlier in &history.scans[..at] {
            let after = earlier.ended <= later.began && earlier.stream == later.stream;
            if after && later.rows.len() < earlier.rows.len() {
                let (stream, before, now) = (&later.stream, earlier.rows.len(), later.rows.len());
                found.add(format!("the table of {stream} went back from {before} rows to {now}"));
            }
        }
    }
}

/// Every snapshot that was read on the way has each row once, from the beginning, without a hole.
fn scanned(world: &World, logs: &Logs, found: &mut Found) {
    let history = world.history.lock();
    for Scanned { stream, rows, .. } in &history.scans {
        let mut next: BTreeMap<&str, u64> = BTreeMap::new();
        for (partition, offset, tag) in rows {
            let expected = next.entry(partition).or_default();
            if offset != expected {
                found.add(format!(
                    "a snapshot of {stream}/{partition} had {offset} where {expected} belongs"
                ));
                break;
            }
            *expected += 1;
            let stored = logs.of(stream).iter().find(|p| p.info.name == *partition);
            let stored = stored.and_then(|p| p.at(*offset)).map(|r| r.tag);
            let sent_here = stream != OUT && stream != TO;
            let known = !sent_here || history.sent.contains_key(tag);
            let gone = stream == AGED && stored.is_none();
            if !known || !(gone || stored == Some(*tag)) {
                found
                    .add(format!("a snapshot of {stream}/{partition}@{offset} had another record"));
            }
        }
    }
}

/// Offsets in short: runs, and what is there twice.
fn runs(offsets: &[u64]) -> String {
    let unique: BTreeSet<u64> = offsets.iter().copied().collect();
    let missing = (0..offsets.iter().copied().max().map_or(0, |m| m + 1))
        .filter(|o| !unique.contains(o))
        .collect::<Vec<_>>();
    format!(
        "{} rows, {} of them repeated, missing {missing:?}",
        offsets.len(),
        offsets.len() - unique.len()
    )
}
