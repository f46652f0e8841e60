//! pop, ack, lease, groups, dead letters, resources.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{NOBODY, Server, numbers};

fn ack_of(message: &Value, status: &str) -> Value {
    json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "status": status, "error": null})
}

#[tokio::test(start_paused = true)]
async fn nothing_to_pop_is_204_without_a_body() {
    let server = Server::new();
    let started = tokio::time::Instant::now();
    let answer = server.get("/api/v1/pop/queue/nothing?wait=false&timeout=30000").await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    assert_eq!(started.elapsed(), Duration::ZERO, "it did not wait");

    let answer = server.get("/api/v1/pop/queue/nothing?wait=true&timeout=3000").await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    let waited = started.elapsed();
    assert!((2..=3).contains(&waited.as_secs()) && waited <= Duration::from_secs(3), "{waited:?}");

    // An hour is capped to a minute.
    let started = tokio::time::Instant::now();
    server.get("/api/v1/pop/queue/nothing?wait=true&timeout=3600000").await;
    assert!(started.elapsed() <= Duration::from_secs(60), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pop_wakes_on_a_push_and_on_draining() {
    let server = Server::new();
    let waiting =
        "/api/v1/pop/queue/q?wait=true&timeout=30000&consumerGroup=g&subscriptionMode=all";
    let started = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(server.get(waiting), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.push("q", "p", [json!({"n": 1})]).await;
    });
    assert_eq!(answer.with(200)["messages"][0]["data"]["n"], 1);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());

    let started = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(server.get(waiting), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.api.drain();
    });
    assert_eq!(answer.status, 204);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_batch_below_one_is_the_default() {
    let server = Server::new();
    server.push("q", "p", (0..250).map(|n| json!({"n": n}))).await;
    for (i, batch) in ["", "&batch=0", "&batch=-5", "&batch="].into_iter().enumerate() {
        let path = format!("/api/v1/pop/queue/q?consumerGroup=g{i}&subscriptionMode=all{batch}");
        let answer = server.get(&path).await.with(200);
        assert_eq!(answer["messages"].as_array().unwrap().len(), 200, "{batch}");
    }
}

#[tokio::test(start_paused = true)]
async fn several_partitions_come_under_one_lease() {
    let server = Server::new();
    for partition in ["a", "b", "c"] {
        server.push("q", partition, (0..3).map(|n| json!({"n": n}))).await;
    }
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&partitions=2&batch=100";
    let answer = server.get(path).await.with(200);
    assert_eq!(answer["partitionsClaimed"], 2);
    let messages = answer["messages"].as_array().unwrap();
    assert_eq!(numbers(messages), [0, 1, 2, 0, 1, 2]);
    assert!(messages.iter().all(|m| m["leaseId"] == answer["leaseId"]));
    assert_eq!(messages[0]["partitionId"], answer["partitionId"]);
    assert_ne!(messages[0]["partitionId"], messages[3]["partitionId"]);
    assert_ne!(messages[0]["partition"], messages[3]["partition"]);
    for message in [&messages[0], &messages[3]] {
        let path = format!(
            "/api/v1/pop/queue/q/partition/{}?consumerGroup=other&subscriptionMode=all",
            message["partition"].as_str().unwrap()
        );
        let other = server.get(&path).await.with(200);
        assert_eq!(other["partitionId"], message["partitionId"], "each has its own");
    }

    // One extension renews both (S37).
    let path = format!("/api/v1/lease/{}/extend", answer["leaseId"].as_str().unwrap());
    assert_eq!(server.post(&path, json!({"seconds": 300})).await.with(200)["renewed"], 2);
}

#[tokio::test(start_paused = true)]
async fn committed_at_delivery_there_is_no_lease() {
    let server = Server::new();
    for (group, flag) in [("g1", "autoAck"), ("g2", "commitOnDelivery")] {
        server.push("q", "p", [json!({"n": 1}), json!({"n": 2})]).await;
        let path = format!(
            "/api/v1/pop/queue/q?consumerGroup={group}&subscriptionMode=all&{flag}=true&batch=1"
        );
        let answer = server.get(&path).await.with(200);
        assert_eq!(answer["leaseId"], "");
        assert_eq!(answer["messages"][0]["leaseId"], "");
        assert_eq!(numbers(&server.pop("q", group, 1).await), [2]);
    }
}

