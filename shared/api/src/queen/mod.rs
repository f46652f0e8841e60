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
mod lease;
mod messages;
mod pop;
mod push;
mod reads;
mod resources;
mod system;
mod trace_id;
mod traces;
mod transaction;

use axum::{
    Router,
    routing::{delete, get, post},
};
use tidewheel_engine::{QUEUE_MODE_GROUP, Verdict};

use crate::{Api, error};

pub(crate) fn routes() -> Router<Api> {
    // A HEAD would be served by the GET handler, and a pop is no harmless read.
    let pop_only = |pop: axum::routing::MethodRouter<Api>| pop.head(error::method_not_allowed);
    Router::new()
        .merge(reads::routes())
        .merge(traces::routes())
        .merge(system::routes())
        .route("/api/v1/configure", post(configure::configure))
        .route("/api/v1/push", post(push::push))
        .route("/api/v1/pop", pop_only(get(pop::discover)))
        .route("/api/v1/pop/queue/{queue}", pop_only(get(pop::queue)))
        .route("/api/v1/pop/queue/{queue}/partition/{partition}", pop_only(get(pop::partition)))
        .route("/api/v1/ack", post(ack::single))
        .route("/api/v1/ack/batch", post(ack::batch))
        .route("/api/v1/lease/{lease}/extend", post(lease::extend))
        .route("/api/v1/transaction", post(transaction::transaction))
        .route("/api/v1/dlq", get(dead_letters::list).delete(dead_letters::purge))
        .route("/api/v1/dlq/{id}/replay", post(dead_letters::replay))
        .route("/api/v1/messages", get(messages::list))
        .route(
            "/api/v1/messages/{partition}/{transaction}",
            get(messages::detail).delete(messages::delete),
        )
        .route("/api/v1/messages/{partition}/{transaction}/retry", post(messages::retry))
        .route("/api/v1/consumer-groups", get(groups::list))
        .route("/api/v1/consumer-groups/lagging", get(groups::lagging))
        .route("/api/v1/consumer-groups/{group}", get(groups::detail).delete(groups::delete))
        .route("/api/v1/consumer-groups/{group}/subscription", post(groups::subscription))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}", delete(groups::delete_on_queue))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}/seek", post(groups::seek))
        .route(
            "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
            post(groups::seek_partition),
        )
        .route("/api/v1/resources/overview", get(backlog::overview))
        .route("/api/v1/resources/partitions", get(backlog::ranking))
        .route("/api/v1/resources/queues/{queue}/depth", get(backlog::depth))
        .route("/api/v1/resources/namespaces", get(resources::namespaces))
        .route("/api/v1/resources/tasks", get(resources::tasks))
        .route("/api/v1/resources/queues", get(resources::list))
        .route("/api/v1/resources/queues/{queue}", get(resources::detail).delete(resources::delete))
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
