//! Streams: their records, options and partitions.
//!
//! A stream exists from the first push, pop or `configure` that names it. Its `version` counts up whenever a group
//! joins or leaves, and a partition is made on the condition that the version is the one its maker knows: so every
//! group either was told of the partition when it was made, or finds it when it visits what was there before it
//! joined.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidewheel_store::{
    Change, Commit, CommitError, Condition, Direction, Item, Query, Value, Write,
};

use crate::{
    Configure, DEFAULT_PARTITION, Declared, Engine, Error, PartitionId, PartitionInfo, StreamInfo,
    StreamOptions, Uuid, declare::Stored, keys, limits,
};

/// How long a process believes a stream's options before it reads them again, µs.
pub(crate) const FRESH_US: i64 = 2_000_000;

#[derive(Clone, Debug)]
pub(crate) struct StreamRecord {
    pub(crate) info: StreamInfo,
    pub(crate) version: i64,
    /// Ids of the groups, simple.
    pub(crate) groups: BTreeSet<String>,
    /// Somebody has made a partition, or declared the stream: from then on only the version is checked.
    pub(crate) partitioned: bool,
    /// What it has declared.
    pub(crate) declared: Option<Arc<Declared>>,
    /// When it was read.
    pub(crate) read_us: i64,
}

impl StreamRecord {
    fn decode(name: &str, item: &Item, read_us: i64) -> Result<Self, Error> {
        let read = || {
            Some(Self {
                info: StreamInfo {
                    name: name.to_owned(),
                    id: Uuid::parse(item.str("id")?)?,
                    namespace: item.str("namespace")?.to_owned(),
                    task: item.str("task")?.to_owned(),
                    options: serde_json::from_str(item.str("options")?).ok()?,
                    created_us: item.int("created_us")?,
                },
                version: item.int("version")?,
                groups: item.str_set("groups").cloned().unwrap_or_default(),
                partitioned: item.bool("partitioned").unwrap_or_default(),
                declared: None,
                read_us,
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("record of stream `{name}`")))
    }

    pub(crate) fn window_us(&self) -> i64 {
        self.info.options.dedup_window_seconds.saturating_mul(1_000_000)
    }

    /// The write by which whoever makes a partition holds the record to what it knows of it. The first one also leaves
    /// word that there is a partition: from then on the stream cannot be declared.
    pub(crate) fn held(&self) -> Write {
        let key = keys::stream(&self.info.name);
        let write = if self.partitioned {
            Write::check(key)
        } else {
            Write::update(key, vec![Change::Set("partitioned".into(), true.into())])
        };
        write
            .when(Condition::Equals("id".into(), self.info.id.to_string().into()))
            .when(Condition::Equals("version".into(), self.version.into()))
    }

    /// Refuses any partition but the one that a declared stream has.
    pub(crate) fn check_partition(&self, partition: &str) -> Result<(), Error> {
        if self.declared.is_some() && partition != DEFAULT_PARTITION {
            return Err(Error::OnePartition {
                stream: self.info.name.clone(),
                partition: partition.to_owned(),
            });
        }
        Ok(())
    }
}

pub(crate) fn options_text(options: &StreamOptions) -> Result<String, Error> {
    serde_json::to_string(options).map_err(|e| Error::Invalid(format!("options: {e}")))
}

/// The labels of a stream that is given none: the first two parts of a dotted name.
pub(crate) fn labels(name: &str) -> (String, String) {
    let mut parts = name.split('.');
    let namespace = parts.next().unwrap_or_default().to_owned();
    (namespace, parts.next().unwrap_or_default().to_owned())
}

impl Engine {
    /// Reads a stream's record; a remembered one will do while it is fresh.
    pub(crate) async fn stream_record(
        &self,
        name: &str,
    ) -> Result<Option<Arc<StreamRecord>>, Error> {
        let now_us = self.env().now_us();
        if let Some(record) = self.inner.streams.get(name)
            && (now_us - record.read_us).abs() < FRESH_US
        {
            return Ok(Some(record));
        }
        self.reread_stream(name).await
    }

