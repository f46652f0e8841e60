//! A table's files in the object store.
//!
//! Every file but the hint is written once under a name that nobody else can guess, so that a write may be repeated
//! and never destroys anything. The hint is the one file that changes, and it only moves forward.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, future::try_join_all};
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use crate::{
    Error,
    directory::{Directory, HINT, made_us, stem_version},
    limits,
};

/// Attempts to move a hint that others move as well.
const HINT_ATTEMPTS: usize = 8;

/// A file that was found in a table's directory.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Its name within the table.
    pub(crate) file: String,
    /// When it was made, µs: by its name, else by the object store's clock.
    pub(crate) made_us: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Files {
    objects: Arc<dyn ObjectStore>,
    pub(crate) directory: Directory,
}

impl Files {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, directory: Directory) -> Self {
        Self { objects, directory }
    }

    /// Writes a file, by its name within the table. When this returns, the file is durable.
    pub(crate) async fn write(&self, file: &str, body: Bytes) -> Result<(), Error> {
        let path = self.directory.path_of(file);
        let put = self.objects.put(&path, PutPayload::from_bytes(body)).await;
        put.map(drop).map_err(|e| failed(&path, e))
    }

    /// Reads a file, by its name within the table.
    pub(crate) async fn read(&self, file: &str) -> Result<Bytes, Error> {
        self.get(&self.directory.path_of(file)).await
    }

    /// Reads a file, by its location.
    pub(crate) async fn read_uri(&self, uri: &str) -> Result<Bytes, Error> {
        let path = self.directory.path_of_uri(uri).ok_or_else(|| {
            Error::Corrupt(format!("`{uri}` is outside of the table's `{}`", self.directory.uri()))
        })?;
        self.get(&path).await
    }

    /// Every file of the table but the hint.
    pub(crate) async fn list(&self) -> Result<Vec<Listed>, Error> {
        let mut found = Vec::new();
        for part in ["data", "metadata"] {
            let path = self.directory.path_of(part);
            let mut listed = self.objects.list(Some(&path));
            while let Some(meta) = listed.try_next().await.map_err(|e| failed(&path, e))? {
                let Some(file) = self.directory.file_of(&meta.location) else { continue };
                if file != HINT {
                    let made = made_us(&file);
                    let made_us = made.unwrap_or_else(|| meta.last_modified.timestamp_micros());
                    found.push(Listed { file, made_us });
                }
            }
        }
        Ok(found)
    }

    /// Every file below the table's directory, by its name within it.
    pub(crate) async fn everything(&self) -> Result<Vec<String>, Error> {
        self.below("").await
    }

    /// Every file below a folder of the table's directory, by its name within that directory.
    pub(crate) async fn below(&self, folder: &str) -> Result<Vec<String>, Error> {
        let path = self.directory.path_of(folder);
        let mut found = Vec::new();
        let mut listed = self.objects.list(Some(&path));
        while let Some(meta) = listed.try_next().await.map_err(|e| failed(&path, e))? {
            found.extend(self.directory.file_of(&meta.location));
        }
        Ok(found)
    }

    /// Deletes files, by their names within the table. Answers how many were there.
    pub(crate) async fn delete(&self, files: &[String]) -> Result<usize, Error> {
        let mut deleted = 0;
        for some in files.chunks(limits::FILES_AT_ONCE) {
            let deletes = some.iter().map(|file| self.delete_one(self.directory.path_of(file)));
            deleted += try_join_all(deletes).await?.into_iter().filter(|there| *there).count();
        }
        Ok(deleted)
    }

    async fn delete_one(&self, path: object_store::path::Path) -> Result<bool, Error> {
        match self.objects.delete(&path).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(failed(&path, e)),
        }
    }

    async fn get(&self, path: &object_store::path::Path) -> Result<Bytes, Error> {
        let read = async { self.objects.get(path).await?.bytes().await };
        read.await.map_err(|e| failed(path, e))
    }

    /// The stem that the hint names, if there is one, and the object's version for a conditional write.
    async fn hint_object(&self, hint: &str) -> Result<Option<(String, UpdateVersion)>, Error> {
        let path = self.directory.path_of(hint);
        match self.objects.get(&path).await {
            Ok(found) => {
                let version = UpdateVersion {
                    e_tag: found.meta.e_tag.clone(),
                    version: found.meta.version.clone(),
                };
                let body = found.bytes().await.map_err(|e| failed(&path, e))?;
                Ok(Some((String::from_utf8_lossy(&body).trim().to_owned(), version)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(failed(&path, e)),
        }
    }

    /// The version that the hint names; 0 if there is none.
    pub(crate) async fn hint_version(&self) -> Result<u64, Error> {
        self.version_at(HINT).await
    }

    /// The version that a file of this name names; 0 if there is none.
    pub(crate) async fn version_at(&self, hint: &str) -> Result<u64, Error> {
        let hint = self.hint_object(hint).await?;
        Ok(hint.and_then(|(stem, _)| stem_version(&stem)).unwrap_or(0))
    }

    /// Moves the hint to a stem, unless it is there or beyond already.
    pub(crate) async fn advance_hint(&self, stem: &str) -> Result<(), Error> {
        self.advance(HINT, stem).await
    }

    /// Moves a hint to a name that begins with its version, unless it is there or beyond already.
    pub(crate) async fn advance(&self, hint: &str, stem: &str) -> Result<(), Error> {
        let path = self.directory.path_of(hint);
        let body = || PutPayload::from_bytes(Bytes::copy_from_slice(stem.as_bytes()));
        for _ in 0..HINT_ATTEMPTS {
            let found = self.hint_object(hint).await?;
            let mode = match found {
                Some((now, _)) if stem_version(&now) >= stem_version(stem) => return Ok(()),
                Some((_, version)) => PutMode::Update(version),
                None => PutMode::Create,
            };
            match self.objects.put_opts(&path, body(), PutOptions::from(mode)).await {
                Ok(_) => return Ok(()),
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. },
                ) => {}
                // A local folder belongs to one process, and that process seals a table once at a time.
                Err(object_store::Error::NotImplemented { .. }) => {
                    let put = self.objects.put(&path, body()).await;
                    return put.map(drop).map_err(|e| failed(&path, e));
                }
                Err(e) => return Err(failed(&path, e)),
            }
        }
        // Whoever else moved it so often has moved it further.
        Ok(())
    }
}

fn failed(path: &object_store::path::Path, e: object_store::Error) -> Error {
    Error::File { path: path.to_string(), source: Arc::new(e) }
}

#[cfg(test)]
mod tests {
    use object_store::{local::LocalFileSystem, memory::InMemory, path::Path};

    use super::*;

    async fn check_hint(objects: Arc<dyn ObjectStore>) {
        let files = Files::new(objects, Directory::new(&Path::default(), "mem://x", "t"));
        assert_eq!(files.hint_version().await.unwrap(), 0);
        for (stem, version) in
            [("00002-a", 2), ("00001-b", 2), ("00002-c", 2), ("00010-d", 10), ("100000-e", 100_000)]
        {
            files.advance_hint(stem).await.unwrap();
            assert_eq!(files.hint_version().await.unwrap(), version, "after {stem}");
        }
        assert_eq!(&files.read(HINT).await.unwrap()[..], b"100000-e");
    }

    #[tokio::test]
    async fn a_hint_only_moves_forward() {
        check_hint(Arc::new(InMemory::new())).await;
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true);
        check_hint(Arc::new(local)).await;
    }
}
