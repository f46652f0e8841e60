//! Connections over an engine: looking streams up, reading runs, and sharing what was encoded.
//!
//! Runs are kept in a bounded cache under (partition, first offset). A record never changes, so neither does a run:
//! nothing is ever invalidated. Whoever asks first reads and encodes; who asks meanwhile waits for that.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use tidewheel_engine::{Engine, Error, Extent, PartitionId, PushItem, Pushed, StreamInfo, Uuid};
use tokio::sync::watch;

use crate::{
    Accepted, Close, Connection, Log, Outcome, Publish, Publisher, Request, Run, Session, Settings,
    Subscribe, Target, Terms,
    activity::{Activities, Following},
    claims::Claims,
    declared::{Greeted, Reach},
    frame::Frame,
    greeting::Greeting,
    limits,
    relay::Relay,
    session::Kind,
};

/// Counters since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections refused.
    pub refused: u64,
    /// Messages of publishers whose rows were taken.
    pub messages_published: u64,
    /// Runs that were read and encoded.
    pub runs_encoded: u64,
    /// Runs that were served, encoded by whomever.
    pub runs_served: u64,
}

#[derive(Default)]
struct Counting {
    accepted: AtomicU64,
    refused: AtomicU64,
    messages_published: AtomicU64,
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
    claims: Claims,
    activities: Activities,
    relays: Mutex<HashMap<Uuid, Arc<Relay>>>,
    started_us: i64,
}

/// What a client gets that was accepted.
#[derive(Debug)]
pub enum Opened {
    /// It follows.
    Subscriber(Box<Subscriber>),
    /// It publishes.
    Publisher(Box<Session>),
}

/// A subscriber with what feeds it.
#[derive(Debug)]
pub struct Subscriber {
    /// Its state.
    pub connection: Connection,
    /// The first frame to send, JSON text.
    pub greeting: bytes::Bytes,
    /// Changes when there are more rows in this process; its value is the tail. Pushes of other processes show when somebody
    /// looks for them ([`Engine::refresh_tail`]).
    pub tail: watch::Receiver<u64>,
    /// Where its rows come from.
    pub feed: Feed,
    /// Counts it while it lasts.
    pub following: Following,
}

/// Where a subscriber's rows come from.
#[derive(Clone, Debug)]
pub struct Feed {
    /// From what passes through, not from a log.
    relay: Option<Arc<Relay>>,
    /// What a declared stream was like when it was greeted.
    greeted: Option<Greeted>,
}

impl Feed {
    pub(crate) fn log(greeted: Option<Greeted>) -> Self {
        Self { relay: None, greeted }
    }

    pub(crate) fn relay(relay: Arc<Relay>, greeted: Greeted) -> Self {
        Self { relay: Some(relay), greeted: Some(greeted) }
    }
}

