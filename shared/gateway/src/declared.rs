//! Declared streams behind sockets: their terms, where they can be served from, and publishing to them.
//!
//! A subscriber or publisher is greeted with one schema, and that schema is what it understands. So a connection belongs to the
//! generation it began in: when the stream has gone on to the next, a subscriber gets what the old one still has, and
//! then 1001; it comes back at the seam, and is greeted anew.

use std::sync::Arc;

use tidewheel_engine::{
    Claim, DEFAULT_PARTITION, Declared, Error, Extent, Frame as EngineFrame, Landed, PartitionId,
    PublishError, Uuid,
};

use crate::{
    Close, Gateway, Log, Outcome, Publish, Publisher, Session, Subscribe, Target, Terms,
    gateway::{Feed, Subscriber, unavailable},
    greeting::{Greeting, Identity},
    relay::Relay,
    session::Kind,
};

/// The generation that a connection was greeted with.
#[derive(Clone, Debug)]
pub(crate) struct Greeted {
    name: Arc<str>,
    /// Generations that there were.
    generations: usize,
}

/// Where the rows of a connection end.
pub(crate) enum Reach {
    /// They go on.
    Open,
    /// At this offset, where the next generation begins.
    Until(u64),
}

impl Terms {
    /// Of a declared stream.
    fn declared(declared: &Declared, tables_uri: Option<&str>) -> Self {
        let declaration = &declared.declaration;
        let live = declared.generations.last();
        let schema = live.map_or_else(|| declaration.schema.clone(), |live| live.schema.clone());
        let metadata = tables_uri.filter(|_| schema.is_some()).map(|root| {
            let uris = tidewheel_schema::metadata_uris(root, &declared.name);
            (uris.plain, uris.hint)
        });
        Self {
            schema,
            log: declaration.log,
            group_commit: declaration.group_commit,
            exactly_once: declaration.exactly_once && declaration.log,
            max_replay: declaration.max_replay,
            max_backlog: declaration.max_backlog,
            max_message_bytes: declaration.max_message_bytes,
            metadata,
        }
    }
}

impl Gateway {
    pub(crate) async fn declared(&self, name: &str) -> Result<Option<Arc<Declared>>, Close> {
        self.engine().declared(name).await.map_err(unavailable)
    }

    fn terms(&self, declared: &Declared) -> Terms {
        Terms::declared(declared, self.settings().tables_uri.as_deref())
    }

    /// What can be served of the log: the live generation, as far as retention has left it.
    async fn served(&self, declared: &Declared) -> Result<Extent, Close> {
        let id = PartitionId::of(&declared.stream, DEFAULT_PARTITION);
        let extent = self.extent(&id).await?;
        let seam = declared.generations.last().map_or(0, |live| live.start);
        // The seam is known to the stream's record, and may be ahead of a partition that nobody wrote.
        let tail = extent.tail.max(seam);
        let floor = extent.floor.max(declared.floor).max(seam).min(tail);
        Ok(Extent { floor, tail })
    }

    pub(crate) async fn subscribe_declared(
        &self,
        request: Subscribe,
        declared: &Declared,
    ) -> Result<Subscriber, Close> {
        one_partition(&request.partition)?;
        let terms = self.terms(declared);
        let greeted = Greeted {
            name: declared.name.as_str().into(),
            generations: declared.generations.len(),
        };
        let (feed, tail, extent) = if terms.log {
            let id = PartitionId::of(&declared.stream, DEFAULT_PARTITION);
            // Watched before it is looked at: nothing in between goes unseen.
            let tail = self.engine().watch(&id);
            (Feed::log(Some(greeted)), tail, self.served(declared).await?)
        } else {
            let relay = self.relay(declared.stream);
            let tail = relay.watch();
            let extent = relay.extent();
            (Feed::relay(relay, greeted), tail, extent)
        };
        let log = Log { stream_id: declared.stream, extent };
        self.follow(request, &log, &terms, feed, tail)
    }

