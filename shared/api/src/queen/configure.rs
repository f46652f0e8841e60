//! `POST /api/v1/configure`: creates a queue or changes its options.

use axum::{extract::State, http::StatusCode, response::Response};
use serde_json::{Map, Value};
use tidewheel_engine::{Action, Configure};

use crate::{Api, body::Body, error::Failure, json::Json, openapi};

/// `POST /api/v1/configure`: makes a queue or changes its options.
#[utoipa::path(
    post, path = "/api/v1/configure", operation_id = "configure", tag = "produce",
    request_body = openapi::ConfigureRequest,
    responses((status = 200, description = "The queue as it is", body = openapi::Configured)),
)]
pub(crate) async fn configure(State(api): State<Api>, body: Body) -> Result<Response, Failure> {
    let (queue, configure) = read(body.parse()?)?;
    body.caller().check(Action::Control, &queue)?;
    let info = api.engine().configure(&queue, configure).await?;
    let options = serde_json::to_vec(&info.options)
        .map_err(|e| Failure::bad_request(format!("options: {e}")))?;

    let mut json = Json::with_capacity(1024);
    json.object().key("configured").bool(true).key("queue").string(&info.name);
    json.key("queueId").plain(info.id).key("partitionId").null();
    json.key("namespace").string(&info.namespace).key("task").string(&info.task);
    json.key("storage").plain("segments").key("options").raw(&options).end_object();
    Ok(json.into_response(StatusCode::OK))
}

/// Options stand in `options` or beside the queue; those in `options` win. A label beside the queue counts only if
/// it says something: SDKs send `null` for one that nobody set.
fn read(mut request: Map<String, Value>) -> Result<(String, Configure), Failure> {
    let queue = match request.remove("queue") {
        Some(Value::String(queue)) => queue,
        Some(_) => return Err(Failure::bad_request("`queue` must be a string")),
        None => return Err(Failure::bad_request("`queue` is missing")),
    };
    let replace = match request.remove("mode") {
        None | Some(Value::Null) => false,
        Some(Value::String(mode)) if mode == "merge" => false,
        Some(Value::String(mode)) if mode == "replace" => true,
        Some(_) => return Err(Failure::bad_request("`mode` must be \"merge\" or \"replace\"")),
    };
    let inner = match request.remove("options") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(Failure::bad_request("`options` must be an object")),
    };
    let mut label = |name: &str| match request.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|t| !t.is_empty())),
        Some(_) => Err(Failure::bad_request(format!("`{name}` must be a string"))),
    };
    let (mut namespace, mut task) = (label("namespace")?, label("task")?);
    let mut options = request;
    options.extend(inner);
    for (name, label) in [("namespace", &mut namespace), ("task", &mut task)] {
        match options.remove(name) {
            None => {}
            Some(Value::Null) => *label = label.take().or(Some(String::new())),
            Some(Value::String(text)) => *label = Some(text),
            Some(_) => return Err(Failure::bad_request(format!("`{name}` must be a string"))),
        }
    }
    Ok((queue, Configure { namespace, task, options, replace }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: Value) -> Result<(String, Configure), Failure> {
        match value {
            Value::Object(map) => read(map),
            _ => unreachable!(),
        }
    }

    #[test]
    fn options_stand_inside_or_beside() {
        let (queue, c) = parsed(json!({
            "queue": "", "namespace": null, "task": "t", "leaseTime": 5, "retryLimit": 1,
            "options": {"leaseTime": null, "ttl": 9, "namespace": "n"}
        }))
        .unwrap();
        assert_eq!(queue, "");
        assert_eq!((c.namespace.as_deref(), c.task.as_deref()), (Some("n"), Some("t")));
        assert_eq!(Value::Object(c.options), json!({"leaseTime": null, "retryLimit": 1, "ttl": 9}));
        assert!(!c.replace);
        let (_, c) = parsed(json!({"queue": "q", "mode": "replace", "task": ""})).unwrap();
        assert!(c.replace && c.task.is_none() && c.namespace.is_none());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (bad, word) in [
            (json!({}), "queue"),
            (json!({"queue": 1}), "queue"),
            (json!({"queue": null}), "queue"),
            (json!({"queue": "q", "mode": "Merge"}), "mode"),
            (json!({"queue": "q", "options": []}), "options"),
            (json!({"queue": "q", "namespace": 1}), "namespace"),
            (json!({"queue": "q", "options": {"task": []}}), "task"),
        ] {
            let failure = parsed(bad.clone()).err().unwrap();
            assert!(failure.to_string().contains(word), "{bad}");
        }
    }
}
