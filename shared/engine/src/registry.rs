//! The registry of managed streams: what is declared of each, what is wanted of it, and what is being done about it.
//!
//! What a declaration means is decided above; here it is a text. A change is accepted in one transaction:
//!
//! | item | pk, sk | what |
//! |---|---|---|
//! | registry | `control`, `registry` | `id`; `revision` of the collection; `pending`, how many operations are not finished |
//! | managed stream | `control`, `stream#<name>` | `definition` `desired` `revision` `state` `generation` `at_us` `stream_id` `pending` `profile`; `token` of the last write |
//! | operation | `co#<id>`, `operation` | `name` `kind` `revision` `target` `status` `error` |
//! | pending | `control-pending`, `<id>` | `name`: to be finished by whoever comes |
//! | receipt | `cr#<principal>`, `<key>` | `digest` of the intent, and its answer |
//!
//! so that either all of it is there or nothing. The receipt is put if absent: a request that comes twice finds it, and a
//! lost reply is looked up by it. An operation is finished in one transaction too, on the condition that the stream still
//! waits for it; so of two processes that carry it out, one finishes it. Carrying out must therefore be repeatable.

use tidewheel_store::{Change, Commit, CommitError, Condition, Item, Key, Query, Value, Write};

use crate::{Engine, Error, Uuid, cursor::write_token, keys, limits, stream::FRESH_US};

/// A stream that is managed.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagedStream {
    /// Its name.
    pub name: String,
    /// The declaration, JSON text.
    pub definition: String,
    /// `serving`, `stopped` or `retired`.
    pub desired: String,
    /// Counts the changes that were accepted.
    pub revision: u64,
    /// What it was brought to last: `unknown`, `stopped`, `serving`, `retired` or `error`.
    pub state: String,
    /// Counts how often it began to be served.
    pub generation: Option<u64>,
    /// When its state was found out, µs.
    pub at_us: i64,
    /// The id of the stream, once there is one.
    pub stream_id: Option<String>,
    /// The operation that it waits for, or that failed.
    pub pending: Option<String>,
    /// The revision of the storage profile that it was declared with.
    pub profile: String,
    token: String,
}

impl ManagedStream {
    /// One that is declared now, stopped.
    pub fn declared(name: &str, definition: String, profile: &str) -> Self {
        Self {
            name: name.to_owned(),
            definition,
            desired: "stopped".to_owned(),
            revision: 1,
            state: "unknown".to_owned(),
            generation: None,
            at_us: 0,
            stream_id: None,
            pending: None,
            profile: profile.to_owned(),
            token: String::new(),
        }
    }

    fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                name: key.sk.strip_prefix(keys::MANAGED)?.to_owned(),
                definition: item.str("definition")?.to_owned(),
                desired: item.str("desired")?.to_owned(),
                revision: count(item, "revision")?,
                state: item.str("state")?.to_owned(),
                generation: count(item, "generation"),
                at_us: item.int("at_us")?,
                stream_id: item.str("stream_id").map(str::to_owned),
                pending: item.str("pending").map(str::to_owned),
                profile: item.str("profile")?.to_owned(),
                token: item.str("token")?.to_owned(),
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("managed stream {key}")))
    }

    fn encode(&self, token: &str) -> Item {
        let mut item = Item::new()
            .with("definition", self.definition.as_str())
            .with("desired", self.desired.as_str())
            .with("revision", int(self.revision))
            .with("state", self.state.as_str())
            .with("at_us", self.at_us)
            .with("profile", self.profile.as_str())
            .with("token", token);
        if let Some(generation) = self.generation {
            item.set("generation", int(generation));
        }
        for (name, text) in [("stream_id", &self.stream_id), ("pending", &self.pending)] {
            if let Some(text) = text {
                item.set(name, text.as_str());
            }
        }
        item
    }
}

/// Something that is being done about a managed stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// The stream.
    pub name: String,
    /// `definition`, `desired` or `migration`.
    pub kind: String,
    /// The stream's revision from this on.
    pub revision: u64,
    /// What was asked for, JSON text.
    pub target: String,
    /// `accepted`, `running`, `succeeded` or `failed`.
    pub status: String,
    /// Why it failed: a word.
    pub error: Option<String>,
}

impl Operation {
    /// True if nothing more will happen to it.
    pub fn is_final(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "failed")
    }

    fn decode(id: &str, item: &Item) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                id: id.to_owned(),
                name: item.str("name")?.to_owned(),
                kind: item.str("kind")?.to_owned(),
                revision: count(item, "revision")?,
                target: item.str("target")?.to_owned(),
                status: item.str("status")?.to_owned(),
                error: item.str("error").map(str::to_owned),
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("operation {id}")))
    }

    fn encode(&self) -> Item {
        let item = Item::new()
            .with("name", self.name.as_str())
            .with("kind", self.kind.as_str())
            .with("revision", int(self.revision))
            .with("target", self.target.as_str())
            .with("status", self.status.as_str());
        match &self.error {
            Some(error) => item.with("error", error.as_str()),
            None => item,
        }
    }
}

