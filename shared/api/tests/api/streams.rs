//! `/streams/v1`: queries, state, cycles.

use serde_json::{Value, json};

use crate::support::{NOBODY, Server, numbers};

const CYCLE: &str = "/streams/v1/cycle";
const STATE: &str = "/streams/v1/state/get";

/// A server with a query that has popped a batch of four.
struct Worker {
    server: Server,
    query: String,
    messages: Vec<Value>,
}

impl Worker {
    async fn new() -> Self {
        let server = Server::new();
        server.push("src", "p", (0..4).map(|n| json!({"n": n}))).await;
        let query = server.register("totals", "src").await;
        let messages = server.pop("src", "streams.totals", 4).await;
        assert_eq!(messages.len(), 4);
        Self { server, query, messages }
    }

    fn cycle(&self) -> Value {
        json!({"query_id": self.query, "partition_id": self.messages[0]["partitionId"],
            "consumer_group": "streams.totals", "state_ops": [], "push_items": [], "ack": null})
    }

    fn ack(&self, status: &str, count: i64) -> Value {
        json!({"transactionId": "whatever", "leaseId": self.messages[0]["leaseId"], "status": status, "count": count})
    }

    async fn state(&self, mut filter: Value) -> Value {
        filter["query_id"] = json!(self.query);
        filter["partition_id"] = self.messages[0]["partitionId"].clone();
        self.server.post(STATE, filter).await.with(200)["rows"].take()
    }

