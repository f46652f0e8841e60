//! Pieces of work, as a message carries them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A piece of maintenance. Its JSON is what a queue carries: `{"work":"seal","stream":"orders"}`.
///
/// Several processes of different age may read one queue, so a word that is there keeps its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "lowercase")]
pub enum Work {
    /// Publish what is new in a stream to its table.
    Seal {
        /// The stream.
        stream: String,
    },
    /// Apply a stream's retention.
    Retain {
        /// The stream.
        stream: String,
        /// The id of the partition after which to go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Delete blobs of a stream that nothing names.
    Collect {
        /// The stream.
        stream: String,
        /// The id of the partition after which to go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
    /// Replace small files of a stream's table by large ones.
    Compact {
        /// The stream.
        stream: String,
    },
    /// Forget old snapshots of a stream's table and delete files that nothing names.
    Clean {
        /// The stream.
        stream: String,
    },
    /// Delete the table of a deleted stream.
    Drop {
        /// The deleted stream's id.
        id: String,
    },
    /// Delete what a deleted stream has left.
    Sweep {
        /// The deleted stream's id.
        id: String,
    },
    /// Delete old traces.
    Traces,
    /// Delete keys that were deleted or have expired long enough ago.
    Keys,
    /// Fire the timers that are due.
    Timers,
    /// Find the work of a round among the streams after one.
    Find {
        /// The round.
        round: i64,
        /// The stream after which to go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<String>,
    },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Seal { stream } => write!(f, "sealing stream `{stream}`"),
            Work::Retain { stream, .. } => write!(f, "the retention of stream `{stream}`"),
            Work::Collect { stream, .. } => write!(f, "collecting the blobs of stream `{stream}`"),
            Work::Compact { stream } => write!(f, "compacting the table of stream `{stream}`"),
            Work::Clean { stream } => write!(f, "cleaning the table of stream `{stream}`"),
            Work::Drop { id } => write!(f, "deleting the table of the deleted stream {id}"),
            Work::Sweep { id } => write!(f, "sweeping the deleted stream {id}"),
            Work::Traces => f.write_str("sweeping old traces"),
            Work::Keys => f.write_str("sweeping keys that have ended"),
            Work::Timers => f.write_str("firing timers"),
            Work::Find { round, .. } => write!(f, "finding the work of round {round}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_written_as_queues_have_it() {
        let stream = || "orders".to_owned();
        for (work, text) in [
            (Work::Seal { stream: stream() }, r#"{"work":"seal","stream":"orders"}"#),
            (
                Work::Retain { stream: stream(), after: None },
                r#"{"work":"retain","stream":"orders"}"#,
            ),
            (
                Work::Collect { stream: stream(), after: Some("p".into()) },
                r#"{"work":"collect","stream":"orders","after":"p"}"#,
            ),
            (Work::Compact { stream: stream() }, r#"{"work":"compact","stream":"orders"}"#),
            (Work::Clean { stream: stream() }, r#"{"work":"clean","stream":"orders"}"#),
            (Work::Drop { id: "i".into() }, r#"{"work":"drop","id":"i"}"#),
            (Work::Sweep { id: "i".into() }, r#"{"work":"sweep","id":"i"}"#),
            (Work::Traces, r#"{"work":"traces"}"#),
            (Work::Keys, r#"{"work":"keys"}"#),
            (Work::Timers, r#"{"work":"timers"}"#),
            (Work::Find { round: 7, after: None }, r#"{"work":"find","round":7}"#),
        ] {
            assert_eq!(serde_json::to_string(&work).unwrap(), text);
            assert_eq!(serde_json::from_str::<Work>(text).unwrap(), work);
        }
    }
}
