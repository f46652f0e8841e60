//! Sealing when nothing goes wrong.

use std::collections::BTreeSet;

use arrow_array::{Array, cast::AsArray, types::Int64Type, types::TimestampMicrosecondType};
use tidewheel_tables::{Error, Scan, Settings};

use crate::fake::{CHUNK, Fuse, START_US, World};

/// The rows of an envelope table in their order, as (partition, offset, payload).
pub(crate) fn rows(scan: &Scan) -> Vec<(String, i64, String)> {
    let mut rows = Vec::new();
    for batch in &scan.batches {
        let text = |name: &str| batch.column_by_name(name).unwrap().as_string::<i32>().clone();
        let offsets = batch.column_by_name("offset").unwrap().as_primitive::<Int64Type>().clone();
        let (partitions, payloads) = (text("partition"), text("payload"));
        for i in 0..batch.num_rows() {
            rows.push((
                partitions.value(i).to_owned(),
                offsets.value(i),
                payloads.value(i).to_owned(),
            ));
        }
    }
    rows
}

/// Asserts that a table has every record of a stream exactly once, and each partition's in order.
pub(crate) async fn assert_exact(world: &World, stream: &str) -> Scan {
    let scan = world.tables().scan(stream).await.unwrap();
    let rows = rows(&scan);
    let set: BTreeSet<_> = rows.iter().cloned().collect();
    assert_eq!(set.len(), rows.len(), "a row is there twice");
    assert_eq!(set, world.streams.all(stream));
    for (partition, ..) in &set {
        let offsets: Vec<i64> = rows.iter().filter(|r| r.0 == *partition).map(|r| r.1).collect();
        assert!(offsets.is_sorted(), "partition {partition} is out of order");
    }
    assert_eq!(scan.summary["total-records"], rows.len().to_string());
    scan
}

fn numbers(range: std::ops::Range<u64>) -> impl Iterator<Item = String> {
    range.map(|n| format!("{{\"n\":{n}}}"))
}

#[tokio::test(start_paused = true)]
async fn every_record_is_in_the_table_once() {
    let world = World::new();
    let tables = world.tables();
    world.streams.push("s", "b", numbers(0..2000));
    world.streams.push("s", "a", numbers(0..10));
    let sealed = tables.seal("s").await.unwrap();
    assert_eq!((sealed.rows, sealed.files, sealed.partitions, sealed.more), (2010, 1, 2, false));
    world.streams.push("s", "a", numbers(10..20));
    let again = tables.seal("s").await.unwrap();
    assert_eq!((again.rows, again.partitions), (10, 1));
    let scan = assert_exact(&world, "s").await;
    assert_eq!(Some(scan.snapshot_id), again.snapshot_id);
    // Sorted by partition, then offset, whatever order they were found in.
    let first: Vec<_> = rows(&scan).into_iter().take(11).map(|r| (r.0, r.1)).collect();
    assert_eq!((first[0].clone(), first[10].clone()), (("a".to_owned(), 0), ("b".to_owned(), 0)));
}

#[tokio::test(start_paused = true)]
async fn the_envelope_has_the_columns_of_the_record() {
    let world = World::new();
    world.streams.push(
        "s",
        "p",
        ["{\"big\":12345678901234567890, \"x\":1.0}".to_owned(), "2".to_owned()],
    );
    world.tables().seal("s").await.unwrap();
    let scan = assert_exact(&world, "s").await;
    let batch = &scan.batches[0];
    let names: Vec<_> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(
        names,
        ["partition", "offset", "time", "id", "transaction_id", "key", "headers", "payload"]
    );
    let time = batch.column(2).as_primitive::<TimestampMicrosecondType>();
    assert_eq!((time.value(0), time.value(1)), (START_US, START_US + 1));
    assert_eq!(batch.column(5).as_string::<i32>().value(0), "k0");
    assert!(batch.column(5).is_null(1) && batch.column(6).is_null(1));
    assert_eq!(batch.column(6).as_string::<i32>().value(0), "{\"h\":1}");
}

