//! Declared streams: a schema, settings, and generations of one log.
//!
//! A declared stream has one partition, [`DEFAULT_PARTITION`](crate::DEFAULT_PARTITION), whose head is made with the
//! declaration. What a stream has declared lies with its record: the settings as text, and the name of an immutable
//! blob, the *book*, which has the generations and their schemas. The record stays small whatever the schema.
//!
//! Every change of generation writes a new book and counts the *epoch* up, in the record and in the partition's head
//! in one transaction. An append carries the epoch under which its rows were checked, so that no writer, however
//! slow, lands rows of an old schema behind a seam.
//!
//! A declaration is never guessed: the record is remembered for a little while, and the head's epoch tells when it is
//! old.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidewheel_schema::{Column, Kind, RowError, Schema};
use tidewheel_store::{Blob, BlobName, Change, Commit, CommitError, Condition, Item, Write};

use crate::{
    DEFAULT_PARTITION, Engine, Error, PartitionId, StreamOptions, Uuid,
    head::Head,
    keys, limits,
    stream::{StreamRecord, labels, options_text},
};

/// What a stream declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// The schema of its rows; without one a row is any JSON object.
    pub schema: Option<Arc<Schema>>,
    /// Columns by which its tables are sorted.
    pub sort_by: Vec<String>,
    /// False: rows are relayed to whoever listens, and nothing is stored.
    pub log: bool,
    /// Frames that wait share a commit.
    pub group_commit: bool,
    /// Publishers may be exactly once.
    pub exactly_once: bool,
    /// Exactly-once publishers that the stream remembers.
    pub max_publishers: usize,
    /// Rows that one subscriber may ask to be replayed; `None` is no bound.
    pub max_replay: Option<u64>,
    /// Rows that may wait for one subscriber.
    pub max_backlog: u64,
    /// Bytes of one published frame.
    pub max_message_bytes: usize,
    /// How often its tables are published, µs; `None` leaves it to the server.
    pub flush_every_us: Option<i64>,
    /// Rows older than this may be deleted, µs; `None` keeps them.
    pub max_age_us: Option<i64>,
}

impl Default for Declaration {
    fn default() -> Self {
        Self {
            schema: None,
            sort_by: Vec::new(),
            log: true,
            group_commit: true,
            exactly_once: false,
            max_publishers: limits::PUBLISHERS,
            max_replay: Some(limits::REPLAY_ROWS),
            max_backlog: limits::BACKLOG_ROWS,
            max_message_bytes: limits::MESSAGE_BYTES,
            flush_every_us: None,
            max_age_us: None,
        }
    }
}

/// One generation of a declared stream's log. Offsets are the engine's, which count from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// `<stream>`, then `<stream>-v2`, and so on.
    pub name: String,
    /// The schema of its rows.
    pub schema: Option<Arc<Schema>>,
    /// Columns by which its table is sorted.
    pub sort_by: Vec<String>,
    /// Its first offset.
    pub start: u64,
    /// No row of it is older than this, µs; `None` if nothing came before it.
    pub start_us: Option<i64>,
    /// One past its last offset; `None` while it is the live one.
    pub end: Option<u64>,
    /// The time of its last row, µs; `None` while it is the live one, and if it has no rows.
    pub end_us: Option<i64>,
}

/// The end of a stream that takes no more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retirement {
    /// When, µs.
    pub at_us: i64,
    /// One past the last offset.
    pub end: u64,
}

/// A declared stream as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// The stream's id.
    pub stream: Uuid,
    /// The stream's name.
    pub name: String,
    /// Counts up with every change of the declaration, its generations, or its retirement.
    pub revision: u64,
    /// What it declares; the schema and the order are the live generation's.
    pub declaration: Declaration,
    /// Generations in order. The last is the live one, unless the stream is retired.
    pub generations: Vec<Generation>,
    /// Set if the stream takes no more rows.
    pub retired: Option<Retirement>,
    /// The lowest offset that can be read, as far as this process has seen.
    pub floor: u64,
    /// The epoch that the partition's head has.
    pub(crate) epoch: i64,
    /// How often the stream was revived: marks of publishers count in one life.
    pub(crate) life: i64,
    /// The id of the book's blob.
    pub(crate) book: String,
}

