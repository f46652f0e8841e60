//! A publisher's connection: its [`Publisher`] with where its rows go, and what may end it from outside.

use std::sync::Arc;

use bytes::Bytes;
use tidewheel_engine::{Claim, Uuid};

use crate::{
    Close, Inbound, Outcome, Publisher, Terms,
    activity::{Activity, Waiting},
    claims::Hold,
    declared::Greeted,
    frame::Frame,
    relay::Relay,
};

/// Where a publisher's rows go.
#[derive(Debug)]
pub struct Target {
    pub(crate) stream: String,
    pub(crate) stream_id: Uuid,
    pub(crate) kind: Kind,
    pub(crate) activity: Arc<Activity>,
}

/// How they get there.
#[derive(Debug)]
pub(crate) enum Kind {
    /// Into a partition of a stream that was never declared.
    Undeclared { partition: String },
    /// Into a declared stream, under a claim or not.
    Declared { claim: Option<Claim>, greeted: Greeted },
    /// To whoever follows, and nowhere else.
    Relay { relay: Arc<Relay>, terms: Terms, greeted: Greeted },
}

/// A publisher's connection.
#[derive(Debug)]
pub struct Session {
    publisher: Publisher,
    greeting: Bytes,
    target: Arc<Target>,
    waiting: Waiting,
    /// Rows of the frames that are being committed.
    committing: usize,
    hold: Option<Hold>,
}

/// What a publisher hears of beside its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another connection has taken its id over.
    Superseded,
    /// The stream takes rows again.
    Room,
}

impl Session {
    pub(crate) fn new(
        publisher: Publisher,
        greeting: Bytes,
        target: Target,
        hold: Option<Hold>,
    ) -> Self {
        let waiting = target.activity.waiting();
        let target = Arc::new(target);
        Self { publisher, greeting, target, waiting, committing: 0, hold }
    }

    /// The first frame to send, JSON text.
    pub fn greeting(&self) -> Bytes {
        self.greeting.clone()
    }

    /// Where its rows go.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// A message came.
    pub fn on_message(&mut self, message: Inbound) {
        let rows = self.publisher.on_message(message);
        self.waiting.add(rows);
    }

    /// True while more messages are to be read.
    pub fn reads(&self) -> bool {
        self.publisher.reads() && self.waiting.has_room()
    }

    /// The frames to commit now; see [`Publisher::take`].
    pub fn take(&mut self) -> Vec<Frame> {
        let frames = self.publisher.take();
        if !frames.is_empty() {
            self.committing = frames.iter().map(|frame| frame.rows.len()).sum();
        }
        frames
    }

    /// The frames that were taken last are through.
    pub fn on_outcomes(&mut self, outcomes: Vec<Outcome>) {
        self.waiting.remove(std::mem::take(&mut self.committing));
        self.publisher.on_outcomes(outcomes);
    }

    /// The answers that may go out, JSON texts in order.
    pub fn replies(&mut self) -> Vec<Bytes> {
        self.publisher.replies()
    }

    /// How the connection ends, once it is to end and everything before that is answered.
    pub fn ending(&self) -> Option<&Close> {
        self.publisher.ending()
    }

    /// Nothing more can be read: everything before is answered, and then it ends.
    pub fn on_last(&mut self, close: Close) {
        self.publisher.on_last(close);
    }

    /// It is to end: what is on its way to the store is answered, and no more.
    pub fn on_end(&mut self, close: Close) {
        self.publisher.on_end(close);
    }

    /// Waits for what concerns it beside its client. Dropping the future loses nothing.
    pub async fn notice(&mut self) -> Notice {
        let Self { publisher, waiting, hold, .. } = self;
        let blocked = publisher.reads() && !waiting.has_room();
        let room =
            async { if blocked { waiting.room().await } else { std::future::pending().await } };
        let taken = async {
            match hold {
                Some(hold) => hold.taken().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(room, taken);
        match futures_util::future::select(taken, room).await {
            futures_util::future::Either::Left(_) => Notice::Superseded,
            futures_util::future::Either::Right(_) => Notice::Room,
        }
    }

    /// Another connection has taken its id over.
    pub fn on_superseded(&mut self) {
        // It is told once.
        self.hold = None;
        self.publisher.on_superseded();
    }
}
