//! When the process is asked to stop.

use tokio::signal;

/// Is ready when the process gets SIGTERM or SIGINT; at once if signals cannot be listened to. On Unix it listens from
/// the call on, whenever it is awaited.
pub fn stop_requested() -> impl Future<Output = ()> {
    #[cfg(unix)]
    {
        use signal::unix::{SignalKind, signal};
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        async move {
            match signals {
                (Ok(mut terminate), Ok(mut interrupt)) => {
                    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                }
                _ => tracing::error!("signals cannot be listened to"),
            }
        }
    }
    #[cfg(not(unix))]
    async {
        if signal::ctrl_c().await.is_err() {
            tracing::error!("signals cannot be listened to");
        }
    }
}