impl Declared {
    /// A stream as its first declaration makes it.
    pub fn first(stream: Uuid, name: &str, declaration: Declaration) -> Self {
        let generation = Generation {
            name: name.to_owned(),
            schema: declaration.schema.clone(),
            sort_by: declaration.sort_by.clone(),
            start: 0,
            start_us: None,
            end: None,
            end_us: None,
        };
        Self {
            stream,
            name: name.to_owned(),
            revision: 1,
            declaration,
            generations: vec![generation],
            retired: None,
            floor: 0,
            epoch: 1,
            life: 0,
            book: String::new(),
        }
    }

    /// The id of the one partition.
    pub fn partition(&self) -> PartitionId {
        PartitionId::of(&self.stream, DEFAULT_PARTITION)
    }

    /// The generation that rows go to, or went to last.
    pub fn live(&self) -> Option<&Generation> {
        self.generations.last()
    }

    /// The generation that an offset belongs to.
    pub fn generation_of(&self, offset: u64) -> Option<&Generation> {
        self.generations.iter().rev().find(|g| g.start <= offset)
    }

    /// A row's text as it is stored and served: columns in the declared order, each in its type's own spelling, what may
    /// be left out filled with nulls. Without a schema the row stays as it is, and need only be an object.
    ///
    /// # Errors
    /// [`RowError`], naming the column.
    pub fn canonical(&self, row: &Bytes) -> Result<Bytes, RowError> {
        match &self.declaration.schema {
            Some(schema) => schema.canonical(row),
            None => any_object(row),
        }
    }
}

fn any_object(row: &Bytes) -> Result<Bytes, RowError> {
    let whole = |reason: String| RowError { column: None, reason };
    match serde_json::from_slice::<serde_json::Value>(row) {
        Ok(serde_json::Value::Object(_)) => Ok(row.slice_ref(row.trim_ascii())),
        Ok(_) => Err(whole("a row is an object".to_owned())),
        Err(e) => Err(whole(format!("the row is not JSON: {e}"))),
    }
}

/// The settings as the record has them.
#[derive(Serialize, Deserialize)]
struct SettingsText {
    log: bool,
    group_commit: bool,
    exactly_once: bool,
    max_publishers: usize,
    max_replay: Option<u64>,
    max_backlog: u64,
    max_message_bytes: usize,
    flush_every_us: Option<i64>,
    max_age_us: Option<i64>,
}

/// The book as its blob has it.
#[derive(Serialize, Deserialize)]
struct BookText {
    epoch: i64,
    life: i64,
    retired: Option<Retirement>,
    generations: Vec<GenerationText>,
}

#[derive(Serialize, Deserialize)]
struct GenerationText {
    name: String,
    schema: Option<String>,
    sort_by: Vec<String>,
    start: u64,
    start_us: Option<i64>,
    end: Option<u64>,
    end_us: Option<i64>,
}

/// The blob owner of a stream's books.
pub(crate) fn owner(stream: &Uuid) -> String {
    format!("b{}", stream.simple())
}

/// What a record's item says of its declaration.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) book: String,
    settings: String,
}

impl Stored {
    pub(crate) fn decode(item: &Item) -> Option<Self> {
        Some(Self {
            revision: u64::try_from(item.int("revision")?).ok()?,
            book: item.str("book")?.to_owned(),
            settings: item.str("declared")?.to_owned(),
        })
    }
}

fn settings_text(declaration: &Declaration) -> Result<String, Error> {
    let settings = SettingsText {
        log: declaration.log,
        group_commit: declaration.group_commit,
        exactly_once: declaration.exactly_once,
        max_publishers: declaration.max_publishers,
        max_replay: declaration.max_replay,
        max_backlog: declaration.max_backlog,
        max_message_bytes: declaration.max_message_bytes,
        flush_every_us: declaration.flush_every_us,
        max_age_us: declaration.max_age_us,
    };
    serde_json::to_string(&settings).map_err(|e| Error::Invalid(format!("declaration: {e}")))
}

