//! Greeting: a subscription's first frame, what it has to catch up on, and its place in the cohort.
//!
//! One invocation is at it: it takes the subscription by a conditional write, and states its token in every other. Rows
//! are posted one message at a time, and once there are none the subscription joins the cohort in one transaction: the
//! cohort counts it, on the condition that its position is not beyond what the subscription has; the member is put; the
//! subscription says so. If there is no cohort, that transaction makes it, awake, and the first delivery follows.
//!
//! An invocation that died may have posted what nobody knows. A native client is sent it again; a streamcast client is
//! closed.

use bytes::Bytes;
use serde_json::json;
use tidewheel_engine::Error;
use tidewheel_store::{Change, Condition, Write};

use super::{
    Live, Progress, StopAt,
    calls::{COMMIT_ATTEMPTS, Outcome},
    frames::Rows,
    keys,
    native::{Position, reply},
    rows::{Cohort, Follower, Kind, Member, State, Subscription},
    send::Lost,
    us,
};
use crate::{Settings, Terms, greeting::Greeting, limits};

/// How bringing a subscription up to the tail ended.
enum End {
    /// It is a member. True if its cohort may be new: nobody may be at work on it.
    Joined(bool),
    /// Another is at it, or it was given up.
    Taken,
    /// The time is over.
    Late,
    Lost(Lost),
    /// The partition is not there any more.
    Deleted,
}

/// How joining ended.
enum Joined {
    Existing,
    New,
    /// The cohort is beyond what the subscription has.
    Behind,
    Taken,
}

impl Live {
    pub(crate) async fn greet(
        &self,
        connection: &str,
        name: &str,
        stop: StopAt,
    ) -> Result<Progress, Error> {
        let found = self.subscription(connection, name).await?;
        // It was given up meanwhile.
        let Some(mut subscription) = found else { return Ok(Progress::Done) };
        let doubtful = match &subscription.state {
            State::Member => return Ok(Progress::Done),
            State::Held { until_us, .. } if *until_us > self.now_us() => return Ok(Progress::Done),
            State::Held { .. } => true,
            State::Open => false,
        };
        let token = self.engine().env().token();
        if !self.take(&mut subscription, &token).await? {
            return Ok(Progress::Done);
        }
        if doubtful && subscription.follower.kind == Kind::Streamcast {
            self.count(|c| &c.doubtful);
            self.part(&subscription.follower, Lost::Closed).await?;
            return Ok(Progress::Done);
        }
        match self.bring_up(&mut subscription, &token, stop).await? {
            End::Joined(false) | End::Taken => Ok(Progress::Done),
            End::Joined(true) => self.deliver(&subscription.place.id(), stop).await,
            End::Lost(lost) => {
                self.part(&subscription.follower, lost).await?;
                Ok(Progress::Done)
            }
            End::Late => {
                self.hand_over(&mut subscription, &token).await?;
                Ok(Progress::Again)
            }
            End::Deleted => {
                self.end(&subscription.follower, &subscription.place.stream, stop.0).await?;
                Ok(Progress::Done)
            }
        }
    }

    /// Takes a subscription that nobody is at. False if somebody else was first.
    async fn take(&self, subscription: &mut Subscription, token: &str) -> Result<bool, Error> {
        let seen = subscription.state.as_seen();
        subscription.state = self.held(token);
        self.write(subscription, seen).await
    }

    fn held(&self, token: &str) -> State {
        State::Held { token: token.to_owned(), until_us: self.now_us() + us(limits::LEASE) }
    }

