//! Transactions: every record was moved exactly once.

use std::collections::BTreeMap;

use super::{Found, Logs};
use crate::sim::{
    History,
    transactor::origin,
    world::{FROM, TO},
};

pub(super) fn check(_: &History, logs: &Logs) -> Found {
    let mut found = Found::new("transactions");
    let mut moved: BTreeMap<u64, u32> = BTreeMap::new();
    for partition in logs.of(TO) {
        for record in &partition.records {
            match origin(&record.payload) {
                Some(tag) => *moved.entry(tag).or_default() += 1,
                None => found.add(format!("{TO}@{} says not where it came from", record.offset)),
            }
        }
    }
    for partition in logs.of(FROM) {
        for record in &partition.records {
            let times = moved.remove(&record.tag).unwrap_or(0);
            if times != 1 {
                let (name, offset) = (&partition.info.name, record.offset);
                found.add(format!("{FROM}/{name}@{offset} was moved {times} times"));
            }
        }
    }
    if !moved.is_empty() {
        found.add(format!("{} records were moved that are not there", moved.len()));
    }
    found
}