#[tokio::test(start_paused = true)]
async fn nothing_new_is_no_snapshot_and_a_quiet_partition_goes_to_sleep() {
    let world = World::new();
    let tables = world.tables();
    world.streams.push("s", "p", numbers(0..5));
    tables.seal("s").await.unwrap();
    assert_eq!(world.streams.awake("s"), 1, "a partition that just had something stays awake");
    let quiet = tables.seal("s").await.unwrap();
    assert_eq!((quiet.rows, quiet.snapshot_id), (0, None));
    assert_eq!(world.streams.awake("s"), 0);
    assert_eq!(tables.location("s").await.unwrap().version, 1);
    // A table that sleeps costs a look at what is ready and nothing else.
    world.store.reset_meter();
    tables.seal("s").await.unwrap();
    let units = world.store.meter();
    assert_eq!((units.calls, units.write_units), (0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_seal_writes_one_head_whatever_it_seals() {
    let world = World::new();
    for p in 0..40 {
        world.streams.push("s", &format!("p{p}"), numbers(0..20));
    }
    world.store.reset_meter();
    world.tables().seal("s").await.unwrap();
    let units = world.store.meter();
    assert_eq!(units.calls, 2, "one read and one write of the head");
    assert!(units.write_units <= 4.0, "{units:?}");
}

#[tokio::test(start_paused = true)]
async fn the_hint_names_the_metadata_that_counts() {
    let world = World::new();
    let tables = world.tables();
    world.streams.push("orders/new", "p", numbers(0..3));
    tables.seal("orders/new").await.unwrap();
    let location = tables.location("orders/new").await.unwrap();
    assert_eq!(location.uri, "mem://root/tables/orders!2fnew");
    let hint = world.hint("orders!2fnew").await.unwrap();
    let metadata = format!("{}/metadata/{hint}.metadata.json", location.uri);
    assert_eq!(location.metadata, Some(metadata));
    assert!(hint.starts_with("00001-"), "{hint}");
}

#[tokio::test(start_paused = true)]
async fn a_call_is_bounded_and_the_next_goes_on() {
    let world = World::new();
    let settings = Settings { seal_rows: 150, file_bytes: 1, ..Settings::default() };
    let tables = world.process_with(&Fuse::never(), settings);
    for p in ["a", "b", "c"] {
        world.streams.push("s", p, numbers(0..200));
    }
    let mut calls = 0;
    loop {
        let sealed = tables.seal("s").await.unwrap();
        assert!(sealed.rows <= 150 + CHUNK as u64, "{}", sealed.rows);
        assert!(sealed.files > 1, "a full file is closed");
        calls += 1;
        if !sealed.more {
            break;
        }
    }
    assert_eq!(calls, 3);
    assert_exact(&world, "s").await;
}

#[tokio::test(start_paused = true)]
async fn manifests_do_not_grow_with_commits() {
    let world = World::new();
    let tables = world.tables();
    for n in 0..50 {
        world.streams.push("s", "p", numbers(n..n + 1));
        tables.seal("s").await.unwrap();
    }
    let scan = assert_exact(&world, "s").await;
    assert_eq!((scan.files, scan.snapshots), (50, 50));
    assert!(scan.manifests <= 17, "{}", scan.manifests);
}

#[tokio::test(start_paused = true)]
async fn metadata_does_not_grow_with_commits() {
    let world = World::new();
    let settings = Settings { snapshots: 5, pinned_us: 0, ..Settings::default() };
    let tables = world.process_with(&Fuse::never(), settings);
    for n in 0..12 {
        world.streams.push("s", "p", numbers(n..n + 1));
        tables.seal("s").await.unwrap();
    }
    let scan = assert_exact(&world, "s").await;
    assert_eq!((scan.files, scan.snapshots), (12, 5));
}

#[tokio::test(start_paused = true)]
async fn what_is_behind_is_a_number() {
    let world = World::new();
    let tables = world.tables();
    world.streams.push("s", "p", numbers(0..10));
    world.streams.push("s", "q", numbers(0..5));
    let before = tables.freshness("s").await.unwrap();
    assert_eq!((before.rows, before.sealed_us, before.behind), (0, None, 15));
    assert_eq!((before.partitions_behind, before.complete), (2, true));
    tables.seal("s").await.unwrap();
    world.streams.push("s", "q", numbers(5..7));
    let after = tables.freshness("s").await.unwrap();
    assert_eq!((after.rows, after.behind, after.partitions_behind), (15, 2, 1));
    assert_eq!(after.sealed_us, Some(START_US));
}

#[tokio::test(start_paused = true)]
async fn records_that_were_deleted_before_they_were_sealed_are_counted() {
    let world = World::new();
    world.streams.push("s", "p", numbers(0..10));
    world.streams.trim("s", "p", 4);
    let sealed = world.tables().seal("s").await.unwrap();
    assert_eq!((sealed.rows, sealed.lost), (6, 4));
    assert_exact(&world, "s").await;
}

#[tokio::test(start_paused = true)]
async fn many_partitions_keep_their_positions() {
    let world = World::new();
    let tables = world.tables();
    for round in 0..20u64 {
        for p in 0..150u64 {
            if (p + round) % 3 == 0 {
                world.streams.push("s", &format!("p{p}"), numbers(round..round + 1));
            }
        }
        tables.seal("s").await.unwrap();
    }
    assert_exact(&world, "s").await;
    let largest = world.store.items().values().map(tidewheel_store::Item::size).max().unwrap();
    assert!(largest < 4096, "the head has {largest} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_does_not_stop_the_others() {
    let world = World::new();
    let tables = world.tables();
    tables
        .declare("bad", r#"{"properties":{"n":{"type":"integer"}},"required":["n"]}"#)
        .await
        .unwrap();
    world.streams.push("bad", "p", numbers(0..2));
    world.streams.push("bad", "q", numbers(0..2));
    world.streams.push("good", "p", numbers(0..2));
    let report = tables.seal_all().await.unwrap();
    assert_eq!(report.sealed.len(), 1);
    assert_eq!(report.sealed[0].0, "good");
    assert!(
        matches!(&report.failed[..], [(name, Error::Partitions { partitions: 2, .. })] if name == "bad")
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_stream_is_an_error() {
    let world = World::new();
    assert!(matches!(world.tables().seal("nope").await, Err(Error::StreamNotFound(_))));
    world.streams.push("s", "p", numbers(0..1));
    assert!(matches!(world.tables().scan("s").await, Err(Error::NoTable(_))));
}
