//! What operators look at: the state of the whole, of each queue, and what happened over time.
//!
//! Two kinds of numbers, and each says which it is. What *is* (queues, partitions, messages) is counted in the store
//! when it is asked for, within bounds that `complete` tells of. What *happened* (pushes, pops, requests) is this
//! process's own count since it began. What neither knows is null: a zero would say that there was none.

use std::collections::BTreeMap;

use axum::{extract::State, http::StatusCode, response::Response};
use tidewheel_engine::{
    Backlog, GroupPosition, PartitionId, Standing, StreamSurvey, Survey, SurveyFilter,
};

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    Api,
    body::Segments,
    error::Failure,
    json::Json,
    openapi,
    query::Parameters,
    series::{Counts, MINUTE_US},
    time,
};

/// Queues in a page when the request names no number.
const QUEUES: i64 = 100;

/// Queues in a page.
const QUEUES_MAX: i64 = 1_000;

/// Partitions that the detail of a queue shows.
const PARTITIONS: usize = 200;

/// Partitions, over all queues, of which one answer tells what is left to do.
const COUNTED: usize = 10_000;

/// Partitions that one step reads.
const STEP: usize = 500;

/// Stretches of time in one answer: more would be a request for a longer one each.
const POINTS: i64 = 10_000;

const HOUR_US: i64 = 60 * MINUTE_US;

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(alive))
        .routes(routes!(overview))
        .routes(routes!(queues))
        .routes(routes!(queue))
        .routes(routes!(analytics))
        .routes(routes!(buffers))
        .routes(routes!(system_metrics))
        .routes(routes!(worker_metrics))
        .routes(routes!(queue_ops))
        .routes(routes!(retention))
}

/// A stretch of time that a request asks about, and how it is divided.
struct Window {
    from_us: i64,
    to_us: i64,
    stretch_us: i64,
}

impl Window {
    /// `from` and `to`; a longer time has longer stretches.
    fn read(api: &Api, parameters: &Parameters, default_us: i64) -> Result<Self, Failure> {
        let at = |name: &str| match parameters.text(name) {
            None => Ok(None),
            Some(text) => time::parse(text).map(Some).ok_or_else(|| {
                Failure::bad_request(format!("parameter `{name}` must be an ISO 8601 time"))
            }),
        };
        // The present minute counts.
        let to_us = at("to")?.unwrap_or(api.now_us() + 1);
        let from_us = at("from")?.unwrap_or(to_us.saturating_sub(default_us)).max(0);
        if from_us >= to_us {
            return Err(Failure::bad_request("parameter `from` must be before `to`"));
        }
        let stretch_us = match to_us - from_us {
            length if length <= HOUR_US => MINUTE_US,
            length if length <= 6 * HOUR_US => 5 * MINUTE_US,
            length if length <= 24 * HOUR_US => 15 * MINUTE_US,
            length if length <= 7 * 24 * HOUR_US => HOUR_US,
            _ => 6 * HOUR_US,
        };
        Ok(Self { from_us, to_us, stretch_us })
    }

    /// What this process did in each stretch, oldest first.
    fn counts(&self, api: &Api) -> BTreeMap<i64, Counts> {
        let mut stretches: BTreeMap<i64, Counts> = BTreeMap::new();
        for (at_us, counts) in api.series().read(self.from_us, self.to_us, api.totals()) {
            let begin_us = at_us - at_us.rem_euclid(self.stretch_us);
            stretches.entry(begin_us).or_default().add(counts);
        }
        stretches
    }

    fn seconds(&self) -> f64 {
        self.stretch_us as f64 / 1e6
    }

    fn members(&self, json: &mut Json, points: usize) {
        json.key("timeRange").object().key("from").time(self.from_us);
        json.key("to").time(self.to_us).end_object();
        json.key("bucketMinutes").number(self.stretch_us / MINUTE_US);
        json.key("pointCount").number(points);
    }
}

fn filter(parameters: &Parameters) -> SurveyFilter {
    let text = |name: &str| parameters.text(name).map(str::to_owned);
    SurveyFilter { stream: text("queue"), namespace: text("namespace"), task: text("task") }
}

