//! What the scheduled tasks do in one round.

use std::time::Duration;

use futures_util::StreamExt;
use tidewheel_api::Api;
use tidewheel_engine::Engine;
use tidewheel_tables::{
    Report, Tables,
    maintain::{Done, Error, Maintenance, Work},
};

/// How late a stream that is sealed at times of its own may be, besides what sealing it takes.
pub(crate) const FLUSHES_EVERY: Duration = Duration::from_millis(250);

/// Publishes what is new in the streams that want it at times of their own, if it is time.
pub(crate) async fn flush(tables: Tables) -> Result<(), tidewheel_tables::Error> {
    let report = tables.seal_due().await;
    log_sealed(&report);
    report.failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Publishes what is new in all streams to their tables, until there is nothing more.
pub(crate) async fn seal(tables: Tables) -> Result<(), tidewheel_tables::Error> {
    loop {
        let report = tables.seal_all().await?;
        log_sealed(&report);
        // A stream that fails would otherwise be tried again without a pause.
        if !report.more || report.sealed.is_empty() {
            return report.failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        }
    }
}

fn log_sealed(report: &Report) {
    for (stream, sealed) in &report.sealed {
        tracing::info!(stream, rows = sealed.rows, files = sealed.files, "sealed");
        if let Some(unfit) = &sealed.unfit {
            tracing::warn!(stream, ?unfit, "a record does not fit the declared schema");
        }
        if sealed.lost > 0 {
            tracing::warn!(
                stream,
                lost = sealed.lost,
                "retention took records before they were sealed"
            );
        }
    }
}

/// Does what streams and tables need beside sealing. Of a store that others share, what is due in this minute.
pub(crate) async fn maintain(maintenance: Maintenance, shared: bool) -> Result<(), Error> {
    if shared { maintain_due(maintenance).await } else { maintain_all(maintenance).await }
}

/// Replaces small files of all tables by large ones. A table that fails does not stop the others.
pub(crate) async fn compact(maintenance: Maintenance) -> Result<(), Error> {
    each_stream(maintenance, |stream| Work::Compact { stream }).await
}

/// Forgets old snapshots of all tables, and deletes files that nothing names, and tables of deleted streams.
pub(crate) async fn clean(maintenance: Maintenance) -> Result<(), Error> {
    let mut failed = None;
    for work in maintenance.removals().await? {
        run(&maintenance, work, &mut failed).await;
    }
    each_stream(maintenance, |stream| Work::Clean { stream }).await?;
    failed.map_or(Ok(()), Err)
}

/// Does a piece of work of every stream.
async fn each_stream(maintenance: Maintenance, work: impl Fn(String) -> Work) -> Result<(), Error> {
    let engine = maintenance.engine().clone();
    let mut failed = None;
    let mut after: Option<String> = None;
    loop {
        let names = engine.streams(after.as_deref(), STREAMS_AT_ONCE).await?;
        after = names.last().filter(|_| names.len() == STREAMS_AT_ONCE).cloned();
        for stream in names {
            run(&maintenance, work(stream), &mut failed).await;
        }
        if after.is_none() {
            return failed.map_or(Ok(()), Err);
        }
    }
}

/// Between two looks for operations that were accepted and are not finished. Whoever asks for one finishes it at once.
pub(crate) const CONTROL_EVERY: Duration = Duration::from_secs(30);

/// Carries out what was accepted and is not finished.
pub(crate) async fn control(api: Api) -> Result<(), tidewheel_engine::Error> {
    api.finish_operations().await.map(drop)
}

/// Looks how far the partitions reach that somebody follows here, for what was pushed elsewhere.
pub(crate) async fn follow(engine: Engine) -> Result<(), tidewheel_engine::Error> {
    let looks = engine.watched_partitions().into_iter().map(|id| {
        let engine = engine.clone();
        async move { engine.refresh_tail(&id).await.map(drop) }
    });
    let looks = futures_util::stream::iter(looks).buffer_unordered(FOLLOWED_AT_ONCE);
    let failed: Vec<_> = looks.filter_map(async |look| look.err()).collect().await;
    failed.into_iter().next().map_or(Ok(()), Err)
}

/// Partitions that are looked at at the same time.
const FOLLOWED_AT_ONCE: usize = 32;

/// Applies retention to all streams, and deletes old traces and the rest of deleted streams. A stream that fails does
/// not stop the others.
///
/// Nothing is collected here: the store of one machine writes blobs and heads together, so it has none that no head
/// names.
async fn maintain_all(maintenance: Maintenance) -> Result<(), Error> {
    let engine = maintenance.engine().clone();
    let mut failed = None;
    for id in engine.deleted_streams().await? {
        run(&maintenance, Work::Sweep { id: id.to_string() }, &mut failed).await;
    }
    run(&maintenance, Work::Traces, &mut failed).await;
    run(&maintenance, Work::Keys, &mut failed).await;
    each_stream(maintenance, |stream| Work::Retain { stream, after: None }).await?;
    failed.map_or(Ok(()), Err)
}

/// Does what is due in this minute but sealing: retention, collection, sweeps. On a store that others share everybody
/// finds the same, and doing it twice is doing it once; so each stream has its turn, and not all of them in each round.
async fn maintain_due(maintenance: Maintenance) -> Result<(), Error> {
    let round = Maintenance::round(maintenance.engine().env().now_us());
    let mut failed = None;
    let mut after: Option<String> = None;
    loop {
        let found = maintenance.find(round, after.as_deref()).await?;
        for work in found.work {
            // These have rounds of their own.
            let own = matches!(work, Work::Seal { .. } | Work::Compact { .. } | Work::Clean { .. });
            if !own {
                run(&maintenance, work, &mut failed).await;
            }
        }
        after = found.next;
        if after.is_none() {
            return failed.map_or(Ok(()), Err);
        }
    }
}

/// How late a timer of this stack may be, besides what firing it takes.
pub(crate) const TIMERS_EVERY: Duration = Duration::from_millis(100);

/// The same where others fire timers as well, and where a look is paid for.
pub(crate) const SHARED_TIMERS_EVERY: Duration = Duration::from_secs(1);

/// Fires the timers that are due.
pub(crate) async fn fire(engine: Engine) -> Result<(), tidewheel_engine::Error> {
    let fired = engine.fire_timers().await?;
    if fired > 0 {
        tracing::debug!(fired, "timers");
    }
    Ok(())
}

/// Names of streams that one step lists.
const STREAMS_AT_ONCE: usize = 1000;

/// Does a piece of work to its end, and says what it did.
async fn run(maintenance: &Maintenance, work: Work, failed: &mut Option<Error>) {
    match maintenance.run(&work, i64::MAX).await {
        Ok(outcome) => {
            let Done { expired, collected, swept, traces, keys, fired, .. } = outcome.done;
            let Done { compacted, forgotten, deleted, .. } = outcome.done;
            if compacted + forgotten + deleted > 0 {
                tracing::info!(%work, compacted, forgotten, deleted, "maintained");
            }
            if expired + collected + swept + traces + keys + fired > 0 {
                tracing::info!(%work, expired, collected, swept, traces, keys, fired, "maintained");
            }
        }
        Err(error) => {
            tracing::warn!(%work, %error, "work was not done");
            *failed = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::{ObjectStore, memory::InMemory, path::Path};
    use tidewheel_engine::{Configure, MasterKeys, PartitionId, PushItem, SecretKey, Settings};
    use tidewheel_store::{Env, Memory};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_encrypted_stream_has_no_table_unless_asked_for_and_its_retention_goes_on() {
        let env = Env::simulated(1, 1_767_225_600_000_000, 0);
        let keys = MasterKeys::new(vec![SecretKey::random(&env)]).unwrap();
        let settings = Settings { keys: Some(Arc::new(keys)), ..Settings::default() };
        let engine = Engine::new(Arc::new(Memory::new()), env.clone(), settings);
        let files = Arc::new(InMemory::new());
        let tables = |publish_encrypted| {
            let settings = tidewheel_tables::Settings { publish_encrypted, ..Default::default() };
            let files = Arc::clone(&files);
            Tables::new(&engine, files, Path::default(), "file:///nowhere", settings)
        };
        let (closed, open) = (tables(false), tables(true));
        let options = serde_json::json!({"encryptionEnabled": true, "maxWaitTimeSeconds": 60});
        let configure = Configure {
            options: options.as_object().cloned().unwrap_or_default(),
            ..Configure::default()
        };
        let id = engine.configure("s", configure).await.unwrap().id;
        let item = PushItem { stream: "s".into(), payload: "1".into(), ..PushItem::default() };
        engine.push(vec![item.clone()]).await;
        seal(closed.clone()).await.unwrap();
        let listed: Vec<_> = files.list(None).collect().await;
        assert!(listed.is_empty(), "{listed:?}");

        env.sleep(std::time::Duration::from_secs(120)).await;
        maintain_all(Maintenance::new(&engine, &closed)).await.unwrap();
        let partition = PartitionId::of(&id, tidewheel_engine::DEFAULT_PARTITION);
        assert_eq!(engine.extent(&partition).await.unwrap().unwrap().floor, 1);

        engine.push(vec![item]).await;
        seal(open.clone()).await.unwrap();
        assert_eq!(open.freshness("s").await.unwrap().rows, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn retention_takes_only_what_the_table_has() {
        let env = Env::simulated(1, 1_767_225_600_000_000, 0);
        let engine = Engine::new(Arc::new(Memory::new()), env.clone(), Settings::default());
        let files = Arc::new(InMemory::new());
        let settings = tidewheel_tables::Settings::default();
        let tables = Tables::new(&engine, files, Path::default(), "file:///nowhere", settings);
        let options = serde_json::json!({"retentionEnabled": true, "retentionSeconds": 60});
        let configure = Configure {
            options: options.as_object().cloned().unwrap_or_default(),
            ..Configure::default()
        };
        let id = engine.configure("s", configure).await.unwrap().id;
        let item = PushItem { stream: "s".into(), payload: "1".into(), ..PushItem::default() };
        engine.push(vec![item.clone(), item]).await;
        let partition = PartitionId::of(&id, tidewheel_engine::DEFAULT_PARTITION);
        let floor = async || engine.extent(&partition).await.unwrap().unwrap().floor;

        env.sleep(std::time::Duration::from_secs(120)).await;
        maintain_all(Maintenance::new(&engine, &tables)).await.unwrap();
        assert_eq!(floor().await, 0, "the table has nothing yet");
        seal(tables.clone()).await.unwrap();
        maintain_all(Maintenance::new(&engine, &tables)).await.unwrap();
        assert_eq!(floor().await, 2);
    }
}
