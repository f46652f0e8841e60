//! One invocation: an event becomes a request, the router answers it, in time.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
    routing::get,
};
use lambda_runtime::{Context, tower::ServiceExt};
use tidewheel_api::{Api, WaitLimit};
use tidewheel_engine::Engine;
use tidewheel_store::Env;
use tokio::time::timeout;

use crate::{
    event::{Event, TEXT_BODY_BYTES},
    landing::landing,
    reply::out_of_time,
};

/// The longest that a request waits for messages behind the HTTP API, whose integration ends at 30 seconds. The rest
/// is for a cold start before and the reply after.
const BUFFERED_WAIT: Duration = Duration::from_secs(25);

/// What is kept of an invocation's time to answer a request that waited for messages.
const AFTER_WAIT: Duration = Duration::from_secs(3);

/// What is kept of an invocation's time to tell a client that it is over.
const AFTER_ALL: Duration = Duration::from_secs(1);

/// Bytes of payloads in one buffered reply: with what stands around them, and in base64, they fit in the gateway's
/// 6 MB.
const BUFFERED_PAYLOADS: usize = 2 * 1024 * 1024;

/// Messages in one buffered reply.
const BUFFERED_MESSAGES: usize = 2_000;

/// How replies leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whole, through the HTTP API.
    Buffered,
    /// As they are made, through a function URL.
    Streamed,
}

/// The function, made once in a process's life.
#[derive(Clone)]
pub(crate) struct Function {
    router: Router,
    env: Env,
    form: Form,
}

impl Form {
    /// Bounds what the engine hands out at a time by what a reply of this form can carry.
    pub(crate) fn bound(self, settings: &mut tidewheel_engine::Settings) {
        if self == Form::Buffered {
            settings.pop_bytes = BUFFERED_PAYLOADS;
            settings.pop_batch_max = BUFFERED_MESSAGES;
        }
    }
}

impl Function {
    /// A function over an engine.
    pub(crate) fn new(engine: Engine, form: Form) -> Self {
        let env = engine.env().clone();
        let mut settings = tidewheel_api::Settings {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_body_bytes: TEXT_BODY_BYTES,
            ..Default::default()
        };
        if form == Form::Buffered {
            settings.max_fetch_bytes = BUFFERED_PAYLOADS;
        }
        let router = tidewheel_api::router(Api::new(engine, settings)).route("/", get(landing));
        Self { router, env, form }
    }

    /// Answers an event. Never later than the invocation may last.
    pub(crate) async fn answer(&self, event: Event, context: &Context) -> Response<Body> {
        let request = match event.into_request() {
            Ok(request) => request,
            Err(bad) => return bad.into_response(),
        };
        let deadline_us = i64::try_from(context.deadline).unwrap_or(i64::MAX / 1000) * 1000;
        let left_us = (deadline_us - self.env.now_us()).max(0);
        self.serve(request, Duration::from_micros(left_us.unsigned_abs())).await
    }

