//! What the gateway needs of the outside: posts to connections, and invocations that go on where one ends.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidewheel_engine::PartitionId;

/// A connection of the managed gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The connection's id.
    pub connection: String,
    /// Where posts go, as the connection's own request told; `None` if the environment says it.
    pub endpoint: Option<String>,
}

/// What became of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The managed gateway took it. Whether it reached the client nobody knows.
    Delivered,
    /// There is no such connection, or none yet: the managed gateway says the same until `$connect` has been answered.
    Gone,
    /// The client does not take what is sent to it. Nothing was sent.
    Slow,
    /// The account's rate is used up. Nothing was sent.
    Throttled,
    /// The message is larger than the managed gateway takes. Nothing was sent.
    TooLarge,
    /// It may have been sent or not.
    Unknown,
}

/// Posts to connections.
#[async_trait]
pub trait Post: fmt::Debug + Send + Sync {
    /// Posts one message. Never repeats by itself.
    async fn post(&self, to: &Address, message: Bytes) -> Posted;

    /// Closes a connection. The client sees a close without a reason. False if that failed.
    async fn close(&self, to: &Address) -> bool;
}

/// Work that an invocation of its own does. Doing it twice, at once or one after the other, is doing it once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Greets a subscription and brings it up to the tail.
    Greet {
        /// The connection.
        connection: String,
        /// The subscription's key; empty for a streamcast client.
        #[serde(default)]
        subscription: String,
    },
    /// Sends what is new on a partition to those who follow it.
    Deliver {
        /// The partition's id.
        partition: String,
    },
    /// Finds what was left undone.
    Sweep {},
}

impl Work {
    /// Delivery on this partition.
    pub fn deliver(partition: &PartitionId) -> Self {
        Work::Deliver { partition: partition.to_string() }
    }
}

/// Has work done by an invocation of its own.
#[async_trait]
pub trait Invoke: fmt::Debug + Send + Sync {
    /// Asks for it. Nothing is known of whether and when it is done, nor that it is done once.
    async fn invoke(&self, work: &Work) -> Result<(), NotInvoked>;
}

/// Why no invocation could be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no invocation could be asked for: {0}")]
pub struct NotInvoked(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_one_key_that_says_which() {
        let text = |work: &Work| serde_json::to_string(work).unwrap_or_default();
        let greet = Work::Greet { connection: "c=".into(), subscription: "\"1\"".into() };
        assert_eq!(text(&greet), r#"{"greet":{"connection":"c=","subscription":"\"1\""}}"#);
        assert_eq!(text(&Work::Sweep {}), r#"{"sweep":{}}"#);
        let partition = r#"{"deliver":{"partition":"p"}}"#;
        let deliver = Work::Deliver { partition: "p".into() };
        assert_eq!(serde_json::from_str::<Work>(partition).ok(), Some(deliver.clone()));
        assert_eq!(text(&deliver), partition);
        let bare: Work = serde_json::from_str(r#"{"greet":{"connection":"c"}}"#).unwrap();
        assert_eq!(bare, Work::Greet { connection: "c".into(), subscription: String::new() });
    }
}