    pub(crate) async fn reread_stream(
        &self,
        name: &str,
    ) -> Result<Option<Arc<StreamRecord>>, Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(item) = self.get(&keys::stream(name)).await? else {
                self.inner.streams.remove(name);
                return Ok(None);
            };
            let mut record = StreamRecord::decode(name, &item, self.env().now_us())?;
            if let Some(stored) = Stored::decode(&item) {
                let known = self.inner.streams.get(name).and_then(|r| r.declared.clone());
                let id = record.info.id;
                let Some(declared) = self.load_declared(&id, name, &stored, known).await? else {
                    continue;
                };
                record.declared = Some(Arc::new(declared));
            }
            let record = Arc::new(record);
            self.inner.streams.insert(name.to_owned(), Arc::clone(&record));
            return Ok(Some(record));
        }
        Err(Error::Corrupt(format!("declaration of stream `{name}`: its book is missing")))
    }

    /// The stream's record; makes the stream if there is none.
    pub(crate) async fn ensure_stream(&self, name: &str) -> Result<Arc<StreamRecord>, Error> {
        Error::check_name("the stream's name", name)?;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            if let Some(record) = self.stream_record(name).await? {
                return Ok(record);
            }
            let (namespace, task) = labels(name);
            self.create_stream(name, &namespace, &task, &StreamOptions::default()).await?;
        }
        Err(Error::Busy)
    }

    /// Makes a stream unless it exists.
    async fn create_stream(
        &self,
        name: &str,
        namespace: &str,
        task: &str,
        options: &StreamOptions,
    ) -> Result<(), Error> {
        let item = Item::new()
            .with("id", Uuid::random(self.env()).to_string())
            .with("namespace", namespace)
            .with("task", task)
            .with("options", options_text(options)?)
            .with("created_us", self.env().now_us())
            .with("version", 1);
        let writes = vec![
            Write::put(keys::stream(name), item).when(Condition::Absent),
            Write::update(
                keys::stream_entry(name),
                vec![Change::Set("listed".into(), true.into())],
            ),
        ];
        match self.commit(Commit::all(writes)).await {
            // Made by somebody, perhaps by us: the next read tells.
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sets a stream's options and labels; makes the stream if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] names an option whose value has the wrong type; [`Error::Encryption`] if encryption is asked
    /// for and there is no key to be had.
    ///
    /// Switching encryption on is answered once every process knows of it: what is pushed after the answer is
    /// encrypted. What was stored before stays as it is, and stays readable.
    pub async fn configure(&self, name: &str, configure: Configure) -> Result<StreamInfo, Error> {
        Error::check_name("the stream's name", name)?;
        let mut encrypts = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(record) = self.reread_stream(name).await? else {
                let options = StreamOptions::configured().merged(&configure.options)?;
                self.check_options(&options).await?;
                let (namespace, task) = labels(name);
                let namespace = configure.namespace.as_deref().unwrap_or(&namespace);
                let task = configure.task.as_deref().unwrap_or(&task);
                self.create_stream(name, namespace, task, &options).await?;
                continue;
            };
            let start = if configure.replace {
                StreamOptions::configured()
            } else {
                record.info.options.clone()
            };
            let options = start.merged(&configure.options)?;
            self.check_options(&options).await?;
            let wanted = StreamInfo {
                namespace: configure.namespace.clone().unwrap_or(record.info.namespace.clone()),
                task: configure.task.clone().unwrap_or(record.info.task.clone()),
                options,
                ..record.info.clone()
            };
            if wanted == record.info {
                if encrypts {
                    self.env().sleep(Duration::from_micros(FRESH_US as u64)).await;
                }
                return Ok(wanted);
            }
            encrypts |=
                wanted.options.encryption_enabled && !record.info.options.encryption_enabled;
            let set = |name: &str, value: Value| Change::Set(name.into(), value);
            let old_options = options_text(&record.info.options)?;
            let write = Write::update(
                keys::stream(name),
                vec![
                    set("namespace", wanted.namespace.as_str().into()),
                    set("task", wanted.task.as_str().into()),
                    set("options", options_text(&wanted.options)?.into()),
                ],
            )
            .when(Condition::Equals("id".into(), record.info.id.to_string().into()))
            .when(Condition::Equals("options".into(), old_options.into()));
            match self.commit(Commit::one(write)).await {
                // The next round reads what is there, and finds it as wanted or tries again.
                Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Refuses options that would promise what is not there.
    async fn check_options(&self, options: &StreamOptions) -> Result<(), Error> {
        if options.encryption_enabled {
            self.sealer().await?;
        }
        Ok(())
    }

    /// Reads a stream.
    pub async fn stream(&self, name: &str) -> Result<Option<StreamInfo>, Error> {
        Ok(self.reread_stream(name).await?.map(|r| r.info.clone()))
    }

    /// Names of streams in order, after one, at most `limit` (and at most 1,000).
    pub async fn streams(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        let items = self.list(keys::STREAMS, after, limit).await?;
        Ok(items.into_iter().map(|(key, _)| key.sk).collect())
    }

    /// Partitions of a stream by id, after one, at most `limit` (and at most 1,000).
    pub async fn partitions(
        &self,
        stream: &str,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionInfo>, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        self.partitions_of(&record, after, limit).await
    }

    pub(crate) async fn partitions_of(
        &self,
        record: &StreamRecord,
        after: Option<&PartitionId>,
        limit: usize,
    ) -> Result<Vec<PartitionInfo>, Error> {
        let after = after.map(|a| a.to_string());
        let pk = keys::partitions_pk(&record.info.id);
        let items = self.list(&pk, after.as_deref(), limit).await?;
        let info = |(key, item): (tidewheel_store::Key, Item)| {
            Some(PartitionInfo {
                id: PartitionId::parse(&key.sk)?,
                stream: record.info.name.clone(),
                name: item.str("name")?.to_owned(),
            })
        };
        Ok(items.into_iter().filter_map(info).collect())
    }

    /// Items of one partition key after a sort key.
    pub(crate) async fn list(
        &self,
        pk: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(tidewheel_store::Key, Item)>, Error> {
        let limit = limit.clamp(1, tidewheel_store::limits::QUERY_ITEMS);
        let query = Query {
            pk: pk.to_owned(),
            // The lowest text above another is that text and a zero.
            from: after.map(|a| format!("{a}\0")),
            to: None,
            direction: Direction::Forward,
            limit,
        };
        Ok(self.items(&query).await?.items)
    }

    /// Reads what a partition is called; `None` if there is none of that id.
    pub async fn partition(&self, id: &PartitionId) -> Result<Option<PartitionInfo>, Error> {
        let head = match self.warm(id).head() {
            Some(head) => Some(head),
            None => self.head(id).await?,
        };
        Ok(head.map(|h| PartitionInfo { id: *id, stream: h.stream.clone(), name: h.name.clone() }))
    }

    /// Deletes a stream with all that it holds; false if there was none.
    ///
    /// The stream is gone with the first write. What it held is deleted after that, and what a crash leaves is
    /// deleted by [`Engine::sweep`].
    pub async fn delete_stream(&self, name: &str) -> Result<bool, Error> {
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(record) = self.reread_stream(name).await? else { return Ok(false) };
            let id = record.info.id.to_string();
            let gone = Item::new().with("name", name).with(
                "groups",
                record.groups.iter().map(|g| g.as_str().into()).collect::<Vec<Value>>(),
            );
            let writes = vec![
                Write::delete(keys::stream(name))
                    .when(Condition::Equals("id".into(), id.as_str().into()))
                    .when(Condition::Equals("version".into(), record.version.into())),
                Write::delete(keys::stream_entry(name)),
                Write::put(keys::gone(&record.info.id), gone),
            ];
            match self.commit(Commit::all(writes)).await {
                Ok(_) => {
                    self.inner.streams.remove(name);
                    self.sweep_stream(&record.info.id).await?;
                    return Ok(true);
                }
                Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Unknown(_)) => {
                    if self.get(&keys::gone(&record.info.id)).await?.is_some() {
                        self.inner.streams.remove(name);
                        self.sweep_stream(&record.info.id).await?;
                        return Ok(true);
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}
