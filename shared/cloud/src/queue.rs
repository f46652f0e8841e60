//! A queue of work: messages are sent in batches, and what a batch leaves out is sent again.
//!
//! Whoever sends may send twice (a reply can be lost), and the queue may deliver twice, so that every message must be
//! one that does no harm then.

use std::time::Duration;

use aws_sdk_sqs::{Client, types::SendMessageBatchRequestEntry};
use tidewheel_store::Env;

use crate::Opened;

/// Messages of one call: the service's limit.
const BATCH: usize = 10;
/// Attempts at sending what the service did not take.
const ATTEMPTS: u32 = 4;
/// The first pause between two attempts; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// Why messages were not sent.
#[derive(Debug, thiserror::Error)]
#[error("{unsent} of {messages} messages were not sent to the queue: {why}")]
pub struct SendError {
    /// Messages that were to be sent.
    pub messages: usize,
    /// Messages that were not, as far as is known.
    pub unsent: usize,
    /// The service's word for it.
    pub why: String,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    url: String,
    env: Env,
}

impl Queue {
    /// The queue of this URL.
    pub fn new(opened: &Opened, url: &str, env: &Env) -> Self {
        Self::with_client(Client::new(&opened.sdk), url, env)
    }

    /// The queue of this URL, by a client of one's own.
    pub fn with_client(client: Client, url: &str, env: &Env) -> Self {
        Self { client, url: url.to_owned(), env: env.clone() }
    }

    /// Sends messages, ten in a call. Of a batch that is taken in part, the rest is sent again.
    ///
    /// # Errors
    /// [`SendError`] at the first batch that is not taken after a few attempts; those before it were sent.
    pub async fn send(&self, messages: &[String]) -> Result<(), SendError> {
        for (sent, batch) in messages.chunks(BATCH).enumerate() {
            if let Err((unsent, why)) = self.send_batch(batch).await {
                let unsent = unsent + messages.len().saturating_sub(sent * BATCH + batch.len());
                return Err(SendError { messages: messages.len(), unsent, why });
            }
        }
        Ok(())
    }

    /// Sends a batch; else answers how many messages were not sent, and why.
    async fn send_batch(&self, batch: &[String]) -> Result<(), (usize, String)> {
        let mut left: Vec<usize> = (0..batch.len()).collect();
        let mut why = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.env.sleep(PAUSE * (1 << (attempt - 1))).await;
            }
            let mut call = self.client.send_message_batch().queue_url(&self.url);
            for at in &left {
                let entry = SendMessageBatchRequestEntry::builder()
                    .id(at.to_string())
                    .message_body(&batch[*at])
                    .build();
                call = call.entries(entry.map_err(|e| (left.len(), e.to_string()))?);
            }
            match call.send().await {
                Ok(answer) => {
                    let failed = answer.failed();
                    why = failed.first().map(|f| f.code().to_owned()).unwrap_or_default();
                    left.retain(|at| failed.iter().any(|f| f.id() == at.to_string()));
                    if left.is_empty() {
                        return Ok(());
                    }
                }
                // The SDK has repeated what may be repeated.
                Err(e) => {
                    let why = aws_sdk_sqs::error::DisplayErrorContext(&e).to_string();
                    return Err((left.len(), why));
                }
            }
        }
        Err((left.len(), why))
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::{
        operation::send_message_batch::{SendMessageBatchError, SendMessageBatchOutput},
        types::{BatchResultErrorEntry, SendMessageBatchResultEntry},
    };
    use aws_smithy_mocks::{RuleMode, mock, mock_client};

    use super::*;

    fn taken(failed: &[usize]) -> SendMessageBatchOutput {
        let mut answer = SendMessageBatchOutput::builder();
        answer = answer.set_successful(Some(Vec::<SendMessageBatchResultEntry>::new()));
        answer = answer.set_failed(Some(Vec::new()));
        for at in failed {
            let entry = BatchResultErrorEntry::builder()
                .id(at.to_string())
                .code("InternalError")
                .sender_fault(false);
            answer = answer.failed(entry.build().unwrap());
        }
        answer.build().unwrap()
    }

    fn queue(client: Client) -> Queue {
        Queue::with_client(client, "http://queue", &Env::simulated(1, 0, 0))
    }

    fn messages(n: usize) -> Vec<String> {
        (0..n).map(|n| format!("{{\"n\":{n}}}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn messages_go_in_tens_and_what_was_left_out_goes_again() {
        let full = mock!(Client::send_message_batch)
            .match_requests(|r| r.entries().len() == 10 && r.queue_url() == Some("http://queue"))
            .sequence()
            .output(|| taken(&[]))
            .output(|| taken(&[3, 7]))
            .build();
        let again = mock!(Client::send_message_batch)
            .match_requests(|r| {
                let bodies: Vec<_> = r.entries().iter().map(|e| e.message_body()).collect();
                bodies == ["{\"n\":13}", "{\"n\":17}"]
            })
            .then_output(|| taken(&[]));
        let rest = mock!(Client::send_message_batch)
            .match_requests(|r| r.entries().len() == 5)
            .then_output(|| taken(&[]));
        let client = mock_client!(aws_sdk_sqs, RuleMode::MatchAny, [&full, &again, &rest]);
        queue(client).send(&messages(25)).await.unwrap();
        assert_eq!((full.num_calls(), again.num_calls(), rest.num_calls()), (2, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_taken_is_an_error_that_counts_it() {
        let never = mock!(Client::send_message_batch)
            .match_requests(|r| r.entries().len() <= 10)
            .then_output(|| taken(&[0]));
        let client = mock_client!(aws_sdk_sqs, RuleMode::MatchAny, [&never]);
        let error = queue(client).send(&messages(12)).await.unwrap_err();
        assert_eq!((error.messages, error.unsent), (12, 3), "{error}");
        assert!(error.to_string().contains("InternalError"), "{error}");
        let refused = mock!(Client::send_message_batch)
            .match_requests(|_| true)
            .then_error(|| SendMessageBatchError::unhandled("no such queue"));
        let client = mock_client!(aws_sdk_sqs, RuleMode::MatchAny, [&refused]);
        let error = queue(client).send(&messages(2)).await.unwrap_err();
        assert_eq!(error.unsent, 2, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_no_call() {
        let client = mock_client!(aws_sdk_sqs, RuleMode::MatchAny, []);
        queue(client).send(&[]).await.unwrap();
    }
}
