//! One event: its rows are pushed, and what failed is answered the way its source understands.

use std::sync::Arc;

use serde_json::{Value, json};
use tidewheel_engine::{Engine, PushItem, Uuid};

use crate::{
    bucket::{Bucket, BucketError, Positions},
    deliver::{Outcome, item, push, rejected},
    object::{self, Chunk, ObjectError, Row},
    routes::{Route, Routes},
    source::{Arrival, Event, Object, UnknownEvent, objects_in, payload, read},
};

/// What is kept of an invocation's time for the commit under way and for leaving a position, µs.
const MARGIN_US: i64 = 20_000_000;

/// Why an event is delivered again, or ends among the dead letters.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngestError {
    /// It is of no kind that is known.
    #[error(transparent)]
    Unknown(#[from] UnknownEvent),
    /// Something in it could not be stored.
    #[error("{what}: {why}")]
    Failed { what: String, why: String },
}

/// The function, made once in a process's life.
pub(crate) struct Ingest {
    engine: Engine,
    routes: Routes,
    bucket: Arc<dyn Bucket>,
    positions: Option<Arc<dyn Positions>>,
}

/// What became of an object's rows.
#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    duplicates: u64,
    rejected: u64,
}

impl Ingest {
    pub(crate) fn new(
        engine: Engine,
        routes: Routes,
        bucket: Arc<dyn Bucket>,
        positions: Option<Arc<dyn Positions>>,
    ) -> Self {
        Self { engine, routes, bucket, positions }
    }

    /// Takes an event, and answers it by `deadline_us`.
    ///
    /// # Errors
    /// [`IngestError`]: all of it is to be delivered again.
    pub(crate) async fn take(&self, text: &str, deadline_us: i64) -> Result<Value, IngestError> {
        match read(text)? {
            Event::Queue(arrivals) => Ok(self.queue(arrivals, deadline_us).await),
            Event::Shard(arrivals) => Ok(self.shard(arrivals).await),
            Event::Messages(arrivals) => self.messages(arrivals, deadline_us).await,
            Event::Objects(objects) => {
                self.objects(&objects, deadline_us).await?;
                Ok(json!({"objects": objects.len()}))
            }
        }
    }

    /// Messages of a queue: each fails alone.
    async fn queue(&self, arrivals: Vec<Arrival>, deadline_us: i64) -> Value {
        let (named, plain) = split(arrivals);
        let mut failures = Vec::new();
        let outcomes = push(&self.engine, self.items(&plain)).await;
        for (arrival, outcome) in plain.iter().zip(outcomes) {
            if let Outcome::Refused(why) | Outcome::Failed(why) = outcome {
                tracing::warn!(source = arrival.source, id = arrival.id, why, "a message failed");
                failures.push(arrival.handle.clone());
            }
        }
        for (arrival, objects) in named {
            if let Err(error) = self.objects(&objects, deadline_us).await {
                tracing::warn!(source = arrival.source, id = arrival.id, %error, "a message failed");
                failures.push(arrival.handle);
            }
        }
        batch_failures(failures)
    }

    /// Records of a shard. One that can never be stored would hold up the shard for ever, so it is rejected; one that fails
    /// for now is where the shard goes on.
    async fn shard(&self, arrivals: Vec<Arrival>) -> Value {
        let outcomes = push(&self.engine, self.items(&arrivals)).await;
        for (arrival, outcome) in arrivals.iter().zip(outcomes) {
            let why = match outcome {
                Outcome::Stored | Outcome::Duplicate => continue,
                Outcome::Failed(why) => Some(why),
                Outcome::Refused(why) => {
                    let stream = self.routes.of(&arrival.source, &arrival.name).stream;
                    let Arrival { id, source, payload, .. } = arrival;
                    self.reject(vec![rejected(&stream, id, source, None, &why, payload)])
                        .await
                        .err()
                }
            };
            if let Some(why) = why {
                tracing::warn!(source = arrival.source, id = arrival.id, why, "a record failed");
                return batch_failures(vec![arrival.handle.clone()]);
            }
        }
        batch_failures(Vec::new())
    }

    /// Messages that fail together. What was stored before is a duplicate when they come again.
    async fn messages(
        &self,
        arrivals: Vec<Arrival>,
        deadline_us: i64,
    ) -> Result<Value, IngestError> {
        let count = arrivals.len();
        let (named, plain) = split(arrivals);
        let outcomes = push(&self.engine, self.items(&plain)).await;
        for (arrival, outcome) in plain.into_iter().zip(outcomes) {
            if let Outcome::Refused(why) | Outcome::Failed(why) = outcome {
                return Err(IngestError::Failed { what: arrival.id, why });
            }
        }
        for (_, objects) in named {
            self.objects(&objects, deadline_us).await?;
        }
        Ok(json!({"messages": count}))
    }

    fn items(&self, arrivals: &[Arrival]) -> Vec<PushItem> {
        let items = arrivals.iter().map(|arrival| {
            let route = self.routes.of(&arrival.source, &arrival.name);
            item(
                &route,
                arrival.id.clone(),
                arrival.key.as_deref(),
                payload(arrival.payload.clone()),
            )
        });
        items.collect()
    }

