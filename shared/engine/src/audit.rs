//! The audit log: who did what, to which stream, and how it ended. It is a stream like others, [`AUDIT`], so that it is
//! consumed, followed, kept and published as a table as they are. It begins with the first key; before that there is
//! nobody to tell apart.
//!
//! An entry carries ids, words and a name. It never carries a secret, a payload, or any text that a client chose but the
//! name of the stream.

use serde::Serialize;

use crate::{Engine, PushItem, Pushed};

/// The stream of the audit log.
pub const AUDIT: &str = "tidewheel.audit";

/// One thing that was done or refused.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry<'a> {
    /// The id of the key; `None` if none was presented that is known.
    pub key: Option<&'a str>,
    /// The action.
    pub action: &'a str,
    /// The route, as its pattern, or the command.
    pub route: &'a str,
    /// The stream, or nothing if it was about none or about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<&'a str>,
    /// What came of it: a status.
    pub outcome: u16,
}

impl Engine {
    /// Records an entry. A failure is logged, and changes nothing about what it records.
    pub async fn audit(&self, entry: &AuditEntry<'_>) {
        let Ok(payload) = serde_json::to_vec(entry) else { return };
        let item =
            PushItem { stream: AUDIT.to_owned(), payload: payload.into(), ..PushItem::default() };
        for pushed in self.push(vec![item]).await {
            if let Pushed::Refused(error) = pushed {
                tracing::error!(%error, route = entry.route, "an entry of the audit log is lost");
            }
        }
    }
}
