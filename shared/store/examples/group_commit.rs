//! SQLite against fjall as the file under the embedded back end, and the whole back end beside them.
//!
//! One transaction reads a head, checks it, stores a blob of 2 KB and writes the head of 1 KB. One writer thread
//! takes all that wait into one commit with one fsync and only then answers, whatever the file is.
//!
//! `cargo run --release -p tidewheel-store --features bench --example group_commit [seconds]`
#![allow(clippy::disallowed_methods, missing_docs)]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tidewheel_store::{
    Blob, BlobName, Change, Commit, Condition, Embedded, Env, Item, Key, Store, Write,
    embedded::Options,
};
use tokio::sync::{mpsc, oneshot};

const HEAD_BYTES: usize = 1000;
const BLOB_BYTES: usize = 2048;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One transaction: the caller's head, and the blob's name.
struct Op {
    head: String,
    blob: String,
    answer: oneshot::Sender<u64>,
}

/// A file that can do the whole batch in one durable commit; gives each its head's new version.
trait Engine {
    fn commit(&mut self, batch: &[Op]) -> Result<Vec<u64>, Failure>;
}

fn next(head: Option<&[u8]>) -> (u64, Vec<u8>) {
    let version = head.map_or(0, |h| u64::from_le_bytes(h[..8].try_into().unwrap_or_default())) + 1;
    let mut row = version.to_le_bytes().to_vec();
    // Bytes that do not compress, as segment descriptors and hashes do not.
    row.extend(
        (8..HEAD_BYTES)
            .map(|n| ((n as u64 * 0x9e37_79b9) ^ version.wrapping_mul(0x85eb_ca6b)) as u8),
    );
    (version, row)
}

fn body(env: &Env) -> Vec<u8> {
    (0..BLOB_BYTES / 8).flat_map(|_| env.random().to_le_bytes()).collect()
}

struct Sqlite(rusqlite::Connection, Env);

impl Sqlite {
    fn open(dir: &Path) -> Result<Self, Failure> {
        let db = rusqlite::Connection::open(dir.join("db"))?;
        db.execute_batch(
            "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 2048;
             CREATE TABLE items (pk TEXT, sk TEXT, row BLOB, PRIMARY KEY (pk, sk)) WITHOUT ROWID;
             CREATE TABLE blobs (owner TEXT, id TEXT, stored BLOB, UNIQUE (owner, id));",
        )?;
        Ok(Self(db, Env::system()))
    }
}

impl Engine for Sqlite {
    fn commit(&mut self, batch: &[Op]) -> Result<Vec<u64>, Failure> {
        let tx = self.0.transaction()?;
        let mut versions = Vec::with_capacity(batch.len());
        for op in batch {
            let head: Option<Vec<u8>> = tx
                .prepare_cached("SELECT row FROM items WHERE pk = ?1 AND sk = 'head'")?
                .query_row([&op.head], |r| r.get(0))
                .ok();
            let (version, row) = next(head.as_deref());
            versions.push(version);
            tx.prepare_cached("INSERT INTO blobs VALUES (?1, ?2, ?3)")?.execute((
                &op.head,
                &op.blob,
                body(&self.1),
            ))?;
            tx.prepare_cached("INSERT OR REPLACE INTO items VALUES (?1, 'head', ?2)")?
                .execute((&op.head, row))?;
        }
        tx.commit()?;
        Ok(versions)
    }
}

struct Fjall {
    db: fjall::Database,
    items: fjall::Keyspace,
    blobs: fjall::Keyspace,
    env: Env,
}

impl Fjall {
    fn open(dir: &Path) -> Result<Self, Failure> {
        let db = fjall::Database::builder(dir).open()?;
        let items = db.keyspace("items", fjall::KeyspaceCreateOptions::default)?;
        let blobs = db.keyspace("blobs", fjall::KeyspaceCreateOptions::default)?;
        Ok(Self { db, items, blobs, env: Env::system() })
    }
}

impl Engine for Fjall {
    fn commit(&mut self, batch: &[Op]) -> Result<Vec<u64>, Failure> {
        let mut tx = self.db.batch().durability(Some(fjall::PersistMode::SyncData));
        let mut versions = Vec::with_capacity(batch.len());
        for op in batch {
            // Every caller has a head of its own, so no transaction of the batch reads what another writes.
            let key = format!("{}\0head", op.head);
            let head = self.items.get(&key)?;
            let (version, row) = next(head.as_deref());
            versions.push(version);
            tx.insert(&self.blobs, format!("{}\0{}", op.head, op.blob), body(&self.env));
            tx.insert(&self.items, key, row);
        }
        tx.commit()?;
        Ok(versions)
    }
}

