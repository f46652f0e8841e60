//! The function over a store in memory, with an outbox that is a list: rounds, batches, duplicates, short time.

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::{memory::InMemory, path::Path};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewheel_cloud::SendError;
use tidewheel_engine::{Engine, PushItem, Settings as EngineSettings};
use tidewheel_store::{
    BlobName, Commit, CommitError, Committed, Consistency, Env, Item, Key, Memory, Page, Query,
    ReadError, Store,
};
use tidewheel_tables::{
    Catalogue, CatalogueError, Entry, Mirrored, Settings, Tables, maintain::Maintenance,
};

use crate::{
    event::{Event, Message},
    function::{Failure, Function},
    metrics::Metrics,
    outbox::Outbox,
};

const START_US: i64 = 1_767_225_600_000_000;
/// The longest that a function may run, µs.
const LIMIT_US: i64 = 120_000_000;

/// A list of messages; refuses when it is shut.
#[derive(Clone, Default)]
struct List {
    messages: Arc<Mutex<Vec<String>>>,
    shut: Arc<Mutex<bool>>,
}

#[async_trait]
impl Outbox for List {
    async fn send(&self, messages: &[String]) -> Result<(), SendError> {
        if *self.shut.lock() {
            let (messages, unsent) = (messages.len(), messages.len());
            return Err(SendError { messages, unsent, why: "shut".to_owned() });
        }
        self.messages.lock().extend_from_slice(messages);
        Ok(())
    }
}

/// A catalogue that answers what it is told to, and keeps what it was told.
#[derive(Clone, Debug, Default)]
struct Shelf {
    answers: Arc<Mutex<Vec<Result<Mirrored, CatalogueError>>>>,
    told: Arc<Mutex<Vec<Entry>>>,
}

#[async_trait]
impl Catalogue for Shelf {
    async fn mirror(&self, entry: &Entry) -> Result<Mirrored, CatalogueError> {
        self.told.lock().push(entry.clone());
        self.answers.lock().pop().unwrap_or(Ok(Mirrored::Moved))
    }

    async fn forget(&self, _: &str) -> Result<(), CatalogueError> {
        Ok(())
    }
}

/// A store that is damaged in one place and slow in all.
struct Damaged {
    store: Memory,
    env: Env,
    /// Keys that begin like this are not read.
    broken: String,
    slowness: Arc<Mutex<Duration>>,
}

impl Damaged {
    async fn read(&self, pk: &str) -> Result<(), ReadError> {
        let slowness = *self.slowness.lock();
        self.env.sleep(slowness).await;
        if !self.broken.is_empty() && pk.starts_with(&self.broken) {
            return Err(ReadError::Unavailable("broken".to_owned()));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Damaged {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.read(&key.pk).await?;
        self.store.get(key, consistency).await
    }
    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.store.batch_get(keys).await
    }
    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.read(&query.pk).await?;
        self.store.query(query).await
    }
    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        self.store.commit(commit).await
    }
    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.store.blob(name, range).await
    }
    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.store.list_blobs(owner, after, limit).await
    }
    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.store.delete_blobs(names).await
    }
}

/// What outlives an invocation.
struct World {
    env: Env,
    store: Memory,
    files: Arc<InMemory>,
    outbox: List,
    slowness: Arc<Mutex<Duration>>,
    emitted: Arc<Mutex<Vec<Value>>>,
    seal_rows: usize,
    catalogue: Option<Shelf>,
}

impl World {
    fn new() -> Self {
        Self {
            env: Env::simulated(3, START_US, 0),
            store: Memory::new(),
            files: Arc::new(InMemory::new()),
            outbox: List::default(),
            slowness: Arc::default(),
            emitted: Arc::default(),
            seal_rows: 1_000_000,
            catalogue: None,
        }
    }

