//! Posting to one follower: in order, one at a time, and what to do when a post does not go well.
//!
//! A post that was refused is made again; one whose outcome is unknown is made again only for a client that can tell
//! repeats. Nothing is posted once the time is over that whoever posts is alone at it.

use bytes::Bytes;
use tidewheel_engine::Error;
use tidewheel_store::{Item, Write};

use super::{
    Address, Live, Posted,
    frames::{Message, with_id},
    keys,
    rows::{Follower, Kind},
    us,
};
use crate::limits;

/// Why a follower did not get everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It is not there any more.
    Gone,
    /// It must not get anything more: it is to be closed.
    Closed,
    /// The time was over. What was not posted can be posted by whoever is at it next.
    Late,
}

/// How far posting came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// The offset after the last row that was taken.
    pub(crate) reached: Option<u64>,
    /// Why no more.
    pub(crate) lost: Option<Lost>,
}

impl Follower {
    pub(crate) fn address(&self) -> Address {
        Address { connection: self.connection.clone(), endpoint: self.endpoint.clone() }
    }

    fn whole(&self, message: &Message) -> Bytes {
        match self.kind {
            Kind::Native => with_id(&self.subscription, &message.body),
            Kind::Streamcast => message.body.clone(),
        }
    }
}

impl Live {
    /// Posts messages in order until one is lost, or the time is over.
    pub(crate) async fn send(&self, to: &Follower, messages: &[Message], until_us: i64) -> Sent {
        let mut sent = Sent::default();
        for message in messages {
            match self.post(to, to.whole(message), until_us, i64::MIN).await {
                Ok(()) => sent.reached = Some(message.next),
                Err(lost) => {
                    sent.lost = Some(lost);
                    break;
                }
            }
        }
        sent
    }

    /// Posts one message. Until `settled_us` a connection that is not there may only be not there yet.
    pub(crate) async fn post(
        &self,
        to: &Follower,
        message: Bytes,
        until_us: i64,
        settled_us: i64,
    ) -> Result<(), Lost> {
        let address = to.address();
        let mut unknown = 0;
        for attempt in 0.. {
            let now_us = self.now_us();
            if now_us + us(limits::POST_WITHIN) > until_us {
                return Err(Lost::Late);
            }
            let post = self.inner.post.post(&address, message.clone());
            let posted = tokio::time::timeout(limits::POST_WITHIN, post).await;
            match posted.unwrap_or(Posted::Unknown) {
                Posted::Delivered => {
                    self.count(|c| &c.posts);
                    return Ok(());
                }
                Posted::Gone if now_us < settled_us => {}
                Posted::Gone => {
                    self.count(|c| &c.gone);
                    return Err(Lost::Gone);
                }
                Posted::Slow => {
                    self.count(|c| &c.slow);
                    return Err(Lost::Closed);
                }
                Posted::Throttled => self.count(|c| &c.throttled),
                Posted::TooLarge => return Err(Lost::Closed),
                Posted::Unknown => {
                    unknown += 1;
                    if to.kind == Kind::Streamcast || unknown == limits::POST_ATTEMPTS {
                        self.count(|c| &c.doubtful);
                        return Err(Lost::Closed);
                    }
                }
            }
            self.back_off(attempt).await;
        }
        Err(Lost::Late)
    }

    /// Parts with a connection: closes it unless it is gone, and forgets it. Only after that may anybody count on what
    /// it has.
    pub(crate) async fn part(&self, from: &Follower, lost: Lost) -> Result<(), Error> {
        let closed = lost == Lost::Gone || self.close(&from.address()).await;
        self.forget(&from.connection).await?;
        if !closed {
            tracing::warn!(connection = from.connection, "a connection is to be closed later");
            self.commit_surely(vec![closing(from)]).await?;
        }
        Ok(())
    }

    /// Closes a connection. False if that did not succeed.
    pub(crate) async fn close(&self, address: &Address) -> bool {
        for attempt in 0..limits::POST_ATTEMPTS {
            let close = self.inner.post.close(address);
            if tokio::time::timeout(limits::POST_WITHIN, close).await == Ok(true) {
                return true;
            }
            self.back_off(attempt).await;
        }
        false
    }
}

/// Leaves a connection to the sweep to close: its client hears nothing more, and would wait.
fn closing(follower: &Follower) -> Write {
    let mut item = Item::new()
        .with("conn", follower.connection.as_str())
        .with("sub", "")
        .with("closing", true)
        .with("expires", follower.expires);
    if let Some(endpoint) = &follower.endpoint {
        item.set("endpoint", endpoint.as_str());
    }
    Write::put(keys::under_way(&follower.connection, ""), item)
}
