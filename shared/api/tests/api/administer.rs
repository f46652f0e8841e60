//! Dead letters and messages one by one, groups and backlogs, claims, conflation: what people and runners ask for.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{NOBODY, Server, numbers};

/// Gives up the next message of a queue; answers it.
async fn dead_letter(server: &Server, queue: &str, group: &str) -> Value {
    let message = server.pop(queue, group, 1).await.remove(0);
    let ack = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "consumerGroup": group, "status": "dlq", "error": "gave up"});
    assert_eq!(server.post("/api/v1/ack", ack).await.with(200)[0]["dlq"], true);
    message
}

fn path_of(message: &Value) -> String {
    let text = |name: &str| message[name].as_str().unwrap().to_owned();
    format!("/api/v1/messages/{}/{}", text("partitionId"), text("transactionId"))
}

async fn retry(server: &Server, path: &str) -> crate::support::Answer {
    server.send(axum::http::Method::POST, &format!("{path}/retry"), "").await
}

#[tokio::test(start_paused = true)]
async fn a_replay_answers_once_s42() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1.0}), json!({"n": 2})]).await;
    let message = dead_letter(&server, "q", "g").await;
    dead_letter(&server, "q", "h").await;
    let path = path_of(&message);
    let answer = retry(&server, &format!("{path}?consumerGroup=g").replace("?", "/retry?")).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "the parameter stands behind the path");
    let path_for = |group: &str| format!("{path}/retry?consumerGroup={group}");
    let answer = server.post(&path_for("g"), json!({})).await.with(200);
    assert_eq!((&answer["success"], &answer["dlqRowRemoved"]), (&json!(true), &json!(true)));
    assert_eq!(answer["replayedAs"]["status"], "queued");
    assert_eq!(answer["replayedAs"]["offset"], 2);
    let replayed_as = answer["replayedAs"]["transaction_id"].as_str().unwrap();
    assert!(replayed_as.starts_with("dlq:"), "{replayed_as}");
    let again = server.post(&path_for("g"), json!({})).await.with(404);
    assert_eq!(again["success"], false);
    // Only that group's record has gone.
    let left = server.get("/api/v1/dlq?queue=q").await.with(200);
    assert_eq!((&left["total"], &left["messages"][0]["consumerGroup"]), (&json!(1), &json!("h")));

    // By the dead letter's own id.
    let id = left["messages"][0]["id"].as_str().unwrap();
    let path = format!("/api/v1/dlq/{id}/replay");
    assert_eq!(server.post(&path, json!({})).await.with(200)["replayedAs"]["offset"], 3);
    assert_eq!(server.post(&path, json!({})).await.with(404)["success"], false);
    assert_eq!(numbers_or_floats(&server.pop("q", "late", 10).await), ["1.0", "2", "1.0", "1.0"]);

    // What is alive or unknown is not replayed.
    for path in [path_of(&server.pop("q", "x", 1).await[0]), format!("/api/v1/messages/{NOBODY}/x")]
    {
        assert_eq!(retry(&server, &path).await.with(404)["success"], false);
        assert_eq!(server.delete(&path).await.with(404)["success"], false);
    }
}

fn numbers_or_floats(messages: &[Value]) -> Vec<String> {
    messages.iter().map(|m| m["data"]["n"].to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_deleted_one_by_one_and_all_at_once() {
    let server = Server::new();
    server.push("q", "p", (0..4).map(|n| json!({"n": n}))).await;
    let first = dead_letter(&server, "q", "g").await;
    for _ in 0..3 {
        dead_letter(&server, "q", "g").await;
    }
    let answer = server.delete(&path_of(&first)).await.with(200);
    assert_eq!(
        answer,
        json!({"success": true, "partitionId": first["partitionId"], "transactionId": first["transactionId"]})
    );
    server.delete(&path_of(&first)).await.with(404);
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.with(200)["total"], 3);
    let none = server.delete("/api/v1/dlq?queue=q&consumerGroup=h").await.with(200);
    assert_eq!(none, json!({"success": true, "queue": "q", "deleted": 0}));
    assert_eq!(server.delete("/api/v1/dlq?queue=q").await.with(200)["deleted"], 3);
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.with(200)["total"], 0);
    assert!(server.delete("/api/v1/dlq").await.error(400).contains("queue"));
}

