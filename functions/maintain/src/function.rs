//! The function without its runtime: a round finds work and sends it, a batch does it.
//!
//! Every message stands for itself: what one of them fails at, even by a panic, the others do not notice, and only the
//! failed one is delivered again. Before the time limit the function stops and sends what is left as a new message; only
//! after that is the old one done, so that work is at worst done twice and never forgotten.

use std::sync::Arc;

use aws_lambda_events::event::sqs::SqsBatchResponse;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tidewheel_cloud::SendError;
use tidewheel_tables::maintain::{Done, Maintenance, Outcome, Work};

use crate::{
    event::{Event, Message},
    metrics::{BatchDone, Metrics, RoundFound},
    outbox::Outbox,
};

/// What is left to an invocation when it stops: for sending what is left, and for the answer.
const MARGIN_US: i64 = 10_000_000;

/// Messages that are worked on at the same time; each seal holds a data file in memory.
const AT_ONCE: usize = 4;

/// Why an invocation, or a message, failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Work(#[from] tidewheel_tables::maintain::Error),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("the message is no work: {0}")]
    Malformed(serde_json::Error),
    #[error("the work panicked")]
    Panicked,
}

/// The function.
#[derive(Clone)]
pub(crate) struct Function {
    maintenance: Maintenance,
    outbox: Arc<dyn Outbox>,
    metrics: Metrics,
}

/// What became of a message.
enum Handled {
    Done(Outcome),
    Found,
}

impl Function {
    pub(crate) fn new(maintenance: Maintenance, outbox: Arc<dyn Outbox>, metrics: Metrics) -> Self {
        Self { maintenance, outbox, metrics }
    }

    /// Handles an event; `deadline_us` is when the invocation is ended. Answers which messages of a batch failed.
    ///
    /// # Errors
    /// Only of a round, whose work the next minute finds again.
    pub(crate) async fn handle(&self, event: Event, deadline_us: i64) -> Result<Value, Failure> {
        let until_us = deadline_us.saturating_sub(MARGIN_US);
        match event {
            Event::Round => {
                let now_us = self.maintenance.engine().env().now_us();
                self.find(Maintenance::round(now_us), None, until_us).await?;
                Ok(Value::Null)
            }
            Event::Batch(messages) => Ok(self.batch(messages, until_us).await),
        }
    }

    /// Finds the work of a round, page by page, and sends it.
    async fn find(
        &self,
        round: i64,
        mut after: Option<String>,
        until_us: i64,
    ) -> Result<(), Failure> {
        let mut all = RoundFound::default();
        loop {
            let found = self.maintenance.find(round, after.as_deref()).await?;
            let messages: Vec<String> = found.work.iter().map(text).collect();
            self.outbox.send(&messages).await?;
            all.behind += found.behind;
            all.failed += found.failed.len();
            all.lags.extend(found.lags);
            after = found.next;
            if after.is_none() {
                break;
            }
            if self.maintenance.engine().env().now_us() >= until_us {
                self.outbox.send(&[text(&Work::Find { round, after })]).await?;
                break;
            }
        }
        tracing::info!(round, behind = all.behind, failed = all.failed, "found what is due");
        self.metrics.round(&all);
        Ok(())
    }

    async fn batch(&self, messages: Vec<Message>, until_us: i64) -> Value {
        let works = messages.into_iter().map(|message| async move {
            let function = self.clone();
            let Message { id, body } = message;
            // A task of its own, so that a panic ends it alone.
            let task = tokio::spawn(async move {
                let work: Work = serde_json::from_str(&body).map_err(Failure::Malformed)?;
                let handled = function.work(&work, until_us).await;
                Ok::<_, Failure>((work, handled))
            });
            (id, task.await.unwrap_or(Err(Failure::Panicked)))
        });
        let mut works = stream::iter(works).buffer_unordered(AT_ONCE);
        let mut response = SqsBatchResponse::default();
        let mut all = BatchDone::default();
        while let Some((id, worked)) = works.next().await {
            let (work, failure) = match worked {
                Ok((work, Ok(handled))) => {
                    count(&mut all, &handled);
                    tracing::debug!(message = id, %work, "done");
                    continue;
                }
                Ok((work, Err(failure))) => (Some(work), failure),
                Err(failure) => (None, failure),
            };
            let what = work.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::error!(message = id, work = what, error = %failure, "work failed");
            all.work_failures += 1;
            all.seal_failures += usize::from(matches!(work, Some(Work::Seal { .. })));
            response.add_failure(id);
        }
        self.metrics.batch(&all);
        serde_json::to_value(response).unwrap_or_default()
    }

    async fn work(&self, work: &Work, until_us: i64) -> Result<Handled, Failure> {
        if let Work::Find { round, after } = work {
            self.find(*round, after.clone(), until_us).await?;
            return Ok(Handled::Found);
        }
        let outcome = self.maintenance.run(work, until_us).await?;
        if let Some(rest) = &outcome.rest {
            tracing::info!(%work, "goes on in another invocation");
            self.outbox.send(&[text(rest)]).await?;
        }
        let Done { rows, files, expired, collected, swept, traces, keys, fired, .. } = outcome.done;
        if rows + expired + collected + swept + traces + keys + fired > 0 {
            tracing::info!(
                %work, rows, files, expired, collected, swept, traces, keys, fired, "worked"
            );
        }
        Ok(Handled::Done(outcome))
    }
}

fn count(all: &mut BatchDone, handled: &Handled) {
    let Handled::Done(Outcome { done, rest }) = handled else { return };
    all.sealed_rows += done.rows;
    all.sealed_files += done.files;
    all.commit_lag_us = all.commit_lag_us.max(done.commit_lag_us);
    all.conflicts += usize::from(done.raced);
    all.seal_failures += usize::from(done.unfit);
    all.mirror_failures += usize::from(done.unmirrored);
    all.follow_ups += usize::from(rest.is_some());
}

/// A piece of work as a message.
fn text(work: &Work) -> String {
    // Words and numbers always have a JSON.
    serde_json::to_string(work).unwrap_or_default()
}
