//! API keys: who may do what.
//!
//! A key is shown once, when it is made or rotated, as `tw_<id>_<secret>`: the id finds it, the secret proves it. Stored is
//! a head for each key:
//!
//! | attribute | meaning |
//! |---|---|
//! | `name` | for people |
//! | `hash` | SHA-256 of the secret, hexadecimal |
//! | `old_hash`, `old_until_us` | the secret before the last rotation, and how long it still counts |
//! | `grants` | list of texts, see [`Grant`] |
//! | `created_us`, `expires_us`, `disabled` | as they say; without an end it lasts for ever |
//! | `requests_per_second`, `bytes_per_second` | quotas; absent if unbounded |
//! | `token` | of the last write, by which a lost reply is looked up |
//!
//! **Why a plain hash.** A slow hash protects what people choose, because few guesses find it. A secret is 256 bits of
//! chance: no number of guesses finds one, so that each request can be checked at the price of one SHA-256, and whoever
//! reads the store has nothing to send. Comparison takes the same time whatever is right about it.
//!
//! **Freshness.** A process reads all keys at once and goes by them for [`FRESH_US`]: unknown ids cost no read, and what
//! is disabled or deleted counts nowhere any longer than that (in the process that did it, no longer at all). When the
//! store cannot be read after that time, nobody is let in.
//!
//! While there is no key at all, nobody is asked for one; whether that is so where it runs is the server's to decide.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tidewheel_store::{
    Commit, CommitError, Condition, Item, Key, Query, Value, Write, limits as store_limits,
};
use zeroize::Zeroizing;

use crate::{Action, Engine, Error, Grant, Target, cursor::write_token, keys, limits};

/// How long a process goes by the keys that it has read, µs.
pub const FRESH_US: i64 = 5_000_000;

/// How a key begins.
const PREFIX: &str = "tw_";

/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;

/// Hexadecimal digits of a secret: 256 bits.
const SECRET_DIGITS: usize = 64;

/// How much a key may ask for; of each process, not of all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Requests each second.
    pub requests_per_second: Option<u32>,
    /// Bytes of requests' bodies each second.
    pub bytes_per_second: Option<u64>,
}

/// What a key is made with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewCredential {
    /// For people.
    pub name: String,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// When it ends, µs; `None` if never.
    pub expires_us: Option<i64>,
    /// How much it may ask for.
    pub quota: Quota,
}

/// A key without its secret.
#[derive(Clone, PartialEq)]
pub struct Credential {
    /// The public part of the key.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// When it was made, µs.
    pub created_us: i64,
    /// When it ends, µs; `None` if never.
    pub expires_us: Option<i64>,
    /// It counts no longer, until it is enabled again.
    pub disabled: bool,
    /// How much it may ask for.
    pub quota: Quota,
    /// Until when the secret before the last rotation counts, µs.
    pub old_until_us: Option<i64>,
    hash: String,
    old_hash: Option<String>,
    token: String,
}

impl fmt::Debug for Credential {
    /// Without the hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} `{}`)", self.id, self.name)
    }
}

impl Credential {
    /// True if it may do this.
    pub fn allows(&self, action: Action, target: Target<'_>) -> bool {
        self.grants.iter().any(|grant| grant.covers(action, target))
    }

    /// True while it counts.
    pub fn is_live(&self, now_us: i64) -> bool {
        !self.disabled && self.expires_us.is_none_or(|end| now_us < end)
    }

    /// True if this secret is the key's. Takes as long for a wrong one as for the right one.
    fn is_proved_by(&self, secret: &str, now_us: i64) -> bool {
        let hash = hash_of(secret);
        let same = |stored: &str| bool::from(stored.as_bytes().ct_eq(hash.as_bytes()));
        let now = same(&self.hash);
        let old = self.old_hash.as_deref().is_some_and(same);
        now | (old & self.old_until_us.is_some_and(|until| now_us < until))
    }

    fn decode(key: &Key, item: &Item) -> Result<Self, Error> {
        let read = || {
            let grant = |v: &Value| match v {
                Value::Str(text) => text.parse().ok(),
                _ => None,
            };
            Some(Self {
                id: key.sk.clone(),
                name: item.str("name")?.to_owned(),
                grants: item.list("grants").iter().map(grant).collect::<Option<_>>()?,
                created_us: item.int("created_us")?,
                expires_us: item.int("expires_us"),
                disabled: item.bool("disabled")?,
                quota: Quota {
                    requests_per_second: item
                        .int("requests_per_second")
                        .and_then(|n| u32::try_from(n).ok()),
                    bytes_per_second: item
                        .int("bytes_per_second")
                        .and_then(|n| u64::try_from(n).ok()),
                },
                old_until_us: item.int("old_until_us"),
                hash: item.str("hash")?.to_owned(),
                old_hash: item.str("old_hash").map(str::to_owned),
                token: item.str("token")?.to_owned(),
            })
        };
        read().ok_or_else(|| Error::Corrupt(format!("key {}", key.sk)))
    }

