//! configure, push, and what comes back out.

use serde_json::{Value, json};

use crate::support::{Server, numbers};

#[tokio::test(start_paused = true)]
async fn configure_answers_every_option_in_force() {
    let server = Server::new();
    let request = json!({"queue": "orders", "namespace": null, "task": null, "options": {"leaseTime": 30, "retryLimit": 2}});
    let answer = server.post("/api/v1/configure", request).await.with(200);
    assert_eq!(answer["configured"], true);
    assert_eq!(answer["queue"], "orders");
    assert_eq!(answer["queueId"].as_str().unwrap().len(), 36);
    assert_eq!(answer["partitionId"], Value::Null);
    assert_eq!(answer["storage"], "segments");
    assert!(answer["namespace"].is_string() && answer["task"].is_string());
    let options = answer["options"].as_object().unwrap();
    for (name, value) in [
        ("leaseTime", json!(30)),
        ("retryLimit", json!(2)),
        ("retryDelay", json!(1000)),
        ("deadLetterQueue", json!(true)),
        ("retentionEnabled", json!(false)),
        ("dedupWindowSeconds", json!(3600)),
        ("encryptionEnabled", json!(false)),
        ("minPopWaitTime", json!(0)),
    ] {
        assert_eq!(options[name], value, "{name}");
    }

    // A second call merges (S41): what it does not name stays, null restores the default.
    let request = json!({"queue": "orders", "options": {"retryLimit": null, "ttl": 9}});
    let answer = server.post("/api/v1/configure", request).await.with(200);
    let options = &answer["options"];
    assert_eq!((&options["leaseTime"], &options["ttl"]), (&json!(30), &json!(9)));
    assert_eq!(options["retryLimit"], 3);
    let request = json!({"queue": "orders", "mode": "replace", "ttl": 5});
    let answer = server.post("/api/v1/configure", request).await.with(200);
    assert_eq!(
        (&answer["options"]["leaseTime"], &answer["options"]["ttl"]),
        (&json!(300), &json!(5))
    );
}

#[tokio::test(start_paused = true)]
async fn a_push_answers_each_item_in_order() {
    let server = Server::new();
    let request = json!({"items": [
        {"queue": "a", "partition": "p", "payload": 1, "transactionId": "t1", "traceId": "ignored"},
        {"queue": "b", "payload": {"n": 2}, "transactionId": null, "partition": null},
        {"queue": "a", "partition": "p", "payload": 3, "transactionId": "t1"},
    ]});
    let answer = server.post("/api/v1/push", request.clone()).await.with(201);
    let results = answer.as_array().unwrap();
    assert_eq!(results.len(), 3);
    let [first, second, third] = [&results[0], &results[1], &results[2]];
    assert_eq!(
        first,
        &json!({"index": 0, "message_id": first["message_id"], "transaction_id": "t1", "queueName": "a",
            "status": "queued", "offset": 0})
    );
    assert_eq!(second["queueName"], "b");
    assert_eq!(second["transaction_id"], second["message_id"]);
    assert_eq!(second["message_id"].as_str().unwrap().len(), 36);
    assert_eq!(
        third,
        &json!({"index": 2, "message_id": first["message_id"], "transaction_id": "t1", "queueName": "a",
            "status": "duplicate", "offset": 0})
    );

    // Repeated, what had an id is where it was and what had none is there again.
    let again = server.post("/api/v1/push", request).await.with(201);
    let statuses: Vec<&Value> = again.as_array().unwrap().iter().map(|r| &r["status"]).collect();
    assert_eq!(statuses, ["duplicate", "queued", "duplicate"]);
    assert_eq!(again[0]["message_id"], first["message_id"]);

    assert_eq!(server.post("/api/v1/push", json!({"items": []})).await.with(201), json!([]));
}