    /// Objects, one after another; each is tried, whatever became of those before.
    async fn objects(&self, objects: &[Object], deadline_us: i64) -> Result<(), IngestError> {
        let mut failed = None;
        for object in objects {
            if let Err(why) = self.object(object, deadline_us).await {
                failed = Some(IngestError::Failed { what: object.arn(), why });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Reads an object from its position on, as far as the time lets it.
    async fn object(&self, object: &Object, deadline_us: i64) -> Result<(), String> {
        let (arn, mut tally) = (object.arn(), Tally::default());
        let route = self.routes.of(&arn, &object.bucket);
        let Object { bucket, key, etag, version, .. } = object;
        let version = version.as_deref().unwrap_or(etag);
        let id = Uuid::derived(&[bucket.as_bytes(), key.as_bytes(), version.as_bytes()]);
        let id = format!("s3:{}", id.simple());
        let mut at = object.clone();
        let ended = self.rows(&mut at, &route, &id, deadline_us, &mut tally).await;
        match ended {
            Ok(true) => {
                let Tally { stored, duplicates, rejected } = tally;
                tracing::info!(object = arn, stored, duplicates, rejected, "the object is read");
                Ok(())
            }
            Ok(false) => {
                let row = at.position.row;
                let Some(positions) = &self.positions else {
                    return Err(format!(
                        "the time is over at row {row}, and there is no queue to go on from"
                    ));
                };
                positions.leave(&at).await?;
                tracing::info!(
                    object = arn,
                    row,
                    "the object is read up to here; another invocation goes on"
                );
                Ok(())
            }
            Err(ObjectError::Bucket(BucketError::Gone)) => {
                tracing::warn!(object = arn, "the object is gone or was replaced");
                Ok(())
            }
            Err(ObjectError::Bucket(BucketError::Unavailable(why))) => Err(why),
            Err(ObjectError::Unreadable(why)) => {
                // It is as unreadable the next time.
                let row = at.position.row;
                tracing::warn!(object = arn, row, why, "the object is not readable from here on");
                self.reject(vec![rejected(&route.stream, &id, &arn, Some(row), &why, b"")]).await
            }
        }
    }

    /// True at the object's end, false when the time is over before.
    async fn rows(
        &self,
        object: &mut Object,
        route: &Route,
        id: &str,
        deadline_us: i64,
        tally: &mut Tally,
    ) -> Result<bool, ObjectError> {
        let is_over = || self.engine.env().now_us() + MARGIN_US >= deadline_us;
        if is_over() {
            return Ok(false);
        }
        let mut chunks = object::rows(Arc::clone(&self.bucket), object.clone(), route).await?;
        while let Some(chunk) = chunks.recv().await {
            let Chunk { rows, after } = chunk?;
            self.chunk(object, route, id, rows, tally)
                .await
                .map_err(|why| ObjectError::Bucket(BucketError::Unavailable(why)))?;
            object.position = after;
            if is_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn chunk(
        &self,
        object: &Object,
        route: &Route,
        id: &str,
        rows: Vec<Row>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let arn = object.arn();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for (at, row) in rows.into_iter().enumerate() {
            let number = object.position.row + at as u64;
            let id = format!("{id}:{number}");
            match row {
                Row::Good(payload) => {
                    good.push((number, item(route, id, Some(&object.key), payload)));
                }
                Row::Bad { why, content } => {
                    bad.push(rejected(&route.stream, &id, &arn, Some(number), &why, &content));
                }
            }
        }
        let items: Vec<PushItem> = good.iter().map(|(_, item)| item.clone()).collect();
        for ((number, item), outcome) in good.iter().zip(push(&self.engine, items).await) {
            match outcome {
                Outcome::Stored => tally.stored += 1,
                Outcome::Duplicate => tally.duplicates += 1,
                Outcome::Failed(why) => return Err(why),
                Outcome::Refused(why) => {
                    let id = item.transaction_id.as_deref().unwrap_or_default();
                    bad.push(rejected(&route.stream, id, &arn, Some(*number), &why, &item.payload));
                }
            }
        }
        tally.rejected += bad.len() as u64;
        self.reject(bad).await
    }

    /// Puts what tells of rejected rows where somebody can find it.
    async fn reject(&self, items: Vec<PushItem>) -> Result<(), String> {
        if items.is_empty() {
            return Ok(());
        }
        for outcome in push(&self.engine, items).await {
            if let Outcome::Refused(why) | Outcome::Failed(why) = outcome {
                return Err(format!("a rejected row could not be reported: {why}"));
            }
        }
        Ok(())
    }
}

/// Messages that name objects, and all others.
fn split(arrivals: Vec<Arrival>) -> (Vec<(Arrival, Vec<Object>)>, Vec<Arrival>) {
    let (mut named, mut plain) = (Vec::new(), Vec::new());
    for arrival in arrivals {
        match std::str::from_utf8(&arrival.payload).ok().and_then(objects_in) {
            Some(objects) => named.push((arrival, objects)),
            None => plain.push(arrival),
        }
    }
    (named, plain)
}

/// The answer that leaves these messages, or the shard from this record on, to be delivered again.
fn batch_failures(handles: Vec<String>) -> Value {
    let failures: Vec<_> = handles.into_iter().map(|h| json!({"itemIdentifier": h})).collect();
    json!({"batchItemFailures": failures})
}

#[cfg(test)]
mod tests;
