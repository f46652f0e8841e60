//! One server in one process, without a socket.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, StatusCode},
};
use bytes::Bytes;
use serde_json::{Value, json};
use tidewheel_api::{Api, Settings, router};
use tidewheel_engine::Engine;
use tidewheel_store::{Env, Faulty, faulty::Plan};
use tower::ServiceExt;

use crate::store::TestStore;

/// 2025-11-24T16:00:00Z.
pub(crate) const START_US: i64 = 1_764_000_000_000_000;

/// An id in the form of ours that names nothing.
pub(crate) const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

pub(crate) struct Server {
    pub(crate) api: Api,
    pub(crate) store: Arc<TestStore>,
    pub(crate) faults: Arc<Faulty>,
    pub(crate) router: Router,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The JSON of an answer of this status.
    #[track_caller]
    pub(crate) fn with(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The text of an error of this status.
    #[track_caller]
    pub(crate) fn error(&self, status: u16) -> String {
        self.with(status)["error"].as_str().expect("an error has a text").to_owned()
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let env = Env::simulated(7, START_US, 0);
        let store = Arc::new(TestStore::new());
        let faults = Arc::new(Faulty::new(store.clone(), Plan::none(), env.clone()));
        let engine = Engine::new(faults.clone(), env, tidewheel_engine::Settings::default());
        let api = Api::new(engine, settings);
        Self { router: router(api.clone()), api, store, faults }
    }

    /// Another process over the same store.
    pub(crate) fn another(&self) -> Self {
        let env = Env::simulated(8, START_US, 0);
        let engine = Engine::new(self.faults.clone(), env, tidewheel_engine::Settings::default());
        let api = Api::new(engine, Settings::default());
        let (store, faults) = (self.store.clone(), self.faults.clone());
        Self { router: router(api.clone()), api, store, faults }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
        self.request(request).await
    }

    pub(crate) async fn request(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, Body::empty()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// Pushes payloads to a partition; answers the results.
    #[track_caller]
    pub(crate) fn push(
        &self,
        queue: &str,
        partition: &str,
        payloads: impl IntoIterator<Item = Value>,
    ) -> impl Future<Output = Vec<Value>> {
        let items: Vec<Value> = payloads
            .into_iter()
            .map(|payload| json!({"queue": queue, "partition": partition, "payload": payload}))
            .collect();
        async move {
            let answer = self.post("/api/v1/push", json!({"items": items})).await.with(201);
            let results = answer.as_array().unwrap().clone();
            assert!(results.iter().all(|r| r["status"] == "queued"), "{answer}");
            results
        }
    }

    /// Pops for a group from the oldest on; answers the messages.
    pub(crate) async fn pop(&self, queue: &str, group: &str, batch: usize) -> Vec<Value> {
        let path = format!(
            "/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&batch={batch}&partitions=64"
        );
        let answer = self.get(&path).await;
        if answer.status == StatusCode::NO_CONTENT {
            return Vec::new();
        }
        answer.with(200)["messages"].as_array().unwrap().clone()
    }

    /// Registers a query over a queue; answers its id.
    pub(crate) async fn register(&self, name: &str, source: &str) -> String {
        let request = json!({"name": name, "source_queue": source, "config_hash": "h"});
        let answer = self.post("/streams/v1/queries", request).await.with(200);
        answer["query_id"].as_str().unwrap().to_owned()
    }

    /// Everything that is stored.
    pub(crate) fn stored(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        (self.store.items(), self.store.blobs())
    }
}

/// Field `n` of each message's data.
pub(crate) fn numbers(messages: &[Value]) -> Vec<i64> {
    messages.iter().map(|m| m["data"]["n"].as_i64().unwrap()).collect()
}
