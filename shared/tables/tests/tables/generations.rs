//! Declared streams: a table for each generation, one after another, and what readers are told of them.

use std::{collections::BTreeMap, sync::Arc};

use arrow_array::{cast::AsArray, types::Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tidewheel_engine::DEFAULT_PARTITION;
use tidewheel_schema::Schema;
use tidewheel_tables::{Log, Logs, Settings, Tables};

use crate::fake::{Fault, Fuse, World};

const ONE: &str = r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#;
const TWO: &str =
    r#"{"properties":{"s":{"type":["string","null"]},"n":{"type":"integer"}},"required":["n"]}"#;

fn log(name: &str, schema: &str, start: u64, end: Option<u64>) -> Log {
    Log {
        name: name.to_owned(),
        schema: Arc::new(Schema::compile(schema).unwrap()),
        sort_by: Vec::new(),
        start,
        start_us: Some(start as i64),
        end,
        end_us: end.map(|end| end as i64),
    }
}

fn logs(logs: Vec<Log>) -> Logs {
    Logs { logs, retired: None, floor: 0, max_age_us: None, flush_every_us: None }
}

/// A stream that migrated after ten rows, and has five in its new columns.
fn migrated() -> World {
    let world = World::new();
    world.streams.set_logs("s", logs(vec![log("s", ONE, 0, None)]));
    let row = |n: u64| format!("{{\"n\":{n}}}");
    world.streams.push("s", DEFAULT_PARTITION, (0..10).map(row));
    world.streams.set_logs("s", logs(vec![log("s", ONE, 0, Some(10)), log("s-v2", TWO, 10, None)]));
    let row = |n: u64| format!("{{\"s\":\"x\",\"n\":{n}}}");
    world.streams.push("s", DEFAULT_PARTITION, (10..15).map(row));
    world
}

/// The readers' offsets in each table.
async fn offsets(tables: &Tables) -> BTreeMap<String, Vec<i64>> {
    let scans = tables.scan_logs("s").await.unwrap();
    let of = |batch: &arrow_array::RecordBatch| {
        let column = batch.column_by_name("litelink_offset").unwrap();
        column.as_primitive::<Int64Type>().values().to_vec()
    };
    scans.into_iter().map(|(name, s)| (name, s.batches.iter().flat_map(of).collect())).collect()
}

/// The stream's metadata, as a reader opens it.
async fn metadata(world: &World) -> Value {
    let hint = world.file("s/s.metadata/version-hint.text").await.unwrap();
    let file = format!("s/s.metadata/{}", std::str::from_utf8(&hint).unwrap());
    let body = world.file(&file).await.unwrap();
    assert_eq!(world.file("s/s.metadata.json").await.unwrap(), body, "the plain copy");
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_generation_has_a_table_and_readers_are_told_of_both() {
    let world = migrated();
    let tables = world.tables();
    assert_eq!(tables.seal("s").await.unwrap().rows, 15);
    let found = offsets(&tables).await;
    assert_eq!(found["s"], (1..=10).collect::<Vec<_>>());
    assert_eq!(found["s-v2"], (11..=15).collect::<Vec<_>>());
    let said = metadata(&world).await;
    assert_eq!(said["streamcast_metadata"], 2);
    assert_eq!(said["stream_id"], tidewheel_engine::Uuid::derived(&[b"s"]).to_string());
    let sealed = &said["sealed_logs"][0];
    assert_eq!(
        (&sealed["name"], &sealed["published"]),
        (&json!("s"), &json!("mem://root/tables/s"))
    );
    assert_eq!((&sealed["start_offset"], &sealed["end_offset"]), (&json!(1), &json!(11)));
    let live = &said["live_log"];
    assert_eq!((&live["name"], &live["start_offset"]), (&json!("s-v2"), &json!(11)));
    assert_eq!(live["system_schema"]["properties"]["streamcast_ts"]["type"], "integer");
    // The order of the columns is part of what is said.
    let hint = world.file("s/s.metadata.json").await.unwrap();
    let text = String::from_utf8(hint.to_vec()).unwrap();
    let at = text.find("live_log").unwrap();
    let (s, n) = (text[at..].find("\"s\":{").unwrap(), text[at..].find("\"n\":{").unwrap());
    assert!(s < n, "{text}");

    let file = said["manifest"].as_str().unwrap();
    let body = world.file(&format!("s/s.metadata/{file}")).await.unwrap();
    assert_eq!(world.file("s/s.manifest.parquet").await.unwrap(), body);
    let mut read = ParquetRecordBatchReaderBuilder::try_new(body).unwrap().build().unwrap();
    let batch = read.next().unwrap().unwrap();
    let long =
        |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().value(0);
    assert_eq!((long("start_offset"), long("end_offset"), long("record_count")), (1, 11, 10));
    let n = batch.column_by_name("n").unwrap().as_struct();
    let of = |name: &str| n.column_by_name(name).unwrap().as_primitive::<Int64Type>().value(0);
    assert_eq!((of("min"), of("max"), of("null_count"), of("value_count")), (0, 9, 0, 10));

    // Nothing new is said when there is nothing new.
    let before = world.listed().await;
    tables.seal("s").await.unwrap();
    world.tables().seal("s").await.unwrap();
    assert_eq!(world.listed().await, before);
}

#[tokio::test(start_paused = true)]
async fn a_generation_that_is_not_whole_is_live_and_holds_up_the_next() {
    let world = migrated();
    let settings = Settings { seal_rows: 4, ..Settings::default() };
    // The source answers seventy rows at once, so the first call takes all ten of the first generation.
    let fuse = Fuse::never();
    let tables = world.process_with(&fuse, settings);
    let dead = world.process(&Fuse::at(3, Fault::DieBefore));
    let _ = dead.seal("s").await;
    assert!(tables.scan_logs("s").await.unwrap().is_empty());
    tables.seal("s").await.unwrap();
    let found = offsets(&tables).await;
    assert_eq!(found["s"].len(), 10);
    assert_eq!(metadata(&world).await["live_log"]["name"], "s-v2");
}

#[tokio::test(start_paused = true)]
async fn sealing_generations_may_die_anywhere() {
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        for k in 0.. {
            let world = migrated();
            let fuse = Fuse::at(k, fault);
            let outcome = world.process(&fuse).seal("s").await;
            let struck = fuse.struck();
            let what = format!("{fault:?} at call {k}: {outcome:?}");
            // What is told at any moment is there, and dense from the first row.
            let next = world.tables();
            let found: Vec<i64> = offsets(&next).await.into_values().flatten().collect();
            assert!(found.iter().copied().eq(1..=found.len() as i64), "{what}: {found:?}");
            if let Some(hint) = world.file("s/s.metadata/version-hint.text").await {
                let file = std::str::from_utf8(&hint).unwrap();
                let body = world.file(&format!("s/s.metadata/{file}")).await.unwrap();
                let said: Value = serde_json::from_slice(&body).unwrap();
                if said["live_log"]["name"] == "s-v2" {
                    assert!(found.len() >= 10, "{what}");
                    let manifest = said["manifest"].as_str().unwrap();
                    assert!(world.file(&format!("s/s.metadata/{manifest}")).await.is_some());
                }
            }
            for _ in 0..3 {
                let _ = world.tables().seal("s").await;
            }
            let found = offsets(&next).await;
            assert_eq!((found["s"].len(), found["s-v2"].len()), (10, 5), "{what}");
            assert_eq!(metadata(&world).await["live_log"]["name"], "s-v2", "{what}");
            if !struck {
                assert!(k > 20, "only {k} calls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_retired_stream_says_so_once_everything_is_published() {
    let world = migrated();
    let mut both = logs(vec![log("s", ONE, 0, Some(10)), log("s-v2", TWO, 10, None)]);
    both.retired = Some((77, 15));
    world.streams.set_logs("s", both);
    world.tables().seal("s").await.unwrap();
    let said = metadata(&world).await;
    assert_eq!(said["streamcast_metadata"], 3);
    assert_eq!(
        (&said["retirement"]["at"], &said["retirement"]["end_offset"]),
        (&json!(77), &json!(16))
    );
    assert_eq!(said["live_log"]["name"], "s-v2");
}

#[tokio::test(start_paused = true)]
async fn retention_is_said_first_and_files_go_an_hour_later() {
    let world = migrated();
    world.tables().seal("s").await.unwrap();
    let mut both = logs(vec![log("s", ONE, 0, Some(10)), log("s-v2", TWO, 10, None)]);
    (both.floor, both.max_age_us) = (12, Some(1_000_000));
    world.streams.set_logs("s", both);
    world.tables().seal("s").await.unwrap();
    let said = metadata(&world).await;
    assert_eq!(said["sealed_logs"], json!([]));
    assert_eq!(
        (&said["live_log"]["start_offset"], &said["retention"]),
        (&json!(13), &json!(1_000_000))
    );
    assert_eq!(
        (&said["pending"]["floor"], &said["pending"]["dropped"][0]["name"]),
        (&json!(13), &json!("s"))
    );
    // Whoever opened it before finds everything.
    assert_eq!(world.tables().clean("s").await.unwrap().rows, 0);
    assert_eq!(offsets(&world.tables()).await["s"].len(), 10);
    world.pass(2);
    assert_eq!(world.tables().clean("s").await.unwrap().rows, 10);
    let found = offsets(&world.tables()).await;
    assert!(found["s"].is_empty(), "{found:?}");
    assert_eq!(found["s-v2"].len(), 5, "the floor lies in this file");
    world.tables().seal("s").await.unwrap();
    assert_eq!(metadata(&world).await.get("pending"), None);
    world.pass(30);
    assert!(world.tables().clean("s").await.unwrap().files > 0);
    assert_eq!(offsets(&world.tables()).await["s-v2"].len(), 5);
}

#[tokio::test(start_paused = true)]
async fn rows_are_sorted_by_what_was_declared_where_they_are_written_again() {
    let world = World::new();
    let sorted = Log { sort_by: vec!["n".to_owned()], ..log("s", ONE, 0, None) };
    world.streams.set_logs("s", logs(vec![sorted]));
    let tables =
        world.process_with(&Fuse::never(), Settings { compact_files: 2, ..Settings::default() });
    for n in [3, 1, 2] {
        world.streams.push("s", DEFAULT_PARTITION, [format!("{{\"n\":{n}}}")]);
        tables.seal("s").await.unwrap();
    }
    assert_eq!(offsets(&tables).await["s"], [1, 2, 3]);
    assert_eq!(tables.compact("s").await.unwrap().replaced, 3);
    assert_eq!(offsets(&tables).await["s"], [2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_times_of_its_own_is_sealed_then() {
    let world = World::new();
    let mut own = logs(vec![log("s", ONE, 0, None)]);
    own.flush_every_us = Some(2_000_000);
    world.streams.set_logs("s", own);
    let tables = world.tables();
    let push = || world.streams.push("s", DEFAULT_PARTITION, ["{\"n\":1}".to_owned()]);
    push();
    assert_eq!(tables.seal_all().await.unwrap().sealed.len(), 1, "at first with all others");
    push();
    assert!(tables.seal_all().await.unwrap().sealed.is_empty(), "it is not its time");
    assert!(tables.seal_due().await.sealed.is_empty());
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(tables.seal_due().await.sealed.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_column_keeps_its_id_in_every_generation() {
    let world = migrated();
    world.tables().seal("s").await.unwrap();
    let ids = async |log: &str| {
        let hint = world.hint(&format!("s/{log}")).await.unwrap();
        let body = world.file(&format!("s/{log}/metadata/{hint}.metadata.json")).await.unwrap();
        let metadata: Value = serde_json::from_slice(&body).unwrap();
        let fields = metadata["schemas"][0]["fields"].as_array().unwrap().clone();
        let of = |f: &Value| (f["name"].as_str().unwrap().to_owned(), f["id"].as_i64().unwrap());
        let order = metadata["sort-orders"][0]["fields"][0]["source-id"].as_i64().unwrap();
        (fields.iter().map(of).collect::<BTreeMap<_, _>>(), order)
    };
    let ((one, order), (two, same)) = (ids("s").await, ids("s-v2").await);
    assert_eq!(one["n"], two["n"]);
    assert!(!one.values().any(|id| *id == two["s"]), "a new column has a new id");
    assert_eq!((order, same), (one["litelink_offset"], two["litelink_offset"]));
}
