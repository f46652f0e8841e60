//! `tidewheel keys`: makes, lists, rotates, disables and deletes API keys.
//!
//! It sends the requests of the HTTP API's `/keys`: to the server that runs on the data folder, whose address and operator
//! key are in the folder; without one, to a router of its own over the store. On the deployed store there is always a
//! router of its own, because that store has no lock.

use std::{process::ExitCode, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header},
};
use serde_json::{Map, Value, json};
use tidewheel_api::{Api, OperatorKey};
use tidewheel_engine::Engine;
use tidewheel_store::{Env, embedded};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::ServiceExt;

use crate::{
    StartError, operator,
    options::{Keys, KeysCommand, NewKey, Serve},
    place::Place,
};

/// Bytes of an answer.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Why a command did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The store cannot be opened.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A server has the data folder, and cannot be reached.
    #[error(
        "a server has the data folder, and it cannot be reached through the file `operator` there ({0}): if it was \
         started by another user, ask as that one"
    )]
    Unreachable(String),
    /// The request was refused.
    #[error("{0}")]
    Refused(String),
}

/// Who carries the requests out.
enum Server {
    /// The one that runs.
    Running { address: String, key: String },
    /// One of our own, which ends with us.
    Own { router: Router, key: String, _place: Box<Place> },
}

/// Carries a command out, and says on standard output what came of it.
pub async fn run(keys: &Keys) -> ExitCode {
    match carry_out(keys).await {
        Ok(said) => {
            print!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Carries a command out; answers what is to be said.
///
/// # Errors
/// See [`KeysError`].
pub async fn carry_out(keys: &Keys) -> Result<String, KeysError> {
    let server = Server::find(keys).await?;
    Ok(match &keys.command {
        KeysCommand::Create(new) => shown(&server.ask("POST", "/keys", Some(request(new))).await?),
        KeysCommand::List => listed(&server.ask("GET", "/keys", None).await?),
        KeysCommand::Rotate { id, overlap } => {
            let path = format!("/keys/{id}/rotate");
            shown(&server.ask("POST", &path, Some(json!({"overlapSeconds": overlap}))).await?)
        }
        KeysCommand::Disable { id } => {
            server.ask("PUT", &format!("/keys/{id}"), Some(json!({"disabled": true}))).await?;
            format!("disabled {id}\n")
        }
        KeysCommand::Enable { id } => {
            server.ask("PUT", &format!("/keys/{id}"), Some(json!({"disabled": false}))).await?;
            format!("enabled {id}\n")
        }
        KeysCommand::Delete { id } => {
            server.ask("DELETE", &format!("/keys/{id}"), None).await?;
            format!("deleted {id}\n")
        }
    })
}

fn request(new: &NewKey) -> Value {
    let mut request = Map::new();
    request.insert("name".to_owned(), json!(new.name));
    request.insert("grants".to_owned(), json!(new.grant));
    for (name, number) in [
        ("expiresInSeconds", new.expires_days.map(|days| u64::from(days) * 86_400)),
        ("requestsPerSecond", new.requests_per_second.map(u64::from)),
        ("bytesPerSecond", new.bytes_per_second),
    ] {
        if let Some(number) = number {
            request.insert(name.to_owned(), json!(number));
        }
    }
    Value::Object(request)
}

/// A key that is shown once: alone on its line, so that a script takes the first.
fn shown(key: &Value) -> String {
    let text = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{}\nid {}, shown this once\n", text("key"), text("id"))
}

fn listed(answer: &Value) -> String {
    let mut said = String::new();
    for key in answer.get("keys").and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let grants: Vec<&str> =
            key["grants"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let end = text("expiresAt").map_or(String::new(), |at| format!("  until {at}"));
        let state = if key["disabled"] == true { "  disabled" } else { "" };
        let name = text("name").unwrap_or_default();
        said += &format!(
            "{}  {}  {}{end}{state}\n",
            text("id").unwrap_or_default(),
            if name.is_empty() { "-" } else { name },
            grants.join(",")
        );
    }
    said
}

impl Server {
    async fn find(keys: &Keys) -> Result<Self, KeysError> {
        let options = Serve {
            data: keys.data.clone(),
            store: keys.store,
            table: keys.table.clone(),
            bucket: keys.bucket.clone(),
            ..Serve::default()
        };
        let place = match Place::open(&options).await {
            Ok(place) => place,
            Err(
                StartError::InUse { .. } | StartError::Store(embedded::OpenError::InUse { .. }),
            ) => {
                let (url, key) = operator::read(&keys.data)
                    .map_err(|error| KeysError::Unreachable(error.to_string()))?;
                let address = url.strip_prefix("http://").unwrap_or(&url).to_owned();
                return Ok(Self::Running { address, key });
            }
            Err(error) => return Err(error.into()),
        };
        let engine = Engine::new(Arc::clone(&place.store), Env::system(), place.settings.clone());
        let operator = OperatorKey::new(&engine);
        let key = operator.reveal().to_owned();
        let settings = tidewheel_api::Settings { operator: Some(operator), ..Default::default() };
        let router = tidewheel_api::router(Api::new(engine, settings));
        Ok(Self::Own { router, key, _place: Box::new(place) })
    }

    /// Sends a request; answers the JSON of its success.
    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, KeysError> {
        let body = body.map_or(String::new(), |body| body.to_string());
        let (status, answer) = match self {
            Self::Running { address, key } => send(address, key, method, path, &body)
                .await
                .map_err(|error| KeysError::Unreachable(format!("{address}: {error}")))?,
            Self::Own { router, key, .. } => {
                let request = Request::builder()
                    .method(method)
                    .uri(path)
                    .header(header::AUTHORIZATION, format!("Bearer {key}"))
                    .body(Body::from(body))
                    .map_err(|error| KeysError::Refused(error.to_string()))?;
                let response =
                    router.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
                let status = response.status().as_u16();
                let bytes = to_bytes(response.into_body(), ANSWER_BYTES).await;
                (status, bytes.map(|b| b.to_vec()).unwrap_or_default())
            }
        };
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match status {
            200..=299 => Ok(answer),
            _ => Err(KeysError::Refused(
                answer["error"].as_str().unwrap_or("the server refused the request").to_owned(),
            )),
        }
    }
}

/// One request to the server of this machine, on a connection of its own.
async fn send(
    address: &str,
    key: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, Vec<u8>)> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    connection.take(ANSWER_BYTES as u64).read_to_end(&mut answer).await?;
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(invalid)?;
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).into_owned();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(invalid)?;
    Ok((status, answer.split_off(end + 4)))
}
