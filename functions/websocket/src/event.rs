//! The events of a WebSocket API and the answers to them: the parts that are used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An event of `$connect`, `$disconnect` or `$default`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    pub(crate) request_context: Context,
    /// Of a request to connect, as the client wrote them.
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
    /// Decoded, the last of each name.
    #[serde(default)]
    query_string_parameters: Option<BTreeMap<String, String>>,
    /// Decoded, all of each name.
    #[serde(default)]
    multi_value_query_string_parameters: Option<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    pub(crate) body: Option<String>,
    #[serde(default)]
    pub(crate) is_base64_encoded: bool,
}

/// What the managed gateway says of the connection.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Context {
    pub(crate) route_key: String,
    pub(crate) connection_id: String,
    #[serde(default)]
    domain_name: Option<String>,
    #[serde(default)]
    stage: Option<String>,
}

impl Event {
    /// The API key that a request to connect presents.
    pub(crate) fn presented(&self) -> Option<String> {
        let headers = self.headers.as_ref()?;
        let find = |name: &str| {
            let mut all = headers.iter();
            all.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
        };
        tidewheel_engine::presented(find).map(|key| key.into_owned())
    }

    /// The query: of a repeated name the last counts. A signature is the gateway's own, and not the client's to us.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let mut query: Vec<(String, String)> =
            match (&self.multi_value_query_string_parameters, &self.query_string_parameters) {
                (Some(all), _) => all
                    .iter()
                    .filter_map(|(name, values)| Some((name.clone(), values.last()?.clone())))
                    .collect(),
                (None, Some(last)) => {
                    last.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
                }
                (None, None) => Vec::new(),
            };
        query.retain(|(name, _)| !is_signature(name));
        query
    }
}

/// True of the parameters that sign a URL.
fn is_signature(name: &str) -> bool {
    name.get(..SIGNATURE.len()).is_some_and(|start| start.eq_ignore_ascii_case(SIGNATURE))
}

/// Begins the name of every parameter that signs a URL.
const SIGNATURE: &str = "X-Amz-";

impl Context {
    /// Where posts to the connection go, as its own request tells.
    pub(crate) fn endpoint(&self) -> Option<String> {
        let (domain, stage) = (self.domain_name.as_ref()?, self.stage.as_ref()?);
        Some(format!("https://{domain}/{stage}"))
    }
}

/// An answer. For a message, the body is sent to the client; for a request to connect, the status decides.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) status_code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
}

impl Answer {
    pub(crate) fn ok(body: Option<String>) -> Self {
        Self { status_code: 200, body }
    }
}
