//! Metrics in the log: one JSON object a line on standard output, which CloudWatch reads (the embedded metric format).
//!
//! Namespace `Tidewheel`, dimension `Table`. Only the few streams that lag most, and lag for long, have metrics of their
//! own: every name of a stream is one more metric to pay for.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tidewheel_store::Env;
use tidewheel_tables::maintain::Lag;

/// Streams that have metrics of their own in one round.
const STREAMS: usize = 10;
/// How long a stream's oldest row waits before the stream has metrics of its own, µs.
const STREAM_AGE_US: i64 = 60_000_000;

/// What a round found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RoundFound {
    /// Streams that may have rows to seal.
    pub(crate) behind: usize,
    /// How far some of them are.
    pub(crate) lags: Vec<Lag>,
    /// Streams that could not be looked at.
    pub(crate) failed: usize,
}

/// What a batch did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BatchDone {
    pub(crate) sealed_rows: u64,
    pub(crate) sealed_files: usize,
    pub(crate) commit_lag_us: Option<i64>,
    pub(crate) conflicts: usize,
    pub(crate) seal_failures: usize,
    pub(crate) work_failures: usize,
    pub(crate) mirror_failures: usize,
    pub(crate) follow_ups: usize,
}

type Write = Arc<dyn Fn(Value) + Send + Sync>;

/// Writes metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    table: String,
    env: Env,
    write: Write,
}

impl Metrics {
    /// Metrics on standard output.
    pub(crate) fn to_stdout(table: &str, env: &Env) -> Self {
        Self::new(table, env, Arc::new(|metrics| println!("{metrics}")))
    }

    /// Metrics to wherever.
    pub(crate) fn new(table: &str, env: &Env, write: Write) -> Self {
        Self { table: table.to_owned(), env: env.clone(), write }
    }

    /// What a round found, or a part of it.
    pub(crate) fn round(&self, found: &RoundFound) {
        let age_us = found.lags.iter().map(|l| l.age_us).max().unwrap_or(0);
        let rows: u64 = found.lags.iter().map(|l| l.rows).sum();
        self.emit(
            None,
            &[
                ("UnsealedAgeSeconds", "Seconds", seconds(age_us)),
                ("TranslationLagRows", "Count", rows.into()),
                ("StreamsBehind", "Count", found.behind.into()),
                ("WorkFailures", "Count", found.failed.into()),
            ],
        );
        let mut slow: Vec<_> = found.lags.iter().filter(|l| l.age_us > STREAM_AGE_US).collect();
        slow.sort_by_key(|lag| std::cmp::Reverse(lag.age_us));
        for lag in slow.into_iter().take(STREAMS) {
            self.emit(
                Some(&lag.stream),
                &[
                    ("UnsealedAgeSeconds", "Seconds", seconds(lag.age_us)),
                    ("TranslationLagRows", "Count", lag.rows.into()),
                ],
            );
        }
    }

    /// What a batch did.
    pub(crate) fn batch(&self, done: &BatchDone) {
        let mut metrics = vec![
            ("SealedRows", "Count", done.sealed_rows.into()),
            ("SealedFiles", "Count", done.sealed_files.into()),
            ("SealConflicts", "Count", done.conflicts.into()),
            ("SealFailures", "Count", done.seal_failures.into()),
            ("WorkFailures", "Count", done.work_failures.into()),
            ("MirrorFailures", "Count", done.mirror_failures.into()),
            ("FollowUps", "Count", done.follow_ups.into()),
        ];
        if let Some(lag_us) = done.commit_lag_us {
            metrics.push(("CommitLagSeconds", "Seconds", seconds(lag_us)));
        }
        self.emit(None, &metrics);
    }

    fn emit(&self, stream: Option<&str>, metrics: &[(&str, &str, Value)]) {
        let mut dimensions = vec!["Table"];
        let mut line = Map::from_iter([("Table".to_owned(), Value::from(self.table.as_str()))]);
        if let Some(stream) = stream {
            dimensions.push("Stream");
            line.insert("Stream".to_owned(), stream.into());
        }
        let mut defined = Vec::with_capacity(metrics.len());
        for (name, unit, value) in metrics {
            defined.push(json!({"Name": name, "Unit": unit}));
            line.insert((*name).to_owned(), value.clone());
        }
        let about = json!({
            "Timestamp": self.env.now_us() / 1000,
            "CloudWatchMetrics": [
                {"Namespace": "Tidewheel", "Dimensions": [dimensions], "Metrics": defined}
            ],
        });
        line.insert("_aws".to_owned(), about);
        (self.write)(Value::Object(line));
    }
}

fn seconds(us: i64) -> Value {
    (us as f64 / 1e6).into()
}
