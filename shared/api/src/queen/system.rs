//! What an operator switches: pushes and pops can be paused for a whole installation, whatever process is asked.
//!
//! While pushes are paused a push answers 503 and stores nothing: there is no buffer that would take it instead, so
//! nothing is promised that is not kept. While pops are paused they answer that there is nothing.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tidewheel_engine::Switches;

use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{Api, body::Body, error::Failure, json::Json, openapi};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(push_state, pause_push))
        .routes(routes!(pop_state, pause_pop))
        .routes(routes!(refresh))
}

#[derive(Deserialize)]
struct Request {
    enabled: Option<bool>,
}

fn enabled(body: &Body) -> Result<bool, Failure> {
    let request: Request = body.parse()?;
    request.enabled.ok_or_else(|| Failure::bad_request("enabled (boolean) is required"))
}

/// `GET /api/v1/system/maintenance`: both switches, as the store has them.
#[utoipa::path(
    get, path = "/api/v1/system/maintenance", operation_id = "pushMaintenance", tag = "operate",
    responses((status = 200, description = "Both switches", body = openapi::PushSwitch)),
)]
async fn push_state(State(api): State<Api>) -> Result<Response, Failure> {
    let switches = api.engine().switches().await?;
    let mut json = Json::with_capacity(256);
    json.object().key("maintenanceMode").bool(switches.push_paused);
    json.key("popMaintenanceMode").bool(switches.pop_paused);
    json.key("bufferedMessages").number(0).key("bufferHealthy").bool(true);
    json.key("bufferStats").object().key("pendingCount").number(0).key("failedCount").number(0);
    json.key("dbHealthy").bool(true).end_object().end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `POST /api/v1/system/maintenance`. Answered once every process goes by it.
#[utoipa::path(
    post, path = "/api/v1/system/maintenance", operation_id = "setPushMaintenance", tag = "operate",
    request_body = openapi::SwitchRequest,
    responses((status = 200, description = "The switch as it is now", body = openapi::PushSwitch)),
)]
async fn pause_push(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let Switches { push_paused, .. } = api.engine().pause_push(enabled(&body)?).await?;
    let mut json = Json::with_capacity(192);
    json.object().key("maintenanceMode").bool(push_paused);
    json.key("bufferedMessages").number(0).key("bufferHealthy").bool(true);
    json.key("message").plain(match push_paused {
        true => {
            "Maintenance mode ENABLED. Pushes are refused with 503 and nothing of them is stored."
        }
        false => "Maintenance mode DISABLED. Pushes are accepted.",
    });
    json.end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// `GET /api/v1/system/maintenance/pop`: the switch, as the store has it.
#[utoipa::path(
    get, path = "/api/v1/system/maintenance/pop", operation_id = "popMaintenance", tag = "operate",
    responses((status = 200, description = "The switch", body = openapi::PopSwitch)),
)]
async fn pop_state(State(api): State<Api>) -> Result<Response, Failure> {
    Ok(pop_answer(api.engine().switches().await?))
}

/// `POST /api/v1/system/maintenance/pop`. Answered once every process goes by it.
#[utoipa::path(
    post, path = "/api/v1/system/maintenance/pop", operation_id = "setPopMaintenance", tag = "operate",
    request_body = openapi::SwitchRequest,
    responses((status = 200, description = "The switch as it is now", body = openapi::PopSwitch)),
)]
async fn pause_pop(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    Ok(pop_answer(api.engine().pause_pop(enabled(&body)?).await?))
}

fn pop_answer(switches: Switches) -> Response {
    let mut json = Json::with_capacity(128);
    json.object().key("popMaintenanceMode").bool(switches.pop_paused);
    json.key("message").plain(match switches.pop_paused {
        true => "Pop maintenance mode is ON. Pops find nothing.",
        false => "Pop maintenance mode is OFF. Normal operation.",
    });
    json.end_object();
    json.into_response(StatusCode::OK)
}

/// `POST /api/v1/stats/refresh`: there is nothing to refresh, since numbers are computed when they are asked for.
#[utoipa::path(
    post, path = "/api/v1/stats/refresh", operation_id = "refreshStatistics", tag = "operate",
    responses((status = 200, description = "There was nothing to refresh", body = openapi::Refreshed)),
)]
async fn refresh(State(_): State<Api>) -> Response {
    let mut json = Json::with_capacity(128);
    json.object().key("success").bool(true).key("engine").plain("tidewheel");
    json.key("message").plain("Numbers are computed when they are asked for; none were stale.");
    json.end_object();
    json.into_response(StatusCode::OK)
}
