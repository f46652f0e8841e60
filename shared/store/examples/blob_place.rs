//! Where large blobs are best kept: in the database, or as files beside it.
//!
//! Every caller stores a blob and then updates its head, again and again: once with the blob in the database, in
//! one commit with the head; once as a file, synced by `object_store`'s local file system, and the head after it.
//! Then it reads them all.
//!
//! `cargo run --release -p tidewheel-store --features bench --example blob_place [seconds]`
#![allow(clippy::disallowed_methods, missing_docs)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use object_store::{ObjectStoreExt, local::LocalFileSystem};
use tidewheel_store::{
    Blob, BlobName, Change, Commit, Embedded, Env, Key, Store, Write, blob, embedded::Options,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn run(
    files: bool,
    callers: usize,
    bytes: usize,
    lasts: Duration,
    dir: &Path,
) -> Result<(), Failure> {
    let store = Embedded::open(dir, Options::default())?;
    let objects = LocalFileSystem::new_with_prefix(dir)?.with_fsync(true);
    let env = Env::system();
    let body: Vec<u8> = (0..bytes / 8).flat_map(|_| env.random().to_le_bytes()).collect();
    let body = bytes::Bytes::from(body);
    let path = |name: &BlobName| {
        object_store::path::Path::from(format!("blobs/{}/{}", name.owner, name.id))
    };

    let begin = Instant::now();
    let write = async |caller: usize| -> Result<Vec<BlobName>, Failure> {
        let mut names = Vec::new();
        while begin.elapsed() < lasts {
            let name = BlobName::fresh(format!("p{caller}"), &env);
            let head = Write::update(
                Key::new(name.owner.as_str(), "head"),
                vec![Change::Add("n".into(), 1)],
            );
            let mut commit = Commit::one(head);
            if files {
                objects.put(&path(&name), blob::seal(&name, &body).into()).await?;
            } else {
                commit = commit.with_blob(Blob { name: name.clone(), body: body.clone() });
            }
            store.commit(commit).await?;
            names.push(name);
        }
        Ok(names)
    };
    let names = futures_util::future::try_join_all((0..callers).map(write)).await?.concat();
    let wrote = begin.elapsed().as_secs_f64();

    let begin = Instant::now();
    for name in &names {
        let found = if files {
            let stored = objects.get(&path(name)).await?.bytes().await?;
            Some(blob::open(name, stored)?)
        } else {
            store.blob(name, None).await?
        };
        if found.as_ref() != Some(&body) {
            return Err("a blob was lost".into());
        }
    }
    let read = begin.elapsed().as_secs_f64();
    let mb = (names.len() * bytes) as f64 / 1e6;
    println!(
        "{:>8} {:>5} KB {callers:>3} callers: stored {:>7.0}/s {:>6.0} MB/s, read {:>7.0}/s {:>6.0} MB/s",
        if files { "files" } else { "database" },
        bytes / 1024,
        names.len() as f64 / wrote,
        mb / wrote,
        names.len() as f64 / read,
        mb / read,
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let seconds = std::env::args().nth(1).map_or(Ok(3.0), |s| s.parse())?;
    for bytes in [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        for callers in [1, 8] {
            for files in [false, true] {
                // Not in /tmp, which may be memory.
                let dir = tempfile::tempdir_in(".")?;
                run(files, callers, bytes, Duration::from_secs_f64(seconds), dir.path()).await?;
            }
        }
    }
    Ok(())
}
