//! The measured bills as a table in Markdown.

use std::fmt::Write as _;

use super::{BATCHES, Prices, Row};

/// Dollars with as many places as say something.
fn dollars(value: f64) -> String {
    if value >= 1.0 { format!("{value:.2}") } else { format!("{value:.3}") }
}

/// The table: ours line by line, then the peers.
pub fn table(prices: &Prices, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a text does not fail.
    let _ = write!(out, "| dollars for a million, messages of 1 KB in requests of |");
    for batch in BATCHES {
        let _ = write!(out, " {batch} |");
    }
    out.push_str("\n|---|---|---|---|---|\n");
    for row in rows {
        let _ = write!(out, "| {} |", row.what);
        for bill in &row.bills {
            let each = bill.as_ref().map(|bill| prices.dollars(bill) / bill.of as f64 * 1e6);
            let _ = write!(out, " {} |", each.map_or(String::new(), dollars));
        }
        out.push('\n');
    }
    for peer in &prices.peers {
        let _ = write!(out, "| _{}; idle: {}_ |", peer.name, peer.idle);
        for value in peer.dollars {
            let _ = write!(out, " {} |", dollars(value));
        }
        out.push('\n');
    }
    out
}
