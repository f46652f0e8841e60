//! What `/stats` says of the streams that sockets serve.

use serde::Serialize;
use tidewheel_engine::{DEFAULT_PARTITION, Error, PartitionId};

use crate::{Gateway, limits};

/// What is served, and how busy it is. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// When this was said.
    pub served_at: f64,
    /// The streams, by name.
    pub streams: Vec<StreamStats>,
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamStats {
    /// Its name.
    pub name: String,
    /// It has a log.
    pub durable: bool,
    /// The next offset on the wire; none without a log.
    pub end_offset: Option<u64>,
    /// Connections that follow it in this process.
    pub subscribers: u64,
    /// Since when this process serves it.
    pub started_ts: f64,
    /// How long that is.
    pub uptime_s: f64,
    /// When a publisher's row last came in through a socket of this process.
    pub last_send_ts: Option<f64>,
    /// How long ago that was.
    pub last_send_age_s: Option<f64>,
}

impl Gateway {
    /// The streams that there are, at most [`limits::STATS_STREAMS`], with what sockets do here.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn stats(&self) -> Result<Stats, Error> {
        let (engine, started_us) = (self.engine(), self.started_us());
        let now_us = engine.env().now_us();
        let seconds = |us: i64| us as f64 / 1e6;
        let activities = self.activities().all();
        let mut streams = Vec::new();
        for name in engine.streams(None, limits::STATS_STREAMS).await? {
            let Some(stream) = engine.stream(&name).await? else { continue };
            let declared = engine.declared(&name).await?;
            let durable = declared.is_none_or(|declared| declared.declaration.log);
            let id = PartitionId::of(&stream.id, DEFAULT_PARTITION);
            let tail = if durable { engine.extent(&id).await? } else { None };
            let end_offset = durable.then(|| tail.map_or(0, |extent| extent.tail) + 1);
            let (subscribers, last_us) = activities.get(&name).copied().unwrap_or_default();
            let since_us = started_us.max(stream.created_us).min(now_us);
            streams.push(StreamStats {
                name,
                durable,
                end_offset,
                subscribers,
                started_ts: seconds(since_us),
                uptime_s: seconds(now_us - since_us),
                last_send_ts: last_us.map(seconds),
                last_send_age_s: last_us.map(|us| seconds((now_us - us).max(0))),
            });
        }
        Ok(Stats { served_at: seconds(now_us), streams })
    }
}
