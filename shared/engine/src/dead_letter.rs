//! Dead letters: what a group gave up, with its own copy of the payload, so that it survives retention.
//!
//! | attribute | meaning |
//! |---|---|
//! | `group` `pid` `partition` `offset` | who gave up what |
//! | `id` `tx` `time_us` `key` `headers` | the record |
//! | `payload` | its payload, if small |
//! | `sealed` | true if payload, key and headers are in envelopes, see [`crate::encryption`] |
//! | `blob` | the id of the blob with its payload, if large; the owner is the stream's dead letters |
//! | `error` `failures` `failed_us` | why, after how many charged tries, when |

use bytes::Bytes;
use tidewheel_store::{Blob, BlobName, Direction, Item, Query, Write};

use crate::{
    DeadLetter, Engine, Error, PartitionId, PartitionInfo, Record, Uuid, cursor::Cursor, keys,
    stream::StreamRecord,
};

/// Payloads up to this many bytes stay in the item.
const INLINE_BYTES: usize = 4096;

/// Bytes of a reason that are kept.
const REASON_BYTES: usize = 4096;

/// The blob owner of a stream's dead letters. It is not the partition's, whose blobs the collector takes.
pub(crate) fn owner(stream: &crate::Uuid) -> String {
    format!("d{}", stream.simple())
}

/// Where a dead letter is, for envelopes around its parts.
fn place(partition: &PartitionId, offset: u64) -> String {
    format!("a dead letter of partition {partition} at offset {offset}")
}

/// The write, and the blob, that keep a dead letter.
///
/// # Errors
/// [`Error::Encryption`] if the stream is encrypted and there is no key to be had.
pub(crate) async fn encode(
    engine: &Engine,
    stream: &StreamRecord,
    partition: &str,
    cursor: &Cursor,
    record: &Record,
    reason: &str,
    failed_us: i64,
) -> Result<(Write, Option<Blob>), Error> {
    let sealer = match stream.info.options.encryption_enabled {
        true => Some(engine.sealer().await?),
        false => None,
    };
    let place = place(&cursor.partition, record.offset);
    let sealed = |part: &[u8]| sealer.as_ref().map(|s| s.seal(engine.env(), &place, part));
    let mut cut = reason.len().min(REASON_BYTES);
    while !reason.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut item = Item::new()
        .with("group", cursor.group.as_str())
        .with("pid", cursor.partition.to_string())
        .with("partition", partition)
        .with("offset", record.offset as i64)
        .with("id", record.id.to_string())
        .with("tx", record.transaction_id.as_str())
        .with("time_us", record.time_us)
        .with("error", &reason[..cut])
        .with("failures", i64::from(cursor.failures))
        .with("failed_us", failed_us);
    if sealer.is_some() {
        item.set("sealed", true);
    }
    if let Some(key) = &record.key {
        match sealed(key.as_bytes()) {
            Some(envelope) => item.set("key", envelope?),
            None => item.set("key", key.as_str()),
        }
    }
    if let Some(headers) = &record.headers {
        item.set("headers", sealed(headers).unwrap_or_else(|| Ok(headers.clone()))?);
    }
    let payload = sealed(&record.payload).unwrap_or_else(|| Ok(record.payload.clone()))?;
    let mut blob = None;
    if payload.len() <= INLINE_BYTES {
        item.set("payload", payload);
    } else {
        let owner = owner(&stream.info.id);
        let kept = Blob::fresh(owner, payload, engine.env());
        item.set("blob", kept.name.id.as_str());
        blob = Some(kept);
    }
    let key = keys::dead_letter(
        &stream.info.id,
        failed_us,
        &cursor.partition,
        record.offset,
        &cursor.group_id,
    );
    Ok((Write::put(key, item), blob))
}

impl Engine {
    /// Dead letters of a stream, newest first, optionally of one group; skips `offset`, at most `limit` (and at most
    /// 1,000).
    pub async fn dead_letters(
        &self,
        stream: &str,
        group: Option<&str>,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Error> {
        let Some(record) = self.stream_record(stream).await? else { return Ok(Vec::new()) };
        let limit = limit.min(1000);
        let mut skip = offset;
        let mut found = Vec::new();
        let mut to: Option<String> = None;
        while found.len() < limit {
            let query = Query {
                pk: keys::dead_letters_pk(&record.info.id),
                from: None,
                to: to.clone(),
                direction: Direction::Backward,
                limit: 1000,
            };
            let page = self.items(&query).await?;
            let last = page.items.last().map(|(key, _)| key.sk.clone());
            for (key, item) in &page.items {
                // The bound is inclusive: the last one of the page before comes first again.
                if to.as_ref() == Some(&key.sk)
                    || group.is_some_and(|g| item.str("group") != Some(g))
                {
                    continue;
                }
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                if found.len() < limit {
                    found.push(self.decode_dead_letter(&record, &key.sk, item).await?);
                }
            }
            if !page.more || last == to {
                break;
            }
            to = last;
        }
        Ok(found)
    }

    pub(crate) async fn decode_dead_letter(
        &self,
        stream: &StreamRecord,
        id: &str,
        item: &Item,
    ) -> Result<DeadLetter, Error> {
        let name = &stream.info.name;
        let bad = || Error::Corrupt(format!("dead letter {id} of stream `{name}`"));
        let partition = item.str("pid").and_then(PartitionId::parse).ok_or_else(bad)?;
        let mut payload = match item.str("blob") {
            Some(blob) => self.blob(&BlobName::new(owner(&stream.info.id), blob)).await?,
            None => item.bytes("payload").cloned().unwrap_or_else(Bytes::new),
        };
        let mut key = item.str("key").map(str::to_owned);
        let mut headers = item.bytes("headers").cloned();
        if item.get("sealed").is_some() {
            let offset = item.int("offset").and_then(|o| u64::try_from(o).ok()).ok_or_else(bad)?;
            let place = place(&partition, offset);
            payload = self.unseal(&place, payload).await?;
            if let Some(envelope) = item.bytes("key") {
                let text = self.unseal(&place, envelope.clone()).await?;
                key = Some(String::from_utf8(text.to_vec()).map_err(|_| bad())?);
            }
            if let Some(envelope) = headers {
                headers = Some(self.unseal(&place, envelope).await?);
            }
        }
        let read = || {
            Some(DeadLetter {
                id: id.to_owned(),
                record: Record {
                    offset: u64::try_from(item.int("offset")?).ok()?,
                    time_us: item.int("time_us")?,
                    id: Uuid::parse(item.str("id")?)?,
                    transaction_id: item.str("tx")?.to_owned(),
                    key,
                    headers,
                    payload,
                },
                partition: PartitionInfo {
                    id: partition,
                    stream: name.clone(),
                    name: item.str("partition")?.to_owned(),
                },
                group: item.str("group")?.to_owned(),
                error: item.str("error")?.to_owned(),
                failures: u32::try_from(item.int("failures")?).ok()?,
                failed_us: item.int("failed_us")?,
            })
        };
        read().ok_or_else(bad)
    }
}
