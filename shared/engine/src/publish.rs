//! Publishing: frames of rows into a declared stream, each of which lands whole or not at all.
//!
//! A frame is checked as it comes in, so that a bad one fails alone. Then it waits in the partition's frame lane: while
//! one commit is under way the frames gather, and the next commit takes them all, each frame's rows together and in the
//! order in which they came (or each its own commit, if the stream has declared so). All rows of one commit have one
//! time, which is also what a replay and the table say.
//!
//! Whether a claimed frame is new, a repeat or out of order is judged inside the commit, by the mark that the commit
//! moves. Nothing here is answered with "failed" unless it is certain that nothing landed.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use tidewheel_schema::RowError;
use tokio::sync::oneshot;

use crate::{
    Claim, DEFAULT_PARTITION, Declared, Engine, Error, Pushed, Relayed,
    append::{Append, Candidate},
    generations::retired_error,
    limits,
    publisher::digest,
    stream::StreamRecord,
    warm::{Counts, Warm},
};

/// Rows that land together.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The publisher that it is of, if that is exactly once.
    pub claim: Option<Claim>,
    /// The number of its first row, from 1; without a claim it means nothing.
    pub seq: u64,
    /// The rows, JSON objects.
    pub rows: Vec<Bytes>,
}

/// What became of a frame that landed, or was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The offset of each row, as the engine counts; `None` on a stream without a log, and of a repeated row whose place
    /// is forgotten.
    pub offsets: Vec<Option<u64>>,
    /// How many of the first rows had landed before.
    pub duplicates: usize,
    /// The served time of the rows that landed now, µs.
    pub time_us: i64,
}

/// Why a frame did not land. Nothing of it did, unless the outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// It can never land.
    #[error("{detail}")]
    Rejected {
        /// Why: a row that does not fit names its column.
        detail: String,
    },
    /// Rows are missing before it.
    #[error("row {expected} is next, not {got}")]
    Gap {
        /// The number that is next.
        expected: u64,
        /// The number that it began with.
        got: u64,
    },
    /// Somebody else has claimed the publisher.
    #[error("the publisher was claimed by another")]
    Superseded,
    /// The stream takes no more rows.
    #[error("the stream is retired: it ends at offset {end}")]
    Retired {
        /// When it was retired, µs.
        at_us: i64,
        /// One past its last offset.
        end: u64,
    },
    /// It is certain that nothing landed. The same may be tried again.
    #[error("{detail}")]
    Failed {
        /// Why.
        detail: String,
    },
    /// The outcome could not be found out: it may land yet. A claimed frame may be sent again, and counts once; of any
    /// other nobody must say that it failed.
    #[error("the outcome is unknown: {detail}")]
    Unknown {
        /// Why.
        detail: String,
    },
}

impl From<Error> for PublishError {
    fn from(e: Error) -> Self {
        match e {
            Error::Retired { at_us, end, .. } => Self::Retired { at_us, end },
            Error::Unknown(detail) => Self::Unknown { detail },
            Error::Row { error, .. } => Self::Rejected { detail: error.to_string() },
            Error::Limit { .. } => Self::Rejected { detail: e.to_string() },
            other => Self::Failed { detail: other.to_string() },
        }
    }
}

/// What an append has made of a frame.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// A row does not fit.
    Rejected(String),
    /// Rows are missing before it.
    Gap { expected: u64 },
    /// The claim is not the latest.
    Superseded,
    /// It lands; so many of its first rows are there already.
    Taken { known: usize },
}

/// A frame in an append.
pub(crate) struct Framed {
    /// Its rows among the append's candidates.
    pub(crate) rows: std::ops::Range<usize>,
    /// The publisher's digest, and the epoch of the claim.
    pub(crate) digest: Option<(String, i64)>,
    pub(crate) seq: u64,
    pub(crate) verdict: Verdict,
}

impl Framed {
    pub(crate) fn is_refused_by_head(&self) -> bool {
        matches!(self.verdict, Verdict::Gap { .. } | Verdict::Superseded)
    }
}

/// A frame that waits for its turn.
struct Waiting {
    record: Arc<StreamRecord>,
    rows: Vec<Candidate>,
    bytes: usize,
    digest: Option<(String, i64)>,
    seq: u64,
    /// It shares no commit.
    alone: bool,
    reply: oneshot::Sender<Result<Landed, PublishError>>,
}

/// Frames of one process that want into the same partition.
#[derive(Default)]
pub(crate) struct FrameLane {
    busy: bool,
    waiting: VecDeque<Waiting>,
}

type Answer = oneshot::Receiver<Result<Landed, PublishError>>;

