//! The table's head: the one item that says which metadata file counts and how far the table reaches.
//!
//! Key `t#<table id>` / `table`. The table's id is the stream's; of a declared stream each generation has one of its own.
//! Attributes:
//!
//! | attribute | type | meaning |
//! |---|---|---|
//! | `commit` | text | id of the write that left the head as it is; every write is conditional on the one before |
//! | `directory` | text | name of the table's directory |
//! | `version` | number | version of the metadata; 0 before the first seal |
//! | `stem` | text | name of the metadata file, without suffix; absent before the first seal |
//! | `uuid` | text | the table's id |
//! | `snapshot` | number | id of the current snapshot |
//! | `rows` | number | rows in the table |
//! | `sealed_us` | number | when the snapshot was committed, µs |
//! | `compacted` | number | version up to which small files were looked for; absent before the first time |
//! | `mark_us` | number | files that were made before, µs, and were not named then, are gone: no commit may name one |
//! | `positions`, `position_blobs` | bytes, list | see [`crate::positions`] |
//!
//! Blobs belong to the owner `t-<table id, simple>`.

use tidewheel_engine::Uuid;
use tidewheel_store::{
    Blob, Commit, CommitError, Condition, Consistency, Env, Item, Key, Store, Value, Write,
};

use crate::{Error, limits, positions::Positions};

/// The head as it is, or as it shall be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head {
    /// `None` if the item does not exist.
    pub(crate) commit: Option<String>,
    pub(crate) directory: String,
    pub(crate) version: u64,
    pub(crate) stem: Option<String>,
    pub(crate) uuid: Uuid,
    pub(crate) snapshot: i64,
    pub(crate) rows: u64,
    pub(crate) sealed_us: i64,
    pub(crate) compacted: u64,
    pub(crate) mark_us: i64,
    pub(crate) positions: Positions,
}

pub(crate) fn key(stream: &Uuid) -> Key {
    Key::new(format!("t#{stream}"), "table")
}

pub(crate) fn owner(stream: &Uuid) -> String {
    format!("t-{}", stream.simple())
}

impl Head {
    /// The head of a stream that has none yet.
    fn fresh(directory: &str, env: &Env) -> Self {
        Self {
            commit: None,
            directory: directory.to_owned(),
            version: 0,
            stem: None,
            uuid: Uuid::random(env),
            snapshot: -1,
            rows: 0,
            sealed_us: 0,
            compacted: 0,
            mark_us: 0,
            positions: Positions::default(),
        }
    }

    pub(crate) async fn load(
        store: &dyn Store,
        stream: &Uuid,
        directory: &str,
        env: &Env,
    ) -> Result<Self, Error> {
        match store.get(&key(stream), Consistency::Strong).await? {
            Some(item) => Self::from_item(&item),
            None => Ok(Self::fresh(directory, env)),
        }
    }

    pub(crate) fn from_item(item: &Item) -> Result<Self, Error> {
        let damaged = |what: &str| Error::Corrupt(format!("the table's head has no `{what}`"));
        let text = |name| item.str(name).map(str::to_owned);
        Ok(Self {
            commit: Some(text("commit").ok_or_else(|| damaged("commit"))?),
            directory: text("directory").ok_or_else(|| damaged("directory"))?,
            version: item.int("version").unwrap_or(0).max(0) as u64,
            stem: text("stem"),
            uuid: item.str("uuid").and_then(Uuid::parse).ok_or_else(|| damaged("uuid"))?,
            snapshot: item.int("snapshot").unwrap_or(-1),
            rows: item.int("rows").unwrap_or(0).max(0) as u64,
            sealed_us: item.int("sealed_us").unwrap_or(0),
            compacted: item.int("compacted").unwrap_or(0).max(0) as u64,
            mark_us: item.int("mark_us").unwrap_or(0),
            positions: Positions::from_item(item)?,
        })
    }

    fn to_item(&self, commit: &str) -> Item {
        let mut item = Item::new()
            .with("commit", commit)
            .with("directory", self.directory.as_str())
            .with("version", self.version as i64)
            .with("uuid", self.uuid.to_string())
            .with("snapshot", self.snapshot)
            .with("rows", self.rows as i64)
            .with("sealed_us", self.sealed_us);
        if self.compacted > 0 {
            item.set("compacted", self.compacted as i64);
        }
        if self.mark_us > 0 {
            item.set("mark_us", self.mark_us);
        }
        if let Some(stem) = &self.stem {
            item.set("stem", stem.as_str());
        }
        self.positions.put_into(&mut item);
        item
    }
}

/// What became of a write to the head.
pub(crate) enum Flipped {
    /// It counts.
    Done,
    /// Another write was first. This is the head now, and it may be that ours came in between: the caller knows where
    /// to look for its commit's id.
    Other(Option<Item>),
}

/// Writes the head, on the condition that nobody has written it since it was read.
///
/// A lost reply is resolved by writing again: the condition makes that harmless, and the refusal shows whose commit
/// is there.
pub(crate) async fn flip(
    store: &dyn Store,
    env: &Env,
    stream: (&Uuid, &str),
    before: &Option<String>,
    commit_id: &str,
    head: &Head,
    blob: Option<Blob>,
) -> Result<Flipped, Error> {
    let condition = match before {
        None => Condition::Absent,
        Some(id) => Condition::Equals("commit".to_owned(), Value::Str(id.clone())),
    };
    let write = Write::put(key(stream.0), head.to_item(commit_id)).when(condition);
    let commit = Commit { blobs: blob.into_iter().collect(), writes: vec![write] };
    let mut unknown = None;
    let mut busy = None;
    for attempt in 0..limits::RESOLVE_ATTEMPTS {
        if attempt > 0 {
            env.sleep(std::time::Duration::from_millis(10 << attempt)).await;
        }
        match store.commit(commit.clone()).await {
            Ok(_) => return Ok(Flipped::Done),
            Err(CommitError::Conflict(failed)) => {
                let current = failed.into_iter().next().and_then(|f| f.current);
                let ours = current.as_ref().and_then(|i| i.str("commit")) == Some(commit_id);
                return Ok(if ours { Flipped::Done } else { Flipped::Other(current) });
            }
            Err(CommitError::Unknown(detail)) => unknown = Some(detail),
            Err(e @ (CommitError::Contended | CommitError::Throttled)) => busy = Some(e),
            Err(e) if unknown.is_none() => return Err(e.into()),
            Err(_) => {}
        }
    }
    match (unknown, busy) {
        (Some(detail), _) => Err(Error::Unknown { stream: stream.1.to_owned(), detail }),
        (None, Some(e)) => Err(e.into()),
        (None, None) => Err(Error::Busy),
    }
}