    /// A process of the function, on a store that is broken at keys that begin like this.
    fn process(&self, broken: &str) -> (Function, Engine, Tables) {
        let store = Damaged {
            store: self.store.clone(),
            env: self.env.clone(),
            broken: broken.to_owned(),
            slowness: Arc::clone(&self.slowness),
        };
        let engine = Engine::new(Arc::new(store), self.env.clone(), EngineSettings::default());
        let catalogue = self.catalogue.clone().map(|shelf| Arc::new(shelf) as _);
        let settings = Settings { seal_rows: self.seal_rows, catalogue, ..Settings::default() };
        let files = Arc::clone(&self.files);
        let tables = Tables::new(&engine, files, Path::default(), "mem://x", settings);
        let emitted = Arc::clone(&self.emitted);
        let write = Arc::new(move |line| emitted.lock().push(line));
        let metrics = Metrics::new("heads", &self.env, write);
        let maintenance = Maintenance::new(&engine, &tables);
        let outbox = Arc::new(self.outbox.clone());
        (Function::new(maintenance, outbox, metrics), engine, tables)
    }

    async fn push(&self, stream: &str, partition: &str, records: usize) {
        let item = PushItem {
            stream: stream.to_owned(),
            partition: partition.to_owned(),
            payload: "{\"n\":1}".into(),
            ..PushItem::default()
        };
        self.process("").1.push(vec![item; records]).await;
    }

    async fn rows(&self, stream: &str) -> u64 {
        self.process("").2.freshness(stream).await.unwrap().rows
    }

    async fn round(&self, function: &Function) {
        let deadline_us = self.env.now_us() + LIMIT_US;
        function.handle(Event::Round, deadline_us).await.unwrap();
    }

    /// Delivers a batch, and answers the ids of what failed.
    async fn deliver(&self, function: &Function, bodies: &[String], limit_us: i64) -> Vec<String> {
        let message =
            |(n, body): (usize, &String)| Message { id: n.to_string(), body: body.clone() };
        let batch = Event::Batch(bodies.iter().enumerate().map(message).collect());
        let answer = function.handle(batch, self.env.now_us() + limit_us).await.unwrap();
        let failed = answer["batchItemFailures"].as_array().unwrap();
        failed.iter().map(|f| f["itemIdentifier"].as_str().unwrap().to_owned()).collect()
    }

    fn sent(&self) -> Vec<String> {
        std::mem::take(&mut *self.outbox.messages.lock())
    }

    /// The values of a metric, of all streams together.
    fn metric(&self, name: &str) -> Vec<f64> {
        let emitted = self.emitted.lock();
        let whole = emitted.iter().filter(|line| line.get("Stream").is_none());
        whole.filter_map(|line| line.get(name)?.as_f64()).collect()
    }
}

fn seal(stream: &str) -> String {
    format!("{{\"work\":\"seal\",\"stream\":\"{stream}\"}}")
}

