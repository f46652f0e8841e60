//! The file with the master keys of streams that are encrypted at rest.
//!
//! It lies in the data folder unless an option names another, and is made when it is first needed: a machine that
//! encrypts nothing has none. A file that was named must be there, since a misspelt name would otherwise make a new key.
//! Nor is one made when the store already holds something that was encrypted: it would not open it.
//!
//! The format is [`MasterKeys::parse`]'s: to change the key, put a new line above the old ones.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidewheel_engine::{
    DataKey, Engine, Error, KeyError, KeyProvider, MasterKeys, SecretKey, WrappedKey,
};
use tidewheel_store::Env;

use crate::StartError;

/// The name of the file in the data folder.
const NAME: &str = "encryption-keys";

/// Master keys from a file, read or made when they are first needed.
#[derive(Debug)]
pub(crate) struct KeyFile {
    path: PathBuf,
    keys: Mutex<Option<MasterKeys>>,
    /// Cleared when the store already holds something that was encrypted.
    may_make: Mutex<bool>,
}

impl KeyFile {
    /// The file in the data folder, or the one that was named.
    ///
    /// # Errors
    /// [`StartError::Keys`] if a file is there, or should be, and cannot be read.
    pub(crate) fn open(folder: &Path, named: Option<&Path>) -> Result<Arc<Self>, StartError> {
        let path = named.map_or_else(|| folder.join(NAME), Path::to_owned);
        let failed = |why: String| StartError::Keys { path: path.clone(), why };
        let keys = match read(&path) {
            Ok(keys) => Some(keys.map_err(|e| failed(e.to_string()))?),
            Err(e) if e.kind() == io::ErrorKind::NotFound && named.is_none() => None,
            Err(e) => return Err(failed(e.to_string())),
        };
        Ok(Arc::new(Self { path, keys: Mutex::new(keys), may_make: Mutex::new(true) }))
    }

    /// Compares the keys with those that the store needs.
    ///
    /// # Errors
    /// [`StartError::Keys`] if the store holds something that was encrypted and none of the keys opens any of it.
    pub(crate) async fn check(&self, engine: &Engine) -> Result<(), StartError> {
        let failed = |why: String| StartError::Keys { path: self.path.clone(), why };
        let used = engine.master_keys_in_use().await.map_err(|e: Error| failed(e.to_string()))?;
        if used.is_empty() {
            return Ok(());
        }
        *self.may_make.lock() = false;
        let keys = self.keys.lock();
        let Some(keys) = &*keys else {
            return Err(failed(format!(
                "it is not there, and what is stored was encrypted with master key `{}`",
                used.join("`, `")
            )));
        };
        let missing: Vec<_> = used.iter().filter(|u| keys.ids().all(|id| id != *u)).collect();
        if missing.len() == used.len() {
            return Err(failed(format!(
                "none of its keys is `{}`, with which what is stored was encrypted",
                used.join("`, `")
            )));
        }
        for id in missing {
            tracing::warn!(
                key = id.as_str(),
                "what was encrypted with this master key cannot be read"
            );
        }
        Ok(())
    }

    fn make(&self) -> Result<MasterKeys, KeyError> {
        let failed = |e: String| KeyError::Invalid(format!("{}: {e}", self.path.display()));
        if !*self.may_make.lock() {
            return Err(failed("the file is gone".to_owned()));
        }
        let key = SecretKey::random(&Env::system());
        let text = format!(
            "# Master keys of tidewheel, 64 hexadecimal digits each; the first encrypts, all decrypt.\n\
             # Whoever has this file can read what is encrypted. Without it nobody can: keep a copy.\n{}\n",
            key.to_hex().as_str()
        );
        write(&self.path, &text).map_err(|e| failed(e.to_string()))?;
        tracing::info!(file = %self.path.display(), "made the key file for encryption at rest");
        MasterKeys::new(vec![key])
    }

    /// The keys, if there are any or may be made.
    fn keys(&self, make: bool) -> Result<MasterKeys, KeyError> {
        let mut keys = self.keys.lock();
        match &*keys {
            Some(keys) => Ok(keys.clone()),
            None if make => {
                let made = self.make()?;
                *keys = Some(made.clone());
                Ok(made)
            }
            None => Err(KeyError::NotConfigured),
        }
    }
}

