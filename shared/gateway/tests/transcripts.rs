//! The protocol as transcripts: what a client asks, what the log holds, what goes over the wire.

use bytes::Bytes;
use serde_json::{Value, json};
use tidewheel_engine::{Extent, Record, Uuid};
use tidewheel_gateway::{Accepted, Close, Connection, Inbound, Log, Request, Run, Settings, Terms};

fn log(floor: u64, tail: u64) -> Log {
    Log { stream_id: Uuid::from_bytes([9; 16]), extent: Extent { floor, tail } }
}

fn connect_with(url: &str, log: &Log, settings: &Settings) -> Result<Accepted, Close> {
    let (path, query) = url.split_once('?').map_or((url, None), |(p, q)| (p, Some(q)));
    let Request::Subscribe(request) = Request::parse(path, query)? else { panic!("{url}") };
    Connection::on_connect(request, log, &Terms::undeclared(settings))
}

fn connect(url: &str, log: &Log) -> Result<(Connection, Value), Close> {
    let accepted = connect_with(url, log, &Settings::default())?;
    Ok((accepted.connection, serde_json::from_slice(&accepted.greeting).unwrap()))
}

fn run(offsets: std::ops::Range<u64>) -> Run {
    let records: Vec<Record> = offsets
        .map(|offset| Record {
            offset,
            time_us: 1_000 + offset as i64,
            id: Uuid::from_bytes([0; 16]),
            transaction_id: String::new(),
            key: None,
            headers: None,
            payload: Bytes::from(format!("{{\"n\":{offset},\"even\":{}}}", offset % 2 == 0)),
        })
        .collect();
    Run::encode(&records)
}

fn frames(connection: &mut Connection, run: &Run) -> Vec<String> {
    let frames = connection.on_rows(run).unwrap();
    frames.texts().map(|frame| String::from_utf8(frame.to_vec()).unwrap()).collect()
}

fn offsets(connection: &mut Connection, run: &Run) -> Vec<u64> {
    let frame = |frame: String| serde_json::from_str::<(u64, i64, Value)>(&frame).unwrap().0;
    frames(connection, run).into_iter().map(frame).collect()
}

#[test]
fn the_greeting_has_its_fields_in_order() {
    let accepted =
        connect_with("/trades?offset=3&where={\"n\": 3}", &log(0, 5), &Settings::default());
    assert_eq!(
        std::str::from_utf8(&accepted.unwrap().greeting).unwrap(),
        concat!(
            r#"{"streamcast":4,"stream":"trades","end_offset":6,"replay":[3,6],"durable":true,"#,
            r#""group_commit":true,"schema":null,"metadata":null,"metadata_hint":null,"#,
            r#""stream_id":"09090909-0909-0909-0909-090909090909","where":{"n": 3}}"#
        )
    );
}

