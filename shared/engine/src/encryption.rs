//! Encryption at rest: envelopes around what is stored, and where their keys come from.
//!
//! ```text
//! "TWE1"                       magic and version
//! master key's id   u8 length, text
//! wrapped data key  u16 length, bytes
//! nonce             12 bytes
//! AES-256-GCM of the content, and its tag of 16 bytes
//! ```
//!
//! Every envelope carries its own data key, wrapped by a master key that never leaves its [`KeyProvider`]: a blob and the
//! provider are all that is needed to read it, whatever became of the rest. What stands before the content is
//! authenticated with it, and so is the place it was stored at, so that no envelope passes for another.
//!
//! A process seals with one data key for at most [`DATA_KEY_HOURS`] or [`DATA_KEY_SEALS`] envelopes, under a nonce of 96
//! random bits each: far below where chance could repeat one. A failure of any kind refuses the write. Nothing here
//! falls back to plain text, and nothing here puts a key or a content into an error or a log.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use aes_gcm::{
    Aes256Gcm, Nonce, Tag,
    aead::{AeadInOut, KeyInit},
};
use async_trait::async_trait;
use bytes::{Buf, Bytes};
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};
use tidewheel_store::{Commit, CommitError, Condition, Env, Item, Write};
use zeroize::Zeroizing;

use crate::{
    Engine, Error, keys,
    limits::{DATA_KEY_HOURS, DATA_KEY_SEALS},
    segment::take,
};

const MAGIC: &[u8; 4] = b"TWE1";
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// Data keys that a process keeps unwrapped for reading.
const OPENED_KEYS: usize = 1000;

/// Bytes of a master key's id.
const KEY_ID_BYTES: usize = 255;

/// Why something could not be encrypted or decrypted. Nothing is stored, or served, then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Encryption was asked for, and this process was given no keys.
    #[error("no encryption key is configured")]
    NotConfigured,
    /// The master key is not one that this process was given.
    #[error("master key `{0}` is needed and not among the configured keys")]
    UnknownMaster(String),
    /// The content was not sealed with this key for this place, or it was changed since.
    #[error(
        "what is stored does not open with master key `{0}`: it is damaged, or the key is another"
    )]
    DoesNotOpen(String),
    /// The keys that are configured cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The keeper of the keys does not answer now.
    #[error("{0}")]
    Unavailable(String),
}

/// A key of 256 bits. It is wiped from memory when it goes, and never shows itself.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<[u8; 32]>);

impl SecretKey {
    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new one.
    pub fn random(env: &Env) -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        fill(env, &mut *bytes);
        Self(bytes)
    }

    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = Zeroizing::new([0u8; 32]);
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// 64 hexadecimal digits, for a key file and for nothing else.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.iter().map(|b| format!("{b:02x}")).collect())
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new((&*self.0).into())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// A data key as it is stored: only its provider can tell what it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WrappedKey {
    /// The id of the master key that it is wrapped by, at most 255 bytes.
    pub master: String,
    /// What the provider made of it.
    pub bytes: Bytes,
}

/// A data key, in both forms.
#[derive(Clone, Debug)]
pub struct DataKey {
    /// To encrypt with.
    pub secret: SecretKey,
    /// To store beside what was encrypted.
    pub wrapped: WrappedKey,
}

/// Who makes data keys and unwraps them again: a key file on a machine, a key service in a cloud.
#[async_trait]
pub trait KeyProvider: fmt::Debug + Send + Sync {
    /// A new data key, wrapped by the present master key.
    ///
    /// # Errors
    /// Whatever keeps it from being made. The caller then stores nothing.
    async fn data_key(&self, env: &Env) -> Result<DataKey, KeyError>;

    /// Unwraps a data key.
    ///
    /// # Errors
    /// [`KeyError::UnknownMaster`], [`KeyError::DoesNotOpen`], [`KeyError::Unavailable`].
    async fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<SecretKey, KeyError>;
}

