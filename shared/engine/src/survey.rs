//! What is in the streams, counted from the heads and pages: how many streams, partitions and records there are, and
//! when the records came.
//!
//! Nothing is counted as it happens, so nothing can be counted wrongly or lost with a process; in return a survey
//! reads what it counts, and stops at its bounds and says so.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Engine, Error, PartitionId, PartitionInfo, StreamInfo,
    head::{Head, Placed},
    limits,
};

/// Which streams to look at. Absent parts fit every stream.
#[derive(Clone, Debug, Default)]
pub struct SurveyFilter {
    /// The name.
    pub stream: Option<String>,
    /// The namespace.
    pub namespace: Option<String>,
    /// The task.
    pub task: Option<String>,
}

/// What was counted in one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSurvey {
    /// The stream.
    pub info: StreamInfo,
    /// Its partitions.
    pub partitions: u64,
    /// Records that can be read.
    pub records: u64,
    /// When the last record came, µs; `None` if none ever did.
    pub last_us: Option<i64>,
}

/// Streams, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// By name.
    pub streams: Vec<StreamSurvey>,
    /// False if there was more than [`limits::SURVEY_STREAMS`] or [`limits::SURVEY_PARTITIONS`]: the numbers are lower
    /// bounds then.
    pub complete: bool,
}

/// Records by the time they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The beginning of a stretch of time, µs, and the records that came in it; stretches without any are left out.
    pub points: BTreeMap<i64, u64>,
    /// False if a bound was met: the numbers are lower bounds then.
    pub complete: bool,
}

/// The partitions that a survey still looks at.
struct Budget {
    streams: usize,
    partitions: usize,
    pages: usize,
}

impl Budget {
    fn new() -> Self {
        Self {
            streams: limits::SURVEY_STREAMS,
            partitions: limits::SURVEY_PARTITIONS,
            pages: limits::SURVEY_PAGES,
        }
    }
}

impl Engine {
    /// Counts streams, partitions and records.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn survey(&self, filter: &SurveyFilter) -> Result<Survey, Error> {
        let mut budget = Budget::new();
        let (infos, mut complete) = self.fitting(filter, &mut budget).await?;
        let mut streams = Vec::with_capacity(infos.len());
        for info in infos {
            let mut counted = StreamSurvey { info, partitions: 0, records: 0, last_us: None };
            let heads = self.survey_heads(&counted.info.name, &mut budget).await?;
            complete &= heads.1;
            for (_, head) in heads.0 {
                counted.partitions += 1;
                counted.records += head.tail - head.floor;
                if head.tail > 0 {
                    counted.last_us = counted.last_us.max(Some(head.last_us()));
                }
            }
            streams.push(counted);
        }
        Ok(Survey { streams, complete })
    }

    /// Counts the records that came from `from_us` until before `to_us`, in stretches of `stretch_us`. A record that
    /// retention has taken is not counted any more.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn volume(
        &self,
        filter: &SurveyFilter,
        from_us: i64,
        to_us: i64,
        stretch_us: i64,
    ) -> Result<Volume, Error> {
        let mut budget = Budget::new();
        let stretch_us = stretch_us.max(1);
        let (infos, mut complete) = self.fitting(filter, &mut budget).await?;
        let mut points = BTreeMap::new();
        let mut count = |placed: Placed, floor: u64| {
            let records = placed.end().saturating_sub(placed.base.max(floor));
            if (from_us..to_us).contains(&placed.time_us) && records > 0 {
                let stretch = placed.time_us - placed.time_us.rem_euclid(stretch_us);
                *points.entry(stretch).or_insert(0) += records;
            }
        };
        for info in infos {
            let (heads, all) = self.survey_heads(&info.name, &mut budget).await?;
            complete &= all;
            for (partition, head) in heads {
                if head.last_us() < from_us {
                    continue;
                }
                head.placed().for_each(|placed| count(placed, head.floor));
                let (mut before, mut before_us) = (head.base, head.base_us);
                while before > head.floor && before_us >= from_us {
                    if budget.pages == 0 {
                        complete = false;
                        break;
                    }
                    budget.pages -= 1;
                    let Some(page) = self.page_below(&partition, before).await? else { break };
                    page.placed().for_each(|placed| count(placed, head.floor));
                    (before, before_us) = (page.base, page.base_us);
                }
            }
        }
        Ok(Volume { points, complete })
    }

    /// The streams that fit, and whether these are all.
    async fn fitting(
        &self,
        filter: &SurveyFilter,
        budget: &mut Budget,
    ) -> Result<(Vec<StreamInfo>, bool), Error> {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|w| w == is);
        let fitting = |info: &StreamInfo| {
            fits(&filter.namespace, &info.namespace) && fits(&filter.task, &info.task)
        };
        if let Some(name) = &filter.stream {
            let info = self.stream_record(name).await?.map(|r| r.info.clone());
            return Ok((info.into_iter().filter(fitting).collect(), true));
        }
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let limit = budget.streams.min(tidewheel_store::limits::QUERY_ITEMS);
            if limit == 0 {
                return Ok((found, false));
            }
            let names = self.streams(after.as_deref(), limit).await?;
            budget.streams -= names.len().min(budget.streams);
            for name in &names {
                let info = self.stream_record(name).await?.map(|r| r.info.clone());
                found.extend(info.filter(fitting));
            }
            if names.len() < limit {
                return Ok((found, true));
            }
            after = names.last().cloned();
        }
    }

    /// A stream's heads, and whether these are all.
    async fn survey_heads(
        &self,
        stream: &str,
        budget: &mut Budget,
    ) -> Result<(Vec<(PartitionId, Arc<Head>)>, bool), Error> {
        let mut found = Vec::new();
        let mut after: Option<PartitionId> = None;
        loop {
            let limit = budget.partitions.min(tidewheel_store::limits::QUERY_ITEMS);
            if limit == 0 {
                return Ok((found, false));
            }
            let page: Vec<PartitionInfo> = self.partitions(stream, after.as_ref(), limit).await?;
            budget.partitions -= page.len().min(budget.partitions);
            let ids: Vec<PartitionId> = page.iter().map(|p| p.id).collect();
            let heads = self.heads(&ids).await?;
            found.extend(ids.iter().zip(heads).filter_map(|(id, head)| Some((*id, head?))));
            if page.len() < limit {
                return Ok((found, true));
            }
            after = ids.last().copied();
        }
    }
}
