//! What the conformance suite cannot see: restarts, damage, a full disk, a dying writer.

use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::{Blob, Change, Condition, Env, Write};

fn open(dir: &TempDir) -> Embedded {
    Embedded::open(dir.path(), Options::default()).expect("a store")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn key(sk: &str) -> Key {
    Key::new("p", sk)
}

fn put(sk: &str, n: i64) -> Commit {
    Commit::one(Write::put(key(sk), Item::new().with("n", n)))
}

fn named(id: &str, bytes: usize) -> Blob {
    Blob { name: BlobName::new("o", id), body: vec![7; bytes].into() }
}

async fn get(store: &Embedded, sk: &str) -> Option<i64> {
    store.get(&key(sk), Consistency::Strong).await.expect("a read").and_then(|i| i.int("n"))
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let dir = folder();
    let store = open(&dir);
    for n in 0..100 {
        let append = Write::update(key("head"), vec![Change::Add("n".into(), 1)]);
        let commit = Commit::one(append).with_blob(named(&format!("{n:03}"), n * 1000));
        store.commit(commit).await.expect("a commit");
    }
    drop(store);
    let store = open(&dir);
    assert_eq!(get(&store, "head").await, Some(100));
    for n in 0..100 {
        let body = store.blob(&BlobName::new("o", format!("{n:03}")), None).await.expect("a blob");
        assert_eq!(body.map(|b| b.len()), Some(n * 1000));
    }
}

/// A copy of the files taken while the store is open is what a crash at that moment leaves.
#[tokio::test]
async fn what_was_answered_is_on_the_disk() {
    let (dir, crashed) = (folder(), folder());
    let store = open(&dir);
    for n in 0..50 {
        let commit = put("head", n).with_blob(named(&format!("{n}"), 100_000));
        store.commit(commit).await.expect("a commit");
    }
    for entry in std::fs::read_dir(dir.path()).expect("a folder") {
        let entry = entry.expect("a file");
        // The index of the log is shared memory, which a crash loses.
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), crashed.path().join(entry.file_name())).expect("a copy");
        }
    }
    let survivor = open(&crashed);
    assert_eq!(get(&survivor, "head").await, Some(49));
    assert_eq!(survivor.list_blobs("o", None, 100).await.expect("a list").len(), 50);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let dir = folder();
    let store = open(&dir);
    let second = Embedded::open(dir.path(), Options::default());
    let why = second.expect_err("the folder is in use");
    assert!(matches!(why, OpenError::InUse { .. }), "{why}");
    assert!(why.to_string().contains("in use by another process"));
    store.commit(put("a", 1)).await.expect("the first goes on");
    let clone = store.clone();
    drop(store);
    assert!(Embedded::open(dir.path(), Options::default()).is_err(), "a clone is left");
    drop(clone);
    assert_eq!(get(&open(&dir), "a").await, Some(1));
}

#[tokio::test]
async fn a_newer_layout_is_refused() {
    let dir = folder();
    drop(open(&dir));
    let db = Connection::open(dir.path().join(DATABASE)).expect("the database");
    db.pragma_update(None, "user_version", 99).expect("a version");
    drop(db);
    let why = Embedded::open(dir.path(), Options::default()).expect_err("a newer layout");
    assert!(matches!(why, OpenError::Layout { found: 99, .. }), "{why}");
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let dir = folder();
    std::fs::write(dir.path().join(DATABASE), [b'x'; 4096]).expect("a file");
    let why = Embedded::open(dir.path(), Options::default()).expect_err("no database");
    assert!(matches!(why, OpenError::Database { .. }), "{why}");
    std::fs::write(dir.path().join("file"), "x").expect("a file");
    let why = Embedded::open(&dir.path().join("file"), Options::default()).expect_err("no folder");
    assert!(matches!(why, OpenError::Io { .. }), "{why}");
}

