//! Traces, and what an operator switches and reads.

use serde_json::{Value, json};

use crate::support::{NOBODY, Server};

#[tokio::test(start_paused = true)]
async fn a_trace_is_found_by_its_message_and_by_its_name() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let message = server.pop("q", "g", 1).await.remove(0);
    let (partition, transaction) = (&message["partitionId"], &message["transactionId"]);
    let trace = json!({
        "transactionId": transaction, "partitionId": partition, "consumerGroup": "g",
        "eventType": "retry", "traceNames": ["a/b c", "é"], "data": {"n": 1.0}
    });
    let answer = server.post("/api/v1/traces", trace).await.with(201);
    assert_eq!(answer["success"], true);
    let least = json!({"transactionId": transaction, "partitionId": partition, "data": null, "traceNames": "one"});
    server.post("/api/v1/traces", least).await.with(201);

    let path =
        format!("/api/v1/traces/{}/{}", partition.as_str().unwrap(), transaction.as_str().unwrap());
    let found = server.get(&path).await;
    assert!(found.text().contains("\"data\":{\"n\":1.0}"), "data is verbatim: {}", found.text());
    let rows = found.with(200)["traces"].clone();
    let row = |event: &str| {
        rows.as_array().unwrap().iter().find(|r| r["event_type"] == event).unwrap().clone()
    };
    assert_eq!(row("retry")["id"], answer["traceId"]);
    assert_eq!(row("retry")["trace_names"], json!(["a/b c", "é"]));
    assert_eq!(
        (&row("info")["consumer_group"], &row("info")["data"]),
        (&json!("__QUEUE_MODE__"), &Value::Null)
    );
    let named = server.get("/api/v1/traces/by-name/a%2Fb%20c?limit=5").await.with(200);
    assert_eq!(
        (&named["total"], &named["pagination"]),
        (&json!(1), &json!({"limit": 5, "offset": 0}))
    );
    let expected = json!({"queue_name": "q", "partition_name": "p", "transaction_id": transaction});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(named["traces"][0][key], *value, "{key}");
    }
    let names = server.get("/api/v1/traces/names?limit=2").await.with(200);
    assert_eq!(
        (names["total"].as_u64(), names["trace_names"].as_array().unwrap().len()),
        (Some(3), 2)
    );
    assert_eq!(names["trace_names"][0]["trace_count"], 1);
    assert_eq!(server.get("/api/v1/traces/x/y").await.with(200), json!({"traces": []}));
}

