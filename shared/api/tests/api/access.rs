//! Keys and grants: who may do what, of every route there is.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};
use tidewheel_api::{Settings, description};

use crate::support::{Answer, Server};

/// Routes that show any key what it may see.
const ANY_KEY: [&str; 3] = ["controlCapabilities", "controlStreams", "controlOperation"];

/// Routes that nobody needs a key for.
const OPEN: [&str; 2] = ["health", "alive"];

const ACTIONS: [&str; 4] = ["read", "publish", "consume", "control"];

impl Server {
    async fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("content-type", "application/json")
            .header("idempotency-key", "k");
        let request = match key {
            "" => request,
            key => request.header("authorization", format!("Bearer {key}")),
        };
        self.request(request.body(Body::from(body)).unwrap()).await
    }

    /// Makes a key; answers its text and its id.
    async fn key(&self, admin: &str, grants: &[&str]) -> (String, String) {
        let new = json!({"name": "test", "grants": grants});
        let made = self.ask(admin, "POST", "/keys", &new).await.with(201);
        (made["key"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap().to_owned())
    }
}

/// A stream with a partition, a query and a dead letter; and the first key.
async fn filled() -> (Server, String, Value) {
    let server = Server::new();
    server.push("secret", "p", [json!({"n": 1}), json!({"n": 2})]).await;
    let message = server.pop("secret", "g", 1).await.remove(0);
    let query = server.register("query", "secret").await;
    let known = json!({
        "partition": message["partitionId"], "transaction": message["transactionId"],
        "lease": message["leaseId"], "query": query,
    });
    let (admin, _) = server.key("", &["admin:*"]).await;
    (server, admin, known)
}

/// What a route whose body says what it is about is sent; `None` if nobody has thought of the route.
fn body_of(operation: &str, known: &Value) -> Option<Value> {
    let push = json!([{"queue": "secret", "payload": 1}]);
    let ack = json!({"transactionId": known["transaction"], "partitionId": known["partition"]});
    Some(match operation {
        "push" => json!({"items": push}),
        "transaction" => json!({"operations": [{"type": "push", "items": push}]}),
        "configure" => json!({"queue": "secret"}),
        "ack" => ack,
        "ackBatch" => json!({"acknowledgments": [ack]}),
        "fetch" => json!({"entries": [{"queue": "secret", "offset": 0}]}),
        "fetchOffsets" => json!({"entries": [{"queue": "secret", "timestamp": 0}]}),
        "changedPartitions" => json!({"entries": [{"queue": "secret"}]}),
        "recordTrace" => {
            json!({"transactionId": "t", "partitionId": known["partition"], "data": 1})
        }
        "registerQuery" => json!({"name": "query", "source_queue": "secret", "config_hash": "h"}),
        "state" | "cycle" => {
            json!({"query_id": known["query"], "partition_id": known["partition"]})
        }
        "statePartitions" | "claim" => json!({"query_id": known["query"]}),
        "kv" => json!({"operations": [
            {"op": "put", "ns": "secret", "key": "k", "value": 1, "forever": true}]}),
        "locks" => json!({"operations": [{"op": "acquire", "name": "secret", "ttlSeconds": 1}]}),
        "timers" => json!({"operations": [{"op": "cancel", "queue": "secret", "timerKey": "k"}]}),
        _ => return None,
    })
}

/// What the other routes are sent.
fn harmless(operation: &str) -> Value {
    match operation {
        "setPushMaintenance" | "setPopMaintenance" => json!({"enabled": false}),
        "createKey" => json!({"grants": ["read:nothing"]}),
        "kvPut" => json!({"value": 1, "forever": true}),
        _ => Value::Null,
    }
}

struct Route {
    id: String,
    method: String,
    path: String,
    action: String,
}

/// All routes, with paths that name what there is.
fn all(known: &Value) -> Vec<Route> {
    let text = description("1").to_json().unwrap();
    let described: Value = serde_json::from_str(&text).unwrap();
    let text = |name: &str| known[name].as_str().unwrap().to_owned();
    let letter = format!("0.{}.0.g", text("partition"));
    let mut routes = Vec::new();
    for (path, item) in described["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            let mut path = path.clone();
            let id_name = if id == "replayDeadLetter" { letter.as_str() } else { "secret" };
            let partition = if path.contains("/queue") { "p".into() } else { text("partition") };
            for (name, value) in [
                ("{partition}", partition.as_str()),
                ("{transaction}", &text("transaction")),
                ("{lease}", &text("lease")),
                ("{id}", id_name),
            ] {
                path = path.replace(name, value);
            }
            while let Some(start) = path.find('{') {
                let end = path.find('}').unwrap();
                path.replace_range(start..=end, "secret");
            }
            if ["listMessages", "listDeadLetters", "rankPartitions", "purgeDeadLetters"]
                .contains(&id.as_str())
            {
                path += "?queue=secret";
            }
            let action = operation["security"][0]["bearer"][0].as_str().unwrap_or("").to_owned();
            routes.push(Route { id, method: method.to_uppercase(), path, action });
        }
    }
    routes
}

