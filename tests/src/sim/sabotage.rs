//! Planted bugs: what the engine would do if it forgot something, made at the store's boundary.
//!
//! A sabotaged store changes the commits that pass through it: it forgets conditions, tears a transaction apart, drops
//! a write. The engine's code is the real one. Each bug must be caught by a checker within a few seeds; one that is
//! not means that the simulation looks away.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tidewheel_store::{
    Action, BlobName, Change, Commit, CommitError, Committed, Condition, Consistency, Failed, Item,
    Key, Page, Query, ReadError, Store, Write,
};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Writes to cursors check neither version nor lease: a zombie's commit counts.
    DropLeaseCheck,
    /// A transaction that moves a cursor moves it first and alone, and does the rest afterwards.
    AckBeforeCommit,
    /// Appends check neither the id set nor its generation nor the tail.
    SkipIdCheck,
    /// A table's positions are moved apart from its snapshot, and once in a while not at all.
    SealTwice,
    /// A table's head is written without a look at what it was.
    SealBlindly,
    /// Appends do not look who sleeps.
    IgnoreSleepers,
    /// Ready entries are not written.
    ForgetReady,
    /// A group goes to sleep without a look at the tail.
    SleepBlindly,
    /// A lost reply is taken for a failure.
    UnknownIsFailure,
    /// A late segment may be appended although the collector has passed it.
    ForgetMark,
    /// State is written without a look at what it was.
    LoseState,
    /// Rolling the head's list does not tell writers that the id set is another.
    RollKeepsGeneration,
    /// The first page is lost when the list is rolled.
    LosePage,
    /// A given-up message is not filed.
    DropDeadLetter,
    /// Appends are answered before their blob is there, and one in thirty never comes.
    BlobAfterHead,
    /// The floor may move back, and rises over what nobody has consumed.
    FloorRunsAhead,
    /// Rows of numbered publishers are appended without a look at the mark.
    SkipPublisherMark,
    /// Appends do not look which schema is the live one.
    SkipEpoch,
}

impl Sabotage {
    /// Every planted bug.
    pub const ALL: [Sabotage; 18] = [
        Sabotage::DropLeaseCheck,
        Sabotage::AckBeforeCommit,
        Sabotage::SkipIdCheck,
        Sabotage::SealTwice,
        Sabotage::SealBlindly,
        Sabotage::IgnoreSleepers,
        Sabotage::ForgetReady,
        Sabotage::SleepBlindly,
        Sabotage::UnknownIsFailure,
        Sabotage::ForgetMark,
        Sabotage::LoseState,
        Sabotage::RollKeepsGeneration,
        Sabotage::LosePage,
        Sabotage::DropDeadLetter,
        Sabotage::BlobAfterHead,
        Sabotage::FloorRunsAhead,
        Sabotage::SkipPublisherMark,
        Sabotage::SkipEpoch,
    ];

    /// Its name on a command line.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// The planted bug of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name().eq_ignore_ascii_case(name))
    }
}

fn is_cursor(write: &Write) -> bool {
    write.key.pk.starts_with("c#")
}

fn is_head(write: &Write) -> bool {
    write.key.pk.starts_with("p#") && write.key.sk == "head"
}

fn is_append(write: &Write) -> bool {
    let adds = |c: &Change| matches!(c, Change::Add(name, _) if name == "tail");
    is_head(write) && matches!(&write.action, Action::Update(changes) if changes.iter().any(adds))
}

/// The attribute that a condition looks at.
fn attribute(condition: &Condition) -> &str {
    match condition {
        Condition::Absent | Condition::Exists => "",
        Condition::Lacks(a)
        | Condition::Has(a)
        | Condition::Equals(a, _)
        | Condition::Differs(a, _)
        | Condition::LessThan(a, _)
        | Condition::MoreThan(a, _)
        | Condition::ShorterThan(a, _)
        | Condition::SetLacks(a, _)
        | Condition::SetHas(a, _) => a,
    }
}

