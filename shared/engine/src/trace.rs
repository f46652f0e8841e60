//! Traces: what workers write down about a message, to be read back by message or by a name they gave it.
//!
//! | attribute of a trace | meaning |
//! |---|---|
//! | `tx` `group` `event` | the message's transaction id, the group and the kind of event, as they came |
//! | `stream` `partition` | the names of the message's stream and partition |
//! | `names` | labels, a list |
//! | `data` | JSON text; in an envelope on a stream that is encrypted at rest, and then `sealed` is true |
//! | `made_us` | when |
//!
//! A trace is one small transaction over the trace, its entries by name and by day, and the counts that the listings
//! show. Traces are bounded three ways: each by its size, all of a day by their number, and all of them by
//! [`limits::TRACE_DAYS`], after which [`Engine::sweep_traces`] deletes them with what points to them.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tidewheel_store::{
    Change, Commit, CommitError, Condition, Direction, Item, Key, Query, Value, Write,
};

use crate::{Engine, Error, PartitionId, Uuid, keys, limits};

/// Traces of one message that are shown.
const SHOWN: usize = 1000;

/// Names that one listing looks at.
const NAMES_LOOKED_AT: usize = 10_000;

const DAY_US: i64 = 86_400_000_000;

/// A trace to write down.
#[derive(Clone, Debug)]
pub struct NewTrace {
    /// The message's partition. It must exist.
    pub partition: PartitionId,
    /// The message's transaction id. Whether there is such a message is not looked at.
    pub transaction_id: String,
    /// The group that handled it.
    pub group: String,
    /// What kind of event it is.
    pub event: String,
    /// Labels to find it by.
    pub names: Vec<String>,
    /// JSON text.
    pub data: Bytes,
}

/// A trace as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its id.
    pub id: Uuid,
    /// The message's partition.
    pub partition: PartitionId,
    /// The name of the message's stream.
    pub stream: String,
    /// The name of the message's partition.
    pub partition_name: String,
    /// The message's transaction id.
    pub transaction_id: String,
    /// The group that handled it.
    pub group: String,
    /// What kind of event it is.
    pub event: String,
    /// Labels.
    pub names: Vec<String>,
    /// JSON text, exactly as it came.
    pub data: Bytes,
    /// When it was written down, µs.
    pub made_us: i64,
}

/// Traces of one name, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TracesByName {
    /// A page of them.
    pub traces: Vec<Trace>,
    /// How many there are.
    pub total: u64,
}

/// A name that traces have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceName {
    /// The name.
    pub name: String,
    /// Traces that have it.
    pub traces: u64,
    /// Messages that they are about.
    pub messages: u64,
    /// When the last of them was written down, µs.
    pub last_us: i64,
}

/// Names that traces have, the most recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceNames {
    /// A page of them.
    pub names: Vec<TraceName>,
    /// How many there are.
    pub total: usize,
}

fn digest(transaction_id: &str) -> String {
    Sha256::digest(transaction_id)[..16].iter().map(|b| format!("{b:02x}")).collect()
}

fn sort_key(made_us: i64, id: &Uuid) -> String {
    format!("{:016x}#{id}", made_us.max(0))
}

fn day(us: i64) -> String {
    format!("{:08}", us.max(0) / DAY_US)
}

fn place(partition: &PartitionId, sk: &str) -> String {
    format!("trace {sk} of partition {partition}")
}

fn set(name: &str, value: impl Into<Value>) -> Change {
    Change::Set(name.into(), value.into())
}

impl NewTrace {
    fn check(&mut self) -> Result<(), Error> {
        let limit = |what, got, limit| {
            if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
        };
        limit(
            "bytes in a transaction id",
            self.transaction_id.len(),
            limits::TRANSACTION_ID_BYTES,
        )?;
        limit("bytes in a group's name", self.group.len(), limits::NAME_BYTES)?;
        limit("bytes in a trace's event type", self.event.len(), limits::TRACE_EVENT_BYTES)?;
        limit("bytes in a trace's data", self.data.len(), limits::TRACE_DATA_BYTES)?;
        self.names.sort();
        self.names.dedup();
        limit("names of one trace", self.names.len(), limits::TRACE_NAMES)?;
        self.names.iter().try_for_each(|name| Error::check_name("a trace's name", name))
    }
}

