//! The log: what was acknowledged is there at its offset; nothing is there twice or of nobody's making; one order.

use std::collections::{BTreeMap, BTreeSet};

use super::{Found, Logs};
use crate::sim::{
    History,
    keeper::STREAMS,
    world::{OUT, TO},
};

pub(super) fn check(history: &History, logs: &Logs) -> Found {
    let mut found = Found::new("log");
    // Where each record is.
    let mut places: BTreeMap<u64, Vec<(&str, &str, u64)>> = BTreeMap::new();
    for stream in STREAMS {
        for partition in logs.of(stream) {
            let name = partition.info.name.as_str();
            let at = |offset: u64| format!("{stream}/{name}@{offset}");
            for pair in partition.records.windows(2) {
                if pair[1].time_us < pair[0].time_us || pair[1].id <= pair[0].id {
                    found.add(format!("{}: times or ids run backwards", at(pair[1].offset)));
                }
            }
            for record in &partition.records {
                places.entry(record.tag).or_default().push((stream, name, record.offset));
                if stream == OUT || stream == TO {
                    continue;
                }
                let Some(sent) = history.sent.get(&record.tag) else {
                    found.add(format!("{}: nobody sent this record", at(record.offset)));
                    continue;
                };
                if sent.payload != record.payload || sent.stream != stream || sent.partition != name
                {
                    found.add(format!("{}: not what was sent", at(record.offset)));
                }
                let id = sent.id.as_deref().unwrap_or(&record.id);
                if record.transaction_id != id {
                    found.add(format!("{}: its id is not what was sent", at(record.offset)));
                }
            }
        }
    }
    for (tag, places) in &places {
        if places.len() > 1 {
            let id = history.sent.get(tag).and_then(|s| s.id.as_deref()).unwrap_or("none");
            found
                .add(format!("record {tag} (id {id}) is there {} times: {places:?}", places.len()));
        }
    }
    answers(history, logs, &places, &mut found);
    batches(history, &places, &mut found);
    observations(history, logs, &mut found);
    found
}

/// Every answer is true.
fn answers(
    history: &History,
    logs: &Logs,
    places: &BTreeMap<u64, Vec<(&str, &str, u64)>>,
    found: &mut Found,
) {
    for (tag, sent) in &history.sent {
        let offsets: BTreeSet<u64> = sent.placed.iter().map(|(offset, _)| *offset).collect();
        if offsets.len() > 1 {
            found.add(format!("record {tag} was answered with offsets {offsets:?}"));
        }
        let partition = logs.of(&sent.stream).iter().find(|p| p.info.name == sent.partition);
        for offset in offsets {
            let Some(partition) = partition else {
                found.add(format!("record {tag} was stored in a partition that is not there"));
                continue;
            };
            if offset >= partition.floor && partition.at(offset).map(|r| r.tag) != Some(*tag) {
                let is = partition.at(offset).map(|r| r.tag);
                let (stream, name) = (&sent.stream, &sent.partition);
                found.add(format!(
                    "record {tag} was acknowledged at {stream}/{name}@{offset}; there is {is:?}"
                ));
            }
        }
        let nowhere = sent.placed.is_empty() && sent.doubtful == 0;
        if nowhere && places.contains_key(tag) {
            let refused = sent.refused;
            found.add(format!(
                "record {tag} is there, and {refused} answers said that nothing was written"
            ));
        }
    }
}

/// Records of one call to one partition land together, in their order.
fn batches(history: &History, places: &BTreeMap<u64, Vec<(&str, &str, u64)>>, found: &mut Found) {
    for batch in &history.batches {
        let ids: BTreeSet<bool> = batch
            .tags
            .iter()
            .filter_map(|tag| history.sent.get(tag))
            .map(|sent| sent.id.is_some())
            .collect();
        // Retries leave out what has no id; and retention may have taken a part.
        if ids.len() > 1 {
            continue;
        }
        let offsets: Vec<Option<u64>> =
            batch.tags.iter().map(|tag| places.get(tag).map(|p| p[0].2)).collect();
        let there: Vec<u64> = offsets.iter().flatten().copied().collect();
        let whole = there.len() == batch.tags.len();
        let aged =
            history.sent.get(&batch.tags[0]).is_some_and(|s| s.stream == crate::sim::world::AGED);
        if !(there.is_empty() || whole || aged) {
            let (are, of) = (there.len(), batch.tags.len());
            found.add(format!("{are} of {of} records of the batch of {} are there", batch.tags[0]));
        }
        if there.windows(2).any(|w| w[1] != w[0] + 1) {
            found.add(format!("the batch of record {} is not in one piece", batch.tags[0]));
        }
    }
}

/// What readers, consumers saw on the way is what is there.
fn observations(history: &History, logs: &Logs, found: &mut Found) {
    let delivered = history
        .deliveries
        .iter()
        .flat_map(|d| d.records.iter().map(move |(offset, tag)| (d.partition, *offset, *tag)));
    for (id, offset, tag) in history.read.iter().copied().chain(delivered) {
        let Some(partition) = logs.partition(&id) else {
            found.add(format!("partition {id} was read and is not there"));
            continue;
        };
        if offset >= partition.tail {
            found.add(format!("{id}@{offset} was read beyond the tail {}", partition.tail));
        } else if offset >= partition.floor && partition.at(offset).map(|r| r.tag) != Some(tag) {
            found.add(format!("{id}@{offset} was read as record {tag} and is another"));
        }
    }
    for delivery in &history.deliveries {
        if delivery.records.windows(2).any(|w| w[1].0 != w[0].0 + 1) {
            found.add(format!(
                "a delivery to {} has a hole: {:?}",
                delivery.group, delivery.records
            ));
        }
    }
}
