//! Many processes on one deployed store, as an emulator shows it: 64 writers of one partition, and a storm of duplicates.
//!
//! An append is commutative, so writers do not refuse each other. Every refusal is looked at here: it must come from the
//! list being full, from a generation that a roll has ended, or from the making of the partition, and never from the
//! tail that another writer moved. A loop on a version would be refused some sixty times for each push.

#[path = "../../shared/store/tests/emulator/mod.rs"]
mod emulator;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tidewheel_engine::{Engine, PartitionId, PushItem, Pushed, Settings, SubscriptionMode, limits};
use tidewheel_store::{
    Action, BlobName, Change, Commit, CommitError, Committed, Condition, Consistency, DynamoDb,
    Env, Item, Key, Page, Query, ReadError, Store,
};
use tokio::task::JoinSet;

use crate::emulator::Place;

/// Why appends were refused, by the attribute of each condition that did not hold.
#[derive(Default)]
struct Refusals {
    appends: BTreeMap<String, usize>,
    transactions: usize,
}

/// A store that looks at every refusal.
struct Watched {
    inner: DynamoDb,
    refusals: Arc<Mutex<Refusals>>,
}

fn attribute(condition: &Condition) -> &str {
    match condition {
        Condition::Absent | Condition::Exists => "the item itself",
        Condition::Lacks(a)
        | Condition::Has(a)
        | Condition::Equals(a, _)
        | Condition::Differs(a, _)
        | Condition::LessThan(a, _)
        | Condition::MoreThan(a, _)
        | Condition::ShorterThan(a, _)
        | Condition::SetLacks(a, _)
        | Condition::SetHas(a, _) => a,
    }
}

#[async_trait]
impl Store for Watched {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.inner.get(key, consistency).await
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.inner.batch_get(keys).await
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.inner.query(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let writes = commit.writes.clone();
        let answer = self.inner.commit(commit).await;
        if let Err(CommitError::Conflict(failed)) = &answer {
            let mut refusals = self.refusals.lock();
            let appends = |action: &Action| match action {
                Action::Update(changes) => {
                    changes.iter().any(|c| matches!(c, Change::Append(a, _) if a == "segs"))
                }
                _ => false,
            };
            match &writes[..] {
                [write] if appends(&write.action) => {
                    let current = failed[0].current.as_ref();
                    for condition in write.conditions.iter().filter(|c| !c.holds(current)) {
                        *refusals.appends.entry(attribute(condition).to_owned()).or_default() += 1;
                    }
                }
                _ => refusals.transactions += 1,
            }
        }
        answer
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.inner.blob(name, range).await
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.inner.list_blobs(owner, after, limit).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.inner.delete_blobs(names).await
    }
}

/// A process: an engine that remembers nothing of the others.
fn process(store: &DynamoDb, refusals: &Arc<Mutex<Refusals>>) -> Engine {
    let store = Watched { inner: store.clone(), refusals: refusals.clone() };
    let settings = Settings { default_subscription: SubscriptionMode::All, ..Settings::default() };
    Engine::new(Arc::new(store), Env::system(), settings)
}

fn item(payload: String, id: Option<String>) -> PushItem {
    PushItem {
        stream: "s".into(),
        partition: "p".into(),
        payload: payload.into(),
        transaction_id: id,
        ..PushItem::default()
    }
}