#[tokio::test(start_paused = true)]
async fn a_message_is_shown_with_what_became_of_it() {
    let server = Server::new();
    server.push("ns.task", "p", (0..3).map(|n| json!({"n": n, "f": 1.0}))).await;
    let taken = server.pop("ns.task", "g", 2).await;
    let path = path_of(&taken[0]);
    let shown = server.get(&path).await;
    assert!(shown.text().contains("\"f\":1.0"), "verbatim: {}", shown.text());
    let shown = shown.with(200);
    assert_eq!(shown["status"], "processing");
    assert_eq!((&shown["queuePath"], &shown["namespace"]), (&json!("ns.task/p"), &json!("ns")));
    assert_eq!(shown["payload"], shown["data"]);
    assert_eq!((&shown["mode"]["type"], &shown["retryCount"]), (&json!("bus"), &json!(0)));
    assert_eq!(shown["consumerGroups"][0]["name"], "g");
    assert!(shown["leaseExpiresAt"].is_string() && shown["queueConfig"]["leaseTime"] == 60);
    let ack = json!({"transactionId": taken[0]["transactionId"], "partitionId": taken[0]["partitionId"],
        "leaseId": taken[0]["leaseId"], "consumerGroup": "g"});
    server.post("/api/v1/ack", ack).await.with(200);
    assert_eq!(server.get(&path).await.with(200)["status"], "completed");

    let dead = dead_letter(&server, "ns.task", "h").await;
    assert_eq!(dead["id"], taken[0]["id"]);
    let shown = server.get(&path).await.with(200);
    assert_eq!(
        (&shown["status"], &shown["errorMessage"]),
        (&json!("dead_letter"), &json!("gave up"))
    );
    for unknown in [format!("/api/v1/messages/{NOBODY}/x"), "/api/v1/messages/p/x".to_owned()] {
        assert_eq!(server.get(&unknown).await.error(404), "message not found");
    }
    let unknown = format!("/api/v1/messages/{}/unknown", taken[0]["partitionId"].as_str().unwrap());
    server.get(&unknown).await.error(404);

    let list = server.get("/api/v1/messages?queue=ns.task").await.with(200);
    let statuses: Vec<&str> = list["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["pending", "processing", "completed"], "the newest first");
    assert_eq!((&list["total"], &list["messages"][0]["offset"]), (&json!(3), &json!(2)));
    let page = server.get("/api/v1/messages?namespace=ns&limit=1&offset=1").await.with(200);
    assert_eq!((&page["total"], &page["messages"][0]["offset"]), (&json!(1), &json!(1)));
    let busy = server.get("/api/v1/messages?queue=ns.task&partition=p&status=processing").await;
    assert_eq!(busy.with(200)["messages"][0]["offset"], 1);
    tokio::time::sleep(Duration::from_secs(3601)).await;
    let later = server.get("/api/v1/messages?queue=ns.task").await.with(200);
    assert_eq!(later["total"], 0, "from the last hour");
    let all =
        server.get("/api/v1/messages?queue=ns.task&from=2025-11-24T00:00:00Z").await.with(200);
    assert_eq!(all["total"], 3);
    server.get("/api/v1/messages?from=soon").await.error(400);
}

#[tokio::test(start_paused = true)]
async fn groups_are_shown_with_their_lag() {
    let server = Server::new();
    server.push("q", "p", (0..3).map(|n| json!({"n": n}))).await;
    server.push("q", "drained", [json!({"n": 9})]).await;
    let path =
        "/api/v1/pop/queue/q/partition/drained?consumerGroup=g&subscriptionMode=all&autoAck=true";
    server.get(path).await.with(200);
    let path = "/api/v1/pop/queue/q/partition/p?consumerGroup=g&batch=1&autoAck=true";
    server.get(path).await.with(200);
    tokio::time::sleep(Duration::from_secs(400)).await;

    let list = server.get("/api/v1/consumer-groups").await.with(200);
    assert_eq!(
        list,
        json!([{"name": "g", "queueName": "q", "topics": ["q"], "members": 0, "partitionCursors": 2,
            "partitionsWithLag": 1, "totalLag": 2, "maxTimeLag": 400, "state": "Lagging",
            "subscriptionMode": "all", "subscriptionTimestamp": null,
            "subscriptionCreatedAt": list[0]["subscriptionCreatedAt"], "conflation": false,
            "storage": "segments"}])
    );
    let detail = server.get("/api/v1/consumer-groups/g").await.with(200);
    let partitions = detail["q"]["partitions"].as_array().unwrap();
    let of = |name: &str| partitions.iter().find(|p| p["partition"] == name).unwrap();
    assert_eq!((&of("p")["offsetLag"], &of("p")["timeLagSeconds"]), (&json!(2), &json!(400)));
    assert_eq!(
        (&of("drained")["offsetLag"], &of("drained")["totalConsumed"]),
        (&json!(0), &json!(1))
    );
    assert!(of("p")["lastConsumedAt"].is_string() && of("p")["leaseActive"] == false);
    assert_eq!(server.get("/api/v1/consumer-groups/nobody").await.with(200), json!({}));

    let lagging = server.get("/api/v1/consumer-groups/lagging?minLagSeconds=60").await.with(200);
    assert_eq!(lagging[0]["partition_name"], "p");
    assert_eq!(
        (&lagging[0]["offset_lag"], &lagging[0]["time_lag_seconds"]),
        (&json!(2), &json!(400))
    );
    assert_eq!(lagging.as_array().unwrap().len(), 1);
    let patient = server.get("/api/v1/consumer-groups/lagging?minLagSeconds=401").await.with(200);
    assert_eq!(patient, json!([]));

    let path = "/api/v1/consumer-groups/g/subscription";
    let moved = json!({"subscriptionTimestamp": "2025-11-24T16:00:01Z"});
    assert_eq!(
        server.post(path, moved).await.with(200),
        json!({"success": true, "consumerGroup": "g", "newTimestamp": "2025-11-24T16:00:01Z", "rowsUpdated": 1})
    );
    for bad in [json!({}), json!({"subscriptionTimestamp": "soon"})] {
        server.post(path, bad).await.error(400);
    }
    let list = server.get("/api/v1/consumer-groups").await.with(200);
    assert_eq!(list[0]["subscriptionTimestamp"], "2025-11-24T16:00:01.000000Z");

    // Without its registration a group is deleted; with it, it begins where it began.
    let path = "/api/v1/consumer-groups/g/queues/q?deleteMetadata=false";
    let kept = server.delete(path).await.with(200);
    assert_eq!((&kept["deletedPartitions"], &kept["metadataDeleted"]), (&json!(2), &json!(false)));
    assert_eq!(server.get("/api/v1/consumer-groups").await.with(200).as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn backlogs_are_counted() {
    let server = Server::new();
    server.push("q", "busy", (0..5).map(|n| json!({"n": n}))).await;
    server.push("q", "quiet", [json!({"n": 9})]).await;
    let ranking = server.get("/api/v1/resources/partitions?queue=q").await.with(200);
    let rows = ranking["partitions"].as_array().unwrap();
    assert_eq!((&rows[0]["partition"], &rows[0]["pending"]), (&json!("busy"), &json!(5)));
    assert_eq!((&rows[1]["partition"], &rows[1]["lagSeconds"]), (&json!("quiet"), &json!(0)));

    let path = "/api/v1/pop/queue/q/partition/busy?consumerGroup=g&subscriptionMode=all";
    server.get(&format!("{path}&batch=1&autoAck=true")).await.with(200);
    server.get(&format!("{path}&batch=2")).await.with(200);
    let detail = server.get("/api/v1/resources/queues/q").await.with(200);
    assert_eq!(
        detail["totals"],
        json!({"total": 6, "pending": 3, "processing": 2, "completed": 1, "failed": null, "deadLetter": 0})
    );
    let list = server.get("/api/v1/resources/queues").await.with(200);
    assert_eq!(list["queues"][0]["messages"], json!({"total": 6, "pending": 3, "processing": 2}));
    assert_eq!(list["queues"][0]["partitions"], 2);
    let overview = server.get("/api/v1/resources/overview").await.with(200);
    assert_eq!(overview["messages"]["pending"], 3);
    assert_eq!((&overview["queues"], &overview["partitions"]), (&json!(1), &json!(2)));

    let path = "/api/v1/resources/queues/q/depth";
    let depth = server.get(&format!("{path}?group=g")).await.with(200);
    assert_eq!((&depth["pending"], &depth["partitionsPending"]), (&json!(5), &json!(2)));
    assert_eq!((&depth["conflation"], &depth["effectivePending"]), (&json!(false), &json!(5)));
    let stranger = server.get(&format!("{path}?group=stranger")).await.with(200);
    assert_eq!(stranger["pending"], 6, "it owes all there is");
    assert_eq!(server.get(path).await.with(200)["pending"], 5, "as the slowest sees it");
    server.get("/api/v1/resources/queues/nowhere/depth").await.error(404);
}

#[tokio::test(start_paused = true)]
async fn conflation_is_answered_to_also_when_there_is_nothing_s40() {
    let server = Server::new();
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&conflation=true";
    let empty = server.get(path).await.with(200);
    assert_eq!((&empty["messages"], &empty["conflation"]), (&json!([]), &json!(true)));
    assert!(empty.get("conflationConflict").is_none());
    server.push("q", "p", (0..4).map(|n| json!({"n": n}))).await;
    let depth = server.get("/api/v1/resources/queues/q/depth?group=g").await.with(200);
    assert_eq!((&depth["pending"], &depth["effectivePending"]), (&json!(4), &json!(1)));
    let popped = server.get(path).await.with(200);
    let messages = popped["messages"].as_array().unwrap();
    assert_eq!((numbers(messages), &popped["conflation"]), (vec![3], &json!(true)));
    let ack = json!({"transactionId": messages[0]["transactionId"], "partitionId": messages[0]["partitionId"],
        "leaseId": popped["leaseId"], "consumerGroup": "g"});
    let acked = server.post("/api/v1/ack", ack).await.with(200);
    assert_eq!((&acked[0]["success"], &acked[0]["conflated"]), (&json!(true), &json!(3)));

    let silent = server.get("/api/v1/pop/queue/q?consumerGroup=g").await.with(200);
    assert_eq!(silent["conflation"], true, "the group's policy holds, asked for or not");
    let against =
        server.get("/api/v1/pop/queue/q?consumerGroup=g&conflation=false").await.with(200);
    assert_eq!(
        (&against["conflation"], &against["conflationConflict"]),
        (&json!(true), &json!(true))
    );
    server.pop("q", "plain", 1).await;
    let refused =
        server.get("/api/v1/pop/queue/q?consumerGroup=plain&conflation=true").await.with(200);
    assert!(refused.get("conflation").is_none() && refused["conflationConflict"] == true);

    for bad in ["consumerGroup=g&conflation=true&autoAck=true", "conflation=true"] {
        server.get(&format!("/api/v1/pop/queue/q?{bad}")).await.error(400);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_answers_each_partition_s19() {
    let server = Server::new();
    server.push("src", "p", [json!({"n": 1})]).await;
    let query = server.register("totals", "src").await;
    let message = server.pop("src", "streams.totals", 1).await.remove(0);
    let cycle = |lease: &Value, ops: Value, count: i64| {
        json!({"query_id": query, "partition_id": message["partitionId"], "state_ops": ops, "push_items": [],
            "ack": {"transactionId": "", "leaseId": lease, "status": "completed", "count": count}})
    };
    let open = json!([{"type": "upsert", "key": "w", "value": {}}]);
    let done =
        server.post("/streams/v1/cycle", cycle(&message["leaseId"], open, 1)).await.with(200);
    assert_eq!(done["success"], true, "{done}");
    server.push("src", "waiting", [json!({"n": 2})]).await;

    let path = "/streams/v1/state/partitions";
    let listed =
        server.post(path, json!({"query_id": query, "untouched_for_ms": null})).await.with(200);
    let one = json!({"partition_id": message["partitionId"], "partition": "p", "queue": "src",
        "updated_at": "2025-11-24T16:00:00.000000Z"});
    assert_eq!(listed, json!({"success": true, "partitions": [one], "next": null}));
    let untouched = json!({"query_id": query, "untouched_for_ms": 1000, "after": "", "limit": 10});
    assert_eq!(server.post(path, untouched).await.with(200)["partitions"], json!([]));

    let ids = json!([message["partitionId"], NOBODY]);
    let request = json!({"query_id": query, "partition_ids": ids, "lease_seconds": 5});
    let claims = server.post("/streams/v1/claim", request.clone()).await.with(200);
    assert_eq!(
        claims,
        json!({"success": true, "lease_id": claims["lease_id"], "lease_seconds": 5,
            "now_ms": crate::support::START_US / 1000, "partitions": [
                {"partition_id": message["partitionId"], "partition": "p", "status": "claimed",
                    "lease_expires_at": "2025-11-24T16:00:05.000000Z"},
                {"partition_id": NOBODY, "partition": "", "status": "missing"}]})
    );
    let again = server.post("/streams/v1/claim", request).await.with(200);
    assert_eq!(
        (&again["partitions"][0]["status"], &again["lease_id"]),
        (&json!("busy"), &json!(""))
    );
    let close = json!([{"type": "delete", "key": "w"}]);
    let closed =
        server.post("/streams/v1/cycle", cycle(&claims["lease_id"], close, 0)).await.with(200);
    assert_eq!(
        closed["ack_result"],
        json!({"success": true, "count": 0, "lease_released": true, "dlq": false})
    );
    let many = vec![NOBODY; tidewheel_engine::limits::CLAIM_PARTITIONS + 1];
    let request = json!({"query_id": query, "partition_ids": many});
    assert!(server.post("/streams/v1/claim", request).await.error(400).contains("100"));
}

#[tokio::test(start_paused = true)]
async fn a_trace_id_goes_from_a_transaction_to_the_pop() {
    let server = Server::new();
    let id = "019ab697-e87b-7000-8000-0123456789ab";
    let push = |trace: Value| json!({"operations": [{"type": "push", "items": [{"queue": "q", "payload": 1, "traceId": trace}]}]});
    server.post("/api/v1/transaction", push(json!(id))).await.with(200);
    server.post("/api/v1/transaction", push(Value::Null)).await.with(200);
    let plain = json!({"items": [{"queue": "q", "payload": 1, "traceId": id}]});
    server.post("/api/v1/push", plain).await.with(201);
    let messages = server.pop("q", "g", 10).await;
    let traces: Vec<&Value> = messages.iter().map(|m| &m["traceId"]).collect();
    assert_eq!(traces, [&json!(id), &Value::Null, &Value::Null], "a plain push carries none");
    assert!(
        server.post("/api/v1/transaction", push(json!("x"))).await.error(400).contains("traceId")
    );
}
