//! Consumer groups: exclusive leases, nothing skipped, nothing again after it was settled.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidewheel_engine::{Ack, Engine, PartitionId, Pop, PopTarget, SubscriptionMode, Verdict};

use super::{Found, Logs, Partition};
use crate::sim::{
    History, World,
    consumer::Kind,
    history::{Answer, Delivery, Settlement},
    processor, transactor,
    world::{FROM, ORDERS, TAPES},
};

/// Groups that consume under leases and are never moved, with their streams.
pub(super) fn leased_groups() -> Vec<(&'static str, String)> {
    let mut groups: Vec<(&'static str, String)> =
        [Kind::All, Kind::Late, Kind::New, Kind::Named, Kind::Jobs, Kind::Aged]
            .into_iter()
            .map(|kind| (kind.stream(), kind.group().to_owned()))
            .collect();
    groups.push((ORDERS, processor::group()));
    groups.push((FROM, transactor::GROUP.to_owned()));
    groups
}

/// How far apart clocks of processes may be, twice the bound of one.
const SKEW: Duration = Duration::from_millis(650);

pub(super) fn check(history: &History, logs: &Logs) -> Found {
    let mut found = Found::new("queue");
    for (stream, group) in leased_groups() {
        for partition in logs.of(stream) {
            let own = Own::of(history, &group, &partition.info.id);
            let what = format!("group {group} on {stream}/{}", partition.info.name);
            own.settled_once(&what, &mut found);
            own.never_again(&what, &mut found);
            own.exclusive(&what, &mut found);
            own.nothing_skipped(history, &group, partition, &what, &mut found);
        }
    }
    for partition in logs.of(ORDERS) {
        at_most_once(history, partition, &mut found);
    }
    found
}

/// What happened to one group on one partition.
struct Own<'a> {
    deliveries: Vec<(usize, &'a Delivery)>,
    settlements: Vec<&'a Settlement>,
}

impl<'a> Own<'a> {
    fn of(history: &'a History, group: &str, partition: &PartitionId) -> Self {
        let deliveries: Vec<_> = history
            .deliveries
            .iter()
            .enumerate()
            .filter(|(_, d)| d.group == group && d.partition == *partition)
            .collect();
        let places: BTreeSet<usize> = deliveries.iter().map(|(place, _)| *place).collect();
        let settlements =
            history.settlements.iter().filter(|s| places.contains(&s.delivery)).collect();
        Self { deliveries, settlements }
    }

    fn delivery(&self, place: usize) -> Option<&'a Delivery> {
        self.deliveries.iter().find(|(p, _)| *p == place).map(|(_, d)| *d)
    }

    /// No offset is settled under two leases.
    fn settled_once(&self, what: &str, found: &mut Found) {
        let mut by: BTreeMap<u64, &str> = BTreeMap::new();
        for settlement in self.settlements.iter().filter(|s| s.is_done()) {
            let (Some(to), Some(delivery)) =
                (settlement.done_to(), self.delivery(settlement.delivery))
            else {
                continue;
            };
            for offset in delivery.from()..to {
                let lease = by.entry(offset).or_insert(&delivery.lease);
                if *lease != delivery.lease {
                    found.add(format!("{what}: offset {offset} was settled by two holders"));
                    break;
                }
            }
        }
    }

    /// What was settled, and known to be, is not delivered by a pop that began after that.
    fn never_again(&self, what: &str, found: &mut Found) {
        let done: Vec<(Duration, u64)> = self
            .settlements
            .iter()
            .filter_map(|s| match (&s.answer, s.done_to()) {
                (Answer::Done { at, noop: false, .. }, Some(to)) => Some((*at, to)),
                _ => None,
            })
            .collect();
        for (_, delivery) in &self.deliveries {
            let to = done.iter().filter(|(at, _)| *at <= delivery.invoked).map(|d| d.1).max();
            if to.is_some_and(|to| delivery.from() < to) {
                let (from, at) = (delivery.from(), delivery.returned);
                found.add(format!(
                    "{what}: offset {from} came again at {at:?} after it was settled"
                ));
            }
        }
    }

    /// Two leases on the same record were granted one after the other: the later one when the earlier had lapsed, or its
    /// holder had begun to settle it. Neither order is possible: a violation.
    fn exclusive(&self, what: &str, found: &mut Found) {
        let mut begun: BTreeMap<&str, Duration> = BTreeMap::new();
        for settlement in &self.settlements {
            if let Some(delivery) = self.delivery(settlement.delivery) {
                let first = begun.entry(&delivery.lease).or_insert(settlement.invoked);
                *first = settlement.invoked.min(*first);
            }
        }
        let free = |d: &Delivery| {
            let lapses = (d.invoked + d.lease_time).saturating_sub(SKEW);
            begun.get(d.lease.as_str()).map_or(lapses, |b| lapses.min(*b))
        };
        for (at, (_, a)) in self.deliveries.iter().enumerate() {
            for (_, b) in &self.deliveries[at + 1..] {
                let overlap = b.from() < a.end() && a.from() < b.end();
                let possible = b.returned >= free(a) || a.returned >= free(b);
                if overlap && !possible && a.lease != b.lease {
                    let from = b.from().max(a.from());
                    found.add(format!(
                        "{what}: offset {from} was leased to two at {:?}",
                        b.returned
                    ));
                }
            }
        }
    }

    /// Every record from where the group began was settled by somebody who had got it.
    fn nothing_skipped(
        &self,
        history: &History,
        group: &str,
        partition: &Partition,
        what: &str,
        found: &mut Found,
    ) {
        let mut covered: BTreeSet<u64> = BTreeSet::new();
        for settlement in self.settlements.iter().filter(|s| s.answer != Answer::Refused) {
            // One without an answer may have given up what it said had failed.
            let to = match &settlement.answer {
                Answer::Doubtful => settlement.verdicts.iter().map(|(o, _)| o + 1).max(),
                _ => settlement.done_to(),
            };
            if let (Some(to), Some(delivery)) = (to, self.delivery(settlement.delivery)) {
                covered.extend(delivery.from()..to);
            }
        }
        let start = if group == Kind::New.group() {
            new_start(history, partition, &covered, what, found)
        } else {
            0
        };
        let skipped: Vec<u64> = (start..partition.tail).filter(|o| !covered.contains(o)).collect();
        if !skipped.is_empty() {
            let tail = partition.tail;
            found.add(format!(
                "{what}: {skipped:?} of {tail} were never settled by who had got them"
            ));
        }
    }
}

