//! Positions: for each partition the next offset that the table does not have.
//!
//! A stream may have a million partitions and a head has a few KB, so positions are kept like a small log-structured
//! tree: the newest in the head itself, older ones in blobs that the head names, newer before older. A seal writes
//! what it moved, not what exists; once in a while the blobs are folded into one.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidewheel_engine::{PartitionId, Uuid};
use tidewheel_store::{Blob, BlobName, Env, Item, Store, Value};

use crate::{Error, limits};

const ENTRY_BYTES: usize = 24;

/// A fold leaves alone what would not fit into one blob.
const FOLD_BYTES: usize = 32 * 1024 * 1024;

/// Positions as a head keeps them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Positions {
    /// The newest.
    inline: BTreeMap<PartitionId, u64>,
    /// Ids of blobs, oldest first.
    blobs: Vec<String>,
}

/// Positions with their blobs read, oldest first.
pub(crate) struct Loaded {
    positions: Positions,
    blobs: Vec<Bytes>,
}

impl Positions {
    pub(crate) fn from_item(item: &Item) -> Result<Self, Error> {
        let inline = item.bytes("positions").map(|b| decode(b)).transpose()?.unwrap_or_default();
        let blobs = item.list("position_blobs").iter().map(|v| match v {
            Value::Str(id) => Ok(id.clone()),
            _ => Err(Error::Corrupt("a position blob's id is no text".to_owned())),
        });
        Ok(Self { inline, blobs: blobs.collect::<Result<_, _>>()? })
    }

    pub(crate) fn put_into(&self, item: &mut Item) {
        item.set("positions", encode(&self.inline));
        if !self.blobs.is_empty() {
            let ids = self.blobs.iter().map(|id| Value::Str(id.clone())).collect::<Vec<_>>();
            item.set("position_blobs", ids);
        }
    }

    /// Ids of the blobs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &String> {
        self.blobs.iter()
    }

    /// Reads the blobs.
    pub(crate) async fn load(self, store: &dyn Store, owner: &str) -> Result<Loaded, Error> {
        let mut blobs = Vec::with_capacity(self.blobs.len());
        for id in &self.blobs {
            let name = BlobName::new(owner, id);
            let body = store.blob(&name, None).await?;
            let body = body.ok_or_else(|| Error::Corrupt(format!("blob `{name}` is missing")))?;
            if body.len() % ENTRY_BYTES != 0 {
                return Err(Error::Corrupt(format!("blob `{name}` is no list of positions")));
            }
            blobs.push(body);
        }
        Ok(Loaded { positions: self, blobs })
    }
}

impl Loaded {
    /// The next offset of a partition; 0 if the table has nothing of it.
    pub(crate) fn get(&self, partition: &PartitionId) -> u64 {
        self.find(partition).unwrap_or(0)
    }

    fn find(&self, partition: &PartitionId) -> Option<u64> {
        let inline = self.positions.inline.get(partition).copied();
        inline.or_else(|| self.blobs.iter().rev().find_map(|b| search(b, partition)))
    }

    /// True if the table has something of another partition than this.
    pub(crate) fn has_other(&self, partition: &PartitionId) -> bool {
        self.positions.inline.keys().any(|p| p != partition)
            || self
                .blobs
                .iter()
                .any(|b| b.chunks_exact(ENTRY_BYTES).any(|e| entry(e).0 != *partition))
    }

    /// The positions after some have moved, and the blob to store with the head, if there is one.
    pub(crate) fn moved(
        self,
        moved: &BTreeMap<PartitionId, u64>,
        owner: &str,
        env: &Env,
    ) -> (Positions, Option<Blob>) {
        let Loaded { positions: Positions { mut inline, blobs: mut ids }, mut blobs } = self;
        inline.extend(moved);
        if inline.len() * ENTRY_BYTES <= limits::HEAD_POSITION_BYTES {
            return (Positions { inline, blobs: ids }, None);
        }
        let mut spilled = inline;
        if ids.len() >= limits::POSITION_BLOBS {
            let mut bytes = spilled.len() * ENTRY_BYTES;
            while let Some(older) = blobs.last().filter(|b| bytes + b.len() <= FOLD_BYTES) {
                bytes += older.len();
                for (partition, next) in older.chunks_exact(ENTRY_BYTES).map(entry) {
                    spilled.entry(partition).or_insert(next);
                }
                blobs.pop();
                ids.pop();
            }
        }
        let blob = Blob::fresh(owner, encode(&spilled), env);
        ids.push(blob.name.id.clone());
        (Positions { inline: BTreeMap::new(), blobs: ids }, Some(blob))
    }
}

fn encode(positions: &BTreeMap<PartitionId, u64>) -> Bytes {
    let mut out = Vec::with_capacity(positions.len() * ENTRY_BYTES);
    for (partition, next) in positions {
        out.extend_from_slice(partition.0.as_bytes());
        out.extend_from_slice(&next.to_be_bytes());
    }
    out.into()
}

fn decode(bytes: &[u8]) -> Result<BTreeMap<PartitionId, u64>, Error> {
    if !bytes.len().is_multiple_of(ENTRY_BYTES) {
        return Err(Error::Corrupt("the head's positions are no list of positions".to_owned()));
    }
    Ok(bytes.chunks_exact(ENTRY_BYTES).map(entry).collect())
}

/// Reads an entry of [`ENTRY_BYTES`].
fn entry(bytes: &[u8]) -> (PartitionId, u64) {
    let (mut id, mut next) = ([0; 16], [0; 8]);
    id.copy_from_slice(&bytes[..16]);
    next.copy_from_slice(&bytes[16..ENTRY_BYTES]);
    (PartitionId(Uuid::from_bytes(id)), u64::from_be_bytes(next))
}

fn search(blob: &[u8], partition: &PartitionId) -> Option<u64> {
    let (mut low, mut high) = (0, blob.len() / ENTRY_BYTES);
    while low < high {
        let middle = low + (high - low) / 2;
        let (found, next) = entry(&blob[middle * ENTRY_BYTES..][..ENTRY_BYTES]);
        match found.cmp(partition) {
            std::cmp::Ordering::Equal => return Some(next),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tidewheel_store::{Commit, Key, Memory, Write};

    use super::*;

    fn partition(n: u32) -> PartitionId {
        PartitionId(Uuid::derived(&[&n.to_be_bytes()]))
    }

    #[tokio::test]
    async fn positions_survive_spills_and_folds() {
        let env = Env::simulated(1, 1_000_000, 0);
        let store = Memory::new();
        let mut head = Item::new();
        let mut expected = BTreeMap::new();
        for round in 0..60u64 {
            let moved: BTreeMap<_, _> =
                (0..50).map(|_| (partition(env.below(900) as u32), round + 1)).collect();
            expected.extend(moved.clone());
            let loaded = Positions::from_item(&head).unwrap().load(&store, "t-x").await.unwrap();
            let (positions, blob) = loaded.moved(&moved, "t-x", &env);
            let mut item = Item::new();
            positions.put_into(&mut item);
            assert!(item.size() < 2500, "{}", item.size());
            let mut commit = Commit::one(Write::put(Key::new("t#x", "table"), item.clone()));
            commit.blobs.extend(blob);
            store.commit(commit).await.unwrap();
            head = item;
            let loaded = Positions::from_item(&head).unwrap().load(&store, "t-x").await.unwrap();
            for n in 0..900 {
                let p = partition(n);
                assert_eq!(loaded.get(&p), expected.get(&p).copied().unwrap_or(0));
            }
        }
    }
}
