//! Everything that can go wrong at every call of a seal, one after another.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use tidewheel_store::{
    BlobName, Commit, CommitError, Committed, Consistency, Env, Item, Key, Memory, Page, Query,
    ReadError, Store,
};
use tidewheel_tables::{Error, Settings, Tables};

use crate::{
    fake::{Fault, Fuse, START_US, World},
    seal::assert_exact,
};

/// Files roll at once, so that a seal has several.
fn settings() -> Settings {
    Settings { file_bytes: 1, ..Settings::default() }
}

/// A stream whose table has `commits` snapshots, and then as much again to seal.
async fn prepared(commits: u64) -> World {
    prepare(World::new(), commits).await
}

pub(crate) async fn prepare(world: World, commits: u64) -> World {
    let tables = world.tables();
    for n in 0..commits {
        for p in ["a", "b"] {
            world.streams.push("s", p, [format!("{n}")]);
        }
        tables.seal("s").await.unwrap();
    }
    for p in ["a", "b", "c"] {
        world.streams.push("s", p, (0..75).map(|n| format!("{{\"more\":{n}}}")));
    }
    world
}

/// Seals until it works, as a new process each time.
async fn recover(world: &World) -> Tables {
    for _ in 0..3 {
        let tables = world.process_with(&Fuse::never(), settings());
        if tables.seal("s").await.is_ok() {
            return tables;
        }
    }
    panic!("the table does not recover");
}

/// After a recovery: every row once, the hint at the head, and the head's size within bounds.
async fn check(world: &World, what: &str) {
    let tables = recover(world).await;
    assert_exact(world, "s").await;
    let location = tables.location("s").await.unwrap();
    let hint = world.hint("s").await.unwrap();
    assert!(location.metadata.unwrap().contains(&format!("/{hint}.metadata.json")), "{what}: hint");
}

async fn enumerate(commits: u64, fault: Fault) -> i64 {
    enumerate_from(&prepared(commits).await, commits, fault).await
}

/// Strikes at each call of a seal in turn; answers how many there are.
pub(crate) async fn enumerate_from(start: &World, commits: u64, fault: Fault) -> i64 {
    for k in 0.. {
        let world = start.fork().await;
        let hint = world.hint("s").await;
        let fuse = Fuse::at(k, fault);
        let outcome = world.process_with(&fuse, settings()).seal("s").await;
        let what = format!("{fault:?} at call {k} after {commits} commits");
        if !fuse.struck() {
            assert!(outcome.is_ok(), "{what}: {outcome:?}");
            return k;
        }
        // Until the head says so, nobody sees anything; when the call said yes, the rows are there.
        let tables = world.tables();
        let version = tables.location("s").await.unwrap().version;
        match outcome {
            Ok(sealed) => {
                assert_eq!((sealed.rows, version), (225, commits + 1), "{what}");
                assert_exact(&world, "s").await;
            }
            Err(_) if version == commits => assert_eq!(world.hint("s").await, hint, "{what}"),
            // The head was written and the process died before it knew.
            Err(e) => assert!(matches!(e, Error::Unknown { .. }), "{what}: {e}"),
        }
        // More comes in while nobody knows.
        world.streams.push("s", "a", ["\"later\"".to_owned()]);
        check(&world, &what).await;
    }
    unreachable!()
}