/// Master keys in memory: the first wraps, all unwrap. So a key is changed by putting a new one before it.
#[derive(Clone, Debug)]
pub struct MasterKeys {
    present: String,
    keys: BTreeMap<String, SecretKey>,
}

impl MasterKeys {
    /// Keys, the present one first.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] without any.
    pub fn new(keys: Vec<SecretKey>) -> Result<Self, KeyError> {
        let Some(first) = keys.first() else {
            return Err(KeyError::Invalid("there is no key".to_owned()));
        };
        let present = master_id(first);
        Ok(Self { present, keys: keys.into_iter().map(|k| (master_id(&k), k)).collect() })
    }

    /// Reads a key file: a key of 64 hexadecimal digits on each line, the present one first. Empty lines and what
    /// follows a `#` are not read.
    ///
    /// # Errors
    /// [`KeyError::Invalid`] names the line, never what stands on it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            keys.push(SecretKey::parse(line).ok_or_else(|| {
                let at = at + 1;
                KeyError::Invalid(format!("line {at} is no key of 64 hexadecimal digits"))
            })?);
        }
        Self::new(keys)
    }

    /// Ids of the keys.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }
}

#[async_trait]
impl KeyProvider for MasterKeys {
    async fn data_key(&self, env: &Env) -> Result<DataKey, KeyError> {
        let master = self.present.clone();
        let unknown = || KeyError::UnknownMaster(master.clone());
        let cipher = self.keys.get(&master).ok_or_else(unknown)?.cipher();
        let secret = SecretKey::random(env);
        let nonce = fresh_nonce(env);
        let mut bytes = Vec::with_capacity(NONCE_BYTES + 32 + TAG_BYTES);
        bytes.extend_from_slice(&nonce);
        bytes.extend_from_slice(&*secret.0);
        seal_from(&cipher, &nonce, master.as_bytes(), &mut bytes, NONCE_BYTES)?;
        Ok(DataKey { secret, wrapped: WrappedKey { master, bytes: bytes.into() } })
    }

    async fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<SecretKey, KeyError> {
        let master = &wrapped.master;
        let key = self.keys.get(master).ok_or_else(|| KeyError::UnknownMaster(master.clone()))?;
        let bad = || KeyError::DoesNotOpen(master.clone());
        let mut bytes = wrapped.bytes.clone();
        let nonce = take_nonce(&mut bytes).ok_or_else(bad)?;
        let mut secret = Zeroizing::new(bytes.to_vec());
        let length =
            open_in_place(&key.cipher(), &nonce, master.as_bytes(), &mut secret).ok_or_else(bad)?;
        let secret = <[u8; 32]>::try_from(&secret[..length]).map_err(|_| bad())?;
        Ok(SecretKey::from_bytes(secret))
    }
}

/// The id of a master key: part of a digest, so that it says which key it is and nothing about it.
fn master_id(key: &SecretKey) -> String {
    let mut hash = Sha256::new();
    hash.update(b"tidewheel master key");
    hash.update(*key.0);
    hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()
}

fn fill(env: &Env, bytes: &mut [u8]) {
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&env.random().to_le_bytes()[..part.len()]);
    }
}

fn fresh_nonce(env: &Env) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    fill(env, &mut nonce);
    nonce
}

fn take_nonce(bytes: &mut Bytes) -> Option<[u8; NONCE_BYTES]> {
    take(bytes, NONCE_BYTES)?.as_ref().try_into().ok()
}

/// Encrypts `out[from..]` in place and puts the tag behind it.
fn seal_from(
    cipher: &Aes256Gcm,
    nonce: &[u8; NONCE_BYTES],
    associated: &[u8],
    out: &mut Vec<u8>,
    from: usize,
) -> Result<(), KeyError> {
    let tag = cipher
        .encrypt_inout_detached(&Nonce::from(*nonce), associated, (&mut out[from..]).into())
        .map_err(|_| KeyError::Invalid("the content is too large for the cipher".to_owned()))?;
    out.extend_from_slice(&tag);
    Ok(())
}

