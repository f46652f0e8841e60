//! `POST /streams/v1/state/partitions` and `POST /streams/v1/claim`: where a query has state, and leases over partitions
//! with nothing to read, under which a runner closes their windows.
//!
//! A query that nobody knows holds no state. Its claim is refused with `success: false` and not with 404, by which an
//! SDK would conclude that the server has no claims at all.

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tidewheel_engine::{ClaimStatus, Error, StatePartitions, Uuid, limits};

use super::{granted, required};
use crate::{
    Api,
    body::{Body, Text, filled},
    error::{Failure, shortened},
    json::Json,
    openapi,
};

#[derive(Deserialize)]
struct ListRequest<'a> {
    #[serde(borrow)]
    query_id: Option<Text<'a>>,
    untouched_for_ms: Option<i64>,
    #[serde(borrow)]
    after: Option<Text<'a>>,
    limit: Option<i64>,
}

/// `POST /streams/v1/state/partitions`: where a query has state.
#[utoipa::path(
    post, path = "/streams/v1/state/partitions", operation_id = "statePartitions", tag = "streams",
    request_body = openapi::StatePartitionsRequest,
    responses((status = 200, description = "Partitions with state", body = openapi::StatePartitionsAnswer)),
)]
pub(crate) async fn partitions(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: ListRequest<'_> = body.parse()?;
    let query = Uuid::parse(required("query_id", &request.query_id)?);
    granted(&api, body.caller(), query).await?;
    let untouched_us = request.untouched_for_ms.map(|ms| ms.saturating_mul(1000));
    let limit = match request.limit {
        Some(limit) if limit > 0 => usize::try_from(limit).unwrap_or(usize::MAX),
        _ => limits::STATE_PARTITIONS,
    };
    let after = filled(&request.after);
    let page = match query {
        Some(query) => api.engine().state_partitions(&query, untouched_us, after, limit).await?,
        None => StatePartitions::default(),
    };

    let mut json = Json::with_capacity(64 + page.partitions.len() * 200);
    json.object().key("success").bool(true).key("partitions").array();
    for partition in &page.partitions {
        let info = &partition.info;
        json.object().key("partition_id").plain(info.id).key("partition").string(&info.name);
        json.key("queue").string(&info.stream).key("updated_at").time(partition.updated_us);
        json.end_object();
    }
    json.end_array().key("next").string_or_null(page.next.as_deref()).end_object();
    Ok(json.into_response(StatusCode::OK))
}

#[derive(Deserialize)]
struct ClaimRequest<'a> {
    #[serde(borrow)]
    query_id: Option<Text<'a>>,
    partition_ids: Option<Vec<String>>,
    #[serde(borrow)]
    consumer_group: Option<Text<'a>>,
    lease_seconds: Option<i64>,
}

/// `POST /streams/v1/claim`: leases over partitions with nothing to read.
#[utoipa::path(
    post, path = "/streams/v1/claim", operation_id = "claim", tag = "streams",
    request_body = openapi::ClaimRequest,
    responses((status = 200, description = "What was leased", body = openapi::ClaimAnswer)),
)]
pub(crate) async fn claim(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let request: ClaimRequest<'_> = body.parse()?;
    let query = Uuid::parse(required("query_id", &request.query_id)?);
    granted(&api, body.caller(), query).await?;
    let partitions = request.partition_ids.unwrap_or_default();
    let group = filled(&request.consumer_group);
    let claims = match query {
        Some(query) => {
            api.engine().claim_idle(&query, &partitions, group, request.lease_seconds).await
        }
        None => Err(Error::QueryNotFound),
    };
    let mut json = Json::with_capacity(256 + partitions.len() * 200);
    let claims = match claims {
        Ok(claims) => claims,
        Err(e @ Error::QueryNotFound) => {
            json.object().key("success").bool(false).key("error").string(&e.to_string());
            json.key("lease_id").plain("").key("partitions").array().end_array().end_object();
            return Ok(json.into_response(StatusCode::OK));
        }
        Err(e) => return Err(e.into()),
    };
    json.object().key("success").bool(true).key("lease_id").string(&claims.lease_id);
    json.key("lease_seconds").number(claims.lease_seconds);
    json.key("now_ms").number(claims.now_us / 1000).key("partitions").array();
    for partition in &claims.partitions {
        json.object().key("partition_id").string(&shortened(&partition.id));
        json.key("partition").string(&partition.name).key("status");
        match partition.status {
            ClaimStatus::Claimed(_) => {
                json.plain("claimed").key("lease_expires_at").time(claims.until_us);
            }
            ClaimStatus::Busy => {
                json.plain("busy");
            }
            ClaimStatus::Backlog => {
                json.plain("backlog");
            }
            ClaimStatus::Missing => {
                json.plain("missing");
            }
        }
        json.end_object();
    }
    json.end_array().end_object();
    Ok(json.into_response(StatusCode::OK))
}
