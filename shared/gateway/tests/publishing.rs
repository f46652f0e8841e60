//! Publishing as transcripts: what a client sends, what the store makes of it, what goes back and in which order.

use bytes::Bytes;
use tidewheel_gateway::{Close, Frame, Inbound, Outcome, Publisher, limits};

fn text(message: &str) -> Inbound {
    Inbound::Text(Bytes::copy_from_slice(message.as_bytes()))
}

fn landed(offsets: std::ops::Range<u64>) -> Outcome {
    Outcome::Landed { offsets: offsets.map(Some).collect(), duplicates: 0 }
}

fn replies(publisher: &mut Publisher) -> Vec<String> {
    let replies = publisher.replies().into_iter();
    replies.map(|reply| String::from_utf8(reply.to_vec()).unwrap()).collect()
}

fn rows(frames: &[Frame]) -> Vec<usize> {
    frames.iter().map(|frame| frame.rows.len()).collect()
}

fn plain() -> Publisher {
    Publisher::new("trades", false, 1 << 20)
}

fn ending(publisher: &Publisher) -> Option<(u16, &str)> {
    publisher.ending().map(|close: &Close| (close.code, close.reason.as_str()))
}

#[test]
fn every_message_has_its_answer_in_the_order_of_the_messages() {
    let mut p = plain();
    for message in [r#"{"a":1}"#, "no json", r#"[{"a":2},{"a":3}]"#, "[]", r#"[{"a":4}]"#] {
        p.on_message(text(message));
    }
    // A wrong message waits for the answer before it, and nobody waits for it.
    assert_eq!(replies(&mut p), [""; 0]);
    let frames = p.take();
    assert_eq!(rows(&frames), [1, 2, 1]);
    assert_eq!(frames[1].rows[1], r#"{"a":3}"#);
    p.on_outcomes(vec![landed(0..1), landed(1..3), landed(3..4)]);
    let replies = replies(&mut p);
    assert_eq!(replies[0], r#"{"ok":[1]}"#);
    assert!(replies[1].starts_with(r#"{"error":"bad_frame","detail":"the message is not JSON"#));
    assert_eq!(replies[2], r#"{"ok":[2,3]}"#);
    assert_eq!(replies[3], r#"{"error":"bad_frame","detail":"a list of rows may not be empty"}"#);
    assert_eq!(replies[4], r#"{"ok":[4]}"#);
    assert_eq!(replies.len(), 5);
}

#[test]
fn answers_have_the_words_of_the_protocol_and_no_others() {
    let mut p = Publisher::new("orders", true, 1 << 20);
    for seq in 1..=6 {
        assert_eq!(p.on_message(text(&format!("[{seq},{{}}]"))), 1);
    }
    assert_eq!(p.take().iter().map(|frame| frame.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    p.on_outcomes(vec![
        Outcome::Landed { offsets: vec![Some(4)], duplicates: 1 },
        Outcome::Landed { offsets: vec![None, Some(9)], duplicates: 1 },
        Outcome::Rejected { detail: "column `a`: it is \"missing\"".into() },
        Outcome::Gap { expected: 3, got: 4 },
        Outcome::Failed { detail: "the store is busy".into() },
        Outcome::Landed { offsets: vec![None], duplicates: 0 },
    ]);
    assert_eq!(
        replies(&mut p),
        [
            r#"{"ok":[5],"dup":1}"#,
            r#"{"ok":[null,10],"dup":1}"#,
            r#"{"error":"rejected","detail":"column `a`: it is \"missing\""}"#,
            r#"{"error":"gap","expected":3,"got":4}"#,
            r#"{"error":"commit_failed","detail":"the store is busy"}"#,
            r#"{"ok":[null]}"#,
        ]
    );
    assert_eq!(ending(&p), None);
}

#[test]
fn messages_gather_while_a_commit_is_under_way() {
    let mut p = plain();
    p.on_message(text(r#"{"a":1}"#));
    assert_eq!(rows(&p.take()), [1]);
    for n in 2..=40 {
        p.on_message(text(&format!(r#"{{"a":{n}}}"#)));
    }
    assert_eq!(rows(&p.take()), [0usize; 0]);
    p.on_outcomes(vec![landed(0..1)]);
    assert_eq!(replies(&mut p), [r#"{"ok":[1]}"#]);
    assert_eq!(p.take().len(), 39);
}

#[test]
fn sixty_four_messages_may_wait_for_their_answers() {
    let mut p = plain();
    for _ in 0..limits::MAX_IN_FLIGHT {
        assert!(p.reads());
        p.on_message(text("{}"));
    }
    assert!(!p.reads());
    let taken = p.take().len() as u64;
    assert_eq!(taken, 64);
    p.on_outcomes((0..taken).map(|n| landed(n..n + 1)).collect());
    assert!(!p.reads(), "an answer that was not fetched is owed");
    assert_eq!(replies(&mut p).len(), 64);
    assert!(p.reads());
}

#[test]
fn a_commit_takes_no_more_than_the_store_does() {
    let mut p = Publisher::new("s", false, limits::PUBLISHED_BYTES);
    let wide = format!(r#"{{"a":"{}"}}"#, "x".repeat(limits::COMMIT_BYTES / 2 - 100));
    for _ in 0..5 {
        p.on_message(text(&wide));
    }
    assert_eq!(p.take().len(), 2);
    p.on_outcomes(vec![landed(0..1), landed(1..2)]);
    assert_eq!(p.take().len(), 2);
}

#[test]
fn a_message_over_the_streams_limit_ends_the_connection_after_the_earlier_answers() {
    let mut p = Publisher::new("trades", false, 20);
    p.on_message(text(r#"{"a":1}"#));
    p.on_message(text(&format!(r#"{{"a":"{}"}}"#, "x".repeat(12))));
    p.on_message(text(&format!(r#"{{"a":"{}"}}"#, "x".repeat(13))));
    assert!(!p.reads());
    p.on_message(text(r#"{"a":2}"#));
    assert_eq!(p.take().len(), 2, "exactly the limit is taken, what comes after it is not read");
    assert_eq!(ending(&p), None);
    p.on_outcomes(vec![landed(0..1), landed(1..2)]);
    assert_eq!(replies(&mut p), [r#"{"ok":[1]}"#, r#"{"ok":[2]}"#]);
    let reason = r#"{"error":"too_big","size":21,"limit":20,"stream":"trades"}"#;
    assert_eq!(ending(&p), Some((1009, reason)));
}

#[test]
fn one_that_is_taken_over_is_answered_what_was_on_its_way_and_no_more() {
    let mut p = Publisher::new("orders", true, 1 << 20);
    p.on_message(text("[1,{}]"));
    p.on_message(text("[2,{}]"));
    assert_eq!(p.take().len(), 2);
    p.on_message(text("[3,{}]"));
    p.on_superseded();
    assert!(!p.reads());
    assert_eq!(ending(&p), None);
    p.on_outcomes(vec![landed(0..1), landed(1..2)]);
    assert_eq!(p.take(), []);
    assert_eq!(replies(&mut p), [r#"{"ok":[1]}"#, r#"{"ok":[2]}"#]);
    assert_eq!(ending(&p), Some((4409, r#"{"error":"superseded"}"#)));
}

#[test]
fn outcomes_that_end_a_connection_leave_everything_after_them_unanswered() {
    let superseded = r#"{"error":"superseded"}"#;
    let retired = r#"{"error":"stream_retired","at":7,"end_offset":42}"#;
    for (outcome, code, reason) in [
        (Outcome::Superseded, 4409, superseded),
        (Outcome::Retired { at_us: 7, end: 41 }, 4410, retired),
        // Neither `ok` nor `commit_failed` would be true for certain.
        (Outcome::Unknown, 1011, "stream unavailable"),
    ] {
        let mut p = Publisher::new("orders", true, 1 << 20);
        for message in ["[1,{}]", "[2,{}]", "bad", "[3,{}]"] {
            p.on_message(text(message));
        }
        p.take();
        p.on_message(text("[4,{}]"));
        p.on_outcomes(vec![landed(0..1), outcome, landed(1..2)]);
        assert_eq!(p.take(), []);
        assert_eq!(replies(&mut p), [r#"{"ok":[1]}"#]);
        assert_eq!(ending(&p), Some((code, reason)));
    }
}

#[test]
fn at_the_servers_end_what_is_on_its_way_is_answered() {
    let mut p = plain();
    p.on_message(text("bad"));
    p.on_message(text("{}"));
    p.take();
    p.on_message(text("{}"));
    p.on_end(Close::going_away());
    assert_eq!(replies(&mut p).len(), 1);
    assert_eq!(ending(&p), None);
    p.on_outcomes(vec![landed(0..1)]);
    assert_eq!(replies(&mut p), [r#"{"ok":[1]}"#]);
    assert_eq!(ending(&p).unwrap().0, 1001);
    // Nobody waits: at once.
    let mut p = plain();
    p.on_end(Close::going_away());
    assert_eq!(ending(&p).unwrap().0, 1001);
}

#[test]
fn json_that_comes_as_bytes_is_json() {
    let mut p = plain();
    p.on_message(Inbound::Binary(Bytes::from_static(b"{\"a\":1}")));
    p.on_message(Inbound::Binary(Bytes::from_static(b"\xff")));
    assert_eq!(rows(&p.take()), [1]);
    p.on_outcomes(vec![landed(6..7)]);
    let replies = replies(&mut p);
    assert_eq!(replies[0], r#"{"ok":[7]}"#);
    assert!(replies[1].contains("bad_frame"));
}
