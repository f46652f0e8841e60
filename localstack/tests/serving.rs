//! Starting, stopping, and who is let in: the stack in this process, and the binary as a user runs it.

mod common;

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use common::{connect, http, options, push, receive_close, receive_json, receive_row, rows, start};
use serde_json::{Value, json};
use tidewheel_localstack::{Stack, StartError};

#[tokio::test(flavor = "multi_thread")]
async fn stopping_closes_sockets_with_1001_and_answers_pops_that_wait() {
    let (folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..3)).await;
    let mut socket = connect(&stack, "/s?offset=0").await;
    receive_json(&mut socket).await;
    let pop = "GET /api/v1/pop/queue/empty?wait=true&timeout=60000";
    let stack_address = stack.address();
    let (waiting, ()) = tokio::join!(http(&stack, pop, ""), async {
        // The pop is being served once it is counted.
        while stack.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        stack.drain();
    });
    assert_eq!(waiting.0, 204);
    let before =
        std::fs::metadata(format!("{}/s/metadata/version-hint.text", stack.tables_place()));
    assert!(before.is_err(), "nothing was sealed before");
    let stopping = tokio::spawn(stack.stop());
    for offset in 1..=3 {
        assert_eq!(receive_row(&mut socket).await.0, offset);
    }
    assert_eq!(receive_close(&mut socket).await, (1001, "going away".to_owned()));
    while futures_util::StreamExt::next(&mut socket).await.is_some() {}
    stopping.await.unwrap();
    assert!(tokio::net::TcpStream::connect(stack_address).await.is_err(), "nobody listens");
    let tables = folder.path().join("data/tables");
    assert!(tables.join("s/metadata/version-hint.text").is_file(), "what was new is sealed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_is_there_after_a_restart_on_the_same_folder() {
    let (folder, stack) = start().await;
    push(&stack, "s", "p", &rows(0..5)).await;
    stack.stop().await;
    let stack = Stack::start(&options(&folder)).await.unwrap();
    assert_eq!(push(&stack, "s", "p", &rows(5..6)).await, [6]);
    let mut socket = connect(&stack, "/s?partition=p&offset=0").await;
    assert_eq!(receive_json(&mut socket).await["replay"], json!([1, 7]));
    for n in 0..6 {
        assert_eq!(receive_row(&mut socket).await, (n + 1, json!({"n": n})));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_serves_the_api_and_a_page_beside_the_sockets() {
    let (_folder, stack) = start().await;
    let (status, body) = http(&stack, "GET /health", "").await;
    assert_eq!((status, json_of(&body)["status"].clone()), (200, json!("healthy")));
    let (status, body) = http(&stack, "GET /", "").await;
    assert_eq!((status, json_of(&body)["name"].clone()), (200, json!("tidewheel")));
    let (status, body) = http(&stack, "GET /\naccept: text/html", "").await;
    assert!(status == 200 && body.contains("<h1>"), "{body}");
    let (status, body) = http(&stack, "GET /a-stream-without-an-upgrade", "").await;
    assert!(status == 404 && json_of(&body)["error"].is_string(), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_names_from_elsewhere_are_refused() {
    let (_folder, stack) = start().await;
    push(&stack, "s", "Default", &rows(0..1)).await;
    let upgrade = "upgrade: websocket\nconnection: upgrade\nsec-websocket-version: 13\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    for request in [
        "GET /health\norigin: https://evil.example".to_owned(),
        "GET /health\nhost: evil.example".to_owned(),
        format!("GET /s?offset=0\n{upgrade}\norigin: https://evil.example"),
    ] {
        let (status, body) = http(&stack, &request, "").await;
        assert_eq!(status, 403, "{body}");
        assert!(json_of(&body)["error"].as_str().unwrap().contains("evil.example"), "{body}");
    }
    let (status, _) = http(&stack, "GET /health\norigin: http://localhost:3000", "").await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_others_can_reach_needs_a_plain_word() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    for address in ["0.0.0.0:0", "[::]:0"] {
        options.listen = address.to_owned();
        options.insecure_listen = false;
        match Stack::start(&options).await {
            Err(error @ StartError::Exposed(_)) => {
                assert!(error.to_string().contains("--insecure-listen"), "{error}");
                assert_eq!(error.exit_status(), 2);
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it listens on {address}"),
        }
    }
    assert!(!options.data.exists(), "a refused start leaves nothing behind");
    options.listen = "0.0.0.0:0".to_owned();
    options.insecure_listen = true;
    let stack = Stack::start(&options).await.unwrap();
    let (status, _) = http_at(&stack, "GET /health\nhost: tidewheel.internal").await;
    assert_eq!(status, 200);
}

async fn http_at(stack: &Stack, head: &str) -> (u16, String) {
    http(stack, head, "").await
}

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

/// The binary, serving.
struct Served {
    child: Child,
    said: Vec<String>,
}

fn serve(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewheel"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Served {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().take(4);
        let said = lines.map(Result::unwrap).collect();
        Self { child, said }
    }

    fn url(&self) -> &str {
        self.said[0].strip_prefix("listening on http://").unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(url: &str, path: &str) -> String {
    request(url, &format!("GET {path}"), "")
}

fn request(url: &str, line: &str, body: &str) -> String {
    use std::io::Write;
    let mut connection = std::net::TcpStream::connect(url).unwrap();
    let length = body.len();
    write!(
        connection,
        "{line} HTTP/1.1\r\nhost: {url}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_binary_says_where_everything_is_and_stops_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut command = serve(&data);
    command.env("TIDEWHEEL_LOG_FORMAT", "json");
    let mut served = Served::start(command);
    let data = data.canonicalize().unwrap();
    assert!(served.said[0].starts_with("listening on http://127.0.0.1:"), "{:?}", served.said);
    assert_eq!(served.said[1], format!("data in {}", data.display()));
    assert_eq!(served.said[2], format!("tables in {}", data.join("tables").display()));
    let curl = served.said[3].strip_prefix("try: curl ").unwrap();
    assert!(curl.contains(served.url()) && curl.contains("/api/v1/push"), "{curl}");
    assert!(get(served.url(), "/health").starts_with("HTTP/1.1 200"));
    served.signal("-TERM");
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    let mut logs = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut logs).unwrap();
    for line in logs.lines() {
        assert!(json_of(line)["level"].is_string(), "{line}");
    }
    assert!(logs.contains("stopped"), "{logs}");
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(serve(folder.path()));
    let body = r#"{"items":[{"queue":"q","payload":{"n":1}},{"queue":"q","payload":{"n":2}}]}"#;
    let answer = request(served.url(), "POST /api/v1/push", body);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    served.signal("-KILL");
    drop(served);
    let served = Served::start(serve(folder.path()));
    let answer = get(served.url(), "/api/v1/pop/queue/q?batch=10");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(r#"{"n":1}"#) && answer.contains(r#"{"n":2}"#), "{answer}");
}

#[test]
fn a_second_process_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Served::start(serve(folder.path()));
    let second = serve(folder.path()).output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(3), "{said}");
    assert!(said.contains("in use") && said.contains(&first.child.id().to_string()), "{said}");
    assert!(get(first.url(), "/health").starts_with("HTTP/1.1 200"), "the first is unharmed");
}

#[test]
fn wrong_options_are_named() {
    for (arguments, named) in [
        (["--listen", "0.0.0.0:0"], "--insecure-listen"),
        (["--seal-every", "soon"], "--seal-every"),
        (["--log", "a=b=c"], "log filter"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewheel"));
        let output = command.arg("serve").args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(named), "{said}");
    }
}