#[async_trait]
impl KeyProvider for KeyFile {
    async fn data_key(&self, env: &Env) -> Result<DataKey, KeyError> {
        self.keys(true)?.data_key(env).await
    }

    async fn unwrap_key(&self, wrapped: &WrappedKey) -> Result<SecretKey, KeyError> {
        self.keys(false)?.unwrap_key(wrapped).await
    }
}

fn read(path: &Path) -> io::Result<Result<MasterKeys, KeyError>> {
    warn_if_open(path)?;
    Ok(MasterKeys::parse(&fs::read_to_string(path)?))
}

#[cfg(unix)]
fn warn_if_open(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        let mode = format!("{:o}", mode & 0o777);
        tracing::warn!(file = %path.display(), mode, "others on this machine can read the key file");
    }
    Ok(())
}

#[cfg(not(unix))]
fn warn_if_open(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(|_| ())
}

/// Writes a new file that only its owner can read, durably, and all of it or none.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    match path.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tidewheel_engine::{Configure, PushItem, Pushed, Settings};
    use tidewheel_store::Memory;

    use super::*;

    fn engine(store: &Memory, keys: Arc<KeyFile>) -> Engine {
        let settings = Settings { keys: Some(keys), ..Settings::default() };
        Engine::new(Arc::new(store.clone()), Env::system(), settings)
    }

    fn encrypted() -> Configure {
        let options = serde_json::json!({"encryptionEnabled": true});
        Configure { options: options.as_object().cloned().unwrap(), ..Configure::default() }
    }

    #[tokio::test]
    async fn the_file_is_made_when_it_is_first_needed_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Memory::new();
        let keys = KeyFile::open(folder.path(), None).unwrap();
        let first = engine(&store, Arc::clone(&keys));
        keys.check(&first).await.unwrap();
        let push = |stream: &str| {
            vec![PushItem { stream: stream.into(), payload: "1".into(), ..PushItem::default() }]
        };
        first.push(push("open")).await;
        let file = folder.path().join(NAME);
        assert!(!file.exists(), "nothing is encrypted yet");
        first.configure("s", encrypted()).await.unwrap();
        assert!(matches!(first.push(push("s")).await[0], Pushed::Queued { .. }));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        let again = KeyFile::open(folder.path(), None).unwrap();
        let second = engine(&store, Arc::clone(&again));
        again.check(&second).await.unwrap();
        let id = second.stream("s").await.unwrap().unwrap().id;
        let partition = tidewheel_engine::PartitionId::of(&id, "Default");
        assert_eq!(second.read(&partition, 0, 1, 1).await.unwrap().records[0].payload, "1");

        // A file with another key, and none at all, do not start; the key above an old one does.
        let text = fs::read_to_string(&file).unwrap();
        let other = "ab".repeat(32);
        for (text, said) in [(Some(other.clone()), "none of its keys"), (None, "is not there")] {
            match text {
                Some(text) => fs::write(&file, text).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            let keys = KeyFile::open(folder.path(), None).unwrap();
            let error = keys.check(&engine(&store, Arc::clone(&keys))).await.unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        fs::write(&file, format!("{other}\n{text}")).unwrap();
        let keys = KeyFile::open(folder.path(), None).unwrap();
        let third = engine(&store, Arc::clone(&keys));
        keys.check(&third).await.unwrap();
        third.push(push("s")).await;
        assert_eq!(third.read(&partition, 0, 9, 99).await.unwrap().records.len(), 2);
        assert_eq!(third.master_keys_in_use().await.unwrap().len(), 2);
    }

    #[test]
    fn a_named_file_must_be_there_and_hold_keys() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("keys");
        let error = KeyFile::open(folder.path(), Some(&named)).unwrap_err();
        assert!(error.to_string().contains("keys"), "{error}");
        fs::write(&named, "password\n").unwrap();
        let error = KeyFile::open(folder.path(), Some(&named)).unwrap_err().to_string();
        assert!(error.contains("line 1") && !error.contains("password"), "{error}");
        assert!(!named.with_file_name(NAME).exists());
    }
}