impl Gateway {
    /// Over this engine.
    pub fn new(engine: Engine, settings: Settings) -> Self {
        let bytes = settings.frame_cache_bytes;
        // An estimate of the count sizes the cache's tables; the bytes are what bounds it.
        let runs = Cache::with_weighter((bytes / 16_384) as usize, bytes, ByBytes);
        let started_us = engine.env().now_us();
        let (counting, claims) = (Counting::default(), Claims::default());
        let (activities, relays) = (Activities::default(), Mutex::default());
        Self {
            inner: Arc::new(Inner {
                engine,
                settings,
                runs,
                counting,
                claims,
                activities,
                relays,
                started_us,
            }),
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.inner.claims
    }

    pub(crate) fn relays(&self) -> &Mutex<HashMap<Uuid, Arc<Relay>>> {
        &self.inner.relays
    }

    pub(crate) fn activities(&self) -> &Activities {
        &self.inner.activities
    }

    pub(crate) fn started_us(&self) -> i64 {
        self.inner.started_us
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        let counting = &self.inner.counting;
        Counters {
            accepted: counting.accepted.load(Relaxed),
            refused: counting.refused.load(Relaxed),
            messages_published: counting.messages_published.load(Relaxed),
            runs_encoded: counting.runs_encoded.load(Relaxed),
            runs_served: counting.runs_served.load(Relaxed),
        }
    }

    /// Reads a request from its URL, looks the stream up, and accepts or refuses.
    ///
    /// # Errors
    /// The refusal: 4400, 4404, 4410, 4412, 4416, or 1011 if the store cannot be read now.
    pub async fn connect(&self, path: &str, query: Option<&str>) -> Result<Opened, Close> {
        let outcome = match Request::parse(path, query) {
            Ok(request) => match self.admit(request.stream()).await {
                Ok(()) => match request {
                    Request::Subscribe(request) => self.subscribe(request).await,
                    Request::Publish(request) => self.publisher(request).await,
                },
                Err(close) => Err(close),
            },
            Err(close) => Err(close),
        };
        let counting = &self.inner.counting;
        let counter = if outcome.is_ok() { &counting.accepted } else { &counting.refused };
        counter.fetch_add(1, Relaxed);
        outcome
    }

    /// Refuses a stream that its control plane has not brought up, or has stopped: it is not there for sockets.
    async fn admit(&self, name: &str) -> Result<(), Close> {
        match self.inner.engine.admits(name).await.map_err(unavailable)? {
            true => Ok(()),
            false => Err(self.no_such_stream().await),
        }
    }

    async fn stream(&self, name: &str) -> Result<StreamInfo, Close> {
        match self.inner.engine.stream(name).await.map_err(unavailable)? {
            Some(stream) => Ok(stream),
            None => Err(self.no_such_stream().await),
        }
    }

    /// The refusal of a stream that is not there, with those that are, if they are few.
    async fn no_such_stream(&self) -> Close {
        let Inner { engine, settings, .. } = &*self.inner;
        if !settings.name_streams {
            return Close::no_such_stream(&[]);
        }
        let names = engine.streams(None, limits::SERVES_STREAMS + 1).await.unwrap_or_default();
        let few = names.len() <= limits::SERVES_STREAMS;
        Close::no_such_stream(if few { &names } else { &[] })
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Opened, Close> {
        if let Some(declared) = self.declared(&request.stream).await? {
            let subscriber = self.subscribe_declared(request, &declared).await?;
            return Ok(Opened::Subscriber(Box::new(subscriber)));
        }
        let stream = self.stream(&request.stream).await?;
        let terms = Terms::undeclared(&self.inner.settings);
        let id = PartitionId::of(&stream.id, &request.partition);
        // Watched before it is looked at: nothing in between goes unseen.
        let tail = self.inner.engine.watch(&id);
        let log = Log { stream_id: stream.id, extent: self.extent(&id).await? };
        let subscriber = self.follow(request, &log, &terms, Feed::log(None), tail)?;
        Ok(Opened::Subscriber(Box::new(subscriber)))
    }

    pub(crate) fn follow(
        &self,
        request: Subscribe,
        log: &Log,
        terms: &Terms,
        feed: Feed,
        tail: watch::Receiver<u64>,
    ) -> Result<Subscriber, Close> {
        let Accepted { connection, greeting } = Connection::on_connect(request, log, terms)?;
        let following = self.inner.activities.of(connection.stream()).follow();
        Ok(Subscriber { connection, greeting, tail, feed, following })
    }

    pub(crate) async fn extent(&self, id: &PartitionId) -> Result<Extent, Close> {
        match self.inner.engine.extent(id).await {
            Ok(extent) => Ok(extent.unwrap_or(NEVER_WRITTEN)),
            Err(Error::PartitionNotFound) => Ok(NEVER_WRITTEN),
            Err(e) => Err(unavailable(e)),
        }
    }

    async fn publisher(&self, request: Publish) -> Result<Opened, Close> {
        if let Some(declared) = self.declared(&request.stream).await? {
            let session = self.publish_declared(request, &declared).await?;
            return Ok(Opened::Publisher(Box::new(session)));
        }
        let Publish { stream, partition, publisher } = request;
        let info = self.stream(&stream).await?;
        let terms = Terms::undeclared(&self.inner.settings);
        if publisher.is_some() {
            return Err(Close::exactly_once_unavailable());
        }
        let extent = self.extent(&PartitionId::of(&info.id, &partition)).await?;
        let stream_id = info.id.to_string();
        let greeting = Greeting::new(&terms, &stream, &stream_id, extent.tail + 1).text();
        let publisher = Publisher::new(&stream, false, terms.max_message_bytes);
        let activity = self.inner.activities.of(&stream);
        let kind = Kind::Undeclared { partition };
        let target = Target { stream, stream_id: info.id, kind, activity };
        Ok(Opened::Publisher(Box::new(Session::new(publisher, greeting, target, None))))
    }

    /// Commits a publisher's frames: one outcome for each, in order. Frames that wait for the same commit share it with
    /// those of other publishers.
    pub async fn publish(&self, target: &Target, frames: Vec<Frame>) -> Vec<Outcome> {
        let outcomes = match &target.kind {
            Kind::Undeclared { partition } => self.push(&target.stream, partition, &frames).await,
            Kind::Declared { claim, .. } => {
                self.commit(&target.stream, claim.as_ref(), frames).await
            }
            Kind::Relay { relay, terms, .. } => {
                let now_us = self.inner.engine.env().now_us();
                frames.iter().map(|frame| pass(relay, terms, now_us, frame)).collect()
            }
        };
        let landed = outcomes.iter().filter(|o| matches!(o, Outcome::Landed { .. })).count();
        if landed > 0 {
            target.activity.sent(self.inner.engine.env().now_us());
            self.inner.counting.messages_published.fetch_add(landed as u64, Relaxed);
        }
        outcomes
    }

    /// Pushes frames to a partition of a stream that was never declared: they land together.
    async fn push(&self, stream: &str, partition: &str, frames: &[Frame]) -> Vec<Outcome> {
        let item = |row: &bytes::Bytes| PushItem {
            stream: stream.to_owned(),
            partition: partition.to_owned(),
            payload: row.clone(),
            ..PushItem::default()
        };
        let items = frames.iter().flat_map(|frame| &frame.rows).map(item).collect();
        let mut pushed = self.inner.engine.push(items).await.into_iter();
        let outcome = |frame: &Frame| {
            let mut offsets = Vec::with_capacity(frame.rows.len());
            for pushed in pushed.by_ref().take(frame.rows.len()) {
                match pushed {
                    Pushed::Queued { offset, .. } => offsets.push(Some(offset)),
                    Pushed::Duplicate { offset, .. } => offsets.push(offset),
                    Pushed::Refused(error) => return refused(&error),
                }
            }
            if offsets.len() < frame.rows.len() {
                return Outcome::Unknown;
            }
            Outcome::Landed { offsets, duplicates: 0 }
        };
        frames.iter().map(outcome).collect()
    }

    /// The rows at the connection's position, or `None` if it has all there are.
    ///
    /// # Errors
    /// 1011 if the log cannot be read now; 4429 if a stream without a log has outrun it.
    pub async fn rows(
        &self,
        connection: &Connection,
        feed: &Feed,
    ) -> Result<Option<Arc<Run>>, Close> {
        let inner = &self.inner;
        let (partition, from) = (*connection.partition(), connection.position());
        let reach = match &feed.greeted {
            Some(greeted) => self.reach(greeted).await?,
            None => Reach::Open,
        };
        let until = match reach {
            Reach::Open => u64::MAX,
            // All that the old generation has was sent, or it has no log: the client comes back and is greeted anew.
            Reach::Until(seam) if from >= seam || feed.relay.is_some() => {
                return Err(Close::going_away());
            }
            Reach::Until(seam) => seam,
        };
        if let Some(relay) = &feed.relay {
            let run = relay.rows(from).map_err(|_| connection.overrun())?;
            inner.counting.runs_served.fetch_add(u64::from(run.is_some()), Relaxed);
            return Ok(run);
        }
        let run = match inner.runs.get_value_or_guard_async(&(partition, from)).await {
            Ok(run) => run,
            Err(guard) => {
                let Some(run) = self.read(&partition, from, until).await? else { return Ok(None) };
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

    async fn read(
        &self,
        partition: &PartitionId,
        from: u64,
        until: u64,
    ) -> Result<Option<Run>, Close> {
        let records = limits::RUN_RECORDS - from % limits::RUN_RECORDS;
        let records = records.min(until.saturating_sub(from)) as usize;
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
    /// 4404 if it was deleted; one that came back under the same name is another. 1001 if it was stopped. If that cannot be
    /// known now, it is assumed to be there.
    pub async fn check(&self, connection: &Connection) -> Result<(), Close> {
        self.check_stream(connection.stream(), connection.stream_id()).await
    }

    /// Checks that the stream which a publisher's rows go to is still there.
    ///
    /// # Errors
    /// As [`Gateway::check`].
    pub async fn check_target(&self, target: &Target) -> Result<(), Close> {
        match &target.kind {
            Kind::Undeclared { .. } => {}
            Kind::Declared { greeted, .. } | Kind::Relay { greeted, .. } => {
                self.check_greeted(greeted).await?;
            }
        }
        self.check_stream(&target.stream, target.stream_id).await
    }

    async fn check_stream(&self, name: &str, id: Uuid) -> Result<(), Close> {
        if let Ok(false) = self.inner.engine.admits(name).await {
            // It may come back, with another schema perhaps: its clients look for it.
            return Err(Close::going_away());
        }
        match self.inner.engine.stream(name).await {
            Ok(Some(stream)) if stream.id == id => Ok(()),
            Ok(_) => Err(Close::no_such_stream(&[])),
            Err(error) => {
                tracing::debug!(%error, "a stream could not be looked up");
                Ok(())
            }
        }
    }
}

/// Passes one frame of a stream without a log on, all of it or nothing.
fn pass(relay: &Relay, terms: &Terms, now_us: i64, frame: &Frame) -> Outcome {
    let rows = match &terms.schema {
        None => Ok(frame.rows.clone()),
        Some(schema) => {
            let normal = |row: &bytes::Bytes| schema.row(row).map(|row| schema.write(&row).into());
            frame.rows.iter().map(normal).collect::<Result<Vec<bytes::Bytes>, _>>()
        }
    };
    match rows {
        Ok(rows) => {
            relay.send(now_us, &rows, terms.max_backlog);
            Outcome::Landed { offsets: vec![None; rows.len()], duplicates: 0 }
        }
        Err(error) => Outcome::Rejected { detail: error.to_string() },
    }
}

/// Why a frame did not land. Only what says so for certain may be tried again.
fn refused(error: &Error) -> Outcome {
    match error {
        Error::Unknown(_) => {
            tracing::warn!(%error, "the outcome of a publisher's message is unknown");
            Outcome::Unknown
        }
        error => Outcome::Failed { detail: error.to_string() },
    }
}

const NEVER_WRITTEN: Extent = Extent { floor: 0, tail: 0 };

pub(crate) fn unavailable(error: Error) -> Close {
    if matches!(error, Error::Name { .. }) {
        return Close::bad_request(error.to_string());
    }
    tracing::warn!(%error, "a connection could not be served");
    Close::unavailable()
}
