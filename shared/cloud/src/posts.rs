//! Posts to the connections of the managed gateway.
//!
//! One call is one request: what to do after one that failed depends on who is at the other end, so the SDK's own
//! retries are off. What the managed gateway answers is told apart by its error's name and, where there is none, by the
//! status: a proxy or a double may send no more.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use aws_config::{SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_apigatewaymanagement::{
    Client, operation::post_to_connection::PostToConnectionError, primitives::Blob,
};
use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use bytes::Bytes;
use tidewheel_gateway::live::{Address, Post, Posted};

use crate::failure::brief;

/// How long a post may take: less than the gateway waits for it.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(3500);

/// How long a connection to the managed gateway may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Endpoints for which a client is kept. Connections come through one, or few.
const ENDPOINTS: usize = 16;

/// The id of a connection that cannot be.
const NOBODY: &str = "nobody=";

/// Posts by the SDK.
#[derive(Debug)]
pub struct Posts {
    sdk: SdkConfig,
    endpoint: Option<String>,
    clients: Mutex<HashMap<String, Client>>,
}

impl Posts {
    /// Posts to this endpoint (`https://{api}.execute-api.{region}.amazonaws.com/{stage}`), or where each connection
    /// came from.
    pub fn new(sdk: &SdkConfig, endpoint: Option<String>) -> Self {
        Self { sdk: sdk.clone(), endpoint, clients: Mutex::default() }
    }

    /// Opens the connection to the endpoint, if it is known, so that the first row does not wait for the handshake: it
    /// closes a socket that nobody has. Whatever the answer is, the connection is there; without one the first post
    /// tells.
    pub async fn warm(&self) {
        let nobody = Address { connection: NOBODY.to_owned(), endpoint: None };
        if let Some(client) = self.client(&nobody) {
            let answer = client.delete_connection().connection_id(NOBODY).send().await;
            if let Some(error) = answer.err().filter(|error| error.raw_response().is_none()) {
                tracing::warn!(
                    why = brief(&error),
                    "the gateway's connections are not reached yet"
                );
            }
        }
    }

    /// The client for a connection's endpoint; `None` if nothing says where that is.
    fn client(&self, to: &Address) -> Option<Client> {
        let endpoint = self.endpoint.as_ref().or(to.endpoint.as_ref())?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(endpoint) {
            return Some(client.clone());
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let config = aws_sdk_apigatewaymanagement::config::Builder::from(&self.sdk)
            .endpoint_url(endpoint)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .build();
        let client = Client::from_conf(config);
        if clients.len() >= ENDPOINTS {
            clients.clear();
        }
        clients.insert(endpoint.clone(), client.clone());
        Some(client)
    }
}

#[async_trait]
impl Post for Posts {
    async fn post(&self, to: &Address, message: Bytes) -> Posted {
        let Some(client) = self.client(to) else {
            tracing::error!(connection = to.connection, "nothing says where posts go");
            return Posted::Unknown;
        };
        let post = client.post_to_connection().connection_id(&to.connection);
        match post.data(Blob::new(message)).send().await {
            Ok(_) => Posted::Delivered,
            Err(error) => {
                let posted = outcome(&error);
                tracing::debug!(connection = to.connection, ?posted, why = brief(&error), "a post");
                if posted == Posted::Unknown {
                    tracing::warn!(why = brief(&error), "the outcome of a post is unknown");
                }
                posted
            }
        }
    }

