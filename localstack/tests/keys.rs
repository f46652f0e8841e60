//! API keys, as whoever runs a server uses them: made before it runs and while it does, asked for by routes and sockets,
//! and never written to a log.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

fn tidewheel(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewheel"));
    command.args(arguments).arg("--data").arg(folder).stdin(Stdio::null());
    command
}

fn keys(arguments: &[&str], folder: &Path) -> Output {
    tidewheel(&[&["keys"], arguments].concat(), folder).output().unwrap()
}

/// What a command that succeeded said.
fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The key and the id that were shown.
fn shown(output: Output) -> (String, String) {
    let said = said(output);
    let key = said.lines().next().unwrap().to_owned();
    let id = key.split('_').nth(1).unwrap().to_owned();
    (key, id)
}

struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start(folder: &Path, listen: &str) -> Self {
        let mut command = tidewheel(&["serve", "--listen", listen, "--log", "trace"], folder);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| {
            let mut log = String::new();
            child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
            panic!("it does not listen: {log}")
        });
        Self { url: url.replace("0.0.0.0", "127.0.0.1"), child }
    }

    /// The head of the answer to a request with these headers.
    fn ask(&self, line: &str, headers: &str) -> String {
        let mut connection = std::net::TcpStream::connect(&self.url).unwrap();
        write!(
            connection,
            "{line} HTTP/1.1\r\nhost: {}\r\n{headers}content-length: 0\r\n\r\n",
            self.url
        )
        .unwrap();
        let mut answer = String::new();
        BufReader::new(connection).read_line(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    }

    fn socket(&self, path: &str, key: &str) -> String {
        let upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let key =
            if key.is_empty() { String::new() } else { format!("authorization: Bearer {key}\r\n") };
        self.ask(&format!("GET {path}"), &format!("{upgrade}{key}"))
    }

    /// Stops it politely; answers its log.
    fn stop(mut self) -> String {
        // The log is read while it is written, so that its writer never waits.
        let mut stderr = self.child.stderr.take().unwrap();
        let pid = self.child.id().to_string();
        let reading = std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            log
        });
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        reading.join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

#[test]
fn keys_are_made_before_a_server_runs_and_while_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let (admin, admin_id) = shown(keys(&["create", "--grant", "admin:*"], folder.path()));
    let served = Served::start(folder.path(), "127.0.0.1:0");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let operator = folder.path().join("operator").metadata().unwrap();
        assert_eq!(operator.permissions().mode() & 0o777, 0o600);
    }
    let status = "GET /api/v1/status";
    assert_eq!(served.ask(status, ""), "401");
    assert_eq!(served.ask("GET /health", ""), "200");
    assert_eq!(served.ask(status, &bearer(&admin)), "200");

    let create = ["create", "--name", "reader", "--grant", "read:orders*", "--expires-days", "1"];
    let (reader, reader_id) = shown(keys(&create, folder.path()));
    assert_eq!(served.ask("GET /api/v1/resources/queues/orders", &bearer(&reader)), "404");
    assert_eq!(served.ask("GET /api/v1/resources/queues/secret", &bearer(&reader)), "403");
    let listed = said(keys(&["list"], folder.path()));
    assert!(
        listed.contains(&admin_id) && listed.contains("reader  read:orders*  until"),
        "{listed}"
    );

    // A socket is asked before anything is said of the stream.
    for (path, key, expected) in [
        ("/nosuch?offset=0", "", "401"),
        ("/nosuch?offset=0", reader.as_str(), "403"),
        ("/orders?publish", &reader, "403"),
        ("/orders?offset=0", &reader, "101"),
        ("/nosuch", &admin, "101"),
    ] {
        assert_eq!(served.socket(path, key), expected, "{path}");
    }

    let (rotated, _) = shown(keys(&["rotate", &reader_id], folder.path()));
    let of = |key: &str| served.ask("GET /api/v1/resources/queues/orders", &bearer(key));
    assert_eq!((of(&reader), of(&rotated)), ("401".to_owned(), "404".to_owned()));
    said(keys(&["disable", &reader_id], folder.path()));
    assert_eq!(of(&rotated), "401");
    said(keys(&["enable", &reader_id], folder.path()));
    assert_eq!(of(&rotated), "404");
    said(keys(&["delete", &reader_id], folder.path()));
    let gone = keys(&["rotate", &reader_id], folder.path());
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("no key"));
    let bad = keys(&["create", "--grant", "write:*"], folder.path());
    assert!(String::from_utf8_lossy(&bad.stderr).contains("the actions are"), "{bad:?}");

    let operator = std::fs::read_to_string(folder.path().join("operator")).unwrap();
    let operator: serde_json::Value = serde_json::from_str(&operator).unwrap();
    let log = served.stop();
    assert!(log.contains("request"), "the log has what is logged: {log}");
    for secret in [admin.as_str(), &reader, &rotated, operator["key"].as_str().unwrap()] {
        let secret = secret.rsplit('_').next().unwrap();
        assert!(!log.contains(secret), "a secret is in the log");
    }
    assert!(!folder.path().join("operator").exists(), "it goes with the server");
    said(keys(&["delete", &admin_id], folder.path()));
    assert_eq!(said(keys(&["list"], folder.path())), "");
}

#[test]
fn an_address_that_others_can_reach_needs_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let refused = tidewheel(&["serve", "--listen", "0.0.0.0:0"], folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("tidewheel keys create --grant 'admin:*'"), "{said}");
    let (admin, id) = shown(keys(&["create", "--grant", "admin:*"], folder.path()));
    let served = Served::start(folder.path(), "0.0.0.0:0");
    assert_eq!(served.ask("GET /api/v1/status", ""), "401");
    assert_eq!(served.ask("GET /api/v1/status", &bearer(&admin)), "200");
    // With its last key gone it is closed, not open.
    keys(&["delete", &id], folder.path());
    assert_eq!(served.ask("GET /api/v1/status", ""), "401");
    drop(served);
}
