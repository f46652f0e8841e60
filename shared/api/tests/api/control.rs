//! The control plane, row by row of its contract.

use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};

use crate::support::{Answer, Server};

const JSON: (&str, &str) = ("content-type", "application/json");

fn schema() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

fn definition() -> Value {
    json!({"schema": schema(), "storage_profile": "local", "initialization": "create_if_absent"})
}

impl Server {
    pub(crate) async fn control(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = Request::builder().method(method).uri(format!("/control/v1{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.request(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn change(
        &self,
        method: &str,
        path: &str,
        key: &str,
        matches: &str,
        body: &Value,
    ) -> Answer {
        let condition = if matches == "*" { "if-none-match" } else { "if-match" };
        let headers = [JSON, ("idempotency-key", key), (condition, matches)];
        self.control(method, path, &headers, &body.to_string()).await
    }

    pub(crate) async fn declare(&self, name: &str) {
        let path = format!("/streams/{name}");
        self.change("PUT", &path, &format!("declare-{name}"), "*", &definition()).await.with(202);
    }

    pub(crate) async fn desire(&self, name: &str, key: &str, revision: u64, state: &str) -> Answer {
        let path = format!("/streams/{name}/desired");
        let etag = format!("\"{revision}\"");
        self.change("PUT", &path, key, &etag, &json!({"state": state})).await
    }

    pub(crate) async fn view(&self, name: &str) -> Value {
        self.control("GET", &format!("/streams/{name}"), &[], "").await.with(200)
    }

    /// The operation that a receipt names.
    pub(crate) async fn operation(&self, receipt: &Value) -> Value {
        let id = receipt["operation_id"].as_str().unwrap();
        self.control("GET", &format!("/operations/{id}"), &[], "").await.with(200)
    }
}

impl Answer {
    /// The word of an error, whose envelope is complete.
    #[track_caller]
    fn word(&self, status: u16) -> String {
        let error = self.with(status)["error"].clone();
        let retryable = matches!(status, 429 | 503);
        assert_eq!(
            (&error["retryable"], &error["operation_id"]),
            (&json!(retryable), &Value::Null)
        );
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{error}");
        error["code"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_finds_out_what_it_talks_to() {
    let server = Server::new();
    let found = server.control("GET", "", &[], "").await.with(200);
    let again = server.another().control("GET", "", &[], "").await.with(200);
    assert_eq!(found["broker_id"], again["broker_id"], "the registry's, whoever is asked");
    assert_ne!(found["boot_id"], again["boot_id"]);
    for (key, value) in [
        ("version", json!(1)),
        ("transport_max_bytes", json!(1 << 20)),
        ("control_max_bytes", json!(256 * 1024)),
        ("max_pending", json!(32)),
        ("history_prefix_protected", json!([])),
        ("wire_versions", json!({"write": 4, "read": [4, 5]})),
    ] {
        assert_eq!(found[key], value, "{key}");
    }
    let profile = json!({"revision": "1", "replicate": false, "maintenance": true,
        "replay_scope": "retained_current_log"});
    assert_eq!(found["storage_profiles"], json!({"local": profile}));
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_declared_served_stopped_and_retired() {
    let server = Server::new();
    assert_eq!(server.control("GET", "/streams/trades", &[], "").await.word(404), "unknown_stream");
    let made = server.change("PUT", "/streams/trades", "k1", "*", &definition()).await;
    let receipt = made.with(202);
    assert_eq!((&receipt["status"], &receipt["revision"]), (&json!(202), &json!(1)));
    assert_eq!(made.headers["etag"], "\"1\"");
    let place = format!("/control/v1/operations/{}", receipt["operation_id"].as_str().unwrap());
    assert_eq!(made.headers["location"], place.as_str());
    let operation = server.operation(&receipt).await;
    for (key, value) in [
        ("name", json!("trades")),
        ("kind", json!("definition")),
        ("revision", json!(1)),
        ("status", json!("succeeded")),
        ("error", Value::Null),
        ("target", definition()),
    ] {
        assert_eq!(operation[key], value, "{key}");
    }
    let view = server.view("trades").await;
    assert_eq!(view["definition"]["limits"]["max_in_flight"], 64);
    assert_eq!(view["definition"]["schema"], schema());
    assert_eq!((&view["desired"], &view["stream_id"]), (&json!("stopped"), &Value::Null));
    assert_eq!(view["observed"]["state"], "stopped");
    assert_eq!(view["observed"]["read_admission"], false);
    assert_eq!(view["pending"], Value::Null);
    assert_eq!(server.get("/api/v1/resources/queues/trades").await.status, 404, "nothing is made");

    // Never served, it has nothing to retire.
    assert_eq!(server.desire("trades", "k2", 1, "retired").await.word(409), "unbound_stream");
    let served = server.desire("trades", "k3", 1, "serving").await.with(202);
    assert_eq!(served["revision"], 2);
    assert_eq!(server.operation(&served).await["status"], "succeeded");
    let view = server.view("trades").await;
    let id = view["stream_id"].clone();
    assert!(id.is_string());
    let observed = &view["observed"];
    assert_eq!((&observed["state"], &observed["generation"]), (&json!("serving"), &json!(1)));
    assert_eq!(
        (&observed["read_admission"], &observed["write_admission"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(server.get("/api/v1/resources/queues/trades").await.status, 200);

    // The same again is no change.
    let satisfied = server.desire("trades", "k4", 2, "serving").await;
    assert_eq!(satisfied.with(200)["revision"], 2);
    assert_eq!(server.operation(&satisfied.json()).await["status"], "succeeded");

    server.desire("trades", "k5", 2, "stopped").await.with(202);
    assert_eq!(server.view("trades").await["observed"]["write_admission"], false);
    server.desire("trades", "k6", 3, "serving").await.with(202);
    assert_eq!(server.view("trades").await["observed"]["generation"], 2);
    server.desire("trades", "k7", 4, "retired").await.with(202);
    let view = server.view("trades").await;
    assert_eq!((&view["observed"]["state"], &view["stream_id"]), (&json!("retired"), &id));
    let observed = &view["observed"];
    assert_eq!(
        (&observed["read_admission"], &observed["write_admission"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(server.desire("trades", "k8", 5, "serving").await.word(409), "retired_stream");
}

#[tokio::test(start_paused = true)]
async fn what_a_change_must_carry() {
    let server = Server::new();
    let put = async |headers: &[(&str, &str)], body: &str| {
        server.control("PUT", "/streams/s", headers, body).await
    };
    let good = definition().to_string();
    let (key, none) = (("idempotency-key", "k"), ("if-none-match", "*"));
    assert_eq!(put(&[JSON, none], &good).await.word(428), "idempotency_key_required");
    for bad in ["a b", &"x".repeat(129)] {
        let headers = [JSON, none, ("idempotency-key", bad)];
        assert_eq!(put(&headers, &good).await.word(400), "invalid_idempotency_key", "{bad}");
    }
    assert_eq!(put(&[key, none], &good).await.word(415), "json_required");
    let text = ("content-type", "text/plain");
    assert_eq!(put(&[text, key, none], &good).await.word(415), "json_required");
    for bad in ["", "{", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "[1e999]"] {
        assert_eq!(put(&[JSON, key, none], bad).await.word(400), "invalid_json", "{bad}");
    }
    let large = format!("\"{}\"", "x".repeat(256 * 1024));
    assert_eq!(put(&[JSON, key, none], &large).await.word(413), "body_too_large");
    assert_eq!(put(&[JSON, key], &good).await.word(428), "precondition_required");
    assert_eq!(
        put(&[JSON, key, ("if-none-match", "\"1\"")], &good).await.word(412),
        "precondition_failed"
    );
    let both = [JSON, key, none, ("if-match", "\"1\"")];
    assert_eq!(put(&both, &good).await.word(412), "precondition_failed");
    // None of these has used the key up.
    let charset = ("content-type", "application/json; charset=utf-8");
    put(&[charset, key, none], &good).await.with(202);
    let next = ("idempotency-key", "k2");
    assert_eq!(put(&[JSON, next, none], &good).await.word(428), "precondition_required");
    for stale in ["\"0\"", "\"2\"", "1", "*", "W/\"1\""] {
        let headers = [JSON, next, ("if-match", stale)];
        assert_eq!(put(&headers, &good).await.word(412), "precondition_failed", "{stale}");
    }
    let name = format!("/streams/{}", "x".repeat(129));
    for path in [name.as_str(), "/streams/-a", "/streams/a%2Fb", "/streams/a%20b"] {
        let answer = server.change("PUT", path, "k3", "*", &definition()).await;
        assert_eq!(answer.word(422), "invalid_name", "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn declarations_that_would_not_be_kept_are_refused() {
    let server = Server::new();
    let with = |key: &str, value: Value| {
        let mut definition = definition();
        definition[key] = value;
        definition
    };
    let property = |more: Value| {
        let mut schema = schema();
        schema["properties"]["n"] = more;
        with("schema", schema)
    };
    let mut open = schema();
    open["additionalProperties"] = json!(true);
    for bad in [
        json!([]),
        with("unknown", json!(1)),
        with("storage_profile", json!("elsewhere")),
        with("sort_by", json!(["m"])),
        with("exactly_once", json!("yes")),
        with("max_replay", json!(-1)),
        with("limits", json!({"max_message_bytes": (1 << 20) + 1})),
        property(json!({"type": "integer", "minimum": 1})),
        property(json!({"type": "string", "enum": ["a"]})),
        property(json!({"type": "nothing"})),
        with("schema", open),
        with(
            "schema",
            json!({"type": "object", "properties": {"streamcast_ts": {"type": "integer"}}}),
        ),
        with(
            "schema",
            json!({"type": "object", "properties": {"litelink_offset": {"type": "integer"}}}),
        ),
    ] {
        let answer = server.change("PUT", "/streams/s", "k", "*", &bad).await;
        assert_eq!(answer.word(422), "invalid_declaration", "{bad}");
    }
    let relay = with("log", json!(false));
    server.change("PUT", "/streams/relay", "relay", "*", &relay).await.with(202);
    server.desire("relay", "serve", 1, "serving").await.with(202);
    assert_eq!(server.view("relay").await["definition"]["log"], false);
}

#[tokio::test(start_paused = true)]
async fn the_same_change_under_the_same_key_is_answered_the_same_again() {
    let server = Server::new();
    let first = server.change("PUT", "/streams/s", "k", "*", &definition()).await;
    server.desire("s", "k2", 1, "serving").await.with(202);
    // The ETag has moved since; the receipt is older than that.
    let again = server.change("PUT", "/streams/s", "k", "*", &definition()).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.headers["location"], first.headers["location"]);
    assert_eq!(again.headers["etag"], first.headers["etag"]);
    // Space is no difference, another order is.
    let headers = [JSON, ("idempotency-key", "k"), ("if-none-match", "*")];
    let spaced = serde_json::to_string_pretty(&definition()).unwrap();
    assert_eq!(server.control("PUT", "/streams/s", &headers, &spaced).await.body, first.body);
    let reordered = r#"{"storage_profile":"local","initialization":"create_if_absent","schema":1}"#;
    let other = server.control("PUT", "/streams/s", &headers, reordered).await;
    assert_eq!(other.word(409), "idempotency_mismatch");
    for (path, condition) in [("/streams/t", "*"), ("/streams/s", "\"2\"")] {
        let other = server.change("PUT", path, "k", condition, &definition()).await;
        assert_eq!(other.word(409), "idempotency_mismatch", "{path} {condition}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_stream_is_declared_otherwise_and_migrated() {
    let server = Server::new();
    server.declare("s").await;
    server.desire("s", "k1", 1, "serving").await.with(202);
    let mut other = definition();
    other["max_replay"] = Value::Null;
    let put = async |key: &str, revision: u64, body: &Value| {
        server.change("PUT", "/streams/s", key, &format!("\"{revision}\""), body).await
    };
    assert_eq!(put("k2", 2, &other).await.word(409), "must_be_stopped");
    let mut columns = schema();
    columns["properties"]["m"] = json!({"type": ["string", "null"]});
    let id = server.view("s").await["stream_id"].clone();
    let target = json!({"stream_id": id, "schema": columns, "sort_by": ["n"]});
    let migrate = async |key: &str, revision: u64, body: &Value| {
        let etag = format!("\"{revision}\"");
        server.change("POST", "/streams/s/migrations", key, &etag, body).await
    };
    assert_eq!(migrate("k3", 2, &target).await.word(409), "must_be_stopped");
    server.desire("s", "k4", 2, "stopped").await.with(202);
    put("k5", 3, &other).await.with(202);
    assert_eq!(server.view("s").await["definition"]["max_replay"], Value::Null);
    let mut changed = other.clone();
    changed["schema"] = columns.clone();
    assert_eq!(put("k6", 4, &changed).await.word(409), "migration_required");
    let mut wrong = target.clone();
    wrong["stream_id"] = json!("another");
    assert_eq!(migrate("k7", 4, &wrong).await.word(409), "identity_mismatch");
    wrong = json!({"stream_id": id, "schema": columns});
    assert_eq!(migrate("k8", 4, &wrong).await.word(422), "invalid_migration");
    wrong = json!({"stream_id": id, "schema": columns, "sort_by": ["x"]});
    assert_eq!(migrate("k9", 4, &wrong).await.word(422), "invalid_declaration");
    let receipt = migrate("k10", 4, &target).await.with(202);
    assert_eq!(server.operation(&receipt).await["status"], "succeeded");
    let view = server.view("s").await;
    assert_eq!(
        (&view["definition"]["schema"], &view["definition"]["sort_by"]),
        (&columns, &json!(["n"]))
    );
    assert_eq!((&view["stream_id"], &view["observed"]["state"]), (&id, &json!("stopped")));
    server.desire("s", "k11", 5, "serving").await.with(202);
    assert_eq!(server.view("s").await["observed"]["state"], "serving");
    let missing = server.change("POST", "/streams/t/migrations", "k12", "\"1\"", &target).await;
    assert_eq!(missing.word(404), "unknown_stream");
}

#[tokio::test(start_paused = true)]
async fn what_failed_can_only_be_tried_again() {
    let server = Server::new();
    let mut existing = definition();
    existing["initialization"] = json!("open_existing");
    server.change("PUT", "/streams/s", "k1", "*", &existing).await.with(202);
    let receipt = server.desire("s", "k2", 1, "serving").await.with(202);
    let operation = server.operation(&receipt).await;
    assert_eq!(
        (&operation["status"], &operation["error"]),
        (&json!("failed"), &json!("transition_failed"))
    );
    let view = server.view("s").await;
    assert_eq!((&view["pending"], &view["observed"]["state"]), (&operation["id"], &json!("error")));
    assert_eq!(view["observed"]["error"], "transition_failed");
    assert_eq!(server.desire("s", "k3", 2, "stopped").await.word(409), "transition_pending");
    let again = server.desire("s", "k4", 2, "serving").await.with(202);
    assert_ne!(again["operation_id"], receipt["operation_id"]);
    // The first key still answers what it answered.
    assert_eq!(server.desire("s", "k2", 1, "serving").await.with(202), receipt);
}

#[tokio::test(start_paused = true)]
async fn pages_are_by_name_and_of_one_revision() {
    let server = Server::new();
    for name in ["b", "a", "c", "A1", "a-b"] {
        server.declare(name).await;
    }
    let get = async |query: &str| server.control("GET", &format!("/streams{query}"), &[], "").await;
    let page = get("?limit=2").await.with(200);
    let names = |page: &Value| -> Vec<String> {
        let streams = page["streams"].as_array().unwrap();
        streams.iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names(&page), &page["revision"]), (vec!["A1".into(), "a".into()], &json!(5)));
    let cursor = page["next_cursor"].as_str().unwrap().replace('=', "%3D");
    let next = get(&format!("?limit=2&cursor={cursor}")).await.with(200);
    assert_eq!(names(&next), ["a-b", "b"]);
    let all = get("").await.with(200);
    assert_eq!((all["streams"].as_array().unwrap().len(), &all["next_cursor"]), (5, &Value::Null));
    server.desire("b", "k", 1, "serving").await.with(202);
    let stale = get(&format!("?cursor={cursor}")).await;
    assert_eq!(stale.word(409), "collection_changed");
    for bad in ["?limit=0", "?limit=1001", "?limit=x", "?cursor=x", "?limit=", "?page=1"] {
        assert_eq!(get(bad).await.word(400), "invalid_pagination", "{bad}");
    }
    let unknown = server.control("GET", "/operations/none", &[], "").await;
    assert_eq!(unknown.word(404), "unknown_operation");
}

#[tokio::test(start_paused = true)]
async fn grants_decide_what_a_controller_may_see_and_do() {
    let server = Server::new();
    for name in ["a", "b"] {
        server.declare(name).await;
    }
    let make = async |grants: Value, with: &str| {
        let request = Request::post("/keys").header("authorization", format!("Bearer {with}"));
        let body = Body::from(json!({"grants": grants}).to_string());
        let made = server.request(request.body(body).unwrap()).await.with(201);
        made["key"].as_str().unwrap().to_owned()
    };
    let admin = make(json!(["admin:*"]), "").await;
    let reader = make(json!(["read:a"]), &admin).await;
    let basic = |key: &str| {
        use base64::{Engine, engine::general_purpose::STANDARD};
        format!("Basic {}", STANDARD.encode(format!("controller:{key}")))
    };
    let ask = async |key: &str, path: &str| {
        server.control("GET", path, &[("authorization", &basic(key))], "").await
    };
    let nobody = server.control("GET", "/streams", &[], "").await;
    assert_eq!(nobody.word(401), "authentication_required");
    assert!(nobody.headers["www-authenticate"].to_str().unwrap().starts_with("Basic "));
    assert_eq!(ask(&reader, "").await.status, 200);
    let page = ask(&reader, "/streams").await.with(200);
    assert_eq!(
        (page["streams"].as_array().unwrap().len(), &page["streams"][0]["name"]),
        (1, &json!("a"))
    );
    assert_eq!(ask(&reader, "/streams/a").await.status, 200);
    assert_eq!(ask(&reader, "/streams/b").await.word(403), "forbidden");
    let (reader, admin) = (basic(&reader), basic(&admin));
    // Before the body is looked at, and before it is known whether the stream is there.
    for path in ["/streams/a/desired", "/streams/nosuch/desired"] {
        let headers = [("authorization", reader.as_str()), ("if-match", "\"1\"")];
        assert_eq!(server.control("PUT", path, &headers, "no JSON").await.word(403), "forbidden");
    }
    let headers =
        [("authorization", admin.as_str()), JSON, ("idempotency-key", "k"), ("if-match", "\"1\"")];
    let body = json!({"state": "serving"}).to_string();
    let receipt = server.control("PUT", "/streams/b/desired", &headers, &body).await.with(202);
    let path = format!("/operations/{}", receipt["operation_id"].as_str().unwrap());
    let hidden = server.control("GET", &path, &[("authorization", &reader)], "").await;
    assert_eq!(hidden.word(404), "unknown_operation");
}
