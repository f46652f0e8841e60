//! Streams without a log: rows go to whoever follows in this process at the moment, and are gone.
//!
//! The rows that passed last are kept for those who are a little behind, bounded in rows and bytes. A subscriber is a
//! place among all rows that ever passed, exactly as it is a position in a log; so it is served, measured and closed like any other, and
//! what one has not read never holds up another.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tidewheel_engine::Extent;
use tokio::sync::watch;

use crate::{limits, run::Run};

/// What passes through one stream without a log.
#[derive(Debug)]
pub(crate) struct Relay {
    kept: Mutex<Kept>,
    tail: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: VecDeque<Arc<Run>>,
    bytes: u64,
    /// Rows that have passed.
    tail: u64,
}

/// The rows of a place are gone.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl Relay {
    pub(crate) fn new() -> Self {
        Self { kept: Mutex::default(), tail: watch::channel(0).0 }
    }

    /// Passes rows on. They are encoded once, if anybody follows.
    pub(crate) fn send(&self, time_us: i64, rows: &[Bytes], max_backlog: u64) {
        let tail = {
            let mut kept = self.kept.lock();
            let start = kept.tail;
            kept.tail += rows.len() as u64;
            if self.tail.receiver_count() == 0 {
                kept.runs.clear();
                kept.bytes = 0;
            } else {
                let run = Arc::new(Run::unnumbered(start, time_us, rows));
                kept.bytes += run.weight();
                kept.runs.push_back(run);
                kept.trim(max_backlog);
            }
            kept.tail
        };
        self.tail.send_replace(tail);
    }

    /// A channel whose value is how many rows have passed.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.tail.subscribe()
    }

    /// How many rows have passed.
    pub(crate) fn extent(&self) -> Extent {
        let tail = self.kept.lock().tail;
        Extent { floor: tail, tail }
    }

    /// The rows at a place; `None` if none has passed it yet.
    pub(crate) fn rows(&self, place: u64) -> Result<Option<Arc<Run>>, Overrun> {
        let kept = self.kept.lock();
        if place >= kept.tail {
            return Ok(None);
        }
        let at = kept.runs.partition_point(|run| run.next() <= place);
        match kept.runs.get(at) {
            Some(run) if run.start() <= place => Ok(Some(Arc::clone(run))),
            _ => Err(Overrun),
        }
    }
}

impl Kept {
    /// Drops the oldest runs beyond the bounds. The newest stays, whatever its size.
    fn trim(&mut self, max_backlog: u64) {
        while let Some(second) = self.runs.get(1) {
            // What a subscriber may be behind is kept whole: from its place to the end.
            let spare = self.tail - second.start() >= max_backlog;
            if !spare && self.bytes <= limits::RELAY_BYTES as u64 {
                break;
            }
            if let Some(oldest) = self.runs.pop_front() {
                self.bytes -= oldest.weight();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> Vec<Bytes> {
        vec![Bytes::from_static(b"{}"); count]
    }

    fn texts(run: &Run) -> Vec<String> {
        let all = run.rest(0);
        all.texts().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
    }

    #[test]
    fn rows_pass_in_order_without_offsets() {
        let relay = Relay::new();
        relay.send(1, &rows(3), 10);
        assert_eq!(relay.extent(), Extent { floor: 3, tail: 3 });
        let watch = relay.watch();
        relay.send(7, &[Bytes::from_static(b"{\"a\":1}"), Bytes::from_static(b"{}")], 10);
        let run = relay.rows(3).unwrap().unwrap();
        assert_eq!(texts(&run), ["[null,7,{\"a\":1}]", "[null,7,{}]"]);
        assert_eq!((run.start(), run.next(), *watch.borrow()), (3, 5, 5));
        assert!(relay.rows(5).unwrap().is_none());
        assert_eq!(relay.rows(4).unwrap().unwrap().start(), 3, "in the middle of a run");
    }

    #[test]
    fn what_is_kept_is_bounded_and_covers_a_backlog() {
        let relay = Relay::new();
        let _watch = relay.watch();
        for _ in 0..100 {
            relay.send(1, &rows(3), 10);
        }
        assert!(relay.rows(300 - 10).unwrap().is_some());
        assert_eq!(relay.rows(300 - 14).map(|_| ()), Err(Overrun));
        assert!(relay.kept.lock().runs.len() <= 5);
        let wide = vec![Bytes::from(format!("\"{}\"", "x".repeat(1 << 20))); 40];
        relay.send(1, &wide, 1_000);
        relay.send(1, &wide, 1_000);
        assert_eq!(relay.kept.lock().runs.len(), 1, "by bytes");
    }

    #[test]
    fn nothing_is_kept_when_nobody_follows() {
        let relay = Relay::new();
        let watch = relay.watch();
        relay.send(1, &rows(3), 10);
        drop(watch);
        relay.send(1, &rows(3), 10);
        assert!(relay.kept.lock().runs.is_empty());
        assert_eq!(relay.rows(0).map(|_| ()), Err(Overrun));
    }
}
