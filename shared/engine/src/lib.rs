//! Streams, partitions, groups, leases, queries and cycles.
//!
//! The engine turns requests into commits on a [`Store`]: payload first, then one conditional write on a small head, or
//! one small transaction over a few. It holds no state that matters: any number of processes run it over one store at
//! once, each remembers what it has seen (see `warm`), and every commit states what it relies on.
//!
//! ```
//! # use std::sync::Arc;
//! # use tidewheel_engine::*;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
//! let engine = Engine::new(Arc::new(tidewheel_store::Memory::new()), tidewheel_store::Env::system(), Settings::default());
//! let record = PushItem { stream: "orders".into(), payload: "{\"n\":1}".into(), ..PushItem::default() };
//! assert!(matches!(engine.push(vec![record]).await[0], Pushed::Queued { offset: 0, .. }));
//! # Ok(()) }
//! ```
//!
//! Where to find what:
//!
//! | a request | module |
//! |---|---|
//! | push | `push`, then `lane` (who waits shares a commit), `append` (the conditional write, deduplication), `roll` |
//! | read by offset | `read`; `fetch` for many at once, `changed` for which partitions |
//! | pop, long poll | `pop`; `group` for joining and the wake-up index |
//! | how far groups have come | `standing` |
//! | ack, extend, dead letters | `ack`, `dead_letter`; `letters` finds, counts, replays and deletes them |
//! | transaction | `transaction` |
//! | query, state, cycle | `query`, `state`, `cycle`; `claim` for leases over nothing |
//! | retention, collection, deletion | `maintain` |
//! | counting what there is | `survey` |
//! | following, for processes that deliver | `live` |
//! | keys with values | `kv` |
//! | timers | `timer` |
//! | declared streams | `declare`; `generations` for their schemas' changes and their end |
//! | publishing rows | `publish`; `publisher` for marks, `relay` for streams without a log |
//! | traces | `trace` |
//! | streams that are managed: declarations, operations, receipts | `registry` |
//! | who may do what | `credential`, `grant`; `audit` for what was done |
//! | pausing pushes and pops | `switches` |
//! | encryption at rest | `encryption` |
//!
//! and of what is stored: `keys` (the layout), `head`, `page`, `segment`, `cursor`, `state`. The engine knows no HTTP, no
//! cloud and no Arrow, and reads no clock but [`Env`]'s.

mod ack;
mod append;
mod audit;
mod bundle;
mod changed;
mod claim;
mod credential;
mod cursor;
mod cycle;
mod dead_letter;
mod declare;
mod encryption;
mod error;
mod fetch;
mod generations;
mod grant;
mod group;
mod head;
mod id;
mod keys;
mod kv;
mod lane;
mod letters;
pub mod limits;
pub mod live;
mod maintain;
mod model;
mod options;
mod page;
mod pop;
mod publish;
mod publisher;
mod push;
mod query;
mod read;
mod registry;
mod relay;
mod roll;
mod segment;
mod standing;
mod state;
mod stream;
mod survey;
mod switches;
mod timer;
mod trace;
mod transaction;
mod view;
mod warm;

use std::{sync::Arc, time::Duration};

use tidewheel_store::{Env, Store};

pub use crate::{
    audit::{AUDIT, AuditEntry},
    changed::{Changed, ChangedEntry, ChangedPartition},
    credential::{
        ApiKey, Credential, FRESH_US as CREDENTIALS_FRESH_US, NewCredential, Proof, Quota,
        presented,
    },
    declare::{Declaration, Declared, Generation, Retirement},
    encryption::{DataKey, KeyError, KeyProvider, MasterKeys, SecretKey, WrappedKey},
    error::Error,
    fetch::{Fetch, FetchEntry, Fetched, TimeEntry, TimeFound},
    grant::{Action, Grant, RESERVED, Target},
    id::{CursorId, GroupId, LeaseId, PartitionId, Uuid, digest_of, message_id},
    kv::{Expiry, KvAction, KvLost, KvOp, KvOutcome, KvPage, KvReason, KvRow},
    live::{Doorbell, NotRung},
    maintain::Hold,
    model::*,
    options::StreamOptions,
    publish::{Frame, Landed, PublishError},
    publisher::Claim,
    query::query_id,
    registry::{Acceptance, Intent, ManagedPage, ManagedStream, Operation, Prior, Receipt},
    relay::Relayed,
    survey::{StreamSurvey, Survey, SurveyFilter, Volume},
    switches::Switches,
    timer::{Timer, TimerAction, TimerOp, TimerOutcome, TimerStatus},
    trace::{NewTrace, Trace, TraceName, TraceNames, TracesByName},
};

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where a new group starts when its pop names no mode.
    pub default_subscription: SubscriptionMode,
    /// How soon a waiting pop looks again when nothing woke it: pushes of other processes do not. Each look waits twice
    /// as long as the one before, up to `poll_every`. Where one process has the store, the two are best equal.
    pub poll_first: Duration,
    /// How often a pop that has waited for long looks again.
    pub poll_every: Duration,
    /// Bytes of payloads in one pop, at most [`limits::POP_BYTES`]. Less where a reply may not be that long: what a pop
    /// leases and cannot deliver waits for its lease to end.
    pub pop_bytes: usize,
    /// Messages in one pop, at most [`limits::POP_BATCH_MAX`].
    pub pop_batch_max: usize,
    /// The keys of streams that are encrypted at rest; without them no stream can be.
    pub keys: Option<Arc<dyn KeyProvider>>,
    /// Rung when a push finds the followers of a partition asleep; without one they hear of it otherwise (see [`live`]).
    pub doorbell: Option<Arc<dyn Doorbell>>,
}

impl Settings {
    /// The pause after this many looks that found nothing.
    pub(crate) fn pause(&self, looks: u32) -> Duration {
        self.poll_first.saturating_mul(1 << looks.min(20)).min(self.poll_every)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_subscription: SubscriptionMode::New,
            poll_first: Duration::from_millis(500),
            poll_every: Duration::from_millis(500),
            pop_bytes: limits::POP_BYTES,
            pop_batch_max: limits::POP_BATCH_MAX,
            keys: None,
            doorbell: None,
        }
    }
}

/// The engine. Cheap to clone; clones share what they remember. See the [crate's page](crate).
#[derive(Clone)]
pub struct Engine {
    inner: Arc<warm::Inner>,
}

impl Engine {
    /// An engine over a store.
    pub fn new(store: Arc<dyn Store>, env: Env, settings: Settings) -> Self {
        Self { inner: Arc::new(warm::Inner::new(store, env, settings)) }
    }

    /// Where time and chance come from.
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// What this process has counted since it began.
    pub fn counters(&self) -> Counters {
        self.inner.counts.read()
    }
}
