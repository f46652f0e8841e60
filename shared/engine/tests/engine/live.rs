//! The live group: waking, sleeping, leaving, and what it costs those who push.

use std::sync::{Arc, Mutex};

use tidewheel_engine::*;
use tidewheel_store::{Commit, Store};

use crate::fixture::*;

#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Vec<PartitionId>>,
    broken: bool,
}

#[async_trait::async_trait]
impl Doorbell for Bell {
    async fn ring(&self, partition: &PartitionId) -> Result<(), NotRung> {
        self.rung.lock().unwrap().push(*partition);
        if self.broken { Err(NotRung("no answer".into())) } else { Ok(()) }
    }
}

fn with_bell(f: &Fixture, broken: bool) -> (Engine, Arc<Bell>) {
    let bell = Arc::new(Bell { broken, ..Bell::default() });
    let settings = Settings { doorbell: Some(bell.clone()), ..Settings::default() };
    (Engine::new(Arc::new(f.store.clone()) as Arc<dyn Store>, f.env.clone(), settings), bell)
}

async fn wake(f: &Fixture, id: &PartitionId) -> i64 {
    f.store.commit(Commit::one(f.engine.live_wake(id))).await.unwrap();
    f.engine.live_ready(id).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_push_rings_once_for_each_edge() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, false);
    let push = || async { engine.push(vec![item("s", "p", "x")]).await };
    push().await;
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    push().await;
    assert_eq!(*bell.rung.lock().unwrap(), [], "the followers are awake, and see it themselves");
    let sleep = |tail, version| Commit::all(f.engine.live_sleep(&id, tail, version).into());
    f.store.commit(sleep(1, version)).await.unwrap_err();
    f.store.commit(sleep(2, version + 1)).await.unwrap_err();
    f.store.commit(sleep(2, version)).await.unwrap();
    assert_eq!(f.engine.live_ready(&id).await.unwrap(), None);
    push().await;
    push().await;
    assert_eq!(*bell.rung.lock().unwrap(), [id]);
    assert!(f.engine.live_ready(&id).await.unwrap().is_some());
    let waiting = |shard| f.engine.live_waiting(shard, None, 10);
    let mut found = Vec::new();
    for shard in 0..live::LIVE_SHARDS {
        found.extend(waiting(shard).await.unwrap());
    }
    assert_eq!(found, [id]);
    assert!(f.engine.groups("s").await.unwrap().is_empty(), "it is nobody's group");
}

#[tokio::test(start_paused = true)]
async fn a_bell_that_fails_costs_the_push_nothing() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, true);
    f.push("p", &["0"]).await;
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    f.store.commit(Commit::all(f.engine.live_sleep(&id, 1, version).into())).await.unwrap();
    assert_eq!(offset(&engine.push(vec![item("s", "p", "x")]).await[0]), 1);
    assert_eq!(bell.rung.lock().unwrap().len(), 1);
    assert!(f.engine.live_ready(&id).await.unwrap().is_some(), "the entry is there to be found");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_rings_as_well() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, false);
    f.push("p", &["0"]).await;
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    f.store.commit(Commit::all(f.engine.live_sleep(&id, 1, version).into())).await.unwrap();
    let op = TransactionOp::Push(vec![item("s", "p", "x")]);
    engine.transact(vec![op], Vec::new()).await.unwrap().unwrap();
    assert_eq!(*bell.rung.lock().unwrap(), [id]);
}

#[tokio::test(start_paused = true)]
async fn who_has_left_is_not_woken_and_costs_nothing() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, false);
    engine.push(vec![item("s", "p", "0")]).await;
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    f.store.commit(Commit::all(f.engine.live_sleep(&id, 1, version).into())).await.unwrap();
    f.store.commit(Commit::all(f.engine.live_leave(&id, true))).await.unwrap();
    engine.push(vec![item("s", "p", "1")]).await;
    f.store.reset_meter();
    engine.push(vec![item("s", "p", "2")]).await;
    assert_eq!(f.store.meter().write_units, 2.0, "blob and head");
    assert!(bell.rung.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_partition_without_records_is_made_for_who_follows_it_and_wakes_every_group() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, false);
    assert!(matches!(engine.ensure_partition("s", "p").await, Err(Error::StreamNotFound(_))));
    f.configure("s", serde_json::json!({})).await;
    assert!(f.pop("g", 10).await.messages.is_empty());
    let nothing = Extent { floor: 0, tail: 0 };
    assert_eq!(engine.ensure_partition("s", "p").await, Ok(nothing));
    assert_eq!(engine.ensure_partition("s", "p").await, Ok(nothing));
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    f.store.commit(Commit::all(f.engine.live_sleep(&id, 0, version).into())).await.unwrap();
    assert!(f.pop("g", 10).await.messages.is_empty());
    assert_eq!(offset(&engine.push(vec![item("s", "p", "x")]).await[0]), 0);
    assert_eq!(*bell.rung.lock().unwrap(), [id]);
    assert_eq!(payloads(&f.pop("g", 10).await), ["x"], "a group that had joined is told of it");
    assert_eq!(payloads(&f.pop("late", 10).await), ["x"]);
    assert_eq!(f.engine.ready("s", TABLE_GROUP, 10).await.unwrap(), [id]);
}

#[tokio::test(start_paused = true)]
async fn followers_hear_of_the_end_of_their_stream() {
    let f = Fixture::new();
    let (engine, bell) = with_bell(&f, false);
    f.push("p", &["0"]).await;
    let id = f.partition_id("s", "p").await;
    let version = wake(&f, &id).await;
    f.store.commit(Commit::all(f.engine.live_sleep(&id, 1, version).into())).await.unwrap();
    assert!(engine.delete_stream("s").await.unwrap());
    assert_eq!(*bell.rung.lock().unwrap(), [id]);
    assert!(f.engine.live_ready(&id).await.unwrap().is_some());
    assert_eq!(f.engine.extent(&id).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn looking_tells_those_who_watch_of_other_processes_pushes() {
    let f = Fixture::new();
    f.push("p", &["0"]).await;
    let id = f.partition_id("s", "p").await;
    let mut tail = f.engine.watch(&id);
    assert_eq!(f.engine.watched_partitions(), [id]);
    f.restart().push(vec![item("s", "p", "1")]).await;
    assert!(!tail.has_changed().unwrap());
    f.engine.refresh_tail(&id).await.unwrap();
    assert_eq!(*tail.borrow_and_update(), 2);
    f.engine.refresh_tail(&id).await.unwrap();
    assert!(!tail.has_changed().unwrap(), "nothing new");
    drop(tail);
    assert_eq!(f.engine.watched_partitions(), []);
}
