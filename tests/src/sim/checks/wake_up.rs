//! Wake-up: no message waits while a consumer polls. Looked at in the truth, while everybody is at work.

use std::collections::BTreeMap;

use super::queue::leased_groups;
use crate::sim::{START_US, World, consumer::Kind};

/// What waits: pushes that nobody has seen through, and records that a group has not come past.
pub(crate) async fn waiting(world: &World) -> Vec<String> {
    let mut waiting = Vec::new();
    let batches = world.pending.lock().len();
    if batches > 0 {
        waiting.push(format!("{batches} batches are not stored"));
    }
    let items = world.memory.items();
    let mut heads: BTreeMap<&str, (&str, &str, i64)> = BTreeMap::new();
    let mut cursors: BTreeMap<(&str, &str), (i64, Option<i64>)> = BTreeMap::new();
    for (key, item) in &items {
        let text = |name| item.str(name).unwrap_or_default();
        let int = |name| item.int(name).unwrap_or_default();
        if key.pk.starts_with("p#") && key.sk == "head" {
            heads.insert(&key.pk[2..], (text("stream"), text("name"), int("tail")));
        } else if key.pk.starts_with("c#") {
            let cursor = (int("committed"), item.int("lease_until"));
            cursors.insert((text("group"), text("pid")), cursor);
        }
    }
    let mut groups = leased_groups();
    groups.push((Kind::Auto.stream(), Kind::Auto.group().to_owned()));
    groups.push((Kind::Tapes.stream(), Kind::Tapes.group().to_owned()));
    for (partition, (stream, name, tail)) in &heads {
        for (_, group) in groups.iter().filter(|(s, _)| s == stream) {
            match cursors.get(&(group.as_str(), *partition)) {
                Some((committed, _)) if committed >= tail => {}
                Some((committed, lease_until)) => {
                    let now_us = START_US + world.now().as_micros() as i64;
                    let lease = match lease_until {
                        None => "nothing is leased".to_owned(),
                        Some(until) => format!("a lease ends in {} ms", (until - now_us) / 1000),
                    };
                    let ready = items.keys().any(|k| k.pk.starts_with("r#") && k.sk == **partition);
                    let ready = if ready { "some group is ready" } else { "no group is ready" };
                    waiting.push(format!(
                        "group {group} is at {committed} of {tail} on {stream}/{name}; {lease}, {ready} there"
                    ));
                }
                None => waiting.push(format!("group {group} has never come to {stream}/{name}")),
            }
        }
    }
    waiting
}
