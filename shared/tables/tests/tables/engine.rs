//! Tables on the engine itself: the wake-up index, and a store that breaks by a seed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use object_store::{ObjectStoreExt, local::LocalFileSystem, memory::InMemory, path::Path};
use tidewheel_engine::{
    Declaration, Engine, Frame, PartitionId, PushItem, Pushed, Settings as EngineSettings,
};
use tidewheel_store::{Env, Faulty, Memory, Store, faulty::Plan};
use tidewheel_tables::{Settings, Tables};

use crate::{fake::START_US, seal::rows};

fn engine(store: Arc<dyn Store>, env: Env) -> Engine {
    Engine::new(store, env, EngineSettings::default())
}

fn tables(engine: &Engine, objects: &Arc<InMemory>) -> Tables {
    Tables::new(engine, objects.clone(), Path::default(), "mem://x", Settings::default())
}

fn item(stream: &str, partition: &str, n: u64) -> PushItem {
    PushItem {
        stream: stream.to_owned(),
        partition: partition.to_owned(),
        payload: format!("{{\"n\":{n}}}").into(),
        transaction_id: Some(format!("{partition}-{n}")),
        ..PushItem::default()
    }
}

/// Everything in the log, as (partition, offset, payload).
async fn log(engine: &Engine, stream: &str) -> BTreeSet<(String, i64, String)> {
    let mut all = BTreeSet::new();
    for partition in engine.partitions(stream, None, 1000).await.unwrap() {
        let mut next = 0;
        loop {
            let read = engine.read(&partition.id, next, 1000, usize::MAX / 2).await.unwrap();
            if read.records.is_empty() {
                break;
            }
            for r in &read.records {
                let payload = String::from_utf8(r.payload.to_vec()).unwrap();
                all.insert((partition.name.clone(), r.offset as i64, payload));
            }
            next = read.next;
        }
    }
    all
}

async fn assert_table_equals_log(engine: &Engine, tables: &Tables, stream: &str) -> usize {
    let found = rows(&tables.scan(stream).await.unwrap());
    let set: BTreeSet<_> = found.iter().cloned().collect();
    assert_eq!(set.len(), found.len(), "a row is there twice");
    assert_eq!(set, log(engine, stream).await);
    for (partition, ..) in &set {
        let offsets: Vec<i64> = found.iter().filter(|r| r.0 == *partition).map(|r| r.1).collect();
        assert!(offsets.is_sorted(), "partition {partition} is out of order");
    }
    set.len()
}

#[tokio::test(start_paused = true)]
async fn a_table_follows_its_stream_and_wakes_only_for_what_is_new() {
    let store = Memory::new();
    let engine = engine(Arc::new(store.clone()), Env::simulated(7, START_US, 0));
    let tables = tables(&engine, &Arc::new(InMemory::new()));
    for p in 0..30 {
        for pushed in engine.push((0..5).map(|n| item("s", &format!("p{p}"), n)).collect()).await {
            assert!(matches!(pushed, Pushed::Queued { .. }), "{pushed:?}");
        }
    }
    assert_eq!(tables.seal("s").await.unwrap().rows, 150);
    // All quiet: they go to sleep.
    assert_eq!(tables.seal("s").await.unwrap().rows, 0);
    assert_eq!(assert_table_equals_log(&engine, &tables, "s").await, 150);
    let report = tables.seal_all().await.unwrap();
    assert!(report.sealed.is_empty() && report.failed.is_empty(), "{report:?}");

    store.reset_meter();
    tables.seal("s").await.unwrap();
    let asleep = store.meter();
    assert!(
        asleep.read_units <= 8.0 && asleep.write_units == 0.0,
        "thirty sleepers cost {asleep:?}"
    );

    engine.push(vec![item("s", "p7", 5)]).await;
    let p7 = PartitionId::of(&engine.stream("s").await.unwrap().unwrap().id, "p7");
    assert_eq!(tables.reach("s").await.unwrap().below(&p7), 5);
    let woken = tables.seal("s").await.unwrap();
    assert_eq!((woken.rows, woken.partitions), (1, 1));
    assert_eq!(tables.reach("s").await.unwrap().below(&p7), 6);
    assert_eq!(assert_table_equals_log(&engine, &tables, "s").await, 151);
}

#[tokio::test(start_paused = true)]
async fn a_table_on_disk_is_found_by_its_folder_alone() {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true);
    let engine = engine(Arc::new(Memory::new()), Env::simulated(8, START_US, 0));
    let uri = format!("file://{}", folder.path().display());
    let tables = Tables::new(&engine, Arc::new(local), Path::default(), &uri, Settings::default());
    for n in 0..3 {
        engine.push(vec![item("a/b", "p", n)]).await;
        tables.seal("a/b").await.unwrap();
    }
    assert_eq!(assert_table_equals_log(&engine, &tables, "a/b").await, 3);
    let table = folder.path().join("tables/a!2fb");
    let hint = std::fs::read_to_string(table.join("metadata/version-hint.text")).unwrap();
    assert!(hint.starts_with("00003-"), "{hint}");
    let metadata = std::fs::read(table.join(format!("metadata/{hint}.metadata.json"))).unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata["location"], format!("{uri}/tables/a!2fb"));
    assert_eq!(metadata["format-version"], 2);
    assert_eq!(metadata["properties"]["tidewheel.stream"], "a/b");
}

