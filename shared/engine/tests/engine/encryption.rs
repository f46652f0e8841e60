//! Encryption at rest: what lies in the store says nothing, and who has the keys notices nothing.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use async_trait::async_trait;
use tidewheel_engine::*;
use tidewheel_store::{BlobName, Env, Store};

use crate::{fixture::*, store::TestStore};

const SECRET: &str = "the-secret-of-this-test";

fn keys(byte: u8) -> MasterKeys {
    MasterKeys::new(vec![SecretKey::from_bytes([byte; 32])]).unwrap()
}

fn engine(store: &TestStore, env: &Env, keys: impl KeyProvider + 'static) -> Engine {
    let settings = Settings { keys: Some(Arc::new(keys)), ..Settings::default() };
    Engine::new(Arc::new(store.clone()) as Arc<dyn Store>, env.clone(), settings)
}

fn fixture() -> Fixture {
    let f = Fixture::new();
    Fixture { engine: engine(&f.store, &f.env, keys(1)), ..f }
}

/// Everything that is stored, as bytes.
async fn stored(f: &Fixture) -> Vec<u8> {
    let mut all = format!("{:?}", f.store.items()).into_bytes();
    for name in f.store.blobs().keys() {
        all.extend(f.store.blob(name, None).await.unwrap().unwrap());
    }
    all
}

fn holds(all: &[u8], text: &str) -> bool {
    all.windows(text.len()).any(|w| w == text.as_bytes())
}

fn secret(n: usize) -> String {
    format!("{{\"n\":{n},\"text\":\"{SECRET}\"}}")
}

