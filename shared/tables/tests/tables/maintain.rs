//! Maintenance in pieces: what is found, what a piece does, and what becomes of it when time is short.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use object_store::{ObjectStore, memory::InMemory, path::Path};
use tidewheel_engine::{Configure, Engine, PartitionId, PushItem, Settings as EngineSettings};
use tidewheel_store::{Blob, Commit, Env, Item, Key, Memory, Store, Write};
use tidewheel_tables::{
    Settings, Tables,
    limits::FIND_STREAMS,
    maintain::{Error, Maintenance, Work},
};

use crate::fake::START_US;

const NEVER: i64 = i64::MAX;

struct World {
    env: Env,
    store: Memory,
    engine: Engine,
    maintenance: Maintenance,
    files: Arc<InMemory>,
}

fn world(settings: Settings) -> World {
    let env = Env::simulated(5, START_US, 0);
    let store = Memory::new();
    let engine = Engine::new(Arc::new(store.clone()), env.clone(), EngineSettings::default());
    let files = Arc::new(InMemory::new());
    let tables = Tables::new(&engine, files.clone(), Path::default(), "mem://x", settings);
    let maintenance = Maintenance::new(&engine, &tables);
    World { env, store, engine, maintenance, files }
}

impl World {
    async fn push(&self, stream: &str, partition: &str, records: usize) {
        let item = PushItem {
            stream: stream.to_owned(),
            partition: partition.to_owned(),
            payload: "{\"n\":1}".into(),
            ..PushItem::default()
        };
        self.engine.push(vec![item; records]).await;
    }

    async fn configure(&self, stream: &str, options: serde_json::Value) {
        let options = options.as_object().cloned().unwrap_or_default();
        let configure = Configure { options, ..Configure::default() };
        self.engine.configure(stream, configure).await.unwrap();
    }

    /// Everything that a round finds.
    async fn find(&self, round: i64) -> Vec<Work> {
        let (mut work, mut after) = (Vec::new(), None);
        loop {
            let found = self.maintenance.find(round, after.as_deref()).await.unwrap();
            assert!(found.failed.is_empty(), "{:?}", found.failed);
            work.extend(found.work);
            after = found.next;
            if after.is_none() {
                return work;
            }
        }
    }

    async fn rows(&self, stream: &str) -> u64 {
        self.maintenance.tables().freshness(stream).await.unwrap().rows
    }
}

fn seals(work: &[Work]) -> BTreeSet<String> {
    let stream = |w: &Work| match w {
        Work::Seal { stream } => Some(stream.clone()),
        _ => None,
    };
    let found: Vec<_> = work.iter().filter_map(stream).collect();
    let set: BTreeSet<_> = found.iter().cloned().collect();
    assert_eq!(set.len(), found.len(), "a stream was found twice");
    set
}

#[tokio::test(start_paused = true)]
async fn only_streams_with_something_new_are_found_and_each_page_once() {
    let world = world(Settings::default());
    let count = FIND_STREAMS + 20;
    for n in 0..count {
        world.push(&format!("s{n:04}"), "p", 1).await;
    }
    let found = seals(&world.find(1).await);
    assert_eq!(found.len(), count);
    for stream in &found {
        let work = Work::Seal { stream: stream.clone() };
        let outcome = world.maintenance.run(&work, NEVER).await.unwrap();
        assert_eq!((outcome.done.rows, &outcome.rest), (1, &None));
        // Delivered twice: nothing new, and the partition goes to sleep.
        let again = world.maintenance.run(&work, NEVER).await.unwrap();
        assert_eq!((again.done.rows, again.rest), (0, None));
    }
    assert!(seals(&world.find(2).await).is_empty());
    world.push("s0007", "p", 1).await;
    world.push("s0007", "other", 1).await;
    world.store.reset_meter();
    assert_eq!(seals(&world.find(3).await), BTreeSet::from(["s0007".to_owned()]));
    let reads = world.store.meter().read_units;
    assert!(reads < 3.0 * count as f64, "{reads} units to look at {count} streams");
}