    fn encode(&self) -> Item {
        let grants: Vec<Value> = self.grants.iter().map(|g| g.to_string().into()).collect();
        let mut item = Item::new()
            .with("name", self.name.as_str())
            .with("grants", grants)
            .with("created_us", self.created_us)
            .with("disabled", self.disabled)
            .with("hash", self.hash.as_str())
            .with("token", self.token.as_str());
        for (name, number) in [
            ("expires_us", self.expires_us),
            ("old_until_us", self.old_until_us),
            ("requests_per_second", self.quota.requests_per_second.map(i64::from)),
            (
                "bytes_per_second",
                self.quota.bytes_per_second.map(|n| i64::try_from(n).unwrap_or(i64::MAX)),
            ),
        ] {
            if let Some(number) = number {
                item.set(name, number);
            }
        }
        if let Some(old) = &self.old_hash {
            item.set("old_hash", old.as_str());
        }
        item
    }
}

/// A whole key, to be shown once. It is never logged, and wiped when dropped.
pub struct ApiKey(Zeroizing<String>);

impl ApiKey {
    /// The text that a client sends.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// All keys, by id.
type Credentials = Arc<HashMap<String, Arc<Credential>>>;

/// The keys as a process has read them.
#[derive(Default)]
pub(crate) struct KnownCredentials {
    /// With when they were read, µs.
    known: Mutex<Option<(Credentials, i64)>>,
    /// Counts the changes that this process made: what was read before one is not remembered after it.
    changes: AtomicU64,
    /// Who finds them old reads them for all who wait.
    reading: tokio::sync::Mutex<()>,
}

/// The key that a request presents, by what its headers are called in lower case: a bearer token, the password of Basic
/// credentials whatever the user is called, or a header of its own. Credentials of another kind are somebody else's, as
/// the signature that a managed gateway asks for.
pub fn presented<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Cow<'a, str>> {
    let authorization = header("authorization").and_then(|value| {
        let (scheme, credentials) = value.trim().split_once(' ')?;
        let credentials = credentials.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(Cow::Borrowed(credentials));
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = String::from_utf8(STANDARD.decode(credentials).ok()?).ok()?;
        let (_, password) = decoded.split_once(':')?;
        Some(Cow::Owned(password.to_owned()))
    });
    let own = || ["x-api-key", "x-stream-api-key"].into_iter().find_map(&header);
    authorization.or_else(|| own().map(|key| Cow::Borrowed(key.trim())))
}

/// Who presents a key, and whether that is enough.
#[derive(Clone, Debug, PartialEq)]
pub enum Proof {
    /// There are no keys at all.
    NoKeys,
    /// None was presented, or none that is right.
    Refused,
    /// This key's.
    Of(Arc<Credential>),
}

