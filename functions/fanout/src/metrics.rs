//! What the operator sees: counts in the log, in the form that the log service makes metrics of (EMF).

use serde_json::{Value, json};
use tidewheel_gateway::live::Tally;

/// The line for what happened between two readings; `None` if nothing did that is worth one.
pub(crate) fn line(table: &str, now_us: i64, before: &Tally, after: &Tally) -> Option<Value> {
    let counts = [
        ("ConnectionsGone", after.gone - before.gone),
        ("SlowConsumers", after.slow - before.slow),
        ("DoubtfulConnections", after.doubtful - before.doubtful),
        ("PostsThrottled", after.throttled - before.throttled),
        ("Posts", after.posts - before.posts),
        ("Flushes", after.flushes - before.flushes),
    ];
    if counts.iter().all(|(_, n)| *n == 0) {
        return None;
    }
    let metrics: Vec<Value> =
        counts.iter().map(|(name, _)| json!({"Name": name, "Unit": "Count"})).collect();
    let mut line = json!({
        "_aws": {
            "Timestamp": now_us / 1000,
            "CloudWatchMetrics": [
                {"Namespace": "Tidewheel", "Dimensions": [["Table"]], "Metrics": metrics}
            ],
        },
        "Table": table,
    });
    for (name, n) in counts {
        line[name] = n.into();
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_one_invocation() {
        let before = Tally { posts: 5, slow: 1, ..Tally::default() };
        let after = Tally { posts: 7, slow: 2, ..Tally::default() };
        let line = line("table", 1_700_000_000_123_456, &before, &after).unwrap();
        assert_eq!((&line["Posts"], &line["SlowConsumers"]), (&json!(2), &json!(1)));
        assert_eq!(line["_aws"]["Timestamp"], 1_700_000_000_123_i64);
        assert_eq!(line["_aws"]["CloudWatchMetrics"][0]["Dimensions"], json!([["Table"]]));
        assert_eq!(super::line("table", 0, &after, &after), None);
    }
}
