//! How an item lies in its row.
//!
//! A version byte, the CRC-32C of key and payload (little-endian), then the payload: attributes in name order, each a
//! name and a tagged value; lengths and counts as LEB128, numbers as zigzag LEB128. The checksum covers the key, so
//! that a row under a wrong key is damage too.
//!
//! Decoding trusts nothing: whatever the bytes are, it returns an item or says why not, never allocates more than
//! the bytes could hold, and never recurses deeper than [`limits::VALUE_DEPTH`].

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::{Item, Key, ReadError, Value, limits};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 5;

/// Tags of values. Never renumbered: rows keep them.
mod tag {
    pub(super) const STR: u8 = 1;
    pub(super) const INT: u8 = 2;
    pub(super) const FALSE: u8 = 3;
    pub(super) const TRUE: u8 = 4;
    pub(super) const BYTES: u8 = 5;
    pub(super) const LIST: u8 = 6;
    pub(super) const MAP: u8 = 7;
    pub(super) const STR_SET: u8 = 8;
    pub(super) const BYTES_SET: u8 = 9;
}

/// The row of an item.
pub(super) fn encode(key: &Key, item: &Item) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + item.size() * 5 / 4 + 16);
    out.extend_from_slice(&[VERSION, 0, 0, 0, 0]);
    put_number(&mut out, item.iter().count() as u64);
    for (name, value) in item.iter() {
        put_bytes(&mut out, name.as_bytes());
        put_value(&mut out, value);
    }
    let sum = checksum(key, &out[HEADER_BYTES..]).to_le_bytes();
    out[1..HEADER_BYTES].copy_from_slice(&sum);
    out
}

fn checksum(key: &Key, payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&(key.pk.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c_append(sum, key.pk.as_bytes());
    let sum = crc32c::crc32c_append(sum, key.sk.as_bytes());
    crc32c::crc32c_append(sum, payload)
}

fn put_number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Str(s) => {
            out.push(tag::STR);
            put_bytes(out, s.as_bytes());
        }
        Value::Int(n) => {
            out.push(tag::INT);
            put_number(out, ((n << 1) ^ (n >> 63)) as u64);
        }
        Value::Bool(b) => out.push(if *b { tag::TRUE } else { tag::FALSE }),
        Value::Bytes(b) => {
            out.push(tag::BYTES);
            put_bytes(out, b);
        }
        Value::List(l) => {
            out.push(tag::LIST);
            put_number(out, l.len() as u64);
            l.iter().for_each(|v| put_value(out, v));
        }
        Value::Map(m) => {
            out.push(tag::MAP);
            put_number(out, m.len() as u64);
            for (k, v) in m {
                put_bytes(out, k.as_bytes());
                put_value(out, v);
            }
        }
        Value::StrSet(s) => {
            out.push(tag::STR_SET);
            put_number(out, s.len() as u64);
            s.iter().for_each(|m| put_bytes(out, m.as_bytes()));
        }
        Value::BytesSet(s) => {
            out.push(tag::BYTES_SET);
            put_number(out, s.len() as u64);
            s.iter().for_each(|m| put_bytes(out, m));
        }
    }
}