#[tokio::test]
async fn a_folder_in_which_an_item_is_missing_or_wrong_is_refused() {
    for damage in [
        // A bit turns in a key, and the head is nowhere.
        "UPDATE items SET sk = 'c' WHERE sk = 'b'",
        "DELETE FROM items WHERE sk = 'b'",
        "UPDATE items SET row = (SELECT row FROM items WHERE sk = 'a') WHERE sk = 'b'",
        "UPDATE items SET row = substr(row, 1, 3) WHERE sk = 'b'",
        // An old row comes back: a page that was never written.
        "UPDATE items SET row = (SELECT row FROM old) WHERE sk = 'b'",
    ] {
        let dir = folder();
        let store = open(&dir);
        store.commit(put("a", 1)).await.expect("a commit");
        store.commit(put("b", 1)).await.expect("a commit");
        drop(store);
        let db = Connection::open(dir.path().join(DATABASE)).expect("the database");
        db.execute_batch("CREATE TABLE old AS SELECT row FROM items WHERE sk = 'b'").expect("kept");
        drop(db);
        let store = open(&dir);
        store.commit(put("b", 2)).await.expect("a commit");
        store.commit(put("x", 2)).await.expect("a commit");
        store.commit(Commit::one(Write::delete(key("x")))).await.expect("a commit");
        drop(store);
        drop(open(&dir));
        let db = Connection::open(dir.path().join(DATABASE)).expect("the database");
        db.execute_batch(damage).expect("damage");
        drop(db);
        let why = Embedded::open(dir.path(), Options::default()).expect_err(damage);
        assert!(matches!(why, OpenError::Database { .. }), "{damage}: {why}");
    }
}

#[tokio::test]
async fn damaged_rows_are_reported_and_never_served() {
    let dir = folder();
    let store = open(&dir);
    for sk in ["a", "b", "c"] {
        store.commit(put(sk, 1).with_blob(named(sk, 5000))).await.expect("a commit");
    }
    drop(store);
    // Opened before the damage is done: opening would see it.
    let store = open(&dir);
    let db = Connection::open(dir.path().join(DATABASE)).expect("the database");
    let damage = "UPDATE items SET row = (SELECT row FROM items WHERE sk = 'a') WHERE sk = 'b';
                  UPDATE blobs SET stored = substr(stored, 1, 5011) WHERE id = 'b';
                  UPDATE blobs SET stored = stored || x'00' WHERE id = 'c';";
    db.execute_batch(damage).expect("damage");
    drop(db);

    let read = store.get(&key("b"), Consistency::Strong).await;
    assert!(
        matches!(&read, Err(ReadError::Corrupt { what, .. }) if what == "item p/b"),
        "{read:?}"
    );
    assert!(store.query(&Query::all("p")).await.is_err());
    assert!(store.batch_get(&[key("a"), key("b")]).await.is_err());
    let update = Write::update(key("b"), vec![Change::Add("n".into(), 1)]);
    let answer = store.commit(Commit::one(update)).await;
    assert!(matches!(answer, Err(CommitError::Unavailable(_))), "{answer:?}");
    for id in ["b", "c"] {
        let read = store.blob(&BlobName::new("o", id), None).await;
        assert!(matches!(read, Err(ReadError::Corrupt { .. })), "{read:?}");
    }
    assert_eq!(get(&store, "a").await, Some(1));
    assert!(store.blob(&BlobName::new("o", "a"), None).await.expect("a blob").is_some());
}

#[tokio::test]
async fn a_full_disk_refuses_and_breaks_nothing() {
    let dir = folder();
    let options = Options { max_bytes: Some(2 << 20), ..Options::default() };
    let store = Embedded::open(dir.path(), options).expect("a store");
    store.commit(put("a", 1).with_blob(named("first", 1 << 20))).await.expect("there is room");
    let large = || put("a", 2).with_blob(named("second", 2 << 20));
    // Together with one that has room: the full disk is the large one's own trouble.
    let (refused, taken) = tokio::join!(store.commit(large()), store.commit(put("b", 1)));
    assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
    taken.expect("a small commit");
    assert_eq!((get(&store, "a").await, get(&store, "b").await), (Some(1), Some(1)));
    assert_eq!(store.blob(&BlobName::new("o", "second"), None).await.expect("a read"), None);
    store.delete_blobs(&[BlobName::new("o", "first")]).await.expect("a delete");
    let smaller = put("a", 3).with_blob(named("third", 1 << 20));
    store.commit(smaller).await.expect("there is room again");
    drop(store);
    assert_eq!(get(&open(&dir), "a").await, Some(3));
}

