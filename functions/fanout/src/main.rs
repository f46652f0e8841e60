//! Rows to the connections of the managed gateway: greetings, deliveries, sweeps, and the table's changes as a backstop.
//!
//! An event is a call of [`tidewheel_gateway::live::Live`]. The function stops well before its time limit and goes on in
//! another invocation of itself. Each of its events may come twice, and at once.
//!
//! [`tidewheel_cloud::Environment`] tells the variables; `TIDEWHEEL_DOORBELL`, the name of this function, is needed.

mod event;
mod function;
mod metrics;

use std::{
    io::{self, Write},
    sync::Arc,
};

use lambda_runtime::{Context, Error, LambdaEvent, service_fn};
use tidewheel_cloud::{Environment, Fanout, Posts, environment::DOORBELL, keys::keys};
use tidewheel_engine::Engine;
use tidewheel_gateway::live::{Live, StopAt};
use tidewheel_store::Env;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{event::Event, function::Function};

/// The variable that says what is logged.
const LOG: &str = "TIDEWHEEL_LOG";

/// What is left of an invocation's time when it stops, µs; of a short one a quarter.
const MARGIN_US: i64 = 10_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // Targets and levels, and no more: filters of another kind would bring an engine of regular expressions along.
    let said = std::env::var(LOG).ok().filter(|said| !said.is_empty());
    let filter = said.and_then(|said| said.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().json().with_writer(io::stdout);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let env = Env::system();
    let (function, table) = init(&env).await.inspect_err(|error| {
        tracing::error!(error = %error, "the function cannot start");
    })?;
    let (function, table, env) = (&function, &table, &env);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| async move {
        let before = function.live().tally();
        let answer = function.answer(event.payload, stop_at(&event.context, env.now_us())).await;
        let after = function.live().tally();
        if let Some(line) = metrics::line(table, env.now_us(), &before, &after) {
            // A log that cannot be written to is no reason to do the work again.
            let _ = writeln!(io::stdout(), "{line}");
        }
        answer
            .inspect_err(|error| tracing::error!(%error, "the event comes again"))
            .map_err(Error::from)
    }))
    .await
}

async fn init(env: &Env) -> Result<(Function, String), Error> {
    let environment = Environment::from_env()?;
    let Some(fanout) = &environment.doorbell else {
        return Err(format!("the environment variable {DOORBELL} is not set").into());
    };
    let opened = tidewheel_cloud::open(&environment).await?;
    let posts = Arc::new(Posts::new(&opened.sdk, environment.posts_endpoint.clone()));
    // Side by side: a handshake takes longer than a request.
    let (warm, ()) = tokio::join!(opened.warm(), posts.warm());
    warm?;
    let fanout = Arc::new(Fanout::new(&opened.sdk, fanout));
    let mut settings = environment.settings();
    settings.keys = keys(&environment, &opened);
    let engine = Engine::new(opened.store, env.clone(), settings);
    Ok((Function::new(Live::new(engine, posts, fanout)), environment.table))
}

/// When an invocation stops, so that it can hand over what is left.
fn stop_at(context: &Context, now_us: i64) -> StopAt {
    let deadline_us = i64::try_from(context.deadline).unwrap_or(i64::MAX).saturating_mul(1000);
    let left_us = deadline_us.saturating_sub(now_us).max(0);
    StopAt(deadline_us.saturating_sub(MARGIN_US.min(left_us / 4)))
}