/// The checksum that a row carries; it is verified by [`decode`] and by [`verify`] only. 0 for a row that is too short to
/// have one.
pub(super) fn carried(row: &[u8]) -> u32 {
    row.get(1..HEADER_BYTES).and_then(|sum| sum.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// True if a row is whole and belongs to its key, without decoding it.
pub(super) fn verify(key: &Key, row: &[u8]) -> bool {
    row.len() >= HEADER_BYTES
        && row[0] == VERSION
        && checksum(key, &row[HEADER_BYTES..]) == carried(row)
}

/// The item of a row.
///
/// # Errors
/// [`ReadError::Corrupt`] if the row is not what [`encode`] made for this key.
pub(super) fn decode(key: &Key, row: &[u8]) -> Result<Item, ReadError> {
    read(key, row).map_err(|detail| ReadError::Corrupt {
        what: format!("item {key}"),
        detail: detail.to_owned(),
    })
}

fn read(key: &Key, row: &[u8]) -> Result<Item, &'static str> {
    let (header, payload) = row.split_at_checked(HEADER_BYTES).ok_or("the row is too short")?;
    if header[0] != VERSION {
        return Err("the row is of another version");
    }
    if header[1..] != checksum(key, payload).to_le_bytes() {
        return Err("the checksum does not fit");
    }
    let mut rest = Reader { rest: payload };
    let count = rest.count()?;
    let mut item = Item::new();
    for _ in 0..count {
        let name = rest.text()?;
        let value = rest.value(0)?;
        item.set(name, value);
    }
    if rest.rest.is_empty() { Ok(item) } else { Err("the row is too long") }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, &'static str> {
        let (first, rest) = self.rest.split_first().ok_or("the row ends early")?;
        self.rest = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err("a number is too long")
    }

    /// A number of things that each take a byte at least, so more than the bytes left cannot be.
    fn count(&mut self) -> Result<usize, &'static str> {
        let n = self.number()?;
        if n > self.rest.len() as u64 { Err("a count is too large") } else { Ok(n as usize) }
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let n = self.count()?;
        let (bytes, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String, &'static str> {
        Ok(std::str::from_utf8(self.bytes()?).map_err(|_| "a text is not UTF-8")?.to_owned())
    }

    fn value(&mut self, depth: usize) -> Result<Value, &'static str> {
        if depth > limits::VALUE_DEPTH {
            return Err("values are nested too deep");
        }
        Ok(match self.byte()? {
            tag::STR => Value::Str(self.text()?),
            tag::INT => {
                let n = self.number()?;
                Value::Int((n >> 1) as i64 ^ -((n & 1) as i64))
            }
            tag::FALSE => Value::Bool(false),
            tag::TRUE => Value::Bool(true),
            tag::BYTES => Value::Bytes(Bytes::copy_from_slice(self.bytes()?)),
            tag::LIST => {
                let n = self.count()?;
                Value::List((0..n).map(|_| self.value(depth + 1)).collect::<Result<_, _>>()?)
            }
            tag::MAP => {
                let mut map = BTreeMap::new();
                for _ in 0..self.count()? {
                    let name = self.text()?;
                    map.insert(name, self.value(depth + 1)?);
                }
                Value::Map(map)
            }
            tag::STR_SET => {
                let n = self.count()?;
                Value::StrSet((0..n).map(|_| self.text()).collect::<Result<BTreeSet<_>, _>>()?)
            }
            tag::BYTES_SET => {
                let n = self.count()?;
                let member = |_| self.bytes().map(Bytes::copy_from_slice);
                Value::BytesSet((0..n).map(member).collect::<Result<BTreeSet<_>, _>>()?)
            }
            _ => return Err("a value has an unknown tag"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Key {
        Key::new("p", "s")
    }

    fn sample() -> Item {
        Item::new()
            .with("n", i64::MIN)
            .with("text", "ä")
            .with(
                "l",
                vec![Value::Bool(true), Value::Map([("x".to_owned(), Value::Int(-1))].into())],
            )
            .with("ids", Value::BytesSet([Bytes::from_static(b"1")].into()))
            .with("names", Value::StrSet(["a".to_owned()].into()))
    }

    /// Rows outlive programs: version 1 must be readable for ever, byte for byte.
    #[test]
    fn version_1_is_frozen() {
        let item = Item::new().with("a", -1).with("b", "x").with("c", true);
        let row = encode(&key(), &item);
        let payload = [3, 1, b'a', tag::INT, 1, 1, b'b', tag::STR, 1, b'x', 1, b'c', tag::TRUE];
        assert_eq!(row[0], 1);
        assert_eq!(row[HEADER_BYTES..], payload);
        assert_eq!(row[1..HEADER_BYTES], 0x9598_f0ff_u32.to_le_bytes());
        assert_eq!(decode(&key(), &row), Ok(item));
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_damage() {
        let row = encode(&key(), &sample());
        assert_eq!(decode(&key(), &row), Ok(sample()));
        for end in 0..row.len() {
            assert!(
                matches!(decode(&key(), &row[..end]), Err(ReadError::Corrupt { .. })),
                "{end} bytes"
            );
        }
        for bit in 0..row.len() * 8 {
            let mut bad = row.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&key(), &bad), Err(ReadError::Corrupt { .. })), "bit {bit}");
        }
    }

    #[test]
    fn a_row_under_another_key_is_damage() {
        let row = encode(&Key::new("ps", "k"), &sample());
        assert!(decode(&Key::new("p", "sk"), &row).is_err());
        assert!(decode(&Key::new("ps", "l"), &row).is_err());
    }

    proptest! {
        /// Bytes under a right checksum that nobody encoded: an item or damage, no panic, no large allocation.
        #[test]
        fn arbitrary_payloads_are_survived(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut row = vec![VERSION];
            row.extend_from_slice(&checksum(&key(), &payload).to_le_bytes());
            row.extend_from_slice(&payload);
            let _ = decode(&key(), &row);
        }
    }
}
