//! Dead letters one by one and all at once: found by their message, counted, replayed, deleted.
//!
//! Each dead letter is filed in one transaction with an entry by which its message finds it, and with the number of
//! dead letters that its group has on its partition; it leaves with both, on the condition that it is still there. So a
//! number costs as much as there are partitions with dead letters, and of two who replay or delete the same one, one
//! does.
//!
//! A replay is one transaction too: the push of a record under the transaction id `dlq:<id of the dead letter>`, and
//! the deletion. A dead letter is never gone without its record, nor there twice.

use std::collections::BTreeMap;

use tidewheel_store::{
    BlobName, Change, Commit, CommitError, Condition, Direction, Item, Key, Query, Write,
};

use crate::{
    DeadLetter, Engine, Error, PartitionId, PushItem, Pushed, Record, Replayed,
    bundle::{self, Assembly, Bundle, Locks, failed_at},
    cursor::Cursor,
    dead_letter, keys, limits, segment,
    stream::StreamRecord,
};

/// Dead letters that one commit deletes: each takes up to three writes.
const DELETED_AT_ONCE: usize = 30;

/// How far below the tail a message is looked for by its transaction id.
const LOOK_BACK: u64 = 20_000;

/// The entry by which a message finds its dead letter.
pub(crate) fn by_message(partition: &PartitionId, record: &Record, letter: &Key) -> Write {
    let hash = segment::id_hash(&record.transaction_id);
    let key = keys::letter_by_message(partition, hash, &letter.sk);
    Write::put(key, Item::new().with("listed", true))
}

/// Counts dead letters of a cursor's group on its partition; `None` for none.
pub(crate) fn counted(stream: &StreamRecord, cursor: &Cursor, n: i64) -> Option<Write> {
    (n != 0).then(|| count(stream, &cursor.partition, &cursor.group, n))
}

fn count(stream: &StreamRecord, partition: &PartitionId, group: &str, n: i64) -> Write {
    let key = keys::letter_count(&stream.info.id, partition, group);
    Write::update(key, vec![Change::Add("letters".into(), n)])
}

/// The partition that a dead letter's id names.
fn partition_of(id: &str) -> Option<PartitionId> {
    PartitionId::parse(id.split('.').nth(1)?)
}

/// A dead letter in its place.
struct Filed {
    stream: std::sync::Arc<StreamRecord>,
    key: Key,
    item: Item,
}

impl Filed {
    /// What deletes it, but for the count.
    fn deletes(&self) -> Option<[Write; 2]> {
        let partition = partition_of(&self.key.sk)?;
        let hash = segment::id_hash(self.item.str("tx")?);
        Some([
            Write::delete(self.key.clone()).when(Condition::Exists),
            Write::delete(keys::letter_by_message(&partition, hash, &self.key.sk)),
        ])
    }

    fn blob(&self) -> Option<BlobName> {
        let owner = dead_letter::owner(&self.stream.info.id);
        self.item.str("blob").map(|id| BlobName::new(owner, id))
    }

    fn group(&self) -> &str {
        self.item.str("group").unwrap_or_default()
    }
}

impl Engine {
    /// A dead letter by its id; `None` if there is none.
    pub async fn dead_letter(&self, id: &str) -> Result<Option<DeadLetter>, Error> {
        match self.filed(id).await? {
            Some(f) => self.decode_dead_letter(&f.stream, id, &f.item).await.map(Some),
            None => Ok(None),
        }
    }

    async fn filed(&self, id: &str) -> Result<Option<Filed>, Error> {
        let Some(partition) = partition_of(id) else { return Ok(None) };
        let Some(info) = self.partition(&partition).await? else { return Ok(None) };
        let Some(stream) = self.stream_record(&info.stream).await? else { return Ok(None) };
        if PartitionId::of(&stream.info.id, &info.name) != partition {
            return Ok(None);
        }
        let key = Key::new(keys::dead_letters_pk(&stream.info.id), id);
        let item = self.get(&key).await?;
        Ok(item.map(|item| Filed { stream, key, item }))
    }

    /// The newest dead letter of a message, or the newest that this group filed.
    pub async fn dead_letter_of(
        &self,
        partition: &PartitionId,
        transaction_id: &str,
        group: Option<&str>,
    ) -> Result<Option<DeadLetter>, Error> {
        let prefix = format!("{:016x}#", segment::id_hash(transaction_id));
        let mut query = Query {
            direction: Direction::Backward,
            limit: 10,
            ..Query::prefix(keys::letters_by_message_pk(partition), prefix.as_str())
        };
        loop {
            let page = self.items(&query).await?;
            for (key, _) in &page.items {
                let Some(id) = key.sk.strip_prefix(prefix.as_str()) else { continue };
                let Some(letter) = self.dead_letter(id).await? else { continue };
                if letter.record.transaction_id == transaction_id
                    && group.is_none_or(|g| g == letter.group)
                {
                    return Ok(Some(letter));
                }
            }
            match query.following(&page) {
                Some(next) => query = next,
                None => return Ok(None),
            }
        }
    }