/// A payload that no compression hides.
async fn stored_in_the_clear(f: &Fixture) -> bool {
    holds(&stored(f).await, SECRET)
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_stored_holds_a_payload() {
    let f = fixture();
    f.configure("s", serde_json::json!({"encryptionEnabled": true, "retryLimit": 0})).await;
    for n in 0..60 {
        f.push("p", &[&secret(n)]).await;
    }
    let large = format!("\"{}\"", SECRET.repeat(4000));
    f.push("large", &[&large]).await;
    // A dead letter keeps its own copy: one in the item, one in a blob.
    for partition in ["p", "large"] {
        let target = PopTarget::Partition { stream: "s".into(), partition: partition.into() };
        let popped = f.engine.pop(Pop { target, ..pop_of("s", "g", 1) }).await.unwrap();
        f.ack("g", &popped, &[Verdict::DeadLetter]).await;
    }
    let partition = f.partition_id("s", "p").await;
    let trace = NewTrace {
        partition,
        transaction_id: "t".into(),
        group: "g".into(),
        event: "info".into(),
        names: vec!["n".into()],
        data: secret(0).into(),
    };
    f.engine.trace(trace).await.unwrap();
    // A transaction and a cycle get there by other ways.
    let push = TransactionOp::Push(vec![item("s", "p", &secret(60))]);
    f.engine.transact(vec![push], Vec::new()).await.unwrap().unwrap();
    f.engine.push(vec![item("source", "p", "1")]).await;
    let registered = f.engine.register_query("q", "source", Some("s"), "h", false).await.unwrap();
    let Registered::Fresh(query) = registered else { panic!("{registered:?}") };
    let source = f.partition_id("source", "p").await;
    let cycle = Cycle {
        query_id: query.id,
        partition_id: source,
        group: None,
        state_ops: Vec::new(),
        push_items: vec![item("s", "p", &secret(61))],
        ack: None,
        release_lease: true,
    };
    f.engine.cycle(cycle.clone()).await.unwrap();
    // State is computed from payloads; enough cycles fold it into a snapshot.
    let upsert = StateOp::Upsert { key: format!("key {SECRET}"), value: secret(62).into() };
    let registered = f.engine.register_query("p", "s", None, "h", false).await.unwrap();
    let Registered::Fresh(query) = registered else { panic!("{registered:?}") };
    let keep = Cycle {
        query_id: query.id,
        partition_id: partition,
        state_ops: vec![upsert],
        push_items: Vec::new(),
        ..cycle
    };
    for _ in 0..=limits::STATE_DELTAS {
        f.engine.cycle(keep.clone()).await.unwrap();
    }
    assert_eq!(f.engine.counters().0["state_folds"], 1);
    f.engine.cycle(keep).await.unwrap();

    assert!(!stored_in_the_clear(&f).await);
    // The same over a stream without encryption is found: the search would see it.
    f.engine.push(vec![item("open", "p", &secret(0))]).await;
    assert!(stored_in_the_clear(&f).await);

    let other = engine(&f.store, &f.env, keys(1));
    let read = other.read(&partition, 0, 1000, usize::MAX).await.unwrap();
    let expected: Vec<String> = (0..62).map(secret).collect();
    assert!(read.records.iter().map(|r| &r.payload[..]).eq(expected.iter().map(String::as_bytes)));
    let letters = other.dead_letters("s", None, 0, 10).await.unwrap();
    let mut letters: Vec<_> = letters.into_iter().map(|l| l.record.payload).collect();
    letters.sort_by_key(|payload| payload.len());
    assert_eq!(letters, [secret(0), large]);
    let rows = other.state(&query.id, &partition, &StateFilter::default()).await.unwrap();
    assert_eq!(rows[0].value, secret(62));
    assert_eq!(other.traces_of(&partition, "t").await.unwrap()[0].data, secret(0));
}

#[tokio::test(start_paused = true)]
async fn repeats_are_found_across_processes_and_pages() {
    let f = fixture();
    f.configure("s", serde_json::json!({"encryptionEnabled": true})).await;
    for n in 0..40 {
        let id = format!("id-{n}");
        f.engine.push(vec![with_id(item("s", "p", &secret(n)), &id)]).await;
    }
    let other = engine(&f.store, &f.env, keys(1));
    for n in [0, 39] {
        let again = with_id(item("s", "p", &secret(n)), &format!("id-{n}"));
        let pushed = other.push(vec![again]).await;
        assert!(
            matches!(&pushed[0], Pushed::Duplicate { offset, .. } if *offset == Some(n as u64)),
            "{pushed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_stored_before_stays_readable_and_what_comes_after_is_encrypted() {
    let f = fixture();
    let other = engine(&f.store, &f.env, keys(1));
    f.push("p", &["\"open\""]).await;
    // Another process that knows the stream as it was.
    other.push(vec![item("s", "p", "\"also open\"")]).await;
    f.configure("s", serde_json::json!({"encryptionEnabled": true})).await;
    let before = f.store.blobs().len();
    other.push(vec![item("s", "p", &secret(0))]).await;
    f.push("p", &[&secret(1)]).await;
    assert_eq!(f.store.blobs().len(), before + 2);
    assert!(!stored_in_the_clear(&f).await);
    let all = [r#""open""#.to_owned(), r#""also open""#.to_owned(), secret(0), secret(1)];
    assert_eq!(f.payloads("s", "p").await, all);

    f.configure("s", serde_json::json!({"encryptionEnabled": false})).await;
    f.push("p", &["\"open again\""]).await;
    let restarted = Fixture { engine: engine(&f.store, &f.env, keys(1)), ..f };
    assert_eq!(
        restarted.payloads("s", "p").await[2..],
        [secret(0), secret(1), "\"open again\"".to_owned()]
    );
}

#[track_caller]
fn refused<T: Debug>(answer: Result<T, Error>, said: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Encryption(_)), "{error:?}");
    assert!(error.to_string().contains(said), "{error}");
}

#[tokio::test(start_paused = true)]
async fn wrong_and_missing_keys_are_said_and_write_nothing() {
    let f = fixture();
    f.configure("s", serde_json::json!({"encryptionEnabled": true})).await;
    f.push("p", &[&secret(0)]).await;
    let id = f.partition_id("s", "p").await;
    let used = f.engine.master_keys_in_use().await.unwrap();
    assert_eq!(used.len(), 1);

    let wrong = engine(&f.store, &f.env, keys(2));
    refused(wrong.read(&id, 0, 10, 1000).await, &used[0]);
    refused(wrong.pop(pop_of("s", "g", 1)).await, &used[0]);

    let without = f.restart();
    refused(without.read(&id, 0, 10, 1000).await, "no encryption key is configured");
    let configure = serde_json::json!({"encryptionEnabled": true});
    let configure =
        Configure { options: configure.as_object().cloned().unwrap(), ..Configure::default() };
    refused(without.configure("t", configure).await.map(|_| ()), "no encryption key");
    assert_eq!(without.stream("t").await.unwrap(), None);
    let before = (f.store.items(), f.store.blobs());
    let pushed = without.push(vec![item("s", "p", &secret(1))]).await;
    assert!(matches!(&pushed[0], Pushed::Refused(Error::Encryption(_))), "{pushed:?}");
    assert_eq!((f.store.items(), f.store.blobs()), before);
}

/// A keeper of keys that can be out of order.
#[derive(Clone, Debug)]
struct Unreliable(MasterKeys, Arc<AtomicBool>);

#[async_trait]
impl KeyProvider for Unreliable {
    async fn data_key(&self, env: &Env) -> Result<DataKey, KeyError> {
        match self.1.load(SeqCst) {
            true => Err(KeyError::Unavailable("the key service does not answer".into())),
            false => self.0.data_key(env).await,
        }
    }

    async fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<SecretKey, KeyError> {
        self.0.unwrap_key(wrapped).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_service_that_does_not_answer_refuses_the_write_and_nothing_else() {
    let f = Fixture::new();
    let service = Unreliable(keys(1), Arc::default());
    let f = Fixture { engine: engine(&f.store, &f.env, service.clone()), ..f };
    f.configure("s", serde_json::json!({"encryptionEnabled": true, "retryLimit": 0})).await;
    f.push("p", &[&secret(0), &secret(1)]).await;
    service.1.store(true, SeqCst);
    f.pass(2.0 * 3600.0).await;
    let pushed = f.push("p", &[&secret(2)]).await;
    let Pushed::Refused(error) = &pushed[0] else { panic!("{pushed:?}") };
    assert!(error.is_transient() && error.to_string().contains("key service"), "{error}");
    // What is there is read with what is known, and a dead letter waits rather than lie open.
    let popped = f.pop("g", 1).await;
    assert_eq!(payloads(&popped), [secret(0)]);
    let ack = ack_of(&popped.messages[0], Verdict::DeadLetter, &popped);
    let acked = f.engine.ack(Some("g"), vec![ack.clone()]).await;
    assert!(acked.map_or(true, |a| a[0].error.is_some()));
    assert!(!stored_in_the_clear(&f).await);
    service.1.store(false, SeqCst);
    let acked = f.engine.ack(Some("g"), vec![ack]).await.unwrap();
    assert!(acked[0].dead_lettered, "{acked:?}");
    assert_eq!(f.engine.dead_letters("s", None, 0, 10).await.unwrap().len(), 1);
    assert!(matches!(f.push("p", &[&secret(2)]).await[0], Pushed::Queued { offset: 2, .. }));
}

#[tokio::test(start_paused = true)]
async fn an_envelope_does_not_pass_for_another_partitions() {
    let f = fixture();
    f.configure("s", serde_json::json!({"encryptionEnabled": true})).await;
    f.push("p", &[&secret(0)]).await;
    f.push("q", &[&secret(1)]).await;
    let names: Vec<BlobName> = f.store.blobs().into_keys().collect();
    assert_eq!(names.len(), 2);
    // Somebody who can write to the store puts one partition's blob under the name of the other's.
    let body = f.store.blob(&names[0], None).await.unwrap().unwrap();
    f.store.delete_blobs(&names[1..]).await.unwrap();
    let blob = tidewheel_store::Blob { name: names[1].clone(), body };
    let marker = tidewheel_store::Write::put(
        tidewheel_store::Key::new("test", "test"),
        tidewheel_store::Item::new(),
    );
    let commit = tidewheel_store::Commit { blobs: vec![blob], writes: vec![marker] };
    f.store.commit(commit).await.unwrap();
    let other = engine(&f.store, &f.env, keys(1));
    let mut opened = 0;
    for partition in ["p", "q"] {
        let id = f.partition_id("s", partition).await;
        match other.read(&id, 0, 10, 1000).await {
            Ok(_) => opened += 1,
            refusal => refused(refusal, "does not open"),
        }
    }
    assert_eq!(opened, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timer_of_an_encrypted_stream_waits_in_an_envelope_and_fires_in_the_clear() {
    let f = fixture();
    f.configure("s", serde_json::json!({"encryptionEnabled": true})).await;
    let op = TimerOp {
        stream: "s".into(),
        key: "k".into(),
        action: TimerAction::Schedule {
            delay_ms: 10,
            partition: "p".into(),
            transaction_id: "t".into(),
            payload: secret(1).into(),
        },
    };
    f.engine.timers(vec![op.clone()]).await.unwrap();
    assert!(!stored_in_the_clear(&f).await);
    assert!(f.engine.timer("s", "k").await.unwrap().unwrap().sealed);
    f.pass(0.1).await;
    // Without the key it stays; nothing is lost and nothing is served in the clear.
    let other = engine(&f.store, &f.env, keys(2));
    assert!(other.fire_timers().await.is_err());
    assert_eq!(f.restart_with(keys(1)).fire_timers().await.unwrap(), 1);
    assert!(!stored_in_the_clear(&f).await);
    assert_eq!(f.payloads("s", "p").await, [secret(1)]);
    assert!(matches!(f.restart().timers(vec![op]).await, Err(Error::Encryption(_))));
}

impl Fixture {
    fn restart_with(&self, keys: MasterKeys) -> Engine {
        engine(&self.store, &self.env, keys)
    }
}
