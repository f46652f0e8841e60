//! Metrics: what the HTTP side measures, and the pages that show it beside the engine's counters.
//!
//! Labels come from bounded sets (methods, route patterns, statuses), never from what a client sent.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;

use crate::{Api, json::Json, openapi};

/// Upper bounds of the buckets of latencies, µs. A waiting pop may take a minute.
const BUCKETS_US: [u64; 16] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 30_000_000, 60_000_000,
];

const PROMETHEUS_TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Requests by method and route since the process began.
#[derive(Default)]
pub(crate) struct HttpMetrics {
    in_flight: AtomicU64,
    routes: Mutex<BTreeMap<&'static str, BTreeMap<String, Requests>>>,
}

#[derive(Clone, Default)]
struct Requests {
    by_status: BTreeMap<u16, u64>,
    /// How many fell into each bucket, and last those beyond them all.
    buckets: [u64; BUCKETS_US.len() + 1],
    sum_us: u64,
}

impl Requests {
    fn count(&self) -> u64 {
        self.by_status.values().sum()
    }
}

impl HttpMetrics {
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Relaxed)
    }

    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub(crate) fn end(&self, method: &'static str, route: &str, status: u16, duration_us: u64) {
        self.in_flight.fetch_sub(1, Relaxed);
        let mut routes = self.routes.lock();
        let routes = routes.entry(method).or_default();
        if !routes.contains_key(route) {
            routes.insert(route.to_owned(), Requests::default());
        }
        if let Some(requests) = routes.get_mut(route) {
            *requests.by_status.entry(status).or_default() += 1;
            requests.buckets[BUCKETS_US.partition_point(|&bound| bound < duration_us)] += 1;
            requests.sum_us += duration_us;
        }
    }

    /// Requests that were answered, and those answered with 5xx.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let (mut all, mut failed) = (0, 0);
        for requests in self.routes.lock().values().flat_map(BTreeMap::values) {
            for (status, count) in &requests.by_status {
                all += count;
                failed += if *status >= 500 { *count } else { 0 };
            }
        }
        (all, failed)
    }

    fn each(&self, mut show: impl FnMut(&str, &str, &Requests)) {
        let routes = self.routes.lock().clone();
        for (method, routes) in &routes {
            for (route, requests) in routes {
                show(method, route, requests);
            }
        }
    }
}

/// The name of an engine's counter on the page.
fn counter_name(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let name = name.strip_prefix("tidewheel_").unwrap_or(&name);
    format!("tidewheel_{}_total", name.strip_suffix("_total").unwrap_or(name))
}

/// `GET /metrics/prometheus`: what this process has counted.
#[utoipa::path(
    get, path = "/metrics/prometheus", operation_id = "prometheus", tag = "operate",
    responses((status = 200, description = "Counters in the text format of Prometheus", body = String, content_type = "text/plain")),
)]
pub(crate) async fn prometheus(State(api): State<Api>) -> Response {
    let mut page = String::with_capacity(8 * 1024);
    // Writing to a string cannot fail.
    let _ = page_text(&api, &mut page);
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], page).into_response()
}

fn page_text(api: &Api, page: &mut String) -> std::fmt::Result {
    let version: String = (api.settings().version.chars())
        .filter(|c| c.is_ascii_alphanumeric() || ".-+_".contains(*c))
        .collect();
    writeln!(page, "# HELP tidewheel_info What runs.\n# TYPE tidewheel_info gauge")?;
    writeln!(page, "tidewheel_info{{version=\"{version}\"}} 1")?;
    writeln!(page, "# HELP tidewheel_uptime_seconds Since the process began.")?;
    writeln!(page, "# TYPE tidewheel_uptime_seconds gauge")?;
    writeln!(page, "tidewheel_uptime_seconds {}", api.uptime_seconds())?;
    for (name, value) in api.engine().counters().0 {
        let name = counter_name(name);
        writeln!(page, "# TYPE {name} counter\n{name} {value}")?;
    }

    writeln!(page, "# HELP tidewheel_http_requests_in_flight Requests being served.")?;
    writeln!(page, "# TYPE tidewheel_http_requests_in_flight gauge")?;
    writeln!(page, "tidewheel_http_requests_in_flight {}", api.in_flight())?;
    let mut counts = String::new();
    let mut times = String::new();
    let mut outcome = Ok(());
    api.http().each(|method, route, requests| {
        outcome = outcome.and(show(&mut counts, &mut times, method, route, requests));
    });
    outcome?;
    writeln!(
        page,
        "# HELP tidewheel_http_requests_total Requests by outcome; 499 is a client that left."
    )?;
    writeln!(page, "# TYPE tidewheel_http_requests_total counter")?;
    page.push_str(&counts);
    writeln!(page, "# HELP tidewheel_http_request_duration_seconds From the head to the answer.")?;
    writeln!(page, "# TYPE tidewheel_http_request_duration_seconds histogram")?;
    page.push_str(&times);
    Ok(())
}