struct Figures {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Runs callers side by side, each with one transaction at a time.
async fn measure<C>(
    callers: usize,
    lasts: Duration,
    call: impl Fn(usize, u64) -> C,
) -> Result<Figures, Failure>
where
    C: Future<Output = Result<(), Failure>>,
{
    let begin = Instant::now();
    let one = async |caller: usize| -> Result<Vec<Duration>, Failure> {
        let mut took = Vec::new();
        while begin.elapsed() < lasts {
            let start = Instant::now();
            call(caller, took.len() as u64).await?;
            took.push(start.elapsed());
        }
        Ok(took)
    };
    let all = futures_util::future::try_join_all((0..callers).map(one)).await?;
    let elapsed = begin.elapsed().as_secs_f64();
    let mut all: Vec<_> = all.into_iter().flatten().collect();
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    Ok(Figures { per_second: all.len() as f64 / elapsed, p50: at(0.5), p99: at(0.99) })
}

fn print(name: &str, callers: usize, f: &Figures) {
    let ms = |d: Duration| d.as_secs_f64() * 1000.0;
    println!(
        "{name:>10} {callers:>4} callers {:>8.0} tx/s  p50 {:>7.3} ms  p99 {:>7.3} ms",
        f.per_second,
        ms(f.p50),
        ms(f.p99)
    );
}

async fn raw(
    name: &str,
    callers: usize,
    lasts: Duration,
    mut engine: impl Engine + Send + 'static,
) -> Result<(), Failure> {
    let (queue, mut waiting) = mpsc::channel::<Op>(4096);
    let writer = std::thread::spawn(move || -> Result<(), Failure> {
        while let Some(first) = waiting.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < 1024
                && let Ok(op) = waiting.try_recv()
            {
                batch.push(op);
            }
            let versions = engine.commit(&batch)?;
            for (op, version) in batch.into_iter().zip(versions) {
                let _ = op.answer.send(version);
            }
        }
        Ok(())
    });
    let figures = measure(callers, lasts, |caller, n| {
        let queue = queue.clone();
        async move {
            let (answer, answered) = oneshot::channel();
            queue
                .send(Op { head: format!("partition-{caller}"), blob: format!("{n:020}"), answer })
                .await?;
            if answered.await? != n + 1 {
                return Err("an update was lost".into());
            }
            Ok(())
        }
    })
    .await?;
    print(name, callers, &figures);
    drop(queue);
    writer.join().map_err(|_| "the writer panicked")?
}

async fn whole(callers: usize, lasts: Duration, dir: &Path) -> Result<(), Failure> {
    let store = Embedded::open(dir, Options::default())?;
    let env = Env::system();
    let head = |caller: usize| Key::new(format!("partition-{caller}"), "head");
    for caller in 0..callers {
        let item = Item::new().with("n", 0).with("segments", "x".repeat(HEAD_BYTES));
        store.commit(Commit::one(Write::put(head(caller), item))).await?;
    }
    let figures = measure(callers, lasts, |caller, n| {
        let (store, env) = (&store, &env);
        async move {
            let add = Write::update(head(caller), vec![Change::Add("n".into(), 1)])
                .when(Condition::Equals("n".into(), (n as i64).into()));
            let name = BlobName::fresh(format!("partition-{caller}"), env);
            let blob = Blob { name, body: body(env).into() };
            store.commit(Commit::one(add).with_blob(blob)).await?;
            Ok(())
        }
    })
    .await?;
    print("embedded", callers, &figures);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let seconds = std::env::args().nth(1).map_or(Ok(5.0), |s| s.parse())?;
    let lasts = Duration::from_secs_f64(seconds);
    // Not in /tmp, which may be memory.
    let place = || tempfile::tempdir_in(".");
    for callers in [1, 10, 100] {
        let dir = place()?;
        raw("sqlite", callers, lasts, Sqlite::open(dir.path())?).await?;
        let dir = place()?;
        raw("fjall", callers, lasts, Fjall::open(dir.path())?).await?;
        let dir = place()?;
        whole(callers, lasts, dir.path()).await?;
    }
    Ok(())
}