#[tokio::test(start_paused = true)]
async fn a_first_seal_may_die_anywhere() {
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        let calls = enumerate(0, fault).await;
        assert!(calls > 8, "only {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_seal_may_die_anywhere() {
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        enumerate(2, fault).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_seal_that_merges_manifests_may_die_anywhere() {
    for fault in [Fault::DieBefore, Fault::DieAfter] {
        let calls = enumerate(16, fault).await;
        assert!(calls > 24, "only {calls} calls: nothing was merged");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_of_the_head_is_resolved() {
    // Find the head's write: the store call after which the version has moved.
    let mut resolved = 0;
    for k in 0.. {
        let world = prepared(1).await;
        let fuse = Fuse::at(k, Fault::LoseReply);
        let outcome = world.process_with(&fuse, settings()).seal("s").await;
        if !fuse.struck() {
            break;
        }
        let version = world.tables().location("s").await.unwrap().version;
        if version == 2 && outcome.as_ref().is_ok_and(|s| s.rows == 225) {
            resolved += 1;
        }
        assert!(
            version == 1 || outcome.is_ok(),
            "a commit that counts was reported as {outcome:?}"
        );
    }
    assert!(resolved >= 1);
}

/// Two sealers at once: at every step of the one, the other runs as a whole.
#[tokio::test(start_paused = true)]
async fn two_sealers_race() {
    let mut lost = 0;
    for delay in 0..40 {
        let world = prepared(1).await;
        let slow = {
            let world = world.clone();
            async move {
                for _ in 0..delay {
                    tokio::task::yield_now().await;
                }
                world.process_with(&Fuse::never(), settings()).seal("s").await
            }
        };
        let quick = world.process_with(&Fuse::never(), settings());
        let (a, b) = tokio::join!(quick.seal("s"), slow);
        for outcome in [&a, &b] {
            match outcome {
                Ok(_) => {}
                Err(Error::Conflict(stream)) => {
                    assert_eq!(stream, "s");
                    lost += 1;
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(a.is_ok() || b.is_ok(), "somebody is first");
        assert_exact(&world, "s").await;
        check(&world, &format!("delay {delay}")).await;
    }
    assert!(lost > 0, "they never met");
}

/// Tables of a world whose store is another.
fn tables_on(world: &World, store: impl Store) -> Tables {
    Tables::with_source(
        Arc::new(world.streams.clone()),
        Arc::new(store),
        Env::simulated(99, START_US, 0),
        world.objects.clone(),
        world.root.clone(),
        "mem://root",
        Settings::default(),
    )
}

/// A sealer that was frozen before its last write wakes up when the world has moved on.
#[tokio::test(start_paused = true)]
async fn a_frozen_sealer_changes_nothing() {
    let world = prepared(1).await;
    let before = world.store.fork();
    world.tables().seal("s").await.unwrap();
    world.streams.push("s", "a", ["1".to_owned()]);
    world.tables().seal("s").await.unwrap();
    let location = world.tables().location("s").await.unwrap();
    // It reads the old head, and its write meets the new one.
    let frozen =
        tables_on(&world, Twisted { read: before, write: world.store.clone(), overtaken: None });
    assert!(matches!(frozen.seal("s").await, Err(Error::Conflict(_))));
    assert_eq!(world.tables().location("s").await.unwrap(), location);
    assert!(location.metadata.unwrap().contains(&world.hint("s").await.unwrap()));
    assert_exact(&world, "s").await;
}

/// A commit that landed, whose reply was lost, and on top of which another has landed before it could be looked for.
#[tokio::test(start_paused = true)]
async fn a_commit_that_was_overtaken_is_found_in_the_history() {
    let world = prepared(1).await;
    let overtaken = Some((world.clone(), AtomicBool::new(false)));
    let store = Twisted { read: world.store.clone(), write: world.store.clone(), overtaken };
    let sealed = tables_on(&world, store).seal("s").await.unwrap();
    assert_eq!(sealed.rows, 225);
    assert_eq!(world.tables().location("s").await.unwrap().version, 3);
    assert_exact(&world, "s").await;
}

/// Reads one store and writes another; may lose the reply of its first commit while another process seals.
struct Twisted {
    read: Memory,
    write: Memory,
    overtaken: Option<(World, AtomicBool)>,
}

#[async_trait]
impl Store for Twisted {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.read.get(key, consistency).await
    }
    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.read.batch_get(keys).await
    }
    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.read.query(query).await
    }
    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let committed = self.write.commit(commit).await;
        match &self.overtaken {
            Some((world, done)) if !done.swap(true, Ordering::SeqCst) => {
                world.streams.push("s", "b", ["2".to_owned()]);
                assert_eq!(world.tables().seal("s").await.unwrap().rows, 1);
                Err(CommitError::Unknown("lost".to_owned()))
            }
            _ => committed,
        }
    }
    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.read.blob(name, range).await
    }
    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.read.list_blobs(owner, after, limit).await
    }
    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.write.delete_blobs(names).await
    }
}
