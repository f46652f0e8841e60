//! Native clients: requests, replies, rows.

use serde_json::{Value, json};
use tidewheel_gateway::limits;

use crate::world::World;

async fn native(seed: u64) -> World {
    let w = World::new(seed);
    w.push(&[json!({"n": 0}), json!({"n": 1})]).await;
    w.connect("c", &[]).await.unwrap();
    w
}

fn rows(frame: &Value) -> Vec<u64> {
    frame["rows"].as_array().unwrap().iter().map(|row| row[0].as_u64().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_subscription_is_answered_before_its_rows_and_rows_travel_together() {
    let w = native(1).await;
    let subscribe = json!({"id": "q", "op": "subscribe", "stream": "s", "from": "earliest"});
    assert_eq!(w.say("c", subscribe.clone()).await, None);
    w.drain().await;
    w.push(&[json!({"n": 2}), json!({"n": 3})]).await;
    w.drain().await;
    let frames = w.sockets.frames("c");
    assert_eq!(frames.len(), 3);
    assert_eq!(frames[0]["id"], "q");
    let subscribed = &frames[0]["subscribed"];
    assert_eq!(
        (&subscribed["partition"], &subscribed["gapless"]),
        (&json!("Default"), &json!(true))
    );
    assert_eq!(subscribed["position"], frames[1]["from"]);
    assert_eq!((rows(&frames[1]), rows(&frames[2])), (vec![0, 1], vec![2, 3]));
    assert_eq!(frames[2]["from"], frames[1]["next"]);
    assert_eq!(frames[2]["rows"][1][2], json!({"n": 3}));
    let again = w.say("c", subscribe).await.unwrap();
    assert_eq!((&again["id"], &again["error"]["code"]), (&json!("q"), &json!("in_use")));
}

#[tokio::test(start_paused = true)]
async fn a_resumed_subscription_says_whether_it_is_gapless() {
    let w = native(2).await;
    w.say("c", json!({"id": 1, "op": "subscribe", "stream": "s", "from": {"offset": 1}})).await;
    w.drain().await;
    let last = w.sockets.frames("c").last().unwrap()["next"].clone();
    w.disconnect("c").await;
    w.push(&[json!({"n": 2})]).await;
    w.connect("d", &[]).await.unwrap();
    w.say("d", json!({"id": 1, "op": "subscribe", "stream": "s", "from": {"position": last}}))
        .await;
    w.drain().await;
    let frames = w.sockets.frames("d");
    assert_eq!(frames[0]["subscribed"]["gapless"], true);
    assert_eq!(rows(&frames[1]), [2]);
    // The stream is deleted and comes back: the old position is of another log.
    let (engine, _) = w.process();
    engine.delete_stream("s").await.unwrap();
    w.drain().await;
    w.push(&[json!("new")]).await;
    w.say("d", json!({"id": 2, "op": "subscribe", "stream": "s", "from": {"position": last}}))
        .await;
    w.drain().await;
    let frames = w.sockets.frames("d");
    let at = frames.iter().position(|f| f["id"] == 2).unwrap();
    assert_eq!(frames[at]["subscribed"]["gapless"], false);
    assert_eq!(rows(&frames[at + 1]), [0]);
}

#[tokio::test(start_paused = true)]
async fn several_subscriptions_of_one_connection_end_one_by_one() {
    let w = native(3).await;
    for (id, filter) in [("a", json!({"n": [2, 4]})), ("b", json!({}))] {
        let request =
            json!({"id": id, "op": "subscribe", "stream": "s", "where": filter, "from": "live"});
        assert_eq!(w.say("c", request).await, None);
    }
    w.drain().await;
    w.push(&[json!({"n": 2}), json!({"n": 3})]).await;
    w.drain().await;
    let of = |id: &str| -> Vec<u64> {
        let frames = w.sockets.frames("c");
        frames.iter().filter(|f| f["id"] == id && f.get("rows").is_some()).flat_map(rows).collect()
    };
    assert_eq!((of("a"), of("b")), (vec![2], vec![2, 3]));
    let unsubscribe = json!({"id": 9, "op": "unsubscribe", "subscription": "a"});
    assert_eq!(w.say("c", unsubscribe.clone()).await, Some(json!({"id": 9, "unsubscribed": true})));
    assert_eq!(w.say("c", unsubscribe).await, Some(json!({"id": 9, "unsubscribed": false})));
    w.push(&[json!({"n": 4})]).await;
    w.drain().await;
    assert_eq!((of("a"), of("b")), (vec![2], vec![2, 3, 4]));
    w.say("c", json!({"id": 10, "op": "unsubscribe", "subscription": "b"})).await;
    assert_eq!(w.items("wp#"), [] as [String; 0], "nobody follows any more");
    assert_eq!(w.items("wc#").len(), 1, "the connection is there still");
}

#[tokio::test(start_paused = true)]
async fn a_publish_answers_offsets_and_a_repeat_the_same_ones() {
    let w = native(4).await;
    let publish = json!({"id": "p", "op": "publish", "stream": "s", "rows": [{"n": 2}, [3]],
        "transaction_ids": ["x", "y"]});
    let first = w.say("c", publish.clone()).await.unwrap();
    assert_eq!(
        first,
        json!({"id": "p", "published": [
            {"offset": 2, "duplicate": false}, {"offset": 3, "duplicate": false}]})
    );
    let second = w.say("c", publish).await.unwrap();
    assert_eq!(second["published"][1], json!({"offset": 3, "duplicate": true}));
    let (engine, _) = w.process();
    let read = engine.read(&w.partition().await, 2, 10, usize::MAX).await.unwrap();
    assert_eq!(read.records[1].payload, "[3]");
    assert_eq!(read.records.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn rows_gather_for_as_long_as_the_client_lets_them() {
    let w = native(5).await;
    w.say("c", json!({"id": 1, "op": "subscribe", "stream": "s", "window_ms": 200})).await;
    w.drain().await;
    w.push(&[json!(2)]).await;
    let delivery = async {
        let work = w.take_asked().unwrap();
        w.process().1.work(&work, w.stop()).await.unwrap();
    };
    let more = async {
        w.env.sleep(std::time::Duration::from_millis(100)).await;
        w.push(&[json!(3)]).await;
    };
    tokio::join!(delivery, more);
    let frames = w.sockets.frames("c");
    assert_eq!(frames.len(), 2);
    assert_eq!(rows(&frames[1]), [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_refused_in_band_with_the_id_and_the_limit() {
    let w = native(6).await;
    let many: Vec<Value> = (0..limits::PUBLISH_ROWS + 1).map(|n| json!(n)).collect();
    for (request, code) in [
        (json!({"id": 1, "op": "subscribe", "stream": "none"}), "no_such_stream"),
        (json!({"id": 1, "op": "subscribe"}), "bad_request"),
        (json!({"id": 1, "op": "subscribe", "stream": "s", "offset": 1}), "bad_request"),
        (json!({"id": 1, "op": "subscribe", "stream": "s", "from": {"offset": 3}}), "ahead"),
        (
            json!({"id": 1, "op": "subscribe", "stream": "s", "from": {"position": "3"}}),
            "bad_request",
        ),
        (json!({"id": 1, "op": "subscribe", "stream": "s", "where": []}), "bad_request"),
        (json!({"id": 1, "op": "subscribe", "stream": "s", "window_ms": 60_000}), "bad_request"),
        (json!({"id": 1, "op": "subscribe", "stream": "s", "partition": ""}), "bad_request"),
        (json!({"id": 1, "op": "publish", "stream": "s", "rows": []}), "bad_request"),
        (json!({"id": 1, "op": "publish", "stream": "s", "rows": many}), "too_large"),
        (json!({"id": 1, "op": "publish", "stream": "", "rows": [1]}), "bad_request"),
        (
            json!({"id": 1, "op": "publish", "stream": "s", "rows": [1], "transaction_ids": []}),
            "bad_request",
        ),
        (json!({"id": 1, "op": "sing"}), "bad_request"),
    ] {
        let reply = w.say("c", request.clone()).await.unwrap();
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(1), &json!(code)), "{request}");
    }
    let reply = w.say("c", json!({"id": 1, "op": "publish", "stream": "s", "rows": many})).await;
    assert_eq!(reply.unwrap()["error"]["limit"], limits::PUBLISH_ROWS);
    let reply = w.say("c", json!({"id": null, "op": "ping"})).await.unwrap();
    assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(null), &json!("bad_request")));
    assert_eq!(
        w.say("c", json!({"id": "x", "op": "ping"})).await,
        Some(json!({"id": "x", "pong": true}))
    );
    let reply = w.say("c", json!({"n": 1})).await.unwrap();
    assert_eq!(reply["error"]["code"], "bad_request");
    let stranger = json!({"id": 1, "op": "subscribe", "stream": "s"});
    assert_eq!(w.say("stranger", stranger).await.unwrap()["error"]["code"], "no_connection");
    assert_eq!(w.tail().await, 2, "nothing was stored");
    assert!(w.take_asked().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_connection_has_so_many_subscriptions_and_no_more() {
    let w = native(7).await;
    for id in 0..limits::SUBSCRIPTIONS {
        assert_eq!(w.say("c", json!({"id": id, "op": "subscribe", "stream": "s"})).await, None);
    }
    let reply = w.say("c", json!({"id": "x", "op": "subscribe", "stream": "s"})).await.unwrap();
    assert_eq!(reply["error"]["code"], "too_many");
    assert_eq!(reply["error"]["limit"], limits::SUBSCRIPTIONS);
    w.drain().await;
    w.push(&[json!(2)]).await;
    w.drain().await;
    let frames = w.sockets.frames("c");
    assert_eq!(frames.iter().filter(|f| f.get("rows").is_some()).count(), limits::SUBSCRIPTIONS);
    w.disconnect("c").await;
    assert_eq!(w.items("w"), [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_no_message_holds_is_named_and_the_subscription_goes_on() {
    let w = native(8).await;
    w.say("c", json!({"id": 1, "op": "subscribe", "stream": "s"})).await;
    w.drain().await;
    w.push(&[json!("x".repeat(140 * 1024)), json!(3)]).await;
    w.drain().await;
    let frames = w.sockets.frames("c");
    assert_eq!(frames[1]["too_large"]["offset"], 2);
    assert_eq!(frames[1]["too_large"]["bytes"], 140 * 1024 + 2);
    assert_eq!(rows(&frames[2]), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_looked_into_gets_a_word_that_every_publisher_knows() {
    let w = native(9).await;
    let plan =
        tidewheel_store::faulty::Plan { refuse_read: 1.0, ..tidewheel_store::faulty::Plan::none() };
    let (_, live) = w.faulty(plan);
    let reply = live.message("c", r#"[1,{"n":1}]"#).await.unwrap();
    assert!(reply.starts_with(r#"{"detail":"#) || reply.contains("commit_failed"), "{reply}");
    let reply = live.message("c", r#"{"id":4,"op":"subscribe","stream":"s"}"#).await.unwrap();
    assert!(reply.starts_with(r#"{"id":4,"error":{"code":"unavailable""#), "{reply}");
}
