//! Blobs: bytes that come back whole or not at all.

use bytes::Bytes;

use super::{Subject, commit, conflict, get, key};
use crate::{Blob, BlobName, Commit, Condition, Env, Item, Write, blob::FRAME_BYTES, limits};

fn body(bytes: usize, salt: usize) -> Bytes {
    (0..bytes).map(|n| ((n * 31 + salt * 7) ^ (n >> 8)) as u8).collect()
}

fn named(owner: &str, id: &str, body: Bytes) -> Blob {
    Blob { name: BlobName::new(format!("conformance-{owner}"), id), body }
}

/// Stores blobs under a head of their own.
async fn store_all(store: &Subject, behaviour: &str, blobs: &[Blob]) {
    let write = Write::put(key(behaviour, "head"), Item::new().with("n", blobs.len() as i64));
    commit(store, Commit { blobs: blobs.to_vec(), writes: vec![write] }).await.expect("blobs");
}

async fn read(store: &Subject, name: &BlobName) -> Option<Bytes> {
    store.blob(name, None).await.expect("a blob")
}

/// From no bytes at all, over the bound between items and objects, to a large one; several in one commit.
pub async fn blobs_of_every_size_survive(store: Subject) {
    let bound = limits::INLINE_BLOB_BYTES - FRAME_BYTES;
    let sizes = [0, 1, 1000, bound - 1, bound, bound + 1, 20_000, 300_000, 3_000_000];
    let env = Env::system();
    let blobs: Vec<_> =
        sizes.iter().map(|s| Blob::fresh("conformance-sizes", body(*s, *s), &env)).collect();
    store_all(&store, "blob-sizes", &blobs).await;
    for blob in &blobs {
        let found = read(&store, &blob.name).await;
        assert!(found.as_ref() == Some(&blob.body), "{} bytes did not survive", blob.body.len());
    }
}

/// A range's end is exclusive, and what lies beyond the end is missing.
pub async fn blob_ranges(store: Subject) {
    for bytes in [100, 100_000] {
        let blob = named("ranges", &format!("b{bytes}"), body(bytes, 1));
        store_all(&store, "blob-ranges", std::slice::from_ref(&blob)).await;
        let end = bytes as u64;
        for range in [0..end, 0..1, 10..20, end - 1..end, 50..end + 50, 0..u64::MAX, 5..5] {
            let (from, to) = (range.start.min(end) as usize, range.end.min(end) as usize);
            let found = store.blob(&blob.name, Some(range.clone())).await.expect("a range");
            assert!(
                found == Some(blob.body.slice(from..to)),
                "{range:?} of {bytes} bytes: {found:?}"
            );
        }
        for range in [end..end + 10, end + 5..end + 10] {
            let found = store.blob(&blob.name, Some(range.clone())).await.expect("a range");
            assert_eq!(found, Some(Bytes::new()), "{range:?} of {bytes} bytes");
        }
    }
}

/// A name without a blob is `None`, with a range too.
pub async fn a_missing_blob_is_none(store: Subject) {
    let name = BlobName::fresh("conformance-missing", &Env::system());
    assert_eq!(read(&store, &name).await, None);
    assert_eq!(store.blob(&name, Some(0..10)).await.expect("a range"), None);
    assert_eq!(store.list_blobs("conformance-missing", None, 10).await.expect("a list"), vec![]);
}

/// When a head names a blob, the blob is there.
pub async fn blobs_come_with_their_writes(store: Subject) {
    let env = Env::system();
    for size in [10, 50_000] {
        let blob = Blob::fresh("conformance-with", body(size, 2), &env);
        let head = key("blob-with", &format!("{size}"));
        let names = Item::new().with("blob", blob.name.id.as_str());
        let create = Write::put(head.clone(), names).when(Condition::Absent);
        commit(&store, Commit::one(create).with_blob(blob.clone())).await.expect("a commit");
        let found = get(&store, &head).await.expect("the head");
        let name = BlobName::new("conformance-with", found.str("blob").unwrap_or_default());
        assert_eq!(read(&store, &name).await, Some(blob.body));
    }
}

/// The blobs of a commit that was refused are whole or absent, and the name can be used again.
pub async fn blobs_of_a_refused_commit_harm_nothing(store: Subject) {
    for size in [10, 50_000] {
        let blob = named("refused", &format!("b{size}"), body(size, 3));
        let head = key("blob-refused", &format!("{size}"));
        let refused = Write::put(head.clone(), Item::new()).when(Condition::Exists);
        conflict(commit(&store, Commit::one(refused).with_blob(blob.clone())).await, "no head");
        assert_eq!(get(&store, &head).await, None);
        let left = read(&store, &blob.name).await;
        assert!(left.is_none() || left.as_ref() == Some(&blob.body), "half a blob stayed");
        let again = Write::put(head.clone(), Item::new()).when(Condition::Absent);
        commit(&store, Commit::one(again).with_blob(blob.clone())).await.expect("a second try");
        assert_eq!(read(&store, &blob.name).await, Some(blob.body));
    }
}

