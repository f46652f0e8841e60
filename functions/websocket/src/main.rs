//! Connections of the managed WebSocket gateway: `$connect`, `$disconnect`, `$default`.
//!
//! An event is a call of [`tidewheel_gateway::live::Live`], and what it says is the answer. Nothing is decided here.
//! Nothing can be posted to a connection while it is being answered for: what is to be sent is asked of the fan-out
//! function.
//!
//! [`tidewheel_cloud::Environment`] tells the variables; `TIDEWHEEL_DOORBELL` is needed.

mod event;
mod function;

use std::{io, sync::Arc, time::Duration};

use lambda_runtime::{Error, LambdaEvent, service_fn};
use tidewheel_cloud::{Environment, Fanout, Posts, environment::DOORBELL, keys::keys};
use tidewheel_engine::{Doorbell, Engine};
use tidewheel_gateway::live::Live;
use tidewheel_store::Env;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{event::Event, function::Function};

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
    let env = Env::system();
    let function = init(&env).await.inspect_err(|error| {
        tracing::error!(error = %error, "the function cannot start");
    })?;
    let (function, env) = (&function, &env);
    lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| async move {
        let deadline_us = i64::try_from(event.context.deadline).unwrap_or(0).saturating_mul(1000);
        let left_us = u64::try_from(deadline_us - env.now_us()).unwrap_or(0);
        Ok::<_, Error>(function.answer(event.payload, Duration::from_micros(left_us)).await)
    }))
    .await
}

async fn init(env: &Env) -> Result<Function, Error> {
    let environment = Environment::from_env()?;
    let Some(fanout) = &environment.doorbell else {
        return Err(format!("the environment variable {DOORBELL} is not set").into());
    };
    let opened = tidewheel_cloud::open(&environment).await?;
    opened.warm().await?;
    let fanout = Arc::new(Fanout::new(&opened.sdk, fanout));
    let mut settings = environment.settings();
    settings.keys = keys(&environment, &opened);
    settings.doorbell = Some(Arc::clone(&fanout) as Arc<dyn Doorbell>);
    let posts = Arc::new(Posts::new(&opened.sdk, environment.posts_endpoint.clone()));
    let engine = Engine::new(opened.store, env.clone(), settings);
    let live = Live::new(engine, posts, fanout);
    Ok(Function::new(live, environment.posts_endpoint.is_some()))
}