    /// Writes a subscription on a condition. False if another has changed it.
    async fn write(&self, subscription: &Subscription, seen: Condition) -> Result<bool, Error> {
        let write = Write::put(subscription.key(), subscription.encode()).when(seen);
        let mut doubt = false;
        for attempt in 0..COMMIT_ATTEMPTS {
            match self.commit(vec![write.clone()]).await? {
                Outcome::Done => return Ok(true),
                Outcome::Refused(failed) => {
                    // What refuses us may be our own earlier attempt.
                    let current = failed.first().and_then(|f| f.current.as_ref());
                    return Ok(doubt && current.is_some_and(|item| *item == subscription.encode()));
                }
                Outcome::Unknown => {
                    doubt = true;
                    let Follower { connection, subscription: name, .. } = &subscription.follower;
                    match self.subscription(connection, name).await?.map(|now| now.state) {
                        Some(state) if state == subscription.state => return Ok(true),
                        None | Some(State::Member) => return Ok(false),
                        // Whose it is now, the condition tells.
                        Some(State::Open | State::Held { .. }) => {}
                    }
                }
            }
            self.back_off(attempt).await;
        }
        Err(Error::Busy)
    }

    async fn bring_up(
        &self,
        subscription: &mut Subscription,
        token: &str,
        stop: StopAt,
    ) -> Result<End, Error> {
        let partition = subscription.place.id();
        let kind = subscription.follower.kind;
        let mut begun = subscription.greeted;
        loop {
            let State::Held { mut until_us, .. } = subscription.state else {
                return Ok(End::Taken);
            };
            let now_us = self.now_us();
            if now_us + 2 * us(limits::POST_WITHIN) > stop.0 {
                return Ok(End::Late);
            }
            if until_us - now_us < us(limits::LEASE) / 2 {
                subscription.state = self.held(token);
                let mine = Condition::Equals("token".into(), token.into());
                if !self.write(subscription, mine).await? {
                    return Ok(End::Taken);
                }
                until_us = now_us + us(limits::LEASE);
            }
            let until_us = stop.0.min(until_us);
            if !subscription.greeted {
                let settled_us = subscription.since_us + us(limits::CONNECT_SETTLES);
                let first = first_frame(subscription);
                match self.post(&subscription.follower, first, until_us, settled_us).await {
                    Ok(()) => subscription.greeted = true,
                    Err(Lost::Late) => return Ok(End::Late),
                    Err(lost) => return Ok(End::Lost(lost)),
                }
            }
            let at = subscription.at;
            let (records, bytes) = (limits::RUN_RECORDS as usize, limits::RUN_BYTES);
            let read = match self.engine().read(&partition, at, records, bytes).await {
                Err(Error::PartitionNotFound) => return Ok(End::Deleted),
                read => read?,
            };
            if at >= read.extent.tail {
                match self.join(subscription, token).await? {
                    Joined::Existing => return Ok(End::Joined(false)),
                    Joined::New => return Ok(End::Joined(true)),
                    Joined::Taken => return Ok(End::Taken),
                    Joined::Behind => continue,
                }
            }
            let first = read.records.first().map_or(read.extent.tail, |r| r.offset);
            let next = read.records.last().map_or(read.extent.tail, |r| r.offset + 1);
            // Who asked for whatever is first misses nothing of what was deleted before the first.
            let at = if subscription.earliest && !begun { first } else { at };
            let rows = Rows::new(partition, at, next, read.records);
            let messages = rows.messages(kind, at, subscription.follower.filter.as_ref());
            let sent = self.send(&subscription.follower, &messages.messages, until_us).await;
            begun |= sent.reached.is_some();
            subscription.at = match sent.lost {
                None => next,
                Some(_) => sent.reached.unwrap_or(at),
            };
            match sent.lost {
                Some(Lost::Late) => return Ok(End::Late),
                Some(lost) => return Ok(End::Lost(lost)),
                None if messages.broken => return Ok(End::Lost(Lost::Closed)),
                None => {}
            }
        }
    }

