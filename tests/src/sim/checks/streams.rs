//! Queries: the state is the fold of the input, and each input is in exactly one window, open or emitted.

use std::collections::BTreeMap;

use tidewheel_engine::{Engine, StateFilter, Uuid};

use super::{Found, Logs};
use crate::sim::{
    processor::{Order, QUERY, State, Total, Window, emitted},
    world::{ORDERS, OUT},
};

pub(super) async fn check(engine: &Engine, logs: &Logs) -> Found {
    let mut found = Found::new("streams");
    let query = Uuid::derived(&[b"query", QUERY.as_bytes()]);
    // Where each input is: (partition, offset) and how often.
    let mut inputs: BTreeMap<(String, u64), u32> = BTreeMap::new();
    let mut windows: Vec<(String, Window)> = Vec::new();
    for partition in logs.of(OUT) {
        for record in &partition.records {
            match emitted(&record.payload) {
                Some(window) => windows.push((
                    format!("emitted at {}@{}", partition.info.name, record.offset),
                    window,
                )),
                None => found
                    .add(format!("{OUT}/{}@{} is no window", partition.info.name, record.offset)),
            }
        }
    }
    for partition in logs.of(ORDERS) {
        let name = &partition.info.name;
        let state = match engine.state(&query, &partition.info.id, &StateFilter::default()).await {
            Ok(rows) => State::parse(&rows),
            Err(e) => {
                found.add(format!("the state of {name} cannot be read: {e}"));
                continue;
            }
        };
        let Some(state) = state else {
            found.add(format!("the state of {name} makes no sense"));
            continue;
        };
        windows.extend(state.windows.into_values().map(|(_, w)| (format!("open in {name}"), w)));
        let mut totals: BTreeMap<String, Total> = BTreeMap::new();
        for record in &partition.records {
            let Ok(order) = serde_json::from_slice::<Order>(&record.payload) else { continue };
            let total = totals.entry(order.key).or_default();
            total.count += 1;
            total.sum += order.v;
        }
        if totals != state.totals {
            found
                .add(format!("totals of {name} are {:?}; the fold gives {totals:?}", state.totals));
        }
    }
    for (place, window) in &windows {
        let partition = logs.of(ORDERS).iter().find(|p| p.info.name == window.partition);
        let mut sum = 0;
        for offset in &window.inputs {
            *inputs.entry((window.partition.clone(), *offset)).or_default() += 1;
            let order = partition
                .and_then(|p| p.at(*offset))
                .and_then(|r| serde_json::from_slice::<Order>(&r.payload).ok());
            match order {
                Some(order) if order.key == window.key => sum += order.v,
                _ => found.add(format!("{place}: {}@{offset} is no input of it", window.partition)),
            }
        }
        if sum != window.sum {
            found.add(format!("{place}: the sum is {}; its inputs make {sum}", window.sum));
        }
    }
    for partition in logs.of(ORDERS) {
        for record in &partition.records {
            let times =
                inputs.get(&(partition.info.name.clone(), record.offset)).copied().unwrap_or(0);
            if times != 1 {
                let (name, offset) = (&partition.info.name, record.offset);
                found.add(format!("input {name}@{offset} is in {times} windows"));
            }
        }
    }
    found
}
