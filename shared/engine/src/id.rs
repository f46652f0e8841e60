//! Ids: of streams, partitions, groups, cursors, leases and messages.
//!
//! Ids of partitions, groups and cursors are derived, not minted: whoever knows the names knows the id, without a
//! read. A message's id is derived from the order that its commit gave it (see [`message_id`]), so that every client
//! that sorts by time and id sees the log's order.

use sha2::{Digest, Sha256};
use tidewheel_store::Env;

/// 16 bytes, shown as a UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// From its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A random one (version 4).
    pub fn random(env: &Env) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&env.random().to_be_bytes());
        bytes[8..].copy_from_slice(&env.random().to_be_bytes());
        Self(bytes).stamped(4)
    }

    /// One derived from parts by SHA-256 (version 8). Parts are length-prefixed, so that no two lists of parts meet.
    pub fn derived(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes).stamped(8)
    }

    fn stamped(mut self, version: u8) -> Self {
        self.0[6] = self.0[6] & 0x0f | version << 4;
        self.0[8] = self.0[8] & 0x3f | 0x80;
        self
    }

    /// Reads the usual text form, in either case.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 36 || [8, 13, 18, 23].iter().any(|&i| text[i] != b'-') {
            return None;
        }
        let mut digits = text.iter().filter(|&&b| b != b'-').map(|&b| (b as char).to_digit(16));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = (digits.next()?? << 4 | digits.next()??) as u8;
        }
        digits.next().is_none().then_some(Self(bytes))
    }

    /// 32 hexadecimal digits, for names of blobs.
    pub fn simple(&self) -> String {
        self.0.iter().fold(String::with_capacity(32), |mut s, b| {
            push_hex(&mut s, *b);
            s
        })
    }
}

fn push_hex(out: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)] as char);
    out.push(DIGITS[usize::from(byte & 15)] as char);
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::with_capacity(36);
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            push_hex(&mut text, *byte);
        }
        f.write_str(&text)
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The id of a partition: derived from the stream's id and the partition's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub Uuid);

impl PartitionId {
    /// The id of this partition of this stream.
    pub fn of(stream: &Uuid, partition: &str) -> Self {
        Self(Uuid::derived(&[b"partition", stream.as_bytes(), partition.as_bytes()]))
    }

    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::parse(text).map(Self)
    }
}

impl std::fmt::Display for PartitionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a group's one life on one stream: a group that is deleted and comes back has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub Uuid);

impl GroupId {
    pub(crate) fn of(stream: &Uuid, group: &str, joined: i64) -> Self {
        Self(Uuid::derived(&[b"group", stream.as_bytes(), group.as_bytes(), &joined.to_be_bytes()]))
    }
}

/// The id of a group's cursor on a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(pub Uuid);

impl CursorId {
    pub(crate) fn of(group: &GroupId, partition: &PartitionId) -> Self {
        Self(Uuid::derived(&[b"cursor", group.0.as_bytes(), partition.0.as_bytes()]))
    }
}

/// A lease as it travels: a token that nobody can guess, and the cursors that it was granted on, so that extending it
/// needs no index of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseId {
    /// What the cursors hold: 32 hexadecimal digits.
    pub token: String,
    /// The cursors.
    pub cursors: Vec<CursorId>,
}

impl LeaseId {
    /// Reads the text form. A text that is none gives `None`, which is a lease that nobody holds.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let token = parts.next().filter(|t| t.len() == 32)?.to_owned();
        let cursors = parts
            .take(crate::limits::CLAIM_PARTITIONS)
            .map(|p| {
                let mut bytes = [0; 16];
                if p.len() != 32 || !p.is_ascii() {
                    return None;
                }
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&p[2 * i..2 * i + 2], 16).ok()?;
                }
                Some(CursorId(Uuid(bytes)))
            })
            .collect::<Option<_>>()?;
        Some(Self { token, cursors })
    }
}

impl std::fmt::Display for LeaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.token)?;
        for cursor in &self.cursors {
            write!(f, ".{}", cursor.0.simple())?;
        }
        Ok(())
    }
}

