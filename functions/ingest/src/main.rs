//! Events of other services become pushes: SQS, SNS, EventBridge, Kinesis, and new objects in S3.
//!
//! - Every row has a **stable id**, derived from where it came from: a message's id, a record's sequence number, an
//!   object's version and a row's number in it. So an event that is delivered again is a duplicate and not a second row,
//!   as long as it comes within the stream's deduplication window (an hour unless configured).
//! - A row that can never be stored is **reported and blocks nobody**: a message of SQS fails alone and ends among the
//!   dead letters; what has no way to fail alone (a record of Kinesis, a line of an object) becomes a row of the stream
//!   `<stream>-rejected` that says what was wrong with it.
//! - What fails for now is left to the source to deliver again.
//! - A large object is read a piece at a time. Before the invocation's time is over the rest is put on the queue as
//!   a position, and another invocation goes on there.
//!
//! `TIDEWHEEL_INGEST` says what goes where ([`routes`]), `TIDEWHEEL_QUEUE` where positions go; the other variables are
//! those of [`tidewheel_cloud::Environment`].

mod bucket;
mod csv_rows;
mod deliver;
mod ingest;
mod lines;
mod object;
mod routes;
#[cfg(feature = "parquet")]
mod row_groups;
mod source;

use std::{io, sync::Arc};

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::value::RawValue;
use tidewheel_cloud::{Environment, Fanout, keys::keys};
use tidewheel_engine::Engine;
use tidewheel_store::Env;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    bucket::{S3, Sqs},
    ingest::Ingest,
    routes::Routes,
};

/// The variable that says what goes where.
const INGEST: &str = "TIDEWHEEL_INGEST";

/// The variable that says what is logged.
const LOG: &str = "TIDEWHEEL_LOG";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // Targets and levels, and no more: filters of another kind would bring an engine of regular expressions along.
    let said = std::env::var(LOG).ok().filter(|said| !said.is_empty());
    let filter = said.and_then(|said| said.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().json().with_writer(io::stdout);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let ingest = init().await.inspect_err(|error| {
        tracing::error!(error = %error, "the function cannot start");
    })?;
    let ingest = &ingest;
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Box<RawValue>>| async move {
        let deadline_us = i64::try_from(event.context.deadline).unwrap_or(i64::MAX / 1000) * 1000;
        ingest.take(event.payload.get(), deadline_us).await.map_err(Error::from)
    }))
    .await
}

async fn init() -> Result<Ingest, Error> {
    let environment = Environment::from_env()?;
    let routes = Routes::parse(&std::env::var(INGEST).unwrap_or_default())?;
    let opened = tidewheel_cloud::open(&environment).await?;
    opened.warm().await?;
    let mut settings = environment.settings();
    settings.keys = keys(&environment, &opened);
    let fanout = environment.doorbell.as_deref().map(|name| Fanout::new(&opened.sdk, name));
    settings.doorbell = fanout.map(|fanout| Arc::new(fanout) as _);
    let queue = environment.queue.as_ref().map(|url| Sqs::new(&opened.sdk, url));
    let engine = Engine::new(opened.store, Env::system(), settings);
    Ok(Ingest::new(engine, routes, Arc::new(S3::new(opened.s3)), queue.map(|q| Arc::new(q) as _)))
}