    pub(crate) async fn publish_declared(
        &self,
        request: Publish,
        declared: &Declared,
    ) -> Result<Session, Close> {
        let Publish { stream, partition, publisher } = request;
        one_partition(&partition)?;
        if let Some(retired) = &declared.retired {
            return Err(Close::retired(retired.at_us, retired.end + 1));
        }
        let terms = self.terms(declared);
        if publisher.is_some() && !terms.exactly_once {
            return Err(Close::exactly_once_unavailable());
        }
        let claim = match &publisher {
            Some(publisher) => Some(self.claim(declared, publisher).await?),
            None => None,
        };
        let hold = claim
            .as_ref()
            .map(|claim| self.claims().hold(declared.stream, &claim.publisher, claim.epoch));
        let extent =
            if terms.log { self.served(declared).await? } else { Extent { floor: 0, tail: 0 } };
        let identity = claim.as_ref().map(|claim| Identity {
            id: &claim.publisher,
            last_seq: claim.last_seq,
            last_offset: claim.last_offset.map(|offset| offset + 1),
        });
        let stream_id = declared.stream.to_string();
        let greeting = Greeting::new(&terms, &stream, &stream_id, extent.tail + 1);
        let greeting = greeting.identified(identity).text();
        let publisher = Publisher::new(&stream, claim.is_some(), terms.max_message_bytes);
        let greeted =
            Greeted { name: stream.as_str().into(), generations: declared.generations.len() };
        let kind = if terms.log {
            Kind::Declared { claim, greeted }
        } else {
            Kind::Relay { relay: self.relay(declared.stream), terms, greeted }
        };
        let activity = self.activities().of(&stream);
        let target = Target { stream, stream_id: declared.stream, kind, activity };
        Ok(Session::new(publisher, greeting, target, hold))
    }

    async fn claim(&self, declared: &Declared, publisher: &str) -> Result<Claim, Close> {
        // Whoever has the id brings nothing more: what it has brought is counted in what the claim says.
        self.claims().release(declared.stream, publisher);
        match self.engine().claim_publisher(&declared.name, publisher).await {
            Ok(claim) => Ok(claim),
            // Too many of them: it is the publisher's id that cannot be had.
            Err(error @ Error::Limit { .. }) => {
                Err(Close::bad_request(format!("publisher: {error}")))
            }
            Err(Error::Retired { at_us, end, .. }) => Err(Close::retired(at_us, end + 1)),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Commits frames to a declared stream.
    pub(crate) async fn commit(
        &self,
        stream: &str,
        claim: Option<&Claim>,
        frames: Vec<crate::Frame>,
    ) -> Vec<Outcome> {
        let frame = |frame: crate::Frame| EngineFrame {
            claim: claim.cloned(),
            seq: frame.seq,
            rows: frame.rows,
        };
        let landed = self.engine().publish(stream, frames.into_iter().map(frame).collect()).await;
        landed.into_iter().map(outcome).collect()
    }

    /// Where the rows end that a connection was greeted for.
    pub(crate) async fn reach(&self, greeted: &Greeted) -> Result<Reach, Close> {
        let declared = self.declared(&greeted.name).await?;
        let Some(declared) = declared else { return Err(Close::no_such_stream(&[])) };
        if declared.generations.len() == greeted.generations {
            return Ok(Reach::Open);
        }
        let own = greeted.generations.checked_sub(1).and_then(|at| declared.generations.get(at));
        // Without an end of its own, what it was greeted for is no more.
        own.and_then(|own| own.end).map(Reach::Until).ok_or_else(Close::going_away)
    }

    /// Checks that a publisher's stream is as it was when it was greeted.
    pub(crate) async fn check_greeted(&self, greeted: &Greeted) -> Result<(), Close> {
        let declared = match self.engine().declared(&greeted.name).await {
            Ok(declared) => declared,
            Err(error) => {
                tracing::debug!(%error, "a stream could not be looked up");
                return Ok(());
            }
        };
        let Some(declared) = declared else { return Err(Close::no_such_stream(&[])) };
        if let Some(retired) = &declared.retired {
            return Err(Close::retired(retired.at_us, retired.end + 1));
        }
        let same = declared.generations.len() == greeted.generations;
        if same { Ok(()) } else { Err(Close::going_away()) }
    }

    fn relay(&self, stream: Uuid) -> Arc<Relay> {
        let mut relays = self.relays().lock();
        Arc::clone(relays.entry(stream).or_insert_with(|| Arc::new(Relay::new())))
    }
}

fn one_partition(partition: &str) -> Result<(), Close> {
    if partition == DEFAULT_PARTITION {
        return Ok(());
    }
    Err(Close::bad_request(format!("a declared stream has one partition, '{DEFAULT_PARTITION}'")))
}

fn outcome(landed: Result<Landed, PublishError>) -> Outcome {
    match landed {
        Ok(Landed { offsets, duplicates, .. }) => Outcome::Landed { offsets, duplicates },
        Err(PublishError::Rejected { detail }) => Outcome::Rejected { detail },
        Err(PublishError::Gap { expected, got }) => Outcome::Gap { expected, got },
        Err(PublishError::Superseded) => Outcome::Superseded,
        Err(PublishError::Retired { at_us, end }) => Outcome::Retired { at_us, end },
        Err(PublishError::Failed { detail }) => Outcome::Failed { detail },
        Err(PublishError::Unknown { detail }) => {
            tracing::warn!(detail, "the outcome of a publisher's message is unknown");
            Outcome::Unknown
        }
    }
}