#[test]
fn replay_from_the_beginning_then_live_without_a_seam() {
    let (mut c, greeting) = connect("/flights?offset=0", &log(0, 3)).unwrap();
    assert_eq!((&greeting["replay"], &greeting["end_offset"]), (&json!([1, 4]), &json!(4)));
    assert_eq!(c.position(), 0);
    assert_eq!(
        frames(&mut c, &run(0..2)),
        [r#"[1,1000,{"n":0,"even":true}]"#, r#"[2,1001,{"n":1,"even":false}]"#]
    );
    assert_eq!(c.position(), 2);
    // The next run was encoded for somebody else, and goes on past what the greeting promised.
    assert_eq!(offsets(&mut c, &run(1..5)), [3, 4, 5]);
    assert_eq!(c.position(), 5);
    assert!(c.on_tail(6).is_none());
    assert_eq!(offsets(&mut c, &run(5..6)), [6]);
}

#[test]
fn without_an_offset_only_what_comes_next() {
    let (mut c, greeting) = connect("/flights", &log(0, 3)).unwrap();
    assert_eq!((&greeting["replay"], &greeting["end_offset"]), (&json!(null), &json!(4)));
    assert_eq!(offsets(&mut c, &run(0..3)), [0u64; 0]);
    assert_eq!(offsets(&mut c, &run(3..4)), [4]);
}

#[test]
fn at_the_end_and_on_an_empty_log_there_is_nothing_to_replay() {
    let (_, greeting) = connect("/flights?offset=4", &log(0, 3)).unwrap();
    assert_eq!(greeting["replay"], json!([4, 4]));
    let (mut c, greeting) = connect("/flights?offset=0&partition=none", &log(0, 0)).unwrap();
    assert_eq!(greeting["replay"], json!([1, 1]));
    assert_eq!(offsets(&mut c, &run(0..1)), [1]);
}

#[test]
fn offsets_that_cannot_be_served_are_refused_with_the_numbers() {
    let refuse = |url: &str, log: Log, max_replay| {
        let settings = Settings { max_replay, ..Settings::default() };
        let close = connect_with(url, &log, &settings).unwrap_err();
        assert_eq!(close.code, 4416);
        serde_json::from_str::<Value>(&close.reason).unwrap()
    };
    let reason = |why: &str, fields: Value| {
        let mut reason = json!({"error": "not_replayable", "why": why});
        reason.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        reason
    };
    assert_eq!(
        refuse("/s?offset=5", log(0, 3), None),
        reason("ahead", json!({"offset": 5, "end_offset": 4}))
    );
    assert_eq!(
        refuse("/s?offset=2", log(4, 9), None),
        reason("evicted", json!({"offset": 2, "earliest": 5}))
    );
    assert_eq!(
        refuse("/s?offset=0", log(0, 30), Some(10)),
        reason("too_old", json!({"offset": 1, "behind": 30, "max_replay": 10}))
    );
    let ten = Settings { max_replay: Some(10), ..Settings::default() };
    assert!(connect_with("/s?offset=21", &log(0, 30), &ten).is_ok(), "10 behind is not too old");
    assert!(connect_with("/s?offset=0", &log(4, 9), &ten).is_ok(), "the earliest is the floor");
}

#[test]
fn a_filter_holds_for_every_row_and_the_position_moves_past_the_others() {
    let (mut c, _) = connect("/s?offset=0&where=%7B%22even%22%3Atrue%7D", &log(0, 6)).unwrap();
    assert_eq!(offsets(&mut c, &run(0..6)), [1, 3, 5]);
    assert_eq!(c.position(), 6);
    // Nothing of it matches: the subscription is not behind for that.
    assert_eq!(offsets(&mut c, &run(5..6)), [0u64; 0]);
}

#[test]
fn rows_deleted_under_a_reader_end_it_and_never_leave_a_hole() {
    // Before the first row: evicted, as it would have been a moment later.
    let (mut c, _) = connect("/s?offset=3", &log(0, 9)).unwrap();
    let close = c.on_rows(&run(5..9)).map(|_| ()).unwrap_err();
    assert_eq!(close.code, 4416);
    assert!(
        close.reason.contains(r#""why":"evicted","offset":3,"earliest":6"#),
        "{}",
        close.reason
    );
    // Whoever asked for the earliest gets what is the earliest now.
    let (mut c, _) = connect("/s?offset=0", &log(0, 9)).unwrap();
    assert_eq!(offsets(&mut c, &run(5..7)), [6, 7]);
    // In the middle it was slower than retention, and resumes after what it had.
    assert_eq!(c.on_rows(&run(8..9)).map(|_| ()).unwrap_err().code, 4429);
}

#[test]
fn a_reader_that_stands_still_is_closed_after_a_backlog_of_new_rows() {
    let settings = Settings { max_backlog: 10, ..Settings::default() };
    let accepted = connect_with("/s", &log(0, 100), &settings).unwrap();
    let mut c = accepted.connection;
    assert!(c.on_tail(101).is_none());
    assert!(c.on_tail(111).is_none(), "exactly a backlog");
    let close = c.on_tail(112).unwrap();
    assert_eq!((close.code, close.reason.as_str()), (4429, r#"{"error":"too_slow","backlog":10}"#));
}

#[test]
fn a_burst_is_forgiven_and_a_replay_is_paced_by_the_socket() {
    let settings = Settings { max_backlog: 10, ..Settings::default() };
    // A burst of a thousand rows at once, while all that it had was sent.
    let mut c = connect_with("/s", &log(0, 100), &settings).unwrap().connection;
    assert!(c.on_tail(1100).is_none());
    assert_eq!(frames(&mut c, &run(100..600)).len(), 500);
    assert!(c.on_tail(1200).is_none());
    assert_eq!(frames(&mut c, &run(600..1200)).len(), 600);
    // It caught up: the measure begins anew.
    assert!(c.on_tail(1210).is_none());
    assert!(c.on_tail(1221).is_some());
    // A replay of 1000 rows, during which another 900 come.
    let mut c = connect_with("/s?offset=1", &log(0, 1000), &settings).unwrap().connection;
    assert!(c.on_tail(1900).is_none());
    // It will never end if the log grows faster than it is read.
    assert!(c.on_tail(2001).is_some());
}

#[test]
fn one_that_is_always_a_little_slower_is_closed_about_a_backlog_behind() {
    let settings = Settings { max_backlog: 100, ..Settings::default() };
    let mut c = connect_with("/s", &log(0, 0), &settings).unwrap().connection;
    // Ten rows come for every nine that it takes.
    for step in 1..1000 {
        if c.on_tail(step * 10).is_some() {
            let behind = step * 10 - c.position();
            assert!((90..=250).contains(&behind), "{behind}");
            return;
        }
        let from = c.position();
        let _ = frames(&mut c, &run(from..from + 9)).len();
    }
    panic!("never closed, at {}", c.position());
}

#[test]
fn one_that_keeps_up_is_never_closed() {
    let settings = Settings { max_backlog: 1, ..Settings::default() };
    let mut c = connect_with("/s", &log(0, 0), &settings).unwrap().connection;
    for tail in 1..2000 {
        assert!(c.on_tail(tail * 7).is_none(), "{tail}");
        let from = c.position();
        let _ = frames(&mut c, &run(from..tail * 7)).len();
    }
}

#[test]
fn a_subscriber_that_speaks_is_told_that_it_cannot() {
    let (mut c, _) = connect("/s", &log(0, 0)).unwrap();
    let messages =
        [Inbound::Text(Bytes::from_static(b"{}")), Inbound::Binary(Bytes::from_static(b"x"))];
    for message in messages {
        let close = c.on_message(&message);
        assert_eq!(close.code, 4400, "{close:?}");
    }
    assert_eq!(c.on_shutdown().code, 1001);
}
