//! Sealing: what is new in a stream becomes Parquet files and one Iceberg snapshot.
//!
//! The sealer is a consumer whose positions are the table's own: one conditional write of the head moves the positions
//! and the metadata pointer together, so every record is in exactly one snapshot, whatever dies in between. Before
//! that write nothing counts: files of a sealer that died, or that lost against another, are garbage. After it, only
//! the hint for readers without a catalog is left to be moved, and whoever seals next moves it if it lags.
//!
//! A seal never waits for another and never blocks a push. It reads a partition up to its tail, or to the bound of
//! one call, and says whether there is more.

use std::collections::{BTreeMap, HashSet};

use futures_util::StreamExt;
use iceberg::spec::Operation;
use tidewheel_engine::{PartitionId, PartitionInfo, Uuid};

use crate::{
    Error, Mirror, UnfitRecord,
    commit::{Flip, check_mark},
    data::{self, DataWriter},
    files::Files,
    head::{self, Head},
    limits,
    logs::{Logs, Target},
    positions::Loaded,
    shape::Shape,
    snapshot::{Base, Change, Commit, Written},
    stream_metadata::Progress,
    tables::Tables,
};

/// What a seal did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sealed {
    /// Rows that are in the table now and were not before.
    pub rows: u64,
    /// Data files that hold them.
    pub files: usize,
    /// Partitions that they come from.
    pub partitions: usize,
    /// The snapshot that was committed; `None` if there was nothing new.
    pub snapshot_id: Option<i64>,
    /// True if the call's bound was reached: there is more to seal.
    pub more: bool,
    /// Records that were gone from the log before they were sealed.
    pub lost: u64,
    /// A record that does not fit the declared schema. What is below it is sealed, and nothing from it on.
    pub unfit: Option<UnfitRecord>,
    /// How long the oldest of the rows was in the log before the commit, µs: the commit lag.
    pub commit_lag_us: Option<i64>,
    /// False if the commit counts but the hint beside it could not be moved yet.
    pub hinted: bool,
    /// What became of the table's mirror in a catalogue.
    pub mirror: Mirror,
}

/// What a round over all streams did.
#[derive(Debug, Default)]
pub struct Report {
    /// Streams that had something new.
    pub sealed: Vec<(String, Sealed)>,
    /// Streams of which another sealer published at the same time; what is left of them is for the next round.
    pub raced: Vec<String>,
    /// Streams whose seal failed; the others are not affected.
    pub failed: Vec<(String, Error)>,
    /// True if a stream, or the list of streams, has more.
    pub more: bool,
}

/// When a stream that has times of its own is sealed: at multiples of its interval.
pub(crate) struct Flush {
    every_us: i64,
    last_us: i64,
}

impl Flush {
    fn is_due(&self, now_us: i64) -> bool {
        now_us.div_euclid(self.every_us) > self.last_us.div_euclid(self.every_us)
    }
}

/// What a pass over the ready partitions found.
#[derive(Default)]
struct Found {
    moved: BTreeMap<PartitionId, u64>,
    /// Partitions read to the tail, and whether anything new was there.
    drained: Vec<(PartitionId, u64, bool)>,
    rows: u64,
    bytes: usize,
    lost: u64,
    more: bool,
    unfit: Option<UnfitRecord>,
    /// Time of the oldest record, µs.
    oldest_us: Option<i64>,
}