impl Declared {
    /// The book of this, for a commit that makes it real; its name goes into the record.
    pub(crate) fn into_book(mut self, engine: &Engine) -> Result<(Self, Blob), Error> {
        let generations = self.generations.iter().map(|g| GenerationText {
            name: g.name.clone(),
            schema: g.schema.as_ref().map(|s| s.to_text()),
            sort_by: g.sort_by.clone(),
            start: g.start,
            start_us: g.start_us,
            end: g.end,
            end_us: g.end_us,
        });
        let book = BookText {
            epoch: self.epoch,
            life: self.life,
            retired: self.retired,
            generations: generations.collect(),
        };
        let body =
            serde_json::to_vec(&book).map_err(|e| Error::Invalid(format!("declaration: {e}")))?;
        if body.len() > limits::BOOK_BYTES {
            return Err(Error::Limit {
                what: "bytes of all schemas that a stream has had",
                got: body.len(),
                limit: limits::BOOK_BYTES,
            });
        }
        let blob = Blob::fresh(owner(&self.stream), body, engine.env());
        self.book = blob.name.id.clone();
        Ok((self, blob))
    }

    /// The changes that put this into its stream's record.
    pub(crate) fn changes(&self) -> Result<Vec<Change>, Error> {
        Ok(vec![
            Change::Set("revision".into(), (self.revision as i64).into()),
            Change::Set("book".into(), self.book.as_str().into()),
            Change::Set("declared".into(), settings_text(&self.declaration)?.into()),
        ])
    }

    /// What must hold of the record for a new book of this: besides, the collector has not passed it.
    pub(crate) fn takes(&self, book: &Blob) -> Vec<Condition> {
        let mut conditions = self.unchanged();
        conditions.push(Condition::LessThan("mark".into(), book.name.made_us().unwrap_or(0)));
        conditions
    }

    /// What must hold of the record for a change of this.
    pub(crate) fn unchanged(&self) -> Vec<Condition> {
        vec![
            Condition::Equals("id".into(), self.stream.to_string().into()),
            Condition::Equals("revision".into(), (self.revision as i64).into()),
            Condition::Equals("book".into(), self.book.as_str().into()),
        ]
    }
}

impl Engine {
    /// What a record has declared. A book that is remembered is not read again.
    pub(crate) async fn load_declared(
        &self,
        stream: &Uuid,
        name: &str,
        stored: &Stored,
        known: Option<Arc<Declared>>,
    ) -> Result<Option<Declared>, Error> {
        let damaged =
            |what: String| Error::Corrupt(format!("declaration of stream `{name}`: {what}"));
        let settings: SettingsText = serde_json::from_str(&stored.settings)
            .map_err(|e| damaged(format!("its settings do not read: {e}")))?;
        let known = known.filter(|k| k.stream == *stream && k.book == stored.book);
        let (epoch, life, retired, generations) = match known {
            Some(k) => (k.epoch, k.life, k.retired, k.generations.clone()),
            None => {
                let blob = BlobName::new(owner(stream), stored.book.as_str());
                let Some(body) = self.blob_if_there(&blob).await? else {
                    // Superseded since the record was read.
                    return Ok(None);
                };
                let book: BookText = serde_json::from_slice(&body)
                    .map_err(|e| damaged(format!("its book does not read: {e}")))?;
                let mut generations = Vec::with_capacity(book.generations.len());
                for g in book.generations {
                    let schema = g.schema.as_deref().map(Schema::compile).transpose();
                    let schema = schema.map_err(|e| damaged(format!("schema: {e}")))?;
                    generations.push(Generation {
                        name: g.name,
                        schema: schema.map(Arc::new),
                        sort_by: g.sort_by,
                        start: g.start,
                        start_us: g.start_us,
                        end: g.end,
                        end_us: g.end_us,
                    });
                }
                (book.epoch, book.life, book.retired, generations)
            }
        };
        let live = generations.last().ok_or_else(|| damaged("it has no generation".into()))?;
        let declaration = Declaration {
            schema: live.schema.clone(),
            sort_by: live.sort_by.clone(),
            log: settings.log,
            group_commit: settings.group_commit,
            exactly_once: settings.exactly_once,
            max_publishers: settings.max_publishers,
            max_replay: settings.max_replay,
            max_backlog: settings.max_backlog,
            max_message_bytes: settings.max_message_bytes,
            flush_every_us: settings.flush_every_us,
            max_age_us: settings.max_age_us,
        };
        let mut declared = Declared {
            stream: *stream,
            name: name.to_owned(),
            revision: stored.revision,
            declaration,
            generations,
            retired,
            floor: 0,
            epoch,
            life,
            book: stored.book.clone(),
        };
        if declared.declaration.log {
            let partition = declared.partition();
            let head = match self.warm(&partition).head().filter(|h| h.stream_id == *stream) {
                Some(head) => Some(head),
                None => self.head(&partition).await?,
            };
            declared.floor = head.map_or(0, |h| h.floor);
        }
        Ok(Some(declared))
    }

