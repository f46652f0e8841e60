//! Structured logs, on standard error: standard output is for what a person or a script reads at start.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::options::LogFormat;

/// Starts logging for the process.
///
/// # Errors
/// Says what is wrong with the filter, or that logging has been started before.
pub fn init(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|e| format!("log filter `{filter}`: {e}"))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    }
    .map_err(|e| e.to_string())
}
