//! What a declared stream is made of, as streamcast's readers open it.
//!
//! ```text
//! tables/<stream>/<stream>.metadata/version-hint.text                  names the version that counts
//! tables/<stream>/<stream>.metadata/00002-<32 hex>.metadata.json       a version: never written again
//! tables/<stream>/<stream>.metadata/00002-<32 hex>.manifest.parquet    what its sealed logs hold
//! tables/<stream>/<stream>.metadata.json, <stream>.manifest.parquet    plain copies
//! ```
//!
//! A version names the tables of the generations that are whole (`sealed_logs`) and the one that grows (`live_log`). A
//! generation that has ended is live here until its table has all of it, so a reader that goes from log to log misses
//! nothing. Offsets are the readers', which count from 1.
//!
//! Which version counts is an item beside the tables' heads: key `t#<stream id>` / `metadata`, attributes `commit`, `version`,
//! `file` (the version's name), `digest` (of what it says), `generations` (tables that there may be), and of retention
//! `trimmed` (the floor below which files are gone), `due` and `due_us` (the floor below which they go, and since when it is
//! said). It is written on the condition that nobody else has since; then the hint follows, and only moves forward.

use serde::Serialize;
use serde_json::value::RawValue;
use tidewheel_engine::Uuid;
use tidewheel_store::{Commit, CommitError, Condition, Consistency, Item, Key, Value, Write};

use crate::{
    Error,
    directory::{self, Directory, directory_name},
    files::Files,
    limits,
    log_statistics::manifest,
    logs::{Log, Logs, Target},
    tables::Tables,
};

/// The system's columns, as readers are told of them.
const SYSTEM_SCHEMA: &str = r#"{"type":"object","properties":{"streamcast_ts":{"type":"integer","format":"int64"}},"required":["streamcast_ts"],"additionalProperties":false}"#;

/// The item that says which version counts.
pub(crate) fn key(stream: &Uuid) -> Key {
    Key::new(format!("t#{stream}"), "metadata")
}

/// A version of the metadata.
#[derive(Serialize)]
struct Body<'a> {
    streamcast_metadata: u8,
    stream: &'a str,
    stream_id: String,
    sealed_logs: Vec<SealedLog<'a>>,
    live_log: LiveLog<'a>,
    manifest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Pending<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retirement: Option<Retirement<'a>>,
}

#[derive(Serialize)]
struct SealedLog<'a> {
    #[serde(flatten)]
    log: LiveLog<'a>,
    end_offset: u64,
    end_ts: Option<i64>,
}

#[derive(Serialize)]
struct LiveLog<'a> {
    name: String,
    published: &'a str,
    start_offset: u64,
    start_ts: Option<i64>,
    schema: Box<RawValue>,
    system_schema: Box<RawValue>,
    sort_by: &'a [String],
}

/// A floor below which files are about to go.
#[derive(Serialize)]
struct Pending<'a> {
    floor: u64,
    at: i64,
    dropped: Vec<Dropped<'a>>,
}

/// A log that retention has taken as a whole.
#[derive(Serialize)]
struct Dropped<'a> {
    name: String,
    published: &'a str,
}

#[derive(Serialize)]
struct Retirement<'a> {
    at: i64,
    end_offset: u64,
    sort_by: &'a [String],
    start_ts: Option<i64>,
    end_ts: Option<i64>,
}

/// How far the tables of a declared stream are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Generations that are whole.
    pub(crate) whole: usize,
    /// The offset below which everything is published.
    pub(crate) reached: u64,
}

/// The item that says which version counts.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    /// `None` if there is no item yet.
    commit: Option<String>,
    version: u64,
    file: String,
    digest: String,
    generations: u64,
    trimmed: u64,
    /// A floor and since when it is said, µs.
    due: Option<(u64, i64)>,
}

impl State {
    fn from_item(item: &Item) -> Self {
        let text = |name| item.str(name).unwrap_or_default().to_owned();
        let number = |name| item.int(name).and_then(|n| u64::try_from(n).ok());
        Self {
            commit: Some(text("commit")),
            version: number("version").unwrap_or(0),
            file: text("file"),
            digest: text("digest"),
            generations: number("generations").unwrap_or(0),
            trimmed: number("trimmed").unwrap_or(0),
            due: number("due").zip(item.int("due_us")),
        }
    }