/// Decrypts what a tag follows, in place; answers the length of the content.
fn open_in_place(
    cipher: &Aes256Gcm,
    nonce: &[u8; NONCE_BYTES],
    associated: &[u8],
    body: &mut [u8],
) -> Option<usize> {
    let length = body.len().checked_sub(TAG_BYTES)?;
    let (content, tag) = body.split_at_mut(length);
    let tag = Tag::try_from(&*tag).ok()?;
    cipher.decrypt_inout_detached(&Nonce::from(*nonce), associated, content.into(), &tag).ok()?;
    Some(length)
}

/// A data key at work.
pub(crate) struct Sealer {
    cipher: Aes256Gcm,
    wrapped: WrappedKey,
    made_us: i64,
    seals: AtomicU64,
}

impl Sealer {
    /// Puts content into an envelope that opens only as what is stored at `place`.
    pub(crate) fn seal(&self, env: &Env, place: &str, content: &[u8]) -> Result<Bytes, Error> {
        self.seals.fetch_add(1, Relaxed);
        let nonce = fresh_nonce(env);
        let WrappedKey { master, bytes } = &self.wrapped;
        let mut out = Vec::with_capacity(
            MAGIC.len() + 3 + master.len() + bytes.len() + NONCE_BYTES + content.len() + TAG_BYTES,
        );
        out.extend_from_slice(MAGIC);
        out.push(master.len() as u8);
        out.extend_from_slice(master.as_bytes());
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(&nonce);
        let from = out.len();
        let associated = associated(&out, place);
        out.extend_from_slice(content);
        seal_from(&self.cipher, &nonce, &associated, &mut out, from)?;
        Ok(out.into())
    }
}

/// What is authenticated with the content: the envelope's front, and the place.
fn associated(front: &[u8], place: &str) -> Vec<u8> {
    [front, place.as_bytes()].concat()
}

/// An envelope, taken apart.
struct Envelope {
    wrapped: WrappedKey,
    nonce: [u8; NONCE_BYTES],
    front: Bytes,
    /// Content and tag.
    body: Bytes,
}

impl Envelope {
    fn read(blob: &Bytes) -> Option<Self> {
        let mut rest = blob.clone();
        if take(&mut rest, MAGIC.len())? != MAGIC[..] {
            return None;
        }
        let length = take(&mut rest, 1)?.get_u8();
        let master = String::from_utf8(take(&mut rest, usize::from(length))?.to_vec()).ok()?;
        let length = take(&mut rest, 2)?.get_u16_le();
        let bytes = take(&mut rest, usize::from(length))?;
        let nonce = take_nonce(&mut rest)?;
        let front = blob.slice(..blob.len() - rest.len());
        Some(Self { wrapped: WrappedKey { master, bytes }, nonce, front, body: rest })
    }
}

/// True if the blob of a segment or of a state is an envelope: a plain one begins otherwise.
pub(crate) fn is_sealed(blob: &[u8]) -> bool {
    blob.starts_with(MAGIC)
}

/// The keys of a process.
pub(crate) struct Keyring {
    provider: Option<Arc<dyn KeyProvider>>,
    present: tokio::sync::Mutex<Option<Arc<Sealer>>>,
    opened: Cache<WrappedKey, Arc<Aes256Gcm>>,
}

impl Keyring {
    pub(crate) fn new(provider: Option<Arc<dyn KeyProvider>>) -> Self {
        Self { provider, present: tokio::sync::Mutex::default(), opened: Cache::new(OPENED_KEYS) }
    }

    fn provider(&self) -> Result<&dyn KeyProvider, KeyError> {
        self.provider.as_deref().ok_or(KeyError::NotConfigured)
    }
}

