//! Blobs: immutable bytes under names that nobody can guess, and their frame.
//!
//! A name has an owner (the head that may name the blob, so that a collector can list what one head could reach)
//! and an id that begins with the time it was made, so that ids sort by age and a collector's mark can refuse a
//! writer that was frozen for longer than the grace period.
//!
//! Stored bytes are framed with a length and a checksum, which every read verifies. A back end stores
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
        Self { name: BlobName::fresh(owner, env), body: body.into() }
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

/// Frames a blob's bytes: length (8 bytes) and CRC-32C of length and body (4 bytes), little-endian, then the body.
pub fn seal(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&length), body);
    let mut out = Vec::with_capacity(FRAME_BYTES + body.len());
    out.extend_from_slice(&length);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(body);
    out
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
    let found = crc32c::crc32c_append(crc32c::crc32c(length), body);
    if sum != found.to_le_bytes() {
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
