//! What Tidewheel costs in one's own account: measured units times the cloud's public prices.
//!
//! The operations run on the real engine over the metered store ([`measure`]); the prices and the two assumptions (memory
//! and time of an invocation) stand in a dated file, `us-east-1.json`. Nothing is typed in by hand beside that file: the
//! table on the front page is the output, and a test compares the two.
//!
//! Never a timed test: units are exact, and the same on every machine.

mod measure;
mod table;

use serde::Deserialize;

pub use measure::{Bill, Row, measure};
pub use table::table;

/// Messages that a request carries, column by column.
pub const BATCHES: [usize; 4] = [1, 10, 100, 1000];

/// Bytes of a message's payload.
pub const MESSAGE_BYTES: usize = 1024;

/// Prices of one region, in dollars, at one day.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// The day.
    pub as_of: String,
    /// The region.
    pub region: String,
    /// Where they were read.
    pub sources: String,
    write_units_million: f64,
    read_units_million: f64,
    object_puts_million: f64,
    object_gets_million: f64,
    item_gb_month: f64,
    object_gb_month: f64,
    invocations_million: f64,
    invocation_gb_second: f64,
    http_requests_million: f64,
    socket_messages_million: f64,
    assumed: Assumed,
    peers: Vec<Peer>,
}

/// What is assumed of an invocation; nothing else is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Assumed {
    invocation_gb: f64,
    invocation_ms: f64,
}

/// Another service, for a million messages of the same size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Peer {
    name: String,
    dollars: [f64; BATCHES.len()],
    idle: String,
}

impl Prices {
    /// The prices that come with the source.
    ///
    /// # Panics
    /// If the file is damaged.
    pub fn shipped() -> Self {
        serde_json::from_str(include_str!("us-east-1.json")).expect("a price file")
    }

    /// Dollars for a bill.
    pub fn dollars(&self, bill: &Bill) -> f64 {
        let Assumed { invocation_gb, invocation_ms } = self.assumed;
        let invocation = self.invocations_million / 1e6
            + self.invocation_gb_second * invocation_gb * invocation_ms / 1e3;
        let units = &bill.units;
        let millionths = units.write_units * self.write_units_million
            + units.read_units * self.read_units_million
            + (units.blob_puts + bill.file_puts) as f64 * self.object_puts_million
            + units.blob_gets as f64 * self.object_gets_million
            + bill.requests as f64 * self.http_requests_million
            + bill.socket_messages as f64 * self.socket_messages_million;
        millionths / 1e6
            + bill.invocations as f64 * invocation
            + bill.item_bytes as f64 / 1e9 * self.item_gb_month
            + bill.object_bytes as f64 / 1e9 * self.object_gb_month
    }
}