/// A digest of byte strings in order, hexadecimal: for what must be recognised and never be guessed at.
pub fn digest_of(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bits of the offset that a message id carries.
const OFFSET_BITS: u32 = 40;
/// Bits of the partition that a message id carries.
const PARTITION_BITS: u32 = 74 - OFFSET_BITS;

/// The id of a message: a UUIDv7 whose order within a partition is the offset's order. 48 bits are the served time in
/// milliseconds; of the 74 free bits, 40 are the offset and 34 the partition. The served time never decreases along
/// a partition, so sorting by (milliseconds, id) is sorting by offset.
pub fn message_id(partition: &PartitionId, offset: u64, time_us: i64) -> Uuid {
    let ms = (time_us.max(0) as u64) / 1000;
    let p = u64::from_be_bytes(first_eight(partition.0.as_bytes())) >> (64 - PARTITION_BITS);
    let free: u128 =
        u128::from(offset & ((1 << OFFSET_BITS) - 1)) << PARTITION_BITS | u128::from(p);
    let high12 = (free >> 62) as u16 & 0x0fff;
    let low62 = free as u64 & ((1 << 62) - 1);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    bytes[6..8].copy_from_slice(&(0x7000 | high12).to_be_bytes());
    bytes[8..].copy_from_slice(&(1u64 << 63 | low62).to_be_bytes());
    Uuid(bytes)
}

/// The offset that a message id of this partition carries; `None` for another text.
pub(crate) fn offset_of_message(partition: &PartitionId, text: &str) -> Option<u64> {
    let bytes = *Uuid::parse(text)?.as_bytes();
    let mut ms = [0; 8];
    ms[2..].copy_from_slice(&bytes[..6]);
    let high12 = u128::from(u16::from_be_bytes([bytes[6], bytes[7]]) & 0x0fff);
    let mut low = [0; 8];
    low.copy_from_slice(&bytes[8..]);
    let low62 = u128::from(u64::from_be_bytes(low) & ((1 << 62) - 1));
    let offset = ((high12 << 62 | low62) >> PARTITION_BITS) as u64;
    let time_us = i64::try_from(u64::from_be_bytes(ms)).ok()?.checked_mul(1000)?;
    (message_id(partition, offset, time_us).as_bytes() == &bytes).then_some(offset)
}

fn first_eight(bytes: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[..8]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_sort_like_offsets() {
        let partition = PartitionId::of(&Uuid::from_bytes([7; 16]), "p");
        let ids: Vec<String> =
            [0u64, 1, 2, 255, 256, 65_535, 1 << 20, (1 << 33) + 5, (1 << 40) - 1]
                .iter()
                .map(|&o| message_id(&partition, o, 1_764_000_000_123_456).to_string())
                .collect();
        assert!(ids.is_sorted(), "{ids:?}");
    }

    #[test]
    fn message_ids_are_uuids_of_version_7_and_differ_between_partitions() {
        let stream = Uuid::from_bytes([7; 16]);
        let (a, b) = (PartitionId::of(&stream, "a"), PartitionId::of(&stream, "b"));
        let id = message_id(&a, 123_456_789, 1_764_000_000_123_456);
        assert_ne!(id, message_id(&b, 123_456_789, 1_764_000_000_123_456));
        assert_eq!(Uuid::parse(&id.to_string()), Some(id));
        assert_eq!(offset_of_message(&a, &id.to_string()), Some(123_456_789));
        assert_eq!(offset_of_message(&b, &id.to_string()), None);
        assert_eq!(offset_of_message(&a, "no id"), None);
        assert_eq!(id.to_string().as_bytes()[14], b'7');
        assert_eq!(&id.to_string()[..13], "019ab697-e87b");
    }

    #[test]
    fn a_lease_survives_its_text_form() {
        let cursor = CursorId(Uuid::from_bytes([3; 16]));
        let lease =
            LeaseId { token: "0123456789abcdef0123456789abcdef".into(), cursors: vec![cursor; 3] };
        assert_eq!(LeaseId::parse(&lease.to_string()), Some(lease));
        for bad in ["", "x", "0123", "0123456789abcdef0123456789abcdef.zz", "é.é"] {
            assert_eq!(LeaseId::parse(bad), None, "{bad}");
        }
    }
}
