//! Following a stream over a real socket.

mod common;

use common::{
    connect, http, push, receive_close, receive_json, receive_row, rows, start, start_with,
};
use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};
use tokio_tungstenite::{client_async, tungstenite::Message};

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_gets_the_greeting_then_every_row_replayed_and_live_in_order() {
    let (_folder, stack) = start().await;
    push(&stack, "flights", "JFK", &rows(0..1500)).await;
    push(&stack, "flights", "LGA", &rows(0..3)).await;
    let mut socket = connect(&stack, "/flights?partition=JFK&offset=0").await;
    let greeting = receive_json(&mut socket).await;
    assert_eq!(greeting["streamcast"], 4);
    assert_eq!(greeting["stream"], "flights");
    assert_eq!(greeting["replay"], json!([1, 1501]));
    assert_eq!(greeting["end_offset"], 1501);
    for n in 0..1500 {
        assert_eq!(receive_row(&mut socket).await, (n + 1, json!({"n": n})));
    }
    for n in 1500..1520 {
        push(&stack, "flights", "JFK", &rows(n..n + 1)).await;
        assert_eq!(receive_row(&mut socket).await, (n + 1, json!({"n": n})));
    }
    push(&stack, "flights", "JFK", &rows(1520..4000)).await;
    for n in 1520..4000 {
        assert_eq!(receive_row(&mut socket).await, (n + 1, json!({"n": n})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_comes_once_while_others_push() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..10)).await;
    let pushing = async {
        for n in 0..100 {
            push(&stack, "s", "Default", &rows(n * 10..n * 10 + 7)).await;
        }
    };
    let following = async {
        let mut socket = connect(&stack, "/s?offset=3").await;
        receive_json(&mut socket).await;
        for offset in 3..=710 {
            assert_eq!(receive_row(&mut socket).await.0, offset);
        }
    };
    tokio::join!(pushing, following);
}

#[tokio::test(flavor = "multi_thread")]
async fn payload_bytes_come_out_as_they_went_in() {
    let (_folder, stack) = start().await;
    let payload = r#"{"z":1.0,"a":12345678901234567890123,"é":"\u00e9/"}"#;
    let body = format!(r#"{{"items":[{{"queue":"verbatim","payload":{payload}}}]}}"#);
    let (status, answer) =
        http(&stack, "POST /api/v1/push\ncontent-type: application/json", &body).await;
    assert_eq!(status, 201, "{answer}");
    let mut socket = connect(&stack, "/verbatim?offset=1").await;
    receive_json(&mut socket).await;
    let Message::Text(frame) = common::receive(&mut socket).await else { panic!("no text") };
    assert!(frame.starts_with("[1,") && frame.ends_with(&format!(",{payload}]")), "{frame}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_is_encoded_once_for_all_who_follow() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..10)).await;
    let mut sockets = Vec::new();
    for _ in 0..8 {
        let mut socket = connect(&stack, "/s").await;
        receive_json(&mut socket).await;
        sockets.push(socket);
    }
    for n in 0..20 {
        push(&stack, "s", "Default", &rows(n..n + 1)).await;
        for socket in &mut sockets {
            assert_eq!(receive_row(socket).await, (11 + n, json!({"n": n})));
        }
    }
    let counters = stack.gateway().counters();
    assert_eq!((counters.runs_encoded, counters.runs_served), (20, 160));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_holds_for_replayed_and_live_rows() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..100)).await;
    let mut socket = connect(&stack, "/s?offset=0&where=%7B%22n%22%3A%5B7%2C50%2C101%5D%7D").await;
    assert_eq!(receive_json(&mut socket).await["where"], json!({"n": [7, 50, 101]}));
    assert_eq!(receive_row(&mut socket).await, (8, json!({"n": 7})));
    assert_eq!(receive_row(&mut socket).await, (51, json!({"n": 50})));
    push(&stack, "s", "Default", &rows(100..103)).await;
    assert_eq!(receive_row(&mut socket).await, (102, json!({"n": 101})));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_nobody_wrote_yet_can_be_followed() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut socket = connect(&stack, "/s?partition=later&offset=0").await;
    assert_eq!(receive_json(&mut socket).await["replay"], json!([1, 1]));
    push(&stack, "s", "later", &rows(5..6)).await;
    assert_eq!(receive_row(&mut socket).await, (1, json!({"n": 5})));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_close_codes_with_reasons() {
    let (_folder, stack) = start_with(|options| options.max_replay = Some(3)).await;
    push(&stack, "s", "Default", &rows(0..5)).await;
    for (path, code, parts) in [
        ("/nothing", 4404, json!({"error": "no_such_stream", "serves": ["s"]})),
        ("/nothing?publish", 4404, json!({"error": "no_such_stream", "serves": ["s"]})),
        ("/nothing?where=%5B%5D", 4404, json!({"error": "no_such_stream"})),
        ("/s?where=%5B%5D", 4400, json!({"error": "bad_request"})),
        ("/s/t", 4400, json!({"error": "bad_request", "detail": "invalid stream name"})),
        ("/s?ofset=1", 4400, json!({"error": "bad_request"})),
        ("/s?publish&offset=1", 4400, json!({"error": "bad_request"})),
        ("/s?publish&publisher=p", 4412, json!({"why": "stream"})),
        ("/s?offset=-1", 4400, json!({"error": "bad_request"})),
        ("/s?offset=7", 4416, json!({"why": "ahead", "offset": 7, "end_offset": 6})),
        ("/s?offset=1", 4416, json!({"why": "too_old", "behind": 5, "max_replay": 3})),
    ] {
        let mut socket = connect(&stack, path).await;
        let (got, reason) = receive_close(&mut socket).await;
        assert_eq!(got, code, "{path}: {reason}");
        let reason: Value = serde_json::from_str(&reason).unwrap();
        for (key, value) in parts.as_object().unwrap() {
            assert_eq!(&reason[key], value, "{path}: {reason}");
        }
    }
    let mut socket = connect(&stack, "/s?offset=6").await;
    assert_eq!(receive_json(&mut socket).await["replay"], json!([6, 6]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_closed_with_4429_and_holds_up_nobody() {
    let (_folder, stack) = start_with(|options| options.max_backlog = 64).await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    // One that does not read, with little room on its side.
    let connection = TcpSocket::new_v4().unwrap();
    connection.set_recv_buffer_size(4096).unwrap();
    let connection = connection.connect(stack.address()).await.unwrap();
    let url = format!("ws://{}/s?offset=1", stack.address());
    let mut slow =
        client_async(url, tokio_tungstenite::MaybeTlsStream::Plain(connection)).await.unwrap().0;
    let mut fast = connect(&stack, "/s?offset=1").await;
    receive_json(&mut fast).await;
    receive_row(&mut fast).await;
    let wide = "x".repeat(64 * 1024);
    for n in 2..=400u64 {
        push(&stack, "s", "Default", &[format!("{{\"n\":{n},\"wide\":\"{wide}\"}}")]).await;
        assert_eq!(receive_row(&mut fast).await.0, n);
    }
    receive_json(&mut slow).await;
    let mut last = 0;
    let close = loop {
        match common::receive(&mut slow).await {
            Message::Text(frame) => {
                let frame: (u64, i64, Value) = serde_json::from_str(&frame).unwrap();
                assert_eq!(frame.0, last + 1, "what arrives has no hole");
                last = frame.0;
            }
            Message::Close(Some(frame)) => break frame,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(u16::from(close.code), 4429);
    assert_eq!(close.reason.as_str(), r#"{"error":"too_slow","backlog":64}"#);
    assert!((1..400).contains(&last), "{last}");
    // It resumes after the last that it had.
    let mut again = connect(&stack, &format!("/s?offset={}", last + 1)).await;
    receive_json(&mut again).await;
    for offset in last + 1..=400 {
        assert_eq!(receive_row(&mut again).await.0, offset);
    }
    assert_eq!(push(&stack, "s", "Default", &rows(0..1)).await[0], receive_row(&mut fast).await.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_larger_than_the_backlog_is_no_reason_to_close() {
    let (_folder, stack) = start_with(|options| options.max_backlog = 10).await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut socket = connect(&stack, "/s?offset=2").await;
    receive_json(&mut socket).await;
    push(&stack, "s", "Default", &rows(0..20_000)).await;
    for offset in 2..=20_001 {
        assert_eq!(receive_row(&mut socket).await.0, offset);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_subscriber_says_ends_its_connection_only() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    for (message, code) in [
        (Message::text("{}"), 4400),
        (Message::binary(vec![1, 2, 3]), 4400),
        (Message::text("x".repeat(5000)), 1009),
    ] {
        let mut socket = connect(&stack, "/s").await;
        receive_json(&mut socket).await;
        socket.send(message).await.unwrap();
        assert_eq!(receive_close(&mut socket).await.0, code);
    }
    let mut socket = connect(&stack, "/s?offset=0").await;
    receive_json(&mut socket).await;
    assert_eq!(receive_row(&mut socket).await.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_in_the_middle_of_a_replay_is_answered() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..30_000)).await;
    let mut socket = connect(&stack, "/s?offset=0").await;
    receive_json(&mut socket).await;
    receive_row(&mut socket).await;
    socket.close(None).await.unwrap();
    use futures_util::StreamExt;
    while let Some(message) = socket.next().await {
        message.expect("a clean close");
    }
    stack.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_deleted_is_not_there_for_the_next() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..3)).await;
    assert!(stack.engine().delete_stream("s").await.unwrap());
    assert_eq!(receive_close(&mut connect(&stack, "/s").await).await.0, 4404);
    push(&stack, "s", "Default", &rows(7..8)).await;
    let mut socket = connect(&stack, "/s?offset=0").await;
    receive_json(&mut socket).await;
    assert_eq!(receive_row(&mut socket).await, (1, json!({"n": 7})));
}

// Time is paused, and jumps whenever nothing can run: no second of it is waited for.
#[tokio::test(start_paused = true)]
async fn a_client_that_gives_no_sign_of_life_is_pinged_and_then_closed() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let mut connection = tokio::net::TcpStream::connect(stack.address()).await.unwrap();
    let request = format!(
        "GET /s HTTP/1.1\r\nhost: {}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        stack.address()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    connection.read_to_end(&mut all).await.unwrap();
    let body = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
    let text = String::from_utf8_lossy(&all[body..]);
    assert!(text.contains(r#""streamcast":4"#), "{text}");
    let ping = [0x89, 0];
    let close = [&[0x88, 14], 1011u16.to_be_bytes().as_slice(), b"ping timeout"].concat();
    assert!(all.ends_with(&[ping.as_slice(), &close].concat()), "{text}");
}
