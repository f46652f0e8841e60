//! From an event to a call of the gateway, and from what it says to an answer.

use std::time::Duration;

use tidewheel_gateway::live::{Connect, Live};

use crate::event::{Answer, Event};

/// What is left of an invocation's time for its answer to be sent.
const MARGIN: Duration = Duration::from_secs(1);

/// The function.
pub(crate) struct Function {
    live: Live,
    /// The environment says where posts go: what a connection's request tells is not kept.
    endpoint_is_known: bool,
}

impl Function {
    pub(crate) fn new(live: Live, endpoint_is_known: bool) -> Self {
        Self { live, endpoint_is_known }
    }

    /// Answers an event, within this time. There is always an answer: without one the managed gateway makes one of its
    /// own, which no client understands.
    pub(crate) async fn answer(&self, event: Event, within: Duration) -> Answer {
        let within = within.saturating_sub(MARGIN);
        match event.request_context.route_key.as_str() {
            "$connect" => self.connect(event, within).await,
            "$disconnect" => self.disconnect(&event, within).await,
            _ => self.message(&event, within).await,
        }
    }

    async fn connect(&self, event: Event, within: Duration) -> Answer {
        let context = &event.request_context;
        let request = Connect {
            connection: context.connection_id.clone(),
            endpoint: context.endpoint().filter(|_| !self.endpoint_is_known),
            presented: event.presented(),
            query: event.query(),
        };
        match tokio::time::timeout(within, self.live.connect(request)).await {
            Ok(Ok(())) => Answer::ok(None),
            Ok(Err(refused)) => {
                tracing::info!(status = refused.status, why = refused.body, "a connection refused");
                Answer { status_code: refused.status, body: Some(refused.body) }
            }
            Err(_) => {
                let body = Some(r#"{"error":"unavailable"}"#.to_owned());
                Answer { status_code: 503, body }
            }
        }
    }

    async fn disconnect(&self, event: &Event, within: Duration) -> Answer {
        let connection = &event.request_context.connection_id;
        match tokio::time::timeout(within, self.live.disconnect(connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, connection, "left to the next delivery"),
            Err(_) => tracing::warn!(connection, "left to the next delivery"),
        }
        Answer::ok(None)
    }

    async fn message(&self, event: &Event, within: Duration) -> Answer {
        let connection = &event.request_context.connection_id;
        let text = event.body.as_deref().unwrap_or_default();
        let reply = async {
            if event.is_base64_encoded {
                self.live.binary_message(connection).await
            } else {
                self.live.message(connection, text).await
            }
        };
        match tokio::time::timeout(within, reply).await {
            Ok(reply) => Answer::ok(reply),
            Err(_) => Answer::ok(Some(Live::unanswered(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use bytes::Bytes;
    use serde_json::{Value, json};
    use tidewheel_engine::{Engine, NewCredential, PushItem, Settings};
    use tidewheel_gateway::live::{Address, Invoke, NotInvoked, Post, Posted, Work};
    use tidewheel_store::{Consistency, Env, Item, Key, Memory, Store, faulty};

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Outside {
        asked: Arc<Mutex<Vec<Work>>>,
        closed: Arc<Mutex<Vec<String>>>,
    }

    #[async_trait]
    impl Invoke for Outside {
        async fn invoke(&self, work: &Work) -> Result<(), NotInvoked> {
            self.asked.lock().unwrap().push(work.clone());
            Ok(())
        }
    }

    #[async_trait]
    impl Post for Outside {
        async fn post(&self, _: &Address, _: Bytes) -> Posted {
            panic!("this function posts nothing")
        }

        async fn close(&self, to: &Address) -> bool {
            self.closed.lock().unwrap().push(to.connection.clone());
            true
        }
    }

    struct Fixture {
        store: Memory,
        outside: Outside,
        function: Function,
    }

    fn over(store: Arc<dyn Store>, outside: &Outside, endpoint_is_known: bool) -> Function {
        let env = Env::simulated(1, 1_767_225_600_000_000, 0);
        let engine = Engine::new(store, env, Settings::default());
        let live = Live::new(engine, Arc::new(outside.clone()), Arc::new(outside.clone()));
        Function::new(live, endpoint_is_known)
    }

    async fn fixture(endpoint_is_known: bool) -> Fixture {
        let (store, outside) = (Memory::new(), Outside::default());
        let env = Env::simulated(2, 1_767_225_600_000_000, 0);
        let engine = Engine::new(Arc::new(store.clone()), env, Settings::default());
        let item = PushItem { stream: "s".into(), payload: "{}".into(), ..PushItem::default() };
        engine.push(vec![item]).await;
        let function = over(Arc::new(store.clone()), &outside, endpoint_is_known);
        Fixture { store, outside, function }
    }

    fn event(route: &str, more: Value) -> Event {
        let mut event = json!({
            "requestContext": {
                "routeKey": route,
                "eventType": "MESSAGE",
                "connectionId": "L0SM9cOFvHcCIhw=",
                "domainName": "abc.execute-api.eu-central-1.amazonaws.com",
                "stage": "prod",
                "apiId": "abc",
            },
            "isBase64Encoded": false,
        });
        let more = more.as_object().unwrap().clone();
        event.as_object_mut().unwrap().extend(more);
        serde_json::from_value(event).unwrap()
    }

    impl Fixture {
        async fn answer(&self, route: &str, more: Value) -> Value {
            let answer = self.function.answer(event(route, more), Duration::from_secs(15)).await;
            serde_json::to_value(answer).unwrap()
        }

        async fn row(&self) -> Option<Item> {
            let key = Key::new("wc#L0SM9cOFvHcCIhw=", "connection");
            self.store.get(&key, Consistency::Strong).await.unwrap()
        }

        fn asked(&self) -> Vec<Work> {
            std::mem::take(&mut *self.outside.asked.lock().unwrap())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_streamcast_client_connects_and_is_greeted_by_another_invocation() {
        let f = fixture(false).await;
        let query = json!({
            "queryStringParameters": {"stream": "s", "offset": "0"},
            "multiValueQueryStringParameters": {"stream": ["x", "s"], "offset": ["7", "0"]},
        });
        assert_eq!(f.answer("$connect", query).await, json!({"statusCode": 200}));
        let greet =
            Work::Greet { connection: "L0SM9cOFvHcCIhw=".into(), subscription: String::new() };
        assert_eq!(f.asked(), [greet]);
        let row = f.row().await.unwrap();
        let endpoint = "https://abc.execute-api.eu-central-1.amazonaws.com/prod";
        assert_eq!(row.str("endpoint"), Some(endpoint));
        assert_eq!(f.answer("$disconnect", json!({})).await, json!({"statusCode": 200}));
        assert_eq!(f.row().await, None);
        assert_eq!(f.answer("$disconnect", json!({})).await, json!({"statusCode": 200}));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_a_status_and_says_why() {
        let f = fixture(true).await;
        let query = json!({"queryStringParameters": {"stream": "none"}});
        let answer = f.answer("$connect", query).await;
        assert_eq!(answer, json!({"statusCode": 404, "body": r#"{"error":"no_such_stream"}"#}));
        let query = json!({"queryStringParameters": {"stream": "s", "offset": "9"}});
        assert_eq!(f.answer("$connect", query).await["statusCode"], 416);
        assert_eq!(f.row().await, None);
        assert!(f.asked().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn once_there_are_keys_a_connection_needs_one_and_its_grants() {
        let f = fixture(true).await;
        let env = Env::simulated(4, 1_767_225_600_000_000, 0);
        let engine = Engine::new(Arc::new(f.store.clone()), env, Settings::default());
        let grants = ["read:s", "publish:t"].map(|grant| grant.parse().unwrap());
        let new = NewCredential { grants: grants.into(), ..NewCredential::default() };
        let (_, key) = engine.create_credential(new).await.unwrap();
        let bearer = format!("Bearer {}", key.reveal());
        let with = |more: Value| {
            let mut event = json!({"headers": {"Authorization": bearer}});
            event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            event
        };
        let to = |stream: &str| json!({"queryStringParameters": {"stream": stream}});
        assert_eq!(f.answer("$connect", to("s")).await["statusCode"], 401);
        assert_eq!(f.answer("$connect", to("none")).await["statusCode"], 401);
        assert_eq!(f.answer("$connect", with(to("none"))).await["statusCode"], 403);
        assert_eq!(f.answer("$connect", with(json!({}))).await["statusCode"], 200);
        let say = async |body: Value| {
            let answer = f.answer("$default", json!({"body": body.to_string()})).await;
            answer["body"].as_str().unwrap_or("").to_owned()
        };
        let publish =
            |stream: &str| json!({"id": 1, "op": "publish", "stream": stream, "rows": [{}]});
        assert!(say(publish("s")).await.contains("forbidden"));
        assert!(say(publish("t")).await.contains("published"));
        let subscribe = |stream: &str| json!({"id": 2, "op": "subscribe", "stream": stream});
        assert!(say(subscribe("t")).await.contains("forbidden"));
        assert_eq!(say(subscribe("s")).await, "", "its first frame answers");
    }

    #[tokio::test(start_paused = true)]
    async fn a_signed_url_is_no_other_request() {
        let f = fixture(true).await;
        let signed = json!({"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Signature": "00"});
        let connect = json!({"queryStringParameters": signed});
        assert_eq!(f.answer("$connect", connect).await, json!({"statusCode": 200}));
        let connect = json!({"queryStringParameters": {"stream": "s", "x-amz-date": "1"}});
        assert_eq!(f.answer("$connect", connect).await, json!({"statusCode": 200}));
        let connect = json!({"queryStringParameters": {"stream": "s", "token": "1"}});
        assert_eq!(f.answer("$connect", connect).await["statusCode"], 400);
    }

    #[tokio::test(start_paused = true)]
    async fn a_native_client_asks_and_is_answered() {
        let f = fixture(true).await;
        let connect = json!({"queryStringParameters": null});
        assert_eq!(f.answer("$connect", connect).await, json!({"statusCode": 200}));
        assert_eq!(f.row().await.unwrap().str("endpoint"), None, "the environment says it");
        let say = |body: Value| f.answer("$default", json!({"body": body.to_string()}));
        let pong = say(json!({"id": 1, "op": "ping"})).await;
        assert_eq!(pong, json!({"statusCode": 200, "body": r#"{"id":1,"pong":true}"#}));
        let publish = json!({"id": "p", "op": "publish", "stream": "s", "rows": [{"n": 1}]});
        let published = say(publish).await["body"].as_str().unwrap().to_owned();
        assert!(published.contains(r#""offset":1"#), "{published}");
        let subscribe = json!({"id": "q", "op": "subscribe", "stream": "s"});
        assert_eq!(say(subscribe).await, json!({"statusCode": 200}), "its first frame answers");
        assert_eq!(f.asked().len(), 1);
        let wrong = f.answer("$default", json!({"body": "x"})).await;
        assert_eq!(wrong["statusCode"], 200);
        assert!(wrong["body"].as_str().unwrap().contains("bad_request"), "{wrong}");
        let binary = json!({"body": "AAAA", "isBase64Encoded": true});
        assert!(f.answer("$default", binary).await["body"].is_string());
    }

    #[tokio::test(start_paused = true)]
    async fn a_subscriber_that_speaks_is_closed_without_a_word() {
        let f = fixture(true).await;
        f.answer("$connect", json!({"queryStringParameters": {"stream": "s"}})).await;
        let answer = f.answer("$default", json!({"body": "[1]"})).await;
        assert_eq!(answer, json!({"statusCode": 200}));
        assert_eq!(*f.outside.closed.lock().unwrap(), ["L0SM9cOFvHcCIhw="]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_answered_for() {
        let f = fixture(true).await;
        let env = Env::simulated(3, 0, 0);
        let dead = faulty::Faulty::new(Arc::new(f.store.clone()), faulty::Plan::none(), env);
        dead.crash_at(1, faulty::Crash::Before);
        let function = over(Arc::new(dead), &f.outside, true);
        let within = Duration::from_secs(15);
        let connect = json!({"queryStringParameters": {"stream": "s"}});
        assert_eq!(function.answer(event("$connect", connect), within).await.status_code, 503);
        let text = json!({"id": 5, "op": "subscribe", "stream": "s"}).to_string();
        let answer = function.answer(event("$default", json!({"body": text})), within).await;
        let body = answer.body.unwrap();
        assert!(body.starts_with(r#"{"id":5,"error":"#), "{body}");
        let answer = function.answer(event("$default", json!({"body": "[1,{}]"})), within).await;
        assert!(answer.body.unwrap().contains("commit_failed"));
        let left = function.answer(event("$disconnect", json!({})), within).await;
        assert_eq!(left, Answer::ok(None));
    }
}