impl Engine {
    /// Writes a trace down; answers its id.
    ///
    /// # Errors
    /// [`Error::PartitionNotFound`]; [`Error::Limit`] and [`Error::Name`] name what is too much, also when the day has
    /// its [`limits::TRACES_PER_DAY`].
    pub async fn trace(&self, mut trace: NewTrace) -> Result<Uuid, Error> {
        trace.check()?;
        let info = self.partition(&trace.partition).await?.ok_or(Error::PartitionNotFound)?;
        let (id, made_us) = (Uuid::random(self.env()), self.env().now_us());
        let sk = sort_key(made_us, &id);
        let digest = digest(&trace.transaction_id);
        let names: Vec<Value> = trace.names.iter().map(|n| n.as_str().into()).collect();
        let mut item = Item::new()
            .with("tx", trace.transaction_id.as_str())
            .with("group", trace.group.as_str())
            .with("event", trace.event.as_str())
            .with("stream", info.stream.as_str())
            .with("partition", info.name.as_str())
            .with("names", names.clone())
            .with("made_us", made_us);
        let encrypted = self
            .stream_record(&info.stream)
            .await?
            .is_some_and(|s| s.info.options.encryption_enabled);
        if encrypted {
            let sealer = self.sealer().await?;
            let place = place(&trace.partition, &sk);
            item.set("data", sealer.seal(self.env(), &place, &trace.data)?);
            item.set("sealed", true);
        } else {
            item.set("data", trace.data.clone());
        }
        let key = Key::new(keys::traces_pk(&trace.partition, &digest), sk.as_str());
        let pointer =
            || Item::new().with("pid", trace.partition.to_string()).with("digest", digest.as_str());
        let of_day = Key::new(keys::traces_of_day_pk(&day(made_us)), sk.as_str());
        let mut writes = vec![
            Write::put(key.clone(), item).when(Condition::Absent),
            Write::put(of_day, pointer().with("names", names)),
        ];
        for name in &trace.names {
            writes.push(Write::put(Key::new(keys::named_traces_pk(name), sk.as_str()), pointer()));
        }
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let mut commit = Commit::all(writes.clone());
            commit.writes.extend(self.trace_counts(&trace, &digest, made_us).await?);
            match self.commit(commit).await {
                Ok(_) => return Ok(id),
                // Another trace has been counted in between.
                Err(CommitError::Conflict(_)) => {
                    if self.get(&key).await?.is_some() {
                        return Ok(id);
                    }
                }
                Err(CommitError::Unknown(_)) => {
                    if self.get(&key).await?.is_some() {
                        return Ok(id);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// The writes that count one more trace: of its day, of its names, and of the messages of its names.
    async fn trace_counts(
        &self,
        trace: &NewTrace,
        digest: &str,
        made_us: i64,
    ) -> Result<Vec<Write>, Error> {
        let day = keys::trace_day(&day(made_us));
        let marks = trace.names.iter().map(|n| keys::named_message(n, &trace.partition, digest));
        let wanted: Vec<Key> = std::iter::once(day.clone()).chain(marks).collect();
        let found = self.batch_get(&wanted).await?;
        let counted =
            |item: &Option<Item>| item.as_ref().and_then(|i| i.int("traces")).unwrap_or(0);
        if counted(&found[0]) >= limits::TRACES_PER_DAY {
            return Err(Error::Limit {
                what: "traces of one day",
                got: limits::TRACES_PER_DAY as usize + 1,
                limit: limits::TRACES_PER_DAY as usize,
            });
        }
        let one_more = || vec![Change::Add("traces".into(), 1)];
        let guard = match found[0] {
            Some(_) => Condition::LessThan("traces".into(), limits::TRACES_PER_DAY),
            None => Condition::Absent,
        };
        let mut writes = vec![Write::update(day, one_more()).when(guard)];
        for ((name, mark), seen) in trace.names.iter().zip(&wanted[1..]).zip(&found[1..]) {
            let known = if seen.is_some() { Condition::Exists } else { Condition::Absent };
            writes.push(Write::update(mark.clone(), one_more()).when(known));
            let mut changes = one_more();
            changes.push(Change::Add("messages".into(), i64::from(seen.is_none())));
            changes.push(set("last_us", made_us));
            writes.push(Write::update(keys::trace_name(name), changes));
        }
        Ok(writes)
    }

    /// Traces of a message, oldest first, the first 1,000.
    pub async fn traces_of(
        &self,
        partition: &PartitionId,
        transaction_id: &str,
    ) -> Result<Vec<Trace>, Error> {
        let digest = digest(transaction_id);
        let items = self.list(&keys::traces_pk(partition, &digest), None, SHOWN).await?;
        let mut traces = Vec::with_capacity(items.len());
        for (key, item) in &items {
            traces.push(self.decode_trace(partition, &key.sk, item).await?);
        }
        Ok(traces)
    }

    /// A page of the traces that have a name, oldest first; skips `offset`, at most `limit` (and at most 1,000).
    pub async fn traces_by_name(
        &self,
        name: &str,
        offset: usize,
        limit: usize,
    ) -> Result<TracesByName, Error> {
        Error::check_name("a trace's name", name)?;
        let counted = self.get(&keys::trace_name(name)).await?;
        let total = counted.and_then(|i| i.int("traces")).map_or(0, |n| n.max(0) as u64);
        let limit = limit.min(SHOWN);
        let (mut skip, mut after) = (offset as u64, None);
        let mut pointers = Vec::new();
        while skip < total && pointers.len() < limit {
            let page = self.list(&keys::named_traces_pk(name), after.as_deref(), SHOWN).await?;
            let full = page.len() == SHOWN;
            after = page.last().map(|(key, _)| key.sk.clone());
            let skipped = skip.min(page.len() as u64);
            skip -= skipped;
            pointers.extend(page.into_iter().skip(skipped as usize).take(limit - pointers.len()));
            if !full {
                break;
            }
        }
        let wanted: Vec<(PartitionId, Key)> =
            pointers.iter().filter_map(|(key, item)| pointed(&key.sk, item)).collect();
        let mut traces = Vec::with_capacity(wanted.len());
        for chunk in wanted.chunks(tidewheel_store::limits::BATCH_GET_KEYS) {
            let keys: Vec<Key> = chunk.iter().map(|(_, key)| key.clone()).collect();
            for ((partition, key), item) in chunk.iter().zip(self.batch_get(&keys).await?) {
                // Swept since it was listed.
                let Some(item) = item else { continue };
                traces.push(self.decode_trace(partition, &key.sk, &item).await?);
            }
        }
        Ok(TracesByName { traces, total })
    }

    /// A page of the names that traces have, the most recently used first; skips `offset`, at most `limit`. Of more than
    /// 10,000 names the first 10,000 in the order of the alphabet count.
    pub async fn trace_names(&self, offset: usize, limit: usize) -> Result<TraceNames, Error> {
        let mut names: Vec<TraceName> = Vec::new();
        let mut after = None;
        while names.len() < NAMES_LOOKED_AT {
            let page = self.list(keys::TRACE_NAMES, after.as_deref(), SHOWN).await?;
            let full = page.len() == SHOWN;
            after = page.last().map(|(key, _)| key.sk.clone());
            names.extend(page.into_iter().map(|(key, item)| {
                let count = |name| item.int(name).map_or(0, |n| n.max(0) as u64);
                let (traces, messages) = (count("traces"), count("messages"));
                let last_us = item.int("last_us").unwrap_or(0);
                TraceName { name: key.sk, traces, messages, last_us }
            }));
            if !full {
                break;
            }
        }
        let total = names.len();
        names.sort_by(|a, b| b.last_us.cmp(&a.last_us).then_with(|| a.name.cmp(&b.name)));
        Ok(TraceNames { names: names.into_iter().skip(offset).take(limit).collect(), total })
    }

    async fn decode_trace(
        &self,
        partition: &PartitionId,
        sk: &str,
        item: &Item,
    ) -> Result<Trace, Error> {
        let bad = || Error::Corrupt(format!("trace {sk} of partition {partition}"));
        let mut data = item.bytes("data").cloned().ok_or_else(bad)?;
        if item.bool("sealed") == Some(true) {
            data = self.unseal(&place(partition, sk), data).await?;
        }
        let read = || {
            let names = item.list("names").iter().map(|name| match name {
                Value::Str(name) => Some(name.clone()),
                _ => None,
            });
            Some(Trace {
                id: Uuid::parse(sk.split_once('#')?.1)?,
                partition: *partition,
                stream: item.str("stream")?.to_owned(),
                partition_name: item.str("partition")?.to_owned(),
                transaction_id: item.str("tx")?.to_owned(),
                group: item.str("group")?.to_owned(),
                event: item.str("event")?.to_owned(),
                names: names.collect::<Option<_>>()?,
                data,
                made_us: item.int("made_us")?,
            })
        };
        read().ok_or_else(bad)
    }

    /// Deletes traces older than [`limits::TRACE_DAYS`] days. Answers how many. It may be interrupted and repeated.
    pub async fn sweep_traces(&self) -> Result<u64, Error> {
        let oldest_kept = day(self.env().now_us() - limits::TRACE_DAYS * DAY_US);
        let mut swept = 0;
        for (key, _) in self.list(keys::TRACE_DAYS, None, SHOWN).await? {
            if key.sk >= oldest_kept {
                break;
            }
            swept += self.sweep_day(&key.sk).await?;
            match self.commit(Commit::one(Write::delete(key))).await {
                Ok(_) | Err(CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(swept)
    }

    async fn sweep_day(&self, day: &str) -> Result<u64, Error> {
        let pk = keys::traces_of_day_pk(day);
        let mut swept = 0;
        loop {
            let query = Query {
                pk: pk.clone(),
                from: None,
                to: None,
                direction: Direction::Forward,
                limit: SHOWN,
            };
            let page = self.items(&query).await?;
            if page.items.is_empty() {
                return Ok(swept);
            }
            for (key, item) in &page.items {
                self.sweep_trace(key, item).await?;
                swept += 1;
            }
        }
    }

    /// Deletes one trace, what points to it, and counts it off.
    async fn sweep_trace(&self, of_day: &Key, item: &Item) -> Result<(), Error> {
        let Some((partition, key)) = pointed(&of_day.sk, item) else {
            return Err(Error::Corrupt(format!("the entry {of_day} of a day of traces")));
        };
        let digest = item.str("digest").unwrap_or_default();
        let names: Vec<&str> = item
            .list("names")
            .iter()
            .filter_map(|name| if let Value::Str(name) = name { Some(name.as_str()) } else { None })
            .collect();
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let counts = names
                .iter()
                .flat_map(|n| [keys::trace_name(n), keys::named_message(n, &partition, digest)]);
            let wanted: Vec<Key> = counts.collect();
            let found = self.batch_get(&wanted).await?;
            let mut writes = vec![
                Write::delete(of_day.clone()).when(Condition::Exists),
                Write::delete(key.clone()),
            ];
            for (at, name) in names.iter().enumerate() {
                writes
                    .push(Write::delete(Key::new(keys::named_traces_pk(name), of_day.sk.as_str())));
                let (name, mark) = (&found[2 * at], &found[2 * at + 1]);
                let last = mark.as_ref().is_some_and(|m| m.int("traces") == Some(1));
                writes.extend(one_less(&wanted[2 * at + 1], mark, 0));
                writes.extend(one_less(&wanted[2 * at], name, i64::from(last)));
            }
            match self.commit(Commit::all(writes)).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                    if self.get(of_day).await?.is_none() {
                        return Ok(());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}

/// The partition and key of the trace that an entry points to.
fn pointed(sk: &str, item: &Item) -> Option<(PartitionId, Key)> {
    let partition = PartitionId::parse(item.str("pid")?)?;
    Some((partition, Key::new(keys::traces_pk(&partition, item.str("digest")?), sk)))
}

/// Counts one trace, and perhaps a message, off an item as it was read; the last one takes the item with it.
fn one_less(key: &Key, item: &Option<Item>, messages: i64) -> Option<Write> {
    let item = item.as_ref()?;
    let traces = item.int("traces")?;
    let write = if traces <= 1 {
        Write::delete(key.clone())
    } else {
        let mut changes = vec![Change::Add("traces".into(), -1)];
        if messages > 0 {
            changes.push(Change::Add("messages".into(), -messages));
        }
        Write::update(key.clone(), changes)
    };
    Some(write.when(Condition::Equals("traces".into(), traces.into())))
}
