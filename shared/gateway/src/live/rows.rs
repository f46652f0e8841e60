//! Items as the gateway reads and writes them: connections, subscriptions, cohorts and their members.

use tidewheel_engine::{Error, PartitionId, Uuid};
use tidewheel_store::{Item, Key};

use super::keys;
use crate::Filter;

/// How a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Our own frames: many rows in one, a position on each, requests with ids.
    Native,
    /// The streamcast protocol: one row in a frame, and never one twice.
    Streamcast,
}

impl Kind {
    fn encode(self) -> &'static str {
        match self {
            Kind::Native => "native",
            Kind::Streamcast => "streamcast",
        }
    }

    fn decode(text: &str) -> Option<Self> {
        match text {
            "native" => Some(Kind::Native),
            "streamcast" => Some(Kind::Streamcast),
            _ => None,
        }
    }
}

/// Whom to post to, and what it wants: what a subscription and a member have in common.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    pub(crate) connection: String,
    /// The subscription's key: the JSON text of the id of the native request; empty for a streamcast client.
    pub(crate) subscription: String,
    pub(crate) kind: Kind,
    /// Where posts go, if the environment does not say.
    pub(crate) endpoint: Option<String>,
    pub(crate) filter: Option<Filter>,
    /// How long rows may gather before they are sent, milliseconds.
    pub(crate) window_ms: u64,
    /// When the store may forget it, seconds since 1970.
    pub(crate) expires: i64,
}

impl Follower {
    fn encode(&self, item: Item) -> Item {
        let mut item = item
            .with("conn", self.connection.as_str())
            .with("sub", self.subscription.as_str())
            .with("kind", self.kind.encode())
            .with("window_ms", self.window_ms as i64)
            .with("expires", self.expires);
        if let Some(endpoint) = &self.endpoint {
            item.set("endpoint", endpoint.as_str());
        }
        if let Some(filter) = &self.filter {
            item.set("where", filter.text().get());
        }
        item
    }

    fn decode(item: &Item) -> Option<Self> {
        Some(Self {
            connection: item.str("conn")?.to_owned(),
            subscription: item.str("sub")?.to_owned(),
            kind: Kind::decode(item.str("kind")?)?,
            endpoint: item.str("endpoint").map(str::to_owned),
            filter: match item.str("where") {
                Some(text) => Some(Filter::parse(text).ok()?),
                None => None,
            },
            window_ms: count(item, "window_ms")?,
            expires: item.int("expires")?,
        })
    }
}

fn count(item: &Item, name: &str) -> Option<u64> {
    item.int(name).and_then(|n| u64::try_from(n).ok())
}

fn corrupt(key: &Key) -> Error {
    Error::Corrupt(format!("item {key}"))
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionRow {
    pub(crate) kind: Kind,
    pub(crate) endpoint: Option<String>,
    /// The id of the API key that it was opened with; `None` if there were none.
    pub(crate) key: Option<String>,
    pub(crate) since_us: i64,
    pub(crate) expires: i64,
}

impl ConnectionRow {
    pub(crate) fn encode(&self) -> Item {
        let mut item = Item::new()
            .with("kind", self.kind.encode())
            .with("since_us", self.since_us)
            .with("expires", self.expires);
        for (name, text) in [("endpoint", &self.endpoint), ("key", &self.key)] {
            if let Some(text) = text {
                item.set(name, text.as_str());
            }
        }
        item
    }

    pub(crate) fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                kind: Kind::decode(item.str("kind")?)?,
                endpoint: item.str("endpoint").map(str::to_owned),
                key: item.str("key").map(str::to_owned),
                since_us: item.int("since_us")?,
                expires: item.int("expires")?,
            })
        };
        read().ok_or_else(|| corrupt(key))
    }
}

/// The partition that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stream: String,
    pub(crate) stream_id: Uuid,
    pub(crate) name: String,
}

impl Place {
    pub(crate) fn id(&self) -> PartitionId {
        PartitionId::of(&self.stream_id, &self.name)
    }

    fn encode(&self, item: Item) -> Item {
        item.with("stream", self.stream.as_str())
            .with("sid", self.stream_id.to_string())
            .with("name", self.name.as_str())
    }

    fn decode(item: &Item) -> Option<Self> {
        Some(Self {
            stream: item.str("stream")?.to_owned(),
            stream_id: Uuid::parse(item.str("sid")?)?,
            name: item.str("name")?.to_owned(),
        })
    }
}

/// How far a subscription has come. Whoever changes it states the state and the token that it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody is at it: an invocation may take it.
    Open,
    /// An invocation brings it up to the tail. If its time is over it has died, and what it posted is not known.
    Held { token: String, until_us: i64 },
    /// It is in the partition's cohort.
    Member,
}