impl Engine {
    /// Publishes frames into a declared stream, in their order. Answers stand in the order of the frames.
    ///
    /// A frame lands whole or not at all; of a claimed one, what had landed before is not stored again. One that is
    /// refused does not hold up the others, but of claimed ones those after it find a gap.
    pub async fn publish(
        &self,
        name: &str,
        frames: Vec<Frame>,
    ) -> Vec<Result<Landed, PublishError>> {
        if let Err(e) = self.check_push_allowed().await {
            return refuse(&frames, e);
        }
        let mut record = match self.stream_record(name).await {
            Ok(record) => record,
            Err(e) => return refuse(&frames, e),
        };
        let mut checked = check_all(name, record.as_ref(), &frames);
        if checked.iter().any(Result::is_err) {
            // What is remembered of the stream may be old, and nothing is refused for that.
            record = match self.reread_stream(name).await {
                Ok(record) => record,
                Err(e) => return refuse(&frames, e),
            };
            checked = check_all(name, record.as_ref(), &frames);
        }
        let declared = record.as_ref().and_then(|r| r.declared.clone());
        let (Some(record), Some(declared)) = (record, declared) else {
            return refuse(&frames, Error::NotDeclared(name.to_owned()));
        };
        if !declared.declaration.log {
            let frames = checked.into_iter().map(|rows| self.relay_frame(&declared, rows?));
            return frames.collect();
        }
        let answers = self.enqueue(&record, &declared, frames, checked);
        let mut landed = Vec::with_capacity(answers.len());
        for answer in answers {
            landed.push(match answer {
                Err(refused) => Err(refused),
                Ok(answer) => answer.await.unwrap_or_else(|_| {
                    let detail = "the commit was interrupted".to_owned();
                    Err(PublishError::Unknown { detail })
                }),
            });
        }
        landed
    }

    fn relay_frame(
        &self,
        declared: &Declared,
        rows: Vec<Candidate>,
    ) -> Result<Landed, PublishError> {
        let rows: Vec<Bytes> = rows.into_iter().map(|row| row.packed.payload).collect();
        let (count, time_us) = (rows.len(), self.env().now_us());
        Counts::add(&self.inner.counts.rows_relayed, count);
        self.relay(&declared.stream, Relayed { time_us, rows: rows.into() });
        Ok(Landed { offsets: vec![None; count], duplicates: 0, time_us })
    }

    /// Puts the frames that are good into the lane, all of them before anybody else's next.
    fn enqueue(
        &self,
        record: &Arc<StreamRecord>,
        declared: &Declared,
        frames: Vec<Frame>,
        checked: Vec<Result<Vec<Candidate>, PublishError>>,
    ) -> Vec<Result<Answer, PublishError>> {
        let mut answers = Vec::with_capacity(frames.len());
        let mut good = Vec::with_capacity(frames.len());
        for (frame, rows) in frames.into_iter().zip(checked) {
            answers.push(rows.map(|rows| {
                let (reply, answer) = oneshot::channel();
                let digest = frame.claim.as_ref().map(|c| (digest(&c.publisher), c.epoch));
                good.push(Waiting {
                    record: Arc::clone(record),
                    bytes: rows.iter().map(|r| r.packed.payload.len()).sum(),
                    rows,
                    digest,
                    seq: frame.seq,
                    alone: !declared.declaration.group_commit,
                    reply,
                });
                answer
            }));
        }
        if good.is_empty() {
            return answers;
        }
        let warm = self.warm(&declared.partition());
        let idle = {
            let mut lane = warm.frames.lock();
            lane.waiting.extend(good);
            !std::mem::replace(&mut lane.busy, true)
        };
        if idle {
            // A task of its own: a caller that goes away must not take the others' commit with it.
            tokio::spawn(drive(self.clone(), warm));
        }
        answers
    }
}

fn refuse(frames: &[Frame], error: Error) -> Vec<Result<Landed, PublishError>> {
    frames.iter().map(|_| Err(error.clone().into())).collect()
}

/// Checks frames by what is known of their stream.
fn check_all(
    name: &str,
    record: Option<&Arc<StreamRecord>>,
    frames: &[Frame],
) -> Vec<Result<Vec<Candidate>, PublishError>> {
    let refuse = |e: Error| frames.iter().map(|_| Err(e.clone().into())).collect();
    let Some(record) = record else { return refuse(Error::StreamNotFound(name.to_owned())) };
    let Some(declared) = &record.declared else {
        return refuse(Error::NotDeclared(name.to_owned()));
    };
    if let Some(retired) = declared.retired {
        return refuse(retired_error(name, retired));
    }
    frames.iter().map(|frame| check_frame(declared, frame)).collect()
}

/// Checks a frame, and gives each of its rows the text that it is stored in.
fn check_frame(declared: &Declared, frame: &Frame) -> Result<Vec<Candidate>, PublishError> {
    let rejected = |detail: String| Err(PublishError::Rejected { detail });
    if frame.rows.is_empty() {
        return rejected("a frame has one row at least".to_owned());
    }
    if frame.rows.len() > limits::BATCH_RECORDS {
        let (got, limit) = (frame.rows.len(), limits::BATCH_RECORDS);
        return rejected(format!("rows in one frame are {got}; the limit is {limit}"));
    }
    if frame.claim.is_some() && !declared.declaration.log {
        return rejected("a stream without a log has no exactly-once publishers".to_owned());
    }
    if frame.claim.is_some() && (frame.seq == 0 || frame.seq > i64::MAX as u64) {
        return rejected("numbers of rows begin at 1".to_owned());
    }
    let mut made = Vec::with_capacity(frame.rows.len());
    let mut bytes = 0;
    for (at, row) in frame.rows.iter().enumerate() {
        match declared.canonical(row) {
            Ok(text) => {
                bytes += text.len();
                made.push(Candidate::row(row.clone(), text, declared.epoch));
            }
            Err(e) => return rejected(row_detail(at, frame.rows.len(), &e)),
        }
    }
    if bytes > limits::SEGMENT_BYTES {
        let limit = limits::SEGMENT_BYTES;
        return rejected(format!("bytes of rows in one frame are {bytes}; the limit is {limit}"));
    }
    Ok(made)
}

