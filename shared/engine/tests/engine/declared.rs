//! Declared streams: what a row becomes, what is refused, and how a schema changes. A name that ends with
//! `streamcast_` and a number is that scenario of the contract, as far as the engine decides it.

use std::sync::Arc;

use bytes::Bytes;
use tidewheel_engine::*;
use tidewheel_schema::Schema;
use tidewheel_store::{
    Faulty, Store,
    faulty::{Crash, Plan},
};

use crate::fixture::*;

pub(crate) const NUMBERS: &str =
    r#"{"properties":{"n":{"type":"integer"},"s":{"type":["string","null"]}},"required":["n"]}"#;

pub(crate) fn schema(text: &str) -> Option<Arc<Schema>> {
    Some(Arc::new(Schema::compile(text).unwrap()))
}

pub(crate) fn declaration(text: &str) -> Declaration {
    Declaration { schema: schema(text), exactly_once: true, ..Declaration::default() }
}

pub(crate) fn frame(rows: &[&str]) -> Frame {
    let rows = rows.iter().map(|r| Bytes::copy_from_slice(r.as_bytes())).collect();
    Frame { rows, ..Frame::default() }
}

pub(crate) fn claimed(claim: &Claim, seq: u64, rows: &[&str]) -> Frame {
    Frame { claim: Some(claim.clone()), seq, ..frame(rows) }
}

pub(crate) async fn publish(engine: &Engine, frame: Frame) -> Result<Landed, PublishError> {
    engine.publish("s", vec![frame]).await.remove(0)
}

pub(crate) fn offsets(landed: &Result<Landed, PublishError>) -> Vec<Option<u64>> {
    landed.as_ref().unwrap().offsets.clone()
}

pub(crate) async fn log(f: &Fixture) -> Vec<String> {
    f.payloads("s", DEFAULT_PARTITION).await
}

