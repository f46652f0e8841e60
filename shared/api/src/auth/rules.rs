//! Which action each route is, and where it says what it is done to. One table; [`Rules`] is made of it and of the
//! description of the API, and a test holds that no route is missing.

use std::collections::HashMap;

use axum::http::Method;
use tidewheel_engine::Action;
use utoipa::openapi::OpenApi;

use super::method_of;

/// Where a route says what its action is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nobody is asked for a key.
    Nobody,
    /// Any key that counts will do.
    AnyKey,
    /// To every stream, or to what belongs to none.
    Everything,
    /// To the stream in this segment of the path.
    Path(&'static str),
    /// To the stream in this parameter; without it to every one.
    Query(&'static str),
    /// To the keys with values of the namespace in this segment.
    Keys(&'static str),
    /// To the stream of the partition whose id is in this segment.
    Partition(&'static str),
    /// To the stream of the dead letter whose id is in this segment.
    Letter(&'static str),
    /// To the streams of the lease in this segment.
    Lease(&'static str),
    /// The body says it, and the handler checks.
    Body,
}

/// What a route asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) action: Action,
    pub(crate) place: Place,
}

/// What a route asks for that nobody has thought of.
const CLOSED: Rule = Rule { action: Action::Admin, place: Place::Everything };

/// What a path asks for that is no route, so that only who may be here hears that it is none.
const UNMATCHED: Rule = Rule { action: Action::Read, place: Place::AnyKey };

/// Routes that are not in the description, because it is another protocol's or a page.
const UNDESCRIBED: [(&str, &str, Action, Place); 10] = [
    // What describes the API tells nothing of what it holds.
    ("GET", "/openapi.json", Action::Read, Place::AnyKey),
    ("GET", "/docs", Action::Read, Place::AnyKey),
    ("GET", "/", Action::Read, Place::Nobody),
    ("GET", "/stats", Action::Read, Place::Everything),
    // The catalogue: a table is read by whoever may read its stream.
    ("GET", "/iceberg/v1/config", Action::Read, Place::AnyKey),
    ("GET", "/iceberg/v1/namespaces", Action::Read, Place::AnyKey),
    ("GET", "/iceberg/v1/namespaces/{namespace}", Action::Read, Place::AnyKey),
    ("GET", "/iceberg/v1/namespaces/{namespace}/tables", Action::Read, Place::Everything),
    (
        "GET",
        "/iceberg/v1/namespaces/{namespace}/tables/{table}",
        Action::Read,
        Place::Path("table"),
    ),
    (
        "POST",
        "/iceberg/v1/namespaces/{namespace}/tables/{table}/metrics",
        Action::Read,
        Place::Path("table"),
    ),
];

/// The name by which grants know the keys with values of a namespace.
pub(crate) fn keys_name(namespace: &str) -> String {
    format!("kv/{namespace}")
}

/// The name by which grants know a lock.
pub(crate) fn lock_name(name: &str) -> String {
    format!("lock/{name}")
}

/// The rule of an operation, by its id in the description.
pub(crate) fn rule_of(operation: &str) -> Option<Rule> {
    use Action::*;
    use Place::*;
    let (action, place) = match operation {
        // Balancers ask without a key.
        "health" | "alive" => (Read, Nobody),
        // Produce.
        "push" | "transaction" => (Publish, Body),
        "timers" => (Publish, Body),
        "cancelTimer" => (Publish, Path("queue")),
        "listTimers" | "peekTimer" => (Read, Path("queue")),
        "configure" => (Control, Body),
        // Consume.
        "popQueue" | "popPartition" => (Consume, Path("queue")),
        "popLabels" => (Consume, Everything),
        "ack" | "ackBatch" => (Consume, Body),
        "extendLease" => (Consume, Lease("lease")),
        "seek" | "seekPartition" => (Consume, Path("queue")),
        "moveSubscription" => (Consume, Everything),
        // Read.
        "fetch" | "fetchOffsets" | "changedPartitions" => (Read, Body),
        "message" | "messageTraces" => (Read, Partition("partition")),
        "listMessages" | "listDeadLetters" | "rankPartitions" | "statusQueues"
        | "queueOperations" => (Read, Query("queue")),
        "queue" | "queueDepth" | "statusQueue" => (Read, Path("queue")),
        "listQueues" | "listNamespaces" | "listTasks" | "overview" | "listGroups" | "group"
        | "laggingGroups" => (Read, Everything),
        "tracesByName" | "traceNames" | "status" | "analytics" | "retention" => (Read, Everything),
        "recordTrace" => (Consume, Body),
        // Stream processors.
        "registerQuery" | "state" | "statePartitions" | "claim" | "cycle" => (Consume, Body),
        // Keys with values, and locks.
        "kv" => (Publish, Body),
        "locks" => (Consume, Body),
        "kvGet" => (Read, Keys("namespace")),
        "kvPut" | "kvDelete" => (Publish, Keys("namespace")),
        // Administer.
        "deleteQueue" | "deleteGroupOnQueue" => (Control, Path("queue")),
        "deleteGroup" => (Control, Everything),
        "purgeDeadLetters" => (Control, Query("queue")),
        "replayDeadLetter" => (Control, Letter("id")),
        "retryMessage" | "deleteDeadLetter" => (Control, Partition("partition")),
        // Operate.
        "metrics" | "prometheus" | "systemMetrics" | "workerMetrics" | "buffers"
        | "pushMaintenance" | "popMaintenance" | "refreshStatistics" => (Read, Everything),
        "setPushMaintenance" | "setPopMaintenance" => (Admin, Everything),
        // The control plane: discovery shows each key what it may read.
        "controlCapabilities" | "controlStreams" | "controlOperation" => (Read, AnyKey),
        "controlStream" => (Read, Path("name")),
        "controlDeclare" | "controlDesire" | "controlMigrate" => (Control, Path("name")),
        "listKeys" | "createKey" | "rotateKey" | "changeKey" | "deleteKey" => (Admin, Everything),
        _ => return None,
    };
    Some(Rule { action, place })
}

/// The rules of an API's routes.
#[derive(Debug, Default)]
pub(crate) struct Rules(HashMap<String, HashMap<&'static str, Rule>>);

impl Rules {
    /// Those of the routes that a description has, as the router knows them.
    pub(crate) fn new(description: &OpenApi) -> Self {
        let mut rules: HashMap<String, HashMap<&'static str, Rule>> = HashMap::new();
        for (path, item) in &description.paths.paths {
            let of_path = rules.entry(path.clone()).or_default();
            for (method, operation) in [
                ("GET", &item.get),
                ("POST", &item.post),
                ("PUT", &item.put),
                ("DELETE", &item.delete),
            ] {
                if let Some(operation) = operation {
                    let id = operation.operation_id.as_deref().unwrap_or_default();
                    of_path.insert(method, rule_of(id).unwrap_or(CLOSED));
                }
            }
        }
        for (method, path, action, place) in UNDESCRIBED {
            rules.entry(path.to_owned()).or_default().insert(method, Rule { action, place });
        }
        Self(rules)
    }

    /// The rule of a request.
    pub(crate) fn of(&self, method: &Method, route: Option<&str>) -> Rule {
        let Some(route) = route else { return UNMATCHED };
        match self.0.get(route) {
            // A method that the route does not have is refused as such, to whoever may be here.
            Some(of_path) => of_path.get(method_of(method)).copied().unwrap_or(UNMATCHED),
            None => CLOSED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_that_is_described_says_what_it_asks_for() {
        let description = crate::description("1");
        let mut ids = Vec::new();
        for (path, item) in &description.paths.paths {
            for operation in [&item.get, &item.post, &item.put, &item.delete].into_iter().flatten()
            {
                let id = operation.operation_id.clone().unwrap_or_default();
                assert!(rule_of(&id).is_some(), "`{id}` at {path} has no rule in the table");
                ids.push(id);
            }
        }
        assert!(ids.len() > 55);
    }

    #[test]
    fn a_path_that_a_rule_names_has_the_segment_that_it_names() {
        let description = crate::description("1");
        for (path, item) in &description.paths.paths {
            for operation in [&item.get, &item.post, &item.put, &item.delete].into_iter().flatten()
            {
                let rule = rule_of(operation.operation_id.as_deref().unwrap_or_default());
                let segment = match rule.map(|r| r.place) {
                    Some(
                        Place::Path(n)
                        | Place::Keys(n)
                        | Place::Partition(n)
                        | Place::Letter(n)
                        | Place::Lease(n),
                    ) => n,
                    _ => continue,
                };
                assert!(path.contains(&format!("{{{segment}}}")), "{path} has no {segment}");
            }
        }
    }
}
