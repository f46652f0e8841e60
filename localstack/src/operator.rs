//! The operator's way in: a file in the data folder that says where the running server listens, and a key that counts as
//! long as it runs.
//!
//! Whoever can read the folder can read everything that is stored, so the file gives nobody more than they have: it is what
//! lets `tidewheel keys` reach a server that holds the folder's lock. Only its owner may read it. It names a server that
//! runs, or one that was killed; then the key in it opens nothing.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tidewheel_api::OperatorKey;

/// The file's name in the data folder.
const NAME: &str = "operator";

/// The file of a server that runs; it goes when the server stops.
#[derive(Debug)]
pub(crate) struct OperatorFile(PathBuf);

impl OperatorFile {
    /// Writes the file.
    pub(crate) fn write(folder: &Path, url: &str, key: &OperatorKey) -> io::Result<Self> {
        let path = folder.join(NAME);
        let unfinished = path.with_extension("unfinished");
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&unfinished)?;
        file.write_all(json!({"url": url, "key": key.reveal()}).to_string().as_bytes())?;
        fs::rename(&unfinished, &path)?;
        Ok(Self(path))
    }
}

impl Drop for OperatorFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the server of a folder listens, and the operator's key.
pub(crate) fn read(folder: &Path) -> io::Result<(String, String)> {
    let text = fs::read_to_string(folder.join(NAME))?;
    let value: Value = serde_json::from_str(&text)?;
    let field = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    field("url").zip(field("key")).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
