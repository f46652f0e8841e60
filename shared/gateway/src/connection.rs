//! One subscriber: its position, what it wants, and whether it keeps up.
//!
//! # Who is too slow
//!
//! Nothing is queued for a subscriber, so there is no queue to overflow: it reads the log at its own pace, and holds up
//! nobody. What is measured is whether it keeps up. It runs in *laps*: a lap begins at its position, and its target is
//! the tail at that moment. If, before the target is reached, the log grows beyond it by more rows than the lap has and by
//! more than the backlog, the subscriber falls further and further behind, and is closed with 4429. So
//! - a burst is forgiven, however large: it becomes the next lap;
//! - a replay is one long lap, paced by the socket;
//! - a reader that stands still is closed after a backlog of new rows, and one that is a little slower than the log is
//!   closed once it is about a backlog behind.
//!
//! What it got is a prefix without a hole, so it resumes at the offset after the last.

use std::sync::Arc;

use bytes::Bytes;
use tidewheel_engine::{Extent, PartitionId, Uuid};

use crate::{
    Close, Filter, Start, Subscribe, Terms,
    greeting::Greeting,
    run::{Frames, Run},
};

/// What is known of a partition when a subscriber comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The stream's id.
    pub stream_id: Uuid,
    /// What can be served of the partition; empty for one that was never written. Of a stream without a log: how many
    /// rows have passed.
    pub extent: Extent,
}

/// A subscription that was accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The subscription.
    pub connection: Connection,
    /// The first frame to send: the greeting, JSON text.
    pub greeting: Bytes,
}

/// A message from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// A text, UTF-8.
    Text(Bytes),
    /// Bytes.
    Binary(Bytes),
}

/// A subscriber.
#[derive(Debug)]
pub struct Connection {
    stream: Arc<str>,
    stream_id: Uuid,
    partition: PartitionId,
    filter: Option<Filter>,
    log: bool,
    max_backlog: u64,
    /// The engine's offset of the next row to send.
    position: u64,
    /// False until rows were taken: a gap before the first is an eviction, a later one means that the reader was slower
    /// than retention.
    begun: bool,
    /// It asked for whatever comes first, so a gap before the first row is none.
    from_earliest: bool,
    lap_start: u64,
    lap_target: u64,
}

impl Connection {
    /// Accepts or refuses a subscription.
    ///
    /// # Errors
    /// 4400 for a filter that cannot be; 4416 for an offset that cannot be served: there is no log, or it is ahead of the
    /// log, evicted, or too far behind.
    pub fn on_connect(request: Subscribe, log: &Log, terms: &Terms) -> Result<Accepted, Close> {
        let Subscribe { stream, partition, start, filter } = request;
        let filter = filter.map(|text| Filter::bind(&text, terms.schema.as_deref())).transpose()?;
        if !terms.log && start != Start::Live {
            return Err(Close::not_durable());
        }
        let Extent { floor, tail } = log.extent;
        let position = match start {
            Start::Live => tail,
            Start::Earliest => floor,
            Start::At(offset) if offset > tail => return Err(Close::ahead(offset + 1, tail + 1)),
            Start::At(offset) if offset < floor => {
                return Err(Close::evicted(offset + 1, floor + 1));
            }
            Start::At(offset) => offset,
        };
        let behind = tail - position;
        if let Some(max_replay) = terms.max_replay.filter(|max| behind > *max) {
            return Err(Close::too_old(position + 1, behind, max_replay));
        }
        let replay = (start != Start::Live).then_some([position + 1, tail + 1]);
        let stream_id = log.stream_id.to_string();
        let text = filter.as_ref().map(Filter::text);
        let greeting = Greeting::new(terms, &stream, &stream_id, tail + 1);
        let greeting = greeting.following(replay, text).text();
        let connection = Self {
            partition: PartitionId::of(&log.stream_id, &partition),
            stream: stream.into(),
            stream_id: log.stream_id,
            filter,
            log: terms.log,
            max_backlog: terms.max_backlog,
            position,
            begun: false,
            from_earliest: start == Start::Earliest,
            lap_start: position,
            lap_target: tail,
        };
        Ok(Accepted { connection, greeting })
    }

    /// The stream that it follows.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The id of that stream.
    pub fn stream_id(&self) -> Uuid {
        self.stream_id
    }

    /// The partition that it follows.
    pub fn partition(&self) -> &PartitionId {
        &self.partition
    }

    /// Which rows it wants, if not all.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// True if what it follows is kept.
    pub fn has_log(&self) -> bool {
        self.log
    }

    /// The engine's offset of the row that it wants next.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes rows, of which the first lies at or before the position (or the log begins later). Answers the frames
    /// to send; the position moves behind the run.
    ///
    /// # Errors
    /// 4416 or 4429 if rows that it had to get are no longer there.
    pub fn on_rows<'a>(&mut self, run: &'a Run) -> Result<Frames<'a>, Close> {
        if run.start() > self.position && !run.is_empty() {
            match (self.begun, self.from_earliest) {
                (false, true) => self.position = run.start(),
                (false, false) => {
                    return Err(Close::evicted(self.position + 1, run.start() + 1));
                }
                (true, _) => return Err(Close::too_slow(self.max_backlog)),
            }
        }
        let skip = (self.position - run.start().min(self.position)) as usize;
        self.begun |= run.next() > self.position;
        self.position = self.position.max(run.next());
        Ok(match &self.filter {
            Some(filter) => run.select(skip, |row| filter.matches(row)),
            None => run.rest(skip),
        })
    }

    /// The rows at its position have left a stream without a log: it is too slow.
    pub(crate) fn overrun(&self) -> Close {
        Close::too_slow(self.max_backlog)
    }

    /// Learns how far the log reaches, in the engine's offsets. Answers a close if the subscriber does not keep up.
    ///
    /// To be called whenever the tail moves, while frames are being sent too.
    pub fn on_tail(&mut self, tail: u64) -> Option<Close> {
        if self.position >= self.lap_target {
            self.lap_start = self.position;
            self.lap_target = tail.max(self.position);
            return None;
        }
        let allowed = self.max_backlog.max(self.lap_target - self.lap_start);
        (tail.saturating_sub(self.lap_target) > allowed).then(|| Close::too_slow(self.max_backlog))
    }

    /// A message came. A subscriber has nothing to say, so it is told so.
    pub fn on_message(&mut self, message: &Inbound) -> Close {
        match message {
            Inbound::Text(_) => Close::bad_request("a subscriber sends no messages"),
            Inbound::Binary(_) => Close::bad_request("binary messages are not accepted"),
        }
    }

    /// The server stops.
    pub fn on_shutdown(&mut self) -> Close {
        Close::going_away()
    }
}