    async fn join(&self, subscription: &Subscription, token: &str) -> Result<Joined, Error> {
        let partition = subscription.place.id();
        let follower = &subscription.follower;
        let (connection, name) = (follower.connection.as_str(), follower.subscription.as_str());
        let member = Member { follower: follower.clone(), from: subscription.at };
        let joined = Subscription { state: State::Member, ..subscription.clone() };
        let mut made = false;
        for attempt in 0..COMMIT_ATTEMPTS {
            let cohort = self.cohort(&partition).await?;
            let counted = match &cohort {
                Some(cohort) if cohort.position > subscription.at => return Ok(Joined::Behind),
                Some(_) => {
                    Write::update(keys::cohort(&partition), vec![Change::Add("version".into(), 1)])
                        .when(Condition::LessThan("position".into(), subscription.at as i64 + 1))
                }
                None => {
                    let cohort = Cohort {
                        place: subscription.place.clone(),
                        position: subscription.at,
                        version: (self.engine().env().random() >> 2) as i64,
                        lease: None,
                        sending: None,
                    };
                    Write::put(keys::cohort(&partition), cohort.encode()).when(Condition::Absent)
                }
            };
            let mut writes = vec![
                counted,
                Write::put(subscription.key(), joined.encode())
                    .when(Condition::Equals("token".into(), token.into())),
                Write::put(keys::member(&partition, connection, name), member.encode()),
                Write::delete(keys::under_way(connection, name)),
            ];
            if cohort.is_none() {
                made = true;
                writes.push(self.engine().live_wake(&partition));
            }
            let done = if made { Joined::New } else { Joined::Existing };
            let outcome = self.commit(writes).await?;
            match &outcome {
                Outcome::Done => return Ok(done),
                Outcome::Refused(_) if outcome.refused_by(1).is_none() => {}
                // Our own earlier attempt, or another.
                Outcome::Refused(_) | Outcome::Unknown => {
                    match self.subscription(connection, name).await?.map(|now| now.state) {
                        Some(State::Member) => return Ok(done),
                        Some(State::Held { token: held, .. }) if held == token => {}
                        _ => return Ok(Joined::Taken),
                    }
                }
            }
            self.back_off(attempt).await;
        }
        Err(Error::Busy)
    }

    /// Leaves a subscription to the next invocation, with all that is known of it.
    async fn hand_over(&self, subscription: &mut Subscription, token: &str) -> Result<(), Error> {
        subscription.state = State::Open;
        let mine = Condition::Equals("token".into(), token.into());
        // If another has it by now, it is the other's.
        self.write(subscription, mine).await.map(|_| ())
    }

    /// Tells a follower that what it follows is no more.
    pub(crate) async fn end(
        &self,
        follower: &Follower,
        stream: &str,
        until_us: i64,
    ) -> Result<(), Error> {
        let lost = match follower.kind {
            Kind::Streamcast => Err(Lost::Closed),
            Kind::Native => {
                let message = format!("the stream '{stream}' was deleted");
                let ended = json!({"code": "no_such_stream", "message": message});
                let frame = reply(&follower.subscription, "ended", &ended);
                self.post(follower, frame.into(), until_us, i64::MIN).await
            }
        };
        match lost {
            Ok(()) | Err(Lost::Late) => {
                self.leave(&follower.connection, &follower.subscription).await.map(|_| ())
            }
            Err(lost) => self.part(follower, lost).await,
        }
    }
}

/// What a client is told before any row.
fn first_frame(subscription: &Subscription) -> Bytes {
    let Subscription { follower, place, at, end, .. } = subscription;
    match follower.kind {
        Kind::Streamcast => {
            let replay = (!subscription.live).then_some([at + 1, end + 1]);
            let stream_id = place.stream_id.to_string();
            let filter = follower.filter.as_ref().map(crate::Filter::text);
            let terms = Terms::undeclared(&Settings::default());
            let greeting = Greeting::new(&terms, &place.stream, &stream_id, end + 1);
            greeting.following(replay, filter).text()
        }
        Kind::Native => {
            let position = Position { partition: place.id(), offset: *at };
            let subscribed = json!({
                "stream": place.stream,
                "partition": place.name,
                "position": position.to_string(),
                "gapless": subscription.gapless,
            });
            reply(&follower.subscription, "subscribed", &subscribed).into()
        }
    }
}