impl Engine {
    /// The data key to seal with.
    pub(crate) async fn sealer(&self) -> Result<Arc<Sealer>, Error> {
        let keyring = &self.inner.keyring;
        let provider = keyring.provider()?;
        let mut present = keyring.present.lock().await;
        let now_us = self.env().now_us();
        let fresh = |sealer: &&Arc<Sealer>| {
            now_us - sealer.made_us < DATA_KEY_HOURS * 3_600_000_000
                && sealer.seals.load(Relaxed) < DATA_KEY_SEALS
        };
        if let Some(sealer) = present.as_ref().filter(fresh) {
            return Ok(Arc::clone(sealer));
        }
        let DataKey { secret, wrapped } = provider.data_key(self.env()).await?;
        if wrapped.master.len() > KEY_ID_BYTES || wrapped.bytes.len() > usize::from(u16::MAX) {
            return Err(KeyError::Invalid("the provider's key is too long".to_owned()).into());
        }
        if present.as_ref().is_none_or(|p| p.wrapped.master != wrapped.master) {
            self.record_master(&wrapped.master).await?;
        }
        let cipher = secret.cipher();
        let sealer =
            Arc::new(Sealer { cipher, wrapped, made_us: now_us, seals: AtomicU64::new(0) });
        *present = Some(Arc::clone(&sealer));
        Ok(sealer)
    }

