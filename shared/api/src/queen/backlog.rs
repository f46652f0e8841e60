//! How much is left to do: of a queue, of its partitions, of everything.
//!
//! `pending` of a depth is positions left to retire, those that are out with a consumer included; `effectivePending` is
//! handlers left to run, which for a group that conflates is one for each partition.

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{Backlog, PartitionId, Standing, StreamInfo};

use super::{groups::seconds_behind, resources};
use crate::{Api, body::Segments, error::Failure, json::Json, openapi, query::Parameters};

/// Partitions that a depth or a ranking looks at, over all queues.
const LOOKED_AT: usize = 10_000;

/// Partitions that one step reads.
const PAGE: usize = 500;

/// Partitions in a ranking when the request names no number.
const RANKED: i64 = 610;

/// Queues that the overview counts.
const QUEUES: usize = 1_000;

/// What some partitions hold together.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) backlog: Backlog,
    /// Bytes, as far as they are known without reading more.
    pub(crate) bytes: u64,
    pub(crate) segments: usize,
    /// There may be more partitions than were looked at.
    pub(crate) truncated: bool,
}

impl Tally {
    pub(crate) fn of(standings: &[Standing], limit: usize) -> Self {
        let mut tally = Self { truncated: standings.len() >= limit, ..Self::default() };
        for standing in standings {
            tally.backlog += standing.backlog();
            tally.bytes += standing.bytes.unwrap_or(0);
            tally.segments += standing.segments;
        }
        tally
    }
}

/// Partitions of a queue, up to a number; true if there may be more.
async fn partitions(
    api: &Api,
    queue: &str,
    group: Option<&str>,
    most: usize,
) -> Result<(Vec<Standing>, bool), Failure> {
    let mut found: Vec<Standing> = Vec::new();
    let mut after: Option<PartitionId> = None;
    while found.len() < most {
        let wanted = PAGE.min(most - found.len());
        let page = api.engine().standings(queue, group, after.as_ref(), wanted).await?;
        after = page.last().map(|s| s.partition.id);
        let ended = page.len() < wanted;
        found.extend(page);
        if ended {
            return Ok((found, false));
        }
    }
    Ok((found, true))
}

