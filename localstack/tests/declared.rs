//! Declared streams over real sockets: generations, retirement, and who publishes under an id.

mod common;

use std::sync::Arc;

use common::{connect, receive_close, receive_json, receive_row, start};
use futures_util::SinkExt;
use serde_json::{Value, json};
use tidewheel_engine::Declaration;
use tidewheel_localstack::Stack;
use tidewheel_schema::Schema;
use tokio_tungstenite::tungstenite::Message;

fn schema(text: &str) -> Option<Arc<Schema>> {
    Some(Arc::new(Schema::compile(text).unwrap()))
}

fn numbers() -> Declaration {
    let text = r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    Declaration { schema: schema(text), exactly_once: true, ..Declaration::default() }
}

async fn declare(stack: &Stack, name: &str, declaration: Declaration) {
    stack.engine().declare(name, declaration).await.unwrap();
}

async fn ask(socket: &mut common::Socket, message: &str) -> Value {
    socket.send(Message::text(message)).await.unwrap();
    receive_json(socket).await
}

async fn publish(stack: &Stack, name: &str, rows: &str) -> Value {
    let mut publisher = connect(stack, &format!("/{name}?publish")).await;
    receive_json(&mut publisher).await;
    ask(&mut publisher, rows).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_greeting_is_the_declaration() {
    let (_folder, stack) = start().await;
    declare(&stack, "s", numbers()).await;
    let mut socket = connect(&stack, "/s?publish&publisher=p").await;
    let Message::Text(text) = common::receive(&mut socket).await else { panic!("no text") };
    let greeting: Value = serde_json::from_str(&text).unwrap();
    let declared = stack.engine().declared("s").await.unwrap().unwrap();
    assert_eq!(
        greeting["schema"],
        json!({"type": "object", "properties": {"n": {"type": "integer", "format": "int64"}},
               "required": ["n"]})
    );
    assert_eq!(greeting["stream_id"], json!(declared.stream.to_string()));
    assert_eq!(greeting["publisher"], json!({"id": "p", "last_seq": 0, "last_offset": null}));
    let hint = greeting["metadata_hint"].as_str().unwrap();
    assert!(
        hint.starts_with("file:///") && hint.ends_with("/s.metadata/version-hint.text"),
        "{hint}"
    );
    assert!(greeting["metadata"].as_str().unwrap().ends_with("/s.metadata.json"), "{greeting}");
    let keys =
        ["streamcast", "stream", "end_offset", "replay", "durable", "group_commit", "schema"]
            .into_iter()
            .chain(["metadata", "metadata_hint", "stream_id", "where", "publisher"]);
    let places: Vec<usize> = keys
        .map(|key| text.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key}")))
        .collect();
    assert!(places.is_sorted(), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_is_closed_at_the_seam_and_comes_back_to_the_new_schema() {
    let (_folder, stack) = start().await;
    declare(&stack, "s", numbers()).await;
    assert_eq!(publish(&stack, "s", r#"[{"n":0},{"n":1}]"#).await, json!({"ok": [1, 2]}));
    let mut old = connect(&stack, "/s?offset=1").await;
    receive_json(&mut old).await;
    assert_eq!(receive_row(&mut old).await, (1, json!({"n": 0})));
    assert_eq!(receive_row(&mut old).await, (2, json!({"n": 1})));
    let wider = r#"{"properties":{"n":{"type":"integer"},"m":{"type":["string","null"]}},"required":["n"]}"#;
    stack.engine().migrate("s", schema(wider), Vec::new()).await.unwrap();
    assert_eq!(publish(&stack, "s", r#"{"n":2,"m":"x"}"#).await, json!({"ok": [3]}));
    assert_eq!(receive_close(&mut old).await.0, 1001);
    let mut new = connect(&stack, "/s?offset=3").await;
    let greeting = receive_json(&mut new).await;
    assert!(greeting["schema"]["properties"]["m"].is_object(), "{greeting}");
    assert_eq!(receive_row(&mut new).await, (3, json!({"n": 2, "m": "x"})));
    // What lies before the seam is not for a socket any more.
    let (code, reason) = receive_close(&mut connect(&stack, "/s?offset=2").await).await;
    let reason: Value = serde_json::from_str(&reason).unwrap();
    let evicted = json!({"error": "not_replayable", "why": "evicted", "offset": 2, "earliest": 3});
    assert_eq!((code, reason), (4416, evicted));
    let mut earliest = connect(&stack, "/s?offset=0").await;
    assert_eq!(receive_json(&mut earliest).await["replay"], json!([3, 4]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_stream_is_replayed_and_takes_nothing_until_it_is_revived() {
    let (_folder, stack) = start().await;
    declare(&stack, "s", numbers()).await;
    let mut publisher = connect(&stack, "/s?publish&publisher=p").await;
    receive_json(&mut publisher).await;
    assert_eq!(ask(&mut publisher, r#"[1,{"n":0}]"#).await, json!({"ok": [1]}));
    let retired = stack.engine().retire("s").await.unwrap().retired.unwrap();
    let expected = json!({"error": "stream_retired", "at": retired.at_us, "end_offset": 2});
    publisher.send(Message::text(r#"[2,{"n":1}]"#)).await.unwrap();
    for socket in [
        &mut publisher,
        &mut connect(&stack, "/s?publish").await,
        &mut connect(&stack, "/s?publish&publisher=p").await,
    ] {
        let (code, reason) = receive_close(socket).await;
        assert_eq!(
            (code, serde_json::from_str::<Value>(&reason).unwrap()),
            (4410, expected.clone())
        );
    }
    let mut follower = connect(&stack, "/s?offset=0").await;
    receive_json(&mut follower).await;
    assert_eq!(receive_row(&mut follower).await, (1, json!({"n": 0})));
    stack.engine().revive("s").await.unwrap();
    let mut publisher = connect(&stack, "/s?publish&publisher=p").await;
    let greeting = receive_json(&mut publisher).await;
    assert_eq!(
        (&greeting["end_offset"], &greeting["publisher"]["last_seq"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(ask(&mut publisher, r#"[1,{"n":7}]"#).await, json!({"ok": [2]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_claims_an_id_last_has_it_and_the_other_is_told_at_once() {
    let (_folder, stack) = start().await;
    declare(&stack, "s", numbers()).await;
    let mut old = connect(&stack, "/s?publish&publisher=p").await;
    receive_json(&mut old).await;
    assert_eq!(ask(&mut old, r#"[1,[{"n":0},{"n":1}]]"#).await, json!({"ok": [1, 2]}));
    let mut new = connect(&stack, "/s?publish&publisher=p").await;
    let greeting = receive_json(&mut new).await;
    assert_eq!(greeting["publisher"], json!({"id": "p", "last_seq": 2, "last_offset": 2}));
    // It said nothing, and is told all the same.
    assert_eq!(receive_close(&mut old).await, (4409, r#"{"error":"superseded"}"#.to_owned()));
    assert_eq!(ask(&mut new, r#"[2,[{"n":1},{"n":2}]]"#).await, json!({"ok": [2, 3], "dup": 1}));
    // Another process's claim is in the store alone.
    stack.engine().claim_publisher("s", "p").await.unwrap();
    new.send(Message::text(r#"[4,{"n":3}]"#)).await.unwrap();
    assert_eq!(receive_close(&mut new).await.0, 4409);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_stream_has_one_partition() {
    let (_folder, stack) = start().await;
    declare(&stack, "s", numbers()).await;
    let (code, reason) = receive_close(&mut connect(&stack, "/s?partition=east").await).await;
    assert!(code == 4400 && reason.contains("one partition"), "{code} {reason}");
}
