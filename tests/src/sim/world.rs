//! The world of one run: what is shared, the streams and their options, and the order of events.

use std::{collections::VecDeque, hash::Hasher, sync::Arc, time::Duration};

use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde_json::json;
use tidewheel_engine::{Configure, Engine, Error};
use tidewheel_store::{Env, Faulty, Memory, Store, faulty::Plan};
use tokio::time::Instant;

use super::{
    History, Process, Sabotage, Violation, checks, consumer, keeper, processor,
    producer::{self, Batch},
    publisher, reader,
    sabotage::Sabotaged,
    sealer, transactor,
};

/// When every run begins: 2026-01-01 00:00 UTC, µs.
pub const START_US: i64 = 1_767_225_600_000_000;

pub(crate) const OBJECTS_ROOT: &str = "";

/// The stream that groups, queries and tables read.
pub(crate) const ORDERS: &str = "orders";
/// The sink of the query.
pub(crate) const OUT: &str = "totals";
/// Work that may fail.
pub(crate) const JOBS: &str = "jobs";
/// What transactions move,
pub(crate) const FROM: &str = "from";
/// and where to.
pub(crate) const TO: &str = "to";
/// A stream under retention.
pub(crate) const AGED: &str = "aged";
/// A stream that is played again.
pub(crate) const TAPES: &str = "tapes";

/// Partitions of each stream that is pushed to, in the end.
pub(crate) const PARTITIONS: u64 = 8;

/// Leases of all streams.
pub(crate) const LEASE: Duration = Duration::from_secs(12);

/// Charged tries of [`JOBS`].
pub(crate) const RETRIES: i64 = 2;

/// How long consumed records of [`AGED`] are kept.
pub(crate) const AGE: Duration = Duration::from_secs(25);

const STORM: Duration = Duration::from_secs(100);
const NIGHT: Duration = Duration::from_secs(22 * 60);
const SECOND_STORM: Duration = Duration::from_secs(50);
/// Longer than any call may be under way.
const CALM: Duration = Duration::from_secs(125);
/// In good weather everything is delivered and settled within this.
const DRAIN: Duration = Duration::from_secs(240);
/// With nothing leased, a new record reaches every waiting consumer within this.
const WAKE: Duration = Duration::from_secs(20);

/// Chance of one task. Everything in a run draws from one of these, and they all come from its seed.
#[derive(Clone)]
pub struct Chance(fastrand::Rng);

impl Chance {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Another one, for a task of its own.
    pub fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// A seed for something else.
    pub fn seed(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below a bound; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.u64(..bound) }
    }

    /// A number within bounds, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        self.0.i64(low..=high)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// A time within bounds.
    pub fn time(&mut self, low_ms: u64, high_ms: u64) -> Duration {
        Duration::from_millis(low_ms + self.below(high_ms - low_ms + 1))
    }
}

/// What all processes of a run share.
pub struct World {
    /// The truth.
    pub memory: Memory,
    /// The tables' files.
    pub objects: Arc<InMemory>,
    /// The planted bug, if any.
    pub sabotage: Option<Sabotage>,
    /// What everybody saw.
    pub history: Mutex<History>,
    /// Batches that somebody has to see through: their senders may be dead.
    pub(crate) pending: Mutex<VecDeque<Batch>>,
    /// Batches that were stored.
    pub(crate) stored: Mutex<Vec<Batch>>,
    /// True while it storms: then workers freeze, die and fail.
    pub(crate) stormy: Mutex<bool>,
    pub(crate) faulty: Faulty,
    faulties: Mutex<Vec<Faulty>>,
    started: Instant,
}

