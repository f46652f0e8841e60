//! Dead letters: exactly what was given up, each with its payload.

use std::collections::BTreeMap;

use tidewheel_engine::{DeadLetter, Engine, Verdict};

use super::{Found, Logs};
use crate::sim::{
    World,
    consumer::{Kind, is_hopeless, is_poison},
    history::Answer,
    world::JOBS,
};

pub(super) async fn check(world: &World, engine: &Engine, logs: &Logs) -> Found {
    let mut found = Found::new("dead_letters");
    let mut letters: Vec<DeadLetter> = Vec::new();
    loop {
        match engine.dead_letters(JOBS, Some(Kind::Jobs.group()), letters.len(), 500).await {
            Ok(page) if page.is_empty() => break,
            Ok(page) => letters.extend(page),
            Err(e) => {
                found.add(format!("dead letters cannot be read: {e}"));
                return found;
            }
        }
    }
    let mut filed: BTreeMap<(String, u64), u32> = BTreeMap::new();
    for letter in &letters {
        let place = (letter.partition.name.clone(), letter.record.offset);
        let record = logs.partition(&letter.partition.id).and_then(|p| p.at(letter.record.offset));
        if record.is_none_or(|r| r.payload != letter.record.payload) {
            found.add(format!("the dead letter of {place:?} is another record"));
        }
        if letter.error != "it failed" {
            found.add(format!("the dead letter of {place:?} says `{}`", letter.error));
        }
        *filed.entry(place).or_default() += 1;
    }
    for partition in logs.of(JOBS) {
        for record in &partition.records {
            let place = (partition.info.name.clone(), record.offset);
            let times = filed.remove(&place).unwrap_or(0);
            let expected = u32::from(is_poison(record.tag) || is_hopeless(record.tag));
            if times != expected {
                found.add(format!("{place:?} was filed {times} times, not {expected}"));
            }
        }
    }
    if !filed.is_empty() {
        found.add(format!("dead letters of nothing: {filed:?}"));
    }
    // Nobody was told of a dead letter that he had not asked for.
    let history = world.history.lock();
    for settlement in &history.settlements {
        let Answer::Done { dead, .. } = &settlement.answer else { continue };
        for (offset, verdict) in &settlement.verdicts {
            let asked = matches!(verdict, Verdict::Failed | Verdict::DeadLetter);
            if dead.contains(offset) && !asked {
                found.add(format!("offset {offset} was completed and answered as given up"));
            }
        }
    }
    found
}
