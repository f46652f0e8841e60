//! What invokes the function: its own events, and batches of the table's changes.

use serde::{Deserialize, Serialize};
use tidewheel_gateway::live::Work;
use tidewheel_store::Key;

/// An event: work by its one key, or records.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Event {
    /// Records of the table's stream of changes.
    Changes(Changes),
    /// Work that somebody asked for.
    Work(Work),
}

/// A batch of the table's changes.
#[derive(Debug, Deserialize)]
pub(crate) struct Changes {
    #[serde(rename = "Records")]
    pub(crate) records: Vec<Change>,
}

/// One changed item: the parts that are used.
#[derive(Debug, Deserialize)]
pub(crate) struct Change {
    dynamodb: Image,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    keys: Keys,
    sequence_number: String,
}

#[derive(Debug, Deserialize)]
struct Keys {
    pk: Text,
    sk: Text,
}

#[derive(Debug, Deserialize)]
struct Text {
    #[serde(rename = "S")]
    text: String,
}

impl Change {
    pub(crate) fn key(&self) -> Key {
        let Keys { pk, sk } = &self.dynamodb.keys;
        Key::new(pk.text.as_str(), sk.text.as_str())
    }

    pub(crate) fn sequence_number(&self) -> &str {
        &self.dynamodb.sequence_number
    }
}

/// The answer to a batch: the records that are to come again. To other events it says nothing.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) batch_item_failures: Vec<Failure>,
}

/// A record that is to come again, with all behind it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Failure {
    pub(crate) item_identifier: String,
}
