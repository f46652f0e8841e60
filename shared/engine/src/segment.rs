//! Segments: the records of one append, packed.
//!
//! ```text
//! "TWS1"                       magic and version
//! flags         u8             bit 0: the id hashes follow
//! count         u32
//! hashes        count * u64    one for each record, 0 where the sender gave no id
//! raw bytes     u32
//! zstd of the records, each:
//!   flags       u8             1 id as text, 2 id as UUID, 4 key, 8 headers, 16 promised message id
//!   message id  16 bytes
//!   id          16 bytes, or length and text
//!   key         length and text
//!   headers     length and bytes
//!   payload     length and bytes
//! ```
//!
//! Numbers are little-endian, lengths are LEB128. A segment knows no offset and no order: both come from the head that
//! names it. The whole is immutable; its frame (length and checksum) is the store's. On a stream that is encrypted at
//! rest the whole lies in an envelope, see [`crate::encryption`].

use bytes::{Buf, Bytes};
use tidewheel_store::BlobName;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, PartitionId, Uuid, limits};

const MAGIC: &[u8; 4] = b"TWS1";
const HAS_HASHES: u8 = 1;
const ID_TEXT: u8 = 1;
const ID_UUID: u8 = 2;
const KEY: u8 = 4;
const HEADERS: u8 = 8;
const PROMISED: u8 = 16;

/// zstd's fastest ordinary level: a push waits for it.
const LEVEL: i32 = 1;

/// The most that a segment may unpack to: payloads, ids and keys.
const RAW_BYTES: usize = limits::SEGMENT_BYTES + limits::SEGMENT_BYTES / 4;

/// A record as it is packed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed {
    /// The message id that it was promised; without one its id follows from its place.
    pub(crate) id: Option<Uuid>,
    pub(crate) transaction_id: Option<TransactionId>,
    pub(crate) key: Option<String>,
    pub(crate) headers: Option<Bytes>,
    pub(crate) payload: Bytes,
}

/// A sender's id. The ids that SDKs mint are UUIDs in lower case; those are kept in 16 bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TransactionId {
    Uuid(Uuid),
    Text(String),
}

impl TransactionId {
    pub(crate) fn new(text: &str) -> Self {
        match Uuid::parse(text) {
            Some(uuid) if !text.bytes().any(|b| b.is_ascii_uppercase()) => Self::Uuid(uuid),
            _ => Self::Text(text.to_owned()),
        }
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        match self {
            Self::Text(t) => t == text,
            Self::Uuid(u) => Uuid::parse(text) == Some(*u) && *self == Self::new(text),
        }
    }
}

impl std::fmt::Display for TransactionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(u) => u.fmt(f),
            Self::Text(t) => f.write_str(t),
        }
    }
}

/// The hash of a sender's id. Never 0.
pub(crate) fn id_hash(transaction_id: &str) -> u64 {
    xxh3_64(transaction_id.as_bytes()).max(1)
}

/// A segment, unpacked.
#[derive(Debug)]
pub(crate) struct Segment {
    /// One for each record, 0 where the sender gave no id; empty if no sender did.
    pub(crate) hashes: Vec<u64>,
    pub(crate) records: Vec<Packed>,
    /// Bytes that it takes in memory, about.
    pub(crate) weight: u64,
}

/// The blob owner of a partition's segments.
pub(crate) fn owner(partition: &PartitionId) -> String {
    partition.0.simple()
}

/// The name of a segment's blob.
pub(crate) fn blob_name(partition: &PartitionId, id: &str) -> BlobName {
    BlobName::new(owner(partition), id)
}

/// Where a partition's segments are, for envelopes around them.
pub(crate) fn place(partition: &PartitionId) -> String {
    format!("a segment of partition {partition}")
}

