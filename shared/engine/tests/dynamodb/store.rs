//! The store under test: the deployed one, in a table and a bucket of its own.
//!
//! Time is paused here too. The runtime moves a paused clock whenever nothing can run, and while an answer is on its way
//! nothing can: so a task of the runtime is kept running during each call, and the clock stands still, as it does for a
//! store in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{Arc, Mutex, mpsc},
};

use async_trait::async_trait;
use bytes::Bytes;
use tidewheel_store::{
    BlobName, Commit, CommitError, Committed, Consistency, DynamoDb, Item, Key, Page, Query,
    ReadError, Store,
    dynamodb::aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue},
    meter::Units,
};

use crate::emulator::{self, Place};

#[derive(Clone)]
pub(crate) struct TestStore {
    place: Place,
    inner: DynamoDb,
    /// What was ever written.
    keys: Arc<Mutex<BTreeSet<Key>>>,
    owners: Arc<Mutex<BTreeSet<String>>>,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let place = elsewhere(Place::make());
        let inner = place.store();
        Self { place, inner, keys: Arc::default(), owners: Arc::default() }
    }

    /// Every item that is there.
    pub(crate) fn items(&self) -> BTreeMap<Key, Item> {
        let keys: Vec<Key> = self.keys.lock().unwrap().iter().cloned().collect();
        elsewhere(async {
            let store = self.place.store();
            let mut items = BTreeMap::new();
            for key in keys {
                if let Some(item) = store.get(&key, Consistency::Strong).await.unwrap() {
                    items.insert(key, item);
                }
            }
            items
        })
    }

    /// Every blob that is there. A map, as the memory store's.
    pub(crate) fn blobs(&self) -> BTreeMap<BlobName, ()> {
        let owners: Vec<String> = self.owners.lock().unwrap().iter().cloned().collect();
        elsewhere(async {
            let store = self.place.store();
            let mut blobs = BTreeMap::new();
            for owner in owners {
                let names = store.list_blobs(&owner, None, 1000).await.unwrap();
                blobs.extend(names.into_iter().map(|name| (name, ())));
            }
            blobs
        })
    }

    /// What the service says was consumed.
    pub(crate) fn meter(&self) -> Units {
        self.inner.meter()
    }

    pub(crate) fn reset_meter(&self) {
        self.inner.reset_meter();
    }

    /// Flips a bit of what is stored for a small blob. False if there is no such blob.
    pub(crate) fn damage_blob(&self, name: &BlobName, byte: usize) -> bool {
        elsewhere(async {
            let (dynamo, table) = (emulator::dynamo(), &self.place.name);
            for shard in 0..16 {
                let key = [("pk", format!("b#{}#{shard:x}", name.owner)), ("sk", name.id.clone())];
                let key = key.map(|(part, text)| (part.to_owned(), AttributeValue::S(text)));
                let get = dynamo.get_item().table_name(table).set_key(Some(key.into()));
                let Some(mut item) = get.send().await.unwrap().item else { continue };
                let Some(AttributeValue::B(frame)) = item.get("b") else { continue };
                let mut frame = frame.as_ref().to_vec();
                frame[byte] ^= 1;
                item.insert("b".to_owned(), AttributeValue::B(Blob::new(frame)));
                let put = dynamo.put_item().table_name(table).set_item(Some(item));
                put.send().await.unwrap();
                return true;
            }
            false
        })
    }
}

/// Runs a future on a thread and a runtime of its own, whose clock is not paused. Connections belong to the runtime that
/// made them, so it needs clients of its own too.
fn elsewhere<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(future)
        };
        scope.spawn(run).join().unwrap()
    })
}

/// While this lives, the paused clock stands still.
struct Still {
    _ends: mpsc::Sender<()>,
}

fn still() -> Still {
    let (ends, ended) = mpsc::channel::<()>();
    drop(tokio::task::spawn_blocking(move || ended.recv()));
    Still { _ends: ends }
}

#[async_trait]
impl Store for TestStore {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        let _still = still();
        self.inner.get(key, consistency).await
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        let _still = still();
        self.inner.batch_get(keys).await
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        let _still = still();
        self.inner.query(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let _still = still();
        self.keys.lock().unwrap().extend(commit.writes.iter().map(|w| w.key.clone()));
        self.owners.lock().unwrap().extend(commit.blobs.iter().map(|b| b.name.owner.clone()));
        self.inner.commit(commit).await
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        let _still = still();
        self.inner.blob(name, range).await
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        let _still = still();
        self.inner.list_blobs(owner, after, limit).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        let _still = still();
        self.inner.delete_blobs(names).await
    }
}