#[tokio::test]
async fn a_dying_writer_leaves_nobody_waiting() {
    let dir = folder();
    let store = open(&dir);
    store.commit(put("a", 1)).await.expect("a commit");
    let answer = store.submit(Work::Panic, 0).await;
    assert!(matches!(answer, Err(CommitError::Unknown(_))), "{answer:?}");
    // The queue may still look open for a moment; nobody hangs, and nobody is told of a success.
    let later = store.commit(put("a", 2)).await;
    assert!(
        matches!(later, Err(CommitError::Unavailable(_) | CommitError::Unknown(_))),
        "{later:?}"
    );
    assert_eq!(get(&store, "a").await, Some(1));
    drop(store);
    let store = open(&dir);
    assert_eq!(get(&store, "a").await, Some(1));
    store.commit(put("a", 3)).await.expect("a fresh writer");
}

/// A caller that goes away at any moment leaves a whole commit or none, and the queue with all its room.
#[tokio::test]
async fn a_dropped_commit_is_whole_or_nothing() {
    let dir = folder();
    let options = Options { queue: 2, queue_bytes: 64 << 10, ..Options::default() };
    let store = Embedded::open(dir.path(), options).expect("a store");
    for n in 0..200 {
        let sk = format!("{n}");
        let both = Commit {
            blobs: vec![named(&sk, 10_000)],
            writes: vec![
                Write::put(key(&sk), Item::new().with("n", n)),
                Write::update(key("count"), vec![Change::Add("n".into(), 1)]),
            ],
        };
        let store = store.clone();
        let task = tokio::spawn(async move { store.commit(both).await });
        for _ in 0..n % 4 {
            tokio::task::yield_now().await;
        }
        task.abort();
    }
    store.commit(put("last", 1)).await.expect("the queue has room");
    let mut whole = 0;
    for n in 0..200 {
        if get(&store, &format!("{n}")).await.is_some() {
            whole += 1;
            let body = store.blob(&BlobName::new("o", format!("{n}")), None).await.expect("a read");
            assert!(body.is_some(), "a head without its blob");
        }
    }
    assert_eq!(get(&store, "count").await.unwrap_or(0), whole);
}

/// Whatever way a read takes, it never goes back behind what another read has shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_never_go_back() {
    for cache_bytes in [0, 64 << 20] {
        let dir = folder();
        let store = Embedded::open(dir.path(), Options { cache_bytes, ..Options::default() })
            .expect("a store");
        store.commit(put("a", 0)).await.expect("a commit");
        let writer = {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..300 {
                    let add = Write::update(key("a"), vec![Change::Add("n".into(), 1)]);
                    store.commit(Commit::one(add)).await.expect("a commit");
                }
            })
        };
        let mut seen = 0;
        while seen < 300 {
            let page = store.query(&Query::all("p")).await.expect("a query");
            let queried = page.items[0].1.int("n").expect("a number");
            let got = get(&store, "a").await.expect("a number");
            let batch = store.batch_get(&[key("a")]).await.expect("a batch");
            let batched = batch[0].as_ref().and_then(|i| i.int("n")).expect("a number");
            assert!(
                seen <= queried && queried <= got && got <= batched,
                "{seen} {queried} {got} {batched}"
            );
            seen = batched;
        }
        writer.await.expect("the writer");
    }
}

/// Commits that wait together succeed and fail each for itself, in the order in which they came.
#[tokio::test]
async fn a_conflict_hurts_no_other_commit() {
    let dir = folder();
    let store = Arc::new(open(&dir));
    let env = Env::system();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..300 {
        let store = store.clone();
        let write = match n % 3 {
            0 => Write::update(key("a"), vec![Change::Add("n".into(), 1)]),
            1 => Write::update(key("a"), vec![Change::Add("n".into(), 100)])
                .when(Condition::LessThan("n".into(), 0)),
            _ => Write::update(key("a"), vec![Change::Append("n".into(), vec![])])
                .when(Condition::Has("n".into())),
        };
        let commit = Commit::one(write).with_blob(Blob::fresh("o", "x", &env));
        tasks.spawn(async move { (n % 3, store.commit(commit).await) });
    }
    for (kind, answer) in tasks.join_all().await {
        match (kind, &answer) {
            (0, Ok(_)) | (1, Err(CommitError::Conflict(_))) => {}
            // Before the first addition its condition fails; after it the change does not fit.
            (2, Err(CommitError::Invalid(_) | CommitError::Conflict(_))) => {}
            _ => panic!("{kind}: {answer:?}"),
        }
    }
    assert_eq!(get(&store, "a").await, Some(100));
}