#[tokio::test(start_paused = true)]
async fn payloads_come_out_byte_for_byte() {
    let server = Server::new();
    let payloads = [
        r#"{"z":1.0,"a":1e400,"m":123456789012345678901234567890,"a":2}"#,
        r#"{ "spaced" :  [ 1 ,2.50, -0.0 ] }"#,
        r#""\u00e9\/\ud83d\ude00\u0000""#,
        "null",
        "true",
        "0.10000000000000000000000000000001",
        r#""é😀""#,
        "[]",
    ];
    let items: Vec<String> =
        payloads.iter().map(|p| format!(r#"{{"queue":"raw", "payload" : {p} }}"#)).collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let answer = server.send(axum::http::Method::POST, "/api/v1/push", body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());

    let popped = server.get("/api/v1/pop/queue/raw?consumerGroup=g&subscriptionMode=all").await;
    assert_eq!(popped.status, 200);
    let mut rest = popped.text();
    for payload in payloads {
        let data = format!(r#""data":{payload},"producerSub""#);
        let at = rest.find(&data).unwrap_or_else(|| panic!("{payload} is not in {rest}"));
        rest = &rest[at + data.len()..];
    }
    assert!(!rest.contains("\"data\":"));
}

#[tokio::test(start_paused = true)]
async fn a_message_has_every_field_that_sdks_read() {
    let server = Server::new();
    let pushed = server.push("q", "p1", [json!({"n": 1})]).await;
    let path = "/api/v1/pop/queue/q/partition/p1?consumerGroup=g&subscriptionMode=all&autopilot=true&wait=true&timeout=5";
    let answer = server.get(path).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let answer = answer.with(200);
    let message = &answer["messages"][0];
    let lease = answer["leaseId"].as_str().unwrap();
    assert!(!lease.is_empty());
    assert_eq!(
        answer,
        json!({
            "success": true, "queue": "q", "partition": "p1", "partitionId": message["partitionId"],
            "leaseId": lease, "consumerGroup": "g", "partitionsClaimed": 1,
            "messages": [{
                "id": pushed[0]["message_id"], "transactionId": pushed[0]["message_id"], "traceId": null,
                "data": {"n": 1}, "producerSub": null, "createdAt": message["createdAt"],
                "partitionId": answer["partitionId"], "partition": "p1", "leaseId": lease,
                "consumerGroup": "g", "deliveryAttempt": 1, "offset": 0,
            }],
        })
    );
    let created = message["createdAt"].as_str().unwrap();
    assert!(created.starts_with("2025-11-24T16:00:0") && created.len() == 27, "{created}");
}

/// S35: names and ids are texts, however they are escaped on their way.
#[tokio::test(start_paused = true)]
async fn names_survive_escapes_in_bodies_and_paths_s35() {
    let server = Server::new();
    for (name, path) in [
        ("a&b<c>\"d\"", "a%26b%3Cc%3E%22d%22"),
        ("back\\slash", "back%5Cslash"),
        ("or/ders", "or%2Fders"),
        ("plus+space d", "plus+space%20d"),
        ("éü😀", "%C3%A9%C3%BC%F0%9F%98%80"),
        ("100%", "100%25"),
        ("?#", "%3F%23"),
    ] {
        let escaped: String = name.encode_utf16().map(|u| format!("\\u{u:04x}")).collect();
        let body = format!(
            r#"{{"items":[{{"queue":"{escaped}","partition":"{escaped}","transactionId":"{escaped}","payload":1}}]}}"#
        );
        let answer = server.send(axum::http::Method::POST, "/api/v1/push", body).await.with(201);
        assert_eq!(answer[0]["queueName"], name);
        assert_eq!(answer[0]["transaction_id"], name);
        let path = format!(
            "/api/v1/pop/queue/{path}/partition/{path}?consumerGroup={}&subscriptionMode=all",
            path.replace('+', "%2B")
        );
        let popped = server.get(&path).await.with(200);
        assert_eq!(popped["queue"], name);
        assert_eq!(popped["consumerGroup"], name);
        let message = &popped["messages"][0];
        assert_eq!(
            (&message["partition"], &message["transactionId"]),
            (&json!(name), &json!(name))
        );

        // In a query string a plus is a space.
        let ack = json!({"transactionId": name, "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "consumerGroup": name, "error": null});
        let acked = server.post("/api/v1/ack", ack).await.with(200);
        assert_eq!(acked[0]["success"], true, "{name}: {acked}");
    }
}

/// S43: sorting by the millisecond and the id is sorting by offset.
#[tokio::test(start_paused = true)]
async fn messages_sort_by_time_and_id_as_by_offset_s43() {
    let server = Server::new();
    for round in 0..5 {
        server.push("q", "p", (0..100).map(|i| json!({"n": round * 100 + i}))).await;
    }
    let mut messages = server.pop("q", "g", 1000).await;
    assert_eq!(numbers(&messages), (0..500).collect::<Vec<_>>());
    messages.sort_by_key(|m| {
        (m["createdAt"].as_str().unwrap()[..23].to_owned(), m["id"].as_str().unwrap().to_owned())
    });
    assert_eq!(numbers(&messages), (0..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_oversize_record_is_refused_and_the_rest_is_not() {
    let server = Server::new();
    let big = "x".repeat(tidewheel_engine::limits::PAYLOAD_BYTES);
    let request = json!({"items": [
        {"queue": "q", "partition": "big", "payload": big, "transactionId": "mine"},
        {"queue": "q", "partition": "small", "payload": {"n": 1}},
    ]});
    let answer = server.post("/api/v1/push", request).await.with(201);
    let refused = &answer[0];
    assert_eq!(refused["status"], "failed");
    assert_eq!(refused["transaction_id"], "mine");
    let limit = tidewheel_engine::limits::PAYLOAD_BYTES.to_string();
    assert!(refused["error"].as_str().unwrap().contains(&limit), "{refused}");
    assert_eq!(answer[1]["status"], "queued");
    assert_eq!(numbers(&server.pop("q", "g", 10).await), [1]);
}
