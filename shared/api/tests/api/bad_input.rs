//! Bad input costs its sender a clear error and nobody else anything: the right status, a text that names what and
//! where, and a store that is what it was.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use serde_json::{Value, json};
use tidewheel_api::Settings;
use tidewheel_store::faulty::Plan;

use crate::support::Server;

/// Routes that take a body which must be a request.
const STRICT: [&str; 8] = [
    "/api/v1/configure",
    "/api/v1/push",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/streams/v1/queries",
    "/streams/v1/state/get",
    "/streams/v1/cycle",
];

/// A server that has something to lose.
async fn server() -> Server {
    let server = Server::with(Settings { max_body_bytes: 64 * 1024, ..Settings::default() });
    server.push("q", "p", [json!({"n": 1})]).await;
    server.pop("q", "g", 1).await;
    server.register("n", "q").await;
    server
}

#[tokio::test(start_paused = true)]
async fn malformed_json() {
    let server = server().await;
    let before = server.stored();
    for path in STRICT {
        for bad in
            ["", " \n", "{", "nope", "{\"a\":1,}", "{\"a\" 1}", "{\"items\":[{\"payload\":01}]}"]
        {
            let error = server.send(Method::POST, path, bad).await.error(400);
            assert!(error.starts_with("malformed JSON: "), "{path} {bad:?}: {error}");
        }
        let error = server.send(Method::POST, path, "QPB1\u{0}\u{1}").await.error(400);
        assert!(error.contains("binary"), "{error}");
    }
    let error = server.send(Method::POST, "/api/v1/push", "{\"items\":\n[{]}").await.error(400);
    assert!(error.contains("line 2 column 3"), "it says where: {error}");
    assert_eq!(server.stored(), before);
}

#[tokio::test(start_paused = true)]
async fn wrong_types_and_missing_fields() {
    let server = server().await;
    let before = server.stored();
    for (path, bad, word) in [
        ("/api/v1/configure", json!([]), "an object"),
        ("/api/v1/configure", json!({"options": {}}), "queue"),
        ("/api/v1/configure", json!({"queue": 5}), "queue"),
        ("/api/v1/configure", json!({"queue": "q", "options": {"leaseTime": "long"}}), "leaseTime"),
        ("/api/v1/configure", json!({"queue": "q", "options": {"retryLimit": 1.5}}), "retryLimit"),
        ("/api/v1/configure", json!({"queue": "q", "mode": "upsert"}), "mode"),
        ("/api/v1/push", json!({}), "items"),
        ("/api/v1/push", json!({"items": {}}), "items: "),
        ("/api/v1/push", json!({"items": [{"payload": 1}]}), "queue"),
        ("/api/v1/push", json!({"items": [{"queue": null, "payload": 1}]}), "items[0].queue: "),
        ("/api/v1/push", json!({"items": [{"queue": "q"}]}), "items[0]: `payload` is missing"),
        (
            "/api/v1/push",
            json!({"items": [{"queue": "q", "payload": 1}, {"queue": "q", "data": 1}]}),
            "items[1]",
        ),
        (
            "/api/v1/push",
            json!({"items": [{"queue": "q", "payload": 1, "transactionId": 7}]}),
            "items[0].transactionId: invalid type: integer `7`",
        ),
        (
            "/api/v1/push",
            json!({"items": [{"queue": "q", "payload": 1, "partition": ["p"]}]}),
            "string",
        ),
        ("/api/v1/ack", json!({"partitionId": "x"}), "transactionId"),
        ("/api/v1/ack", json!({"transactionId": "x"}), "partitionId"),
        (
            "/api/v1/ack",
            json!({"transactionId": "x", "partitionId": "y", "status": true}),
            "string",
        ),
        ("/api/v1/ack/batch", json!([]), "an object"),
        ("/api/v1/push", json!([[]]), "an object"),
        ("/api/v1/push", json!({"items": [["q", "p", 1]]}), "an object"),
        ("/api/v1/push", json!({"items": ["q"]}), "an object"),
        (
            "/streams/v1/cycle",
            json!({"query_id": "x", "partition_id": "y", "state_ops": [["delete", "k"]]}),
            "an object",
        ),
        (
            "/streams/v1/cycle",
            json!({"query_id": "x", "partition_id": "y", "ack": "completed"}),
            "an object",
        ),
        ("/api/v1/ack/batch", json!({}), "acknowledgments"),
        ("/api/v1/ack/batch", json!({"acknowledgments": [{}]}), "transactionId"),
        ("/streams/v1/queries", json!({"name": 1}), "string"),
        ("/streams/v1/queries", json!({"name": "n", "reset": "yes"}), "boolean"),
        (
            "/streams/v1/state/get",
            json!({"query_id": "x", "partition_id": "y", "keys": "k"}),
            "sequence",
        ),
        (
            "/streams/v1/cycle",
            json!({"query_id": "x", "partition_id": "y", "state_ops": 5}),
            "sequence",
        ),
        (
            "/streams/v1/cycle",
            json!({"query_id": "x", "partition_id": "y", "ack": {"count": "1"}}),
            "ack.count: ",
        ),
        ("/api/v1/consumer-groups/g/queues/q/seek", json!({"toEnd": "yes"}), "boolean"),
    ] {
        let error = server.post(path, bad.clone()).await.error(400);
        assert!(error.contains(word), "{path} {bad}: {error}");
    }
    for path in [
        "/api/v1/pop/queue/q?batch=many",
        "/api/v1/pop/queue/q?partitions=1.5",
        "/api/v1/pop/queue/q?wait=true&timeout=soon",
        "/api/v1/pop/queue/q?leaseSeconds=99999999999999999999",
        "/api/v1/pop/queue/q?consumerGroup=g&subscriptionFrom=yesterday",
        "/api/v1/pop/queue/q?consumerGroup=%ff",
        "/api/v1/pop/queue/%ff",
        "/api/v1/dlq?queue=q&limit=all",
    ] {
        server.get(path).await.error(400);
    }
    assert_eq!(server.stored(), before);
}