#[tokio::test(start_paused = true)]
async fn groups_start_where_the_pop_says() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    server.push("q", "p", [json!({"n": 2})]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (group, parameters, expected) in [
        ("a", "subscriptionMode=all", vec![1, 2]),
        ("b", "subscriptionMode=oldest", vec![1, 2]),
        ("c", "subscriptionFrom=2025-11-24T16:00:50.000Z", vec![2]),
        ("d", "subscriptionFrom=2025-11-24T16:00:50.000%2B00:00", vec![2]),
        ("e", "subscriptionMode=new", vec![]),
        ("f", "subscriptionMode=new-only", vec![]),
        ("g", "subscriptionFrom=now", vec![]),
        ("h", "", vec![]),
    ] {
        let path = format!("/api/v1/pop/queue/q?consumerGroup={group}&{parameters}");
        let answer = server.get(&path).await;
        let messages =
            if answer.status == 204 { json!([]) } else { answer.with(200)["messages"].take() };
        assert_eq!(numbers(messages.as_array().unwrap()), expected, "{parameters}");
    }
    // Without a group the queue's oldest comes, whatever the mode (S23).
    let answer = server.get("/api/v1/pop/queue/q?subscriptionMode=new").await.with(200);
    assert_eq!(answer["consumerGroup"], "__QUEUE_MODE__");
    assert_eq!(numbers(answer["messages"].as_array().unwrap()), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn discovery_needs_a_label_and_finds_by_it() {
    let server = Server::new();
    let refused = server.get("/api/v1/pop?batch=1").await.with(400);
    assert_eq!((&refused["success"], &refused["messages"]), (&json!(false), &json!([])));
    assert!(refused["error"].as_str().unwrap().contains("namespace"));

    let request = json!({"queue": "billing.mail", "namespace": "billing", "task": "mail"});
    server.post("/api/v1/configure", request).await.with(200);
    server.push("billing.mail", "p", [json!({"n": 1})]).await;
    server.push("other.thing", "p", [json!({"n": 2})]).await;
    let path = "/api/v1/pop?namespace=billing&task=mail&consumerGroup=g&subscriptionMode=all";
    let answer = server.get(path).await.with(200);
    assert_eq!(answer["queue"], "");
    assert_eq!(numbers(answer["messages"].as_array().unwrap()), [1]);
    let acks: Vec<Value> =
        answer["messages"].as_array().unwrap().iter().map(|m| ack_of(m, "completed")).collect();
    let request = json!({"acknowledgments": acks, "consumerGroup": "g"});
    assert_eq!(server.post("/api/v1/ack/batch", request).await.with(200)[0]["success"], true);
}

#[tokio::test(start_paused = true)]
async fn a_pop_is_not_a_head() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let before = server.stored();
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all";
    assert_eq!(server.send(axum::http::Method::HEAD, path, "").await.status, 405);
    assert_eq!(server.stored(), before, "nobody was given the message");
}

#[tokio::test(start_paused = true)]
async fn an_ack_answers_an_array_of_one() {
    let server = Server::new();
    server.push("q", "p", (0..3).map(|n| json!({"n": n}))).await;
    let messages = server.pop("q", "g", 3).await;
    let mut ack = ack_of(&messages[0], "completed");
    ack["consumerGroup"] = json!("g");
    let answer = server.post("/api/v1/ack", ack.clone()).await.with(200);
    assert_eq!(
        answer,
        json!([{"index": 0, "transactionId": messages[0]["transactionId"], "success": true, "error": null,
            "leaseReleased": false, "dlq": false, "noop": false}])
    );
    let again = server.post("/api/v1/ack", ack).await.with(200);
    assert_eq!((&again[0]["success"], &again[0]["noop"]), (&json!(true), &json!(true)));

    let mut last = ack_of(&messages[2], "ok");
    last["consumerGroup"] = json!("g");
    last.as_object_mut().unwrap().remove("error");
    let answer = server.post("/api/v1/ack", last).await.with(200);
    assert_eq!((&answer[0]["success"], &answer[0]["leaseReleased"]), (&json!(true), &json!(true)));
    assert!(server.pop("q", "g", 3).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_acks_answers_in_order_and_each_for_itself() {
    let server = Server::new();
    assert_eq!(
        server.post("/api/v1/ack/batch", json!({"acknowledgments": []})).await.with(200),
        json!([])
    );

    server.push("q", "p", (0..4).map(|n| json!({"n": n}))).await;
    let messages = server.pop("q", "g", 4).await;
    let mut acks: Vec<Value> = ["completed", "failed", "completed", "success"]
        .iter()
        .zip(&messages)
        .map(|(status, message)| ack_of(message, status))
        .collect();
    acks.push(json!({"transactionId": "x", "partitionId": NOBODY, "status": "completed"}));
    acks.push(json!({"transactionId": "x", "partitionId": "no id at all", "status": "completed"}));
    let answer = server
        .post("/api/v1/ack/batch", json!({"acknowledgments": acks, "consumerGroup": "g"}))
        .await
        .with(200);
    let results = answer.as_array().unwrap();
    assert_eq!(results.len(), 6);
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result["index"], i);
        assert_eq!(result["success"], i < 4, "{result}");
        assert_eq!(result["error"].is_null(), i < 4, "{result}");
    }
    // S28: the failed one clamps the cursor.
    assert_eq!(numbers(&server.pop("q", "g", 4).await), [1, 2, 3]);
}

/// S8: a misspelt status is a failure.
#[tokio::test(start_paused = true)]
async fn a_misspelt_status_acknowledges_nothing_s8() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let messages = server.pop("q", "g", 1).await;
    let request =
        json!({"acknowledgments": [ack_of(&messages[0], "Completed")], "consumerGroup": "g"});
    let answer = server.post("/api/v1/ack/batch", request).await.with(200);
    assert_eq!((&answer[0]["success"], &answer[0]["leaseReleased"]), (&json!(true), &json!(true)));
    assert_eq!(numbers(&server.pop("q", "g", 1).await), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_lease_is_refused_and_moves_nothing() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let messages = server.pop("q", "g", 1).await;
    let before = server.stored();
    for lease in ["nonsense", NOBODY, "0123456789abcdef0123456789abcdef"] {
        let mut ack = ack_of(&messages[0], "completed");
        ack["leaseId"] = json!(lease);
        ack["consumerGroup"] = json!("g");
        let answer = server.post("/api/v1/ack", ack).await.with(200);
        assert_eq!(answer[0]["success"], false, "{lease}");
        assert_eq!(answer[0]["error"], "invalid or expired lease", "{lease}");
    }
    assert_eq!(server.stored(), before);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_with_any_body() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    let path = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&leaseSeconds=10";
    let lease = server.get(path).await.with(200)["leaseId"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/lease/{lease}/extend");
    for body in ["", "garbage", "{}", "\u{fffd}", r#"{"seconds":null}"#] {
        let answer = server.send(axum::http::Method::POST, &path, body).await.with(200);
        let expires = &answer["newExpiresAt"];
        assert_eq!(
            answer,
            json!({"leaseId": lease, "success": true, "renewed": 1, "newExpiresAt": expires,
                "expiresAt": expires, "lease_expires_at": expires})
        );
        assert!(expires.as_str().unwrap().starts_with("2025-11-24T16:01:0"), "60 s: {expires}");
    }
    let answer = server.post(&path, json!({"seconds": 120})).await.with(200);
    assert!(answer["expiresAt"].as_str().unwrap().starts_with("2025-11-24T16:02:0"), "{answer}");

    for lease in ["nobody", NOBODY, "%20"] {
        let path = format!("/api/v1/lease/{lease}/extend");
        let answer = server.post(&path, json!({})).await.with(200);
        assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)), "{lease}");
        assert!(answer["newExpiresAt"].is_null() && answer["lease_expires_at"].is_null());
    }
}