/// Where a group of mode "new" must have begun at the latest: at the first record that was sent after it had joined.
fn new_start(
    history: &History,
    partition: &Partition,
    covered: &BTreeSet<u64>,
    what: &str,
    found: &mut Found,
) -> u64 {
    let key = (Kind::New.stream().to_owned(), Kind::New.group().to_owned());
    let Some((began, joined)) = history.joined.get(&key) else { return partition.tail };
    // A group that found the partition only later goes by times, and clocks differ.
    let slack = Duration::from_secs(2);
    let late = |offset: u64| {
        let sent = partition.at(offset).and_then(|r| history.sent.get(&r.tag));
        joined.is_some_and(|j| sent.and_then(|s| s.first).is_some_and(|first| first > j + slack))
    };
    let first_late = (partition.floor..partition.tail).find(|o| late(*o)).unwrap_or(partition.tail);
    let start = covered.first().copied().unwrap_or(partition.tail);
    if start > first_late {
        found.add(format!("{what}: it began at {start}, after {first_late} was sent"));
    }
    // What was acknowledged well before the group existed is not new.
    let early = partition.at(start).and_then(|r| history.sent.get(&r.tag));
    if early.is_some_and(|s| s.placed.iter().any(|(_, at)| *at + Duration::from_secs(5) < *began)) {
        found.add(format!("{what}: offset {start} was there long before it joined"));
    }
    start.min(first_late)
}

/// What is committed at delivery is delivered once at most.
fn at_most_once(history: &History, partition: &Partition, found: &mut Found) {
    let mut seen = BTreeSet::new();
    for delivery in history
        .deliveries
        .iter()
        .filter(|d| d.group == Kind::Auto.group() && d.partition == partition.info.id)
    {
        for (offset, _) in &delivery.records {
            if !seen.insert(*offset) {
                let name = &partition.info.name;
                found.add(format!("group auto on {name}: offset {offset} was delivered twice"));
            }
        }
    }
}

/// A group that goes back to the beginning gets everything again, in order, once.
pub(super) async fn check_replay(world: &World, engine: &Engine, logs: &Logs) -> Found {
    let mut found = Found::new("queue");
    let group = Kind::Tapes.group();
    if let Err(e) = engine.seek(group, TAPES, None, Some(0)).await {
        found.add(format!("seek: {e}"));
        return found;
    }
    let mut got: BTreeMap<PartitionId, Vec<u64>> = BTreeMap::new();
    let until = world.now() + Duration::from_secs(60);
    loop {
        let popped = engine
            .pop(Pop {
                conflation: None,
                target: PopTarget::Stream { stream: TAPES.to_owned() },
                group: Some(group.to_owned()),
                batch: 100,
                partitions: 4,
                wait: Some(Duration::from_millis(1)),
                lease_seconds: None,
                auto_ack: false,
                mode: SubscriptionMode::All,
            })
            .await;
        let popped = match popped {
            Ok(popped) => popped,
            Err(e) => {
                found.add(format!("replay: {e}"));
                return found;
            }
        };
        if popped.messages.is_empty() || world.now() > until {
            break;
        }
        let acks = popped.messages.iter().map(|m| Ack {
            transaction_id: m.record.transaction_id.clone(),
            partition_id: m.partition.id.to_string(),
            verdict: Verdict::Completed,
            lease_id: Some(popped.lease_id.clone()),
            error: None,
        });
        let acked = engine.ack(Some(group), acks.collect()).await;
        if let Some(e) =
            acked.as_ref().err().map(ToString::to_string).or_else(|| {
                acked.as_ref().ok().and_then(|a| a.iter().find_map(|a| a.error.clone()))
            })
        {
            found.add(format!("replay: ack: {e}"));
            return found;
        }
        for message in &popped.messages {
            got.entry(message.partition.id).or_default().push(message.record.offset);
        }
    }
    for partition in logs.of(TAPES) {
        let offsets = got.remove(&partition.info.id).unwrap_or_default();
        if !offsets.iter().copied().eq(0..partition.tail) {
            let (name, tail) = (&partition.info.name, partition.tail);
            found.add(format!(
                "replay of {name} gave {} of {tail} records, or not in order",
                offsets.len()
            ));
        }
    }
    found
}