/// Packs records.
///
/// # Errors
/// [`Error::Limit`] beyond [`limits::SEGMENT_BYTES`] or [`limits::BATCH_RECORDS`].
pub(crate) fn encode(records: &[Packed], hashes: &[u64]) -> Result<Bytes, Error> {
    let payloads: usize = records.iter().map(|r| r.payload.len()).sum();
    limit("records in one push to one partition", records.len(), limits::BATCH_RECORDS)?;
    limit("bytes in one push to one partition", payloads, limits::SEGMENT_BYTES)?;
    let mut raw = Vec::with_capacity(payloads + 24 * records.len());
    for record in records {
        encode_record(&mut raw, record);
    }
    limit("bytes in one push to one partition", raw.len(), RAW_BYTES)?;
    let with_hashes = hashes.iter().any(|&h| h != 0);
    let mut out = Vec::with_capacity(32 + raw.len() / 2 + 8 * hashes.len());
    out.extend_from_slice(MAGIC);
    out.push(if with_hashes { HAS_HASHES } else { 0 });
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    if with_hashes {
        debug_assert_eq!(hashes.len(), records.len());
        hashes.iter().for_each(|h| out.extend_from_slice(&h.to_le_bytes()));
    }
    out.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    out.extend_from_slice(&compress(&raw)?);
    Ok(out.into())
}

fn limit(what: &'static str, got: usize, limit: usize) -> Result<(), Error> {
    if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
}

fn encode_record(out: &mut Vec<u8>, record: &Packed) {
    let id = match record.transaction_id {
        None => 0,
        Some(TransactionId::Uuid(_)) => ID_UUID,
        Some(TransactionId::Text(_)) => ID_TEXT,
    };
    let key = if record.key.is_some() { KEY } else { 0 };
    let headers = if record.headers.is_some() { HEADERS } else { 0 };
    let promised = if record.id.is_some() { PROMISED } else { 0 };
    out.push(id | key | headers | promised);
    if let Some(id) = &record.id {
        out.extend_from_slice(id.as_bytes());
    }
    match &record.transaction_id {
        Some(TransactionId::Uuid(u)) => out.extend_from_slice(u.as_bytes()),
        Some(TransactionId::Text(t)) => put_bytes(out, t.as_bytes()),
        None => {}
    }
    if let Some(key) = &record.key {
        put_bytes(out, key.as_bytes());
    }
    if let Some(headers) = &record.headers {
        put_bytes(out, headers);
    }
    put_bytes(out, &record.payload);
}

/// Unpacks a segment's blob.
///
/// # Errors
/// [`Error::Corrupt`] if it is none. The bytes have passed the store's checksum, so this is a mistake in writing, or
/// a later version's segment.
pub(crate) fn decode(blob: Bytes) -> Result<Segment, Error> {
    let bad = || Error::Corrupt("a segment does not decode".to_owned());
    let mut rest = blob;
    let (hashes, count) = decode_hashes(&mut rest).ok_or_else(bad)?;
    let raw_bytes = take(&mut rest, 4).map(|mut b| b.get_u32_le() as usize).ok_or_else(bad)?;
    if raw_bytes > RAW_BYTES {
        return Err(bad());
    }
    let mut raw = Bytes::from(decompress(&rest, raw_bytes).map_err(|_| bad())?);
    let weight = (raw.len() + 160 * count + 8 * hashes.len()) as u64;
    let records =
        (0..count).map(|_| decode_record(&mut raw)).collect::<Option<_>>().ok_or_else(bad)?;
    Ok(Segment { hashes, records, weight })
}

fn decode_hashes(rest: &mut Bytes) -> Option<(Vec<u64>, usize)> {
    let mut fixed = take(rest, 9)?;
    if fixed.split_to(4) != MAGIC[..] {
        return None;
    }
    let flags = fixed.get_u8();
    let count = fixed.get_u32_le() as usize;
    if count > limits::BATCH_RECORDS {
        return None;
    }
    let mut hashes = Vec::new();
    if flags & HAS_HASHES != 0 {
        let mut bytes = take(rest, 8 * count)?;
        hashes.extend((0..count).map(|_| bytes.get_u64_le()));
    }
    Some((hashes, count))
}

fn decode_record(raw: &mut Bytes) -> Option<Packed> {
    let flags = take(raw, 1)?.get_u8();
    let text = |raw: &mut Bytes| String::from_utf8(take_bytes(raw)?.to_vec()).ok();
    let uuid = |raw: &mut Bytes| {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&take(raw, 16)?);
        Some(Uuid::from_bytes(uuid))
    };
    let id = if flags & PROMISED != 0 { Some(uuid(raw)?) } else { None };
    let transaction_id = if flags & ID_UUID != 0 {
        Some(TransactionId::Uuid(uuid(raw)?))
    } else if flags & ID_TEXT != 0 {
        Some(TransactionId::Text(text(raw)?))
    } else {
        None
    };
    let key = if flags & KEY != 0 { Some(text(raw)?) } else { None };
    let headers = if flags & HEADERS != 0 { Some(take_bytes(raw)?) } else { None };
    Some(Packed { id, transaction_id, key, headers, payload: take_bytes(raw)? })
}