/// Storing the same bytes under the same name again, as a repeated commit does, changes nothing.
pub async fn blobs_may_be_stored_again(store: Subject) {
    for size in [10, 50_000] {
        let blob = named("again", &format!("b{size}"), body(size, 4));
        for _ in 0..3 {
            store_all(&store, "blob-again", std::slice::from_ref(&blob)).await;
            assert_eq!(read(&store, &blob.name).await, Some(blob.body.clone()));
        }
    }
    assert_eq!(store.list_blobs("conformance-again", None, 10).await.expect("a list").len(), 2);
}

/// Listing is in the order of ids, small and large mixed, after one, up to a limit.
pub async fn list_blobs_in_order(store: Subject) {
    let ids: Vec<_> = (0..9).map(|n| format!("id{n}")).collect();
    let blobs: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(n, id)| named("list", id, body(if n % 2 == 0 { 10 } else { 20_000 }, n)))
        .collect();
    let shuffled: Vec<_> =
        [5, 0, 8, 2, 7, 1, 4, 3, 6].iter().map(|n: &usize| blobs[*n].clone()).collect();
    store_all(&store, "blob-list", &shuffled).await;
    let list = async |after: Option<&str>, limit: usize| -> Vec<String> {
        let names = store.list_blobs("conformance-list", after, limit).await.expect("a list");
        assert!(names.iter().all(|n| n.owner == "conformance-list"));
        names.into_iter().map(|n| n.id).collect()
    };
    assert_eq!(list(None, 100).await, ids);
    assert_eq!(list(None, 4).await, ids[..4]);
    assert_eq!(list(Some("id3"), 100).await, ids[4..]);
    assert_eq!(list(Some("id3"), 2).await, ids[4..6]);
    assert_eq!(list(Some("id33"), 100).await, ids[4..]);
    assert_eq!(list(Some("id8"), 100).await, [""; 0]);
}

/// Going on after the last name of each list finds every blob once, in order, however many there are.
pub async fn list_blobs_goes_on(store: Subject) {
    let env = Env::system();
    let blobs: Vec<_> = (0..90)
        .map(|n| {
            Blob::fresh("conformance-go-on", body(if n % 3 == 0 { 9_000 } else { 10 }, n), &env)
        })
        .collect();
    store_all(&store, "blob-go-on", &blobs).await;
    let mut due: Vec<_> = blobs.into_iter().map(|b| b.name).collect();
    due.sort();
    for limit in [7, 40, 89, 90, 200] {
        let mut found: Vec<BlobName> = Vec::new();
        loop {
            let after = found.last().map(|n| n.id.clone());
            let list = store.list_blobs("conformance-go-on", after.as_deref(), limit).await;
            let list = list.expect("a list");
            let ended = list.len() < limit;
            found.extend(list);
            if ended {
                break;
            }
        }
        assert_eq!(found, due, "limit {limit}");
    }
}

/// Owners whose names begin alike do not see each other's blobs.
pub async fn list_blobs_of_one_owner(store: Subject) {
    let blobs = ["own", "own.x", "own-x", "ow"]
        .map(|o| named(o, &format!("of-{o}"), Bytes::from_static(b"x")));
    store_all(&store, "blob-owner", &blobs).await;
    for blob in &blobs {
        let names = store.list_blobs(&blob.name.owner, None, 100).await.expect("a list");
        assert_eq!(names, std::slice::from_ref(&blob.name));
    }
}

/// Deleting removes what is there, ignores what is not, and leaves the others.
pub async fn delete_blobs_is_idempotent(store: Subject) {
    let blobs: Vec<_> = [10, 20_000, 10, 20_000]
        .iter()
        .enumerate()
        .map(|(n, s)| named("del", &format!("b{n}"), body(*s, n)))
        .collect();
    store_all(&store, "blob-delete", &blobs).await;
    let never = BlobName::new("conformance-del", "never");
    let names = [blobs[0].name.clone(), never, blobs[1].name.clone()];
    for _ in 0..2 {
        store.delete_blobs(&names).await.expect("a delete");
        assert_eq!(read(&store, &blobs[0].name).await, None);
        assert_eq!(read(&store, &blobs[1].name).await, None);
        assert_eq!(read(&store, &blobs[2].name).await, Some(blobs[2].body.clone()));
        assert_eq!(read(&store, &blobs[3].name).await, Some(blobs[3].body.clone()));
    }
    let left = store.list_blobs("conformance-del", None, 10).await.expect("a list");
    assert_eq!(left, [blobs[2].name.clone(), blobs[3].name.clone()]);
    store.delete_blobs(&[]).await.expect("nothing to delete");
}