#[tokio::test(start_paused = true)]
async fn oversize_body() {
    let server = server().await;
    let before = server.stored();
    let long = "x".repeat(64 * 1024);
    for path in STRICT.into_iter().chain(["/api/v1/lease/x/extend"]) {
        // Not even JSON: the limit comes first.
        let error = server.send(Method::POST, path, long.clone() + "x").await.error(413);
        assert!(error.contains("65536 bytes"), "{path}: {error}");
        // The same in chunks, of a length that nobody declared.
        let chunks = (0..80).map(|_| Ok::<_, std::io::Error>("y".repeat(1024)));
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        server.send(Method::POST, path, body).await.error(413);
        // Declared, and the client waits for a word before it sends.
        let request = Request::post(path)
            .header("content-length", "1000000")
            .header("expect", "100-continue")
            .body(
                Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>()),
            )
            .unwrap();
        server.request(request).await.error(413);
    }
    assert_eq!(server.send(Method::POST, "/api/v1/push", long).await.status, 400, "the limit fits");
    assert_eq!(server.stored(), before);
}

#[tokio::test(start_paused = true)]
async fn too_many_bytes_at_once() {
    let server = Server::with(Settings { max_in_flight_bytes: 1000, ..Settings::default() });
    let body = json!({"items": [{"queue": "q", "payload": "x".repeat(1000)}]});
    let answer = server.post("/api/v1/push", body).await;
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(answer.error(503).contains("1000 bytes"));
    let body = json!({"items": [{"queue": "q", "payload": "x".repeat(900)}]});
    for _ in 0..3 {
        server.post("/api/v1/push", body.clone()).await.with(201);
    }
}

#[tokio::test(start_paused = true)]
async fn text_that_is_none_s36() {
    let server = server().await;
    let before = server.stored();
    for path in STRICT {
        let error = server.send(Method::POST, path, &b"{\"queue\":\"\xff\"}"[..]).await.error(400);
        assert!(error.contains("not UTF-8 at byte 10"), "{path}: {error}");
        for bad in [r#"{"queue":"\ud800"}"#, r#"{"x":{"y":["\udc00"]}}"#] {
            let error = server.send(Method::POST, path, bad).await.error(400);
            assert!(error.contains("surrogate"), "{path} {bad}: {error}");
        }
    }
    let hidden = r#"{"items":[{"queue":"q","payload":{"deep":["ok","\ud83d"]}}]}"#;
    server.send(Method::POST, "/api/v1/push", hidden).await.error(400);
    assert_eq!(server.stored(), before);
    let whole = r#"{"items":[{"queue":"q","payload":{"deep":["ok","\ud83d\ude00"]}}]}"#;
    server.send(Method::POST, "/api/v1/push", whole).await.with(201);
}

