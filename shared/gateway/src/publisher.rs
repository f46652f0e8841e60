//! One publisher: what it sent, what is answered, and in which order.
//!
//! Every message has one answer, and answers go out in the order of the messages; that is how a client tells which is
//! which. A message that is wrong by itself is answered at once, but waits for the answers before it. What is right waits
//! for the store: while one commit is under way, messages gather, and the next commit takes all that have come.
//!
//! Whatever drives it feeds [`Publisher::on_message`] while [`Publisher::reads`] holds, has [`Publisher::take`]n
//! frames committed, reports [`Publisher::on_outcomes`], sends [`Publisher::replies`], and ends the connection when
//! [`Publisher::ending`] says so, which is not before everything that came earlier is answered.
//!
//! An answer is a promise: `ok` says that the rows are kept, `commit_failed` that they are not. Where neither is known the
//! connection is closed, and the client finds out by its marks or its own means. A client's library deletes a row
//! that is answered with any error word it does not know, so there are none but those of the protocol.

use std::{collections::VecDeque, fmt::Write as _};

use bytes::Bytes;

use crate::{Close, Inbound, frame::Frame, limits};

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All its rows are kept, or passed on where nothing is kept. Offsets are the engine's.
    Landed {
        /// One for each row; `None` if there is none, or it is forgotten.
        offsets: Vec<Option<u64>>,
        /// The first so many rows were there already.
        duplicates: usize,
    },
    /// A row does not fit the stream; nothing landed.
    Rejected {
        /// Which, and why.
        detail: String,
    },
    /// Rows before it are missing; nothing landed.
    Gap {
        /// The sequence number that comes next.
        expected: u64,
        /// The frame's.
        got: u64,
    },
    /// The store could not take it; nothing landed, and it may be tried again.
    Failed {
        /// Why.
        detail: String,
    },
    /// Another connection publishes under the same id by now; nothing landed.
    Superseded,
    /// The stream takes no more rows; nothing landed.
    Retired {
        /// Since when.
        at_us: i64,
        /// The engine's offset after the last row.
        end: u64,
    },
    /// Nobody knows whether it landed.
    Unknown,
}

/// A publisher's side of a connection.
#[derive(Debug)]
pub struct Publisher {
    stream: String,
    exactly_once: bool,
    max_message_bytes: usize,
    /// One for each message that is not answered yet, in order.
    slots: VecDeque<Slot>,
    /// Frames that wait for a commit, in order, with the sizes of their messages.
    queued: VecDeque<(Frame, usize)>,
    /// Frames in the commit that is under way.
    committing: usize,
    ending: Option<Close>,
}

#[derive(Debug)]
enum Slot {
    /// The answer, which waits for those before it.
    Answered(Bytes),
    /// The message waits for the store.
    Waiting,
}

impl Publisher {
    /// Of a stream, under an id or not.
    pub fn new(stream: &str, exactly_once: bool, max_message_bytes: usize) -> Self {
        Self {
            stream: stream.to_owned(),
            exactly_once,
            max_message_bytes,
            slots: VecDeque::new(),
            queued: VecDeque::new(),
            committing: 0,
            ending: None,
        }
    }

    /// A message came. Answers how many rows wait for the store because of it.
    pub fn on_message(&mut self, message: Inbound) -> usize {
        // The protocol's clients send texts; JSON that comes as bytes is JSON too.
        let (Inbound::Text(message) | Inbound::Binary(message)) = message;
        if self.ending.is_some() {
            return 0;
        }
        if message.len() > self.max_message_bytes {
            self.end(Close::too_big(message.len(), self.max_message_bytes, &self.stream));
            return 0;
        }
        match Frame::parse(&message, self.exactly_once) {
            Ok(frame) => {
                let rows = frame.rows.len();
                self.slots.push_back(Slot::Waiting);
                self.queued.push_back((frame, message.len()));
                rows
            }
            Err(detail) => {
                self.slots.push_back(Slot::Answered(error("bad_frame", &detail)));
                0
            }
        }
    }

    /// False while it is owed as many answers as may be: its socket is not to be read then.
    pub fn reads(&self) -> bool {
        self.slots.len() < limits::MAX_IN_FLIGHT && self.ending.is_none()
    }