    fn to_item(&self, commit: &str) -> Item {
        let mut item = Item::new()
            .with("commit", commit)
            .with("version", self.version as i64)
            .with("file", self.file.as_str())
            .with("digest", self.digest.as_str())
            .with("generations", self.generations as i64)
            .with("trimmed", self.trimmed as i64);
        if let Some((floor, us)) = self.due {
            item.set("due", floor as i64);
            item.set("due_us", us);
        }
        item
    }
}

fn raw(text: String) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(text).map_err(|e| Error::Format(e.to_string()))
}

fn described<'a>(log: &'a Log, published: &'a str, floor: u64) -> Result<LiveLog<'a>, Error> {
    Ok(LiveLog {
        name: directory_name(&log.name),
        published,
        start_offset: log.start.max(floor) + 1,
        start_ts: log.start_us,
        schema: raw(log.schema.to_text())?,
        system_schema: raw(SYSTEM_SCHEMA.to_owned())?,
        sort_by: &log.sort_by,
    })
}

/// The metadata of a stream, without the name of its manifest.
fn body<'a>(
    id: &Uuid,
    stream: &'a str,
    published: &'a str,
    logs: &'a Logs,
    progress: Progress,
    due: Option<(u64, i64)>,
) -> Result<Body<'a>, Error> {
    let live = progress.whole.min(logs.logs.len().saturating_sub(1));
    let Some(live_log) = logs.logs.get(live) else {
        return Err(Error::Corrupt(format!("stream `{stream}` has no generation")));
    };
    let kept = logs.logs.iter().take(live).filter_map(|log| {
        let end = log.end.filter(|end| *end > logs.floor)?;
        Some((log, end))
    });
    let sealed = kept.map(|(log, end)| {
        let (end_offset, end_ts) = (end + 1, log.end_us);
        Ok(SealedLog { log: described(log, published, logs.floor)?, end_offset, end_ts })
    });
    let pending = due.map(|(floor, at)| {
        let gone = logs.logs.iter().take(live).filter(|l| l.end.is_some_and(|end| end <= floor));
        let dropped = gone.map(|log| Dropped { name: directory_name(&log.name), published });
        Pending { floor: floor + 1, at, dropped: dropped.collect() }
    });
    // Said once everything is there: until then it is a stream that lags.
    let last = live + 1 == logs.logs.len();
    let retired = logs.retired.filter(|(_, end)| last && progress.reached >= *end);
    let retirement = retired.map(|(at, end)| Retirement {
        at,
        end_offset: end + 1,
        sort_by: &live_log.sort_by,
        start_ts: live_log.start_us,
        end_ts: Some(at),
    });
    Ok(Body {
        streamcast_metadata: if retirement.is_some() { 3 } else { 2 },
        stream,
        stream_id: id.to_string(),
        sealed_logs: sealed.collect::<Result<_, Error>>()?,
        live_log: described(live_log, published, logs.floor)?,
        manifest: None,
        retention: logs.max_age_us,
        pending,
        retirement,
    })
}

impl Tables {
    /// Says what a declared stream is made of, unless that has been said.
    pub(crate) async fn publish_metadata(
        &self,
        id: &Uuid,
        stream: &str,
        targets: &[Target],
        logs: &Logs,
        progress: Progress,
    ) -> Result<(), Error> {
        let inner = &*self.inner;
        let name = directory_name(stream);
        let directory = Directory::new(&inner.root, &inner.root_uri, &name);
        let files = Files::new(inner.objects.clone(), directory);
        let lock = self.sealing(id);
        let _publishing = lock.lock().await;
        let state = self.state(id).await?;
        let due = match state.due {
            None if logs.floor > state.trimmed => Some((logs.floor, inner.env.now_us())),
            due => due,
        };
        let mut body = body(id, stream, files.directory.uri(), logs, progress, due)?;
        let text =
            |body: &Body<'_>| serde_json::to_vec(body).map_err(|e| Error::Format(e.to_string()));
        let digest = Uuid::derived(&[b"metadata", &text(&body)?]).to_string();
        if state.digest == digest {
            return self.follow(id, &files, &name, &state.file).await;
        }
        // A stream that was deleted and made again goes on where the old one's hint is: a hint never goes back.
        let hint = format!("{name}.metadata/version-hint.text");
        let last = match state.commit {
            Some(_) => state.version,
            None => files.version_at(&hint).await?,
        };
        let version = last + 1;
        let stem = format!("{version:05}-{}", directory::fresh_id(&inner.env).simple());
        if !body.sealed_logs.is_empty() {
            let file = format!("{stem}.manifest.parquet");
            let parquet = manifest(self, targets, logs, body.sealed_logs.len(), progress).await?;
            files.write(&format!("{name}.metadata/{file}"), parquet).await?;
            body.manifest = Some(file);
        }
        let file = format!("{stem}.metadata.json");
        files.write(&format!("{name}.metadata/{file}"), text(&body)?.into()).await?;
        let generations = targets.len() as u64;
        let after = State { version, file: file.clone(), digest, generations, due, ..state };
        // Another said it, or this one did and does not know: the next round sees which.
        if !self.set_state(id, &after).await? {
            return Ok(());
        }
        self.follow(id, &files, &name, &file).await?;
        self.prune(&files, &name, version).await
    }

