//! `/api/v1/transaction`.

use serde_json::{Value, json};

use crate::support::{NOBODY, Server, numbers};

const PATH: &str = "/api/v1/transaction";

fn ack(message: &Value) -> Value {
    json!({"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "consumerGroup": "g", "status": "completed"})
}

#[tokio::test(start_paused = true)]
async fn pushes_and_acks_commit_together() {
    let server = Server::new();
    server.push("in", "p", [json!({"n": 1})]).await;
    let messages = server.pop("in", "g", 1).await;
    let request = json!({"operations": [
        ack(&messages[0]),
        {"type": "push", "items": [
            {"queue": "out", "partition": "x", "payload": {"n": 2}, "transactionId": "t"},
            {"queue": "out", "partition": "x", "data": {"n": 2}, "transactionId": "t"},
            {"queue": "out", "data": {"n": 3}, "traceId": NOBODY},
        ]},
    ], "requiredLeases": [messages[0]["leaseId"]], "kv": [], "timers": []});
    let answer = server.post(PATH, request).await.with(200);
    assert_eq!(answer["success"], true, "{answer}");
    assert_eq!(answer["transactionId"].as_str().unwrap().len(), 36);
    let results = &answer["results"];
    assert_eq!(
        results[0],
        json!({"index": 0, "type": "ack", "success": true, "transactionId": messages[0]["transactionId"],
            "error": null, "dlq": false})
    );
    assert_eq!(
        results[1],
        json!({"index": 1, "type": "push", "success": true, "transactionId": "t",
            "messageId": results[1]["messageId"], "queueName": "out"})
    );
    assert_eq!((&results[2]["index"], &results[2]["duplicate"]), (&json!(2), &json!(true)));
    assert_eq!(results[3]["index"], 3);
    assert!(server.pop("in", "g", 1).await.is_empty());
    let mut out = numbers(&server.pop("out", "g", 10).await);
    out.sort_unstable();
    assert_eq!(out, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_says_why_and_changes_nothing() {
    let server = Server::new();
    server.push("in", "p", [json!({"n": 1})]).await;
    let push = json!({"queue": "out", "payload": 1, "transactionId": "t"});
    server.post("/api/v1/push", json!({"items": [push]})).await.with(201);
    let messages = server.pop("in", "g", 1).await;
    let before = server.store.items();

    let request = json!({"operations": [ack(&messages[0]), {"type": "push", "items": [push]}]});
    let answer = server.post(PATH, request).await.with(200);
    assert_eq!((&answer["success"], &answer["results"]), (&json!(false), &json!([])));
    assert_eq!(answer["reason"], "duplicate");
    assert!(answer["error"].as_str().unwrap().starts_with("QDUP"), "{answer}");

    let mut stale = ack(&messages[0]);
    stale["leaseId"] = json!("0123456789abcdef0123456789abcdef");
    let fresh = json!({"type": "push", "items": [{"queue": "out", "payload": 2}]});
    let answer = server.post(PATH, json!({"operations": [fresh, stale]})).await.with(200);
    assert_eq!((&answer["success"], &answer["reason"]), (&json!(false), &json!("ack_rejected")));

    assert_eq!(server.store.items(), before);
    let request = json!({"operations": [ack(&messages[0])]});
    assert_eq!(
        server.post(PATH, request).await.with(200)["success"],
        true,
        "the lease still holds"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_no_transaction_is_a_400() {
    let server = Server::new();
    let before = server.stored();
    for (bad, word) in [
        (json!({}), "operations"),
        (json!({"operations": {}}), "sequence"),
        (json!({"operations": [{}]}), "operations[0]: `type` is missing"),
        (
            json!({"operations": [{"type": "push", "items": []}, {"type": "move"}]}),
            "operations[1]: unknown type `move`",
        ),
        (json!({"operations": [{"type": "push"}]}), "items"),
        (json!({"operations": [{"type": "push", "items": [{"queue": "q"}]}]}), "payload"),
        (json!({"operations": [{"type": "ack", "partitionId": "x"}]}), "transactionId"),
        (json!({"operations": [{"type": "ack", "transactionId": "x"}]}), "partitionId"),
        (json!({"operations": [], "kv": [{"op": "put"}]}), "`ns` is missing"),
        (json!({"operations": [], "kv": {"op": "put"}}), "kv"),
        (json!({"operations": [], "positions": [1]}), "positions"),
        (json!({"operations": [], "timers": {"a": 1}}), "timers"),
    ] {
        let error = server.post(PATH, bad.clone()).await.error(400);
        assert!(error.contains(word), "{bad}: {error}");
    }
    assert_eq!(server.stored(), before);
    let answer = server.post(PATH, json!({"operations": []})).await.with(200);
    assert_eq!((&answer["success"], &answer["results"]), (&json!(true), &json!([])));
}
