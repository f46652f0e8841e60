//! The HTTP routes, one module per protocol.
//!
//! [`router`] makes one [`axum::Router`] out of an [`Api`]. The local binary serves it on a socket and the function
//! hands it to its adapter, so what passes locally is what is deployed. Whoever serves it brings the socket, its
//! timeouts and its encryption; nothing here listens, spawns a task or reads a clock of its own.
//!
//! - `/api/v1`: produce and consume, as Queen's SDKs do;
//! - `/streams/v1`: queries, their state, and the cycle;
//! - `/control/v1`: streams are declared, served, migrated and retired;
//! - `/keys`: who may do what, which every route asks (`auth`);
//! - `/health`, `/metrics` (JSON) and `/metrics/prometheus` (text);
//! - `/iceberg/v1`: the published tables as a read-only Iceberg REST catalogue;
//! - `/openapi.json`, the description of all of these, and `/docs`, a page to read and try it.
//!
//! Three rules hold everywhere. A body is bounded before it is read and checked before it is parsed (`body`). What a
//! producer sent as a payload is never parsed into values: its bytes are stored and returned verbatim, so `1.0`, big
//! integers and the order of keys survive (`json`). Every failure becomes a status and a body in one place (`error`).
//!
//! ```
//! # use std::sync::Arc;
//! # fn mount(engine: tidewheel_engine::Engine) -> axum::Router {
//! use tidewheel_api::{Api, Settings, router};
//! let api = Api::new(engine, Settings { max_body_bytes: 8 << 20, ..Settings::default() });
//! router(api.clone()) // `api.drain()` later ends the waiting pops and makes /health answer 503
//! # }
//! ```

mod auth;
mod body;
mod control;
mod error;
mod health;
mod iceberg;
mod json;
mod metrics;
mod observe;
mod openapi;
mod queen;
mod query;
mod series;
mod status;
mod streams;
mod time;
mod wait;

use std::sync::{Arc, OnceLock, atomic::AtomicUsize};

use axum::{Router, middleware};
use tidewheel_engine::{Engine, Uuid};
use tokio::sync::watch;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    auth::{Guard, Quotas, Rules},
    metrics::HttpMetrics,
    series::Series,
};

pub use auth::OperatorKey;
pub use iceberg::{Catalogue, CataloguePage, CatalogueTable, NAMESPACE};
pub use wait::WaitLimit;

/// Bytes of a request's body unless [`Settings::max_body_bytes`] says otherwise.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of all bodies that are being served, unless [`Settings::max_in_flight_bytes`] says otherwise.
pub const MAX_IN_FLIGHT_BYTES: usize = 1024 * 1024 * 1024;

/// Settings of the HTTP API.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The version that `/health` and the metrics report.
    pub version: String,
    /// Bytes of a request's body; more is refused with 413 before any of it is parsed.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are being served at one time. A request that would exceed it is answered 503, so that
    /// many large bodies at once cost their senders a repetition and not the process its memory.
    pub max_in_flight_bytes: usize,
    /// Bytes of payloads in the answer to one fetch, where less than its own limits.
    pub max_fetch_bytes: usize,
    /// While there is no API key at all, everybody may do everything. Without this, nobody may do anything then.
    pub open_without_keys: bool,
    /// What the operator of this machine presents.
    pub operator: Option<OperatorKey>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            max_body_bytes: MAX_BODY_BYTES,
            max_in_flight_bytes: MAX_IN_FLIGHT_BYTES,
            max_fetch_bytes: usize::MAX,
            open_without_keys: true,
            operator: None,
        }
    }
}

/// What the routes share. Cheap to clone; clones are one API.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    settings: Settings,
    http: HttpMetrics,
    draining: watch::Sender<bool>,
    body_bytes: AtomicUsize,
    started_us: i64,
    series: Series,
    catalogue: OnceLock<Arc<dyn Catalogue>>,
    quotas: Quotas,
    boot_id: String,
}

impl Api {
    /// An API over an engine.
    pub fn new(engine: Engine, settings: Settings) -> Self {
        let started_us = engine.env().now_us();
        let boot_id = Uuid::random(engine.env()).simple();
        Self {
            shared: Arc::new(Shared {
                engine,
                settings,
                http: HttpMetrics::default(),
                draining: watch::Sender::new(false),
                body_bytes: AtomicUsize::new(0),
                started_us,
                series: Series::new(started_us),
                catalogue: OnceLock::new(),
                quotas: Quotas::default(),
                boot_id,
            }),
        }
    }

    /// Prepares to stop: `/health` answers 503 from now on, so that balancers look elsewhere, and pops that wait for
    /// messages answer that there are none. Everything else is served as ever.
    pub fn drain(&self) {
        self.shared.draining.send_replace(true);
    }

    /// Requests that are being served.
    pub fn in_flight(&self) -> u64 {
        self.shared.http.in_flight()
    }

    /// Serves the tables that are published as a catalogue. The first is served for good.
    pub fn show(&self, catalogue: Arc<dyn Catalogue>) {
        let _ = self.shared.catalogue.set(catalogue);
    }

    pub(crate) fn catalogue(&self) -> Option<&Arc<dyn Catalogue>> {
        self.shared.catalogue.get()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    pub(crate) fn http(&self) -> &HttpMetrics {
        &self.shared.http
    }

    pub(crate) fn series(&self) -> &Series {
        &self.shared.series
    }

    /// An id of this process.
    pub(crate) fn boot_id(&self) -> &str {
        &self.shared.boot_id
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.shared.quotas
    }

    /// Bytes of all bodies that are being served.
    pub(crate) fn body_bytes(&self) -> &AtomicUsize {
        &self.shared.body_bytes
    }

    pub(crate) fn now_us(&self) -> i64 {
        self.shared.engine.env().now_us()
    }

    pub(crate) fn uptime_seconds(&self) -> f64 {
        (self.now_us() - self.shared.started_us).max(0) as f64 / 1e6
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.shared.draining.borrow()
    }

    /// Is ready once the API drains.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.shared.draining.subscribe().wait_for(|draining| *draining).await;
    }
}

/// All routes of an API, with a fallback that answers 404 in JSON.
///
/// Routes merged into it afterwards are served without the request's span and metrics, which cover what is known here.
pub fn router(api: Api) -> Router {
    let (routes, description) = described().split_for_parts();
    let guard = Guard { api: api.clone(), rules: Arc::new(Rules::new(&description)) };
    let description = openapi::complete(description, &api.settings().version);
    routes
        .merge(openapi::routes(&description))
        .merge(iceberg::routes())
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(middleware::from_fn_with_state(guard, auth::guard))
        .layer(middleware::from_fn_with_state(api.clone(), observe::observe))
        .with_state(api)
}

/// Guards routes that stand beside the API's own as those are guarded. Which action each of them is stands in the same
/// table; one that is not there asks for every grant.
pub fn guarded(api: &Api, router: Router) -> Router {
    let (_, description) = described().split_for_parts();
    let guard = Guard { api: api.clone(), rules: Arc::new(Rules::new(&description)) };
    router.layer(middleware::from_fn_with_state(guard, auth::guard))
}

/// The description of an API of this version, as `/openapi.json` serves it.
pub fn description(version: &str) -> utoipa::openapi::OpenApi {
    openapi::complete(described().into_openapi(), version)
}

/// The routes, and what each of them says of itself.
fn described() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .merge(queen::routes())
        .merge(streams::routes())
        .merge(status::routes())
        .merge(auth::routes())
        .merge(control::routes())
        .routes(routes!(health::health))
        .routes(routes!(metrics::json))
        .routes(routes!(metrics::prometheus))
}