fn show(
    counts: &mut String,
    times: &mut String,
    method: &str,
    route: &str,
    requests: &Requests,
) -> std::fmt::Result {
    let labels = format!("method=\"{method}\",route=\"{route}\"");
    for (status, count) in &requests.by_status {
        writeln!(counts, "tidewheel_http_requests_total{{{labels},status=\"{status}\"}} {count}")?;
    }
    const NAME: &str = "tidewheel_http_request_duration_seconds";
    let mut below = 0;
    for (bound, count) in BUCKETS_US.iter().zip(&requests.buckets) {
        below += count;
        let bound = *bound as f64 / 1e6;
        writeln!(times, "{NAME}_bucket{{{labels},le=\"{bound}\"}} {below}")?;
    }
    writeln!(times, "{NAME}_bucket{{{labels},le=\"+Inf\"}} {}", requests.count())?;
    writeln!(times, "{NAME}_sum{{{labels}}} {}", requests.sum_us as f64 / 1e6)?;
    writeln!(times, "{NAME}_count{{{labels}}} {}", requests.count())
}

/// `GET /metrics`: the same in JSON. `cpu` and `memory` are the operating system's to measure, and null here.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operate",
    responses((status = 200, description = "The same as JSON", body = openapi::Metrics)),
)]
pub(crate) async fn json(State(api): State<Api>) -> Response {
    let mut json = Json::with_capacity(4 * 1024);
    json.object().key("version").string(&api.settings().version);
    json.key("uptime").number(api.uptime_seconds());
    json.key("requests").object().key("inFlight").number(api.in_flight());
    let mut total = 0;
    json.key("routes").array();
    api.http().each(|method, route, requests| {
        total += requests.count();
        json.object().key("method").string(method).key("route").string(route);
        json.key("count").number(requests.count());
        json.key("seconds").number(requests.sum_us as f64 / 1e6);
        json.key("statuses").object();
        for (status, count) in &requests.by_status {
            json.key(&status.to_string()).number(count);
        }
        json.end_object().end_object();
    });
    json.end_array().key("total").number(total).end_object();
    json.key("messages").object();
    for (name, value) in api.engine().counters().0 {
        json.key(name).number(value);
    }
    json.end_object().key("cpu").null().key("memory").null().end_object();
    json.into_response(StatusCode::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_fall_into_their_buckets() {
        let metrics = HttpMetrics::default();
        for us in [0, 250, 251, 60_000_000, 60_000_001] {
            metrics.begin();
            metrics.end("GET", "/x", 200, us);
        }
        assert_eq!(metrics.in_flight(), 0);
        let (mut counts, mut times) = (String::new(), String::new());
        metrics.each(|m, r, requests| show(&mut counts, &mut times, m, r, requests).unwrap());
        assert!(counts.contains("{method=\"GET\",route=\"/x\",status=\"200\"} 5"), "{counts}");
        for (bound, below) in [("0.00025", 2), ("0.0005", 3), ("30", 3), ("60", 4), ("+Inf", 5)] {
            assert!(times.contains(&format!("le=\"{bound}\"}} {below}\n")), "{bound}: {times}");
        }
    }

    #[test]
    fn counters_have_one_prefix_and_one_suffix() {
        for name in ["push_records", "tidewheel_push_records_total", "push.records"] {
            assert_eq!(counter_name(name), "tidewheel_push_records_total");
        }
    }
}