#[tokio::test(start_paused = true)]
async fn a_declaration_is_made_once_and_its_settings_may_change() {
    let f = Fixture::new();
    let first = f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    assert_eq!((first.revision, first.generations.len(), &*first.generations[0].name), (1, 1, "s"));
    let again = NUMBERS.replace("integer\"", "integer\",\"format\":\"int64\"");
    let same = f.restart().declare("s", declaration(&again)).await.unwrap();
    assert_eq!((same.stream, same.revision), (first.stream, 1), "written otherwise, and the same");
    let aged = Declaration { max_age_us: Some(7), ..declaration(NUMBERS) };
    assert_eq!(f.engine.declare("s", aged.clone()).await.unwrap().revision, 2);
    let known = f.restart().declared("s").await.unwrap().unwrap();
    assert_eq!(known.declaration, aged);
    for (other, word) in [
        (
            declaration(&NUMBERS.replace("integer", "number")),
            "column `n` is of type int64, not double",
        ),
        (declaration(&NUMBERS.replace("\"s\"", "\"t\"")), "column `s` is missing"),
        (Declaration { sort_by: vec!["n".into()], ..declaration(NUMBERS) }, "sorted by"),
        (Declaration { log: false, exactly_once: false, ..declaration(NUMBERS) }, "it has a log"),
        (Declaration { schema: None, ..declaration(NUMBERS) }, "it has declared a schema"),
    ] {
        let error = f.engine.declare("s", other).await.unwrap_err();
        assert!(matches!(error, Error::Differs { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    f.push("p", &["1"]).await;
    f.engine.push(vec![item("plain", "p", "1")]).await;
    let late = f.restart().declare("plain", declaration(NUMBERS)).await;
    assert!(matches!(late, Err(Error::Declare { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_configured_may_still_be_declared_and_a_declared_one_has_one_partition() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({"leaseTime": 7})).await;
    // Another process believes that it has declared nothing.
    let stale = f.restart();
    assert!(stale.declared("s").await.unwrap().is_none());
    let declared = f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let pushed = stale.push(vec![item("s", "other", "{}")]).await;
    assert!(matches!(&pushed[0], Pushed::Refused(Error::OnePartition { .. })), "{pushed:?}");
    let stale = f.restart();
    let pushed = stale.push(vec![item("s", "", r#"{"n":"x"}"#)]).await;
    assert!(matches!(&pushed[0], Pushed::Refused(Error::Row { .. })), "{pushed:?}");
    let pushed = stale.push(vec![item("s", "", r#"{ "s":"x", "n":1}"#)]).await;
    assert_eq!(offset(&pushed[0]), 0);
    assert_eq!(log(&f).await, [r#"{"n":1,"s":"x"}"#]);
    assert!(f.engine.ensure_partition("s", "other").await.is_err());
    assert_eq!(f.engine.partitions("s", None, 10).await.unwrap()[0].id, declared.partition());
    assert_eq!(f.engine.stream("s").await.unwrap().unwrap().options.lease_time, 7);
}

/// The same value live, replayed and in the table: each row is put into its columns' types once, when it comes in.
#[tokio::test(start_paused = true)]
async fn a_row_is_one_text_from_then_on_streamcast_5() {
    let f = Fixture::new();
    let text = r#"{"properties":{"d":{"type":"number"},"f":{"type":"number","format":"float"},
        "st":{"type":["object","null"],"properties":{"x":{"type":"integer"},"y":{"type":["string","null"]}},"required":["x"]}},
        "required":["d","f"]}"#;
    f.engine.declare("s", declaration(text)).await.unwrap();
    let row = r#"{"f": 1.1, "st":{"y":null, "x":1},"d":2}"#;
    let canonical = r#"{"d":2.0,"f":1.100000023841858,"st":{"x":1,"y":null}}"#;
    publish(&f.engine, frame(&[row])).await.unwrap();
    f.engine.push(vec![item("s", "", r#"{"d":2,"f":0,"st":{"x":1}}"#)]).await;
    let ops = vec![TransactionOp::Push(vec![item("s", "", r#"{"f":0,"d":-1}"#)])];
    f.engine.transact(ops, Vec::new()).await.unwrap().unwrap();
    let (second, third) =
        (canonical.replace("1.100000023841858", "0.0"), r#"{"d":-1.0,"f":0.0,"st":null}"#);
    assert_eq!(log(&f).await, [canonical, &second, third]);
    let ops = vec![TransactionOp::Push(vec![item("s", "", r#"{"f":0}"#)])];
    let refused = f.engine.transact(ops, Vec::new()).await.unwrap_err();
    assert!(refused.to_string().contains("column `d`"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn one_bad_row_refuses_its_frame_and_no_other_streamcast_6() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let landed = f
        .engine
        .publish(
            "s",
            vec![
                frame(&[r#"{"n":1}"#]),
                frame(&[r#"{"n":2}"#, r#"{"n":true}"#, r#"{"n":3}"#]),
                frame(&[r#"{"n":4}"#]),
            ],
        )
        .await;
    assert_eq!((offsets(&landed[0]), offsets(&landed[2])), (vec![Some(0)], vec![Some(1)]));
    let Err(PublishError::Rejected { detail }) = &landed[1] else { panic!("{landed:?}") };
    assert!(detail.contains("row 1") && detail.contains("column `n`"), "{detail}");
    let items = [r#"{"n":5}"#, r#"{"n":"x"}"#].map(|row| item("s", "", row));
    let pushed = f.engine.push(items.to_vec()).await;
    assert!(pushed.iter().all(|p| matches!(p, Pushed::Refused(Error::Row { row: 1, .. }))));
    assert_eq!(log(&f).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_no_column_holds_is_rejected_by_its_name_streamcast_7_8_9() {
    let f = Fixture::new();
    let text = r#"{"properties":{"n":{"type":["integer","null"]},"d":{"type":["number","null"]},
        "m":{"type":["object","null"],"additionalProperties":{"type":"integer"}},
        "st":{"type":["object","null"],"properties":{"x":{"type":"integer"}},"required":["x"]}}}"#;
    f.engine.declare("s", declaration(text)).await.unwrap();
    for (row, word) in [
        (r#"{"n":9223372036854775808}"#, "`n`"),
        (r#"{"d":NaN}"#, "JSON"),
        (r#"{"d":1e400}"#, "`d`"),
        (r#"{"d":9007199254740993}"#, "`d`"),
        (r#"{"streamcast_ts":1}"#, "`streamcast_ts`"),
        (r#"{"litelink_offset":1}"#, "`litelink_offset`"),
        (r#"{"m":[["k",1]]}"#, "`m`"),
        (r#"{"m":{"k":null}}"#, "`m[\"k\"]`"),
        (r#"{"st":{"x":1,"z":2}}"#, "`st.z`"),
    ] {
        match publish(&f.engine, frame(&[row])).await {
            Err(PublishError::Rejected { detail }) => assert!(detail.contains(word), "{detail}"),
            other => panic!("{row}: {other:?}"),
        }
    }
    assert_eq!(offsets(&publish(&f.engine, frame(&[r#"{"n":1}"#])).await), [Some(0)]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_log_is_heard_and_not_stored() {
    let f = Fixture::new();
    let relay = Declaration { log: false, exactly_once: false, ..declaration(NUMBERS) };
    let declared = f.engine.declare("s", relay).await.unwrap();
    let mut listener = f.engine.listen(&declared.stream);
    let landed = publish(&f.engine, frame(&[r#"{"s":"é","n":1}"#, r#"{"n":2}"#])).await;
    assert_eq!(offsets(&landed), [None, None]);
    let heard = listener.recv().await.unwrap();
    assert_eq!(*heard.rows, [r#"{"n":1,"s":"é"}"#, r#"{"n":2,"s":null}"#].map(Bytes::from));
    assert_eq!(heard.time_us, landed.unwrap().time_us);
    assert!(matches!(publish(&f.engine, frame(&["{}"])).await, Err(PublishError::Rejected { .. })));
    let pushed = f.engine.push(vec![item("s", "", r#"{"n":1}"#)]).await;
    assert!(matches!(&pushed[0], Pushed::Refused(Error::NoLog(_))), "{pushed:?}");
    assert!(f.engine.partitions("s", None, 10).await.unwrap().is_empty());
    for _ in 0..=limits::RELAY_FRAMES {
        publish(&f.engine, frame(&[r#"{"n":3}"#])).await.unwrap();
    }
    assert!(listener.recv().await.is_err(), "a slow listener is told that it has missed some");
    f.engine
        .migrate("s", schema(r#"{"properties":{"k":{"type":"string"}},"required":["k"]}"#), vec![])
        .await
        .unwrap();
    publish(&f.engine, frame(&[r#"{"k":"x"}"#])).await.unwrap();
    f.engine.retire("s").await.unwrap();
    assert!(matches!(
        publish(&f.engine, frame(&[r#"{"k":"x"}"#])).await,
        Err(PublishError::Retired { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn a_schema_changes_at_exactly_the_tail_streamcast_22() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    publish(&f.engine, claimed(&claim, 1, &[r#"{"n":1}"#, r#"{"n":2}"#])).await.unwrap();
    // Another process still knows the old schema, and its rows are checked against it.
    let stale = f.restart();
    assert_eq!(offsets(&publish(&stale, frame(&[r#"{"n":3,"s":"x"}"#])).await), [Some(2)]);
    let next = r#"{"properties":{"n":{"type":"integer"},"k":{"type":["string","null"]}},"required":["n"]}"#;
    let migrated = f.engine.migrate("s", schema(next), vec!["k".into()]).await.unwrap();
    let [old, new] = &migrated.generations[..] else { panic!("{migrated:?}") };
    assert_eq!((old.end, new.start, new.end, &*new.name), (Some(3), 3, None, "s-v2"));
    assert!(old.end_us.is_some() && old.end_us == new.start_us);
    let refused = publish(&stale, frame(&[r#"{"n":4,"s":"x"}"#])).await;
    assert!(matches!(refused, Err(PublishError::Rejected { .. })), "{refused:?}");
    assert_eq!(offsets(&publish(&stale, frame(&[r#"{"n":4}"#])).await), [Some(3)]);
    // The mark is carried over the seam.
    let landed = publish(&f.engine, claimed(&claim, 2, &[r#"{"n":2}"#, r#"{"n":5}"#])).await;
    assert_eq!((offsets(&landed), landed.unwrap().duplicates), (vec![Some(1), Some(4)], 1));
    assert_eq!(
        log(&f).await[2..],
        [r#"{"n":3,"s":"x"}"#, r#"{"n":4,"k":null}"#, r#"{"n":5,"k":null}"#]
    );
    assert_eq!(
        f.restart().migrate("s", schema(next), vec!["k".into()]).await.unwrap().revision,
        2,
        "no change"
    );
    for other in [
        next.replace("integer", "number"),
        next.replace("\"k\":{\"type\":[\"string\"", "\"s\":{\"type\":[\"integer\""),
    ] {
        let refused = f.engine.migrate("s", schema(&other), vec![]).await;
        assert!(matches!(refused, Err(Error::Migrate { .. })), "{refused:?}");
    }
    let back =
        NUMBERS.replace(r#"["string","null"]"#, r#""string""#).replace(r#"["n"]"#, r#"["n","s"]"#);
    let third = f.engine.migrate("s", schema(&back), vec![]).await.unwrap();
    assert_eq!(
        (third.generations.len(), third.revision),
        (3, 3),
        "a column comes back as it was, required now"
    );
}

#[tokio::test(start_paused = true)]
async fn a_retired_stream_is_read_and_goes_on_at_its_end_streamcast_23() {
    let f = Fixture::new();
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    let stale = f.restart();
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    publish(&f.engine, claimed(&claim, 1, &[r#"{"n":1}"#])).await.unwrap();
    stale.declared("s").await.unwrap();
    let retired = f.engine.retire("s").await.unwrap().retired.unwrap();
    assert_eq!(retired.end, 1);
    assert_eq!(f.restart().retire("s").await.unwrap().retired, Some(retired), "once");
    for engine in [&stale, &f.engine] {
        let refused = publish(engine, frame(&[r#"{"n":2}"#])).await;
        assert_eq!(refused, Err(PublishError::Retired { at_us: retired.at_us, end: 1 }));
        assert!(matches!(
            engine.claim_publisher("s", "p").await,
            Err(Error::Retired { end: 1, .. })
        ));
        let pushed = engine.push(vec![item("s", "", r#"{"n":2}"#)]).await;
        assert!(matches!(&pushed[0], Pushed::Refused(Error::Retired { .. })), "{pushed:?}");
    }
    assert_eq!(log(&f).await.len(), 1, "what it has stays");
    let revived = f.engine.revive("s").await.unwrap();
    assert_eq!((revived.retired, revived.generations[1].start), (None, 1));
    assert_eq!(revived.generations[0].end, Some(1));
    let old = publish(&stale, claimed(&claim, 2, &[r#"{"n":2}"#])).await;
    assert_eq!(old, Err(PublishError::Superseded), "marks begin again");
    let claim = f.engine.claim_publisher("s", "p").await.unwrap();
    assert_eq!((claim.last_seq, claim.last_offset), (0, None));
    assert_eq!(offsets(&publish(&f.engine, claimed(&claim, 1, &[r#"{"n":2}"#])).await), [Some(1)]);
}

/// A process dies in each call of a migration, and another one does it again; publishers go on meanwhile.
#[tokio::test(start_paused = true)]
async fn a_migration_may_die_anywhere() {
    let next = r#"{"properties":{"n":{"type":"integer"},"k":{"type":["string","null"]}},"required":["n"]}"#;
    for crash in [Crash::Before, Crash::After] {
        for call in 1.. {
            let f = Fixture::new();
            f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
            publish(&f.engine, frame(&[r#"{"n":1}"#])).await.unwrap();
            let faulty = Faulty::new(Arc::new(f.store.clone()), Plan::none(), f.env.clone());
            faulty.crash_at(call, crash);
            let engine = Engine::new(Arc::new(faulty), f.env.clone(), Settings::default());
            let migrate = engine.migrate("s", schema(next), vec![]);
            let wait = std::time::Duration::from_secs(60);
            let ended = tokio::time::timeout(wait, migrate).await.is_ok();
            let survivor = f.restart();
            let after = survivor.migrate("s", schema(next), vec![]).await.unwrap();
            assert_eq!(after.generations.len(), 2, "dead in call {call}");
            assert_eq!((after.generations[1].start, after.revision), (1, 2));
            assert_eq!(offsets(&publish(&f.engine, frame(&[r#"{"n":2}"#])).await), [Some(1)]);
            assert_eq!(log(&f).await, [r#"{"n":1,"s":null}"#, r#"{"n":2,"k":null}"#]);
            if ended {
                break;
            }
        }
    }
}

/// Every reply is lost and every request arrives late: a migration happens once all the same.
#[tokio::test(start_paused = true)]
async fn a_migration_whose_replies_are_lost_happens_once() {
    let next = r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    for late_calls in 1..8 {
        let f = Fixture::new();
        f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
        publish(&f.engine, frame(&[r#"{"n":1}"#])).await.unwrap();
        let plan = Plan { late: 1.0, late_calls, ..Plan::none() };
        let faulty = Faulty::new(Arc::new(f.store.clone()), plan, f.env.clone());
        let engine = Engine::new(Arc::new(faulty.clone()), f.env.clone(), Settings::default());
        let _ = engine.migrate("s", schema(next), vec![]).await;
        faulty.settle().await;
        let declared = f.restart().declared("s").await.unwrap().unwrap();
        assert_eq!((declared.generations.len(), declared.revision), (2, 2), "{late_calls}");
        assert_eq!(offsets(&publish(&f.engine, frame(&[r#"{"n":2}"#])).await), [Some(1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn rows_beyond_their_age_are_out_of_reach_at_once_and_deleted_an_hour_later() {
    let f = Fixture::new();
    let aged = Declaration { max_age_us: Some(60_000_000), ..declaration(NUMBERS) };
    let declared = f.engine.declare("s", aged).await.unwrap();
    for n in 0..limits::HEAD_SEGMENTS + 1 {
        publish(&f.engine, frame(&[&format!(r#"{{"n":{n}}}"#)])).await.unwrap();
    }
    f.pass(100.0).await;
    publish(&f.engine, frame(&[r#"{"n":99}"#])).await.unwrap();
    let owner = declared.partition().0.simple();
    let blobs = async || f.store.list_blobs(&owner, None, 1000).await.unwrap().len();
    let before = blobs().await;
    assert_eq!(f.engine.retain("s", None).await.unwrap(), limits::HEAD_SEGMENTS as u64 + 1);
    let extent = f.engine.extent(&declared.partition()).await.unwrap().unwrap();
    assert_eq!((extent.floor, extent.tail), (25, 26));
    f.pass(3500.0).await;
    f.engine.retain("s", None).await.unwrap();
    assert!(blobs().await >= before, "readers that are there may finish");
    f.pass(3700.0).await;
    f.engine.retain("s", None).await.unwrap();
    assert!(blobs().await < before);
    let declared = f.restart().declared("s").await.unwrap().unwrap();
    assert_eq!(declared.floor, 26, "the last one is too old by now as well");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_declared_stream_leaves_nothing_and_comes_back_as_another_streamcast_24() {
    let f = Fixture::new();
    let first = f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    f.engine.claim_publisher("s", "p").await.unwrap();
    publish(&f.engine, frame(&[r#"{"n":1}"#])).await.unwrap();
    assert!(f.engine.delete_stream("s").await.unwrap());
    assert!(f.store.items().is_empty(), "{:?}", f.store.items().keys());
    let refused = publish(&f.restart(), frame(&[r#"{"n":1}"#])).await;
    assert!(matches!(refused, Err(PublishError::Failed { .. })), "{refused:?}");
    let again = f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    assert_ne!(again.stream, first.stream);
    assert_eq!(offsets(&publish(&f.engine, frame(&[r#"{"n":1}"#])).await), [Some(0)]);
}

/// A row is not refused for what a process remembers of its schema: it looks again first.
#[tokio::test(start_paused = true)]
async fn nothing_is_refused_for_what_a_process_remembers() {
    let f = Fixture::new();
    f.configure("s", serde_json::json!({})).await;
    let stale = f.restart();
    assert!(stale.declared("s").await.unwrap().is_none());
    f.engine.declare("s", declaration(NUMBERS)).await.unwrap();
    assert_eq!(offsets(&publish(&stale, frame(&[r#"{"n":0}"#])).await), [Some(0)]);
    let next = r#"{"properties":{"n":{"type":"integer"},"k":{"type":["string","null"]}},"required":["n"]}"#;
    let other = f.restart();
    other.declared("s").await.unwrap();
    f.engine.migrate("s", schema(next), vec![]).await.unwrap();
    assert_eq!(offsets(&publish(&stale, frame(&[r#"{"n":1,"k":"x"}"#])).await), [Some(1)]);
    assert_eq!(offset(&other.push(vec![item("s", "", r#"{"n":2,"k":"y"}"#)]).await[0]), 2);
    f.engine.retire("s").await.unwrap();
    assert!(publish(&stale, frame(&[r#"{"n":3}"#])).await.is_err());
    f.engine.revive("s").await.unwrap();
    assert_eq!(offsets(&publish(&stale, frame(&[r#"{"n":3}"#])).await), [Some(3)]);
    let timer = |payload: &str| TimerOp {
        stream: "s".into(),
        key: "t".into(),
        action: TimerAction::Schedule {
            delay_ms: 1000,
            partition: String::new(),
            transaction_id: "t".into(),
            payload: payload.to_owned().into(),
        },
    };
    let timers = |payload| Riders { timers: vec![timer(payload)], ..Riders::default() };
    let refused = f.engine.transact_with(Vec::new(), Vec::new(), timers(r#"{"n":"x"}"#)).await;
    assert!(matches!(refused, Err(Error::Row { .. })), "{refused:?}");
    f.engine
        .transact_with(Vec::new(), Vec::new(), timers(r#"{"k":"t","n":4}"#))
        .await
        .unwrap()
        .unwrap();
    f.pass(2.0).await;
    assert_eq!(f.engine.fire_timers().await.unwrap(), 1);
    assert_eq!(log(&f).await[4], r#"{"n":4,"k":"t"}"#);
}
