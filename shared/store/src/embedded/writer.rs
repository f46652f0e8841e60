//! The one writer: a thread that takes every commit which waits, decides each against the items as the ones before
//! it leave them, and makes all that succeed durable in one transaction with one fsync. Only then does any caller
//! get an answer, a refused one included: its conflict may name what the others just wrote.
//!
//! Callers wait in a bounded queue, bounded in bytes too. A commit whose caller has gone is carried out like any
//! other. If the thread dies, waiting callers are told that the outcome is unknown, later ones that the store is
//! unavailable; nobody hangs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{
    database::{self, Tally},
    heads::{Heads, Known},
};
use crate::{
    Blob, BlobName, Commit, CommitError, Committed, Item, Key, blob,
    decide::{decide, is_transaction},
    write::Write,
};

/// Commits in one transaction at most, and bytes after which no more are taken in.
const BATCH_COMMITS: usize = 1024;
const BATCH_BYTES: usize = 32 << 20;

/// How often the writer lets others run before it begins with fewer commits than it had last time.
const PATIENCE: usize = 20;

/// What waits for the writer.
pub(super) struct Request {
    pub(super) work: Work,
    pub(super) bytes: usize,
    pub(super) answer: oneshot::Sender<Result<Committed, CommitError>>,
    /// The request's share of the queue's bytes, given back when it is done.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

pub(super) enum Work {
    Commit(Commit),
    DeleteBlobs(Vec<BlobName>),
    /// Stands for a mistake in this file.
    #[cfg(test)]
    Panic,
}

pub(super) struct Writer {
    db: Connection,
    /// What the items come to, as the last transaction left them.
    tally: Tally,
    heads: Arc<Heads>,
    queue: mpsc::Receiver<Request>,
    /// Set when the disk has failed in a way that leaves the last batch in doubt: nothing is written any more.
    broken: Option<String>,
}

/// Closes the cache when the thread ends, however it ends.
impl Drop for Writer {
    fn drop(&mut self) {
        self.heads.close();
    }
}

/// What a batch would change, on top of what is durable.
#[derive(Default)]
struct Overlay {
    items: HashMap<Key, Known>,
    dirty: HashSet<Key>,
    blobs: Vec<Blob>,
    deletes: Vec<BlobName>,
}

impl Writer {
    pub(super) fn new(
        db: Connection,
        tally: Tally,
        heads: Arc<Heads>,
        queue: mpsc::Receiver<Request>,
    ) -> Self {
        Self { db, tally, heads, queue, broken: None }
    }

    /// Works until every sender is gone and the queue is empty.
    pub(super) fn run(mut self) {
        let mut last = 0;
        while let Some(first) = self.queue.blocking_recv() {
            let mut bytes = first.bytes;
            let mut batch = vec![first];
            let mut patience = PATIENCE;
            while batch.len() < BATCH_COMMITS && bytes < BATCH_BYTES {
                match self.queue.try_recv() {
                    Ok(next) => {
                        bytes += next.bytes;
                        batch.push(next);
                    }
                    // Those who have just been answered are about to come back: a moment's patience spares
                    // them, and the disk, a sync of their own.
                    Err(_) if batch.len() < last && patience > 0 => {
                        patience -= 1;
                        std::thread::yield_now();
                    }
                    Err(_) => break,
                }
            }
            last = batch.len();
            self.execute(batch);
        }
        if let Err(error) = self.db.pragma_update(None, "wal_checkpoint", "TRUNCATE") {
            tracing::warn!(%error, "the log was not written back; the next opening does it");
        }
    }

    fn execute(&mut self, batch: Vec<Request>) {
        if let Some(why) = &self.broken {
            let why = CommitError::Unavailable(why.clone());
            return batch.into_iter().for_each(|r| answer(r, Err(why.clone())));
        }
        let mut overlay = Overlay::default();
        let mut answers = Vec::with_capacity(batch.len());
        for request in &batch {
            answers.push(match &request.work {
                Work::Commit(commit) => self.decide(commit, &mut overlay),
                Work::DeleteBlobs(names) => {
                    overlay.blobs.retain(|b| !names.contains(&b.name));
                    overlay.deletes.extend_from_slice(names);
                    Ok(Committed::default())
                }
                #[cfg(test)]
                #[allow(clippy::panic)]
                Work::Panic => panic!("planted"),
            });
        }
        match self.write(overlay) {
            Ok(()) => batch.into_iter().zip(answers).for_each(|(r, a)| answer(r, a)),
            // One of them may be what the disk has no room for.
            Err(CommitError::Unavailable(_)) if batch.len() > 1 => {
                batch.into_iter().for_each(|request| self.execute(vec![request]));
            }
            Err(e) => batch.into_iter().for_each(|r| answer(r, Err(e.clone()))),
        }
    }

