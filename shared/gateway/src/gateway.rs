//! Connections over an engine: looking streams up, reading runs, and sharing what was encoded.
//!
//! Runs are kept in a bounded cache under (partition, first offset). A record never changes, so neither does a run:
//! nothing is ever invalidated. Whoever asks first reads and encodes; who asks meanwhile waits for that.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use quick_cache::{Weighter, sync::Cache};
use tidewheel_engine::{Engine, Error, Extent, PartitionId};
use tokio::sync::watch;

use crate::{Accepted, Close, Connection, Log, Request, Run, Settings, limits};

/// Counters since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Subscriptions accepted.
    pub accepted: u64,
    /// Subscriptions refused.
    pub refused: u64,
    /// Runs that were read and encoded.
    pub runs_encoded: u64,
    /// Runs that were served, encoded by whomever.
    pub runs_served: u64,
}

#[derive(Default)]
struct Counting {
    accepted: AtomicU64,
    refused: AtomicU64,
    runs_encoded: AtomicU64,
    runs_served: AtomicU64,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Arc<Run>> for ByBytes {
    fn weight(&self, _: &Key, run: &Arc<Run>) -> u64 {
        run.weight()
    }
}

type Key = (PartitionId, u64);

/// Serves subscriptions from an engine. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    settings: Settings,
    runs: Cache<Key, Arc<Run>, ByBytes>,
    counting: Counting,
}

impl Gateway {
    /// Over this engine.
    pub fn new(engine: Engine, settings: Settings) -> Self {
        let bytes = settings.frame_cache_bytes;
        // An estimate of the count sizes the cache's tables; the bytes are what bounds it.
        let runs = Cache::with_weighter((bytes / 16_384) as usize, bytes, ByBytes);
        Self { inner: Arc::new(Inner { engine, settings, runs, counting: Counting::default() }) }
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        let counting = &self.inner.counting;
        Counters {
            accepted: counting.accepted.load(Relaxed),
            refused: counting.refused.load(Relaxed),
            runs_encoded: counting.runs_encoded.load(Relaxed),
            runs_served: counting.runs_served.load(Relaxed),
        }
    }

    /// Reads a request from its URL, looks the stream up, and accepts or refuses.
    ///
    /// # Errors
    /// The refusal: 4400, 4404, 4416, or 1011 if the log cannot be read now.
    pub async fn connect(&self, path: &str, query: Option<&str>) -> Result<Accepted, Close> {
        let outcome = self.resolve(path, query).await;
        let counting = &self.inner.counting;
        let counter = if outcome.is_ok() { &counting.accepted } else { &counting.refused };
        counter.fetch_add(1, Relaxed);
        outcome
    }

    async fn resolve(&self, path: &str, query: Option<&str>) -> Result<Accepted, Close> {
        let request = Request::parse(path, query)?;
        let engine = &self.inner.engine;
        let stream = engine.stream(&request.stream).await.map_err(unavailable)?;
        let Some(stream) = stream else { return Err(Close::no_such_stream()) };
        let id = PartitionId::of(&stream.id, &request.partition);
        let extent = match engine.extent(&id).await {
            Ok(extent) => extent.unwrap_or(NEVER_WRITTEN),
            Err(Error::PartitionNotFound) => NEVER_WRITTEN,
            Err(e) => return Err(unavailable(e)),
        };
        let log = Log { stream_id: stream.id, extent };
        Connection::on_connect(request, &log, &self.inner.settings)
    }

    /// A channel that changes when the partition grows in this process; its value is the tail. Pushes of other processes
    /// show when somebody looks for them ([`Engine::refresh_tail`]).
    pub fn watch(&self, connection: &Connection) -> watch::Receiver<u64> {
        self.inner.engine.watch(connection.partition())
    }

    /// The rows at the connection's position, or `None` if it has all there are.
    ///
    /// # Errors
    /// 1011 if the log cannot be read now.
    pub async fn rows(&self, connection: &Connection) -> Result<Option<Arc<Run>>, Close> {
        let inner = &self.inner;
        let (partition, from) = (*connection.partition(), connection.position());
        let run = match inner.runs.get_value_or_guard_async(&(partition, from)).await {
            Ok(run) => run,
            Err(guard) => {
                let Some(run) = self.read(&partition, from).await? else { return Ok(None) };
                let run = Arc::new(run);
                inner.counting.runs_encoded.fetch_add(1, Relaxed);
                // It fails only if the cache dropped the entry meanwhile.
                let _ = guard.insert(Arc::clone(&run));
                run
            }
        };
        inner.counting.runs_served.fetch_add(1, Relaxed);
        Ok(Some(run))
    }

    async fn read(&self, partition: &PartitionId, from: u64) -> Result<Option<Run>, Close> {
        let records = (limits::RUN_RECORDS - from % limits::RUN_RECORDS) as usize;
        match self.inner.engine.read(partition, from, records, limits::RUN_BYTES).await {
            Ok(read) if read.records.is_empty() => Ok(None),
            Ok(read) => Ok(Some(Run::encode(&read.records))),
            // Nothing was ever written to it.
            Err(Error::PartitionNotFound) => Ok(None),
            Err(e) => Err(unavailable(e)),
        }
    }

    /// Checks that the stream which a connection follows is still there.
    ///
    /// # Errors
    /// 4404 if it was deleted; one that came back under the same name is another. If that cannot be known now, it is
    /// assumed to be there.
    pub async fn check(&self, connection: &Connection) -> Result<(), Close> {
        match self.inner.engine.stream(connection.stream()).await {
            Ok(Some(stream)) if stream.id == connection.stream_id() => Ok(()),
            Ok(_) => Err(Close::no_such_stream()),
            Err(error) => {
                tracing::debug!(%error, "a stream could not be looked up");
                Ok(())
            }
        }
    }
}

const NEVER_WRITTEN: Extent = Extent { floor: 0, tail: 0 };

fn unavailable(error: Error) -> Close {
    if matches!(error, Error::Name { .. }) {
        return Close::bad_request(error.to_string());
    }
    tracing::warn!(%error, "a subscription could not be served");
    Close::unavailable()
}
