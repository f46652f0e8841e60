//! What the services' failures mean.
//!
//! What matters of a failure is what is certain after it: that the request did nothing, or that nobody knows. A request
//! that was refused with an answer did nothing. One that was never sent did nothing. Of everything between (a time-out,
//! a connection that broke, an answer that cannot be read, a fault inside the service) nobody knows, and it is told so;
//! the caller finds out by what the commit would have left behind.

use std::error::Error;

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;

use crate::{CommitError, ReadError};

/// A failure by what it means.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    /// Refused, nothing was done: too much at the moment.
    Throttled,
    /// Refused, nothing was done: a transaction is at work on the item.
    Contended,
    /// Refused, nothing was done: the request is at fault, says the service, by a rule that depends on the item.
    Faulty(String),
    /// Refused or never sent, nothing was done.
    Refused(String),
    /// Nobody knows.
    Lost(String),
}

/// The service takes no more.
const THROTTLED: [&str; 6] = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "Throttling",
    "SlowDown",
    "TooManyRequestsException",
];

/// Somebody else is at work on the item or object.
const CONTENDED: [&str; 4] = [
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
    "ConditionalRequestConflict",
    "OperationAborted",
];

/// The same request is still at work, so what comes of it is open.
const IN_PROGRESS: &str = "TransactionInProgressException";

/// The request breaks a rule, or would make an item that does.
const FAULTY: [&str; 2] = ["ValidationException", "ItemCollectionSizeLimitExceededException"];

impl Failure {
    /// What an SDK error of `operation` means.
    pub(super) fn of<E>(operation: &str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        let detail = || format!("{operation}: {}", chain(error));
        match error {
            SdkError::ConstructionFailure(_) => Failure::Refused(detail()),
            SdkError::DispatchFailure(_) if was_never_sent(error) => Failure::Refused(detail()),
            SdkError::ServiceError(answer) => {
                let code = answer.err().code().unwrap_or("no code");
                let message = answer.err().message().unwrap_or("no message");
                let status = answer.raw().status();
                let detail = format!("{operation}: {code} (status {}): {message}", status.as_u16());
                if THROTTLED.contains(&code) {
                    Failure::Throttled
                } else if CONTENDED.contains(&code) {
                    Failure::Contended
                } else if FAULTY.contains(&code) {
                    Failure::Faulty(detail)
                } else if code == IN_PROGRESS || !status.is_client_error() {
                    Failure::Lost(detail)
                } else {
                    Failure::Refused(detail)
                }
            }
            // Time-outs, broken connections, answers that cannot be read, and whatever else may come.
            _ => Failure::Lost(detail()),
        }
    }

    /// As the failure of a write.
    pub(super) fn of_commit(self) -> CommitError {
        match self {
            Failure::Throttled => CommitError::Throttled,
            Failure::Contended => CommitError::Contended,
            Failure::Faulty(why) | Failure::Refused(why) => CommitError::Unavailable(why),
            Failure::Lost(why) => CommitError::Unknown(why),
        }
    }

    /// As the failure of what comes before a commit's writes: whatever became of it, nothing of it can be seen.
    pub(super) fn before_writes(self) -> CommitError {
        match self {
            Failure::Lost(why) => CommitError::Unavailable(why),
            other => other.of_commit(),
        }
    }

    /// As the failure of a read.
    pub(super) fn of_read(self) -> ReadError {
        match self {
            Failure::Throttled | Failure::Contended => ReadError::Throttled,
            Failure::Faulty(why) | Failure::Refused(why) | Failure::Lost(why) => {
                ReadError::Unavailable(why)
            }
        }
    }
}

/// The error and its causes, without their details: those may quote the request.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// True if the connection was never made, or no credentials were found to sign with. The client's own errors carry no
/// kind for this, only a text; a test holds them to it, and a text that is not known counts as sent.
fn was_never_sent(error: &dyn Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        let text = error.to_string();
        if NEVER_SENT.iter().any(|never| text.starts_with(never)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// How errors begin that come before a request is sent: while connecting (names, TCP, TLS, and the time they take), and
/// while looking for credentials.
const NEVER_SENT: [&str; 7] = [
    "client error (Connect)",
    "HTTP connect timeout",
    "the credential provider was not enabled",
    "the credentials provider was not properly configured",
    "an error occurred while loading credentials",
    "credentials provider timed out",
    "unexpected credentials error",
];