    /// How many dead letters a stream has on each partition that has any, of one group or of all. Costs what is listed.
    pub async fn dead_letter_counts(
        &self,
        stream: &str,
        group: Option<&str>,
    ) -> Result<BTreeMap<PartitionId, u64>, Error> {
        let mut counts = BTreeMap::new();
        let Some(record) = self.stream_record(stream).await? else { return Ok(counts) };
        let mut next = Some(Query::all(keys::letter_counts_pk(&record.info.id)));
        while let Some(query) = next {
            let page = self.items(&query).await?;
            for (key, item) in &page.items {
                let Some((partition, of)) = key.sk.split_once('#') else { continue };
                let letters = item.int("letters").and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
                if let Some(partition) = PartitionId::parse(partition)
                    && letters > 0
                    && group.is_none_or(|g| g == of)
                {
                    *counts.entry(partition).or_default() += letters;
                }
            }
            next = query.following(&page);
        }
        Ok(counts)
    }

    /// Deletes a dead letter; false if there is none.
    pub async fn delete_dead_letter(&self, id: &str) -> Result<bool, Error> {
        for attempt in 0..limits::COMMIT_ATTEMPTS as u32 {
            let Some(filed) = self.filed(id).await? else { return Ok(attempt > 0) };
            match self.delete_filed(std::slice::from_ref(&filed)).await {
                Ok(()) => return Ok(true),
                Err(CommitError::Conflict(_)) => return Ok(false),
                // The next round finds it gone, or tries again.
                Err(CommitError::Unknown(_)) => self.back_off(attempt).await,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Deletes the dead letters of a stream, or of one of its groups; answers how many.
    pub async fn delete_dead_letters(
        &self,
        stream: &str,
        group: Option<&str>,
    ) -> Result<u64, Error> {
        let Some(record) = self.reread_stream(stream).await? else { return Ok(0) };
        let mut deleted = 0;
        let mut next = Some(Query {
            limit: DELETED_AT_ONCE,
            ..Query::all(keys::dead_letters_pk(&record.info.id))
        });
        let mut attempts = 0;
        while let Some(query) = next.take() {
            let page = self.items(&query).await?;
            let filed: Vec<Filed> = page
                .items
                .iter()
                .filter(|(_, item)| group.is_none_or(|g| item.str("group") == Some(g)))
                .map(|(key, item)| Filed {
                    stream: record.clone(),
                    key: key.clone(),
                    item: item.clone(),
                })
                .collect();
            match self.delete_filed(&filed).await {
                Ok(()) => {
                    deleted += filed.len() as u64;
                    attempts = 0;
                    next = query.following(&page);
                }
                // Somebody else has taken one of them, or it cannot be told: the page is read anew.
                Err(CommitError::Conflict(_) | CommitError::Unknown(_))
                    if attempts < limits::COMMIT_ATTEMPTS =>
                {
                    attempts += 1;
                    next = Some(query);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(deleted)
    }

    async fn delete_filed(&self, filed: &[Filed]) -> Result<(), CommitError> {
        if filed.is_empty() {
            return Ok(());
        }
        let mut writes = Vec::with_capacity(3 * filed.len());
        let mut counts: BTreeMap<(PartitionId, &str), i64> = BTreeMap::new();
        for letter in filed {
            let Some(partition) = partition_of(&letter.key.sk) else { continue };
            writes.extend(letter.deletes().into_iter().flatten());
            *counts.entry((partition, letter.group())).or_default() -= 1;
        }
        for ((partition, group), n) in counts {
            writes.push(count(&filed[0].stream, &partition, group, n));
        }
        self.commit(Commit::all(writes)).await?;
        let blobs: Vec<BlobName> = filed.iter().filter_map(Filed::blob).collect();
        self.forget_blobs(&blobs).await;
        Ok(())
    }

    async fn forget_blobs(&self, names: &[BlobName]) {
        if names.is_empty() {
            return;
        }
        // What stays behind is unreachable and goes with the stream; it costs room, not truth.
        if let Err(error) = self.inner.store.delete_blobs(names).await {
            tracing::warn!(%error, "payloads of deleted dead letters were not deleted");
        }
    }

    /// Puts a dead letter at the end of its partition again, once: the record is pushed and the dead letter deleted in
    /// one commit.
    pub async fn replay_dead_letter(&self, id: &str) -> Result<Replayed, Error> {
        let Some(filed) = self.filed(id).await? else { return Ok(Replayed::Missing) };
        let letter = self.decode_dead_letter(&filed.stream, id, &filed.item).await?;
        let item = PushItem {
            stream: letter.partition.stream.clone(),
            partition: letter.partition.name.clone(),
            payload: letter.record.payload.clone(),
            transaction_id: Some(format!("dlq:{id}")),
            key: letter.record.key.clone(),
            headers: letter.record.headers.clone(),
        };
        let transaction_id = item.transaction_id.clone().unwrap_or_default();
        let mut bundle = Bundle::new(self, std::slice::from_ref(&item)).await?;
        let warms = bundle.warms();
        let mut locks = bundle::lock(&warms).await;
        let mut doubt = None;
        let answer = self.commit_replay(&filed, &mut bundle, &mut locks, &mut doubt).await;
        drop(locks);
        bundle.ring().await;
        let outcome = match (answer, doubt) {
            // What it was refused for may be its own earlier attempt, arriving late.
            (Ok(Some(false) | None), Some(why)) => return Err(Error::Unknown(why)),
            (answer, doubt) => Error::in_doubt(answer, doubt)?,
        };
        match outcome {
            None => Ok(Replayed::Missing),
            Some(false) => Ok(Replayed::Duplicate { transaction_id }),
            Some(true) => {
                self.forget_blobs(&filed.blob().into_iter().collect::<Vec<_>>()).await;
                match bundle.outcomes(1).0.first() {
                    Some(Pushed::Queued { id, offset }) => Ok(Replayed::Pushed {
                        letter: Box::new(letter),
                        transaction_id,
                        id: *id,
                        offset: *offset,
                    }),
                    _ => Err(Error::Busy),
                }
            }
        }
    }

    /// True if it was replayed, false if its transaction id was pushed before, `None` if it is gone.
    async fn commit_replay(
        &self,
        filed: &Filed,
        bundle: &mut Bundle,
        locks: &mut Locks<'_>,
        doubt: &mut Option<String>,
    ) -> Result<Option<bool>, Error> {
        let bad = || Error::Corrupt(format!("dead letter {}", filed.key.sk));
        let partition = partition_of(&filed.key.sk).ok_or_else(bad)?;
        let deletes = filed.deletes().ok_or_else(bad)?;
        let less = count(&filed.stream, &partition, filed.group(), -1);
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let mut assembly = Assembly::default();
            let plans = bundle.plan(locks, &mut assembly).await?;
            if bundle.appends.iter().any(|a| a.first_duplicate().is_some()) {
                // Its own earlier push is a duplicate as well: the one who is asked again finds nothing.
                return Ok(self.get(&filed.key).await?.map(|_| false));
            }
            let places = assembly.add(&deletes);
            assembly.add(std::slice::from_ref(&less));
            assembly.check()?;
            match self.commit(assembly.commit).await {
                Ok(_) => {
                    bundle.finish(locks, &plans)?;
                    return Ok(Some(true));
                }
                Err(CommitError::Conflict(failed)) => {
                    bundle.learn(&plans, &failed).await?;
                    if !failed_at(&failed, &places).is_empty() {
                        // What refused us may be our own earlier attempt.
                        let ours = doubt.is_some() && bundle.resolve(locks, &plans).await?;
                        return Ok(ours.then_some(true));
                    }
                }
                Err(CommitError::Unknown(e)) => {
                    *doubt = Some(e);
                    if bundle.resolve(locks, &plans).await? {
                        return Ok(Some(true));
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// A record by its transaction id, among the newest of its partition; `None` if it is not found there. A message id
    /// that we gave, which is the transaction id of a record without one, is found at any depth.
    pub async fn find_record(
        &self,
        partition: &PartitionId,
        transaction_id: &str,
    ) -> Result<Option<Record>, Error> {
        let Some(head) = self.head(partition).await? else { return Ok(None) };
        if let Some(offset) = crate::id::offset_of_message(partition, transaction_id)
            && (head.floor..head.tail).contains(&offset)
        {
            let read = self.read_under(partition, &head, offset, offset + 1, 1).await?;
            if let Some(record) = read.into_iter().find(|r| r.transaction_id == transaction_id) {
                return Ok(Some(record));
            }
        }
        let lowest = head.floor.max(head.tail.saturating_sub(LOOK_BACK));
        let mut to = head.tail;
        while to > lowest {
            let from = to.saturating_sub(500).max(lowest);
            let mut at = from;
            let mut found = None;
            while at < to {
                let read = self.read_under(partition, &head, at, to, 8 << 20).await?;
                let Some(last) = read.last() else { break };
                at = last.offset + 1;
                // The newest of an id that was pushed again counts.
                found = read.into_iter().rfind(|r| r.transaction_id == transaction_id).or(found);
            }
            if found.is_some() {
                return Ok(found);
            }
            to = from;
        }
        Ok(None)
    }
}
