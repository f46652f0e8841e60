//! The meter bills what the cloud would, by rule.

use tidewheel_store::{
    Blob, BlobName, Change, Commit, Condition, Consistency, Env, Item, Key, Memory, Query, Store,
    Value, Write, blob::FRAME_BYTES, limits, meter::Units,
};

fn key(sk: &str) -> Key {
    Key::new("p", sk)
}

/// An item of about this many KiB.
fn item(kib: usize) -> Item {
    Item::new().with("x", "x".repeat(kib * 1024 - 100))
}

fn put(sk: &str, kib: usize) -> Write {
    Write::put(key(sk), item(kib))
}

/// What a call costs, whatever comes of it.
async fn cost<T>(memory: &Memory, call: impl Future<Output = T>) -> Units {
    let before = memory.meter();
    call.await;
    memory.meter() - before
}

async fn written(memory: &Memory, commit: Commit) -> f64 {
    let units = cost(memory, memory.commit(commit)).await;
    assert_eq!((units.read_units, units.calls), (0.0, 1));
    units.write_units
}

#[tokio::test]
async fn a_write_bills_the_larger_of_before_and_after() {
    let m = Memory::new();
    assert_eq!(written(&m, Commit::one(put("a", 3))).await, 3.0);
    assert_eq!(written(&m, Commit::one(put("a", 1))).await, 3.0);
    assert_eq!(written(&m, Commit::one(put("a", 1))).await, 1.0);
    assert_eq!(written(&m, Commit::one(put("a", 5))).await, 5.0);
    let touch = Write::update(key("a"), vec![Change::Add("n".into(), 1)]);
    assert_eq!(written(&m, Commit::one(touch)).await, 5.0);
    assert_eq!(written(&m, Commit::one(Write::delete(key("a")))).await, 5.0);
    assert_eq!(written(&m, Commit::one(Write::delete(key("a")))).await, 1.0);
}

#[tokio::test]
async fn the_bound_of_a_unit_is_exact_and_counts_the_key() {
    let m = Memory::new();
    // `pk`, `p`, `sk`, `a`, and the attribute's name.
    let empty = 2 + 1 + 2 + 1 + 1;
    let of = |bytes: usize| {
        Commit::one(Write::put(key("a"), Item::new().with("x", "x".repeat(bytes - empty))))
    };
    assert_eq!(written(&m, of(1024)).await, 1.0);
    assert_eq!(written(&m, of(1025)).await, 2.0);
}

#[tokio::test]
async fn a_failed_condition_costs_the_same() {
    let m = Memory::new();
    m.commit(Commit::one(put("a", 4))).await.expect("a commit");
    let refused = put("a", 1).when(Condition::Absent);
    assert_eq!(written(&m, Commit::one(refused)).await, 4.0);
    let refused = put("b", 4).when(Condition::Exists);
    assert_eq!(written(&m, Commit::one(refused)).await, 1.0);
}

#[tokio::test]
async fn a_transaction_costs_twice_also_when_it_is_cancelled() {
    let m = Memory::new();
    m.commit(Commit::one(put("a", 4))).await.expect("a commit");
    let check = || Write::check(key("a")).when(Condition::Exists);
    assert_eq!(written(&m, Commit::all(vec![check(), put("b", 2)])).await, 2.0 * (4.0 + 2.0));
    assert_eq!(written(&m, Commit::one(check())).await, 2.0 * 4.0);
    let cancelled = Commit::all(vec![check().when(Condition::Absent), put("b", 1)]);
    assert_eq!(written(&m, cancelled).await, 2.0 * (4.0 + 2.0));
}

#[tokio::test]
async fn reads_bill_by_size_and_consistency() {
    let m = Memory::new();
    m.commit(Commit::one(put("a", 9))).await.expect("a commit");
    m.commit(Commit::one(put("b", 1))).await.expect("a commit");
    let read = async |sk: &str, consistency| {
        let k = key(sk);
        cost(&m, m.get(&k, consistency)).await.read_units
    };
    assert_eq!(read("a", Consistency::Strong).await, 3.0);
    assert_eq!(read("a", Consistency::Eventual).await, 1.5);
    assert_eq!(read("b", Consistency::Strong).await, 1.0);
    assert_eq!(read("none", Consistency::Strong).await, 1.0);
    assert_eq!(read("none", Consistency::Eventual).await, 0.5);
    let keys = [key("a"), key("b"), key("none")];
    assert_eq!(cost(&m, m.batch_get(&keys)).await.read_units, 3.0 + 1.0 + 1.0);
}

#[tokio::test]
async fn a_query_bills_its_bytes_together() {
    let m = Memory::new();
    for n in 0..10 {
        let small = Item::new().with("n", n).with("x", "x".repeat(400));
        m.commit(Commit::one(Write::put(key(&format!("{n}")), small))).await.expect("a commit");
    }
    // 10 items of about 410 bytes are two units, not ten.
    assert_eq!(cost(&m, m.query(&Query::all("p"))).await.read_units, 2.0);
    let first = Query { limit: 1, ..Query::all("p") };
    assert_eq!(cost(&m, m.query(&first)).await.read_units, 1.0);
    assert_eq!(cost(&m, m.query(&Query::all("none"))).await.read_units, 1.0);
}