/// `GET /api/v1/resources/queues/{queue}/depth?group=`: of a group, or as the slowest group sees it.
#[utoipa::path(
    get, path = "/api/v1/resources/queues/{queue}/depth", operation_id = "queueDepth", tag = "administer",
    params(("queue" = String, Path, min_length = 1), openapi::DepthParameters),
    responses((status = 200, description = "What is left to do", body = openapi::Depth)),
)]
pub(crate) async fn depth(
    State(api): State<Api>,
    Segments(queue): Segments<String>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let group = parameters.text("group");
    if api.engine().stream(&queue).await?.is_none() {
        return Err(Failure::not_found("Queue not found"));
    }
    let groups = api.engine().groups(&queue).await?;
    let known = groups.iter().find(|g| Some(g.name.as_str()) == group);
    let conflation = known.is_some_and(|g| g.conflation);
    let (standings, truncated) = match known {
        // What a group has finished is not looked at.
        Some(known) => {
            let lagging = api.engine().lagging(&queue, &known.name, LOOKED_AT).await?;
            let truncated = lagging.len() >= LOOKED_AT;
            (lagging, truncated)
        }
        None => partitions(&api, &queue, group, LOOKED_AT).await?,
    };
    let owed = |s: &Standing| s.owed(s.slowest().and_then(|g| g.position.as_ref()));
    let pending: Vec<(&Standing, u64)> =
        standings.iter().map(|s| (s, owed(s))).filter(|(_, owed)| *owed > 0).collect();
    let total: u64 = pending.iter().map(|(_, owed)| owed).sum();

    let mut json = Json::with_capacity(256 + pending.len() * 80);
    json.object().key("queue").string(&queue).key("group").string_or_null(group);
    json.key("pending").number(total).key("partitionsPending").number(pending.len());
    json.key("conflation").bool(conflation);
    let effective = if conflation { pending.len() as u64 } else { total };
    json.key("effectivePending").number(effective).key("partitions").array();
    for (standing, owed) in &pending {
        json.object().key("partition").string(&standing.partition.name);
        json.key("pending").number(owed).end_object();
    }
    json.end_array().key("truncated").bool(truncated).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/partitions?queue=&limit=`: the partitions that hold most, as the slowest group sees them.
#[utoipa::path(
    get, path = "/api/v1/resources/partitions", operation_id = "rankPartitions", tag = "administer",
    params(openapi::RankingParameters),
    responses((status = 200, description = "Partitions, those with most to do first", body = openapi::Ranking)),
)]
pub(crate) async fn ranking(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let limit = parameters.number("limit")?.unwrap_or(RANKED).clamp(1, LOOKED_AT as i64) as usize;
    let queues = match parameters.text("queue") {
        Some(queue) => vec![queue.to_owned()],
        None => api.engine().streams(None, QUEUES).await?,
    };
    let mut found: Vec<Standing> = Vec::new();
    let mut truncated = false;
    for queue in &queues {
        let room = LOOKED_AT.saturating_sub(found.len());
        let (page, more) = partitions(&api, queue, None, room).await?;
        truncated |= more;
        found.extend(page);
    }
    found.sort_by_key(|s| std::cmp::Reverse(s.backlog().pending));
    found.truncate(limit);

    let mut json = Json::with_capacity(64 + found.len() * 250);
    json.object().key("partitions").array();
    for standing in &found {
        let backlog = standing.backlog();
        json.object().key("queue").string(&standing.partition.stream);
        json.key("partition").string(&standing.partition.name);
        json.key("id").plain(standing.partition.id).key("total").number(backlog.total);
        json.key("pending").number(backlog.pending).key("processing").number(backlog.processing);
        json.key("lagSeconds");
        match seconds_behind(&api, standing).await? {
            Some(seconds) => json.number(seconds),
            None => json.null(),
        };
        json.end_object();
    }
    json.end_array().key("truncated").bool(truncated).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/resources/overview`: everything in a few numbers, over the first [`QUEUES`] queues and [`LOOKED_AT`]
/// partitions.
#[utoipa::path(
    get, path = "/api/v1/resources/overview", operation_id = "overview", tag = "administer",
    responses((status = 200, description = "Everything in a few numbers", body = openapi::Overview)),
)]
pub(crate) async fn overview(State(api): State<Api>) -> Result<Response, Failure> {
    let engine = api.engine();
    let queues = engine.streams(None, QUEUES).await?;
    let mut truncated = queues.len() >= QUEUES;
    let (mut tally, mut dead, mut partitions_seen) = (Tally::default(), 0u64, 0usize);
    let (mut lags, mut lag_records) = (Vec::new(), 0u64);
    for queue in &queues {
        let room = LOOKED_AT.saturating_sub(partitions_seen);
        let (page, more) = partitions(&api, queue, None, room).await?;
        truncated |= more;
        partitions_seen += page.len();
        let part = Tally::of(&page, usize::MAX);
        tally.backlog += part.backlog;
        tally.bytes += part.bytes;
        dead += engine.dead_letter_counts(queue, None).await?.values().sum::<u64>();
        for standing in page.iter().filter(|s| !s.groups.is_empty()) {
            if let Some(seconds) = seconds_behind(&api, standing).await? {
                lags.push(seconds);
                lag_records += standing.owed(standing.slowest().and_then(|g| g.position.as_ref()));
            }
        }
    }
    let namespaces = resources::labels_in_use(&api, |info: StreamInfo| info.namespace).await?.0;
    let tasks = resources::labels_in_use(&api, |info: StreamInfo| info.task).await?.0;
    let average = lags.iter().sum::<i64>().checked_div(lags.len() as i64).unwrap_or(0);

    let mut json = Json::with_capacity(512);
    json.object().key("queues").number(queues.len()).key("partitions").number(partitions_seen);
    json.key("namespaces").number(namespaces.len()).key("tasks").number(tasks.len());
    json.key("messages").object().key("total").number(tally.backlog.total);
    json.key("pending").number(tally.backlog.pending);
    json.key("processing").number(tally.backlog.processing);
    json.key("completed").number(tally.backlog.completed);
    json.key("failed").null().key("deadLetter").number(dead).end_object();
    json.key("lag").object().key("time").object().key("avg").number(average);
    json.key("max").number(lags.iter().max().copied().unwrap_or(0)).end_object();
    json.key("offset").object().key("total").number(lag_records).end_object().end_object();
    json.key("retainedBytes").number(tally.bytes);
    json.key("truncated").bool(truncated).key("timestamp").time(api.now_us()).end_object();
    Ok(json.into_response(StatusCode::OK))
}
