//! Health, metrics, and clients that leave.

use serde_json::json;
use tidewheel_api::Settings;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::Server;

#[tokio::test(start_paused = true)]
async fn health_tells_serving_from_draining() {
    let server = Server::with(Settings { version: "9.8.7".to_owned(), ..Settings::default() });
    assert_eq!(
        server.get("/health").await.with(200),
        json!({"status": "healthy", "database": "connected", "engine": "tidewheel", "version": "9.8.7"})
    );
    server.api.drain();
    assert_eq!(server.get("/health").await.with(503)["status"], "draining");
    server.push("q", "p", [json!({"n": 1})]).await;
}

#[tokio::test(start_paused = true)]
async fn metrics_count_by_route_and_never_by_name() {
    let server = Server::new();
    server.push("secret-name", "p", [json!({"n": 1})]).await;
    server.pop("secret-name", "secret-group", 1).await;
    server.get("/api/v1/pop/queue/empty").await;
    server.get("/wp-admin/secret-path").await;
    let page = server.get("/metrics/prometheus").await;
    assert_eq!(page.status, 200);
    assert!(
        page.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4")
    );
    let page = page.text();
    for line in [
        "tidewheel_http_requests_total{method=\"POST\",route=\"/api/v1/push\",status=\"201\"} 1",
        "tidewheel_http_requests_total{method=\"GET\",route=\"/api/v1/pop/queue/{queue}\",status=\"200\"} 1",
        "tidewheel_http_requests_total{method=\"GET\",route=\"/api/v1/pop/queue/{queue}\",status=\"204\"} 1",
        "tidewheel_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"} 1",
        "tidewheel_http_request_duration_seconds_count{method=\"POST\",route=\"/api/v1/push\"} 1",
        "tidewheel_http_requests_in_flight 1",
        "tidewheel_uptime_seconds 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("secret"), "{page}");
    // Every line is a comment or a sample: a name, perhaps labels, and a number.
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("tidewheel_"), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }

    let json = server.get("/metrics").await.with(200);
    for key in ["cpu", "memory", "messages", "requests", "uptime"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert_eq!(json["requests"]["total"], 5);
}

/// A client that leaves while its pop waits takes the pop with it: nothing is leased to nobody.
#[tokio::test]
async fn a_client_that_leaves_cancels_its_pop() {
    let server = Server::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, server.router.clone()).into_future());

    let mut client = TcpStream::connect(address).await.unwrap();
    let request = "GET /api/v1/pop/queue/q?wait=true&timeout=60000&consumerGroup=g&subscriptionMode=all HTTP/1.1\r\n\
                   host: x\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    while server.api.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    drop(client);
    while server.api.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    server.push("q", "p", [json!({"n": 1})]).await;
    assert_eq!(server.pop("q", "g", 1).await.len(), 1, "nobody else was given the message");
    let page = server.get("/metrics/prometheus").await;
    assert!(page.text().contains("status=\"499\"} 1"), "{}", page.text());
    serving.abort();
}

/// A client that writes all of a body that is too large before it reads gets the refusal, not a broken connection;
/// and thousands of empty answers leave the connection usable.
#[tokio::test]
async fn refusals_and_empty_answers_keep_the_connection_s39() {
    let server = Server::with(Settings { max_body_bytes: 1000, ..Settings::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, server.router.clone()).into_future());

    let mut client = TcpStream::connect(address).await.unwrap();
    let body = vec![b'x'; 8 * 1024 * 1024];
    let head =
        format!("POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(&body).await.unwrap();
    let head = response(&mut client).await;
    assert!(head.starts_with("HTTP/1.1 413 "), "{head}");

    for _ in 0..2_000 {
        let request = "GET /api/v1/pop/queue/q HTTP/1.1\r\nhost: x\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let head = response(&mut client).await;
        assert!(head.starts_with("HTTP/1.1 204 ") && !head.contains("content-length"), "{head}");
    }
    serving.abort();
}

/// The length alone is enough: nobody waits for a body that would be refused.
#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_the_body_comes() {
    let server = Server::with(Settings { max_body_bytes: 1000, ..Settings::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(axum::serve(listener, server.router.clone()).into_future());

    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n")
        .await
        .unwrap();
    let mut read = String::new();
    while !read.contains("1000 bytes") {
        let mut buffer = [0; 4096];
        let n = client.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the connection was closed after {read}");
        read.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
    }
    assert!(read.starts_with("HTTP/1.1 413 "), "{read}");
    serving.abort();
}

/// Reads one response; answers its head.
async fn response(client: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let head_end = loop {
        let mut buffer = [0; 4096];
        let n = client.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the connection was closed");
        read.extend_from_slice(&buffer[..n]);
        if let Some(at) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8(read[..head_end].to_vec()).unwrap().to_lowercase();
    let ends = |read: &[u8]| match head.lines().find_map(|l| l.strip_prefix("content-length: ")) {
        Some(length) => read.len() - head_end >= length.parse::<usize>().unwrap(),
        None => !head.contains("transfer-encoding: chunked") || read.ends_with(b"\r\n0\r\n\r\n"),
    };
    while !ends(&read) {
        let mut buffer = [0; 4096];
        let n = client.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the connection was closed");
        read.extend_from_slice(&buffer[..n]);
    }
    head.replacen("http/1.1", "HTTP/1.1", 1)
}