#[tokio::test(start_paused = true)]
async fn a_trace_that_says_too_little_or_too_much_is_refused() {
    let server = Server::new();
    server.push("q", "p", [json!(1)]).await;
    let message = server.pop("q", "g", 1).await.remove(0);
    let id = message["partitionId"].as_str().unwrap();
    let with = |key: &str, value: Value| {
        let mut trace = json!({"transactionId": "t", "partitionId": id, "data": 1});
        trace[key] = value;
        trace
    };
    for (body, status, said) in [
        (with("transactionId", json!("")), 400, "transactionId"),
        (with("partitionId", Value::Null), 400, "partitionId"),
        (with("partitionId", json!("p")), 400, "partitionId"),
        (with("partitionId", json!(NOBODY)), 404, "partition"),
        (with("traceNames", json!([1])), 400, "traceNames"),
        (with("traceNames", json!(["x".repeat(600)])), 400, "512"),
        (with("data", json!("x".repeat(20_000))), 400, "16384"),
        (json!({"transactionId": "t", "partitionId": id}), 400, "data"),
    ] {
        let error = server.post("/api/v1/traces", body).await.error(status);
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn paused_pushes_answer_503_and_store_nothing() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let query = server.register("query", "q").await;
    let message = server.pop("q", "g", 1).await.remove(0);
    for bad in [json!({}), json!({"enabled": "yes"}), json!([])] {
        server.post("/api/v1/system/maintenance", bad).await.error(400);
    }
    let on = server.post("/api/v1/system/maintenance", json!({"enabled": true})).await.with(200);
    assert_eq!(on["maintenanceMode"], true);
    let before = server.stored();
    let items = json!([{"queue": "q", "partition": "p", "payload": 2}]);
    let refused = server.post("/api/v1/push", json!({"items": items})).await;
    assert_eq!(refused.headers["retry-after"], "1");
    assert!(refused.error(503).contains("maintenance"));
    let push = json!({"operations": [{"type": "push", "items": items}]});
    assert!(server.post("/api/v1/transaction", push).await.error(503).contains("maintenance"));
    let cycle = json!({
        "query_id": query, "partition_id": message["partitionId"], "state_ops": [],
        "push_items": items, "ack": null
    });
    assert!(server.post("/streams/v1/cycle", cycle).await.error(503).contains("maintenance"));
    assert_eq!(server.stored(), before);
    let state = server.get("/api/v1/system/maintenance").await.with(200);
    assert_eq!(
        (&state["maintenanceMode"], &state["popMaintenanceMode"]),
        (&json!(true), &json!(false))
    );

    let off = server.post("/api/v1/system/maintenance", json!({"enabled": false})).await.with(200);
    assert_eq!(off["maintenanceMode"], false);
    server.push("q", "p", [json!({"n": 2})]).await;
}

#[tokio::test(start_paused = true)]
async fn paused_pops_answer_that_there_is_nothing() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let path = "/api/v1/system/maintenance/pop";
    let on = server.post(path, json!({"enabled": true})).await.with(200);
    assert_eq!(on["popMaintenanceMode"], true);
    for path in
        ["/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p", "/api/v1/pop?namespace=q"]
    {
        let popped = server.get(path).await;
        assert_eq!((popped.status.as_u16(), popped.text()), (204, ""), "{path}");
    }
    assert_eq!(server.get(path).await.with(200)["popMaintenanceMode"], true);
    server.post(path, json!({"enabled": false})).await.with(200);
    assert_eq!(server.pop("q", "g", 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn status_tells_what_is_and_what_this_process_did() {
    let server = Server::new();
    server.push("orders.eu", "p", (0..3).map(|n| json!({"n": n}))).await;
    server.push("other", "p", [json!({"n": 0})]).await;
    server.pop("orders.eu", "g", 2).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    server.push("other", "q", [json!({"n": 1})]).await;
    server.pop("orders.eu", "g", 2).await;

    assert_eq!(
        server.get("/status").await.with(200),
        json!({"status": "ok", "engine": "tidewheel"})
    );
    let status = server.get("/api/v1/status").await.with(200);
    let counted = |s: &Value| (s["queues"]["total"].as_u64(), s["messages"]["total"].as_u64());
    assert_eq!(counted(&status), (Some(2), Some(5)));
    assert_eq!((&status["bucketMinutes"], &status["pointCount"]), (&json!(1), &json!(2)));
    let points: Vec<_> = (0..2)
        .map(|n| {
            let point = &status["throughput"][n];
            (
                point["timestamp"].as_str().unwrap(),
                point["ingested"].as_u64(),
                point["processed"].as_u64(),
            )
        })
        .collect();
    assert_eq!(
        points,
        [
            ("2025-11-24T16:00:00.000000Z", Some(4), Some(2)),
            ("2025-11-24T16:10:00.000000Z", Some(1), Some(2))
        ]
    );
    let messages = json!({
        "total": 5, "pending": 3, "processing": 2, "completed": 0, "failed": null, "deadLetter": 0
    });
    assert_eq!(status["messages"], messages);
    assert_eq!(status["leases"]["active"], 1);
    let labelled = server.get("/api/v1/status?namespace=orders&task=eu").await.with(200);
    assert_eq!(counted(&labelled), (Some(1), Some(3)));
    assert_eq!(status["workers"].as_array().unwrap().len(), 1);

    let queues = server.get("/api/v1/status/queues?limit=1&offset=1").await.with(200);
    assert_eq!((&queues["total"], &queues["complete"]), (&json!(2), &json!(true)));
    assert_eq!(
        (&queues["queues"][0]["name"], &queues["queues"][0]["partitions"]),
        (&json!("other"), &json!(2))
    );
    let queue = server.get("/api/v1/status/queues/other").await.with(200);
    assert_eq!(queue["totals"]["messages"]["total"], 2);
    assert_eq!(queue["partitions"].as_array().unwrap().len(), 2);
    server.get("/api/v1/status/queues/nowhere").await.error(404);
    let buffers = server.get("/api/v1/status/buffers").await.with(200);
    assert_eq!((&buffers["pending"], &buffers["dbHealthy"]), (&json!(0), &json!(true)));
    let refreshed = server.post("/api/v1/stats/refresh", json!({})).await.with(200);
    assert_eq!(refreshed["success"], true);
}

#[tokio::test(start_paused = true)]
async fn analytics_count_messages_by_the_time_they_came() {
    let server = Server::new();
    server.push("a", "p", (0..3).map(|n| json!(n))).await;
    tokio::time::sleep(std::time::Duration::from_secs(7200)).await;
    server.push("b", "p", [json!(1)]).await;
    let counts = |answer: Value| -> Vec<u64> {
        let points = answer["dataPoints"].as_array().unwrap().clone();
        points.iter().map(|p| p["messages"].as_u64().unwrap()).collect()
    };
    let path = "/api/v1/status/analytics";
    let hours = server.get(path).await.with(200);
    assert_eq!(hours["interval"], "hour");
    assert_eq!(counts(hours), [3, 1]);
    assert_eq!(counts(server.get(&format!("{path}?queue=a&interval=minute")).await.with(200)), [3]);
    let later = format!("{path}?from=2025-11-24T17:00:00Z&to=2026-01-01T00:00:00Z");
    assert_eq!(counts(server.get(&later).await.with(200)), [1]);
    for (query, said) in [
        ("from=then", "from"),
        ("from=2026-01-01T00:00:00Z&to=2025-01-01T00:00:00Z", "before"),
        ("from=1970-01-01T00:00:00Z&interval=minute", "10000"),
    ] {
        let error = server.get(&format!("{path}?{query}")).await.error(400);
        assert!(error.contains(said), "{error}");
    }
    for (path, series) in [
        ("system-metrics", "replicas"),
        ("worker-metrics", "timeSeries"),
        ("worker-metrics", "workers"),
        ("worker-metrics", "queues"),
        ("queue-ops", "series"),
        ("retention", "series"),
    ] {
        let answer = server.get(&format!("/api/v1/analytics/{path}")).await.with(200);
        assert!(answer[series].is_array(), "{path}: {answer}");
        assert!(answer["timeRange"]["from"].is_string(), "{path}");
    }
    let ops = server.get("/api/v1/analytics/queue-ops").await.with(200);
    assert_eq!((&ops["queues"], &ops["series"][0]["pushMessages"]), (&json!(["b"]), &json!(1)));
}
