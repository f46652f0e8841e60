//! Blobs: immutable bytes under names that nobody can guess, and their frame.
//!
//! A name has an owner (the head that may name the blob, so that a collector can list what one head could reach)
//! and an id that begins with the time it was made, so that ids sort by age and a collector's mark can refuse a
//! writer that was frozen for longer than the grace period.
//!
//! Stored bytes are framed with a length and a checksum over name and bytes, which every read verifies: a whole blob under
//! another's name is damage too. A back end stores
//! [`seal`]'s output and returns [`open`]'s; it never hands out bytes that failed the check.

use bytes::Bytes;

use crate::{Env, Invalid, ReadError, limits};

/// The name of a blob.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName {
    /// Which head may name it, for example a partition's id. `A-Za-z0-9._-`.
    pub owner: String,
    /// Time and chance. `A-Za-z0-9._-`.
    pub id: String,
}

/// Digits of the time part: microseconds in base 32 reach beyond the year 36,000.
const TIME_DIGITS: usize = 12;
const CHANCE_DIGITS: usize = 13;
const OBJECT_BIT: usize = 16;
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl BlobName {
    /// A name from its two parts, as they were stored.
    pub fn new(owner: impl Into<String>, id: impl Into<String>) -> Self {
        Self { owner: owner.into(), id: id.into() }
    }

    /// A new name, made now.
    pub fn fresh(owner: impl Into<String>, env: &Env) -> Self {
        let mut id = String::with_capacity(TIME_DIGITS + CHANCE_DIGITS);
        push_digits(&mut id, env.now_us().max(0) as u64, TIME_DIGITS);
        push_digits(&mut id, env.random(), CHANCE_DIGITS);
        Self { owner: owner.into(), id }
    }

    /// When the name was made, in microseconds since 1970; `None` if the id is not of that form.
    pub fn made_us(&self) -> Option<i64> {
        let digits = self.id.as_bytes().get(..TIME_DIGITS)?;
        digits.iter().try_fold(0i64, |n, d| {
            let digit = DIGITS.iter().position(|x| x == d)? as i64;
            n.checked_mul(32)?.checked_add(digit)
        })
    }

    /// Marks the name of a blob that is too large to be an item: the first digit of chance, of whose five bits
    /// chance fills four, takes the fifth.
    fn mark_object(&mut self) {
        if let Some(digit) = self.first_chance_digit() {
            let marked = DIGITS[digit | OBJECT_BIT] as char;
            self.id.replace_range(TIME_DIGITS..=TIME_DIGITS, marked.encode_utf8(&mut [0; 4]));
        }
    }

    /// True if the name was made for a blob larger than [`limits::INLINE_BLOB_BYTES`], so that a back end with two
    /// places for blobs looks in the right one first. A hint: names made otherwise do not have it.
    pub fn hints_object(&self) -> bool {
        self.first_chance_digit().is_some_and(|digit| digit & OBJECT_BIT != 0)
    }

    fn first_chance_digit(&self) -> Option<usize> {
        let digit = self.id.as_bytes().get(TIME_DIGITS)?;
        DIGITS.iter().position(|d| d == digit)
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let fits = |part: &str| {
            !part.is_empty()
                && part.len() <= limits::BLOB_NAME_BYTES
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if fits(&self.owner) && fits(&self.id) {
            Ok(())
        } else {
            Err(Invalid::BlobName { name: self.clone() })
        }
    }
}

impl std::fmt::Display for BlobName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.id)
    }
}

fn push_digits(out: &mut String, mut n: u64, count: usize) {
    let mut digits = [0u8; TIME_DIGITS + CHANCE_DIGITS];
    for digit in digits[..count].iter_mut().rev() {
        *digit = DIGITS[(n % 32) as usize];
        n /= 32;
    }
    out.extend(digits[..count].iter().map(|&d| d as char));
}

/// Bytes to store under a name.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The name.
    pub name: BlobName,
    /// The bytes, at most [`limits::BLOB_BYTES`].
    pub body: Bytes,
}

impl Blob {
    /// A blob of these bytes under a fresh name.
    pub fn fresh(owner: impl Into<String>, body: impl Into<Bytes>, env: &Env) -> Self {
        let (mut name, body) = (BlobName::fresh(owner, env), body.into());
        if body.len() + FRAME_BYTES > limits::INLINE_BLOB_BYTES {
            name.mark_object();
        }
        Self { name, body }
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        self.name.check()?;
        if self.body.len() > limits::BLOB_BYTES {
            return Err(Invalid::BlobSize { name: self.name.clone(), bytes: self.body.len() });
        }
        Ok(())
    }
}

/// Bytes that the frame adds to a blob: its length and its checksum.
pub const FRAME_BYTES: usize = 12;

/// Frames a blob's bytes: length (8 bytes) and CRC-32C of length, name and body (4 bytes), little-endian, then the body.
pub fn seal(name: &BlobName, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let sum = checksum(name, &length, body);
    let mut out = Vec::with_capacity(FRAME_BYTES + body.len());
    out.extend_from_slice(&length);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(body);
    out
}

