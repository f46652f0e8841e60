//! What the scheduled tasks do in one round.

use tidewheel_tables::Tables;

/// Publishes what is new in all streams to their tables, until there is nothing more.
pub(crate) async fn seal(tables: Tables) -> Result<(), tidewheel_tables::Error> {
    loop {
        let report = tables.seal_all().await?;
        for (stream, sealed) in &report.sealed {
            tracing::info!(stream, rows = sealed.rows, files = sealed.files, "sealed");
            if let Some(unfit) = &sealed.unfit {
                tracing::warn!(stream, ?unfit, "a record does not fit the declared schema");
            }
            if sealed.lost > 0 {
                tracing::warn!(
                    stream,
                    lost = sealed.lost,
                    "retention took records before they were sealed"
                );
            }
        }
        // A stream that fails would otherwise be tried again without a pause.
        if !report.more || report.sealed.is_empty() {
            return report.failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        }
    }
}
