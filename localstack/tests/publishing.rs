//! Publishing over a real socket.

mod common;

use common::{connect, push, receive_close, receive_json, receive_row, rows, start};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

async fn ask(socket: &mut common::Socket, message: &str) -> Value {
    socket.send(Message::text(message)).await.unwrap();
    receive_json(socket).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_published_are_kept_and_followed() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..2)).await;
    let mut follower = connect(&stack, "/s?offset=2").await;
    receive_json(&mut follower).await;
    let mut publisher = connect(&stack, "/s?publish").await;
    let greeting = receive_json(&mut publisher).await;
    assert_eq!((&greeting["replay"], &greeting["end_offset"]), (&Value::Null, &json!(3)));
    assert!(greeting.get("publisher").is_none(), "{greeting}");
    assert_eq!(ask(&mut publisher, r#"{"n": 2}"#).await, json!({"ok": [3]}));
    assert_eq!(ask(&mut publisher, r#"[{"n":3},{"n":4}]"#).await, json!({"ok": [4, 5]}));
    for (offset, n) in [(2, 1), (3, 2), (4, 3), (5, 4)] {
        assert_eq!(receive_row(&mut follower).await, (offset, json!({"n": n})));
    }
    // As it was sent, key by key.
    ask(&mut publisher, r#"{"b": 1.0, "a":"é\u00e9"}"#).await;
    let Message::Text(frame) = common::receive(&mut follower).await else { panic!("no text") };
    assert!(frame.ends_with(r#",{"b": 1.0, "a":"é\u00e9"}]"#), "{frame}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_answered_and_the_connection_lives() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut publisher = connect(&stack, "/s?publish=0").await;
    receive_json(&mut publisher).await;
    for bad in
        ["", "no json", "3", "[]", "[1]", r#"{"a":NaN}"#, r#"{"a":1e400}"#, r#"{"a":"\ud800"}"#]
    {
        let answer = ask(&mut publisher, bad).await;
        assert_eq!(answer["error"], "bad_frame", "{bad}: {answer}");
        assert!(answer["detail"].as_str().is_some_and(|d| !d.is_empty()), "{bad}: {answer}");
    }
    publisher.send(Message::binary(&b"{\"a\":1}"[..])).await.unwrap();
    assert_eq!(receive_json(&mut publisher).await, json!({"ok": [2]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_without_waiting_are_answered_in_order() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let publishers = (0..4).map(|p| {
        let stack = &stack;
        async move {
            let mut publisher = connect(stack, "/s?publish").await;
            receive_json(&mut publisher).await;
            let (mut sink, mut stream) = publisher.split();
            let sending = async {
                for n in 0..500 {
                    let row = format!(r#"{{"p":{p},"n":{n}}}"#);
                    let list = format!(r#"[{row},{row}]"#);
                    let message = if n % 10 == 0 { list } else { row };
                    sink.feed(Message::text(message)).await.unwrap();
                }
                sink.flush().await.unwrap();
            };
            let receiving = async {
                let mut offsets: Vec<(u64, u64)> = Vec::new();
                for n in 0..500 {
                    let Message::Text(answer) = stream.next().await.unwrap().unwrap() else {
                        panic!("no text")
                    };
                    let answer: Value = serde_json::from_str(&answer).unwrap();
                    let ok = answer["ok"].as_array().unwrap();
                    assert_eq!(ok.len(), if n % 10 == 0 { 2 } else { 1 }, "{answer}");
                    offsets.extend(ok.iter().map(|offset| (offset.as_u64().unwrap(), n)));
                }
                offsets
            };
            tokio::join!(sending, receiving).1
        }
    });
    let answered = futures_util::future::join_all(publishers).await;
    let mut log = vec![None; 4 * 550];
    for (p, offsets) in answered.iter().enumerate() {
        assert!(offsets.is_sorted(), "a publisher's rows keep their order");
        for (offset, n) in offsets {
            log[(offset - 2) as usize] = Some((p, *n));
        }
    }
    let mut follower = connect(&stack, "/s?offset=2").await;
    receive_json(&mut follower).await;
    for (at, row) in log.iter().enumerate() {
        let (p, n) = row.expect("every offset is somebody's");
        assert_eq!(receive_row(&mut follower).await, (at as u64 + 2, json!({"p": p, "n": n})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_big_ends_the_connection_after_the_earlier_answers() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut publisher = connect(&stack, "/s?publish").await;
    receive_json(&mut publisher).await;
    let wide = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - 8));
    let mib = 1 << 20;
    for message in [wide(20), wide(mib), wide(mib + 1), wide(30)] {
        publisher.feed(Message::text(message)).await.unwrap();
    }
    publisher.flush().await.unwrap();
    assert_eq!(receive_json(&mut publisher).await, json!({"ok": [2]}));
    assert_eq!(receive_json(&mut publisher).await, json!({"ok": [3]}));
    let (code, reason) = receive_close(&mut publisher).await;
    assert_eq!(code, 1009);
    assert_eq!(reason, r#"{"error":"too_big","size":1048577,"limit":1048576,"stream":"s"}"#);
    // One that is not read at all.
    let mut publisher = connect(&stack, "/s?publish").await;
    receive_json(&mut publisher).await;
    publisher.feed(Message::text("{}")).await.unwrap();
    publisher.feed(Message::text(wide(5 * mib))).await.unwrap();
    let _ = publisher.flush().await;
    assert_eq!(receive_json(&mut publisher).await, json!({"ok": [4]}));
    let (code, reason) = receive_close(&mut publisher).await;
    assert_eq!((code, reason.contains("exceeds limit of 4194304")), (1009, true), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_before_a_close_is_kept() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut publisher = connect(&stack, "/s?publish").await;
    receive_json(&mut publisher).await;
    for n in 0..30 {
        publisher.feed(Message::text(format!("{{\"n\":{n}}}"))).await.unwrap();
    }
    publisher.close(None).await.unwrap();
    while publisher.next().await.is_some() {}
    let mut follower = connect(&stack, "/s?offset=2").await;
    receive_json(&mut follower).await;
    for n in 0..30 {
        assert_eq!(receive_row(&mut follower).await, (n + 2, json!({"n": n})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_end_is_1001() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut publisher = connect(&stack, "/s?publish").await;
    receive_json(&mut publisher).await;
    assert_eq!(ask(&mut publisher, "{}").await, json!({"ok": [2]}));
    let stopping = tokio::spawn(stack.stop());
    assert_eq!(receive_close(&mut publisher).await.0, 1001);
    drop(publisher);
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_is_published_to_by_name() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut publisher = connect(&stack, "/s?publish&partition=east").await;
    assert_eq!(receive_json(&mut publisher).await["end_offset"], 1);
    assert_eq!(ask(&mut publisher, r#"{"n":7}"#).await, json!({"ok": [1]}));
    let mut follower = connect(&stack, "/s?partition=east&offset=0").await;
    receive_json(&mut follower).await;
    assert_eq!(receive_row(&mut follower).await, (1, json!({"n": 7})));
}

#[tokio::test(flavor = "multi_thread")]
async fn stats_tell_who_follows_and_when_a_row_last_came() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..3)).await;
    let stats = async || {
        let (status, body) = common::http(&stack, "GET /stats", "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let before = stats().await;
    assert!(before["served_at"].is_f64());
    let stream = &before["streams"][0];
    assert_eq!((&stream["name"], &stream["durable"]), (&json!("s"), &json!(true)));
    assert_eq!((&stream["end_offset"], &stream["subscribers"]), (&json!(4), &json!(0)));
    assert_eq!((&stream["last_send_ts"], &stream["last_send_age_s"]), (&Value::Null, &Value::Null));
    assert!(stream["uptime_s"].is_f64() && stream["started_ts"].is_f64());

    let mut follower = connect(&stack, "/s").await;
    receive_json(&mut follower).await;
    let mut publisher = connect(&stack, "/s?publish").await;
    receive_json(&mut publisher).await;
    ask(&mut publisher, "{}").await;
    let during = stats().await;
    let stream = &during["streams"][0];
    assert_eq!((&stream["end_offset"], &stream["subscribers"]), (&json!(5), &json!(1)));
    assert!(stream["last_send_ts"].is_f64() && stream["last_send_age_s"].is_f64());

    // A subscriber that leaves a quiet stream is not counted any more.
    follower.close(None).await.unwrap();
    while follower.next().await.is_some() {}
    while stats().await["streams"][0]["subscribers"] != 0 {
        tokio::task::yield_now().await;
    }
}
