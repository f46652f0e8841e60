//! Publishers: every numbered row once, in order, where it was acknowledged; plain frames whole or not at all; every
//! row in the schema of its generation.

use std::collections::{BTreeMap, BTreeSet};

use tidewheel_engine::Engine;

use super::Found;
use crate::sim::{History, World, publisher::ROWS};

#[derive(serde::Deserialize)]
struct Row {
    p: i64,
    seq: u64,
}

pub(super) async fn check(world: &World, engine: &Engine) -> Found {
    let mut found = Found::new("publishers");
    let declared = match engine.declared(ROWS).await {
        Ok(Some(declared)) => declared,
        other => {
            found.add(format!("the declaration is gone: {other:?}"));
            return found;
        }
    };
    for pair in declared.generations.windows(2) {
        if pair[0].end != Some(pair[1].start) {
            found.add(format!("{} and {} do not meet", pair[0].name, pair[1].name));
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    loop {
        let from = rows.len() as u64;
        let read = match engine.read(&declared.partition(), from, 1000, usize::MAX / 2).await {
            Ok(read) => read,
            Err(e) => {
                found.add(format!("the log cannot be read: {e}"));
                return found;
            }
        };
        for record in &read.records {
            let offset = record.offset;
            let generation = declared.generation_of(offset);
            let schema = generation.and_then(|g| g.schema.as_ref());
            let text = schema.and_then(|s| s.canonical(&record.payload).ok());
            if text.as_ref() != Some(&record.payload) {
                let name = generation.map(|g| g.name.as_str()).unwrap_or_default();
                found.add(format!("row {offset} is not of the schema of {name}"));
            }
            match serde_json::from_slice(&record.payload) {
                Ok(row) => rows.push(row),
                Err(e) => found.add(format!("row {offset}: {e}")),
            }
        }
        if read.records.is_empty() {
            break;
        }
    }
    check_rows(&world.history.lock(), &rows, &mut found);
    found
}

fn check_rows(history: &History, rows: &[Row], found: &mut Found) {
    let published = &history.published;
    let mut last: BTreeMap<i64, u64> = BTreeMap::new();
    let mut places: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (offset, row) in (0..).zip(rows) {
        if row.p < 0 {
            places.entry(row.seq).or_default().push(offset);
            continue;
        }
        let last = last.entry(row.p).or_default();
        if row.seq != *last + 1 {
            let (p, seq) = (row.p, row.seq);
            found.add(format!("row {seq} of publisher {p} at {offset} comes after {last}"));
        }
        *last = row.seq;
    }
    let acknowledged: BTreeSet<_> = published.numbered.iter().collect();
    for (publisher, seq, offset) in acknowledged {
        let there = rows.get(*offset as usize);
        if !there.is_some_and(|r| r.p == *publisher as i64 && r.seq == *seq) {
            found.add(format!("row {seq} of publisher {publisher} is not at {offset}"));
        }
    }
    for (publisher, seq) in &published.acknowledged {
        if last.get(&(*publisher as i64)).copied().unwrap_or(0) < *seq {
            found.add(format!("row {seq} of publisher {publisher} was acknowledged and is gone"));
        }
    }
    for frame in &published.plain {
        let there: Vec<u64> =
            frame.tags.iter().flat_map(|t| places.get(t).into_iter().flatten()).copied().collect();
        let whole = there.len() == frame.tags.len() && there.windows(2).all(|w| w[1] == w[0] + 1);
        let tag = frame.tags.first();
        match frame.answer {
            Some(Some(offset)) if !(whole && there.first() == Some(&offset)) => {
                found.add(format!(
                    "frame {tag:?} was acknowledged at {offset}, and is at {there:?}"
                ));
            }
            Some(None) if !there.is_empty() => {
                found.add(format!("frame {tag:?} did not land, it was said, and is at {there:?}"));
            }
            None if !(there.is_empty() || whole) => {
                found.add(format!("frame {tag:?} is neither whole nor absent: {there:?}"));
            }
            _ => {}
        }
    }
}
