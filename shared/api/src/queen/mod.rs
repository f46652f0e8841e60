//! The routes under `/api/v1`: produce and consume, in the protocol of Queen's own SDKs.
//!
//! What a stream is here, the protocol calls a queue. Keys are camelCase, but for the answer to a push. A refusal
//! that concerns one item stands in that item's result; a status other than 200, 201 and 204 concerns the whole
//! request.

mod ack;
mod backlog;
mod configure;
mod dead_letters;
mod groups;
mod kv;
mod lease;
mod locks;
mod messages;
mod pop;
mod push;
mod reads;
mod resources;
mod system;
mod timers;
mod trace_id;
mod traces;
mod transaction;

use tidewheel_engine::{Ack, QUEUE_MODE_GROUP, Verdict};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouter},
    routes,
};

use crate::{
    Api,
    body::{Text, filled},
    error,
};

pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .merge(reads::routes())
        .merge(traces::routes())
        .merge(system::routes())
        .merge(kv::routes())
        .merge(timers::routes())
        .merge(locks::routes())
        .routes(routes!(configure::configure))
        .routes(routes!(push::push))
        .routes(without_head(routes!(pop::discover)))
        .routes(without_head(routes!(pop::queue)))
        .routes(without_head(routes!(pop::partition)))
        .routes(routes!(ack::single))
        .routes(routes!(ack::batch))
        .routes(routes!(lease::extend))
        .routes(routes!(transaction::transaction))
        .routes(routes!(dead_letters::list, dead_letters::purge))
        .routes(routes!(dead_letters::replay))
        .routes(routes!(messages::list))
        .routes(routes!(messages::detail, messages::delete))
        .routes(routes!(messages::retry))
        .routes(routes!(groups::list))
        .routes(routes!(groups::lagging))
        .routes(routes!(groups::detail, groups::delete))
        .routes(routes!(groups::subscription))
        .routes(routes!(groups::delete_on_queue))
        .routes(routes!(groups::seek))
        .routes(routes!(groups::seek_partition))
        .routes(routes!(backlog::overview))
        .routes(routes!(backlog::ranking))
        .routes(routes!(backlog::depth))
        .routes(routes!(resources::namespaces))
        .routes(routes!(resources::tasks))
        .routes(routes!(resources::list))
        .routes(routes!(resources::detail, resources::delete))
}

/// A HEAD would be served by the handler of the GET, and a pop is no harmless read.
fn without_head((schemas, paths, pop): UtoipaMethodRouter<Api>) -> UtoipaMethodRouter<Api> {
    (schemas, paths, pop.head(error::method_not_allowed))
}

/// What a status says. The table is exact and knows its case: a misspelt `Completed` is a failure, never an
/// acknowledgement.
pub(crate) fn verdict(status: Option<&str>) -> Verdict {
    match status {
        None | Some("completed" | "success" | "acked" | "ok") => Verdict::Completed,
        Some("retry") => Verdict::Retry,
        Some("dlq") => Verdict::DeadLetter,
        Some(_) => Verdict::Failed,
    }
}

/// An acknowledgement, as the protocol writes it.
fn acknowledgement(
    transaction_id: &str,
    partition_id: &str,
    status: &Option<Text<'_>>,
    lease_id: &Option<Text<'_>>,
    error: &Option<Text<'_>>,
) -> Ack {
    Ack {
        transaction_id: transaction_id.to_owned(),
        partition_id: partition_id.to_owned(),
        verdict: verdict(status.as_deref()),
        lease_id: filled(lease_id).map(str::to_owned),
        error: filled(error).map(str::to_owned),
    }
}

/// The name that a group of a request has in answers.
fn group_name(group: Option<&str>) -> &str {
    group.unwrap_or(QUEUE_MODE_GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_statuses_is_exact() {
        for status in [None, Some("completed"), Some("success"), Some("acked"), Some("ok")] {
            assert_eq!(verdict(status), Verdict::Completed, "{status:?}");
        }
        assert_eq!(verdict(Some("retry")), Verdict::Retry);
        assert_eq!(verdict(Some("dlq")), Verdict::DeadLetter);
        for status in ["failed", "Completed", "COMPLETED", "", "done", "true", " ok"] {
            assert_eq!(verdict(Some(status)), Verdict::Failed, "{status:?}");
        }
    }
}
