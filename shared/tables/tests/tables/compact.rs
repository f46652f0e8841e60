//! Compaction: fewer files, the same rows, whatever dies or comes between.

use std::sync::Arc;

use tidewheel_tables::{Settings, Tables};

use crate::{
    fake::{Fault, Fuse, Gate, World},
    seal::assert_exact,
};

fn numbers(range: std::ops::Range<u64>) -> impl Iterator<Item = String> {
    range.map(|n| format!("{{\"n\":{n}}}"))
}

/// Four files are worth a compaction.
fn settings() -> Settings {
    Settings { compact_files: 4, ..Settings::default() }
}

/// A table of as many files as there were seals.
async fn small_files(seals: u64) -> World {
    let world = World::new();
    let tables = world.tables();
    for n in 0..seals {
        world.streams.push("s", "b", numbers(n * 3..n * 3 + 3));
        world.streams.push("s", "a", numbers(n..n + 1));
        tables.seal("s").await.unwrap();
    }
    world
}

fn process(world: &World) -> Tables {
    world.process_with(&Fuse::never(), settings())
}

#[tokio::test(start_paused = true)]
async fn small_files_become_one_and_no_row_changes() {
    let world = small_files(20).await;
    let tables = process(&world);
    let compacted = tables.compact("s").await.unwrap();
    assert_eq!((compacted.replaced, compacted.files, compacted.rows), (20, 1, 80));
    assert!(!compacted.raced && !compacted.more);
    let scan = assert_exact(&world, "s").await;
    assert_eq!((scan.files, Some(scan.snapshot_id)), (1, compacted.snapshot_id));
    assert_eq!(scan.summary["deleted-data-files"], "20");
    assert_eq!(scan.summary["total-data-files"], "1");
    // What lies in the file is in the table's order.
    let partitions = scan.batches[0].column(0);
    let partitions: &arrow_array::StringArray = partitions.as_any().downcast_ref().unwrap();
    assert_eq!((partitions.value(0), partitions.value(19), partitions.value(20)), ("a", "a", "b"));

    let again = tables.compact("s").await.unwrap();
    assert_eq!((again.replaced, again.snapshot_id), (0, None));
    // Rows that come later come later in the table, too.
    world.streams.push("s", "b", numbers(60..63));
    tables.seal("s").await.unwrap();
    assert_eq!(assert_exact(&world, "s").await.files, 2);
    let location = tables.location("s").await.unwrap();
    let hint = world.hint("s").await.unwrap();
    assert!(location.metadata.unwrap().contains(&format!("/{hint}.metadata.json")));
}

#[tokio::test(start_paused = true)]
async fn a_busy_table_stays_at_few_files_and_writes_each_row_seldom() {
    let world = World::new();
    let tables = process(&world);
    let mut written = 0;
    for n in 0..48u64 {
        // Rows that do not compress away, so that sizes say something.
        let noise = |i: u64| {
            let digest = tidewheel_engine::Uuid::derived(&[&n.to_be_bytes(), &i.to_be_bytes()]);
            format!("\"{}\"", digest.simple().repeat(4))
        };
        world.streams.push("s", "p", (0..300).map(noise));
        tables.seal("s").await.unwrap();
        written += tables.compact("s").await.unwrap().rows;
    }
    let scan = assert_exact(&world, "s").await;
    assert!(scan.files <= 12, "{} files", scan.files);
    assert!(written < 48 * 300 * 8, "{written} rows were written again for 14400");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_for_twice() {
    let world = small_files(3).await;
    let tables = process(&world);
    assert_eq!(tables.compact("s").await.unwrap().snapshot_id, None);
    world.store.reset_meter();
    tables.compact("s").await.unwrap();
    assert_eq!(world.store.meter().write_units, 0.0, "three versions are too few to look at");
}

#[tokio::test(start_paused = true)]
async fn a_compaction_may_die_anywhere() {
    let start = small_files(6).await;
    for fault in [Fault::DieBefore, Fault::DieAfter, Fault::Refuse, Fault::LoseReply] {
        let mut landed = 0;
        for k in 0.. {
            let world = start.fork().await;
            let fuse = Fuse::at(k, fault);
            let outcome = world.process_with(&fuse, settings()).compact("s").await;
            if !fuse.struck() {
                assert!(k > 10, "only {k} calls");
                assert_eq!(outcome.unwrap().replaced, 6);
                break;
            }
            let what = format!("{fault:?} at call {k}: {outcome:?}");
            let files = assert_exact(&world, "s").await.files;
            assert!(files == 6 || files == 1, "{what}: {files}");
            landed += usize::from(files == 1);
            if outcome.as_ref().is_ok_and(|c| c.snapshot_id.is_some()) {
                assert_eq!(files, 1, "{what}");
            }
            // The next one and the next seal go on from there, and the hint follows.
            world.streams.push("s", "a", numbers(6..7));
            let next = process(&world);
            next.compact("s").await.unwrap();
            next.seal("s").await.unwrap();
            assert_eq!(assert_exact(&world, "s").await.files, 2, "{what}");
            let location = next.location("s").await.unwrap();
            let hint = world.hint("s").await.unwrap();
            assert!(location.metadata.unwrap().contains(&hint), "{what}");
        }
        assert!(fault == Fault::DieBefore || landed > 0, "{fault:?} never came after the commit");
    }
}

/// A compaction that has written its files, and stops there while others commit.
#[tokio::test(start_paused = true)]
async fn a_seal_that_lands_meanwhile_is_kept() {
    for others_compact in [false, true] {
        let world = small_files(5).await;
        let gate = Arc::new(Gate::new(&world, ".parquet"));
        let slow = world.process_on(gate.clone(), settings());
        let task = tokio::spawn(async move { slow.compact("s").await.unwrap() });
        gate.reached.notified().await;
        world.streams.push("s", "a", numbers(5..6));
        assert_eq!(process(&world).seal("s").await.unwrap().rows, 1);
        if others_compact {
            assert_eq!(process(&world).compact("s").await.unwrap().replaced, 6);
        }
        gate.open.notify_one();
        let compacted = task.await.unwrap();
        let scan = assert_exact(&world, "s").await;
        if others_compact {
            assert!(
                compacted.raced && compacted.replaced == 0,
                "its files are gone: {compacted:?}"
            );
            assert_eq!(scan.files, 1);
        } else {
            assert_eq!((compacted.replaced, compacted.raced), (5, false));
            assert_eq!((Some(scan.snapshot_id), scan.files), (compacted.snapshot_id, 2));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_compactions_one_counts() {
    let mut raced = 0;
    for delay in 0..40 {
        let world = small_files(5).await;
        let (one, other) = (process(&world), process(&world));
        let late = async {
            for _ in 0..delay {
                tokio::task::yield_now().await;
            }
            other.compact("s").await.unwrap()
        };
        let (a, b) = tokio::join!(one.compact("s"), late);
        let a = a.unwrap();
        assert_eq!(a.replaced + b.replaced, 5, "{a:?} {b:?}");
        raced += usize::from(a.raced || b.raced);
        assert_eq!(assert_exact(&world, "s").await.files, 1);
    }
    assert!(raced > 0, "they never met");
}
