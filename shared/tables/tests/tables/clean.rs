//! Expiry and collection: what nobody can need goes, and nothing that somebody may still read or name.

use std::sync::Arc;

use tidewheel_tables::{Error, Settings, Tables};

use crate::{
    fake::{Fault, Fuse, Gate, World},
    seal::assert_exact,
};

fn settings() -> Settings {
    Settings { compact_files: 2, ..Settings::default() }
}

fn process(world: &World) -> Tables {
    world.process_with(&Fuse::never(), settings())
}

async fn seal(world: &World, n: u64) {
    for p in ["a", "b"] {
        world.streams.push("s", p, [format!("{n}")]);
    }
    process(world).seal("s").await.unwrap();
}

/// Files below a folder of the table.
async fn count(world: &World, part: &str) -> usize {
    world.listed().await.iter().filter(|f| f.contains(&format!("/s/{part}/"))).count()
}

#[tokio::test(start_paused = true)]
async fn what_was_compacted_stays_for_its_readers_and_then_goes() {
    let world = World::new();
    for n in 0..6 {
        seal(&world, n).await;
    }
    let pinned = world.fork().await;
    assert_eq!(process(&world).compact("s").await.unwrap().replaced, 6);
    assert_eq!(count(&world, "data").await, 7);
    // Within the hour a reader of any earlier snapshot finds all its files.
    let cleaned = process(&world).clean("s").await.unwrap();
    assert_eq!((cleaned.snapshots, cleaned.files), (0, 0));
    for file in pinned.listed().await {
        let file = file.replace(pinned.root.as_ref(), world.root.as_ref());
        assert!(world.listed().await.contains(&file), "{file} is gone");
    }
    world.pass(30);
    let cleaned = process(&world).clean("s").await.unwrap();
    assert_eq!(cleaned.snapshots, 6, "all but the current one are more than a day old");
    assert_eq!(count(&world, "data").await, 1);
    let scan = assert_exact(&world, "s").await;
    assert_eq!((scan.files, scan.snapshots), (1, 1));
    // And then there is nothing more to do.
    world.pass(3);
    let before = process(&world).clean("s").await.unwrap();
    assert!(before.files <= 1, "the metadata that was superseded: {before:?}");
    world.store.reset_meter();
    let again = process(&world).clean("s").await.unwrap();
    assert_eq!((again.snapshots, again.files, again.blobs), (0, 0, 0));
    assert_eq!(world.store.meter().write_units, 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_kept_from_when_another_followed_it() {
    let world = World::new();
    seal(&world, 0).await;
    world.pass(100);
    let pinned = world.listed().await;
    seal(&world, 1).await;
    // It is a hundred hours old, and was the current one a moment ago.
    let cleaned = process(&world).clean("s").await.unwrap();
    assert_eq!((cleaned.snapshots, cleaned.files), (0, 0));
    assert!(world.listed().await.is_superset(&pinned));
    world.pass(2);
    let cleaned = process(&world).clean("s").await.unwrap();
    assert_eq!(cleaned.snapshots, 1);
    assert!(cleaned.files >= 2, "its list of manifests and its metadata: {cleaned:?}");
    assert_exact(&world, "s").await;
}

#[tokio::test(start_paused = true)]
async fn files_of_the_dead_are_collected_and_those_of_the_living_are_not() {
    let world = World::new();
    seal(&world, 0).await;
    for k in 3..9 {
        world.streams.push("s", "a", [format!("{k}")]);
        let _ = world.process_with(&Fuse::at(k, Fault::DieBefore), settings()).seal("s").await;
    }
    let left = count(&world, "data").await;
    assert!(left > 2, "nobody left anything: {left}");
    let cleaned = process(&world).clean("s").await.unwrap();
    assert_eq!(cleaned.files, 0, "they may still be about to commit");
    world.pass(2);
    let cleaned = process(&world).clean("s").await.unwrap();
    assert!(cleaned.files >= left - 1, "{cleaned:?}");
    assert_eq!(count(&world, "data").await, 1);
    process(&world).seal("s").await.unwrap();
    assert_exact(&world, "s").await;
}

#[tokio::test(start_paused = true)]
async fn folded_position_blobs_are_collected() {
    let world = World::new();
    let tables = process(&world);
    for round in 0..40u64 {
        for p in 0..80 {
            world.streams.push("s", &format!("p{p}"), [format!("{round}")]);
        }
        tables.seal("s").await.unwrap();
    }
    world.pass(2);
    let cleaned = process(&world).clean("s").await.unwrap();
    assert!(cleaned.blobs > 10, "{cleaned:?}");
    world.streams.push("s", "p7", ["\"more\"".to_owned()]);
    assert_eq!(process(&world).seal("s").await.unwrap().rows, 1);
    assert_exact(&world, "s").await;
}

#[tokio::test(start_paused = true)]
async fn cleaning_may_die_anywhere() {
    let start = World::new();
    for n in 0..5 {
        seal(&start, n).await;
    }
    process(&start).compact("s").await.unwrap();
    start.streams.push("s", "a", ["\"lost\"".to_owned()]);
    let _ = start.process_with(&Fuse::at(6, Fault::DieBefore), settings()).seal("s").await;
    start.pass(30);
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        for k in 0.. {
            let world = start.fork().await;
            let fuse = Fuse::at(k, fault);
            let outcome = world.process_with(&fuse, settings()).clean("s").await;
            if !fuse.struck() {
                assert!(k > 20, "only {k} calls");
                break;
            }
            let what = format!("{fault:?} at call {k}: {outcome:?}");
            process(&world).seal("s").await.unwrap();
            assert_exact(&world, "s").await;
            world.pass(2);
            process(&world).clean("s").await.unwrap();
            assert_exact(&world, "s").await;
            assert_eq!(count(&world, "data").await, 2, "{what}");
        }
    }
}

/// Cleaning at every step of a seal and of a compaction, at the end of their hour.
#[tokio::test(start_paused = true)]
async fn cleaning_meets_whoever_writes() {
    for delay in 0..50 {
        let world = World::new();
        for n in 0..4 {
            seal(&world, n).await;
        }
        let writer = process(&world);
        world.streams.push("s", "b", ["\"new\"".to_owned()]);
        world.pass(2);
        let cleaner = process(&world);
        let clean = async {
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            cleaner.clean("s").await.unwrap()
        };
        let write = async {
            let _ = writer.compact("s").await.unwrap();
            match writer.seal("s").await {
                Ok(_) | Err(Error::Conflict(_)) => {}
                Err(e) => panic!("{e}"),
            }
        };
        tokio::join!(write, clean);
        let _ = process(&world).seal("s").await.unwrap();
        assert_exact(&world, "s").await;
    }
}

/// A sealer and a compaction that freeze before they commit, and wake up after the collector has been there.
#[tokio::test(start_paused = true)]
async fn whoever_wakes_up_after_the_collector_names_nothing_that_is_gone() {
    for compacts in [false, true] {
        let world = World::new();
        for n in 0..3 {
            seal(&world, n).await;
        }
        world.streams.push("s", "a", ["\"frozen\"".to_owned()]);
        // The first metadata file of a compaction's commit comes after the head was read once more, so it freezes
        // at its data file.
        let at = if compacts { ".parquet" } else { ".metadata.json" };
        let gate = Arc::new(Gate::new(&world, at));
        let frozen = world.process_on(gate.clone(), settings());
        let task = tokio::spawn(async move {
            if compacts {
                frozen.compact("s").await.map(|c| c.snapshot_id.is_some())
            } else {
                frozen.seal("s").await.map(|s| s.snapshot_id.is_some())
            }
        });
        gate.reached.notified().await;
        world.pass(5);
        let cleaned = process(&world).clean("s").await.unwrap();
        assert!(cleaned.files > 0, "what it wrote is collected");
        let version = process(&world).location("s").await.unwrap().version;
        gate.open.notify_one();
        match task.await.unwrap() {
            Ok(committed) => assert!(compacts && !committed),
            Err(Error::Conflict(_)) => assert!(!compacts),
            Err(e) => panic!("{e}"),
        }
        assert_eq!(process(&world).location("s").await.unwrap().version, version);
        process(&world).seal("s").await.unwrap();
        assert_exact(&world, "s").await;
    }
}