    /// Notes in the store that a master key is in use, before anything is sealed under it.
    async fn record_master(&self, master: &str) -> Result<(), Error> {
        let item = Item::new().with("since_us", self.env().now_us());
        let write = Write::put(keys::master_key(master), item).when(Condition::Absent);
        match self.commit(Commit::one(write)).await {
            Ok(_) | Err(CommitError::Conflict(_)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Ids of the master keys that something in the store may be sealed under: whoever opens the store without them
    /// has the wrong keys.
    pub async fn master_keys_in_use(&self) -> Result<Vec<String>, Error> {
        let items =
            self.list(keys::MASTER_KEYS, None, tidewheel_store::limits::QUERY_ITEMS).await?;
        Ok(items.into_iter().map(|(key, _)| key.sk).collect())
    }

    /// Opens an envelope that was sealed for `place`.
    pub(crate) async fn unseal(&self, place: &str, envelope: Bytes) -> Result<Bytes, Error> {
        let envelope = Envelope::read(&envelope)
            .ok_or_else(|| Error::Corrupt(format!("the envelope of {place} does not decode")))?;
        let keyring = &self.inner.keyring;
        let cipher = match keyring.opened.get(&envelope.wrapped) {
            Some(cipher) => cipher,
            None => {
                let secret = keyring.provider()?.unwrap_key(&envelope.wrapped).await?;
                let cipher = Arc::new(secret.cipher());
                keyring.opened.insert(envelope.wrapped.clone(), Arc::clone(&cipher));
                cipher
            }
        };
        let associated = associated(&envelope.front, place);
        let mut content = envelope.body.to_vec();
        match open_in_place(&cipher, &envelope.nonce, &associated, &mut content) {
            Some(length) => {
                content.truncate(length);
                Ok(content.into())
            }
            None => Err(KeyError::DoesNotOpen(envelope.wrapped.master).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidewheel_store::Memory;

    use super::*;
    use crate::Settings;

    fn env(seed: u64) -> Env {
        Env::simulated(seed, 1_767_225_600_000_000, 0)
    }

    fn engine(env: &Env, keys: &MasterKeys) -> Engine {
        let settings = Settings { keys: Some(Arc::new(keys.clone())), ..Settings::default() };
        Engine::new(Arc::new(Memory::new()), env.clone(), settings)
    }

    fn key(byte: u8) -> SecretKey {
        SecretKey::from_bytes([byte; 32])
    }

    #[tokio::test(start_paused = true)]
    async fn content_comes_out_as_it_went_in_and_only_at_its_place() {
        let env = env(1);
        let engine = engine(&env, &MasterKeys::new(vec![key(1)]).unwrap());
        let sealer = engine.sealer().await.unwrap();
        for content in [&b""[..], b"x", &[7; 100_000]] {
            let sealed = sealer.seal(&env, "here", content).unwrap();
            assert!(is_sealed(&sealed));
            assert_eq!(engine.unseal("here", sealed.clone()).await.unwrap(), content);
            let moved = engine.unseal("there", sealed).await;
            assert!(matches!(moved, Err(Error::Encryption(KeyError::DoesNotOpen(_)))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_changed_bit_and_every_truncation_is_an_error() {
        let env = env(2);
        let engine = engine(&env, &MasterKeys::new(vec![key(1)]).unwrap());
        let sealed = engine.sealer().await.unwrap().seal(&env, "p", b"some content").unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(engine.unseal("p", changed.into()).await.is_err(), "bit {at}");
            assert!(engine.unseal("p", sealed.slice(..at)).await.is_err(), "cut at {at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_envelopes_of_one_content_have_nothing_in_common() {
        let env = env(3);
        let engine = engine(&env, &MasterKeys::new(vec![key(1)]).unwrap());
        let sealer = engine.sealer().await.unwrap();
        let content = [b'a'; 64];
        let seal = || sealer.seal(&env, "p", &content).unwrap();
        let (one, other) = (seal(), seal());
        assert_ne!(one[one.len() - 80..], other[other.len() - 80..]);
        assert!(!one.windows(8).any(|w| w == &content[..8]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_master_key_before_the_old_one_reads_both() {
        let env = env(4);
        let old = engine(&env, &MasterKeys::new(vec![key(1)]).unwrap());
        let sealed = old.sealer().await.unwrap().seal(&env, "p", b"old").unwrap();
        let rotated = engine(&env, &MasterKeys::new(vec![key(2), key(1)]).unwrap());
        assert_eq!(rotated.unseal("p", sealed.clone()).await.unwrap(), &b"old"[..]);
        let newer = rotated.sealer().await.unwrap().seal(&env, "p", b"new").unwrap();
        let refused = old.unseal("p", newer).await;
        assert!(matches!(refused, Err(Error::Encryption(KeyError::UnknownMaster(_)))));

        let none = Engine::new(Arc::new(Memory::new()), env.clone(), Settings::default());
        let refused = none.unseal("p", sealed).await.unwrap_err();
        assert_eq!(refused, Error::Encryption(KeyError::NotConfigured));
    }

    #[tokio::test(start_paused = true)]
    async fn a_data_key_is_replaced_after_its_time() {
        let env = env(5);
        let engine = engine(&env, &MasterKeys::new(vec![key(1)]).unwrap());
        let first = engine.sealer().await.unwrap();
        assert!(Arc::ptr_eq(&first, &engine.sealer().await.unwrap()));
        env.sleep(std::time::Duration::from_secs(3600 * DATA_KEY_HOURS as u64)).await;
        let second = engine.sealer().await.unwrap();
        assert_ne!(first.wrapped, second.wrapped);
        second.seals.store(DATA_KEY_SEALS, Relaxed);
        assert_ne!(second.wrapped, engine.sealer().await.unwrap().wrapped);
        assert_eq!(engine.master_keys_in_use().await.unwrap(), vec![first.wrapped.master.clone()]);
    }

    #[test]
    fn key_files_are_read_and_their_mistakes_named_by_line() {
        let (one, two) = (key(0xab).to_hex(), key(0xcd).to_hex());
        let text = format!("# keys\n\n{} # present\n{}\n", one.as_str(), two.to_uppercase());
        let keys = MasterKeys::parse(&text).unwrap();
        assert_eq!(keys.ids().count(), 2);
        assert_eq!(keys.present, master_id(&key(0xab)));
        for (bad, said) in [("", "no key"), ("\nzz", "line 2"), ("ab", "line 1")] {
            let error = MasterKeys::parse(bad).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(!format!("{keys:?}").contains("abab"));
    }
}
