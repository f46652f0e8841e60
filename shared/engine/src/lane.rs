//! The lane of a partition: callers of one process that want into the same partition share a commit.
//!
//! While one commit is under way the others gather, and the next commit takes all of them in one segment. Each caller
//! still gets its own answer, and a repeat of an id among them is a duplicate like any other. A lane orders nothing
//! between processes and nothing relies on it: it saves commits.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::{
    Engine, Error, PartitionId, Pushed,
    append::{Append, Candidate},
    limits,
    stream::StreamRecord,
    warm::Warm,
};

/// A caller's records that wait for their turn at a partition.
struct Waiter {
    stream: Arc<StreamRecord>,
    candidates: Vec<Candidate>,
    reply: oneshot::Sender<Result<Vec<Pushed>, Error>>,
}

/// Callers of one process that want into the same partition. While one commit is under way the others gather, and the
/// next commit takes all of them in one segment.
#[derive(Default)]
pub(crate) struct Lane {
    busy: bool,
    waiting: VecDeque<Waiter>,
}

impl Engine {
    /// Appends records to a partition, together with what other callers bring meanwhile.
    pub(crate) async fn append(
        &self,
        stream: &Arc<StreamRecord>,
        partition: &str,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Pushed>, Error> {
        let warm = self.warm(&PartitionId::of(&stream.info.id, partition));
        let (reply, answer) = oneshot::channel();
        let idle = {
            let mut lane = warm.lane.lock();
            lane.waiting.push_back(Waiter { stream: Arc::clone(stream), candidates, reply });
            !std::mem::replace(&mut lane.busy, true)
        };
        if idle {
            // A task of its own: a caller that goes away must not take the others' commit with it.
            tokio::spawn(drive(self.clone(), partition.to_owned(), warm));
        }
        answer
            .await
            .unwrap_or_else(|_| Err(Error::Unknown("the append was interrupted".to_owned())))
    }
}

/// Commits what waits in a partition's lane until nothing does.
async fn drive(engine: Engine, partition: String, warm: Arc<Warm>) {
    let mut reopen = Reopen { warm: &warm, armed: true };
    while let Some(batch) = next_batch(&warm) {
        append_batch(&engine, &partition, &warm, batch).await;
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
            self.warm.lane.lock().busy = false;
        }
    }
}

/// Takes the callers at the front of the lane that fit in one segment and share a stream record; closes the lane when
/// there are none.
fn next_batch(warm: &Warm) -> Option<Vec<Waiter>> {
    let mut lane = warm.lane.lock();
    let first = lane.waiting.pop_front();
    let Some(first) = first else {
        lane.busy = false;
        return None;
    };
    let size = |w: &Waiter| w.candidates.iter().map(|c| c.packed.payload.len()).sum::<usize>();
    let mut bytes = size(&first);
    let mut records = first.candidates.len();
    let mut batch = vec![first];
    while let Some(next) = lane.waiting.front() {
        bytes += size(next);
        records += next.candidates.len();
        let fits = bytes <= limits::SEGMENT_BYTES / 8 && records <= limits::BATCH_RECORDS / 8;
        if !fits || next.stream.info.id != batch[0].stream.info.id {
            break;
        }
        batch.extend(lane.waiting.pop_front());
    }
    Some(batch)
}

async fn append_batch(engine: &Engine, partition: &str, warm: &Arc<Warm>, batch: Vec<Waiter>) {
    let mut alone = append_together(engine, partition, warm, batch).await;
    for waiter in alone.drain(..) {
        // One of them does not fit a schema that has changed since they were checked. Nothing was written.
        append_together(engine, partition, warm, vec![waiter]).await;
    }
}

/// Appends what callers bring in one segment and answers them. Those that it hands back are to be tried each for itself.
async fn append_together(
    engine: &Engine,
    partition: &str,
    warm: &Arc<Warm>,
    batch: Vec<Waiter>,
) -> Vec<Waiter> {
    // What the newest of them knows holds for all: a stream that is encrypted by now is so for the whole segment.
    let Some(stream) = batch.iter().map(|w| &w.stream).max_by_key(|s| s.read_us).map(Arc::clone)
    else {
        return Vec::new();
    };
    let copies = (stream.declared.is_some() && batch.len() > 1).then(|| {
        batch.iter().map(|w| (Arc::clone(&w.stream), w.candidates.clone())).collect::<Vec<_>>()
    });
    let dedup = stream.window_us() > 0;
    // A repeat within the batch is a duplicate of the first, like any other.
    let mut first_of: HashMap<String, usize> = HashMap::new();
    let mut candidates = Vec::new();
    let mut places: Vec<Vec<(usize, bool)>> = Vec::with_capacity(batch.len());
    let mut replies = Vec::with_capacity(batch.len());
    for waiter in batch {
        let mut own = Vec::with_capacity(waiter.candidates.len());
        if !dedup {
            first_of.clear();
        }
        for candidate in waiter.candidates {
            let at = candidates.len();
            let id = candidate.packed.transaction_id.as_ref().map(ToString::to_string);
            match id.map(|id| *first_of.entry(id).or_insert(at)) {
                Some(first) if first != at => own.push((first, true)),
                _ => {
                    own.push((at, false));
                    candidates.push(candidate);
                }
            }
        }
        places.push(own);
        replies.push(waiter.reply);
    }
    let mut append = Append::new(engine, stream, partition, candidates);
    let result = {
        let mut view = warm.append.lock().await;
        append.run(&mut view).await
    };
    append.ring().await;
    if let (Err(Error::Row { .. }), Some(copies)) = (&result, copies) {
        let again = copies.into_iter().zip(replies);
        return again
            .map(|((stream, candidates), reply)| Waiter { stream, candidates, reply })
            .collect();
    }
    let outcomes = append.outcomes();
    for (reply, own) in replies.into_iter().zip(places) {
        let answer = match &result {
            Err(e) => Err(e.clone()),
            Ok(()) => {
                Ok(own.iter().map(|&(at, repeat)| answer_for(&outcomes[at], repeat)).collect())
            }
        };
        // A caller that went away hears nothing; what it pushed is there all the same.
        let _ = reply.send(answer);
    }
    Vec::new()
}

fn answer_for(outcome: &Pushed, repeat: bool) -> Pushed {
    match outcome {
        Pushed::Queued { id, offset } if repeat => {
            Pushed::Duplicate { id: Some(*id), offset: Some(*offset) }
        }
        other => other.clone(),
    }
}