    async fn close(&self, to: &Address) -> bool {
        let Some(client) = self.client(to) else { return false };
        match client.delete_connection().connection_id(&to.connection).send().await {
            Ok(_) => true,
            Err(error) => {
                let gone = error.raw_response().is_some_and(|raw| raw.status().as_u16() == 410);
                if !gone {
                    tracing::warn!(why = brief(&error), "a connection was not closed");
                }
                gone
            }
        }
    }
}

fn outcome(error: &SdkError<PostToConnectionError, HttpResponse>) -> Posted {
    // Without a reply nobody knows.
    let SdkError::ServiceError(service) = error else { return Posted::Unknown };
    match service.err() {
        PostToConnectionError::GoneException(_) => Posted::Gone,
        // The name is that of a rate, but it is also what a client's full buffer is answered with; the account's rate
        // has other names.
        PostToConnectionError::LimitExceededException(_) => Posted::Slow,
        PostToConnectionError::PayloadTooLargeException(_) => Posted::TooLarge,
        _ => match service.raw().status().as_u16() {
            410 => Posted::Gone,
            413 => Posted::TooLarge,
            429 => Posted::Throttled,
            _ => Posted::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::Server;

    fn to(endpoint: Option<String>) -> Address {
        Address { connection: "abc=".to_owned(), endpoint }
    }

    async fn posted(answer: &str) -> (Posted, String) {
        let server = Server::answering(&[answer]).await;
        let posts = Posts::new(&server.sdk(), Some(format!("{}/prod", server.url())));
        let posted = posts.post(&to(None), Bytes::from_static(b"{\"n\":1}")).await;
        let requests = server.requests();
        assert_eq!(requests.len(), 1, "{answer}: never twice");
        (posted, requests[0].clone())
    }

    #[tokio::test]
    async fn a_post_is_one_request_to_the_endpoint() {
        let (posted, request) = posted("200 OK").await;
        assert_eq!(posted, Posted::Delivered);
        assert!(request.starts_with("POST /prod/@connections/abc%3D"), "{request}");
        assert!(request.ends_with("\r\n\r\n{\"n\":1}"), "{request}");
    }

    #[tokio::test]
    async fn answers_are_told_apart() {
        let limit = "429 Too Many Requests\r\nx-amzn-ErrorType: LimitExceededException";
        let rate = "429 Too Many Requests\r\nx-amzn-ErrorType: TooManyRequestsException";
        let gone = "410 Gone\r\nx-amzn-ErrorType: GoneException";
        let large = "413 Content Too Large\r\nx-amzn-ErrorType: PayloadTooLargeException";
        for (answer, expected) in [
            (gone, Posted::Gone),
            ("410 Gone", Posted::Gone),
            (limit, Posted::Slow),
            (rate, Posted::Throttled),
            ("429 Too Many Requests", Posted::Throttled),
            (large, Posted::TooLarge),
            ("413 Content Too Large", Posted::TooLarge),
            ("500 Internal Server Error", Posted::Unknown),
            ("403 Forbidden", Posted::Unknown),
            ("", Posted::Unknown),
        ] {
            assert_eq!(posted(answer).await.0, expected, "{answer}");
        }
    }

    #[tokio::test]
    async fn warming_makes_the_connection_whatever_the_answer_is_and_posts_nothing() {
        for answer in ["410 Gone", "403 Forbidden", ""] {
            let server = Server::answering(&[answer]).await;
            Posts::new(&server.sdk(), Some(format!("{}/prod", server.url()))).warm().await;
            let requests = server.requests();
            assert_eq!(requests.len(), 1, "{answer}");
            assert!(requests[0].starts_with("DELETE /prod/@connections/nobody"), "{}", requests[0]);
            // Where nothing is told there is nothing to reach.
            Posts::new(&server.sdk(), None).warm().await;
            assert_eq!(server.requests().len(), 1);
        }
    }

    #[tokio::test]
    async fn a_connection_s_own_endpoint_serves_when_nothing_else_is_told() {
        let server =
            Server::answering(&["200 OK", "204 No Content", "410 Gone", "500 Error"]).await;
        let posts = Posts::new(&server.sdk(), None);
        assert_eq!(posts.post(&to(None), Bytes::from_static(b"x")).await, Posted::Unknown);
        assert!(server.requests().is_empty());
        let there = to(Some(format!("{}/stage", server.url())));
        assert_eq!(posts.post(&there, Bytes::from_static(b"x")).await, Posted::Delivered);
        assert!(posts.close(&there).await);
        assert!(posts.close(&there).await, "gone is closed");
        assert!(!posts.close(&there).await);
        let requests = server.requests();
        assert!(requests[0].starts_with("POST /stage/@connections/"), "{}", requests[0]);
        assert!(requests[1].starts_with("DELETE /stage/@connections/"), "{}", requests[1]);
    }
}