    async fn keys(&self, filter: Value) -> Vec<String> {
        let rows = self.state(filter).await;
        rows.as_array().unwrap().iter().map(|r| r["key"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_query_is_registered_found_refused_and_reset() {
    let server = Server::new();
    let path = "/streams/v1/queries";
    let request = json!({"name": "n", "source_queue": "s", "sink_queue": "t", "config_hash": "h1"});
    let fresh = server.post(path, request.clone()).await.with(200);
    assert_eq!(
        fresh,
        json!({"success": true, "query_id": fresh["query_id"], "name": "n", "config_hash": "h1", "fresh": true,
            "reset": false})
    );
    let mut request = request;
    request["reset"] = json!(false);
    let same = server.post(path, request.clone()).await.with(200);
    assert_eq!((&same["fresh"], &same["query_id"]), (&json!(false), &fresh["query_id"]));

    request["config_hash"] = json!("h2");
    let refused = server.post(path, request.clone()).await.with(409);
    assert_eq!((&refused["success"], &refused["query_id"]), (&json!(false), &fresh["query_id"]));
    assert!(refused["error"].as_str().unwrap().contains("config_hash mismatch"), "{refused}");

    request["reset"] = json!(true);
    let reset = server.post(path, request).await.with(200);
    assert_eq!((&reset["reset"], &reset["query_id"]), (&json!(true), &fresh["query_id"]));
    assert_eq!(reset["config_hash"], "h2");

    for missing in ["name", "source_queue", "config_hash"] {
        for empty in [None, Some(json!("")), Some(Value::Null)] {
            let mut request = json!({"name": "n", "source_queue": "s", "config_hash": "h"});
            match empty {
                None => drop(request.as_object_mut().unwrap().remove(missing)),
                Some(value) => request[missing] = value,
            }
            let error = server.post(path, request).await.error(400);
            assert_eq!(error, format!("{missing} is required"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cycle_answers_what_it_did() {
    let w = Worker::new().await;
    let mut cycle = w.cycle();
    cycle["state_ops"] = json!([
        {"type": "upsert", "key": "b\u{1f}1", "value": {"acc": 1}},
        {"type": "upsert", "key": "a", "value": null},
        {"type": "delete", "key": "nothing"},
    ]);
    cycle["push_items"] = json!([
        {"queue": "out", "partition": "x", "payload": {"n": 1}},
        {"queue": "", "payload": {"n": 2}},
        {"payload": {"n": 3}},
        {"queue": "out", "data": {"n": 4}, "partition": null},
        {"queue": "out", "partition": "x", "payload": {"n": 5}},
    ]);
    cycle["ack"] = w.ack("completed", 4);
    let answer = w.server.post(CYCLE, cycle.clone()).await.with(200);
    assert_eq!(
        answer,
        json!({
            "success": true, "query_id": w.query, "partition_id": w.messages[0]["partitionId"],
            "queueName": "src", "state_ops_applied": 3,
            "push_results": [
                {"queue": "out", "partition": "x", "status": "queued", "baseOffset": 0},
                {"queue": "out", "partition": "Default", "status": "queued", "baseOffset": 0},
            ],
            "ack_result": {"success": true, "count": 4, "lease_released": true, "dlq": false},
        })
    );
    assert_eq!(w.keys(json!({})).await, ["a", "b\u{1f}1"]);
    let mut out = numbers(&w.server.pop("out", "g", 10).await);
    out.sort_unstable();
    assert_eq!(out, [1, 4, 5]);

    // S1: the same body again, after a lost answer, changes nothing.
    let before = w.server.store.items();
    let refused = w.server.post(CYCLE, cycle).await.with(200);
    assert_eq!(
        refused,
        json!({
            "success": false, "error": "invalid or expired lease", "query_id": w.query,
            "partition_id": w.messages[0]["partitionId"], "queueName": null, "state_ops_applied": 0,
            "push_results": [], "ack_result": null,
        })
    );
    assert_eq!(w.server.store.items(), before);
}

#[tokio::test(start_paused = true)]
async fn a_cycle_may_keep_its_lease_or_give_its_batch_back() {
    let w = Worker::new().await;
    let mut cycle = w.cycle();
    (cycle["ack"], cycle["release_lease"]) = (w.ack("completed", 1), json!(false));
    let answer = w.server.post(CYCLE, cycle).await.with(200);
    assert_eq!(
        answer["ack_result"],
        json!({"success": true, "count": 1, "lease_released": false, "dlq": false})
    );
    assert!(w.server.pop("src", "streams.totals", 4).await.is_empty(), "the lease holds");

    // S8: a misspelling gives the batch back.
    let mut cycle = w.cycle();
    (cycle["ack"], cycle["release_lease"]) = (w.ack("Completed", 3), Value::Null);
    let answer = w.server.post(CYCLE, cycle).await.with(200);
    assert_eq!(
        answer["ack_result"],
        json!({"success": true, "count": 0, "lease_released": true, "dlq": false})
    );
    assert_eq!(numbers(&w.server.pop("src", "streams.totals", 4).await), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn state_comes_out_byte_for_byte_and_filtered() {
    let w = Worker::new().await;
    let value = r#"{"windowEnd" : 1000.0, "z":1.0,"a":123456789012345678901234567890}"#;
    let body = format!(
        r#"{{"query_id":"{}","partition_id":{},"state_ops":[{{"type":"upsert","key":"t\u001fw","value": {value} }},
        {{"type":"upsert","key":"a_","value":{{"windowEnd":"500"}}}},
        {{"type":"upsert","key":"axb","value":[]}}]}}"#,
        w.query, w.messages[0]["partitionId"]
    );
    let answer = w.server.send(axum::http::Method::POST, CYCLE, body).await.with(200);
    assert_eq!((&answer["success"], &answer["ack_result"]), (&json!(true), &Value::Null));

    let request = json!({"query_id": w.query, "partition_id": w.messages[0]["partitionId"], "keys": null,
        "key_prefix": null, "ripe_at_or_before": null});
    let answer = w.server.post(STATE, request).await;
    assert!(answer.text().contains(&format!("\"value\":{value},")), "{}", answer.text());
    let rows = answer.with(200);
    assert_eq!(rows["success"], true);
    assert!(rows["rows"][0]["updated_at"].as_str().unwrap().ends_with('Z'));

    assert_eq!(w.keys(json!({"keys": []})).await, ["a_", "axb", "t\u{1f}w"]);
    assert_eq!(w.keys(json!({"key_prefix": "a_"})).await, ["a_"], "a prefix is literal (S10)");
    assert_eq!(w.keys(json!({"keys": ["axb", "no"]})).await, ["axb"]);
    assert_eq!(w.keys(json!({"keys": ["axb"], "key_prefix": "t"})).await, [""; 0]);
    assert_eq!(w.keys(json!({"ripe_at_or_before": 1000})).await, ["t\u{1f}w"]);
    assert_eq!(w.keys(json!({"ripe_at_or_before": 999.9})).await, [""; 0]);
    assert_eq!(w.keys(json!({"ripe_at_or_before": "1000"})).await.len(), 3, "a text is no filter");
}

/// S9, and everything else that refuses a cycle: 200, `success: false`, and nothing is kept.
#[tokio::test(start_paused = true)]
async fn a_refused_cycle_keeps_nothing_s9() {
    let w = Worker::new().await;
    w.server.post("/api/v1/configure", json!({"queue": "out"})).await.with(200);
    let before = w.server.stored();
    let good = json!({"type": "upsert", "key": "k", "value": 1});
    let push = json!([{"queue": "out", "payload": 1}]);
    for (field, value, error) in [
        ("state_ops", json!([good, {"type": "incr", "key": "k"}]), "Unknown state_op type: incr"),
        ("state_ops", json!([good, {"key": "k"}]), "Unknown state_op type: "),
        ("state_ops", json!([{"type": "upsert", "key": "k"}]), "state_ops[0]: value is missing"),
        ("state_ops", json!([good, {"type": "delete"}]), "state_ops[1]: key is missing"),
        ("push_items", json!([{"queue": "out"}]), "push_items[0]: payload is missing"),
        ("query_id", json!(NOBODY), "query not found"),
        ("query_id", json!("no id"), "query not found"),
        ("partition_id", json!(NOBODY), "partition not found"),
        ("partition_id", json!("p"), "partition not found"),
        (
            "ack",
            json!({"leaseId": "x", "status": "completed", "count": 1}),
            "invalid or expired lease",
        ),
        ("ack", json!({"leaseId": null, "count": 1}), "invalid or expired lease"),
        ("ack", json!({}), "invalid or expired lease"),
    ] {
        let mut cycle = w.cycle();
        (cycle["state_ops"], cycle["push_items"], cycle["ack"]) =
            (json!([good]), push.clone(), w.ack("completed", 4));
        cycle[field] = value;
        let answer = w.server.post(CYCLE, cycle.clone()).await.with(200);
        assert_eq!(
            (&answer["success"], &answer["error"]),
            (&json!(false), &json!(error)),
            "{cycle}"
        );
        assert_eq!(answer["ack_result"], Value::Null);
    }
    assert_eq!(w.server.stored(), before);
}

#[tokio::test(start_paused = true)]
async fn missing_ids_are_a_400_and_unknown_ones_are_empty() {
    let server = Server::new();
    for path in [CYCLE, STATE] {
        for (missing, other) in [("query_id", "partition_id"), ("partition_id", "query_id")] {
            for empty in [json!(null), json!("")] {
                let error =
                    server.post(path, json!({missing: empty, other: NOBODY})).await.error(400);
                assert_eq!(error, format!("{missing} is required"));
            }
        }
    }
    for ids in [(NOBODY, NOBODY), ("x", "y")] {
        let request = json!({"query_id": ids.0, "partition_id": ids.1});
        assert_eq!(
            server.post(STATE, request).await.with(200),
            json!({"success": true, "rows": []})
        );
    }
    for path in ["/streams/v1/claim", "/streams/v1/state/partitions"] {
        assert_eq!(server.post(path, json!({})).await.error(400), "query_id is required");
    }
    // A 404 would tell an SDK that there are no claims at all.
    for query in [NOBODY, "x"] {
        let request = json!({"query_id": query, "partition_ids": [NOBODY]});
        let answer = server.post("/streams/v1/claim", request.clone()).await.with(200);
        assert_eq!(
            (&answer["success"], &answer["error"]),
            (&json!(false), &json!("query not found"))
        );
        let answer = server.post("/streams/v1/state/partitions", request).await.with(200);
        assert_eq!(answer, json!({"success": true, "partitions": [], "next": null}));
    }
}