    async fn serve(&self, mut request: Request<Body>, left: Duration) -> Response<Body> {
        let wait = left.saturating_sub(AFTER_WAIT);
        let wait = if self.form == Form::Buffered { wait.min(BUFFERED_WAIT) } else { wait };
        request.extensions_mut().insert(WaitLimit(wait));
        let served = self.router.clone().oneshot(request);
        match timeout(left.saturating_sub(AFTER_ALL), served).await {
            Ok(served) => served.unwrap_or_else(|never: Infallible| match never {}),
            Err(_) => out_of_time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::StatusCode;
    use serde_json::{Value, json};
    use tidewheel_engine::Settings;
    use tidewheel_store::Memory;

    use super::*;

    fn function(form: Form) -> Function {
        let env = Env::simulated(7, 1_790_000_000_000_000, 0);
        let mut settings = Settings::default();
        form.bound(&mut settings);
        let store = Arc::new(Memory::new());
        Function::new(Engine::new(store, env, settings), form)
    }

    fn event(method: &str, path: &str, query: &str, body: &Value) -> Event {
        serde_json::from_value(json!({
            "rawPath": path, "rawQueryString": query, "headers": {"content-type": "application/json"},
            "requestContext": {"stage": "$default", "http": {"method": method}},
            "body": if body.is_null() { Value::Null } else { body.to_string().into() }, "isBase64Encoded": false,
        }))
        .unwrap()
    }

    async fn ask(function: &Function, seconds_left: u64, event: Event) -> (StatusCode, Value) {
        let mut context = Context::default();
        context.deadline = function.env.now_us() as u64 / 1000 + seconds_left * 1000;
        let response = function.answer(event, &context).await;
        let status = response.status();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    #[tokio::test(start_paused = true)]
    async fn a_push_is_popped() {
        let function = function(Form::Buffered);
        let items = json!({"items": [{"queue": "q", "partition": "p/1", "payload": {"n": 1}}]});
        let (status, _) = ask(&function, 30, event("POST", "/api/v1/push", "", &items)).await;
        assert_eq!(status, StatusCode::CREATED);
        let query = "consumerGroup=g&subscriptionMode=all";
        let path = "/api/v1/pop/queue/q";
        let (status, popped) = ask(&function, 30, event("GET", path, query, &Value::Null)).await;
        assert_eq!((status, &popped["messages"][0]["data"]), (StatusCode::OK, &json!({"n": 1})));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pop_that_asks_for_longer_than_the_gateway_waits_is_answered_with_nothing_in_time() {
        for (form, seconds_left, waited) in
            [(Form::Buffered, 30, 25), (Form::Buffered, 10, 7), (Form::Streamed, 120, 60)]
        {
            let function = function(form);
            let before = function.env.now_us();
            let query = "consumerGroup=g&wait=true&timeout=90000";
            let pop = event("GET", "/api/v1/pop/queue/q", query, &Value::Null);
            let (status, _) = ask(&function, seconds_left, pop).await;
            assert_eq!(status, StatusCode::NO_CONTENT);
            assert_eq!((function.env.now_us() - before) / 1_000_000, waited, "{form:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_waits_is_cut_as_well() {
        let function = function(Form::Buffered);
        let items = json!({"items": [{"queue": "q", "partition": "p", "payload": 1}]});
        ask(&function, 30, event("POST", "/api/v1/push", "", &items)).await;
        let before = function.env.now_us();
        let body = json!({"entries": [{"queue": "q", "partition": "p", "offset": 1}], "maxWaitMs": 60_000});
        let (status, _) = ask(&function, 12, event("POST", "/api/v1/fetch", "", &body)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!((function.env.now_us() - before) / 1_000_000, 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pop_takes_no_more_than_a_reply_can_carry() {
        let function = function(Form::Buffered);
        let payload = "\"".repeat(300_000);
        for _ in 0..20 {
            let items = json!({"items": [{"queue": "q", "payload": payload}]});
            ask(&function, 30, event("POST", "/api/v1/push", "", &items)).await;
        }
        let query = "consumerGroup=g&subscriptionMode=all&batch=100";
        let pop = event("GET", "/api/v1/pop/queue/q", query, &Value::Null);
        let mut context = Context::default();
        context.deadline = function.env.now_us() as u64 / 1000 + 30_000;
        let reply = crate::reply::Reply::from_response(function.answer(pop, &context).await).await;
        let reply = serde_json::to_string(&reply).unwrap();
        assert!(reply.len() <= 6 * 1024 * 1024, "{}", reply.len());
        assert!(reply.starts_with("{\"statusCode\":200"), "{}", &reply[..200]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_time_the_client_is_told_so() {
        let function = function(Form::Buffered);
        let (status, body) = ask(&function, 0, event("GET", "/health", "", &Value::Null)).await;
        assert_eq!(
            (status, &body["code"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("out_of_time"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_root_says_where_everything_is() {
        let function = function(Form::Buffered);
        let (status, body) = ask(&function, 30, event("GET", "/", "", &Value::Null)).await;
        assert_eq!((status, &body["description"]), (StatusCode::OK, &json!("/openapi.json")));
        let (status, _) = ask(&function, 30, event("GET", "/health", "", &Value::Null)).await;
        assert_eq!(status, StatusCode::OK);
        let (status, _) = ask(&function, 30, event("GET", "/nowhere", "", &Value::Null)).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}