pub(crate) fn take(bytes: &mut Bytes, count: usize) -> Option<Bytes> {
    (bytes.len() >= count).then(|| bytes.split_to(count))
}

pub(crate) fn take_length(bytes: &mut Bytes) -> Option<usize> {
    let mut value = 0usize;
    for shift in (0..35).step_by(7) {
        let byte = take(bytes, 1)?.get_u8();
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

pub(crate) fn take_bytes(bytes: &mut Bytes) -> Option<Bytes> {
    let length = take_length(bytes)?;
    take(bytes, length)
}

pub(crate) fn put_length(out: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

thread_local! {
    // A compressor's tables cost more to make than a small segment to pack.
    static COMPRESSOR: std::cell::RefCell<Option<zstd::bulk::Compressor<'static>>> =
        const { std::cell::RefCell::new(None) };
}

pub(crate) fn compress(raw: &[u8]) -> Result<Vec<u8>, Error> {
    let failed = |e: std::io::Error| Error::Unavailable(format!("compression: {e}"));
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(c) => c,
            None => slot.insert(zstd::bulk::Compressor::new(LEVEL).map_err(failed)?),
        };
        compressor.compress(raw).map_err(failed)
    })
}

pub(crate) fn decompress(packed: &[u8], raw_bytes: usize) -> Result<Vec<u8>, Error> {
    match zstd::bulk::decompress(packed, raw_bytes) {
        Ok(raw) if raw.len() == raw_bytes => Ok(raw),
        _ => Err(Error::Corrupt("compressed bytes do not unpack".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(id: Option<&str>, payload: &str) -> Packed {
        Packed {
            id: None,
            transaction_id: id.map(TransactionId::new),
            key: id.map(|i| format!("key {i}")),
            headers: None,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        }
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let records = vec![
            packed(None, "{\"n\": 1.0}"),
            packed(Some("any text"), ""),
            packed(Some("0193f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f"), "x"),
            packed(Some("0193F0C4-1A2B-7C3D-8E4F-5A6B7C8D9E0F"), "y"),
            Packed { id: Some(Uuid::from_bytes([7; 16])), ..packed(Some("promised"), "z") },
        ];
        let hashes: Vec<u64> = records
            .iter()
            .map(|r| r.transaction_id.as_ref().map_or(0, |t| id_hash(&t.to_string())))
            .collect();
        let segment = decode(encode(&records, &hashes).unwrap()).unwrap();
        assert_eq!(segment.records, records);
        assert_eq!(segment.hashes, hashes);
        assert!(matches!(segment.records[2].transaction_id, Some(TransactionId::Uuid(_))));
        assert_eq!(
            segment.records[3].transaction_id.as_ref().unwrap().to_string(),
            "0193F0C4-1A2B-7C3D-8E4F-5A6B7C8D9E0F"
        );
    }

    #[test]
    fn every_truncation_is_an_error_and_none_a_panic() {
        let blob = encode(&[packed(Some("a"), "payload"), packed(None, "more")], &[5, 0]).unwrap();
        for end in 0..blob.len() {
            assert!(decode(blob.slice(..end)).is_err(), "{end}");
        }
        for at in 0..blob.len() {
            let mut flipped = blob.to_vec();
            flipped[at] ^= 0x40;
            let _ = decode(flipped.into());
        }
    }

    #[test]
    fn a_segment_too_large_is_refused_with_the_limit() {
        let half = Bytes::from(vec![b' '; limits::SEGMENT_BYTES / 2 + 1]);
        let record = Packed { payload: half, ..packed(None, "") };
        let refused = encode(&[record.clone(), record], &[0, 0]).unwrap_err().to_string();
        assert!(refused.contains(&limits::SEGMENT_BYTES.to_string()), "{refused}");
    }
}