#[tokio::test]
async fn small_blobs_are_items_and_large_ones_objects() {
    let m = Memory::new();
    let blob =
        |id: &str, bytes: usize| Blob { name: BlobName::new("o", id), body: vec![0; bytes].into() };
    let with = |b: Blob| Commit::one(put("head", 1)).with_blob(b);
    let inline = limits::INLINE_BLOB_BYTES - FRAME_BYTES;
    for (id, bytes, write_units, blob_puts) in [
        ("a", 10, 1.0, 0),
        ("b", 2048, 3.0, 0),
        ("c", inline, 9.0, 0),
        ("d", inline + 1, 0.0, 1),
        ("e", 1 << 20, 0.0, 1),
    ] {
        let units = cost(&m, m.commit(with(blob(id, bytes)))).await;
        assert_eq!(
            (units.write_units, units.blob_puts),
            (1.0 + write_units, blob_puts),
            "{bytes} bytes"
        );
    }
    for (id, read_units, blob_gets) in
        [("a", 0.5, 0), ("c", 1.5, 0), ("d", 1.5, 1), ("e", 1.5, 1), ("none", 1.5, 1)]
    {
        let name = BlobName::new("o", id);
        let units = cost(&m, m.blob(&name, None)).await;
        assert_eq!((units.read_units, units.blob_gets), (read_units, blob_gets), "{id}");
    }
    let listed = cost(&m, m.list_blobs("o", None, 100)).await;
    assert_eq!((listed.blob_lists, listed.read_units), (1, 1.5));
    // These names do not say where they are, so an item is looked for in any case.
    let names = [BlobName::new("o", "c"), BlobName::new("o", "e")];
    assert_eq!(cost(&m, m.delete_blobs(&names)).await.write_units, 9.0 + 1.0);
}

/// The name of a large blob says that it is an object, and nothing else is asked or paid for.
#[tokio::test]
async fn names_that_say_where_they_are_cost_one_request() {
    let m = Memory::new();
    let blob = Blob::fresh("o", vec![0; 20_000], &Env::system());
    let name = blob.name.clone();
    let units = cost(&m, m.commit(Commit::one(put("head", 1)).with_blob(blob))).await;
    assert_eq!((units.write_units, units.blob_puts), (1.0, 1));
    let units = cost(&m, m.blob(&name, None)).await;
    assert_eq!((units.read_units, units.blob_gets), (0.0, 1));
    let units = cost(&m, m.delete_blobs(&[name])).await;
    assert_eq!((units.write_units, units.read_units), (0.0, 0.0));
}

/// The blobs of a refused commit have been stored, and paid for.
#[tokio::test]
async fn blobs_of_a_refused_commit_stay_and_are_billed() {
    let m = Memory::new();
    let blob = Blob { name: BlobName::new("o", "b"), body: vec![0; 2048].into() };
    let refused = put("head", 1).when(Condition::Exists);
    assert_eq!(written(&m, Commit::one(refused).with_blob(blob)).await, 3.0 + 1.0);
    assert_eq!(m.blobs().len(), 1);
}

#[tokio::test]
async fn invalid_calls_cost_nothing() {
    let m = Memory::new();
    m.commit(Commit::default()).await.expect_err("no writes");
    m.get(&Key::new("", ""), Consistency::Strong).await.expect_err("no key");
    assert_eq!(m.meter(), Units::default());
}

#[tokio::test]
async fn the_log_tells_calls_apart() {
    let m = Memory::new();
    m.commit(Commit::one(put("unlogged", 1))).await.expect("a commit");
    assert_eq!(m.take_log(), vec![]);
    m.start_log();
    m.commit(Commit::one(put("a", 2))).await.expect("a commit");
    m.commit(Commit::one(put("a", 2).when(Condition::Absent))).await.expect_err("a conflict");
    m.get(&key("a"), Consistency::Strong).await.expect("a read");
    let log = m.take_log();
    let seen: Vec<_> = log.iter().map(|c| (c.method, c.outcome, c.names.join(" "))).collect();
    let due = [("commit", "ok"), ("commit", "conflict"), ("get", "ok")];
    assert_eq!(seen, due.map(|(method, outcome)| (method, outcome, "p/a".to_owned())));
    assert_eq!(log[1].units.write_units, 2.0);
    assert_eq!(m.take_log(), vec![]);
    m.reset_meter();
    assert_eq!(m.meter(), Units::default());
}

#[tokio::test]
async fn a_fork_is_a_life_of_its_own() {
    let m = Memory::new();
    m.commit(Commit::one(put("a", 1))).await.expect("a commit");
    let fork = m.fork();
    fork.commit(Commit::one(Write::delete(key("a")))).await.expect("a commit");
    let set = Write::update(key("b"), vec![Change::Set("x".into(), Value::Bool(true))]);
    m.commit(Commit::one(set)).await.expect("a commit");
    assert_eq!((m.items().len(), fork.items().len()), (2, 0));
}