/// A subscription: from the moment it is asked for until it is given up.
///
/// | attribute | meaning |
/// |---|---|
/// | `conn` `sub` `kind` `endpoint` `where` `window_ms` `expires` | see [`Follower`] |
/// | `stream` `sid` `name` | the partition |
/// | `at` | the offset of the row that it wants next, when nobody is at it |
/// | `end` | the tail when it was asked for |
/// | `live` `earliest` | it asked for what comes next; for whatever is first |
/// | `gapless` | it gets every row after the position that it named |
/// | `greeted` | it has had its first frame |
/// | `since_us` | when its connection was made |
/// | `state` `token` `until_us` | see [`State`] |
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) follower: Follower,
    pub(crate) place: Place,
    pub(crate) at: u64,
    pub(crate) end: u64,
    pub(crate) live: bool,
    pub(crate) earliest: bool,
    pub(crate) gapless: bool,
    pub(crate) greeted: bool,
    pub(crate) since_us: i64,
    pub(crate) state: State,
}

impl Subscription {
    pub(crate) fn key(&self) -> Key {
        keys::subscription(&self.follower.connection, &self.follower.subscription)
    }

    pub(crate) fn encode(&self) -> Item {
        let mut item = self
            .place
            .encode(self.follower.encode(Item::new()))
            .with("at", self.at as i64)
            .with("end", self.end as i64)
            .with("live", self.live)
            .with("earliest", self.earliest)
            .with("gapless", self.gapless)
            .with("greeted", self.greeted)
            .with("since_us", self.since_us);
        match &self.state {
            State::Open => item.set("state", "open"),
            State::Member => item.set("state", "member"),
            State::Held { token, until_us } => {
                item.set("state", "held");
                item.set("token", token.as_str());
                item.set("until_us", *until_us);
            }
        }
        item
    }

    pub(crate) fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let flag = |name: &str| match item.get(name) {
            Some(tidewheel_store::Value::Bool(flag)) => Some(*flag),
            _ => None,
        };
        let read = || {
            Some(Self {
                follower: Follower::decode(item)?,
                place: Place::decode(item)?,
                at: count(item, "at")?,
                end: count(item, "end")?,
                live: flag("live")?,
                earliest: flag("earliest")?,
                gapless: flag("gapless")?,
                greeted: flag("greeted")?,
                since_us: item.int("since_us")?,
                state: match item.str("state")? {
                    "open" => State::Open,
                    "member" => State::Member,
                    "held" => State::Held {
                        token: item.str("token")?.to_owned(),
                        until_us: item.int("until_us")?,
                    },
                    _ => return None,
                },
            })
        };
        read().ok_or_else(|| corrupt(key))
    }
}

/// A member of a cohort: it has every row below the greater of `from` and the cohort's position.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) follower: Follower,
    pub(crate) from: u64,
}

impl Member {
    pub(crate) fn encode(&self) -> Item {
        self.follower.encode(Item::new()).with("from", self.from as i64)
    }

    pub(crate) fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || Some(Self { follower: Follower::decode(item)?, from: count(item, "from")? });
        read().ok_or_else(|| corrupt(key))
    }
}

/// The connections that have all there is of a partition, and move together.
///
/// | attribute | meaning |
/// |---|---|
/// | `stream` `sid` `name` | the partition |
/// | `position` | every member has, or was sent, what is below; it only grows |
/// | `version` | counts up with every join; begins at chance, so that no two cohorts meet |
/// | `lease` `until_us` | the delivery that is at work: a token that only it has, and its end |
/// | `sending` | rows below this, from the position on, are being sent: nobody but the holder of the lease knows who has which |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cohort {
    pub(crate) place: Place,
    pub(crate) position: u64,
    pub(crate) version: i64,
    pub(crate) lease: Option<(String, i64)>,
    pub(crate) sending: Option<u64>,
}

impl Cohort {
    pub(crate) fn encode(&self) -> Item {
        let mut item = self
            .place
            .encode(Item::new())
            .with("position", self.position as i64)
            .with("version", self.version);
        if let Some((token, until_us)) = &self.lease {
            item.set("lease", token.as_str());
            item.set("until_us", *until_us);
        }
        if let Some(sending) = self.sending {
            item.set("sending", sending as i64);
        }
        item
    }

    pub(crate) fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || {
            let lease = match item.str("lease") {
                Some(token) => Some((token.to_owned(), item.int("until_us")?)),
                None => None,
            };
            Some(Self {
                place: Place::decode(item)?,
                position: count(item, "position")?,
                version: item.int("version")?,
                lease,
                sending: match item.get("sending") {
                    Some(_) => Some(count(item, "sending")?),
                    None => None,
                },
            })
        };
        read().ok_or_else(|| corrupt(key))
    }

    pub(crate) fn holds(&self, token: &str) -> bool {
        self.lease.as_ref().is_some_and(|(held, _)| held == token)
    }

    pub(crate) fn is_held(&self, now_us: i64) -> bool {
        self.lease.as_ref().is_some_and(|(_, until_us)| *until_us > now_us)
    }
}
