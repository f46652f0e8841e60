//! A streamcast client on the managed gateway, within what is possible there.

use serde_json::json;

use crate::world::{Client, Kind, World, settle};

#[tokio::test(start_paused = true)]
async fn the_greeting_comes_first_then_every_row_in_a_frame_of_its_own() {
    let w = World::new(1);
    w.push(&[json!({"n": 0}), json!({"n": 1})]).await;
    w.connect("c", &[("stream", "s"), ("offset", "1")]).await.unwrap();
    assert!(w.sockets.frames("c").is_empty(), "nothing can be posted while it connects");
    w.drain().await;
    w.push(&[json!({"n": 2}), json!({"n": 3})]).await;
    w.drain().await;
    let frames = w.sockets.frames("c");
    assert_eq!((&frames[0]["replay"], &frames[0]["end_offset"]), (&json!([1, 3]), &json!(3)));
    let offsets: Vec<_> = frames[1..].iter().map(|f| f[0].as_u64().unwrap()).collect();
    assert_eq!(offsets, [1, 2, 3, 4]);
    assert_eq!(frames[4][2], json!({"n": 3}));
}

#[tokio::test(start_paused = true)]
async fn without_an_offset_only_what_comes_next_and_a_filter_holds() {
    let w = World::new(2);
    w.push(&[json!({"k": 1})]).await;
    w.connect("c", &[("stream", "s"), ("where", r#"{"k":1}"#)]).await.unwrap();
    // Before the greeting goes out there is more: it comes after it.
    w.push(&[json!({"k": 2}), json!({"k": 1})]).await;
    w.drain().await;
    let frames = w.sockets.frames("c");
    assert_eq!(frames[0]["replay"], json!(null));
    assert_eq!(frames[0]["end_offset"], 2);
    assert_eq!(frames[0]["where"], json!({"k": 1}));
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[1][0], 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_rows_can_be_followed() {
    let w = World::new(3);
    w.process().0.configure("s", Default::default()).await.unwrap();
    w.connect("c", &[("stream", "s"), ("offset", "0")]).await.unwrap();
    w.drain().await;
    assert_eq!(w.sockets.frames("c")[0]["replay"], json!([1, 1]));
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert_eq!(w.sockets.frames("c")[1][0], 1);
}

#[tokio::test(start_paused = true)]
async fn what_can_be_refused_is_refused_at_the_upgrade_by_name() {
    let w = World::new(4);
    w.push(&[json!(1)]).await;
    for (query, status, word) in [
        (vec![("stream", "none")], 404, "no_such_stream"),
        (vec![("stream", "s"), ("offset", "3")], 416, "\"end_offset\":2"),
        (vec![("stream", "s"), ("offset", "x")], 400, "offset"),
        (vec![("stream", "s"), ("Offset", "1")], 400, "Offset"),
        (vec![("stream", "-")], 400, "invalid stream name"),
        (vec![("stream", "s"), ("publish", "")], 400, "push over HTTP"),
        (vec![("token", "x")], 400, "token"),
    ] {
        let refused = w.connect("c", &query).await.unwrap_err();
        assert_eq!(refused.status, status, "{query:?}");
        assert!(refused.body.contains(word), "{query:?}: {}", refused.body);
        assert!(serde_json::from_str::<serde_json::Value>(&refused.body).is_ok());
    }
    assert!(w.items("w").is_empty(), "a refusal leaves nothing behind");
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_speaks_is_closed_and_no_word_is_sent_to_it() {
    let w = World::new(5);
    w.push(&[json!(1)]).await;
    w.connect("c", &[("stream", "s"), ("offset", "0")]).await.unwrap();
    w.drain().await;
    assert_eq!(w.say("c", json!([1, {"row": 1}])).await, None);
    assert!(!w.sockets.is_open("c"));
    assert!(w.items("w").is_empty(), "{:?}", w.items("w"));
}

#[tokio::test(start_paused = true)]
async fn a_row_that_no_message_holds_closes_it_after_the_rows_before() {
    let w = World::new(6);
    w.connect("c", &[("stream", "s")]).await.unwrap_err();
    w.push(&[json!(0)]).await;
    w.connect("c", &[("stream", "s"), ("offset", "0")]).await.unwrap();
    w.drain().await;
    w.push(&[json!(1), json!("x".repeat(130 * 1024)), json!(3)]).await;
    w.drain().await;
    assert_eq!(w.sockets.frames("c").len(), 3, "greeting, 0 and 1");
    assert!(!w.sockets.is_open("c"));
    assert!(w.items("w").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_long_replay_goes_on_in_the_next_invocation_without_a_seam() {
    let w = World::new(7);
    for n in 0..30 {
        w.push(&(0..100).map(|m| json!(n * 100 + m)).collect::<Vec<_>>()).await;
    }
    // 50 ms a post: a thousand fit one invocation.
    w.sockets.script(|_, _| crate::world::Act::Late(std::time::Duration::from_millis(50)));
    let mut client = Client::new("c", Kind::Streamcast, 0);
    client.connect(&w).await;
    let mut invocations = 0;
    while let Some(work) = w.take_asked() {
        w.process().1.work(&work, w.stop()).await.unwrap();
        invocations += 1;
    }
    assert!(invocations >= 3, "{invocations}");
    client.read(&w);
    assert_eq!(client.next, 3000);
    assert_eq!(client.connection(), "c-1", "it was never closed");
    assert_eq!(w.sockets.most_in_flight(), 1);
    settle(&w, &mut [client]).await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_is_forgotten_and_the_last_takes_the_cohort_along() {
    let w = World::new(8);
    w.push(&[json!(0)]).await;
    for name in ["a", "b"] {
        w.connect(name, &[("stream", "s")]).await.unwrap();
    }
    w.drain().await;
    assert_eq!(w.items("wp#").len(), 3, "two members and the cohort");
    w.disconnect("a").await;
    assert_eq!(w.items("wp#").len(), 2);
    w.push(&[json!(1)]).await;
    w.drain().await;
    assert_eq!(w.sockets.frames("b").len(), 2);
    w.disconnect("b").await;
    assert!(w.items("w").is_empty());
    w.disconnect("b").await;
    let waking = w.store.items().into_values().any(|item| item.get("asleep").is_some());
    assert!(!waking, "no push wakes anybody");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_stream_ends_its_followers() {
    let w = World::new(9);
    w.push(&[json!(0)]).await;
    w.connect("a", &[("stream", "s")]).await.unwrap();
    w.connect("n", &[]).await.unwrap();
    w.say("n", json!({"id": 7, "op": "subscribe", "stream": "s"})).await;
    w.drain().await;
    let (engine, _) = w.process();
    engine.delete_stream("s").await.unwrap();
    w.drain().await;
    assert!(!w.sockets.is_open("a"));
    assert!(w.sockets.is_open("n"), "a native client is told");
    let frames = w.sockets.frames("n");
    assert_eq!(frames.last().unwrap()["ended"]["code"], "no_such_stream");
    assert_eq!(frames.last().unwrap()["id"], 7);
    assert_eq!(w.items("wp#"), [] as [String; 0]);
    assert_eq!(w.items("r#"), [] as [String; 0]);
}