/// `GET /status`: the process answers. `/health` tells whether it can do its work.
#[utoipa::path(
    get, path = "/status", operation_id = "alive", tag = "operate",
    responses((status = 200, description = "The process answers", body = openapi::Alive)),
)]
async fn alive() -> Response {
    let mut json = Json::with_capacity(64);
    json.object().key("status").plain("ok").key("engine").plain("tidewheel").end_object();
    json.into_response(StatusCode::OK)
}

/// `GET /api/v1/status`: the whole, now and over time.
#[utoipa::path(
    get, path = "/api/v1/status", operation_id = "status", tag = "operate",
    params(openapi::WindowParameters),
    responses((status = 200, description = "The whole, now and over time", body = openapi::StatusOverview)),
)]
async fn overview(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, HOUR_US)?;
    let survey = api.engine().survey(&filter(&parameters)).await?;
    let stretches = window.counts(&api);
    let partitions: u64 = survey.streams.iter().map(|s| s.partitions).sum();
    let (mut counted, mut room) = (Counted::default(), COUNTED);
    for stream in &survey.streams {
        counted.add(&api, &stream.info.name, &mut room).await?;
    }
    let complete = survey.complete && !counted.partial;
    let mut all = Counts::default();
    stretches.values().for_each(|counts| all.add(*counts));

    let mut json = Json::with_capacity(2 * 1024 + stretches.len() * 300);
    json.object();
    window.members(&mut json, stretches.len());
    json.key("statsAge").number(0).key("scope").plain("process").key("throughput").array();
    for (at_us, counts) in &stretches {
        json.object().key("timestamp").time(*at_us);
        json.key("ingested").number(counts.pushed).key("processed").number(counts.popped);
        json.key("acked").number(counts.acked).key("duplicates").number(counts.duplicates);
        json.key("emptyPops").number(counts.pops_empty).key("cycles").number(counts.cycles);
        json.key("ingestedPerSecond").number(counts.pushed as f64 / window.seconds());
        json.key("processedPerSecond").number(counts.popped as f64 / window.seconds());
        json.end_object();
    }
    json.end_array().key("queues").object().key("total").number(survey.streams.len());
    json.key("partitions").number(partitions).key("complete").bool(complete).end_object();
    counted.members(&mut json);
    json.key("leases").object().key("active").number(counted.leases).end_object();
    json.key("deadLetterQueue").object().key("total").number(counted.dead_letters);
    json.key("filed").number(all.dead_lettered).end_object();
    json.key("workers").array();
    worker(&mut json, &api);
    json.end_array().key("errors").object().key("serverErrors").number(all.server_errors);
    json.end_object().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// What queues hold and what is left to do with it.
#[derive(Default)]
struct Counted {
    backlog: Backlog,
    dead_letters: u64,
    leases: usize,
    /// There are partitions that were not looked at.
    partial: bool,
}

impl Counted {
    /// Adds a queue, as far as there is room for its partitions.
    async fn add(&mut self, api: &Api, queue: &str, room: &mut usize) -> Result<(), Failure> {
        self.dead_letters +=
            api.engine().dead_letter_counts(queue, None).await?.values().sum::<u64>();
        let mut after: Option<PartitionId> = None;
        loop {
            let wanted = STEP.min(*room);
            if wanted == 0 {
                self.partial = true;
                return Ok(());
            }
            let page = api.engine().standings(queue, None, after.as_ref(), wanted).await?;
            page.iter().for_each(|standing| self.count(standing));
            *room -= page.len().min(*room);
            after = page.last().map(|s| s.partition.id);
            if page.len() < wanted {
                return Ok(());
            }
        }
    }

    fn count(&mut self, standing: &Standing) {
        self.backlog += standing.backlog();
        let held = |g: &&GroupPosition| g.position.as_ref().is_some_and(|p| p.held.is_some());
        self.leases += standing.groups.iter().filter(held).count();
    }