    fn decide(&self, commit: &Commit, overlay: &mut Overlay) -> Result<Committed, CommitError> {
        for write in &commit.writes {
            if !overlay.items.contains_key(&write.key) {
                let known = self.load(&write.key)?;
                overlay.items.insert(write.key.clone(), known);
            }
        }
        let current: Vec<Option<&Item>> = commit
            .writes
            .iter()
            .map(|w| overlay.items.get(&w.key).and_then(|k| k.as_deref()))
            .collect();
        let decided = decide(&commit.writes, &current)?;
        let image = match decided.after.first() {
            Some(image) if !is_transaction(&commit.writes) => image.clone(),
            _ => None,
        };
        for (write, after) in commit.writes.iter().zip(decided.after) {
            if changes(write) {
                overlay.items.insert(write.key.clone(), after.map(Arc::new));
                overlay.dirty.insert(write.key.clone());
            }
        }
        overlay.deletes.retain(|name| commit.blobs.iter().all(|b| b.name != *name));
        overlay.blobs.extend(commit.blobs.iter().cloned());
        Ok(Committed { image })
    }

    fn load(&self, key: &Key) -> Result<Known, CommitError> {
        if let Some(known) = self.heads.get(key) {
            return Ok(known);
        }
        match database::item(&self.db, key) {
            Ok(item) => Ok(item.map(Arc::new)),
            Err(e) => Err(CommitError::Unavailable(e.to_string())),
        }
    }

    /// Makes the overlay durable, then visible.
    fn write(&mut self, overlay: Overlay) -> Result<(), CommitError> {
        if overlay.dirty.is_empty() && overlay.blobs.is_empty() && overlay.deletes.is_empty() {
            self.heads.land(overlay.items.into_iter());
            return Ok(());
        }
        self.heads.take_off(overlay.dirty.iter().cloned());
        match self.transact(&overlay) {
            Ok(()) => {
                self.heads.land(overlay.items.into_iter());
                Ok(())
            }
            Err((error, in_doubt)) => {
                self.heads.land(std::iter::empty());
                if in_doubt {
                    let why =
                        format!("the disk failed and may have lost what it was given: {error}");
                    tracing::error!(%error, "a commit failed on its way to the disk; no more are taken");
                    self.broken = Some(why);
                    self.heads.close();
                    return Err(CommitError::Unknown(error.to_string()));
                }
                tracing::warn!(%error, "a batch was refused");
                Err(CommitError::Unavailable(error.to_string()))
            }
        }
    }

    /// One transaction. An error comes with true if it may be durable all the same.
    fn transact(&mut self, overlay: &Overlay) -> Result<(), (rusqlite::Error, bool)> {
        let definite = |e| (e, false);
        let mut tally = self.tally;
        let transaction =
            self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(definite)?;
        for blob in &overlay.blobs {
            database::set_blob(&transaction, &blob.name, &blob::seal(&blob.name, &blob.body))
                .map_err(definite)?;
        }
        for name in &overlay.deletes {
            database::delete_blob(&transaction, name).map_err(definite)?;
        }
        for key in &overlay.dirty {
            let item = overlay.items.get(key).and_then(|k| k.as_deref());
            database::set_item(&transaction, key, item, &mut tally).map_err(definite)?;
        }
        if tally != self.tally {
            database::set_tally(&transaction, tally).map_err(definite)?;
        }
        transaction.commit().map_err(|e| {
            // A log that could not be written in full is rolled back and written over. One that could not be
            // synced may be found complete after a crash.
            let full = matches!(
                e.sqlite_error_code(),
                Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::ReadOnly)
            );
            (e, !full)
        })?;
        self.tally = tally;
        Ok(())
    }
}

fn changes(write: &Write) -> bool {
    write.action != crate::Action::Check
}

fn answer(request: Request, answer: Result<Committed, CommitError>) {
    drop(request.permit);
    // The caller may have gone.
    let _ = request.answer.send(answer);
}