#[tokio::test(start_paused = true)]
async fn a_lag_is_told_in_rows_and_in_time() {
    let world = world(Settings::default());
    world.push("late", "p", 3).await;
    world.maintenance.run(&Work::Seal { stream: "late".into() }, NEVER).await.unwrap();
    world.push("late", "p", 2).await;
    world.env.sleep(Duration::from_secs(90)).await;
    world.push("late", "q", 5).await;
    world.push("new", "p", 1).await;
    let found = world.maintenance.find(1, None).await.unwrap();
    assert_eq!(found.behind, 2);
    let lag = |stream: &str| found.lags.iter().find(|l| l.stream == stream).unwrap();
    assert_eq!(lag("late").rows, 7);
    assert!((90_000_000..91_000_000).contains(&lag("late").age_us), "{:?}", lag("late"));
    assert_eq!(lag("new").rows, 1);
    assert!(lag("new").age_us < 1_000_000);
    let done = world.maintenance.run(&Work::Seal { stream: "late".into() }, NEVER).await.unwrap();
    assert!(done.done.commit_lag_us.unwrap() >= 90_000_000);
}

#[tokio::test(start_paused = true)]
async fn retention_and_collection_have_their_turns() {
    let world = world(Settings::default());
    for n in 0..40 {
        let stream = format!("s{n}");
        world.configure(&stream, serde_json::json!({"maxWaitTimeSeconds": 60})).await;
    }
    world.configure("forever", serde_json::json!({})).await;
    let (mut retained, mut collected) = (Vec::new(), Vec::new());
    let (mut compacted, mut cleaned) = (0, 0);
    for round in 100..100 + 24 * 60 {
        for work in world.find(round).await {
            match work {
                Work::Retain { stream, .. } => retained.push(stream),
                Work::Collect { stream, .. } => collected.push(stream),
                Work::Compact { .. } => compacted += 1,
                Work::Clean { .. } => cleaned += 1,
                Work::Seal { .. } | Work::Traces | Work::Keys => {}
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(retained.len(), 40 * 24 * 60 / 5);
    assert!(!retained.contains(&"forever".to_owned()));
    collected.sort();
    collected.dedup();
    assert_eq!(collected.len(), 41, "each once a day");
    assert_eq!((compacted, cleaned), (41 * 24 * 60 / 5, 41 * 4));
}

#[tokio::test(start_paused = true)]
async fn a_seal_stops_in_time_and_goes_on_from_what_is_left() {
    let world = world(Settings { seal_rows: 10, ..Settings::default() });
    for p in 0..6 {
        world.push("s", &format!("p{p}"), 10).await;
    }
    let work = Work::Seal { stream: "s".into() };
    let now = world.env.now_us();
    let none = world.maintenance.run(&work, now).await.unwrap();
    assert_eq!((none.done.rows, none.rest), (0, Some(work.clone())), "time was over before");
    // The store answers at once under this clock, so one step is all that fits before a time that has come.
    let mut total = 0;
    let mut rounds = 0;
    let mut rest = Some(work);
    while let Some(work) = rest {
        let until = world.env.now_us() + 1;
        let outcome = match world.maintenance.run(&work, until).await {
            Ok(outcome) => outcome,
            Err(Error::CutOff(_)) => panic!("cut off"),
            Err(e) => panic!("{e}"),
        };
        total += outcome.done.rows;
        rounds += 1;
        rest = outcome.rest;
        world.env.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((total, world.rows("s").await), (60, 60), "in {rounds} rounds");
}

#[tokio::test(start_paused = true)]
async fn the_collector_takes_what_nothing_names_and_nothing_else() {
    let world = world(Settings::default());
    let id = world.engine.configure("s", Configure::default()).await.unwrap().id;
    world.push("s", "p", 3).await;
    let partition = PartitionId::of(&id, "p");
    let owner = partition.0.simple();
    let orphan = Blob::fresh(owner.as_str(), "a dead writer's", &world.env);
    // What a writer that died before its write on the head leaves behind.
    let elsewhere = Write::put(Key::new("elsewhere", "x"), Item::new());
    world.store.commit(Commit::one(elsewhere).with_blob(orphan.clone())).await.unwrap();
    let work = Work::Collect { stream: "s".into(), after: None };
    let young = world.maintenance.run(&work, NEVER).await.unwrap();
    assert_eq!(young.done.collected, 0, "its writer may still live");
    world.env.sleep(Duration::from_secs(3600)).await;
    let old = world.maintenance.run(&work, NEVER).await.unwrap();
    assert_eq!(old.done.collected, 1);
    assert!(world.store.blob(&orphan.name, None).await.unwrap().is_none());
    let read = world.engine.read(&partition, 0, 10, 1000).await.unwrap();
    assert_eq!(read.records.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_stream_is_swept_and_work_on_it_is_done() {
    let world = world(Settings::default());
    world.push("s", "p", 1).await;
    let id = world.engine.stream("s").await.unwrap().unwrap().id;
    world.engine.delete_stream("s").await.unwrap();
    for work in [
        Work::Seal { stream: "s".into() },
        Work::Retain { stream: "s".into(), after: None },
        Work::Collect { stream: "s".into(), after: None },
        Work::Sweep { id: id.to_string() },
    ] {
        let outcome = world.maintenance.run(&work, NEVER).await.unwrap();
        assert_eq!(outcome.rest, None, "{work}");
    }
    let odd = Work::Sweep { id: "nothing".into() };
    assert!(matches!(world.maintenance.run(&odd, NEVER).await, Err(Error::Malformed(_))));
}

#[tokio::test(start_paused = true)]
async fn the_table_of_a_deleted_stream_goes_after_a_while() {
    let world = world(Settings::default());
    world.push("s", "p", 3).await;
    world.push("again", "p", 3).await;
    for stream in ["s", "again"] {
        let seal = Work::Seal { stream: stream.to_owned() };
        assert_eq!(world.maintenance.run(&seal, NEVER).await.unwrap().done.rows, 3);
        let id = world.engine.stream(stream).await.unwrap().unwrap().id;
        world.engine.delete_stream(stream).await.unwrap();
        let sweep = Work::Sweep { id: id.to_string() };
        world.maintenance.run(&sweep, NEVER).await.unwrap();
    }
    // One comes back under its name, and so in the same directory.
    world.push("again", "p", 1).await;
    let seal = Work::Seal { stream: "again".into() };
    assert_eq!(world.maintenance.run(&seal, NEVER).await.unwrap().done.rows, 1);
    let files = async |stream: &str| {
        let found = world.files.list(Some(&Path::from(format!("tables/{stream}"))));
        found.try_collect::<Vec<_>>().await.unwrap().len()
    };
    let drops = |work: Vec<Work>| work.into_iter().filter(|w| matches!(w, Work::Drop { .. }));
    assert_eq!(drops(world.find(7).await).count(), 0, "somebody may be reading it");
    let (before, again) = (files("s").await, files("again").await);
    assert!(before >= 5);
    world.env.sleep(Duration::from_secs(3601)).await;
    let work: Vec<_> = drops(world.find(8).await).collect();
    assert_eq!(work.len(), 2);
    for work in &work {
        world.maintenance.run(work, NEVER).await.unwrap();
    }
    assert_eq!((files("s").await, files("again").await), (0, again));
    assert_eq!(drops(world.find(9).await).count(), 0);
    assert_eq!(world.rows("again").await, 1);
    assert_eq!(world.maintenance.tables().scan("again").await.unwrap().files, 1);
    let clean = Work::Clean { stream: "again".into() };
    let cleaned = world.maintenance.run(&clean, NEVER).await.unwrap().done;
    assert!(cleaned.deleted >= 3, "the old table's: {cleaned:?}");
    assert_eq!(world.maintenance.tables().scan("again").await.unwrap().files, 1);
}

#[tokio::test(start_paused = true)]
async fn compaction_is_work_that_may_be_done_twice() {
    let world = world(Settings { compact_files: 3, ..Settings::default() });
    for _ in 0..5 {
        world.push("s", "p", 2).await;
        world.maintenance.run(&Work::Seal { stream: "s".into() }, NEVER).await.unwrap();
    }
    let work = Work::Compact { stream: "s".into() };
    let once = world.maintenance.run(&work, NEVER).await.unwrap();
    assert_eq!((once.done.compacted, once.rest), (5, None));
    let twice = world.maintenance.run(&work, NEVER).await.unwrap();
    assert_eq!((twice.done.compacted, twice.rest), (0, None));
    assert_eq!(world.maintenance.tables().scan("s").await.unwrap().files, 1);
}