    /// Records are done when the slowest group is done with them.
    fn members(&self, json: &mut Json) {
        json.key("messages").object().key("total").number(self.backlog.total);
        json.key("pending").number(self.backlog.pending);
        json.key("processing").number(self.backlog.processing);
        json.key("completed").number(self.backlog.completed).key("failed").null();
        json.key("deadLetter").number(self.dead_letters).end_object();
    }
}

fn worker(json: &mut Json, api: &Api) {
    json.object().key("hostname").null().key("workerId").number(0).key("status").plain(
        match api.is_draining() {
            true => "draining",
            false => "healthy",
        },
    );
    json.key("uptimeSeconds").number(api.uptime_seconds());
    json.key("requestsInFlight").number(api.in_flight()).end_object();
}

/// `GET /api/v1/status/queues`, by name, a page at a time.
#[utoipa::path(
    get, path = "/api/v1/status/queues", operation_id = "statusQueues", tag = "operate",
    params(openapi::QueueFilter),
    responses((status = 200, description = "Queues in numbers", body = openapi::StatusQueues)),
)]
async fn queues(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let limit = parameters.number("limit")?.unwrap_or(QUEUES).clamp(1, QUEUES_MAX);
    let offset = parameters.number("offset")?.unwrap_or(0).max(0);
    let Survey { streams, complete } = api.engine().survey(&filter(&parameters)).await?;
    let mut json = Json::with_capacity(256 + streams.len().min(limit as usize) * 300);
    json.object().key("queues").array();
    let total = streams.len();
    let (mut complete, mut room) = (complete, COUNTED);
    for stream in streams.iter().skip(offset as usize).take(limit as usize) {
        let mut counted = Counted::default();
        counted.add(&api, &stream.info.name, &mut room).await?;
        complete &= !counted.partial;
        json.object();
        members(&mut json, stream);
        counted.members(&mut json);
        json.end_object();
    }
    json.end_array().key("total").number(total).key("complete").bool(complete);
    json.key("pagination").object().key("limit").number(limit).key("offset").number(offset);
    json.end_object().end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn members(json: &mut Json, stream: &StreamSurvey) {
    let info = &stream.info;
    json.key("id").plain(info.id).key("name").string(&info.name);
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("createdAt").time(info.created_us).key("partitions").number(stream.partitions);
    json.key("lastActivity");
    match stream.last_us {
        Some(us) => json.time(us),
        None => json.null(),
    };
}

/// `GET /api/v1/status/queues/{queue}`, with its first partitions in the order of their ids.
#[utoipa::path(
    get, path = "/api/v1/status/queues/{queue}", operation_id = "statusQueue", tag = "operate",
    params(("queue" = String, Path, min_length = 1)),
    responses((status = 200, description = "A queue in numbers", body = openapi::StatusQueueDetail)),
)]
async fn queue(
    State(api): State<Api>,
    Segments(queue): Segments<String>,
) -> Result<Response, Failure> {
    let engine = api.engine();
    let filter = SurveyFilter { stream: Some(queue.clone()), ..SurveyFilter::default() };
    let survey = engine.survey(&filter).await?;
    let Some(stream) = survey.streams.first() else {
        return Err(Failure::not_found("Queue not found"));
    };
    let options = serde_json::to_vec(&stream.info.options)
        .map_err(|e| Failure::bad_request(format!("options: {e}")))?;
    let mut counted = Counted::default();
    counted.add(&api, &queue, &mut COUNTED.clone()).await?;
    let dead_letters = engine.dead_letter_counts(&queue, None).await?;
    let shown = engine.standings(&queue, None, None, PARTITIONS).await?;

    let mut json = Json::with_capacity(1024 + shown.len() * 300);
    json.object().key("queue").object();
    members(&mut json, stream);
    json.key("config").raw(&options).end_object().key("partitions").array();
    for standing in &shown {
        let partition = &standing.partition;
        json.object().key("id").plain(partition.id).key("name").string(&partition.name);
        json.key("floor").number(standing.extent.floor).key("tail").number(standing.extent.tail);
        let dead_letters = dead_letters.get(&partition.id).copied().unwrap_or(0);
        let mut counted = Counted { dead_letters, ..Counted::default() };
        counted.count(standing);
        counted.members(&mut json);
        json.end_object();
    }
    json.end_array().key("totals").object();
    counted.members(&mut json);
    json.key("partitions").number(stream.partitions).end_object();
    json.key("complete").bool(survey.complete && !counted.partial).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/status/analytics`: messages by the time they came, as far as retention has left them.
#[utoipa::path(
    get, path = "/api/v1/status/analytics", operation_id = "analytics", tag = "operate",
    params(openapi::WindowParameters, openapi::IntervalParameter),
    responses((status = 200, description = "Messages by the time they came", body = openapi::Analytics)),
)]
async fn analytics(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, 24 * HOUR_US)?;
    let (interval, stretch_us) = match parameters.text("interval") {
        Some("minute") => ("minute", MINUTE_US),
        Some("day") => ("day", 24 * HOUR_US),
        _ => ("hour", HOUR_US),
    };
    if (window.to_us - window.from_us) / stretch_us > POINTS {
        return Err(Failure::bad_request(format!(
            "from `from` to `to` are more than {POINTS} times a {interval}; ask for less, or for a longer `interval`"
        )));
    }
    let filter = filter(&parameters);
    let volume = api.engine().volume(&filter, window.from_us, window.to_us, stretch_us).await?;
    let mut json = Json::with_capacity(256 + volume.points.len() * 80);
    json.object().key("dataPoints").array();
    for (at_us, records) in &volume.points {
        json.object().key("timestamp").time(*at_us).key("messages").number(records).end_object();
    }
    json.end_array().key("interval").plain(interval).key("from").time(window.from_us);
    json.key("to").time(window.to_us).key("complete").bool(volume.complete).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/status/buffers`: there is no buffer, so nothing waits in it.
#[utoipa::path(
    get, path = "/api/v1/status/buffers", operation_id = "buffers", tag = "operate",
    responses((status = 200, description = "There is no buffer", body = openapi::Buffers)),
)]
async fn buffers(State(api): State<Api>) -> Response {
    let healthy = api.engine().streams(None, 1).await.is_ok();
    let mut json = Json::with_capacity(96);
    json.object().key("pending").number(0).key("failed").number(0);
    json.key("dbHealthy").bool(healthy).key("worker").number(0).end_object();
    json.into_response(StatusCode::OK)
}