impl World {
    /// An empty world.
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let memory = Memory::new();
        let inner: Arc<dyn Store> = Arc::new(Sabotaged::new(Arc::new(memory.clone()), sabotage));
        let env = Env::simulated(seed, START_US, 0);
        Self {
            memory,
            objects: Arc::new(InMemory::new()),
            sabotage,
            history: Mutex::default(),
            pending: Mutex::default(),
            stored: Mutex::default(),
            stormy: Mutex::new(true),
            faulty: Faulty::new(inner, Plan::none(), env),
            faulties: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// True while it storms.
    pub(crate) fn stormy(&self) -> bool {
        *self.stormy.lock()
    }

    pub(crate) fn remember(&self, faulty: Faulty) {
        self.faulties.lock().push(faulty);
    }

    /// Lets everything arrive that is still on its way.
    async fn settle(&self) {
        let faulties = self.faulties.lock().clone();
        for faulty in faulties {
            faulty.settle().await;
        }
    }

    /// Notes an error that no client should ever see.
    pub(crate) fn unexpected(&self, what: &str, error: &Error) {
        self.history.lock().violation("errors", format!("{what}: {error}"));
    }

    /// An engine without faults and with a true clock, on the truth itself.
    pub fn clean_engine(&self, seed: u64) -> Engine {
        let env = Env::simulated(seed, START_US + self.now().as_micros() as i64, 0);
        Engine::new(Arc::new(self.memory.clone()), env, tidewheel_engine::Settings::default())
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was wrong. Empty is good.
    pub violations: Vec<Violation>,
    /// What happened how often.
    pub counts: std::collections::BTreeMap<&'static str, u64>,
    /// What happened, as far as the caller asked for it.
    pub trace: Vec<String>,
    /// A hash over everything that anybody saw and everything that is stored.
    pub fingerprint: u64,
}

impl Outcome {
    /// The command that shows it again.
    pub fn replay(&self, sabotage: Option<Sabotage>) -> String {
        let bug = sabotage.map_or(String::new(), |s| format!(" --sabotage {}", s.name()));
        format!(
            "cargo run --release -p tidewheel-tests --bin simulate -- --seed {}{bug}",
            self.seed
        )
    }
}

/// Runs a seed.
///
/// # Panics
/// If the runtime cannot be built.
pub fn run(seed: u64, sabotage: Option<Sabotage>) -> Outcome {
    run_traced(seed, sabotage, None)
}

/// Runs a seed, and tells what happened to a (group, stream, partition).
///
/// # Panics
/// See [`run`].
pub fn run_traced(
    seed: u64,
    sabotage: Option<Sabotage>,
    of: Option<(&str, &str, &str)>,
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap_or_else(|e| panic!("no runtime: {e}"));
    runtime.block_on(async { live(seed, sabotage, of).await })
}

async fn live(seed: u64, sabotage: Option<Sabotage>, of: Option<(&str, &str, &str)>) -> Outcome {
    let world = Arc::new(World::new(seed, sabotage));
    let mut chance = Chance::new(seed);
    configure(&world).await;

    storm(&world, &mut chance, STORM).await;
    night(&world, &mut chance).await;
    storm(&world, &mut chance, SECOND_STORM).await;

    *world.stormy.lock() = false;
    tokio::time::sleep(CALM).await;
    world.settle().await;

    fair_weather(&world, &mut chance).await;
    let mut found = checks::check(&world, &mut chance).await;

    let mut trace = Vec::new();
    if let Some((group, stream, partition)) = of {
        let engine = world.clean_engine(0);
        let partitions = engine.partitions(stream, None, 1000).await.unwrap_or_default();
        for info in partitions.iter().filter(|p| p.name == partition) {
            trace.extend(world.history.lock().trace(group, &info.id));
        }
    }

    let mut history = world.history.lock();
    found.splice(0..0, std::mem::take(&mut history.violations));
    let mut hasher = std::hash::DefaultHasher::new();
    let mut feed = |text: String| hasher.write(text.as_bytes());
    feed(format!("{:?}", *history));
    for (key, item) in world.memory.items() {
        feed(format!("{key} {item:?}"));
    }
    for (name, bytes) in world.memory.blobs() {
        feed(format!("{name} {bytes}"));
    }
    let counts = history.counts.clone();
    Outcome { seed, violations: found, counts, trace, fingerprint: hasher.finish() }
}

async fn configure(world: &World) {
    let engine = world.clean_engine(1);
    if let Err(e) = publisher::declare(&engine).await {
        world.unexpected("declare", &e);
    }
    let lease = LEASE.as_secs();
    for (stream, options) in [
        (ORDERS, json!({"leaseTime": lease})),
        (OUT, json!({"leaseTime": lease})),
        (JOBS, json!({"leaseTime": lease, "retryLimit": RETRIES})),
        (FROM, json!({"leaseTime": lease})),
        (TO, json!({"leaseTime": lease})),
        (TAPES, json!({"leaseTime": lease})),
        (
            AGED,
            json!({
                "leaseTime": lease,
                "retentionEnabled": true,
                "completedRetentionSeconds": AGE.as_secs(),
            }),
        ),
    ] {
        let options = options.as_object().cloned().unwrap_or_default();
        let configure = Configure { options, ..Configure::default() };
        if let Err(e) = engine.configure(stream, configure).await {
            world.unexpected("configure", &e);
        }
    }
}

/// Producers that are frozen for a night.
const SLEEPWALKERS: u64 = 12;

/// Slots for processes, each with work of its own; in each, one process after another lives and dies.
const SLOTS: u64 = 5;

async fn storm(world: &Arc<World>, chance: &mut Chance, length: Duration) {
    let until = world.now() + length;
    let mut slots = tokio::task::JoinSet::new();
    for slot in 0..SLOTS {
        let (world, mut chance) = (Arc::clone(world), chance.fork());
        slots.spawn(async move {
            while world.now() < until {
                let mut process = Process::start(&world, Plan::stormy(), &mut chance);
                staff(&world, &mut process, slot, &mut chance);
                let life = chance.time(8_000, 60_000).min(until.saturating_sub(world.now()));
                tokio::time::sleep(life).await;
                process.kill(&world, &mut chance).await;
                world.history.lock().count("processes killed");
                tokio::time::sleep(chance.time(0, 4_000)).await;
            }
        });
    }
    while slots.join_next().await.is_some() {}
}

/// Starts the workers of a slot's process.
fn staff(world: &Arc<World>, process: &mut Process, slot: u64, chance: &mut Chance) {
    let mut spawn = |process: &mut Process, role: Role| {
        let handle = process.handle();
        let (world, chance) = (Arc::clone(world), chance.fork());
        let tables = process.tables(&world);
        process.spawn(async move {
            match role {
                Role::Producer => producer::work(world, handle, chance).await,
                Role::Publisher => publisher::work(world, handle, chance).await,
                Role::Consumer(kind) => consumer::work(world, handle, chance, kind).await,
                Role::Processor => processor::work(world, handle, chance).await,
                Role::Flusher => processor::flush(world, handle, chance).await,
                Role::Transactor => transactor::work(world, handle, chance).await,
                Role::Sealer => sealer::work(world, tables, chance).await,
                Role::Keeper => keeper::work(world, handle, chance).await,
                Role::Reader => reader::work(world, handle, chance).await,
                Role::Seeker => consumer::seek(world, handle, chance).await,
            }
        });
    };
    use consumer::Kind;
    let roles: &[Role] = match slot {
        0 => &[
            Role::Producer,
            Role::Producer,
            Role::Consumer(Kind::All),
            Role::Processor,
            Role::Consumer(Kind::Jobs),
            Role::Publisher,
        ],
        1 => &[
            Role::Producer,
            Role::Processor,
            Role::Consumer(Kind::Jobs),
            Role::Transactor,
            Role::Consumer(Kind::Late),
            Role::Consumer(Kind::Aged),
            Role::Publisher,
        ],
        2 => &[
            Role::Consumer(Kind::All),
            Role::Consumer(Kind::Late),
            Role::Consumer(Kind::New),
            Role::Consumer(Kind::Auto),
            Role::Processor,
            Role::Transactor,
            Role::Consumer(Kind::Tapes),
            Role::Publisher,
        ],
        3 => {
            &[Role::Sealer, Role::Keeper, Role::Flusher, Role::Reader, Role::Consumer(Kind::Named)]
        }
        _ => &[
            Role::Sealer,
            Role::Keeper,
            Role::Flusher,
            Role::Seeker,
            Role::Consumer(Kind::Aged),
            Role::Consumer(Kind::New),
            Role::Consumer(Kind::Auto),
        ],
    };
    for role in roles {
        spawn(process, *role);
    }
}

#[derive(Clone, Copy)]
enum Role {
    Producer,
    Publisher,
    Consumer(consumer::Kind),
    Processor,
    Flusher,
    Transactor,
    Sealer,
    Keeper,
    Reader,
    Seeker,
}

/// Everybody is away for longer than the collector's grace; what was frozen before may thaw at any moment.
async fn night(world: &Arc<World>, chance: &mut Chance) {
    // What these send arrives after the night.
    let late = Plan { late: 1.0, late_calls: u64::MAX / 2, ..Plan::calm() };
    let mut frozen = Vec::new();
    for _ in 0..SLEEPWALKERS {
        let mut process = Process::start(world, late.clone(), chance);
        process.spawn(producer::sleepwalk(Arc::clone(world), process.handle(), chance.fork()));
        // It has sent one commit, and makes no further call.
        for _ in 0..500 {
            if process.late() > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        frozen.push(process.stop(world).await);
    }

    let mut process = Process::start(world, Plan::stormy(), chance);
    let (handle, chance_of) = (process.handle(), chance.fork());
    process.spawn(keeper::watch(Arc::clone(world), handle, chance_of));
    tokio::time::sleep(NIGHT).await;
    process.kill(world, chance).await;
    for faulty in frozen {
        faulty.settle().await;
    }
}

/// No faults any more. What was left must be delivered, and what is new as well.
async fn fair_weather(world: &Arc<World>, chance: &mut Chance) {
    let mut processes = Vec::new();
    for slot in 0..SLOTS {
        let mut process = Process::start(world, Plan::calm(), chance);
        staff(world, &mut process, slot, chance);
        processes.push(process);
    }
    wait_until_drained(world, DRAIN, "after the storm").await;
    if world.history.lock().violations.is_empty() {
        let mut process = Process::start(world, Plan::calm(), chance);
        producer::two_for_each_partition(world, &process.handle(), chance).await;
        process.spawn(std::future::pending());
        wait_until_drained(world, WAKE, "with nothing leased").await;
        process.stop(world).await;
    }
    for process in processes {
        process.stop(world).await;
    }
    world.settle().await;
}

async fn wait_until_drained(world: &Arc<World>, within: Duration, when: &str) {
    let until = world.now() + within;
    loop {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let waiting = checks::waiting(world).await;
        if waiting.is_empty() {
            return;
        }
        if world.now() >= until {
            for what in waiting {
                world.history.lock().violation("wake-up", format!("{when}: {what}"));
            }
            return;
        }
    }
}
