//! The HTTP API as a function: behind an HTTP API, or behind a function URL with replies that stream.
//!
//! Everything that can be made before the first request is made in init, the first connections to the store among it;
//! then each event is one call of the router that the local stack serves too. Nothing is decided here, and nothing is
//! kept between two invocations that another process would miss: a process that is killed at any moment leaves what
//! the engine leaves, which is nothing half done.
//!
//! `TIDEWHEEL_RESPONSE` is `stream` for the function behind a function URL; [`tidewheel_cloud::Environment`] tells the
//! other variables.

mod event;
mod function;
mod landing;
mod reply;

use std::{io, sync::Arc};

use axum::{body::Body, http::header};
use lambda_runtime::{Error, LambdaEvent, MetadataPrelude, StreamResponse, service_fn};
use tidewheel_cloud::{Environment, Fanout, keys::keys};
use tidewheel_engine::Engine;
use tidewheel_store::Env;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    event::Event,
    function::{Form, Function},
    reply::Reply,
};

/// The variable that says how replies leave.
const RESPONSE: &str = "TIDEWHEEL_RESPONSE";

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
    let form = match std::env::var(RESPONSE).as_deref() {
        Ok("stream") => Form::Streamed,
        _ => Form::Buffered,
    };
    let function = init(form).await.inspect_err(|error| {
        tracing::error!(error = %error, "the function cannot start");
    })?;
    let function = &function;
    match form {
        Form::Buffered => {
            lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| async move {
                let response = function.answer(event.payload, &event.context).await;
                Ok::<_, Error>(Reply::from_response(response).await)
            }))
            .await
        }
        Form::Streamed => {
            lambda_runtime::run(service_fn(move |event: LambdaEvent<Event>| async move {
                let response = function.answer(event.payload, &event.context).await;
                Ok::<_, Error>(streamed(response))
            }))
            .await
        }
    }
}

async fn init(form: Form) -> Result<Function, Error> {
    let environment = Environment::from_env()?;
    let opened = tidewheel_cloud::open(&environment).await?;
    opened.warm().await?;
    let mut settings = environment.settings();
    form.bound(&mut settings);
    settings.keys = keys(&environment, &opened);
    let fanout = environment.doorbell.as_deref().map(|name| Fanout::new(&opened.sdk, name));
    settings.doorbell = fanout.map(|fanout| Arc::new(fanout) as _);
    Ok(Function::new(Engine::new(opened.store, Env::system(), settings), form))
}

/// A response as a stream behind its status and headers.
fn streamed(response: axum::http::Response<Body>) -> StreamResponse<axum::body::BodyDataStream> {
    let (parts, body) = response.into_parts();
    let text =
        |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let cookies = parts.headers.get_all(header::SET_COOKIE).iter().map(text).collect();
    let mut headers = parts.headers;
    headers.remove(header::SET_COOKIE);
    StreamResponse {
        metadata_prelude: MetadataPrelude { status_code: parts.status, headers, cookies },
        stream: body.into_data_stream(),
    }
}