impl Tables {
    /// True if a stream gets a table: it is not encrypted at rest, or the settings publish those as well.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn publishes(&self, stream: &str) -> Result<bool, Error> {
        Ok(self.inner.settings.publish_encrypted || !self.inner.source.encrypted(stream).await?)
    }

    /// Seals what is new in a stream, if it gets a table.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another sealer was first, [`Error::Unknown`] if the outcome could not be found out;
    /// else what failed. After every error the next call goes on from what is committed, and no record is lost or
    /// sealed twice.
    pub async fn seal(&self, stream: &str) -> Result<Sealed, Error> {
        let inner = &*self.inner;
        let id = self.id(stream).await?;
        if !self.publishes(stream).await? {
            return Ok(Sealed { hinted: true, ..Sealed::default() });
        }
        let ready = {
            let mut ready = inner.source.ready(stream, limits::SEAL_PARTITIONS).await?;
            ready.sort_by(|a, b| a.name.cmp(&b.name));
            ready
        };
        let nothing = Sealed { hinted: true, ..Sealed::default() };
        if ready.is_empty() && !inner.source.has_logs(stream).await? {
            return Ok(nothing);
        }
        let (targets, logs) = self.targets(&id, stream).await?;
        let Some(logs) = logs else {
            return match targets.first().filter(|_| !ready.is_empty()) {
                Some(target) => self.seal_table(target, &ready).await,
                None => Ok(nothing),
            };
        };
        self.seal_logs(&id, stream, &targets, &logs, &ready).await
    }

    /// Seals the generations of a declared stream, one after another, and says what the stream is made of.
    async fn seal_logs(
        &self,
        id: &Uuid,
        stream: &str,
        targets: &[Target],
        logs: &Logs,
        ready: &[PartitionInfo],
    ) -> Result<Sealed, Error> {
        let mut all = Sealed { hinted: true, ..Sealed::default() };
        self.note_flush(stream, logs);
        let mut progress = Progress { whole: 0, reached: 0 };
        for (number, target) in targets.iter().enumerate() {
            let end = logs.logs.get(number).and_then(|log| log.end);
            let mut reached = self.reached(id, target).await?;
            if end.is_none_or(|end| reached < end) && !ready.is_empty() {
                let sealed = self.seal_table(target, ready).await?;
                all.rows += sealed.rows;
                all.files += sealed.files;
                all.partitions = all.partitions.max(sealed.partitions);
                all.lost += sealed.lost;
                all.more |= sealed.more;
                all.hinted &= sealed.hinted;
                all.snapshot_id = sealed.snapshot_id.or(all.snapshot_id);
                all.unfit = sealed.unfit.or(all.unfit);
                all.commit_lag_us = all.commit_lag_us.max(sealed.commit_lag_us);
                if all.mirror.failure().is_none() {
                    all.mirror = sealed.mirror;
                }
                reached = self.reached(id, target).await?;
            }
            progress.reached = reached;
            match end {
                Some(end) if reached >= end => progress.whole = number + 1,
                _ => break,
            }
        }
        if let Err(e) = self.publish_metadata(id, stream, targets, logs, progress).await {
            tracing::warn!(stream, error = %e, "the stream's metadata lags; the next seal writes it");
        }
        Ok(all)
    }

    /// Seals what is new of some partitions into one table.
    async fn seal_table(&self, target: &Target, ready: &[PartitionInfo]) -> Result<Sealed, Error> {
        let inner = &*self.inner;
        let stream = target.stream.as_str();
        let lock = self.sealing(&target.id);
        let _sealing = lock.lock().await;
        // When there are more than we look at, whoever was sealed makes room for the others.
        let full = ready.len() >= limits::SEAL_PARTITIONS;

        let head = self.head(target).await?;
        let files = self.files(&head);
        let mut current = head.stem.clone();
        if let Some(stem) = &head.stem {
            self.advance_hint(&target.id, &files, stem).await?;
        }
        let shape = target.shape();
        let positions =
            head.positions.clone().load(&*inner.store, &head::owner(&target.id)).await?;
        if let Shape::Declared(_) = &shape {
            let others = ready.iter().filter(|p| positions.has_other(&p.id)).count();
            if ready.len() > 1 || others > 0 {
                return Err(Error::Partitions {
                    stream: stream.to_owned(),
                    partitions: ready.len() + others,
                });
            }
        }

        let base = match &head.stem {
            Some(stem) => Base::load(&files, stem).await?,
            None => Base::create(&files, &shape, &head.uuid, target)?,
        };
        let mut writer = DataWriter::new(
            files.clone(),
            inner.env.clone(),
            &shape,
            base.schema().clone(),
            base.partition_spec_id(),
            inner.settings.file_bytes,
        )?;
        if !target.sort_by().is_empty() {
            writer = writer.unsorted();
        }
        let found =
            self.translate(target, &shape, ready, &positions, base.schema(), &mut writer).await?;

        let mut sealed = Sealed {
            rows: found.rows,
            more: found.more || full,
            lost: found.lost,
            unfit: found.unfit.clone(),
            hinted: true,
            ..Sealed::default()
        };
        if found.rows > 0 {
            self.check_live(target, &found).await?;
            let data = writer.finish().await?;
            sealed.files = data.len();
            sealed.partitions = found.moved.len();
            let written = self.publish(target, &files, head, base, positions, data, &found).await?;
            sealed.snapshot_id = Some(written.snapshot_id);
            sealed.commit_lag_us = found.oldest_us.map(|us| (inner.env.now_us() - us).max(0));
            if let Err(e) = self.advance_hint(&target.id, &files, &written.stem).await {
                tracing::warn!(stream, error = %e, "the table's hint lags; the next seal moves it");
                sealed.hinted = false;
            }
            current = Some(written.stem);
        }
        // Also what an earlier sealer committed and did not come to tell.
        if let Some(stem) = &current {
            sealed.mirror = self.mirror(&target.id, &files, stem).await;
        }
        let followed = sealed.hinted && !matches!(sealed.mirror, Mirror::Lags(_));
        // A busy partition stays awake: putting it to sleep would make the next push pay for waking it. While the hint
        // or the mirror lags all do, so that whoever seals next comes by and moves it.
        for (partition, tail, new) in &found.drained {
            if followed
                && (!new || full)
                && let Err(e) = inner.source.settle(stream, partition, *tail).await
            {
                tracing::debug!(stream, %partition, error = %e, "the partition stays awake");
            }
        }
        Ok(sealed)
    }

    /// Refuses rows that are another generation's: the stream may have migrated since it was asked.
    async fn check_live(&self, target: &Target, found: &Found) -> Result<(), Error> {
        let Some(log) = target.log.as_ref().filter(|log| log.end.is_none()) else { return Ok(()) };
        let now = self.inner.source.logs(&target.stream).await?;
        let logs = now.map(|now| now.logs).unwrap_or_default();
        let end = logs.iter().find(|l| l.name == log.name).map(|l| l.end.unwrap_or(u64::MAX));
        let next = found.moved.values().max().copied().unwrap_or(0);
        if end.is_some_and(|end| next <= end) {
            Ok(())
        } else {
            Err(Error::Conflict(target.stream.clone()))
        }
    }

    /// Seals the streams that want to be sealed at times of their own, if it is time. They are known from when they were
    /// first sealed with all others.
    pub async fn seal_due(&self) -> Report {
        let now_us = self.inner.env.now_us();
        let mut due = Vec::new();
        {
            let flushes = self.inner.flushes.lock();
            due.extend(flushes.iter().filter(|(_, f)| f.is_due(now_us)).map(|(s, _)| s.clone()));
        }
        self.seal_each(due).await
    }

    /// Remembers when a stream was sealed, if it has a time of its own.
    fn note_flush(&self, stream: &str, logs: &Logs) {
        let mut flushes = self.inner.flushes.lock();
        match logs.flush_every_us {
            Some(every_us) if every_us > 0 => {
                let flush = Flush { every_us, last_us: self.inner.env.now_us() };
                flushes.insert(stream.to_owned(), flush);
            }
            _ => drop(flushes.remove(stream)),
        }
    }

    /// Seals every stream once, or as many as one call looks at; the next call goes on after them. A stream that
    /// fails does not stop the others.
    ///
    /// # Errors
    /// Only if the streams cannot be listed.
    pub async fn seal_all(&self) -> Result<Report, Error> {
        let after = self.inner.resume.lock().clone();
        let names = self.inner.source.streams(after.as_deref(), limits::SEAL_STREAMS).await?;
        let full = names.len() >= limits::SEAL_STREAMS;
        *self.inner.resume.lock() = names.last().filter(|_| full).cloned();
        // Those that have times of their own are sealed then.
        let own = |name: &String| self.inner.flushes.lock().contains_key(name);
        let names = names.into_iter().filter(|name| !own(name)).collect();
        let report = self.seal_each(names).await;
        Ok(Report { more: report.more || full, ..report })
    }

    async fn seal_each(&self, names: Vec<String>) -> Report {
        let mut report = Report::default();
        let seals = names.into_iter().map(|name| async {
            let sealed = self.seal(&name).await;
            (name, sealed)
        });
        let mut seals = futures_util::stream::iter(seals).buffered(limits::SEALS_AT_ONCE);
        while let Some((name, sealed)) = seals.next().await {
            match sealed {
                Ok(sealed) => {
                    report.more |= sealed.more;
                    if sealed.snapshot_id.is_some() || sealed.unfit.is_some() {
                        report.sealed.push((name, sealed));
                    }
                }
                // Deleted since it was listed.
                Err(Error::StreamNotFound(_)) => drop(self.inner.flushes.lock().remove(&name)),
                Err(e @ Error::Conflict(_)) => {
                    tracing::debug!(stream = name, error = %e, "the stream is sealed by another");
                    report.raced.push(name);
                }
                Err(e) => {
                    tracing::warn!(stream = name, error = %e, "the stream was not sealed");
                    report.failed.push((name, e));
                }
            }
        }
        report
    }

    /// Moves a table's hint, unless this process has seen it there.
    pub(crate) async fn advance_hint(
        &self,
        id: &Uuid,
        files: &Files,
        stem: &str,
    ) -> Result<(), Error> {
        let hinted = &self.inner.hinted;
        if hinted.lock().get(id).is_some_and(|seen| seen == stem) {
            return Ok(());
        }
        files.advance_hint(stem).await?;
        self.remember_hint(*id, stem);
        Ok(())
    }

    /// Remembers that a hint was seen where it belongs.
    pub(crate) fn remember_hint(&self, id: Uuid, seen: &str) {
        let mut hinted = self.inner.hinted.lock();
        if hinted.len() >= limits::REMEMBERED_TABLES {
            hinted.clear();
        }
        hinted.insert(id, seen.to_owned());
    }

    /// Reads what is new in the partitions, in order, and writes it as data files.
    async fn translate(
        &self,
        target: &Target,
        shape: &Shape,
        ready: &[PartitionInfo],
        positions: &Loaded,
        schema: &iceberg::spec::SchemaRef,
        writer: &mut DataWriter,
    ) -> Result<Found, Error> {
        let inner = &*self.inner;
        let stream = target.stream.as_str();
        let arrow = data::arrow_schema(schema)?;
        let mut found = Found::default();
        let from = target.log.as_ref().map_or(0, |log| log.start);
        let end = target.log.as_ref().and_then(|log| log.end).unwrap_or(u64::MAX);
        for partition in ready {
            let start = positions.get(&partition.id).max(from);
            let mut next = start;
            loop {
                if next >= end {
                    break;
                }
                if found.rows as usize >= inner.settings.seal_rows
                    || found.bytes >= inner.settings.seal_bytes
                {
                    found.more = true;
                    break;
                }
                let mut read = inner
                    .source
                    .read(&partition.id, next, limits::READ_RECORDS, limits::READ_BYTES)
                    .await?;
                // What follows is the next generation's, in columns of its own.
                let own = read.records.partition_point(|record| record.offset < end);
                let beyond = own < read.records.len();
                read.records.truncate(own);
                if read.records.is_empty() && beyond {
                    // All that was left of this one is gone.
                    found.lost += end - next;
                    next = end;
                    break;
                }
                let Some(first) = read.records.first() else {
                    found.drained.push((partition.id, read.extent.tail, next > start));
                    break;
                };
                if next == start {
                    let oldest_us = found.oldest_us.unwrap_or(first.time_us);
                    found.oldest_us = Some(oldest_us.min(first.time_us));
                }
                if first.offset > next {
                    let (from, to) = (next, first.offset);
                    tracing::warn!(
                        stream,
                        partition = partition.name,
                        from,
                        to,
                        "records were gone before they were sealed"
                    );
                    found.lost += to - from;
                }
                let rows = shape.rows(&arrow, &partition.name, &read.records)?;
                let taken = rows.batch.num_rows();
                writer.write(&rows.batch).await?;
                found.rows += taken as u64;
                found.bytes += read.records.iter().map(|r| r.payload.len()).sum::<usize>();
                if taken > 0 {
                    next = read.records[taken - 1].offset + 1;
                }
                if let Some(unfit) = rows.unfit {
                    let (offset, error) = (unfit.offset, unfit.error);
                    found.unfit = Some(UnfitRecord {
                        stream: stream.to_owned(),
                        partition: partition.name.clone(),
                        offset,
                        error,
                    });
                    break;
                }
                if next >= read.extent.tail && end == u64::MAX {
                    found.drained.push((partition.id, read.extent.tail, true));
                    break;
                }
            }
            if next > start {
                found.moved.insert(partition.id, next);
            }
            if found.more {
                break;
            }
        }
        Ok(found)
    }

    /// Writes the snapshot and makes it count.
    #[allow(clippy::too_many_arguments)] // one call, and each of them is a thing of its own
    async fn publish(
        &self,
        target: &Target,
        files: &Files,
        head: Head,
        base: Base,
        positions: Loaded,
        data: Vec<iceberg::spec::DataFile>,
        found: &Found,
    ) -> Result<Written, Error> {
        let inner = &*self.inner;
        let commit_id = inner.env.token();
        // A stream that was deleted and made again goes on where the old table's hint is: a hint never goes back.
        let last = if head.version == 0 { files.hint_version().await? } else { head.version };
        let version = last + 1;
        let commit = Commit { id: &commit_id, version, keep: self.keep() };
        let change = Change {
            operation: Operation::Append,
            added: data,
            sequence: None,
            removed: HashSet::new(),
            moved: found.moved.clone(),
        };
        let conflict = || Error::Conflict(target.stream.clone());
        check_mark(&change.added, &head).map_err(|()| conflict())?;
        // It removes nothing, so nothing that it removes can be missing.
        let written = base.change(files, &inner.env, &commit, change).await?;
        let written = written.ok_or_else(conflict)?;

        let (positions, blob) = positions.moved(&found.moved, &head::owner(&target.id), &inner.env);
        let before = head.commit.clone();
        let after = Head {
            version,
            stem: Some(written.stem.clone()),
            snapshot: written.snapshot_id,
            rows: head.rows + found.rows,
            sealed_us: inner.env.now_us(),
            positions,
            ..head
        };
        let flip = Flip { before: &before, commit_id: &commit_id, after: &after, blob };
        if self.flip(target.of(), files, flip).await? { Ok(written) } else { Err(conflict()) }
    }
}
