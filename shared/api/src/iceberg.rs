//! `/iceberg/v1`: the published tables as a read-only Iceberg REST catalogue.
//!
//! PyIceberg, DuckDB, Spark and Trino attach to it with one line and then know each table by its stream's name. What a
//! table is, is read by the reader itself from the table's own files; here it is told only which metadata counts now, and that
//! is whatever the table's head says at this moment. Nothing can be written through it.
//!
//! The routes are the Iceberg project's and described there, so they are not part of `/openapi.json`. Where no
//! tables are published every answer is 404.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::Api;

/// The one namespace: every table in it is called as its stream is.
pub const NAMESPACE: &str = "streams";

/// Tables that one answer lists at most.
const PAGE: usize = 1000;

/// What a reader is told of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueTable {
    /// The location of the metadata that counts.
    pub location: String,
    /// That metadata: the text of the file.
    pub metadata: Bytes,
}

/// A page of the tables' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CataloguePage {
    /// Names of streams that have a table, in order.
    pub names: Vec<String>,
    /// The name after which to go on; `None` if these were the last.
    pub next: Option<String>,
}

/// The tables that are published.
#[async_trait]
pub trait Catalogue: Send + Sync + 'static {
    /// The tables after one. A failure is a text.
    async fn tables(&self, after: Option<&str>, limit: usize) -> Result<CataloguePage, String>;
    /// A stream's table, if there is one. A failure is a text.
    async fn table(&self, name: &str) -> Result<Option<CatalogueTable>, String>;
}

/// An answer that is an error, as the protocol has it.
struct Refused(StatusCode, &'static str, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(status, kind, message) = self;
        let code = status.as_u16();
        let body = json!({"error": {"message": message, "type": kind, "code": code}});
        (status, Json(body)).into_response()
    }
}

fn failed(e: String) -> Refused {
    tracing::warn!(error = e, "the catalogue cannot be read");
    Refused(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableException", e)
}

fn catalogue(api: &Api) -> Result<&Arc<dyn Catalogue>, Refused> {
    api.catalogue().ok_or_else(|| {
        let text = "no tables are published here".to_owned();
        Refused(StatusCode::NOT_FOUND, "NotFoundException", text)
    })
}

fn known(namespace: &str) -> Result<(), Refused> {
    if namespace == NAMESPACE {
        return Ok(());
    }
    let text = format!("namespace `{namespace}` does not exist: the tables are in `{NAMESPACE}`");
    Err(Refused(StatusCode::NOT_FOUND, "NoSuchNamespaceException", text))
}

/// What the catalogue can do: every other operation is refused, so clients need not try.
const ENDPOINTS: [&str; 6] = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
];

async fn config(State(api): State<Api>) -> Result<Json<Value>, Refused> {
    catalogue(&api)?;
    Ok(Json(json!({"defaults": {}, "overrides": {}, "endpoints": ENDPOINTS})))
}

#[derive(Deserialize)]
struct Parent {
    parent: Option<String>,
}

async fn namespaces(
    State(api): State<Api>,
    Query(Parent { parent }): Query<Parent>,
) -> Result<Json<Value>, Refused> {
    catalogue(&api)?;
    match parent.as_deref() {
        None | Some("") => Ok(Json(json!({"namespaces": [[NAMESPACE]], "next-page-token": null}))),
        Some(parent) => {
            known(parent)?;
            Ok(Json(json!({"namespaces": [], "next-page-token": null})))
        }
    }
}

async fn namespace(
    State(api): State<Api>,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, Refused> {
    catalogue(&api)?;
    known(&namespace)?;
    Ok(Json(json!({"namespace": [NAMESPACE], "properties": {}})))
}

#[derive(Deserialize)]
struct Paging {
    #[serde(rename = "pageToken")]
    token: Option<String>,
    #[serde(rename = "pageSize")]
    size: Option<usize>,
}

async fn tables(
    State(api): State<Api>,
    Path(namespace): Path<String>,
    Query(paging): Query<Paging>,
) -> Result<Json<Value>, Refused> {
    let catalogue = catalogue(&api)?;
    known(&namespace)?;
    let whole = paging.token.is_none() && paging.size.is_none();
    let limit = paging.size.unwrap_or(PAGE).clamp(1, PAGE);
    let mut after = paging.token.filter(|token| !token.is_empty());
    let mut identifiers = Vec::new();
    loop {
        let page = catalogue.tables(after.as_deref(), limit).await.map_err(failed)?;
        let named = page.names.into_iter();
        identifiers.extend(named.map(|name| json!({"namespace": [NAMESPACE], "name": name})));
        after = page.next;
        // Whoever does not ask for pages is told all.
        if !whole || after.is_none() {
            return Ok(Json(json!({"identifiers": identifiers, "next-page-token": after})));
        }
    }
}

#[derive(serde::Serialize)]
struct Loaded {
    #[serde(rename = "metadata-location")]
    location: String,
    metadata: Box<RawValue>,
    config: Value,
}

async fn table(
    State(api): State<Api>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Loaded>, Refused> {
    let catalogue = catalogue(&api)?;
    known(&namespace)?;
    let Some(table) = catalogue.table(&name).await.map_err(failed)? else {
        let text = format!("table `{NAMESPACE}.{name}` does not exist");
        return Err(Refused(StatusCode::NOT_FOUND, "NoSuchTableException", text));
    };
    let damaged = |_| failed(format!("the metadata at `{}` is no JSON", table.location));
    let text = String::from_utf8_lossy(&table.metadata).into_owned();
    let metadata = RawValue::from_string(text).map_err(damaged)?;
    Ok(Json(Loaded { location: table.location, metadata, config: json!({}) }))
}

/// Readers may report what they have read; it is taken and dropped.
async fn metrics() -> StatusCode {
    StatusCode::NO_CONTENT
}

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/iceberg/v1/config", get(config))
        .route("/iceberg/v1/namespaces", get(namespaces))
        .route("/iceberg/v1/namespaces/{namespace}", get(namespace))
        .route("/iceberg/v1/namespaces/{namespace}/tables", get(tables))
        .route("/iceberg/v1/namespaces/{namespace}/tables/{table}", get(table))
        .route("/iceberg/v1/namespaces/{namespace}/tables/{table}/metrics", post(metrics))
}