    /// The frames to commit now, in order; none while a commit is under way.
    pub fn take(&mut self) -> Vec<Frame> {
        if self.committing > 0 {
            return Vec::new();
        }
        let (mut bytes, mut rows) = (0, 0);
        let mut frames = Vec::new();
        while let Some((frame, size)) = self.queued.front() {
            bytes += size;
            rows += frame.rows.len();
            let fits = bytes <= limits::COMMIT_BYTES && rows <= limits::MESSAGE_ROWS;
            if !fits && !frames.is_empty() {
                break;
            }
            frames.extend(self.queued.pop_front().map(|(frame, _)| frame));
        }
        self.committing = frames.len();
        frames
    }

    /// The frames that were taken last are through: one outcome for each, in order.
    pub fn on_outcomes(&mut self, outcomes: Vec<Outcome>) {
        let mut outcomes = outcomes.into_iter();
        let mut left = std::mem::take(&mut self.committing);
        let mut ends = None;
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            if !matches!(slot, Slot::Waiting) {
                continue;
            }
            left -= 1;
            match answer(outcomes.next().unwrap_or(Outcome::Unknown)) {
                Ok(reply) => *slot = Slot::Answered(reply),
                Err(close) => {
                    ends = Some((place, close));
                    break;
                }
            }
        }
        if let Some((place, close)) = ends {
            // It and whatever came after it stay without an answer.
            self.slots.truncate(place);
            self.queued.clear();
            self.ending = Some(close);
        }
    }

    /// Nothing more can be read: everything before is committed and answered, and then the connection ends.
    pub fn on_last(&mut self, close: Close) {
        self.end(close);
    }

    /// Another connection has taken the id over: what does not wait for the store yet is not for this one to bring.
    pub fn on_superseded(&mut self) {
        self.give_up(Close::superseded());
    }

    /// The server stops, or the stream has changed: what is on its way to the store is answered, and no more.
    pub fn on_end(&mut self, close: Close) {
        self.give_up(close);
    }

    fn give_up(&mut self, close: Close) {
        self.queued.clear();
        let mut left = self.committing;
        let kept = self.slots.iter().take_while(|slot| match slot {
            Slot::Answered(_) => true,
            Slot::Waiting if left > 0 => {
                left -= 1;
                true
            }
            Slot::Waiting => false,
        });
        let kept = kept.count();
        self.slots.truncate(kept);
        self.end(close);
    }

    fn end(&mut self, close: Close) {
        self.ending.get_or_insert(close);
    }

    /// The answers that may go out, in order.
    pub fn replies(&mut self) -> Vec<Bytes> {
        let mut replies = Vec::new();
        while let Some(Slot::Answered(_)) = self.slots.front() {
            if let Some(Slot::Answered(reply)) = self.slots.pop_front() {
                replies.push(reply);
            }
        }
        replies
    }

    /// How the connection ends, once everything before the end is answered.
    pub fn ending(&self) -> Option<&Close> {
        self.ending.as_ref().filter(|_| self.slots.is_empty())
    }
}

fn answer(outcome: Outcome) -> Result<Bytes, Close> {
    Ok(match outcome {
        Outcome::Landed { offsets, duplicates } => ok(&offsets, duplicates),
        Outcome::Rejected { detail } => error("rejected", &detail),
        Outcome::Failed { detail } => error("commit_failed", &detail),
        Outcome::Gap { expected, got } => {
            format!(r#"{{"error":"gap","expected":{expected},"got":{got}}}"#).into()
        }
        Outcome::Superseded => return Err(Close::superseded()),
        Outcome::Retired { at_us, end } => return Err(Close::retired(at_us, end + 1)),
        Outcome::Unknown => return Err(Close::unavailable()),
    })
}

fn ok(offsets: &[Option<u64>], duplicates: usize) -> Bytes {
    let mut text = String::with_capacity(16 + offsets.len() * 12);
    text.push_str(r#"{"ok":["#);
    for (i, offset) in offsets.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        // Writing to a text does not fail.
        let _ = match offset {
            Some(offset) => write!(text, "{comma}{}", offset + 1),
            None => write!(text, "{comma}null"),
        };
    }
    text.push(']');
    if duplicates > 0 {
        let _ = write!(text, r#","dup":{duplicates}"#);
    }
    text.push('}');
    text.into()
}

fn error(word: &str, detail: &str) -> Bytes {
    serde_json::json!({"error": word, "detail": detail}).to_string().into()
}
