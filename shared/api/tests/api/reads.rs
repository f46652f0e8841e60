//! Reads by offset, and which partitions have changed.

use serde_json::{Value, json};

use crate::support::Server;

async fn fetch(server: &Server, entries: Value) -> Value {
    server.post("/api/v1/fetch", json!({"entries": entries})).await.with(200)["entries"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_fetch_answers_each_entry_with_records_and_bounds() {
    let server = Server::new();
    server.push("q", "7", [json!({"n": 1.5}), json!(null), json!("x")]).await;
    let answer = fetch(
        &server,
        json!([
            {"queue": "q", "partition": 7, "offset": 1, "unknown": []},
            {"queue": "q", "partition": "7", "offset": 4},
            {"queue": "q", "partition": null, "offset": 0},
            {"queue": "nowhere", "offset": 0},
        ]),
    )
    .await;
    let first = &answer[0];
    assert_eq!(first["partition"], "7");
    assert_eq!((&first["highWatermark"], &first["logStartOffset"]), (&json!(3), &json!(0)));
    assert_eq!(first.get("error"), None);
    let records = first["records"].as_array().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!((&records[0]["offset"], &records[0]["payload"]), (&json!(1), &Value::Null));
    assert_eq!(
        (&records[1]["payload"], &records[1]["ts"]),
        (&json!("x"), &json!("2025-11-24T16:00:00.000000Z"))
    );
    assert!(records[1]["transactionId"].is_string());
    assert_eq!(answer[1]["error"], "OFFSET_OUT_OF_RANGE");
    assert_eq!((&answer[1]["highWatermark"], &answer[1]["records"]), (&json!(3), &json!([])));
    let empty = json!({"queue": "q", "partition": "Default", "records": [], "highWatermark": 0, "logStartOffset": 0});
    assert_eq!(answer[2], empty);
    assert_eq!(answer[3]["error"], "UNKNOWN_TOPIC_OR_PARTITION");
    assert_eq!(fetch(&server, json!([])).await, json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_makes_no_sense_is_refused_whole() {
    let server = Server::new();
    server.push("q", "p", [json!(1)]).await;
    let many: Vec<Value> = (0..1025).map(|_| json!({"queue": "q", "offset": 0})).collect();
    for (path, body, said) in [
        ("fetch", json!({"entries": [{"queue": "q", "offset": -1}]}), "entries[0].offset"),
        ("fetch", json!({"entries": [{"queue": "q"}]}), "offset"),
        ("fetch", json!({"entries": many}), "1024"),
        ("fetch", json!({}), "entries"),
        ("fetch", json!({"entries": [{"queue": "q", "offset": 0, "partition": []}]}), "partition"),
        ("fetch/offsets", json!({"entries": [{"queue": "q", "timestamp": -1}]}), "timestamp"),
        ("fetch/offsets", json!({"entries": [{"queue": "q", "timestamp": "now"}]}), "timestamp"),
        ("partitions/changed", json!({"entries": [{"queue": "q", "since": "then"}]}), "since"),
        ("partitions/changed", json!({"entries": [{}]}), "queue"),
    ] {
        let error = server.post(&format!("/api/v1/{path}"), body).await.error(400);
        assert!(error.contains(said), "{path}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_fetch_ends_with_a_push_and_when_the_server_stops() {
    let server = Server::new();
    server.push("q", "p", [json!(0)]).await;
    let body =
        || json!({"entries": [{"queue": "q", "partition": "p", "offset": 1}], "maxWaitMs": 30000});
    let wait = server.post("/api/v1/fetch", body());
    let (answer, _) = tokio::join!(wait, server.push("q", "p", [json!(1)]));
    assert_eq!(answer.with(200)["entries"][0]["records"][0]["payload"], 1);
    let body =
        json!({"entries": [{"queue": "q", "partition": "p", "offset": 2}], "maxWaitMs": 30000});
    let started = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(server.post("/api/v1/fetch", body), async {
        tokio::task::yield_now().await;
        server.api.drain();
    });
    assert_eq!(answer.with(200)["entries"][0]["records"], json!([]));
    assert!(started.elapsed() < std::time::Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn times_lead_to_offsets() {
    let server = Server::new();
    server.push("q", "p", [json!(0)]).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    server.push("q", "p", [json!(1)]).await;
    let at = |timestamp: Value| json!({"queue": "q", "partition": "p", "timestamp": timestamp});
    let entries =
        [at(json!(0)), at(json!("2025-11-24T16:00:01Z")), at(json!("2026-01-01T00:00:00Z"))];
    let answer = server.post("/api/v1/fetch/offsets", json!({"entries": entries})).await.with(200);
    let offsets: Vec<_> = (0..3).map(|n| answer["entries"][n]["offset"].clone()).collect();
    assert_eq!(offsets, [json!(0), json!(1), json!(null)]);
    assert_eq!(answer["entries"][1]["ts"], "2025-11-24T16:01:00.000000Z");
    assert_eq!(answer["entries"][2]["ts"], Value::Null);
    assert_eq!(answer["entries"][2]["highWatermark"], 2);
}

#[tokio::test(start_paused = true)]
async fn changed_partitions_come_in_pages_with_a_safe_time() {
    let server = Server::new();
    for n in 0..5 {
        server.push("q", &format!("p{n}"), [json!(n)]).await;
    }
    let mut names = Vec::new();
    let mut after = Value::Null;
    loop {
        let entry = json!({"queue": "q", "since": null, "after": after, "limit": 2});
        let body = json!({"entries": [entry]});
        let answer = server.post("/api/v1/partitions/changed", body).await.with(200);
        assert_eq!(answer["safeTimeDegraded"], false);
        assert!(answer["safeTime"].as_str().unwrap() < "2025-11-24T16:00:00.000000Z");
        let page = &answer["entries"][0];
        for partition in page["partitions"].as_array().unwrap() {
            assert_eq!((&partition["lastOffset"], &partition["logStart"]), (&json!(0), &json!(0)));
            assert_eq!(partition["lastWriteAt"], "2025-11-24T16:00:00.000000Z");
            names.push(partition["name"].as_str().unwrap().to_owned());
        }
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    names.sort();
    assert_eq!(names, ["p0", "p1", "p2", "p3", "p4"]);
    let bad = json!({"entries": [{"queue": "q", "after": "x"}, {"queue": "nowhere"}]});
    let answer = server.post("/api/v1/partitions/changed", bad).await.with(200);
    assert_eq!(answer["entries"][0]["error"], "BAD_CURSOR");
    assert_eq!(answer["entries"][1]["error"], "UNKNOWN_TOPIC_OR_PARTITION");
    let alone = server.post("/api/v1/partitions/changed", json!({})).await.with(200);
    assert_eq!(alone["entries"], json!([]));
}