#[tokio::test(start_paused = true)]
async fn dead_letters_are_listed_with_their_reason() {
    let server = Server::new();
    let empty = server.get("/api/v1/dlq?queue=q").await.with(200);
    assert_eq!(
        empty,
        json!({"messages": [], "pagination": {"limit": 100, "offset": 0}, "total": 0})
    );

    server.push("q", "p", (0..2).map(|n| json!({"n": n, "f": 1.0}))).await;
    for _ in 0..2 {
        let messages = server.pop("q", "g", 1).await;
        let mut ack = ack_of(&messages[0], "dlq");
        (ack["error"], ack["consumerGroup"]) = (json!("poison \"x\""), json!("g"));
        assert_eq!(server.post("/api/v1/ack", ack).await.with(200)[0]["dlq"], true);
    }
    let answer =
        server.get("/api/v1/dlq?queue=q&consumerGroup=g&limit=1&offset=1&partition=p").await;
    assert!(answer.text().contains("\"f\":1.0"), "verbatim: {}", answer.text());
    let answer = answer.with(200);
    assert_eq!(answer["pagination"], json!({"limit": 1, "offset": 1}));
    assert_eq!(answer["total"], 2, "all that match, whatever the page");
    let letter = &answer["messages"][0];
    assert_eq!(letter["data"]["n"], 0, "the newest comes first");
    assert_eq!(letter["errorMessage"], "poison \"x\"");
    assert_eq!((&letter["queue"], &letter["partition"]), (&json!("q"), &json!("p")));
    assert_eq!((&letter["consumerGroup"], &letter["retryCount"]), (&json!("g"), &json!(0)));
    for name in ["id", "transactionId", "partitionId", "createdAt", "failedAt"] {
        assert!(letter[name].is_string(), "{name}");
    }
    let other = server.get("/api/v1/dlq?queue=q&consumerGroup=other").await.with(200);
    assert_eq!(other["total"], 0);
    let everywhere = server.get("/api/v1/dlq?limit=1").await.with(200);
    assert_eq!(
        (&everywhere["total"], &everywhere["messages"][0]["data"]["n"]),
        (&json!(2), &json!(1))
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_group_starts_over() {
    let server = Server::new();
    for queue in ["q1", "q2"] {
        server.push(queue, "p", [json!({"n": 1})]).await;
        let path =
            format!("/api/v1/pop/queue/{queue}?consumerGroup=g&subscriptionMode=all&autoAck=true");
        server.get(&path).await.with(200);
        assert!(server.pop(queue, "g", 1).await.is_empty());
    }
    let answer =
        server.delete("/api/v1/consumer-groups/g/queues/q1?deleteMetadata=true").await.with(200);
    assert_eq!(
        answer,
        json!({"success": true, "consumerGroup": "g", "queueName": "q1", "deletedPartitions": 1,
            "metadataDeleted": true})
    );
    assert_eq!(numbers(&server.pop("q1", "g", 1).await), [1]);
    assert!(server.pop("q2", "g", 1).await.is_empty());

    let answer = server.delete("/api/v1/consumer-groups/g?deleteMetadata=true").await.with(200);
    assert_eq!((&answer["success"], &answer["metadataDeleted"]), (&json!(true), &json!(true)));
    assert_eq!(numbers(&server.pop("q2", "g", 1).await), [1]);

    let answer = server.delete("/api/v1/consumer-groups/nobody").await.with(200);
    assert_eq!(
        (&answer["deletedPartitions"], &answer["metadataDeleted"]),
        (&json!(0), &json!(false))
    );
    server.delete("/api/v1/consumer-groups/g/queues/nowhere").await.with(200);
}

#[tokio::test(start_paused = true)]
async fn a_group_seeks_by_time_and_to_the_end() {
    let server = Server::new();
    server.push("q", "p", [json!({"n": 1})]).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    server.push("q", "p", [json!({"n": 2})]).await;
    assert_eq!(numbers(&server.pop("q", "g", 10).await), [1, 2]);

    let path = "/api/v1/consumer-groups/g/queues/q/seek";
    let answer = server.post(path, json!({"timestamp": "2025-11-24T16:00:50Z"})).await.with(200);
    assert_eq!(
        answer,
        json!({"success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": false,
            "targetTimestamp": "2025-11-24T16:00:50.000000Z", "partitionsUpdated": 1})
    );
    // The lease that was out is gone (S20).
    assert_eq!(numbers(&server.pop("q", "g", 10).await), [2]);

    let answer = server.post(path, json!({"toEnd": true})).await.with(200);
    assert_eq!((&answer["seekToEnd"], &answer["targetTimestamp"]), (&json!(true), &Value::Null));
    assert!(server.pop("q", "g", 10).await.is_empty());

    let one = "/api/v1/consumer-groups/g/queues/q/partitions/p/seek";
    server.post(one, json!({"timestamp": "2025-11-24T16:00:00Z"})).await.with(200);
    assert_eq!(numbers(&server.pop("q", "g", 10).await), [1, 2]);
    server.send(axum::http::Method::POST, one, "").await.with(200);
    assert!(server.pop("q", "g", 10).await.is_empty());

    for bad in [
        json!({"position": "earliest"}),
        json!({}),
        json!({"timestamp": "soon"}),
        json!({"toEnd": false}),
    ] {
        server.post(path, bad.clone()).await.error(400);
    }
    let nowhere = "/api/v1/consumer-groups/g/queues/nowhere/seek";
    assert_eq!(server.post(nowhere, json!({"toEnd": true})).await.error(404), "Queue not found");
}

#[tokio::test(start_paused = true)]
async fn queues_are_listed_shown_and_deleted() {
    let server = Server::new();
    assert_eq!(server.get("/api/v1/resources/queues/q").await.error(404), "Queue not found");
    for queue in ["a", "b", "q/1"] {
        server.push(queue, "p", [json!({"n": 1}), json!({"n": 2})]).await;
    }
    let page = server.get("/api/v1/resources/queues?limit=2").await.with(200);
    let names = |page: &Value| -> Vec<String> {
        page["queues"]
            .as_array()
            .unwrap()
            .iter()
            .map(|q| q["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = names(&page);
    assert_eq!(all.len(), 2);
    let next = page["next"].as_str().unwrap();
    let path = format!("/api/v1/resources/queues?limit=2&after={}", next.replace('/', "%2F"));
    let page = server.get(&path).await.with(200);
    all.extend(names(&page));
    all.sort();
    assert_eq!(all, ["a", "b", "q/1"]);
    assert!(page["next"].is_null());

    let detail = server.get("/api/v1/resources/queues/q%2F1").await.with(200);
    assert_eq!(detail["name"], "q/1");
    assert_eq!(detail["partitions"][0]["name"], "p");
    assert_eq!(detail["partitions"][0]["stats"]["total"], 2);
    assert_eq!(detail["totals"]["total"], 2);
    assert_eq!(detail["segments"]["messages"], 2);
    assert_eq!(detail["options"]["retryLimit"], 3);

    let answer = server.delete("/api/v1/resources/queues/q%2F1").await.with(200);
    assert_eq!(answer, json!({"deleted": true, "queue": "q/1", "existed": true}));
    let answer = server.delete("/api/v1/resources/queues/q%2F1").await.with(200);
    assert_eq!((&answer["deleted"], &answer["existed"]), (&json!(false), &json!(false)));
    assert!(answer["message"].is_string());
    assert!(server.pop("q%2F1", "g", 1).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn labels_are_listed_with_their_queues() {
    let server = Server::new();
    for (queue, namespace, task) in [("a", "x", "t1"), ("b", "x", "t2"), ("c", "y \"", "t2")] {
        let request = json!({"queue": queue, "namespace": namespace, "task": task});
        server.post("/api/v1/configure", request).await.with(200);
    }
    assert_eq!(
        server.get("/api/v1/resources/namespaces").await.with(200),
        json!({"namespaces": [{"namespace": "x", "queues": 2}, {"namespace": "y \"", "queues": 1}],
            "truncated": false})
    );
    assert_eq!(
        server.get("/api/v1/resources/tasks").await.with(200)["tasks"],
        json!([{"task": "t1", "queues": 1}, {"task": "t2", "queues": 2}])
    );
}
