//! Connections and subscriptions come and go.
//!
//! What makes a subscription is one transaction, and so is what ends it, each on the condition of the state that it saw:
//! of a greeting that wants to join and a connection that ends, one finds the other's work.

use tidewheel_engine::{Action, Error, Extent, PartitionId, Proof, Target};
use tidewheel_store::{Condition, Item, Write};

use super::{
    Live, Work,
    calls::{COMMIT_ATTEMPTS, Outcome},
    keys,
    rows::{ConnectionRow, Follower, Kind, Place, State, Subscription},
    us,
};
use crate::{Close, Connection, Log, Request, Settings, Start, Terms, limits};

/// A request to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// The connection's id, as the managed gateway made it.
    pub connection: String,
    /// Where posts to it go; `None` if the environment says it.
    pub endpoint: Option<String>,
    /// The API key that the request presents.
    pub presented: Option<String>,
    /// The query, decoded, in its order. With a `stream` it is a streamcast client's; without, a native client's.
    pub query: Vec<(String, String)>,
}

/// A refusal to connect: an HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status.
    pub status: u16,
    /// JSON: why.
    pub body: String,
}

impl From<Close> for Refused {
    fn from(close: Close) -> Self {
        let status = match close.code {
            4404 => 404,
            // What was there once and is no more is another thing than what is not there yet.
            4416 if close.reason.contains(r#""why":"evicted""#) => 410,
            4416 => 416,
            4400 => 400,
            _ => return Self::unavailable(),
        };
        Self { status, body: close.reason }
    }
}

impl Refused {
    /// 401: there are keys, and none was presented that counts.
    fn unauthorized() -> Self {
        Self { status: 401, body: r#"{"error":"authentication_required"}"#.to_owned() }
    }

    /// 403: the key has no such grant.
    fn forbidden() -> Self {
        Self { status: 403, body: r#"{"error":"forbidden"}"#.to_owned() }
    }

    fn unavailable() -> Self {
        Self { status: 503, body: r#"{"error":"unavailable"}"#.to_owned() }
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::StreamNotFound(_) => Close::no_such_stream(&[]).into(),
            Error::Name { .. } => Close::bad_request(error.to_string()).into(),
            _ => {
                tracing::warn!(%error, "a connection could not be accepted");
                Self::unavailable()
            }
        }
    }
}

/// Bytes of a connection's id: more than the managed gateway makes.
const CONNECTION_BYTES: usize = 128;

impl Live {
    /// Accepts a connection, or refuses it. A streamcast client's subscription is recorded with it, and its greeting
    /// asked for.
    ///
    /// # Errors
    /// The refusal. Without a key that counts it is 401, without its grant 403, before anything is said of the stream.
    /// What cannot be understood is 400, a stream that is not there 404, an offset beyond the next 416, one
    /// that was deleted 410. However far an offset lies back, its rows are served: the client could not be told to read
    /// the table first.
    pub async fn connect(&self, request: Connect) -> Result<(), Refused> {
        let Connect { connection, endpoint, presented, query } = request;
        if connection.is_empty() || connection.len() > CONNECTION_BYTES || connection.contains('#')
        {
            return Err(Close::bad_request("no connection id").into());
        }
        let proof = self.engine().prove(presented.as_deref()).await.map_err(|e| Refused::of(&e))?;
        let now_us = self.now_us();
        let lasts = limits::CONNECTION_LASTS + limits::CONNECTION_MARGIN;
        let expires = (now_us + us(lasts)) / 1_000_000;
        let stream = query.iter().rfind(|(key, _)| key == "stream").map(|(_, name)| name.clone());
        let kind = if stream.is_some() { Kind::Streamcast } else { Kind::Native };
        let key = match &proof {
            Proof::NoKeys => None,
            Proof::Of(key) => Some(key.id.clone()),
            Proof::Refused => return Err(Refused::unauthorized()),
        };
        if let (Proof::Of(key), Some(stream)) = (&proof, &stream)
            && !key.allows(Action::Read, Target::Stream(stream))
        {
            return Err(Refused::forbidden());
        }
        let row =
            ConnectionRow { kind, endpoint: endpoint.clone(), key, since_us: now_us, expires };
        let put = Write::put(keys::connection(&connection), row.encode());
        let Some(stream) = stream else {
            if let Some((key, _)) = query.first() {
                return Err(Close::bad_request(format!("unknown query parameter '{key}'")).into());
            }
            return self.commit_surely(vec![put]).await.map_err(|e| Refused::of(&e));
        };
        let others = query.into_iter().filter(|(key, _)| key != "stream");
        let Request::Subscribe(request) = Request::of(&stream, others)? else {
            // It cannot be pipelined here, and a client's library does nothing else.
            let detail = "publishing needs a socket of the server's own; push over HTTP";
            return Err(Close::bad_request(detail).into());
        };
        let start = request.start;
        let placed = self.place(&request.stream, &request.partition).await;
        let (place, extent) = placed.map_err(|e| Refused::of(&e))?;
        let log = Log { stream_id: place.stream_id, extent };
        let settings = Settings { max_replay: None, ..Settings::default() };
        let accepted = Connection::on_connect(request, &log, &Terms::undeclared(&settings))?;
        let filter = accepted.connection.filter().cloned();
        let subscription = Subscription {
            follower: Follower {
                connection: connection.clone(),
                subscription: String::new(),
                kind,
                endpoint,
                filter,
                window_ms: 0,
                expires,
            },
            place,
            at: accepted.connection.position(),
            end: extent.tail,
            live: start == Start::Live,
            earliest: start == Start::Earliest,
            gapless: true,
            greeted: false,
            since_us: now_us,
            state: State::Open,
        };
        self.record(&subscription, put).await.map_err(|e| Refused::of(&e))?;
        self.ask(&Work::Greet { connection, subscription: String::new() }).await;
        Ok(())
    }

    /// Looks up where a partition is and how far it reaches. It is made if it is not there.
    pub(crate) async fn place(
        &self,
        stream: &str,
        partition: &str,
    ) -> Result<(Place, Extent), Error> {
        let missing = || Error::StreamNotFound(stream.to_owned());
        let info = self.engine().stream(stream).await?.ok_or_else(missing)?;
        let place = Place { stream: info.name, stream_id: info.id, name: partition.to_owned() };
        // The usual case is one read.
        let extent = match self.engine().extent(&place.id()).await? {
            Some(extent) => extent,
            None => self.engine().ensure_partition(stream, partition).await?,
        };
        Ok((place, extent))
    }

    /// Records a subscription that nobody is at yet, and that it is under way. False if there is one of its name.
    pub(crate) async fn record(
        &self,
        subscription: &Subscription,
        beside: Write,
    ) -> Result<bool, Error> {
        let Follower { connection, subscription: name, expires, .. } = &subscription.follower;
        let under_way = Item::new()
            .with("conn", connection.as_str())
            .with("sub", name.as_str())
            .with("expires", *expires);
        let writes = vec![
            Write::put(subscription.key(), subscription.encode()).when(Condition::Absent),
            Write::put(keys::under_way(connection, name), under_way),
            beside,
        ];
        let mut doubt = false;
        for attempt in 0..COMMIT_ATTEMPTS {
            match self.commit(writes.clone()).await? {
                Outcome::Done => return Ok(true),
                Outcome::Refused(failed) if failed.iter().any(|f| f.write != 0) => {
                    return Err(Error::Invalid("the connection is not there".to_owned()));
                }
                // What refuses us may be our own earlier attempt.
                Outcome::Refused(_) => return Ok(doubt),
                Outcome::Unknown => doubt = true,
            }
            self.back_off(attempt).await;
        }
        Err(Error::Busy)
    }

    /// A connection has ended: what is kept of it goes.
    ///
    /// # Errors
    /// Those of the store. What stays behind is found by the next delivery that posts to it, or expires.
    pub async fn disconnect(&self, connection: &str) -> Result<(), Error> {
        self.forget(connection).await
    }

    /// Ends every subscription of a connection, and then forgets the connection.
    pub(crate) async fn forget(&self, connection: &str) -> Result<(), Error> {
        let (row, subscriptions) = self.connection(connection).await?;
        for subscription in &subscriptions {
            self.leave(connection, &subscription.follower.subscription).await?;
        }
        if row.is_some() {
            self.commit_surely(vec![Write::delete(keys::connection(connection))]).await?;
        }
        Ok(())
    }

    /// Ends a subscription; false if there was none. The last member to leave takes the cohort with it.
    pub(crate) async fn leave(&self, connection: &str, name: &str) -> Result<bool, Error> {
        let mut left = false;
        let mut cohort = None;
        for attempt in 0..COMMIT_ATTEMPTS {
            let Some(subscription) = self.subscription(connection, name).await? else {
                if let Some(partition) = cohort {
                    self.dissolve_if_empty(&partition).await?;
                }
                return Ok(left);
            };
            left = true;
            let partition = subscription.place.id();
            let mut writes = vec![
                Write::delete(subscription.key()).when(subscription.state.as_seen()),
                Write::delete(keys::under_way(connection, name)),
            ];
            if subscription.state == State::Member {
                writes.push(Write::delete(keys::member(&partition, connection, name)));
                cohort = Some(partition);
            }
            if matches!(self.commit(writes).await?, Outcome::Unknown) {
                self.back_off(attempt).await;
            }
        }
        Err(Error::Busy)
    }

    /// Dissolves a cohort that has no members: no push wakes anybody for it any more.
    pub(crate) async fn dissolve_if_empty(&self, partition: &PartitionId) -> Result<(), Error> {
        for attempt in 0..COMMIT_ATTEMPTS {
            let Some(cohort) = self.cohort(partition).await? else { return Ok(()) };
            if self.has_members(partition).await? {
                return Ok(());
            }
            let exists = self.engine().extent(partition).await?.is_some();
            // Whoever joins counts the version up.
            let mut writes = vec![
                Write::delete(keys::cohort(partition))
                    .when(Condition::Equals("version".into(), cohort.version.into())),
            ];
            writes.extend(self.engine().live_leave(partition, exists));
            match self.commit(writes).await? {
                Outcome::Done => return Ok(()),
                Outcome::Refused(_) => {}
                Outcome::Unknown => self.back_off(attempt).await,
            }
        }
        Err(Error::Busy)
    }
}

impl State {
    /// The condition that a subscription is in this state still.
    pub(crate) fn as_seen(&self) -> Condition {
        match self {
            State::Open => Condition::Equals("state".into(), "open".into()),
            State::Member => Condition::Equals("state".into(), "member".into()),
            State::Held { token, .. } => Condition::Equals("token".into(), token.as_str().into()),
        }
    }
}