/// Forgets the conditions of a write that look at one of these attributes.
fn forget(write: &mut Write, attributes: &[&str]) {
    write.conditions.retain(|c| !attributes.contains(&attribute(c)));
}

/// A store with a planted bug. It stands between the faults and the truth.
pub(crate) struct Sabotaged {
    inner: Arc<dyn Store>,
    bug: Option<Sabotage>,
}

impl Sabotaged {
    pub(crate) fn new(inner: Arc<dyn Store>, bug: Option<Sabotage>) -> Self {
        Self { inner, bug }
    }

    fn change(&self, commit: &mut Commit) {
        let Some(bug) = self.bug else { return };
        match bug {
            Sabotage::DropLeaseCheck => {
                for write in commit.writes.iter_mut().filter(|w| is_cursor(w)) {
                    forget(write, &["version", "lease", "epoch"]);
                }
            }
            Sabotage::SkipIdCheck => {
                for write in commit.writes.iter_mut().filter(|w| is_append(w)) {
                    forget(write, &["ids", "gen", "tail"]);
                }
            }
            Sabotage::SealTwice => {
                for write in commit.writes.iter_mut().filter(|w| w.key.pk.starts_with("t#")) {
                    if let Action::Put(head) = &mut write.action
                        && head.str("commit").is_some_and(|id| id.ends_with(['0', '1']))
                    {
                        head.set("positions", Bytes::new());
                    }
                }
            }
            Sabotage::SealBlindly => {
                for write in commit.writes.iter_mut().filter(|w| w.key.pk.starts_with("t#")) {
                    write.conditions.clear();
                }
            }
            Sabotage::IgnoreSleepers => {
                for write in commit.writes.iter_mut().filter(|w| is_head(w)) {
                    forget(write, &["asleep"]);
                }
            }
            Sabotage::ForgetReady => commit
                .writes
                .retain(|w| !(w.key.pk.starts_with("r#") && matches!(w.action, Action::Put(_)))),
            Sabotage::SleepBlindly => {
                let sleeps = commit
                    .writes
                    .iter()
                    .any(|w| matches!(w.action, Action::Delete) && w.key.pk.starts_with("r#"));
                if sleeps {
                    for write in commit.writes.iter_mut().filter(|w| is_head(w)) {
                        forget(write, &["tail"]);
                    }
                }
            }
            Sabotage::ForgetMark => {
                for write in commit.writes.iter_mut().filter(|w| is_append(w)) {
                    forget(write, &["mark"]);
                }
            }
            Sabotage::LoseState => {
                for write in commit.writes.iter_mut().filter(|w| w.key.pk.starts_with("qs#")) {
                    write.conditions.clear();
                }
                // The lease must not save it.
                for write in commit.writes.iter_mut().filter(|w| is_cursor(w)) {
                    if matches!(write.action, Action::Check) {
                        write.conditions.clear();
                    }
                }
            }
            Sabotage::RollKeepsGeneration => {
                for write in commit.writes.iter_mut().filter(|w| is_head(w) && !is_append(w)) {
                    if let Action::Update(changes) = &mut write.action {
                        let rolls = changes.iter().any(|c| c.attribute() == "base");
                        changes.retain(|c| !(rolls && c.attribute() == "gen"));
                    }
                }
            }
            Sabotage::LosePage => {
                commit.writes.retain(|w| w.key.sk != "page#0000000000000000");
            }
            Sabotage::DropDeadLetter => commit.writes.retain(|w| !w.key.pk.starts_with("d#")),
            Sabotage::BlobAfterHead => {
                let chosen = commit.writes.iter().any(is_append)
                    && commit.blobs.iter().any(|b| b.name.id.ends_with('7'));
                if chosen {
                    commit.blobs.clear();
                }
            }
            Sabotage::FloorRunsAhead => {
                for write in commit.writes.iter_mut().filter(|w| is_head(w)) {
                    if let Action::Update(changes) = &mut write.action {
                        for change in changes {
                            if let Change::Set(name, value) = change
                                && name == "floor"
                                && let tidewheel_store::Value::Int(floor) = value
                            {
                                *floor += 1;
                            }
                        }
                    }
                }
            }
            Sabotage::SkipPublisherMark => {
                for write in commit.writes.iter_mut().filter(|w| is_append(w)) {
                    let marked = |c: &Condition| attribute(c).starts_with("m.");
                    if write.conditions.iter().any(marked) {
                        write.conditions.retain(|c| !marked(c));
                        forget(write, &["tail"]);
                    }
                }
            }
            Sabotage::SkipEpoch => {
                for write in commit.writes.iter_mut().filter(|w| is_append(w)) {
                    forget(write, &["epoch", "tail"]);
                }
            }
            Sabotage::AckBeforeCommit | Sabotage::UnknownIsFailure => {}
        }
    }