/// Producers and two sealers on a store that fails, loses replies, and lets commits arrive late.
async fn storm(seed: u64) {
    let memory = Memory::new();
    let env = |n: u64, skew| Env::simulated(seed * 100 + n, START_US, skew);
    let faulty = Faulty::new(Arc::new(memory.clone()), Plan::stormy(), env(0, 0));
    let objects = Arc::new(InMemory::new());

    let mut tasks = tokio::task::JoinSet::new();
    for producer in 0..3u64 {
        let store = Arc::new(faulty.another(Plan::stormy(), env(1 + producer, 0)));
        let engine = engine(store, env(10 + producer, producer as i64 * 700_000));
        tasks.spawn(async move {
            for n in 0..20u64 {
                let partition = format!("p{}", n % 3);
                let batch =
                    (0..4).map(|i| item("s", &partition, producer * 1000 + n * 4 + i)).collect();
                engine.push(batch).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
    }
    for sealer in 0..2u64 {
        let store = Arc::new(faulty.another(Plan::stormy(), env(4 + sealer, 0)));
        let engine = engine(store, env(20 + sealer, -(sealer as i64) * 90_000_000));
        let tables = tables(&engine, &objects);
        tasks.spawn(async move {
            for _ in 0..25 {
                // Whatever it says: the next one goes on.
                let _ = tables.seal("s").await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }

    let engine = engine(Arc::new(memory), env(30, 200_000_000));
    let tables = tables(&engine, &objects);
    tables.seal("s").await.unwrap();
    let rows = assert_table_equals_log(&engine, &tables, "s").await;
    assert!(rows > 0);
    assert_eq!(tables.freshness("s").await.unwrap().behind, 0);
}

#[tokio::test(start_paused = true)]
async fn a_storm_loses_nothing_and_doubles_nothing() {
    for seed in 0..12 {
        storm(seed).await;
    }
}

async fn publish(engine: &Engine, rows: &[&str]) {
    let rows = rows.iter().map(|row| bytes::Bytes::copy_from_slice(row.as_bytes())).collect();
    let frame = Frame { claim: None, seq: 0, rows };
    for landed in engine.publish("s", vec![frame]).await {
        landed.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_declared_stream_is_published_across_a_migration_and_its_retirement() {
    let engine = engine(Arc::new(Memory::new()), Env::simulated(9, START_US, 0));
    let objects = Arc::new(InMemory::new());
    let tables = tables(&engine, &objects);
    let schema = |text: &str| Some(Arc::new(tidewheel_schema::Schema::compile(text).unwrap()));
    let one = schema(r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#);
    let two = schema(
        r#"{"properties":{"n":{"type":"integer"},"s":{"type":["string","null"]}},"required":["n"]}"#,
    );
    engine.declare("s", Declaration { schema: one, ..Declaration::default() }).await.unwrap();
    let metadata = async || {
        let path = Path::from("tables/s/s.metadata.json");
        let body = objects.get(&path).await.unwrap().bytes().await.unwrap();
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()
    };
    // What it is made of is said before it has a row.
    tables.seal("s").await.unwrap();
    assert_eq!(metadata().await["live_log"]["start_offset"], 1);

    publish(&engine, &[r#"{"n":1}"#, r#"{"n":2}"#]).await;
    assert_eq!(tables.seal("s").await.unwrap().rows, 2);
    publish(&engine, &[r#"{"n":3}"#]).await;
    engine.migrate("s", two, Vec::new()).await.unwrap();
    publish(&engine, &[r#"{"n":4,"s":"x"}"#, r#"{"n":5}"#]).await;
    assert_eq!(tables.seal("s").await.unwrap().rows, 3);
    let rows = async || {
        let scans = tables.scan_logs("s").await.unwrap();
        let count = |s: &tidewheel_tables::Scan| s.batches.iter().map(|b| b.num_rows()).sum();
        scans.iter().map(|(name, s)| (name.clone(), count(s))).collect::<Vec<(String, usize)>>()
    };
    assert_eq!(rows().await, [("s".to_owned(), 3), ("s-v2".to_owned(), 2)]);
    let said = metadata().await;
    assert_eq!(
        (&said["sealed_logs"][0]["end_offset"], &said["live_log"]["name"]),
        (&4.into(), &"s-v2".into())
    );
    assert_eq!(tables.freshness("s").await.unwrap().rows, 5);

    publish(&engine, &[r#"{"n":6}"#]).await;
    engine.retire("s").await.unwrap();
    tables.seal("s").await.unwrap();
    let said = metadata().await;
    assert_eq!(
        (&said["streamcast_metadata"], &said["retirement"]["end_offset"]),
        (&3.into(), &7.into())
    );
    assert_eq!(rows().await, [("s".to_owned(), 3), ("s-v2".to_owned(), 3)]);
    assert_eq!(tables.freshness("s").await.unwrap().behind, 0);
}