#[tokio::test(start_paused = true)]
async fn every_route_asks_for_its_grant_and_no_other_will_do() {
    let (server, admin, known) = filled().await;
    let elsewhere = ["admin:other*", "read:other*", "publish:other*", "consume:other*"];
    let (elsewhere, _) = server.key(&admin, &elsewhere).await;
    let mut sure = Vec::new();
    for action in ACTIONS {
        let all_but: Vec<String> =
            ACTIONS.iter().filter(|a| **a != action).map(|a| format!("{a}:*")).collect();
        let all_but: Vec<&str> = all_but.iter().map(String::as_str).collect();
        let only = format!("{action}:*");
        sure.push((
            action,
            server.key(&admin, &[only.as_str()]).await.0,
            server.key(&admin, &all_but).await.0,
        ));
    }
    let routes = all(&known);
    assert!(routes.len() > 60, "{}", routes.len());
    for Route { id, method, path, action } in &routes {
        let at = format!("{id}: {method} {path}");
        let body = body_of(id, &known).unwrap_or_else(|| harmless(id));
        let ask = async |key: &str| {
            let answer = server.ask(key, method, path, &body).await;
            (answer.status.as_u16(), answer)
        };
        if OPEN.contains(&id.as_str()) {
            assert!(action.is_empty(), "{at} needs no key and says it does");
            assert_eq!(ask("").await.0, 200, "{at}");
            continue;
        }
        assert!(!action.is_empty(), "{at} does not say what it asks for");
        let (status, answer) = ask("").await;
        assert_eq!(status, 401, "{at}");
        let challenge = answer.headers.get("www-authenticate").unwrap().to_str().unwrap();
        assert!(challenge.starts_with("Basic realm="), "{challenge}");
        assert_eq!(ask("tw_0123456789abcdef_wrong").await.0, 401, "{at}");
        if ANY_KEY.contains(&id.as_str()) {
            assert!(!matches!(ask(&elsewhere).await.0, 401 | 403), "{at}");
            continue;
        }
        let (status, answer) = ask(&elsewhere).await;
        assert_eq!(status, 403, "{at}: {}", answer.text());
        match sure.iter().find(|(a, ..)| a == action) {
            Some((_, only, all_but)) => {
                assert_eq!(ask(all_but).await.0, 403, "{at} took another action");
                let (status, answer) = ask(only).await;
                assert!(!matches!(status, 401 | 403), "{at}: {}", answer.text());
            }
            None => {
                assert_eq!(action, "admin", "{at}");
                for (_, only, _) in &sure {
                    assert_eq!(ask(only).await.0, 403, "{at}");
                }
                let (status, answer) = ask(&admin).await;
                assert!(!matches!(status, 401 | 403), "{at}: {}", answer.text());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn everything_in_a_body_must_be_granted_or_nothing_of_it_happens() {
    let (server, admin, known) = filled().await;
    let (key, _) = server.key(&admin, &["publish:orders*", "consume:orders*", "read:*"]).await;
    let before = server.push_count(&admin, "orders.eu").await;
    let mixed = json!([{"queue": "orders.eu", "payload": 1}, {"queue": "secret", "payload": 1}]);
    for (path, body) in [
        ("/api/v1/push", json!({"items": mixed})),
        ("/api/v1/transaction", json!({"operations": [{"type": "push", "items": mixed}]})),
        (
            "/api/v1/transaction",
            json!({"operations": [
                {"type": "push", "items": [mixed[0]]},
                {"type": "ack", "transactionId": known["transaction"], "partitionId": known["partition"]},
            ]}),
        ),
        (
            "/api/v1/transaction",
            json!({"operations": [{"type": "push", "items": [mixed[0]]}], "kv": [
                {"op": "put", "ns": "n", "key": "k", "value": 1, "forever": true}]}),
        ),
        (
            "/api/v1/transaction",
            json!({"operations": [{"type": "push", "items": [mixed[0]]}], "timers": [
                {"op": "cancel", "queue": "secret", "timerKey": "k"}]}),
        ),
        (
            "/streams/v1/queries",
            json!({"name": "mine", "source_queue": "orders.eu", "sink_queue": "secret", "config_hash": "h"}),
        ),
        // Whoever takes a query's name takes its state.
        (
            "/streams/v1/queries",
            json!({"name": "query", "source_queue": "orders.eu", "config_hash": "h"}),
        ),
    ] {
        let answer = server.ask(&key, "POST", path, &body).await;
        let error = answer.error(403);
        assert!(error.contains("no grant"), "{error}");
    }
    assert_eq!(server.push_count(&admin, "orders.eu").await, before, "nothing of it happened");
    let good = json!({"items": [mixed[0]]});
    server.ask(&key, "POST", "/api/v1/push", &good).await.with(201);
    assert_eq!(server.push_count(&admin, "orders.eu").await, before + 1);
}

impl Server {
    async fn push_count(&self, admin: &str, queue: &str) -> u64 {
        let body = json!({"entries": [{"queue": queue, "offset": 0}]});
        let found = self.ask(admin, "POST", "/api/v1/fetch", &body).await.with(200);
        found["entries"][0]["highWatermark"].as_u64().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_reads_no_body_and_tells_nothing_of_what_there_is() {
    let (server, admin, _) = filled().await;
    let (key, _) = server.key(&admin, &["read:other"]).await;
    let garbage = json!("no request at all");
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(server.ask("", method, "/api/v1/push", &garbage).await.status, 401);
    }
    let seek = |queue: &str| format!("/api/v1/consumer-groups/g/queues/{queue}/seek");
    server.ask(&key, "POST", &seek("secret"), &garbage).await.error(403);
    let of = async |queue: &str| {
        let path = format!("/api/v1/resources/queues/{queue}");
        let answer = server.ask(&key, "GET", &path, &Value::Null).await;
        answer.error(403).replace(queue, "")
    };
    assert_eq!(of("secret").await, of("nosuch").await);
    // Nor of what is known by an id only.
    let of = async |partition: &str| {
        let path = format!("/api/v1/messages/{partition}/t");
        server.ask(&key, "GET", &path, &Value::Null).await.error(403)
    };
    of(crate::support::NOBODY).await;
    of("nonsense").await;
    // A path that is no route is none for those who may be here, and asks the others.
    assert_eq!(server.ask("", "GET", "/nowhere", &Value::Null).await.status, 401);
    assert_eq!(server.ask(&key, "GET", "/nowhere", &Value::Null).await.status, 404);
    assert_eq!(server.ask("", "GET", "/openapi.json", &Value::Null).await.status, 401);
    assert_eq!(server.ask(&key, "GET", "/openapi.json", &Value::Null).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_shown_once_and_counts_until_it_ends() {
    let server = Server::new();
    // Without a key nobody is asked, whatever is presented.
    assert_eq!(server.ask("anything", "GET", "/api/v1/status", &Value::Null).await.status, 200);
    let (admin, admin_id) = server.key("", &["admin:*"]).await;
    let made = json!({"name": "short", "grants": ["read:*"], "expiresInSeconds": 60});
    let made = server.ask(&admin, "POST", "/keys", &made).await;
    assert_eq!(made.headers["cache-control"], "no-store");
    let (key, id) = (made.json()["key"].clone(), made.json()["id"].clone());
    let (key, id) = (key.as_str().unwrap(), id.as_str().unwrap());
    let status = async |key: &str| {
        server.ask(key, "GET", "/api/v1/status", &Value::Null).await.status.as_u16()
    };
    assert_eq!(status(key).await, 200);

    let listed = server.ask(&admin, "GET", "/keys", &Value::Null).await;
    assert_eq!(listed.json()["keys"].as_array().unwrap().len(), 2);
    let secret = key.rsplit('_').next().unwrap();
    assert!(!listed.text().contains(secret) && !listed.text().contains("hash"), "{listed:?}");
    let stored = format!("{:?}", server.stored());
    assert!(stored.contains(id) && !stored.contains(secret), "what is stored opens nothing");

    for (name, value) in [
        ("x-api-key", key.to_owned()),
        ("x-stream-api-key", key.to_owned()),
        ("authorization", format!("bearer {key}")),
        ("authorization", format!("Basic {}", base64(&format!("anyone:{key}")))),
    ] {
        let request = Request::get("/api/v1/status").header(name, &value);
        let answer = server.request(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 200, "{name}: {value}");
    }
    let wrong = format!("{}0", &key[..key.len() - 1]);
    let wrong = if wrong == key { format!("{}1", &key[..key.len() - 1]) } else { wrong };
    for bad in [wrong.as_str(), &key[3..], "tw_", &format!("tw_{admin_id}_{secret}")] {
        assert_eq!(status(bad).await, 401, "{bad}");
    }

    // Rotated with an overlap, both count for a while.
    let path = format!("/keys/{id}/rotate");
    let rotated = server.ask(&admin, "POST", &path, &json!({"overlapSeconds": 10})).await.with(200);
    let new = rotated["key"].as_str().unwrap();
    assert_eq!((status(key).await, status(new).await), (200, 200));
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!((status(key).await, status(new).await), (401, 200));

    // Disabled it counts no longer, from that answer on; and again when enabled.
    let path = format!("/keys/{id}");
    server.ask(&admin, "PUT", &path, &json!({"disabled": true})).await.with(200);
    assert_eq!(status(new).await, 401);
    server.ask(&admin, "PUT", &path, &json!({"disabled": false})).await.with(200);
    assert_eq!(status(new).await, 200);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(status(new).await, 401, "it has expired");

    server.ask(&admin, "DELETE", &path, &Value::Null).await.with(200);
    server.ask(&admin, "DELETE", &path, &Value::Null).await.error(404);
    server.ask(&admin, "POST", &format!("{path}/rotate"), &Value::Null).await.error(404);
    for bad in [
        json!({"grants": []}),
        json!({"grants": ["write:*"]}),
        json!({"grants": ["read:a*b"]}),
        json!({"grants": ["read:*"], "expiresInSeconds": 0}),
        json!({"grants": ["read:*"], "requestsPerSecond": 0}),
        json!({"grants": ["read:*"], "nmae": "x"}),
    ] {
        server.ask(&admin, "POST", "/keys", &bad).await.error(400);
    }
}

fn base64(text: &str) -> String {
    use ::base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(text)
}

#[tokio::test(start_paused = true)]
async fn other_processes_go_by_what_they_know_for_five_seconds() {
    let server = Server::new();
    let (admin, _) = server.key("", &["admin:*"]).await;
    let (key, id) = server.key(&admin, &["read:*"]).await;
    let other = server.another();
    let status = async |key: &str| {
        other.ask(key, "GET", "/api/v1/status", &Value::Null).await.status.as_u16()
    };
    assert_eq!(status(&key).await, 200);
    let path = format!("/keys/{id}");
    server.ask(&admin, "PUT", &path, &json!({"disabled": true})).await.with(200);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(status(&key).await, 401);
}

#[tokio::test(start_paused = true)]
async fn where_it_may_not_be_open_nobody_is_let_in_without_a_key() {
    let server = Server::with(Settings { open_without_keys: false, ..Settings::default() });
    assert_eq!(server.get("/api/v1/status").await.status, 401);
    assert_eq!(server.post("/keys", json!({"grants": ["admin:*"]})).await.status, 401);
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn when_keys_cannot_be_read_nobody_is_let_in() {
    use tidewheel_store::faulty::Plan;
    let (server, admin, _) = filled().await;
    tokio::time::advance(Duration::from_secs(6)).await;
    server.faults.set_plan(Plan { refuse: 1.0, refuse_read: 1.0, ..Plan::none() });
    let answer = server.ask(&admin, "GET", "/api/v1/status", &Value::Null).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_key_over_its_quota_waits() {
    let server = Server::new();
    let (admin, _) = server.key("", &["admin:*"]).await;
    let new = json!({"grants": ["publish:*"], "requestsPerSecond": 2, "bytesPerSecond": 1000});
    let key = server.ask(&admin, "POST", "/keys", &new).await.with(201)["key"].clone();
    let key = key.as_str().unwrap();
    let push = async |bytes: usize| {
        let items = json!({"items": [{"queue": "q", "payload": "x".repeat(bytes)}]});
        server.ask(key, "POST", "/api/v1/push", &items).await
    };
    assert_eq!(push(1).await.status, 201);
    assert_eq!(push(1).await.status, 201);
    let refused = push(1).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    assert_eq!(refused.json()["code"], "over_quota");
    tokio::time::advance(Duration::from_secs(1)).await;
    // A large body is served, and its debt is paid before the next.
    assert_eq!(push(5000).await.status, 201);
    let refused = push(1).await;
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((4..=5).contains(&wait), "{wait}");
    tokio::time::advance(Duration::from_secs(wait)).await;
    assert_eq!(push(1).await.status, 201);
    // Others are not concerned.
    assert_eq!(server.ask(&admin, "GET", "/api/v1/status", &Value::Null).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn what_is_administered_and_what_is_refused_is_written_down_without_a_secret() {
    let (server, admin, _) = filled().await;
    let (key, id) = server.key(&admin, &["read:other"]).await;
    server.ask(&key, "GET", "/api/v1/resources/queues/secret", &Value::Null).await.error(403);
    let push = json!({"items": [{"queue": "secret", "payload": "PAYLOAD"}]});
    server.ask(&key, "POST", "/api/v1/push", &push).await.error(403);
    for _ in 0..50 {
        server.ask("tw_x", "GET", "/api/v1/status", &Value::Null).await;
    }
    server.ask(&admin, "DELETE", "/api/v1/resources/queues/secret", &Value::Null).await.with(200);
    let body = json!({"entries": [{"queue": "tidewheel.audit", "offset": 0}]});
    let log = server.ask(&admin, "POST", "/api/v1/fetch", &body).await;
    let records = log.with(200)["entries"][0]["records"].as_array().unwrap().clone();
    let entries: Vec<&Value> = records.iter().map(|r| &r["payload"]).collect();
    let has = |wanted: Value| {
        let fits = |e: &&&Value| wanted.as_object().unwrap().iter().all(|(k, v)| e[k] == *v);
        assert!(entries.iter().any(|e| fits(&e)), "{wanted} is not in {entries:#?}");
    };
    has(json!({"key": id, "action": "read", "route": "/api/v1/resources/queues/{queue}",
        "stream": "secret", "outcome": 403}));
    has(
        json!({"key": id, "action": "publish", "route": "/api/v1/push", "stream": "secret", "outcome": 403}),
    );
    has(json!({"action": "admin", "route": "/keys", "outcome": 201}));
    has(json!({"action": "control", "stream": "secret", "outcome": 200}));
    has(json!({"key": null, "outcome": 401}));
    let unknown = entries.iter().filter(|e| e["outcome"] == 401).count();
    assert!(unknown <= 11, "{unknown}: whoever has no key cannot fill the log");
    for secret in [&admin, &key] {
        assert!(!log.text().contains(secret.rsplit('_').next().unwrap()));
    }
    assert!(!log.text().contains("PAYLOAD") && !log.text().contains("tw_x"));
    // The log is the server's own: only who may administer it writes to it.
    let (publisher, _) = server.key(&admin, &["publish:*", "control:*"]).await;
    let forged = json!({"items": [{"queue": "tidewheel.audit", "payload": 1}]});
    server.ask(&publisher, "POST", "/api/v1/push", &forged).await.error(403);
    let path = "/api/v1/resources/queues/tidewheel.audit";
    server.ask(&publisher, "DELETE", path, &Value::Null).await.error(403);
}

#[tokio::test(start_paused = true)]
async fn what_stands_beside_the_api_is_guarded_like_it() {
    use axum::routing::get;
    let server = Server::new();
    let beside = server.router.clone().route("/stats", get(async || "numbers"));
    let beside = beside.route("/unknown", get(async || "secret")).route("/", get(async || "page"));
    let guarded =
        Server { router: tidewheel_api::guarded(&server.api, beside), ..server.another() };
    assert_eq!(guarded.get("/stats").await.status, 200, "there are no keys");
    let (admin, _) = server.key("", &["admin:*"]).await;
    let (reader, _) = server.key(&admin, &["read:*"]).await;
    let status = async |key: &str, path: &str| {
        guarded.ask(key, "GET", path, &Value::Null).await.status.as_u16()
    };
    for (key, path, expected) in [
        ("", "/", 200),
        ("", "/stats", 401),
        (reader.as_str(), "/stats", 200),
        ("", "/unknown", 401),
        (&reader, "/unknown", 403),
        (&admin, "/unknown", 200),
        ("", "/api/v1/status", 401),
        (&reader, "/api/v1/status", 200),
        ("", "/health", 200),
    ] {
        assert_eq!(status(key, path).await, expected, "{path}");
    }
}