fn checksum(name: &BlobName, length: &[u8], body: &[u8]) -> u32 {
    // No part of a name has a slash, so that no two names give the same text.
    let parts = [name.owner.as_bytes(), b"/", name.id.as_bytes(), body];
    parts.into_iter().fold(crc32c::crc32c(length), crc32c::crc32c_append)
}

/// Checks a frame and returns the bytes within.
///
/// # Errors
/// [`ReadError::Corrupt`] if the length or the checksum does not fit.
pub fn open(name: &BlobName, stored: Bytes) -> Result<Bytes, ReadError> {
    let corrupt = |detail: String| ReadError::Corrupt { what: format!("blob {name}"), detail };
    let Some((frame, body)) = stored.split_at_checked(FRAME_BYTES) else {
        return Err(corrupt(format!("{} bytes are no frame", stored.len())));
    };
    let (length, sum) = frame.split_at(8);
    if length != (body.len() as u64).to_le_bytes() {
        return Err(corrupt(format!(
            "{} bytes are not the length it was written with",
            body.len()
        )));
    }
    if sum != checksum(name, length, body).to_le_bytes() {
        return Err(corrupt("the checksum does not fit".to_owned()));
    }
    Ok(stored.slice(FRAME_BYTES..))
}

/// Takes a range of a blob's bytes; the part beyond the end is missing, as with an object's range read.
pub fn slice(body: Bytes, range: Option<std::ops::Range<u64>>) -> Bytes {
    let Some(range) = range else { return body };
    let length = body.len() as u64;
    let start = range.start.min(length);
    let end = range.end.clamp(start, length);
    body.slice(start as usize..end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> BlobName {
        BlobName::new("o", "b")
    }

    #[test]
    fn a_frame_opens_to_what_was_sealed() {
        for body in [&b""[..], b"x", &[0xff; 10_000]] {
            let stored = seal(&name(), body);
            assert_eq!(stored.len(), body.len() + FRAME_BYTES);
            assert_eq!(open(&name(), stored.into()).as_deref(), Ok(body));
        }
    }

    /// Blobs outlive programs.
    #[test]
    fn the_frame_is_frozen() {
        assert_eq!(seal(&name(), b"tide"), *b"\x04\0\0\0\0\0\0\0\x16\xb2H,tide");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_damage() {
        let stored = seal(&name(), b"a segment of records");
        let elsewhere = open(&BlobName::new("o", "c"), stored.clone().into());
        assert!(matches!(elsewhere, Err(ReadError::Corrupt { .. })), "another's bytes");
        for end in 0..stored.len() {
            let answer = open(&name(), stored[..end].to_vec().into());
            assert!(matches!(answer, Err(ReadError::Corrupt { .. })), "{end} bytes");
        }
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(open(&name(), bad.into()), Err(ReadError::Corrupt { .. })),
                "bit {bit}"
            );
        }
        let longer = [&stored[..], b"x"].concat();
        assert!(open(&name(), longer.into()).is_err());
        let zeros = vec![0; stored.len()];
        assert!(open(&name(), zeros.into()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn names_sort_by_the_time_they_were_made() {
        let env = Env::simulated(7, 1_700_000_000_000_000, 0);
        let mut names = Vec::new();
        for n in 0..200 {
            let made = env.now_us();
            let name = BlobName::fresh("p1", &env);
            assert_eq!(name.made_us(), Some(made));
            assert_eq!(name.check(), Ok(()));
            names.push(name);
            env.sleep(std::time::Duration::from_millis(1 + n * n)).await;
        }
        assert!(names.is_sorted());
        names.dedup();
        assert_eq!(names.len(), 200);
    }

    #[test]
    fn times_reach_far_and_bad_ids_have_none() {
        let id = |us: u64| {
            let mut id = String::new();
            push_digits(&mut id, us, TIME_DIGITS);
            BlobName::new("o", id)
        };
        for us in [0, 1, 31, 32, 1_700_000_000_000_000, (1 << 60) - 1] {
            assert_eq!(id(us).made_us(), Some(us as i64));
        }
        for bad in ["", "short", "0000000000u0", "00000000000ä"] {
            assert_eq!(BlobName::new("o", bad).made_us(), None, "{bad}");
        }
    }

    #[test]
    fn names_say_where_to_look_first() {
        let env = Env::system();
        for _ in 0..100 {
            let small = Blob::fresh("o", vec![0; limits::INLINE_BLOB_BYTES - FRAME_BYTES], &env);
            let large =
                Blob::fresh("o", vec![0; limits::INLINE_BLOB_BYTES - FRAME_BYTES + 1], &env);
            assert!(!small.name.hints_object() && large.name.hints_object());
            assert_eq!(small.name.id.len(), large.name.id.len());
            assert!(!BlobName::fresh("o", &env).hints_object());
        }
    }
}
