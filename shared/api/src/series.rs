//! What this process did, minute by minute, for the pages that show it over time.
//!
//! Nothing runs for it: the first request of a new minute closes the minutes before it does anything, and what was
//! counted since the last closing belongs to the minute in which that closing was, since no other began after it. Minutes in which
//! nothing happened are left out. It is this process's memory alone and begins with it.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicI64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use crate::Api;

pub(crate) const MINUTE_US: i64 = 60_000_000;

/// Minutes that are remembered: a day of them.
const MINUTES: usize = 24 * 60;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) server_errors: u64,
    pub(crate) pushed: u64,
    pub(crate) duplicates: u64,
    pub(crate) popped: u64,
    pub(crate) pops_empty: u64,
    pub(crate) acked: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) cycles: u64,
    pub(crate) expired: u64,
}

impl Counts {
    fn fields(&mut self) -> [&mut u64; 10] {
        let Self { requests, server_errors, pushed, duplicates, popped, .. } = self;
        let Self { pops_empty, acked, dead_lettered, cycles, expired, .. } = self;
        [
            requests,
            server_errors,
            pushed,
            duplicates,
            popped,
            pops_empty,
            acked,
            dead_lettered,
            cycles,
            expired,
        ]
    }

    /// What came since.
    fn since(mut self, mut before: Self) -> Self {
        for (now, before) in self.fields().into_iter().zip(before.fields()) {
            *now = now.saturating_sub(*before);
        }
        self
    }

    pub(crate) fn add(&mut self, mut other: Self) {
        for (sum, more) in self.fields().into_iter().zip(other.fields()) {
            *sum += *more;
        }
    }
}

/// The minutes of a process.
#[derive(Default)]
pub(crate) struct Series {
    /// The minute of the last closing.
    minute: AtomicI64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Minutes since 1970, with what was counted in each.
    minutes: VecDeque<(i64, Counts)>,
    /// The totals at the last closing.
    closed: Counts,
}

impl Series {
    pub(crate) fn new(now_us: i64) -> Self {
        Self { minute: AtomicI64::new(now_us.div_euclid(MINUTE_US)), state: Mutex::default() }
    }

    /// Closes the minutes before the present one, if there are any that are open.
    pub(crate) fn note(&self, now_us: i64, totals: impl FnOnce() -> Counts) {
        let minute = now_us.div_euclid(MINUTE_US);
        if self.minute.load(Relaxed) < minute {
            let mut state = self.state.lock();
            let last = self.minute.swap(minute, Relaxed);
            if last < minute {
                state.close(last, totals());
            }
        }
    }

    /// Every minute in which something was counted, the present one included, from `from_us` until before `to_us`.
    pub(crate) fn read(&self, from_us: i64, to_us: i64, totals: Counts) -> Vec<(i64, Counts)> {
        let state = self.state.lock();
        let open = (self.minute.load(Relaxed), totals.since(state.closed));
        let minutes = state.minutes.iter().copied().chain([open]);
        let within = |minute: i64| {
            let at_us = minute.saturating_mul(MINUTE_US);
            at_us.saturating_add(MINUTE_US) > from_us && at_us < to_us
        };
        minutes
            .filter(|(minute, counts)| within(*minute) && *counts != Counts::default())
            .map(|(minute, counts)| (minute * MINUTE_US, counts))
            .collect()
    }
}

impl State {
    fn close(&mut self, minute: i64, totals: Counts) {
        let counts = totals.since(self.closed);
        self.closed = totals;
        if counts != Counts::default() {
            self.minutes.push_back((minute, counts));
        }
        if self.minutes.len() > MINUTES {
            self.minutes.pop_front();
        }
    }
}

impl Api {
    /// What this process has counted since it began.
    pub(crate) fn totals(&self) -> Counts {
        let counters = self.engine().counters().0;
        let counter = |name| counters.get(name).copied().unwrap_or(0);
        let (requests, server_errors) = self.http().totals();
        Counts {
            requests,
            server_errors,
            pushed: counter("records_pushed") + counter("records_pushed_by_cycles"),
            duplicates: counter("records_duplicate"),
            popped: counter("records_popped"),
            pops_empty: counter("pops_empty"),
            acked: counter("acks"),
            dead_lettered: counter("records_dead_lettered"),
            cycles: counter("cycles"),
            expired: counter("records_expired"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_belongs_to_the_minute_it_came_in() {
        let series = Series::new(90_000_000);
        let totals = |requests| Counts { requests, ..Counts::default() };
        series.note(100_000_000, || unreachable!());
        assert_eq!(series.read(0, i64::MAX, totals(3)), [(60_000_000, totals(3))]);
        // The request of the second minute closes the first and is not of it: it is counted after.
        series.note(130_000_000, || totals(3));
        series.note(600_000_000, || totals(5));
        series.note(660_000_000, || totals(5));
        let minutes = [(60_000_000, totals(3)), (120_000_000, totals(2)), (660_000_000, totals(4))];
        assert_eq!(series.read(0, i64::MAX, totals(9)), minutes);
        assert_eq!(series.read(130_000_000, 660_000_000, totals(9)), minutes[1..2]);
    }

    #[test]
    fn a_day_is_remembered_and_no_more() {
        let series = Series::new(0);
        for minute in 1..=5000 {
            let requests = minute as u64;
            let totals = Counts { requests, ..Counts::default() };
            series.note(minute * MINUTE_US, || totals);
        }
        assert_eq!(series.state.lock().minutes.len(), MINUTES);
    }
}