    /// Declares a stream: makes it, or answers the one that is there if it has declared the same. Other settings are
    /// taken over; another schema, another order of its tables, or another choice of having a log is refused.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Limit`] name what cannot be declared; [`Error::Differs`] what differs;
    /// [`Error::Declare`] if the stream has records already.
    pub async fn declare(
        &self,
        name: &str,
        declaration: Declaration,
    ) -> Result<Arc<Declared>, Error> {
        Error::check_name("the stream's name", name)?;
        check(&declaration)?;
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let record = self.reread_stream(name).await?;
            let commit = match &record {
                None => self.first_declaration(name, None, &declaration)?,
                Some(record) => match &record.declared {
                    None => {
                        if !self.partitions_of(record, None, 1).await?.is_empty() {
                            return Err(Error::Declare {
                                stream: name.to_owned(),
                                detail: "it has records; a stream is declared before its first"
                                    .to_owned(),
                            });
                        }
                        self.first_declaration(name, Some(record), &declaration)?
                    }
                    Some(declared) => {
                        if let Some(detail) = differs(&declared.declaration, &declaration) {
                            return Err(Error::Differs { stream: name.to_owned(), detail });
                        }
                        // The schema may be written otherwise and still be the same.
                        let mut next = Declared::clone(declared);
                        next.declaration = Declaration {
                            schema: declared.declaration.schema.clone(),
                            ..declaration.clone()
                        };
                        if next.declaration == declared.declaration {
                            return Ok(Arc::clone(declared));
                        }
                        next.revision += 1;
                        let mut write = Write::update(keys::stream(name), next.changes()?);
                        write.conditions = declared.unchanged();
                        Commit::one(write)
                    }
                },
            };
            match self.commit(commit).await {
                // The next round reads what is there, and finds it as declared or tries again.
                Ok(_) | Err(CommitError::Conflict(_)) => {}
                Err(CommitError::Unknown(_)) => self.back_off(attempt).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    fn first_declaration(
        &self,
        name: &str,
        record: Option<&Arc<StreamRecord>>,
        declaration: &Declaration,
    ) -> Result<Commit, Error> {
        let (id, version) = match record {
            Some(record) => (record.info.id, record.version),
            None => (Uuid::random(self.env()), 0),
        };
        let declared = Declared::first(id, name, declaration.clone());
        let (declared, book) = declared.into_book(self)?;
        let mut changes = declared.changes()?;
        // Whoever makes a partition does so under the version that it knows.
        changes.push(Change::Set("version".into(), (version + 1).into()));
        changes.push(Change::Set("partitioned".into(), true.into()));
        changes.push(Change::Set("mark".into(), 0.into()));
        let mut writes = Vec::with_capacity(4);
        let mut groups = Default::default();
        match record {
            Some(record) => {
                groups = record.groups.clone();
                let write = Write::update(keys::stream(name), changes)
                    .when(Condition::Equals("id".into(), id.to_string().into()))
                    .when(Condition::Equals("version".into(), version.into()))
                    .when(Condition::Lacks("partitioned".into()))
                    .when(Condition::Lacks("book".into()));
                writes.push(write);
            }
            None => {
                let (namespace, task) = labels(name);
                changes.extend([
                    Change::Set("id".into(), id.to_string().into()),
                    Change::Set("namespace".into(), namespace.into()),
                    Change::Set("task".into(), task.into()),
                    Change::Set(
                        "options".into(),
                        options_text(&StreamOptions::configured())?.into(),
                    ),
                    Change::Set("created_us".into(), self.env().now_us().into()),
                ]);
                writes.push(Write::update(keys::stream(name), changes).when(Condition::Absent));
                let listed = vec![Change::Set("listed".into(), true.into())];
                writes.push(Write::update(keys::stream_entry(name), listed));
            }
        }
        if declaration.log {
            let partition = declared.partition();
            let mut head = Head::new(name, id, DEFAULT_PARTITION, version + 1);
            head.epoch = declared.epoch;
            // Every group is told of it, in its sleep: there is nothing to read yet.
            head.asleep = groups;
            writes.push(Write::put(keys::head(&partition), head.encode()).when(Condition::Absent));
            let entry = Item::new().with("name", DEFAULT_PARTITION);
            writes.push(Write::put(keys::partition_entry(&id, &partition), entry));
        }
        Ok(Commit::all(writes).with_blob(book))
    }

    /// What a stream has declared, as it is at this moment and not as this process remembers it.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn declared_now(&self, name: &str) -> Result<Option<Arc<Declared>>, Error> {
        Ok(self.reread_stream(name).await?.and_then(|record| record.declared.clone()))
    }

    /// What a stream has declared; `None` if there is no such stream, or it has declared nothing. Remembered for a
    /// little while, like the stream's record.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn declared(&self, name: &str) -> Result<Option<Arc<Declared>>, Error> {
        Ok(self.stream_record(name).await?.and_then(|r| r.declared.clone()))
    }
}

