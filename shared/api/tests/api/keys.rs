//! `/api/v1/kv`, `/api/v1/timers` and `/api/v1/locks`.

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::Server;

impl Server {
    async fn kv(&self, operations: Value) -> Value {
        self.post("/api/v1/kv", json!({"operations": operations})).await.with(200)
    }

    async fn timers(&self, operation: Value) -> Value {
        let request = json!({"operations": [operation]});
        self.post("/api/v1/timers", request).await.with(200)["results"][0].clone()
    }

    async fn lock(&self, operation: Value) -> Value {
        let request = json!({"operations": [operation]});
        self.post("/api/v1/locks", request).await.with(200)["results"][0].clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_answers_each_operation_in_its_own_shape() {
    let server = Server::new();
    let answer = server
        .kv(json!([
            {"op": "putIfAbsent", "ns": "n", "key": "a", "value": {"z": 1.0}, "ttlSeconds": 60},
            {"op": "get", "ns": "n", "key": "a"},
            {"op": "get", "ns": "n", "key": "b"},
            {"op": "incr", "ns": "n", "key": "c", "delta": 2, "forever": true},
            {"op": "delete", "ns": "n", "key": "b"},
            {"op": "getMany", "ns": "n", "keys": ["a", "b"]},
        ]))
        .await;
    let results = answer["results"].as_array().unwrap();
    let version = results[0]["version"].clone();
    assert!(version.as_i64().unwrap() > 0);
    assert_eq!(results[0]["op"], "put", "one operation under two names");
    assert_eq!((&results[0]["applied"], &results[0]["value"]), (&json!(true), &json!({"z": 1.0})));
    assert_eq!((&results[1]["found"], &results[1]["version"]), (&json!(true), &version));
    assert_eq!(results[2], json!({"index": 2, "op": "get", "found": false}));
    assert_eq!((&results[3]["value"], results[3].get("expiresAt")), (&json!(2), None));
    let nothing =
        json!({"index": 4, "op": "delete", "applied": false, "reason": "absent", "key": "b"});
    assert_eq!(results[4], nothing);
    assert_eq!(results[5]["missing"], json!(["b"]));
    assert_eq!(results[5]["rows"][0]["key"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_key_has_a_route_of_its_own_whatever_is_in_it() {
    let server = Server::new();
    let path = "/api/v1/kv/n/a/b%20c%2Fd";
    let put = |body: Value| server.send(Method::PUT, path, body.to_string());
    let made = put(json!({"value": null, "forever": true, "expect": 0})).await.with(200);
    assert_eq!((&made["applied"], &made["key"]), (&json!(true), &json!("a/b c/d")));
    let found = server.get(path).await.with(200);
    assert_eq!((&found["found"], &found["value"]), (&json!(true), &Value::Null));
    assert_eq!(
        put(json!({"value": 1, "forever": true, "expect": 0})).await.with(200)["reason"],
        "exists"
    );
    assert!(
        put(json!({"value": 1, "op": "put", "forever": true})).await.error(400).contains("path")
    );
    let stale = server.send(Method::DELETE, path, json!({"expect": 1}).to_string()).await.with(200);
    assert_eq!(stale["reason"], "version");
    assert_eq!(server.delete(path).await.with(200)["applied"], true);
    assert_eq!(server.get(path).await.with(200)["found"], false);
}

#[tokio::test(start_paused = true)]
async fn what_an_operation_lacks_is_named_by_a_word() {
    let server = Server::new();
    let put = json!({"op": "put", "ns": "n", "key": "k", "value": 1});
    let with = |more: Value| {
        let mut operation = put.as_object().unwrap().clone();
        operation.extend(more.as_object().unwrap().clone());
        Value::Object(operation)
    };
    for (operation, code) in [
        (with(json!({})), "kv_expiry_not_specified"),
        (with(json!({"ttlSeconds": 5, "forever": true})), "kv_expiry_not_specified"),
        (with(json!({"ttlSeconds": 0})), "kv_bad_ttl"),
        (with(json!({"ttlSeconds": 5, "expect": -1})), "kv_bad_expect"),
        (with(json!({"op": "steal"})), "kv_unknown_op"),
        (with(json!({"op": "putIfAbsent", "ttlSeconds": 5, "expect": 5})), "kv_bad_expect"),
        (with(json!({"op": "check"})), "kv_bad_expect"),
        (with(json!({"op": "incr", "ttlSeconds": 5})), "kv_bad_request"),
        (with(json!({"op": "getPrefix"})), "kv_prefix_required"),
        (json!({"op": "put", "ns": "n", "key": "k", "ttlSeconds": 5}), "kv_bad_request"),
        (json!({"op": "get", "ns": "No", "key": "k"}), "invalid"),
    ] {
        let request = json!({"operations": [operation]});
        let refused = server.post("/api/v1/kv", request.clone()).await.with(400);
        assert_eq!(refused["code"], code, "{request}: {refused}");
    }
    let prefix = json!({"op": "getPrefix", "ns": "n", "prefix": "k"});
    let mixed = json!({"operations": [prefix, with(json!({"ttlSeconds": 5}))]});
    assert_eq!(server.post("/api/v1/kv", mixed).await.with(400)["code"], "kv_bad_request");
    let bundle = json!({"operations": [], "kv": [prefix]});
    let refused = server.post("/api/v1/transaction", bundle).await.with(400);
    assert_eq!(refused["code"], "kv_get_prefix_not_allowed_in_transaction");
}

#[tokio::test(start_paused = true)]
async fn a_required_operation_that_does_not_apply_is_answered_with_what_is_there() {
    let server = Server::new();
    let made = server
        .kv(json!([{"op": "put", "ns": "n", "key": "k", "value": 7, "ttlSeconds": 60}]))
        .await;
    let gate = json!({"op": "check", "ns": "n", "key": "k", "expect": 1, "required": true});
    let lost = server.kv(json!([gate])).await;
    assert_eq!(
        lost,
        json!({"results": [], "ok": false, "reason": "kv_precondition", "error": "kv_precondition_failed",
            "failedIndex": 0, "kvReason": "version", "version": made["results"][0]["version"], "value": 7})
    );
    let push = json!({"type": "push", "items": [{"queue": "q", "payload": 1}, {"queue": "q", "payload": 2}]});
    let other = json!({"op": "get", "ns": "n", "key": "k"});
    let bundle = json!({"operations": [push], "kv": [other, gate]});
    let lost = server.post("/api/v1/transaction", bundle).await.with(200);
    assert_eq!((&lost["success"], &lost["failedIndex"]), (&json!(false), &json!(3)), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_timer_is_scheduled_peeked_at_listed_and_cancelled() {
    let server = Server::new();
    let timer = json!({"op": "schedule", "queue": "q", "timerKey": "a/b", "delayMs": 5000, "txn": "t",
        "payload": "eyJuIjoxfQ=="});
    let scheduled = server.timers(timer.clone()).await;
    assert_eq!(scheduled["status"], "scheduled");
    let peeked = server.get("/api/v1/timers/q/a/b").await.with(200);
    assert_eq!(peeked["messageId"], scheduled["messageId"]);
    assert_eq!((&peeked["payload"], &peeked["partition"]), (&timer["payload"], &json!("Default")));
    let listed = server.get("/api/v1/timers/q").await.with(200);
    assert_eq!(
        (listed["rows"].as_array().unwrap().len(), &listed["truncated"]),
        (1, &json!(false))
    );
    assert_eq!(server.delete("/api/v1/timers/q/a/b?txn=t").await.with(200)["status"], "cancelled");
    let absent = server.delete("/api/v1/timers/q/a/b?txn=t").await.with(200);
    assert_eq!((&absent["ok"], &absent["txn"]), (&json!(false), &json!("t")));
    assert_eq!(server.get("/api/v1/timers/q/a/b").await.with(200)["found"], false);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_cannot_become_a_message_is_refused_when_it_is_scheduled() {
    let server = Server::new();
    let good = json!({"op": "schedule", "queue": "q", "timerKey": "k", "delayMs": 1, "txn": "t", "payload": "MQ=="});
    for (change, says) in [
        (json!({"payload": "!"}), "base64"),
        (json!({"payload": "bm8="}), "JSON"),
        (json!({"payload": "MQ==", "payloadZstd": true}), "zstd"),
        (json!({"encrypted": true}), "encrypted"),
        (json!({"messageId": "x"}), "server's"),
        (json!({"deliverAt": "x"}), "server's"),
        (json!({"partition": ""}), "partition"),
        (json!({"txn": null}), "txn"),
        (json!({"delayMs": null}), "delayMs"),
        (json!({"op": "later"}), "unknown"),
    ] {
        let mut operation = good.as_object().unwrap().clone();
        operation.extend(change.as_object().unwrap().clone());
        let refused =
            server.post("/api/v1/timers", json!({"operations": [operation]})).await.error(400);
        assert!(refused.contains(says), "{change}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_a_key_with_a_guard() {
    let server = Server::new();
    let acquire =
        |owner: &str| json!({"op": "acquire", "name": "l", "ttlSeconds": 30, "owner": owner});
    let mine = server.lock(acquire("a")).await;
    assert_eq!((&mine["acquired"], &mine["slot"]), (&json!(true), &json!(0)));
    let guard = json!({"op": "check", "ns": "queen-locks", "key": "l#0", "expect": mine["token"], "required": true});
    assert_eq!(mine["guard"], guard);
    assert_eq!(server.kv(json!([guard])).await["results"][0]["applied"], true);
    let refused = server.lock(acquire("b")).await;
    assert_eq!(
        (&refused["reason"], &refused["holders"]),
        (&json!("held"), &json!([{"slot": 0, "owner": "a"}]))
    );
    assert_eq!(server.lock(acquire("a")).await["already"], true);
    let renew = json!({"op": "renew", "name": "l", "token": mine["token"], "ttlSeconds": 30});
    let renewed = server.lock(renew.clone()).await;
    assert!(renewed["token"].as_i64() > mine["token"].as_i64());
    assert_eq!(server.lock(renew).await["reason"], "lost", "the token has moved");
    let held = server.lock(json!({"op": "get", "name": "l"})).await;
    assert_eq!((&held["held"], &held["holders"][0]["token"]), (&json!(true), &renewed["token"]));
    let release = json!({"op": "release", "name": "l", "token": renewed["token"]});
    assert_eq!(server.lock(release.clone()).await["released"], true);
    assert_eq!(server.lock(release).await["released"], false);
}
