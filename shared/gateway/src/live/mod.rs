//! Following through the managed gateway, where nothing runs when nothing happens.
//!
//! The managed gateway keeps the sockets; what the others are to us here are *items in the store*: a connection, its
//! subscriptions, and for each partition that is followed a *cohort*: the members that have all there is, with one
//! position for all. Three kinds of invocation work on them, and any of them may come twice, die anywhere, or come
//! back after a long sleep:
//!
//! - a *request* of a connection: [`Live::connect`], [`Live::message`], [`Live::disconnect`]. It records what is wanted
//!   and asks for the rest, because nothing can be posted while `$connect` is being answered (`connect`, `message`);
//! - a *greeting*: takes a new subscription, posts its first frame, brings it up to the tail, one post at a time, and
//!   joins it to the cohort (`greet`);
//! - a *delivery*: holds the cohort's lease, reads what is new, posts it to every member, moves the position; once
//!   there is nothing left it puts the cohort to sleep in the partition's head (`deliver`), so that the push that comes
//!   next wakes it in its own commit, and rings (see [`tidewheel_engine::live`]).
//!
//! What no invocation finished is found by the sweep (`sweep`).
//!
//! # What is kept
//!
//! - Every member gets every row from its place on, in order: a joiner is counted in by the same item that the delivery
//!   moves, so that a delivery which did not know of it is refused, and sends it what it lacks before it moves on.
//! - A streamcast client never gets a row twice. Before rows are posted, the cohort says up to where (`sending`). A
//!   delivery that finds that of a dead one cannot know who has which rows, and closes those clients; they come back at
//!   their own position. A native client is sent the rows again and drops what it has.
//! - A delivery whose lease is over posts nothing: it looks at the clock before each post. No write of it counts: each
//!   names its token.
//! - Nothing is lost between the last look and the sleep: sleeping is conditional on the tail.
//!
//! A flush costs one write of the cohort's item, however many members there are.

mod calls;
mod connect;
mod deliver;
mod frames;
mod greet;
mod keys;
mod message;
mod native;
mod post;
mod rows;
mod send;
mod sweep;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tidewheel_engine::{Engine, Error, PartitionId};

pub use self::{
    connect::{Connect, Refused},
    post::{Address, Invoke, NotInvoked, Post, Posted, Work},
};

/// When an invocation has to end, by the engine's clock, µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StopAt(pub i64);

/// Whether an invocation finished its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// There is nothing left, or another is at it.
    Done,
    /// Its time is over. The same work is to be done by another invocation.
    Again,
}

macro_rules! counting {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// What happened since the process began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally { $($(#[doc = $doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        struct Counting { $($name: AtomicU64),* }

        impl Counting {
            fn read(&self) -> Tally {
                Tally { $($name: self.$name.load(Relaxed)),* }
            }
        }

        impl Tally {
            /// By name.
            pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
                [$((stringify!($name), self.$name)),*].into_iter().collect()
            }
        }
    };
}

counting! {
    /// Messages that the managed gateway took.
    posts,
    /// Posts that were repeated because the account's rate was used up.
    throttled,
    /// Connections that were found gone.
    gone,
    /// Connections that were closed because the client did not take what was sent.
    slow,
    /// Connections that were closed because nobody could know what they had.
    doubtful,
    /// Flushes of a cohort.
    flushes,
}

/// Follows partitions through the managed gateway. Cheap to clone. See the [module's page](self).
#[derive(Clone, Debug)]
pub struct Live {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Shown,
    post: Arc<dyn Post>,
    invoke: Arc<dyn Invoke>,
    counting: Counting,
}

/// An engine that shows no more than that it is there.
struct Shown(Engine);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}

impl Live {
    /// Over an engine, posting and invoking through these.
    pub fn new(engine: Engine, post: Arc<dyn Post>, invoke: Arc<dyn Invoke>) -> Self {
        let counting = Counting::default();
        Self { inner: Arc::new(Inner { engine: Shown(engine), post, invoke, counting }) }
    }

    /// What this process has counted.
    pub fn tally(&self) -> Tally {
        self.inner.counting.read()
    }

    /// Does a piece of work, and asks for another invocation if its time does not suffice.
    ///
    /// # Errors
    /// Those of the store. What was left undone is found by the next sweep.
    pub async fn work(&self, work: &Work, stop: StopAt) -> Result<(), Error> {
        let progress = match work {
            Work::Greet { connection, subscription } => {
                self.greet(connection, subscription, stop).await?
            }
            Work::Deliver { partition } => match PartitionId::parse(partition) {
                Some(partition) => self.deliver(&partition, stop).await?,
                None => return Err(Error::Invalid(format!("'{partition}' is no partition id"))),
            },
            Work::Sweep {} => self.sweep(stop).await?,
        };
        if progress == Progress::Again {
            self.ask(work).await;
        }
        Ok(())
    }

    /// Asks for an invocation. If that fails the sweep finds the work.
    async fn ask(&self, work: &Work) {
        if let Err(error) = self.inner.invoke.invoke(work).await {
            tracing::warn!(%error, ?work, "left to the next sweep");
        }
    }

    fn engine(&self) -> &Engine {
        &self.inner.engine.0
    }

    fn now_us(&self) -> i64 {
        self.engine().env().now_us()
    }

    fn count(&self, pick: impl Fn(&Counting) -> &AtomicU64) {
        pick(&self.inner.counting).fetch_add(1, Relaxed);
    }
}

fn us(duration: Duration) -> i64 {
    duration.as_micros() as i64
}
