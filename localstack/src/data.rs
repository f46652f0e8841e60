//! The data folder: what lies where, and the lock that keeps a second process out.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use crate::StartError;

/// An open data folder. The lock is the operating system's: it ends with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) folder: PathBuf,
    pub(crate) store: PathBuf,
    pub(crate) tables: PathBuf,
    _lock: File,
}

impl Data {
    /// Makes the folder if it is not there, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<Self, StartError> {
        let failed = |e| StartError::Data { folder: folder.to_owned(), source: e };
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let lock = lock(&folder.join("lock"), &folder)?;
        let (store, tables) = (folder.join("store"), folder.join("tables"));
        for part in [&store, &tables] {
            fs::create_dir_all(part).map_err(failed)?;
        }
        Ok(Self { folder, store, tables, _lock: lock })
    }
}

fn lock(path: &Path, folder: &Path) -> Result<File, StartError> {
    let failed = |e| StartError::Data { folder: folder.to_owned(), source: e };
    let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = open.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            // Who holds it is for the message only; the lock is what counts.
            let mut holder = String::new();
            let _ = file.take(20).read_to_string(&mut holder);
            let holder = holder.trim().parse::<u32>().map_or(String::new(), |p| format!(" {p}"));
            return Err(StartError::InUse { folder: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(e)) => return Err(failed(e)),
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
    writeln!(file, "{}", std::process::id()).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/data");
        let first = Data::open(&path).unwrap();
        let error = Data::open(&path).unwrap_err();
        assert!(matches!(error, StartError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(first);
        Data::open(&path).unwrap();
    }

    #[test]
    fn a_path_that_is_no_folder_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Data::open(file.path()).unwrap_err();
        assert!(error.to_string().contains(&file.path().display().to_string()), "{error}");
    }
}
