//! Queries: registered stream processors.
//!
//! A query's id is derived from its name, so registering is idempotent and needs no index. Its chain of operators is
//! known only by a hash: old state and a new chain do not mix, so another hash is refused unless the caller asks to
//! reset, which deletes the state and keeps the id and the reading position.

use tidewheel_store::{Commit, CommitError, Condition, Item, Write};

use crate::{Engine, Error, PartitionId, Query, Registered, Uuid, keys, limits};

fn decode(id: Uuid, item: &Item) -> Result<(Query, i64), Error> {
    let read = || {
        let query = Query {
            id,
            name: item.str("name")?.to_owned(),
            config_hash: item.str("hash")?.to_owned(),
            source: item.str("source")?.to_owned(),
            sink: item.str("sink").map(str::to_owned),
        };
        Some((query, item.int("version")?))
    };
    read().ok_or_else(|| Error::Corrupt(format!("record of query {id}")))
}

fn encode(query: &Query, version: i64) -> Item {
    let item = Item::new()
        .with("name", query.name.as_str())
        .with("hash", query.config_hash.as_str())
        .with("source", query.source.as_str())
        .with("version", version);
    match &query.sink {
        Some(sink) => item.with("sink", sink.as_str()),
        None => item,
    }
}

/// The id of the query of this name.
pub fn query_id(name: &str) -> Uuid {
    Uuid::derived(&[b"query", name.as_bytes()])
}

impl Engine {
    /// Registers a query, or finds it. A new name is fresh; the same hash keeps the state and takes the new source and
    /// sink; another hash is a mismatch, or with `reset` deletes the state and takes the new hash.
    ///
    /// # Errors
    /// [`Error::Name`] for an empty or overlong name, source, or hash.
    pub async fn register_query(
        &self,
        name: &str,
        source: &str,
        sink: Option<&str>,
        config_hash: &str,
        reset: bool,
    ) -> Result<Registered, Error> {
        Error::check_name("the query's name", name)?;
        Error::check_name("the query's source", source)?;
        Error::check_name("the query's config_hash", config_hash)?;
        let id = query_id(name);
        let wanted = Query {
            id,
            name: name.to_owned(),
            config_hash: config_hash.to_owned(),
            source: source.to_owned(),
            sink: sink.filter(|s| !s.is_empty()).map(str::to_owned),
        };
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let (write, outcome) = match self.get(&keys::query(&id)).await? {
                None => {
                    let put =
                        Write::put(keys::query(&id), encode(&wanted, 1)).when(Condition::Absent);
                    (put, Registered::Fresh(wanted.clone()))
                }
                Some(item) => {
                    let (known, version) = decode(id, &item)?;
                    if known == wanted {
                        return Ok(Registered::Same(known));
                    }
                    let same = known.config_hash == wanted.config_hash;
                    if !same && !reset {
                        return Ok(Registered::Mismatch(known));
                    }
                    let put = Write::put(keys::query(&id), encode(&wanted, version + 1))
                        .when(Condition::Equals("version".into(), version.into()));
                    if same {
                        (put, Registered::Same(wanted.clone()))
                    } else {
                        // State first: a crash in between leaves the old hash with no state, and the next reset
                        // finishes. The other way round would leave old state under a new chain.
                        self.delete_states(&id).await?;
                        (put, Registered::Reset(wanted.clone()))
                    }
                }
            };
            match self.commit(Commit::one(write)).await {
                Ok(_) => return Ok(outcome),
                // The next round reads what is there.
                Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Reads a query; `None` if there is none of this id.
    pub async fn query(&self, id: &Uuid) -> Result<Option<Query>, Error> {
        let item = self.get(&keys::query(id)).await?;
        Ok(item.map(|item| decode(*id, &item)).transpose()?.map(|(query, _)| query))
    }

    async fn delete_states(&self, query: &Uuid) -> Result<(), Error> {
        for shard in 0..keys::STATE_SHARDS {
            let pk = keys::states_pk(query, shard);
            loop {
                let page = self.list(&pk, None, 1000).await?;
                for (key, _) in &page {
                    match self.commit(Commit::one(Write::delete(key.clone()))).await {
                        Ok(_) | Err(CommitError::Unknown(_)) => {}
                        Err(e) => return Err(e.into()),
                    }
                    if let Some(partition) = PartitionId::parse(&key.sk) {
                        self.inner.states.remove(&(*query, partition));
                    }
                }
                if page.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }
}