/// Every payload of the partition, in order.
async fn payloads(engine: &Engine) -> Vec<String> {
    let stream = engine.stream("s").await.expect("a read").expect("the stream");
    let partition = PartitionId::of(&stream.id, "p");
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let read = engine.read(&partition, from, 1000, usize::MAX).await.expect("a read");
        for record in &read.records {
            assert_eq!(record.offset, all.len() as u64, "an offset is missing or twice");
            all.push(String::from_utf8_lossy(&record.payload).into_owned());
        }
        from = all.len() as u64;
        if from >= read.extent.tail {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the emulators: tests/run emulator"]
async fn sixty_four_writers_of_one_partition_do_not_refuse_each_other() {
    const WRITERS: usize = 64;
    const PUSHES: usize = 4;
    let store = Place::make().await.store();
    let refusals = Arc::default();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let engine = process(&store, &refusals);
        writers.spawn(async move {
            let mut answers = Vec::new();
            for n in 0..PUSHES {
                let payload = format!("{writer}-{n}");
                // What a client does with a busy server: it sends the request again.
                loop {
                    match engine
                        .push(vec![item(payload.clone(), Some(payload.clone()))])
                        .await
                        .remove(0)
                    {
                        Pushed::Queued { offset, .. } => {
                            answers.push((offset, payload));
                            break;
                        }
                        Pushed::Duplicate { offset: Some(offset), .. } => {
                            answers.push((offset, payload));
                            break;
                        }
                        Pushed::Refused(e) if e.is_transient() => {}
                        other => panic!("{payload}: {other:?}"),
                    }
                }
            }
            answers
        });
    }
    let mut answers: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    answers.sort();
    let answered: Vec<_> = answers.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(answered, (0..(WRITERS * PUSHES) as u64).collect::<Vec<_>>(), "offsets");
    let stored = payloads(&process(&store, &refusals)).await;
    let told: Vec<_> = answers.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(stored, told, "every push lies where its writer was told");

    let refusals = refusals.lock();
    let allowed = ["gen", "segs", "ids"];
    for attribute in refusals.appends.keys() {
        assert!(allowed.contains(&attribute.as_str()), "refused for `{attribute}`");
    }
    // Each roll may find every writer waiting before the full list; so may the making of the partition.
    let rolls = WRITERS * PUSHES / limits::HEAD_SEGMENTS + 1;
    let refused = refusals.appends.values().sum::<usize>() + refusals.transactions;
    println!(
        "{} pushes, {rolls} rolls: {:?} refused appends, {} refused transactions, {:?}",
        WRITERS * PUSHES,
        refusals.appends,
        refusals.transactions,
        store.meter()
    );
    assert!(refused <= (rolls + 1) * 3 * WRITERS, "{refused} refusals");
    // Most writers stand back and find a list rolled that somebody else has rolled.
    let transactions = refusals.transactions;
    assert!(transactions <= rolls * WRITERS / 2, "{transactions} transactions were refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the emulators: tests/run emulator"]
async fn a_storm_of_duplicates_stores_each_id_once() {
    const PROCESSES: usize = 16;
    const IDS: usize = 30;
    let store = Place::make().await.store();
    let refusals = Arc::default();
    let mut processes = JoinSet::new();
    for at in 0..PROCESSES {
        let engine = process(&store, &refusals);
        processes.spawn(async move {
            let mut offsets = BTreeMap::new();
            // Each begins elsewhere, so that the first copy of each id comes from another.
            for n in 0..IDS {
                let id = format!("{}", (n + at) % IDS);
                let (offset, queued) = loop {
                    match engine.push(vec![item(id.clone(), Some(id.clone()))]).await.remove(0) {
                        Pushed::Queued { offset, .. } => break (offset, true),
                        Pushed::Duplicate { offset: Some(offset), .. } => break (offset, false),
                        Pushed::Refused(e) if e.is_transient() => {}
                        other => panic!("{id}: {other:?}"),
                    }
                };
                offsets.insert(id, (offset, queued));
            }
            offsets
        });
    }
    let answers = processes.join_all().await;
    let stored = payloads(&process(&store, &refusals)).await;
    assert_eq!(stored.len(), IDS, "{stored:?}");
    for (offset, id) in stored.iter().enumerate() {
        let told: Vec<_> = answers.iter().map(|of| of[id]).collect();
        assert!(told.iter().all(|(at, _)| *at == offset as u64), "{id}: {told:?}");
        let queued = told.iter().filter(|(_, queued)| *queued).count();
        assert!(queued <= 1, "{id} was stored {queued} times, says the store");
    }
}
