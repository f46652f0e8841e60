//! `tidewheel`: the whole of Tidewheel in one process.

use std::{io::Write, process::ExitCode};

use clap::Parser;
use tidewheel_localstack::{
    Stack, keys, load, logging,
    options::{Cli, Command, Ingest, Serve},
    stop_requested,
};

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let (log, log_format) = match &command {
        Command::Serve(options) => (options.log.clone(), options.log_format),
        Command::Ingest(_) | Command::Keys(_) => ("warn".to_owned(), Serve::default().log_format),
    };
    if let Err(error) = logging::init(&log, log_format) {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match command {
        Command::Serve(options) => runtime.block_on(serve(&options)),
        Command::Keys(options) => runtime.block_on(keys::run(&options)),
        Command::Ingest(options) => runtime.block_on(ingest(&options)),
    }
}

async fn ingest(options: &Ingest) -> ExitCode {
    match load(options).await {
        Ok(loaded) => {
            println!("{} rows in {} batches", loaded.rows, loaded.batches);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: &Serve) -> ExitCode {
    let stack = match Stack::start(options).await {
        Ok(stack) => stack,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(error.exit_status());
        }
    };
    // Whoever reads that it listens may ask it to stop at once.
    let stop = stop_requested();
    announce(&stack);
    stop.await;
    tokio::select! {
        () = stack.stop() => ExitCode::SUCCESS,
        () = stop_requested() => {
            tracing::warn!("asked to stop a second time: ending at once");
            ExitCode::FAILURE
        }
    }
}

/// Says on standard output, in lines that scripts may rely on, where everything is.
fn announce(stack: &Stack) {
    let url = format!("http://{}", stack.address());
    let mut out = std::io::stdout().lock();
    // A closed standard output is no reason to stop serving.
    let _ = writeln!(
        out,
        "listening on {url}\n\
         data in {}\n\
         tables in {}\n\
         try: curl -s {url}/api/v1/push -H 'content-type: application/json' \
         -d '{{\"items\":[{{\"queue\":\"hello\",\"payload\":{{\"n\":1}}}}]}}'",
        stack.data(),
        stack.tables_place(),
    )
    .and_then(|()| out.flush());
}