    /// The parts of a commit, in the order in which they are made.
    fn split(&self, mut commit: Commit) -> Vec<Commit> {
        self.change(&mut commit);
        let acks = |w: &Write| is_cursor(w) && matches!(w.action, Action::Put(_));
        if self.bug == Some(Sabotage::AckBeforeCommit)
            && commit.writes.len() > 1
            && commit.writes.iter().any(acks)
        {
            let (first, rest): (Vec<_>, Vec<_>) = commit.writes.into_iter().partition(acks);
            return vec![Commit::all(first), Commit { blobs: commit.blobs, writes: rest }];
        }
        vec![commit]
    }
}

/// A refusal of a part of a commit, in terms of the whole.
fn in_terms_of(whole: &[Key], part: &[Key], error: CommitError) -> CommitError {
    let CommitError::Conflict(failed) = error else { return error };
    let place = |mut f: Failed| {
        let key = part.get(f.write)?;
        f.write = whole.iter().position(|k| k == key)?;
        Some(f)
    };
    CommitError::Conflict(failed.into_iter().filter_map(place).collect())
}

#[async_trait]
impl Store for Sabotaged {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.inner.get(key, consistency).await
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.inner.batch_get(keys).await
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.inner.query(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        if self.bug.is_none() {
            return self.inner.commit(commit).await;
        }
        let keys: Vec<Key> = commit.writes.iter().map(|w| w.key.clone()).collect();
        let mut committed = Committed::default();
        for part in self.split(commit) {
            if part.writes.is_empty() {
                continue;
            }
            let own: Vec<Key> = part.writes.iter().map(|w| w.key.clone()).collect();
            committed = self.inner.commit(part).await.map_err(|e| in_terms_of(&keys, &own, e))?;
            if own.len() < keys.len() {
                // A transaction brings no image, also when a part of it is left out.
                committed.image = None;
            }
        }
        Ok(committed)
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.inner.blob(name, range).await
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.inner.list_blobs(owner, after, limit).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.inner.delete_blobs(names).await
    }
}

/// A process that takes a lost reply for a failure. It stands between the engine and the faults.
pub(crate) struct Gullible(pub(crate) Arc<dyn Store>);

#[async_trait]
impl Store for Gullible {
    async fn get(&self, key: &Key, consistency: Consistency) -> Result<Option<Item>, ReadError> {
        self.0.get(key, consistency).await
    }

    async fn batch_get(&self, keys: &[Key]) -> Result<Vec<Option<Item>>, ReadError> {
        self.0.batch_get(keys).await
    }

    async fn query(&self, query: &Query) -> Result<Page, ReadError> {
        self.0.query(query).await
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        match self.0.commit(commit).await {
            Err(CommitError::Unknown(why)) => Err(CommitError::Unavailable(why)),
            answer => answer,
        }
    }

    async fn blob(
        &self,
        name: &BlobName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Bytes>, ReadError> {
        self.0.blob(name, range).await
    }

    async fn list_blobs(
        &self,
        owner: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlobName>, ReadError> {
        self.0.list_blobs(owner, after, limit).await
    }

    async fn delete_blobs(&self, names: &[BlobName]) -> Result<(), CommitError> {
        self.0.delete_blobs(names).await
    }
}