#[tokio::test(start_paused = true)]
async fn nesting_without_end() {
    let server = Server::new();
    for path in STRICT {
        for bad in ["[".repeat(1 << 20), "{\"a\":".repeat(1 << 18)] {
            server.send(Method::POST, path, bad).await.error(400);
        }
    }
    let nested = |n: usize| {
        let payload = format!("{}{}", "[".repeat(n), "]".repeat(n));
        format!(r#"{{"items":[{{"queue":"q","payload":{payload}}}]}}"#)
    };
    for deep in [125, 100_000] {
        let error = server.send(Method::POST, "/api/v1/push", nested(deep)).await.error(400);
        assert!(error.contains("124 levels at line 1 column"), "{error}");
    }
    server.send(Method::POST, "/api/v1/push", nested(124)).await.with(201);
    // What was accepted can be read by a parser of the usual depth.
    assert_eq!(server.pop("q", "g", 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn names_out_of_bounds() {
    let server = server().await;
    let long = "n".repeat(tidewheel_engine::limits::NAME_BYTES + 1);
    let before = server.stored();
    let limit = tidewheel_engine::limits::NAME_BYTES.to_string();
    let error = server.post("/api/v1/configure", json!({"queue": long})).await.error(400);
    assert!(error.contains(&limit), "{error}");
    let bad = [
        json!({"queue": long, "payload": 1}),
        json!({"queue": "q", "partition": long, "payload": 1}),
    ];
    let error = server.post("/api/v1/push", json!({"items": bad})).await.error(400);
    assert!(error.contains(&limit), "{error}");
    let path = format!("/api/v1/pop/queue/{long}?consumerGroup=g");
    assert!(server.get(&path).await.error(400).contains(&limit));
    let path = format!("/api/v1/pop/queue/q?consumerGroup={long}");
    assert!(server.get(&path).await.error(400).contains(&limit));
    assert_eq!(server.stored(), before);

    // Among good items, a bad one is refused alone.
    let items = [bad[0].clone(), json!({"queue": "q", "payload": 1}), bad[1].clone()];
    let results = server.post("/api/v1/push", json!({"items": items})).await.with(201);
    assert_eq!(results[1]["status"], "queued");
    for refused in [&results[0], &results[2]] {
        assert_eq!(refused["status"], "failed");
        assert!(refused["error"].as_str().unwrap().contains(&limit), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_does_not_repeat_a_long_input() {
    let server = server().await;
    let long = "secret ".repeat(9_000);
    for (path, bad) in [
        ("/api/v1/push", json!({"items": long})),
        ("/api/v1/transaction", json!({"operations": [{"type": long}]})),
        ("/streams/v1/cycle", json!({"query_id": 1, "partition_id": [long]})),
        (
            "/streams/v1/cycle",
            json!({"query_id": "00000000-0000-4000-8000-000000000000", "partition_id": long,
            "state_ops": []}),
        ),
    ] {
        let answer = server.post(path, bad).await;
        assert!(answer.body.len() < 2_000, "{path}: {}", answer.text());
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_routes_and_methods() {
    let server = server().await;
    for path in [
        "/api/v1/ephemeral",
        "/api/v1/nope",
        "/api/v2/push",
        "/streams/v1/x",
        "/nope",
        "/api/v1/pop/queue/a/b",
    ] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let answer = server.send(method, path, "{}").await.with(404);
            assert_eq!(answer, json!({"error": "Not Found", "code": "no_such_route"}), "{path}");
        }
    }
    let answer = server.get("/api/v1/push").await;
    assert_eq!(answer.with(405)["code"], "method_not_allowed");
    assert!(answer.headers.contains_key("allow"));
}

/// A store that takes nothing: 503 with a time to come back, and the whole request may be repeated.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_a_503() {
    let server = server().await;
    let messages: Vec<Value> = {
        server.push("q", "other", [json!({"n": 2})]).await;
        server.pop("q", "g", 1).await
    };
    let ack = json!({"transactionId": messages[0]["transactionId"], "partitionId": messages[0]["partitionId"],
        "leaseId": messages[0]["leaseId"], "consumerGroup": "g"});
    let query = server.register("n", "q").await;
    let cycle = json!({"query_id": query, "partition_id": messages[0]["partitionId"], "consumer_group": "g",
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "ack": {"leaseId": messages[0]["leaseId"], "status": "completed", "count": 1}});
    let requests = [
        (
            "/api/v1/push",
            json!({"items": [{"queue": "q", "payload": 1}, {"queue": "new", "payload": 1}]}),
        ),
        ("/api/v1/configure", json!({"queue": "q", "options": {"ttl": 1}})),
        (
            "/api/v1/transaction",
            json!({"operations": [{"type": "push", "items": [{"queue": "q", "payload": 1}]}]}),
        ),
        ("/streams/v1/cycle", cycle),
        ("/api/v1/ack", ack),
    ];
    let before = server.store.items();
    server.faults.set_plan(Plan { refuse: 1.0, refuse_read: 1.0, ..Plan::none() });
    for (path, request) in &requests {
        let answer = server.post(path, request.clone()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {}", answer.text());
        assert_eq!(answer.headers["retry-after"], "1");
        assert!(answer.json()["code"].is_string());
    }
    assert_eq!(server.get("/health").await.with(503)["database"], "unavailable");
    assert_eq!(server.store.items(), before);

    server.faults.set_plan(Plan::none());
    assert_eq!(server.get("/health").await.with(200)["status"], "healthy");
    for (path, request) in requests {
        let status = server.post(path, request).await.status;
        assert!(status.is_success(), "{path}: {status}");
    }
}

/// Requests with a few bytes wrong, by the thousand: each is answered, and none as if the server were at fault.
#[tokio::test(start_paused = true)]
async fn damaged_requests_are_the_senders_fault() {
    let server = server().await;
    let message = server.pop("q", "other", 1).await.remove(0);
    let query = server.register("n", "q").await;
    let (id, lease) = (&message["partitionId"], &message["leaseId"]);
    let requests = [
        (
            "/api/v1/configure",
            json!({"queue": "q", "mode": "merge", "options": {"leaseTime": 5, "ttl": null}}),
        ),
        (
            "/api/v1/push",
            json!({"items": [{"queue": "q", "partition": "p\u{e9}", "payload": {"n": [1.5, "x"]},
            "transactionId": "t"}]}),
        ),
        (
            "/api/v1/ack",
            json!({"transactionId": "t", "partitionId": id, "leaseId": lease, "status": "failed",
            "error": "e", "consumerGroup": "other"}),
        ),
        (
            "/api/v1/ack/batch",
            json!({"acknowledgments": [{"transactionId": "t", "partitionId": id}]}),
        ),
        (
            "/api/v1/transaction",
            json!({"operations": [{"type": "push", "items": [{"queue": "q", "data": 1}]},
            {"type": "ack", "transactionId": "t", "partitionId": id}], "requiredLeases": [lease]}),
        ),
        (
            "/streams/v1/queries",
            json!({"name": "n", "source_queue": "q", "config_hash": "h", "reset": true}),
        ),
        (
            "/streams/v1/state/get",
            json!({"query_id": query, "partition_id": id, "keys": ["k"],
            "key_prefix": "k", "ripe_at_or_before": 1e3}),
        ),
        (
            "/streams/v1/cycle",
            json!({"query_id": query, "partition_id": id, "state_ops": [
            {"type": "upsert", "key": "k", "value": {"windowEnd": 5}}, {"type": "delete", "key": "l"}],
            "push_items": [{"queue": "s", "payload": [1]}], "release_lease": false,
            "ack": {"leaseId": lease, "status": "completed", "count": 1}}),
        ),
        (
            "/api/v1/consumer-groups/g/queues/q/seek",
            json!({"toEnd": false, "timestamp": "2025-11-24T16:00:50Z"}),
        ),
    ];
    let mut rng = fastrand::Rng::with_seed(36);
    for round in 0..500 {
        for (path, request) in &requests {
            let mut body = request.to_string().into_bytes();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..body.len());
                match rng.u8(..5) {
                    0 => body[at] = rng.u8(..),
                    1 => drop(body.drain(at..(at + rng.usize(1..9)).min(body.len()))),
                    2 => body
                        .splice(
                            at..at,
                            [b'"', b'[', b'{', b'}', b'\\', b'-'][rng.usize(..6)..]
                                .iter()
                                .copied()
                                .take(1)
                                .collect::<Vec<_>>(),
                        )
                        .for_each(drop),
                    3 => body.splice(at..at, b"\\ud800".iter().copied()).for_each(drop),
                    _ => body.truncate(at.max(1)),
                }
                if body.is_empty() {
                    body.push(b'x');
                }
            }
            let answer = server.send(Method::POST, path, body.clone()).await;
            let status = answer.status.as_u16();
            let sent = String::from_utf8_lossy(&body).into_owned();
            assert!(
                matches!(status, 200 | 201 | 400 | 404 | 409),
                "round {round} {path} {sent}: {status} {}",
                answer.text()
            );
            let answer = answer.json();
            assert!(status < 300 || answer["error"].is_string(), "{path} {sent}: {answer}");
        }
    }
}
