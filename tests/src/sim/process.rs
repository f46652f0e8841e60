//! A simulated process: an engine with a memory of its own, behind faults and a clock of its own.

use std::{sync::Arc, time::Duration};

use tidewheel_engine::{Engine, Settings};
use tidewheel_store::{
    Env, Faulty, Store,
    faulty::{Crash, Plan},
};
use tidewheel_tables::Tables;
use tokio::task::JoinSet;

use super::{
    Sabotage, World,
    sabotage::Gullible,
    world::{Chance, OBJECTS_ROOT, START_US},
};

/// What a process gives to its workers. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    /// The engine.
    pub engine: Engine,
    /// How far the process's clock is off.
    pub skew_us: i64,
}

/// A process that lives until it is killed.
pub struct Process {
    handle: Handle,
    faulty: Faulty,
    tasks: JoinSet<()>,
}

impl Process {
    /// A new process with a cold memory.
    pub fn start(world: &World, plan: Plan, chance: &mut Chance) -> Self {
        let skew_us = chance.between(-300_000, 300_000);
        let start_us = START_US + world.now().as_micros() as i64;
        let env = Env::simulated(chance.seed(), start_us, skew_us);
        let faulty = world.faulty.another(plan, Env::simulated(chance.seed(), start_us, 0));
        world.remember(faulty.clone());
        let store: Arc<dyn Store> = match world.sabotage {
            Some(Sabotage::UnknownIsFailure) => Arc::new(Gullible(Arc::new(faulty.clone()))),
            _ => Arc::new(faulty.clone()),
        };
        let settings = Settings { poll_every: Duration::from_secs(1), ..Settings::default() };
        let engine = Engine::new(store, env, settings);
        Self { handle: Handle { engine, skew_us }, faulty, tasks: JoinSet::new() }
    }

    /// What its workers need.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.handle.engine
    }

    /// Tables of its engine's streams.
    pub fn tables(&self, world: &World) -> Tables {
        tables(&self.handle.engine, world)
    }

    /// Commits that it has sent and that have yet to arrive.
    pub fn late(&self) -> usize {
        self.faulty.late()
    }

    /// Starts a worker.
    pub fn spawn(&mut self, worker: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(worker);
    }

    /// Dies within its next few calls, each of which may or may not happen.
    pub async fn kill(mut self, world: &World, chance: &mut Chance) {
        let crash = Crash::ALL[chance.below(3) as usize];
        self.faulty.crash_at(self.faulty.calls() + 1 + chance.below(4), crash);
        // What is under way ends, or hangs in its next call.
        tokio::time::sleep(Duration::from_millis(200 + chance.below(3000))).await;
        self.tasks.abort_all();
        self.reap(world).await;
        // The engine's own tasks make no further call either.
        self.faulty.crash_at(self.faulty.calls() + 1, Crash::Before);
        // What it had sent arrives in its own time.
        let faulty = self.faulty.clone();
        let after = if chance.one_in(3) { 1500 } else { 30 };
        let after = Duration::from_secs(chance.below(after));
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            faulty.settle().await;
        });
    }

    /// Stops it where it stands: nothing new is sent. What it had sent is still under way.
    pub async fn stop(mut self, world: &World) -> Faulty {
        self.faulty.crash_at(self.faulty.calls() + 1, Crash::Before);
        self.tasks.abort_all();
        self.reap(world).await;
        self.faulty
    }

    async fn reap(&mut self, world: &World) {
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(e) = ended
                && e.is_panic()
            {
                let panic = e.into_panic();
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                let text = text.unwrap_or_default();
                world.history.lock().violation("panic", text);
            }
        }
    }
}

/// How long what a reader of a table may have opened stays, µs.
const PINNED_US: i64 = 60_000_000;

pub(crate) fn tables(engine: &Engine, world: &World) -> Tables {
    Tables::new(
        engine,
        world.objects.clone(),
        OBJECTS_ROOT.into(),
        "mem://tables",
        // Little is enough to compact, and what nothing names goes soon: the mark keeps writers apart, not the time.
        tidewheel_tables::Settings {
            compact_files: 2,
            pinned_us: PINNED_US,
            snapshot_age_us: PINNED_US,
            ..Default::default()
        },
    )
}