#[tokio::test(start_paused = true)]
async fn a_thousand_streams_are_found_queued_and_sealed_once_however_often_they_are_delivered() {
    let world = World::new();
    for n in 0..1000 {
        world.push(&format!("s{n:04}"), "p", 2).await;
    }
    let (function, ..) = world.process("");
    world.round(&function).await;
    let sent = world.sent();
    let seals: BTreeSet<_> = sent.iter().filter(|m| m.contains("\"seal\"")).cloned().collect();
    let wanted: BTreeSet<_> = (0..1000).map(|n| seal(&format!("s{n:04}"))).collect();
    assert!(seals == wanted, "{} of {} were found", seals.len(), wanted.len());
    let bodies: Vec<String> = seals.into_iter().collect();
    // Ten in a batch, each batch twice, by two processes at once, one of them a little later.
    for batch in bodies.chunks(10) {
        let (first, second) = (world.process("").0, world.process("").0);
        let (a, b) = tokio::join!(
            world.deliver(&first, batch, LIMIT_US),
            world.deliver(&second, batch, LIMIT_US)
        );
        assert!(a.is_empty() && b.is_empty(), "{a:?} {b:?}");
    }
    for n in 0..1000 {
        assert_eq!(world.rows(&format!("s{n:04}")).await, 2, "stream {n}");
    }
    assert_eq!(world.metric("SealedRows").iter().sum::<f64>(), 2000.0);
    assert_eq!(world.metric("StreamsBehind"), [1000.0]);
    assert_eq!(world.metric("TranslationLagRows").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_bad_stream_and_a_bad_message_fail_alone() {
    let world = World::new();
    for stream in ["good", "bad", "fine"] {
        world.push(stream, "p", 1).await;
    }
    let bodies = [
        seal("good"),
        seal("bad"),
        "no work".to_owned(),
        "{\"work\":\"unheard of\"}".to_owned(),
        seal("deleted long ago"),
        seal("fine"),
    ];
    let (function, ..) = world.process("s#bad");
    let mut failed = world.deliver(&function, &bodies, LIMIT_US).await;
    failed.sort();
    assert_eq!(failed, ["1", "2", "3"]);
    assert_eq!((world.rows("good").await, world.rows("fine").await), (1, 1));
    assert_eq!(world.rows("bad").await, 0);
    assert_eq!(world.metric("SealFailures"), [1.0]);
    assert_eq!(world.metric("WorkFailures"), [3.0]);
    // Nor does it hide the others from a round.
    world.push("good", "p", 1).await;
    world.round(&function).await;
    let sent = world.sent();
    assert!(sent.contains(&seal("good")) && !sent.contains(&seal("bad")), "{sent:?}");
    // Healed, and delivered again.
    let healed = world.process("").0;
    assert!(world.deliver(&healed, &bodies[1..2], LIMIT_US).await.is_empty());
    assert_eq!(world.rows("bad").await, 1);
}

#[tokio::test(start_paused = true)]
async fn it_stops_before_its_limit_and_goes_on_by_a_message() {
    let world = World { seal_rows: 10, ..World::new() };
    for p in 0..30 {
        world.push("s", &format!("p{p}"), 10).await;
    }
    *world.slowness.lock() = Duration::from_millis(600);
    let mut queue = vec![seal("s")];
    let mut invocations = 0;
    while let Some(body) = queue.pop() {
        let began_us = world.env.now_us();
        let (function, ..) = world.process("");
        let failed = world.deliver(&function, &[body], LIMIT_US).await;
        assert!(failed.is_empty(), "invocation {invocations}");
        let took_us = world.env.now_us() - began_us;
        assert!(took_us < LIMIT_US - 5_000_000, "invocation {invocations} took {took_us} us");
        queue.extend(world.sent());
        invocations += 1;
    }
    assert!(invocations > 1, "the limit was never met");
    assert_eq!(world.metric("FollowUps").iter().sum::<f64>(), f64::from(invocations - 1));
    *world.slowness.lock() = Duration::ZERO;
    assert_eq!(world.rows("s").await, 300);
}

#[tokio::test(start_paused = true)]
async fn without_a_follow_up_the_message_is_delivered_again() {
    let world = World { seal_rows: 10, ..World::new() };
    for p in 0..30 {
        world.push("s", &format!("p{p}"), 10).await;
    }
    *world.slowness.lock() = Duration::from_millis(600);
    *world.outbox.shut.lock() = true;
    let (function, ..) = world.process("");
    assert_eq!(world.deliver(&function, &[seal("s")], LIMIT_US).await, ["0"]);
    // A round that cannot send has failed, and the next finds the same.
    let round = function.handle(Event::Round, world.env.now_us() + LIMIT_US).await;
    assert!(matches!(round, Err(Failure::Send(_))), "{round:?}");
    // A step that would never end in time is a failure and no endless row of messages.
    *world.outbox.shut.lock() = false;
    *world.slowness.lock() = Duration::from_secs(300);
    assert_eq!(world.deliver(&function, &[seal("s")], LIMIT_US).await, ["0"]);
    assert!(world.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_round_that_is_cut_goes_on_with_the_next_streams() {
    let world = World::new();
    let streams = tidewheel_tables::limits::FIND_STREAMS + 5;
    for n in 0..streams {
        world.push(&format!("s{n:04}"), "p", 1).await;
    }
    let (function, ..) = world.process("");
    // The limit is over with the first page.
    function.handle(Event::Round, world.env.now_us()).await.unwrap();
    let sent = world.sent();
    let rest = sent.last().unwrap().clone();
    assert!(rest.contains("\"find\"") && rest.contains("\"after\""), "{rest}");
    assert!(world.deliver(&function, &[rest], LIMIT_US).await.is_empty());
    let seals = |sent: &[String]| sent.iter().filter(|m| m.contains("\"seal\"")).count();
    assert_eq!(seals(&sent) + seals(&world.sent()), streams);
}

#[tokio::test(start_paused = true)]
async fn only_streams_that_lag_for_long_have_metrics_of_their_own_and_few_of_them() {
    let world = World::new();
    for n in 0..30 {
        world.push(&format!("old{n}"), "p", 3).await;
    }
    world.env.sleep(Duration::from_secs(100)).await;
    world.push("new", "p", 1).await;
    let (function, ..) = world.process("");
    world.round(&function).await;
    assert!(world.metric("UnsealedAgeSeconds").iter().all(|age| (100.0..101.0).contains(age)));
    assert_eq!(world.metric("TranslationLagRows"), [91.0]);
    let emitted = world.emitted.lock();
    let own: Vec<_> = emitted.iter().filter_map(|line| line.get("Stream")?.as_str()).collect();
    assert_eq!(own.len(), 10);
    assert!(own.iter().all(|stream| stream.starts_with("old")));
    let about = &emitted[0]["_aws"]["CloudWatchMetrics"][0];
    assert_eq!(about["Namespace"], "Tidewheel");
    assert_eq!(about["Dimensions"], json!([["Table"]]));
}

#[tokio::test(start_paused = true)]
async fn a_catalogue_that_fails_stops_nothing_and_is_told_again() {
    let shelf = Shelf::default();
    let world = World { catalogue: Some(shelf.clone()), ..World::new() };
    let told = || {
        let told = shelf.told.lock();
        told.iter().map(|entry| (entry.stream.clone(), entry.version)).collect::<Vec<_>>()
    };
    let failures = || world.metric("MirrorFailures").iter().sum::<f64>();
    world.push("s", "p", 2).await;
    shelf.answers.lock().push(Err(CatalogueError("throttled".to_owned())));
    let (function, ..) = world.process("");
    assert!(world.deliver(&function, &[seal("s")], LIMIT_US).await.is_empty());
    assert_eq!((world.rows("s").await, failures()), (2, 1.0));
    let version = |n: u64| ("s".to_owned(), n);
    assert_eq!(told(), [version(1)]);
    {
        let told = shelf.told.lock();
        let entry = &told[0];
        assert_eq!(entry.location, "mem://x/tables/s");
        assert!(entry.metadata.starts_with("mem://x/tables/s/metadata/00001-"), "{entry:?}");
        assert!(entry.columns.iter().any(|c| c.name == "payload" && c.hive_type == "string"));
    }

    // Nothing is new, but the next round comes by, also in another process.
    world.round(&function).await;
    assert!(world.sent().contains(&seal("s")));
    let (function, ..) = world.process("");
    assert!(world.deliver(&function, &[seal("s")], LIMIT_US).await.is_empty());
    assert_eq!((told(), failures()), (vec![version(1), version(1)], 1.0));
    // Told, and asleep.
    world.round(&function).await;
    assert!(!world.sent().contains(&seal("s")));

    // What is not ours is counted, and nobody asks again before there is something new.
    world.push("s", "p", 1).await;
    shelf.answers.lock().push(Ok(Mirrored::Foreign));
    for _ in 0..2 {
        assert!(world.deliver(&function, &[seal("s")], LIMIT_US).await.is_empty());
    }
    assert_eq!((told().len(), world.rows("s").await), (3, 3));
    assert!(failures() >= 2.0);
    world.round(&function).await;
    assert!(!world.sent().contains(&seal("s")));
}