fn row_detail(at: usize, rows: usize, error: &RowError) -> String {
    if rows == 1 { error.to_string() } else { format!("row {at}: {error}") }
}

/// Commits what waits in a lane until nothing does.
async fn drive(engine: Engine, warm: Arc<Warm>) {
    let mut reopen = Reopen { warm: &warm, armed: true };
    while let Some(batch) = next_batch(&warm) {
        commit_frames(&engine, &warm, batch).await;
    }
    reopen.armed = false;
}

/// Reopens a lane whose driver went away unfinished, so that the next caller drives it.
struct Reopen<'a> {
    warm: &'a Warm,
    armed: bool,
}

impl Drop for Reopen<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.warm.frames.lock().busy = false;
        }
    }
}

/// Takes the frames at the front of the lane that share a commit; closes the lane when there are none.
fn next_batch(warm: &Warm) -> Option<Vec<Waiting>> {
    let mut lane = warm.frames.lock();
    let Some(first) = lane.waiting.pop_front() else {
        lane.busy = false;
        return None;
    };
    let (mut rows, mut bytes) = (first.rows.len(), first.bytes);
    let mut publishers: Vec<String> = first.digest.iter().map(|(d, _)| d.clone()).collect();
    let mut batch = vec![first];
    while let Some(next) = lane.waiting.front() {
        rows += next.rows.len();
        bytes += next.bytes;
        if let Some((digest, _)) = &next.digest
            && !publishers.contains(digest)
        {
            publishers.push(digest.clone());
        }
        let fits = rows <= limits::COMMIT_ROWS
            && bytes <= limits::COMMIT_BYTES
            && publishers.len() <= limits::COMMIT_PUBLISHERS;
        let alone = next.alone || batch[0].alone;
        if !fits || alone || next.record.info.id != batch[0].record.info.id {
            break;
        }
        batch.extend(lane.waiting.pop_front());
    }
    Some(batch)
}

async fn commit_frames(engine: &Engine, warm: &Arc<Warm>, batch: Vec<Waiting>) {
    // What the newest of them knows holds for all.
    let Some(record) = batch.iter().map(|w| &w.record).max_by_key(|r| r.read_us).map(Arc::clone)
    else {
        return;
    };
    let mut candidates = Vec::with_capacity(batch.iter().map(|w| w.rows.len()).sum());
    let mut frames = Vec::with_capacity(batch.len());
    let mut replies = Vec::with_capacity(batch.len());
    for waiting in batch {
        let start = candidates.len();
        candidates.extend(waiting.rows);
        frames.push(Framed {
            rows: start..candidates.len(),
            digest: waiting.digest,
            seq: waiting.seq,
            verdict: Verdict::Taken { known: 0 },
        });
        replies.push(waiting.reply);
    }
    let mut append = Append::new(engine, record, DEFAULT_PARTITION, candidates);
    append.frames = frames;
    let result = {
        let mut view = warm.append.lock().await;
        append.run(&mut view).await
    };
    append.ring().await;
    let time_us = append.time_us.unwrap_or_else(|| engine.env().now_us());
    let frames = std::mem::take(&mut append.frames);
    let outcomes = append.outcomes();
    for (frame, reply) in frames.into_iter().zip(replies) {
        // Whoever went away hears nothing; what it published is there all the same.
        let _ = reply.send(answer(&frame, &result, &outcomes, time_us));
    }
}

fn answer(
    frame: &Framed,
    result: &Result<(), Error>,
    outcomes: &[Pushed],
    time_us: i64,
) -> Result<Landed, PublishError> {
    if let Err(e) = result {
        return Err(e.clone().into());
    }
    match &frame.verdict {
        Verdict::Rejected(detail) => Err(PublishError::Rejected { detail: detail.clone() }),
        Verdict::Gap { expected } => Err(PublishError::Gap { expected: *expected, got: frame.seq }),
        Verdict::Superseded => Err(PublishError::Superseded),
        Verdict::Taken { known } => {
            let mut offsets = Vec::with_capacity(frame.rows.len());
            for outcome in outcomes.iter().take(frame.rows.end).skip(frame.rows.start) {
                offsets.push(match outcome {
                    Pushed::Queued { offset, .. } => Some(*offset),
                    Pushed::Duplicate { offset, .. } => *offset,
                    Pushed::Refused(e) => return Err(e.clone().into()),
                });
            }
            Ok(Landed { offsets, duplicates: *known, time_us })
        }
    }
}