/// The answer to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// 202, or 200 if nothing was to be done.
    pub status: u16,
    /// The operation.
    pub operation: String,
    /// The stream's revision.
    pub revision: u64,
}

/// Who wants something, and what, as a digest: the same again gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Who.
    pub principal: String,
    /// The key that the client chose.
    pub key: String,
    /// Of everything that was asked for.
    pub digest: String,
}

/// What is known of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prior {
    /// Nothing.
    None,
    /// It was answered.
    Same(Receipt),
    /// Another intent has its key.
    Other,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Acceptance {
    /// Accepted, now or before.
    Accepted(Receipt),
    /// Another intent has its key.
    OtherIntent,
    /// As many operations as may be wait already.
    Full,
    /// The stream is not what the change was decided on: look again.
    Changed,
}

/// A page of managed streams, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManagedPage {
    /// The collection's revision.
    pub revision: u64,
    /// The streams.
    pub streams: Vec<ManagedStream>,
}

fn count(item: &Item, name: &str) -> Option<u64> {
    item.int(name).and_then(|n| u64::try_from(n).ok())
}

fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Engine {
    /// The registry's id, and the collection's revision. The first to ask makes the registry.
    pub async fn registry(&self) -> Result<(String, u64), Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            if let Some(item) = self.get(&keys::registry()).await? {
                let bad = || Error::Corrupt("the registry".to_owned());
                let id = item.str("id").ok_or_else(bad)?.to_owned();
                return Ok((id, count(&item, "revision").ok_or_else(bad)?));
            }
            let item = Item::new()
                .with("id", Uuid::random(self.env()).to_string())
                .with("revision", 0)
                .with("pending", 0);
            let put = Write::put(keys::registry(), item).when(Condition::Absent);
            match self.commit(Commit::one(put)).await {
                // The next round reads whose it is.
                Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// A managed stream; `None` if there is none.
    pub async fn managed(&self, name: &str) -> Result<Option<ManagedStream>, Error> {
        let key = keys::managed(name);
        self.get(&key).await?.map(|item| ManagedStream::decode(&key, &item)).transpose()
    }

    /// Managed streams by name, after one; as many as were asked for, if there are that many.
    pub async fn managed_streams(&self, after: &str, limit: usize) -> Result<ManagedPage, Error> {
        let (_, revision) = self.registry().await?;
        let mut query = Query::prefix(keys::CONTROL, keys::MANAGED);
        if !after.is_empty() {
            query.from = Some(format!("{}{after}\u{0}", keys::MANAGED));
        }
        let mut page = ManagedPage { revision, streams: Vec::new() };
        let mut next = Some(query);
        while let Some(query) = next.take().filter(|_| page.streams.len() < limit) {
            let found = self.items(&query).await?;
            for (key, item) in found.items.iter().take(limit - page.streams.len()) {
                page.streams.push(ManagedStream::decode(key, item)?);
            }
            next = query.following(&found);
        }
        Ok(page)
    }

    /// An operation; `None` if there is none of this id.
    pub async fn operation(&self, id: &str) -> Result<Option<Operation>, Error> {
        if id.is_empty() || id.len() > limits::NAME_BYTES {
            return Ok(None);
        }
        let item = self.get(&keys::operation(id)).await?;
        item.map(|item| Operation::decode(id, &item)).transpose()
    }

    /// What is known of an intent.
    pub async fn prior(&self, intent: &Intent) -> Result<Prior, Error> {
        let key = keys::receipt(&intent.principal, &intent.key);
        let Some(item) = self.get(&key).await? else { return Ok(Prior::None) };
        if item.str("digest") != Some(&intent.digest) {
            return Ok(Prior::Other);
        }
        let read = || {
            Some(Receipt {
                status: u16::try_from(item.int("status")?).ok()?,
                operation: item.str("operation")?.to_owned(),
                revision: count(&item, "revision")?,
            })
        };
        read().map(Prior::Same).ok_or_else(|| Error::Corrupt("a receipt".to_owned()))
    }

    /// Accepts a change of a stream: `before` is what it was decided on, `after` what it becomes, `operation` what is to
    /// be done about it. One that is final already changes nothing but leaves its receipt.
    pub async fn accept(
        &self,
        intent: &Intent,
        before: Option<&ManagedStream>,
        after: &ManagedStream,
        operation: &Operation,
        max_pending: usize,
    ) -> Result<Acceptance, Error> {
        self.registry().await?;
        let status = if operation.is_final() { 200 } else { 202 };
        let receipt = Receipt { status, operation: operation.id.clone(), revision: after.revision };
        let receipt_item = Item::new()
            .with("digest", intent.digest.as_str())
            .with("status", i64::from(status))
            .with("operation", receipt.operation.as_str())
            .with("revision", int(receipt.revision));
        let mut writes = vec![
            Write::put(keys::receipt(&intent.principal, &intent.key), receipt_item)
                .when(Condition::Absent),
            Write::put(keys::operation(&operation.id), operation.encode()).when(Condition::Absent),
        ];
        let unchanged = |write: Write| match before {
            None => write.when(Condition::Absent),
            Some(b) => write.when(Condition::Equals("token".into(), b.token.as_str().into())),
        };
        let stream = keys::managed(&after.name);
        if operation.is_final() {
            writes.push(unchanged(Write::check(stream)));
        } else {
            writes.push(unchanged(Write::put(stream, after.encode(&write_token(self)))));
            let most = i64::try_from(max_pending).unwrap_or(i64::MAX);
            writes.push(
                Write::update(
                    keys::registry(),
                    vec![Change::Add("revision".into(), 1), Change::Add("pending".into(), 1)],
                )
                .when(Condition::LessThan("pending".into(), most)),
            );
            let pending = Item::new().with("name", after.name.as_str());
            writes.push(Write::put(keys::pending(&operation.id), pending));
        }
        for _ in 0..limits::COMMIT_ATTEMPTS {
            match self.commit(Commit::all(writes.clone())).await {
                Ok(_) => return Ok(Acceptance::Accepted(receipt)),
                // Who is there before us may be our own earlier attempt: the receipt tells.
                Err(CommitError::Conflict(failed)) => {
                    return Ok(match self.prior(intent).await? {
                        Prior::Same(receipt) => Acceptance::Accepted(receipt),
                        Prior::Other => Acceptance::OtherIntent,
                        Prior::None if failed.iter().any(|f| f.write == 3) => Acceptance::Full,
                        Prior::None => Acceptance::Changed,
                    });
                }
                // Sent again, it finds the receipt of what arrived.
                Err(CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Says that an operation is being carried out.
    pub async fn begin(&self, operation: &mut Operation) -> Result<(), Error> {
        if operation.status != "accepted" {
            return Ok(());
        }
        let set = Change::Set("status".into(), "running".into());
        let write = Write::update(keys::operation(&operation.id), vec![set])
            .when(Condition::Equals("status".into(), "accepted".into()));
        match self.commit(Commit::one(write)).await {
            // Somebody else has begun, or ended it: the end of it tells.
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {
                operation.status = "running".to_owned();
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Ends an operation: `change` makes of the stream what it is from now on. A failed one stays the stream's pending
    /// one, so that nothing but itself is wanted next. Answers the operation as it ended, whoever ended it.
    pub async fn finish(
        &self,
        operation: &Operation,
        error: Option<&str>,
        change: impl Fn(&mut ManagedStream),
    ) -> Result<Operation, Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let known = self.operation(&operation.id).await?;
            let mut ended =
                known.ok_or_else(|| Error::Corrupt(format!("operation {}", operation.id)))?;
            if ended.is_final() {
                return Ok(ended);
            }
            let Some(before) = self.managed(&operation.name).await? else {
                return Err(Error::Corrupt(format!("operation {} has no stream", operation.id)));
            };
            ended.status = if error.is_some() { "failed" } else { "succeeded" }.to_owned();
            ended.error = error.map(str::to_owned);
            let mut after = before.clone();
            change(&mut after);
            after.at_us = self.env().now_us();
            after.pending = error.map(|_| operation.id.clone());
            let same = |name: &str, value: &str| Condition::Equals(name.into(), value.into());
            let writes = vec![
                Write::put(keys::managed(&operation.name), after.encode(&write_token(self)))
                    .when(same("token", &before.token))
                    .when(same("pending", &operation.id)),
                Write::put(keys::operation(&operation.id), ended.encode()).when(Condition::Exists),
                Write::delete(keys::pending(&operation.id)),
                Write::update(keys::registry(), vec![Change::Add("pending".into(), -1)]),
            ];
            let committed = self.commit(Commit::all(writes)).await;
            self.inner.admitted.remove(&operation.name);
            match committed {
                Ok(_) => return Ok(ended),
                // The next round finds it ended, or tries again.
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Operations that are not finished, at most so many.
    pub async fn pending_operations(&self, limit: usize) -> Result<Vec<Operation>, Error> {
        let found = self.list(keys::PENDING, None, limit).await?;
        let mut operations = Vec::with_capacity(found.len());
        for (key, _) in found {
            operations.extend(self.operation(&key.sk).await?);
        }
        Ok(operations)
    }

    /// Notes on a managed stream what was found out while its operation goes on: its id, before anything shows it.
    pub async fn bind(&self, operation: &Operation, stream_id: &str) -> Result<(), Error> {
        let set = Change::Set("stream_id".into(), Value::from(stream_id));
        let write = Write::update(keys::managed(&operation.name), vec![set])
            .when(Condition::Equals("pending".into(), operation.id.as_str().into()));
        match self.commit(Commit::one(write)).await {
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// True if a stream is there for sockets: nobody manages it, or it is served, or retired and readable. Believed for as
    /// long as a stream's record.
    pub async fn admits(&self, name: &str) -> Result<bool, Error> {
        let now_us = self.env().now_us();
        if let Some((admits, read_us)) = self.inner.admitted.get(name)
            && (now_us - read_us).abs() < FRESH_US
        {
            return Ok(admits);
        }
        let admits = match self.managed(name).await? {
            None => true,
            Some(stream) => matches!(stream.state.as_str(), "serving" | "retired"),
        };
        self.inner.admitted.insert(name.to_owned(), (admits, now_us));
        Ok(admits)
    }
}