fn hash_of(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn secret(engine: &Engine) -> Zeroizing<String> {
    Zeroizing::new(format!("{}{}", engine.env().token(), engine.env().token()))
}

fn whole(id: &str, secret: &str) -> ApiKey {
    ApiKey(Zeroizing::new(format!("{PREFIX}{id}_{secret}")))
}

/// The id and the secret of what may be a key.
fn parts(key: &str) -> Option<(&str, &str)> {
    let (id, secret) = key.strip_prefix(PREFIX)?.split_once('_')?;
    let digits = |text: &str, n: usize| {
        text.len() == n && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    (digits(id, ID_DIGITS) && digits(secret, SECRET_DIGITS)).then_some((id, secret))
}

impl Engine {
    /// Looks a presented key up. Keys are believed for [`FRESH_US`].
    ///
    /// # Errors
    /// Those of the store. Nobody is to be let in then.
    pub async fn prove(&self, presented: Option<&str>) -> Result<Proof, Error> {
        let known = self.known_credentials().await?;
        if known.is_empty() {
            return Ok(Proof::NoKeys);
        }
        let now_us = self.env().now_us();
        let proved = presented.and_then(parts).and_then(|(id, secret)| {
            let credential = known.get(id)?;
            let right = credential.is_proved_by(secret, now_us) & credential.is_live(now_us);
            right.then(|| Arc::clone(credential))
        });
        Ok(proved.map_or(Proof::Refused, Proof::Of))
    }

    /// A key that was proved before, if it still counts. Believed for [`FRESH_US`].
    pub async fn live_credential(&self, id: &str) -> Result<Option<Arc<Credential>>, Error> {
        let known = self.known_credentials().await?;
        let now_us = self.env().now_us();
        Ok(known.get(id).filter(|c| c.is_live(now_us)).cloned())
    }

    /// True if there is any key. Believed for [`FRESH_US`].
    pub async fn has_credentials(&self) -> Result<bool, Error> {
        Ok(!self.known_credentials().await?.is_empty())
    }

    /// All keys by id, without their secrets.
    pub async fn credentials(&self) -> Result<Vec<Credential>, Error> {
        let known = self.read_credentials().await?;
        let mut all: Vec<Credential> = known.values().map(|c| Credential::clone(c)).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    async fn known_credentials(&self) -> Result<Credentials, Error> {
        if let Some(known) = self.fresh_credentials() {
            return Ok(known);
        }
        let _reading = self.inner.credentials.reading.lock().await;
        match self.fresh_credentials() {
            Some(known) => Ok(known),
            None => self.read_credentials().await,
        }
    }

    fn fresh_credentials(&self) -> Option<Credentials> {
        let now_us = self.env().now_us();
        let known = self.inner.credentials.known.lock();
        let (known, _) = known.as_ref().filter(|(_, at)| (now_us - at).abs() < FRESH_US)?;
        Some(Arc::clone(known))
    }

    async fn read_credentials(&self) -> Result<Credentials, Error> {
        // What is read is as old as the moment before the read.
        let at = self.env().now_us();
        let changes = self.inner.credentials.changes.load(SeqCst);
        let mut found = HashMap::new();
        let mut next = Some(Query::all(keys::CREDENTIALS));
        while let Some(query) = next {
            let page = self.items(&query).await?;
            for (key, item) in &page.items {
                found.insert(key.sk.clone(), Arc::new(Credential::decode(key, item)?));
            }
            next = query.following(&page);
        }
        let found = Arc::new(found);
        let mut known = self.inner.credentials.known.lock();
        if self.inner.credentials.changes.load(SeqCst) == changes {
            *known = Some((Arc::clone(&found), at));
        }
        Ok(found)
    }

    fn forget_credentials(&self) {
        let mut known = self.inner.credentials.known.lock();
        self.inner.credentials.changes.fetch_add(1, SeqCst);
        *known = None;
    }

    /// Makes a key. What is answered beside it is shown once and kept nowhere.
    ///
    /// # Errors
    /// [`Error::Invalid`] and [`Error::Limit`] name what is wrong; those of the store.
    pub async fn create_credential(
        &self,
        new: NewCredential,
    ) -> Result<(Credential, ApiKey), Error> {
        check(&new)?;
        let count = self.read_credentials().await?.len();
        limit("keys", count + 1, limits::CREDENTIALS)?;
        let id = format!("{:016x}", self.env().random());
        let secret = secret(self);
        let credential = Credential {
            id: id.clone(),
            name: new.name,
            grants: new.grants,
            created_us: self.env().now_us(),
            expires_us: new.expires_us,
            disabled: false,
            quota: new.quota,
            old_until_us: None,
            hash: hash_of(&secret),
            old_hash: None,
            token: write_token(self),
        };
        let key = keys::credential(&id);
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let put = Write::put(key.clone(), credential.encode()).when(Condition::Absent);
            match self.commit(Commit::one(put)).await {
                Ok(_) => {
                    self.forget_credentials();
                    return Ok((credential, whole(&id, &secret)));
                }
                // The id is chance: who is there before us is our own earlier attempt.
                Err(CommitError::Conflict(failed)) => {
                    let there = failed.first().and_then(|f| f.current.as_ref());
                    if there.and_then(|i| i.str("hash")) != Some(&credential.hash) {
                        return Err(Error::Busy);
                    }
                    self.forget_credentials();
                    return Ok((credential, whole(&id, &secret)));
                }
                Err(CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Gives a key another secret; the one before counts for so many seconds more. `None` if there is no such key.
    ///
    /// # Errors
    /// [`Error::Limit`] if that is too long; those of the store.
    pub async fn rotate_credential(
        &self,
        id: &str,
        overlap_seconds: i64,
    ) -> Result<Option<(Credential, ApiKey)>, Error> {
        let most = limits::CREDENTIAL_OVERLAP_SECONDS;
        if !(0..=most).contains(&overlap_seconds) {
            return Err(Error::Invalid(format!(
                "an overlap has 0 to {most} seconds, not {overlap_seconds}"
            )));
        }
        let secret = secret(self);
        let hash = hash_of(&secret);
        let until_us = self.env().now_us() + overlap_seconds * 1_000_000;
        let changed = self.change_credential(id, |before| {
            // Rotated again since, by somebody else: it has happened all the same.
            if before.hash == hash || before.old_hash.as_deref() == Some(&hash) {
                return None;
            }
            Some(Credential {
                hash: hash.clone(),
                old_hash: Some(before.hash.clone()),
                old_until_us: Some(until_us),
                ..before.clone()
            })
        });
        Ok(changed.await?.map(|credential| (credential, whole(id, &secret))))
    }

    /// Disables a key, or enables it again. `None` if there is no such key.
    pub async fn disable_credential(
        &self,
        id: &str,
        disabled: bool,
    ) -> Result<Option<Credential>, Error> {
        self.change_credential(id, |before| {
            (before.disabled != disabled).then(|| Credential { disabled, ..before.clone() })
        })
        .await
    }

    /// Deletes a key; false if there is none.
    pub async fn delete_credential(&self, id: &str) -> Result<bool, Error> {
        let key = checked_key(id)?;
        let mut tried = false;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let delete = Write::delete(key.clone()).when(Condition::Exists);
            match self.commit(Commit::one(delete)).await {
                Ok(_) => {
                    self.forget_credentials();
                    return Ok(true);
                }
                Err(CommitError::Conflict(_)) => {
                    self.forget_credentials();
                    return Ok(tried);
                }
                Err(CommitError::Unknown(_)) => tried = true,
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }

    /// Changes a key until it is as wanted: `change` answers `None` once it is.
    async fn change_credential(
        &self,
        id: &str,
        change: impl Fn(&Credential) -> Option<Credential>,
    ) -> Result<Option<Credential>, Error> {
        let key = checked_key(id)?;
        for _ in 0..limits::COMMIT_ATTEMPTS {
            let Some(item) = self.get(&key).await? else { return Ok(None) };
            let before = Credential::decode(&key, &item)?;
            let Some(mut after) = change(&before) else {
                self.forget_credentials();
                return Ok(Some(before));
            };
            after.token = write_token(self);
            let put = Write::put(key.clone(), after.encode())
                .when(Condition::Equals("token".into(), before.token.as_str().into()));
            match self.commit(Commit::one(put)).await {
                // The next round finds it as wanted, or tries again.
                Ok(_) | Err(CommitError::Conflict(_) | CommitError::Unknown(_)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::Busy)
    }
}

fn checked_key(id: &str) -> Result<Key, Error> {
    if id.is_empty() || id.len() > store_limits::SORT_KEY_BYTES.min(limits::NAME_BYTES) {
        return Err(Error::Invalid(format!("a key's id has {ID_DIGITS} hexadecimal digits")));
    }
    Ok(keys::credential(id))
}

fn check(new: &NewCredential) -> Result<(), Error> {
    limit("bytes in a key's name", new.name.len(), limits::CREDENTIAL_NAME_BYTES)?;
    limit("grants of a key", new.grants.len(), limits::CREDENTIAL_GRANTS)?;
    let bytes = new.grants.iter().map(|g| g.pattern.len() + 8).sum();
    limit("bytes of a key's grants", bytes, limits::CREDENTIAL_GRANT_BYTES)?;
    if new.grants.is_empty() {
        return Err(Error::Invalid("a key needs at least one grant".to_owned()));
    }
    if new.quota.requests_per_second == Some(0) || new.quota.bytes_per_second == Some(0) {
        return Err(Error::Invalid("a quota must be above 0; disable the key instead".to_owned()));
    }
    Ok(())
}

fn limit(what: &'static str, got: usize, limit: usize) -> Result<(), Error> {
    if got > limit { Err(Error::Limit { what, got, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &'static str)]) -> Option<String> {
        let find = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        presented(find).map(Cow::into_owned)
    }

    #[test]
    fn a_key_is_presented_in_one_of_five_ways() {
        for headers in [
            ("authorization", "Bearer tw_1_2"),
            ("authorization", "bearer  tw_1_2 "),
            ("authorization", "Basic dTp0d18xXzI="),
            ("authorization", "basic OnR3XzFfMg=="),
            ("x-api-key", "tw_1_2"),
            ("x-stream-api-key", " tw_1_2"),
        ] {
            assert_eq!(of(&[headers]).as_deref(), Some("tw_1_2"), "{headers:?}");
        }
        let signed = ("authorization", "AWS4-HMAC-SHA256 Credential=x");
        assert_eq!(of(&[signed, ("x-api-key", "k")]).as_deref(), Some("k"));
        for bad in ["", "Bearer", "Basic !", "Basic dQ==", "Digest x"] {
            assert_eq!(of(&[("authorization", bad)]), None, "{bad}");
        }
    }

    #[test]
    fn only_what_looks_like_a_key_is_looked_up() {
        let good = format!("tw_{}_{}", "0a".repeat(8), "f9".repeat(32));
        assert!(parts(&good).is_some());
        for bad in ["", "tw_", "tw_a_b", &good.to_uppercase(), &good[1..], &format!("{good}0")] {
            assert!(parts(bad).is_none(), "{bad}");
        }
    }
}