    async fn state(&self, id: &Uuid) -> Result<State, Error> {
        let item = self.inner.store.get(&key(id), Consistency::Strong).await?;
        Ok(item.as_ref().map(State::from_item).unwrap_or_default())
    }

    /// Writes the item, on the condition that it is as it was read. False if it is not.
    async fn set_state(&self, id: &Uuid, after: &State) -> Result<bool, Error> {
        let condition = match &after.commit {
            None => Condition::Absent,
            Some(id) => Condition::Equals("commit".to_owned(), Value::Str(id.clone())),
        };
        let write = Write::put(key(id), after.to_item(&self.inner.env.token())).when(condition);
        match self.inner.store.commit(Commit::one(write)).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The floor below which files may go: it was said long enough ago.
    pub(crate) async fn ripe_floor(&self, id: &Uuid) -> Result<Option<u64>, Error> {
        let over_us = self.inner.env.now_us() - self.inner.settings.pinned_us;
        Ok(self.state(id).await?.due.filter(|(_, us)| *us <= over_us).map(|(floor, _)| floor))
    }

    /// Writes down that the files below a floor are gone.
    pub(crate) async fn trimmed(&self, id: &Uuid, floor: u64) -> Result<(), Error> {
        let state = self.state(id).await?;
        if state.due.is_none_or(|(due, _)| due > floor) {
            return Ok(());
        }
        // What the metadata says changes with the next round.
        let after = State { trimmed: floor, due: None, ..state };
        self.set_state(id, &after).await.map(drop)
    }

    /// How many generations of a stream there may be tables of.
    pub(crate) async fn generations(&self, id: &Uuid) -> Result<u64, Error> {
        Ok(self.state(id).await?.generations)
    }

    /// Lets the hint and the plain copies follow the version that counts, unless this process has seen them there.
    async fn follow(&self, id: &Uuid, files: &Files, name: &str, file: &str) -> Result<(), Error> {
        let said = Uuid::derived(&[b"metadata of", id.as_bytes()]);
        if self.inner.hinted.lock().get(&said).is_some_and(|seen| seen == file) {
            return Ok(());
        }
        files.advance(&format!("{name}.metadata/version-hint.text"), file).await?;
        let body = files.read(&format!("{name}.metadata/{file}")).await?;
        let sealed = file.replace(".metadata.json", ".manifest.parquet");
        match files.read(&format!("{name}.metadata/{sealed}")).await {
            Ok(parquet) => files.write(&format!("{name}.manifest.parquet"), parquet).await?,
            Err(e) if e.is_missing() => {}
            Err(e) => return Err(e),
        }
        files.write(&format!("{name}.metadata.json"), body).await?;
        self.remember_hint(said, file);
        Ok(())
    }

    /// Deletes the versions that are many versions old.
    async fn prune(&self, files: &Files, name: &str, version: u64) -> Result<(), Error> {
        let folder = format!("{name}.metadata");
        let old = files.below(&folder).await?.into_iter().filter(|file| {
            let of = file.rsplit('/').next().and_then(directory::stem_version);
            of.is_some_and(|of| of + limits::STREAM_VERSIONS <= version)
        });
        files.delete(&old.collect::<Vec<_>>()).await.map(drop)
    }
}
