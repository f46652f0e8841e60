//! The maintain function: what streams and their tables need done beside pushing and popping.
//!
//! One binary, two kinds of events. The schedule, each minute, only *finds* work and puts it on a queue; the queue's
//! batches do it. So a thousand streams are sealed by as many functions as that takes, and one that fails is tried again
//! alone. Nothing is decided here: finding and doing are [`tidewheel_tables::maintain`].

mod event;
mod function;
mod metrics;
mod outbox;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::Value;
use tidewheel_cloud::{Environment, Fanout, Glue, Queue, environment};
use tidewheel_engine::Engine;
use tidewheel_store::Env;
use tidewheel_tables::{Settings, Tables, maintain::Maintenance};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{event::Event, function::Function, metrics::Metrics};

/// The most that one step of a seal takes: small enough to be done in the time that an invocation has.
const SEAL_ROWS: usize = 250_000;
/// The most payload that one step of a seal takes, bytes.
const SEAL_BYTES: usize = 128 * 1024 * 1024;

/// The filter of log lines.
const LOG: &str = "TIDEWHEEL_LOG";
/// Set to `true` to publish the tables of streams that are encrypted at rest as well.
const PUBLISH_ENCRYPTED: &str = "TIDEWHEEL_PUBLISH_ENCRYPTED";

fn main() -> Result<(), lambda_runtime::Error> {
    // Targets and levels, and no more: filters of another kind would bring an engine of regular expressions along.
    let filter: Targets = variable(LOG).unwrap_or_else(|| "info".to_owned()).parse()?;
    let lines =
        tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve())
}

async fn serve() -> Result<(), lambda_runtime::Error> {
    let function = Arc::new(open().await?);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| {
        let function = Arc::clone(&function);
        async move {
            let deadline_us = i64::try_from(event.context.deadline)?.saturating_mul(1000);
            let event = Event::parse(event.payload)?;
            Ok::<_, lambda_runtime::Error>(function.handle(event, deadline_us).await?)
        }
    }))
    .await
}

/// Puts the function together: everything that is made once.
async fn open() -> Result<Function, lambda_runtime::Error> {
    let environment = Environment::from_env()?;
    let queue = environment
        .queue
        .as_deref()
        .ok_or(tidewheel_cloud::EnvironmentError::Missing { variable: environment::QUEUE })?;
    let opened = tidewheel_cloud::open(&environment).await?;
    opened.warm().await?;
    let objects = tidewheel_cloud::objects(&environment, &opened)?;
    let env = Env::system();
    let fanout = environment.doorbell.as_deref().map(|name| Fanout::new(&opened.sdk, name));
    let settings = tidewheel_engine::Settings {
        keys: tidewheel_cloud::keys::keys(&environment, &opened),
        // Timers push.
        doorbell: fanout.map(|fanout| Arc::new(fanout) as _),
        ..environment.settings()
    };
    let engine = Engine::new(Arc::clone(&opened.store), env.clone(), settings);
    let settings = Settings {
        seal_rows: SEAL_ROWS,
        seal_bytes: SEAL_BYTES,
        catalogue: environment
            .glue_database
            .as_deref()
            .map(|database| Arc::new(Glue::new(&opened.sdk, database)) as _),
        publish_encrypted: variable(PUBLISH_ENCRYPTED).as_deref() == Some("true"),
        ..Settings::default()
    };
    let root = object_store::path::Path::default();
    let uri = tidewheel_cloud::objects_uri(&environment);
    let tables = Tables::new(&engine, Arc::new(objects), root, &uri, settings);
    let queue = Queue::new(&opened, queue, &env);
    let metrics = Metrics::to_stdout(&environment.table, &env);
    Ok(Function::new(Maintenance::new(&engine, &tables), Arc::new(queue), metrics))
}

/// A variable; one that is set and empty counts as not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
