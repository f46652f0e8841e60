//! When the process is asked to stop.

use tokio::signal;

/// Is ready when the process gets SIGTERM or SIGINT; at once if signals cannot be listened to.
pub async fn stop_requested() {
    #[cfg(unix)]
    {
        use signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            _ => tracing::error!("signals cannot be listened to"),
        }
    }
    #[cfg(not(unix))]
    if signal::ctrl_c().await.is_err() {
        tracing::error!("signals cannot be listened to");
    }
}