/// `GET /api/v1/analytics/system-metrics`: this process over time. What the operating system knows is null.
#[utoipa::path(
    get, path = "/api/v1/analytics/system-metrics", operation_id = "systemMetrics", tag = "operate",
    params(openapi::TimeParameters),
    responses((status = 200, description = "This process over time", body = openapi::SystemMetrics)),
)]
async fn system_metrics(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, HOUR_US)?;
    let stretches = window.counts(&api);
    let mut json = Json::with_capacity(512 + stretches.len() * 120);
    json.object();
    window.members(&mut json, stretches.len());
    json.key("replicas").array().object().key("hostname").null().key("workerId").number(0);
    json.key("uptimeSeconds").number(api.uptime_seconds());
    json.key("cpu").null().key("memory").null().key("timeSeries").array();
    for (at_us, counts) in &stretches {
        json.object().key("timestamp").time(*at_us).key("requests").number(counts.requests);
        json.key("serverErrors").number(counts.server_errors).end_object();
    }
    json.end_array().end_object().end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/analytics/worker-metrics`: what this process did over time.
#[utoipa::path(
    get, path = "/api/v1/analytics/worker-metrics", operation_id = "workerMetrics", tag = "operate",
    params(openapi::TimeParameters),
    responses((status = 200, description = "What this process did over time", body = openapi::WorkerMetrics)),
)]
async fn worker_metrics(
    State(api): State<Api>,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, HOUR_US)?;
    let stretches = window.counts(&api);
    let mut all = Counts::default();
    stretches.values().for_each(|counts| all.add(*counts));
    let mut json = Json::with_capacity(1024 + stretches.len() * 260);
    json.object();
    window.members(&mut json, stretches.len());
    json.key("scope").plain("process").key("summary").object();
    work(&mut json, &all);
    json.end_object().key("timeSeries").array();
    for (at_us, counts) in &stretches {
        json.object().key("timestamp").time(*at_us);
        work(&mut json, counts);
        json.end_object();
    }
    json.end_array().key("workers").array();
    worker(&mut json, &api);
    // Counts by queue would have to be kept for every name that anybody sends.
    json.end_array().key("queues").array().end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

fn work(json: &mut Json, counts: &Counts) {
    json.key("pushMessages").number(counts.pushed).key("popMessages").number(counts.popped);
    json.key("popEmpty").number(counts.pops_empty).key("ackSuccess").number(counts.acked);
    json.key("dlqMessages").number(counts.dead_lettered).key("cycles").number(counts.cycles);
    json.key("requests").number(counts.requests);
}

/// `GET /api/v1/analytics/queue-ops`: messages by queue and by the time they came, from the log. What the log does not
/// tell is null.
#[utoipa::path(
    get, path = "/api/v1/analytics/queue-ops", operation_id = "queueOperations", tag = "operate",
    params(openapi::WindowParameters),
    responses((status = 200, description = "Messages by queue and time", body = openapi::QueueOps)),
)]
async fn queue_ops(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, HOUR_US)?;
    let wanted = filter(&parameters);
    let names: Vec<String> = match &wanted.stream {
        Some(name) => vec![name.clone()],
        None => {
            let survey = api.engine().survey(&wanted).await?;
            let recent = |s: &&StreamSurvey| s.last_us.is_some_and(|us| us >= window.from_us);
            let recent = survey.streams.iter().filter(recent);
            recent.take(QUEUES as usize).map(|s| s.info.name.clone()).collect()
        }
    };
    let mut series: BTreeMap<i64, Vec<(usize, u64)>> = BTreeMap::new();
    for (at, name) in names.iter().enumerate() {
        let filter = SurveyFilter { stream: Some(name.clone()), ..SurveyFilter::default() };
        let (from_us, to_us) = (window.from_us, window.to_us);
        let volume = api.engine().volume(&filter, from_us, to_us, window.stretch_us).await?;
        for (stretch, records) in volume.points {
            series.entry(stretch).or_default().push((at, records));
        }
    }
    let mut json = Json::with_capacity(1024);
    json.object();
    window.members(&mut json, series.len());
    json.key("series").array();
    for (at_us, queues) in &series {
        for (at, records) in queues {
            json.object().key("bucket").time(*at_us).key("queueName").string(&names[*at]);
            json.key("pushMessages").number(records);
            json.key("pushPerSecond").number(*records as f64 / window.seconds());
            for unknown in ["popMessages", "popEmpty", "ackSuccess", "ackFailed", "avgLagMs"] {
                json.key(unknown).null();
            }
            json.end_object();
        }
    }
    json.end_array().key("queues").array();
    for name in &names {
        json.string(name);
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/analytics/retention`: what this process deleted for its age.
#[utoipa::path(
    get, path = "/api/v1/analytics/retention", operation_id = "retention", tag = "operate",
    params(openapi::TimeParameters),
    responses((status = 200, description = "What was deleted for its age", body = openapi::Retention)),
)]
async fn retention(State(api): State<Api>, parameters: Parameters) -> Result<Response, Failure> {
    let window = Window::read(&api, &parameters, HOUR_US)?;
    let mut stretches = window.counts(&api);
    stretches.retain(|_, counts| counts.expired > 0);
    let mut json = Json::with_capacity(512);
    json.object();
    window.members(&mut json, stretches.len());
    json.key("scope").plain("process").key("series").array();
    for (at_us, counts) in &stretches {
        json.object().key("bucket").time(*at_us).key("totalMsgs").number(counts.expired);
        json.end_object();
    }
    let total: u64 = stretches.values().map(|counts| counts.expired).sum();
    json.end_array().key("totals").object().key("totalMsgs").number(total).end_object();
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}