/// Checks a declaration by itself.
fn check(declaration: &Declaration) -> Result<(), Error> {
    let limit = |what, got, limit| {
        if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
    };
    check_order(declaration.schema.as_deref(), &declaration.sort_by)?;
    limit("publishers of a stream", declaration.max_publishers, limits::PUBLISHERS)?;
    limit("bytes of a published frame", declaration.max_message_bytes, limits::PAYLOAD_BYTES)?;
    let invalid = |text: &str| Err(Error::Invalid(text.to_owned()));
    if !declaration.log && declaration.exactly_once {
        return invalid("a stream without a log keeps no marks, so that it cannot be exactly once");
    }
    if declaration.max_backlog == 0 || declaration.max_message_bytes == 0 {
        return invalid("the backlog and the size of a message are 1 at least");
    }
    if [declaration.flush_every_us, declaration.max_age_us].iter().flatten().any(|&us| us <= 0) {
        return invalid("times of a declaration are above 0");
    }
    Ok(())
}

/// Checks the order of a table against its schema.
pub(crate) fn check_order(schema: Option<&Schema>, sort_by: &[String]) -> Result<(), Error> {
    for name in sort_by {
        let column = schema.and_then(|s| s.columns().iter().find(|c| c.name == *name));
        let Some(column) = column else {
            return Err(Error::Invalid(format!("sort_by: there is no column `{name}`")));
        };
        if matches!(column.kind, Kind::Struct(_) | Kind::Map(_) | Kind::List(_)) {
            return Err(Error::Invalid(format!("sort_by: column `{name}` is nested")));
        }
    }
    if (1..sort_by.len()).any(|i| sort_by[..i].contains(&sort_by[i])) {
        return Err(Error::Invalid("sort_by names a column twice".to_owned()));
    }
    Ok(())
}

/// What cannot be taken over of a declaration, if anything.
fn differs(is: &Declaration, wanted: &Declaration) -> Option<String> {
    let columns = |d: &Declaration| d.schema.as_ref().map(|s| s.columns().to_vec());
    match (columns(is), columns(wanted)) {
        (None, Some(_)) => return Some("it has declared no schema".to_owned()),
        (Some(_), None) => return Some("it has declared a schema".to_owned()),
        (Some(is), Some(wanted)) => {
            if let Some(detail) = columns_differ(&is, &wanted) {
                return Some(detail);
            }
        }
        (None, None) => {}
    }
    if is.sort_by != wanted.sort_by {
        return Some(format!("its tables are sorted by {:?}", is.sort_by));
    }
    match (is.log, wanted.log) {
        (true, false) => Some("it has a log".to_owned()),
        (false, true) => Some("it has no log".to_owned()),
        _ => None,
    }
}

/// The first difference between two lists of columns.
fn columns_differ(is: &[Column], wanted: &[Column]) -> Option<String> {
    for (at, column) in is.iter().enumerate() {
        let Some(other) = wanted.iter().find(|c| c.name == column.name) else {
            return Some(format!("column `{}` is missing", column.name));
        };
        if column.kind != other.kind {
            return Some(format!(
                "column `{}` is of type {}, not {}",
                column.name,
                column.kind.name(),
                other.kind.name()
            ));
        }
        if column.nullable != other.nullable {
            let word = if column.nullable { "may" } else { "may not" };
            return Some(format!("column `{}` {word} be null", column.name));
        }
        if wanted.get(at).is_none_or(|c| c.name != column.name) {
            return Some(format!("column `{}` stands in another place", column.name));
        }
    }
    wanted.get(is.len()).map(|c| format!("it has no column `{}`", c.name))
}
