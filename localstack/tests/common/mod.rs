//! A stack in this process over a folder of its own, and small clients for it.

#![allow(dead_code)] // each test file uses its part

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use tempfile::TempDir;
use tidewheel_engine::{PushItem, Pushed};
use tidewheel_localstack::{Stack, options::Serve};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Options on a new folder, with nothing scheduled.
pub(crate) fn options(folder: &TempDir) -> Serve {
    Serve { data: folder.path().join("data"), seal_every: Duration::ZERO, ..Serve::default() }
}

pub(crate) async fn start() -> (TempDir, Stack) {
    start_with(|_| {}).await
}

pub(crate) async fn start_with(change: impl FnOnce(&mut Serve)) -> (TempDir, Stack) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(&folder);
    change(&mut options);
    let stack = Stack::start(&options).await.unwrap();
    (folder, stack)
}

/// Pushes payloads to one partition, in order, and answers their wire offsets.
pub(crate) async fn push(
    stack: &Stack,
    stream: &str,
    partition: &str,
    rows: &[String],
) -> Vec<u64> {
    let items = rows.iter().map(|row| PushItem {
        stream: stream.to_owned(),
        partition: partition.to_owned(),
        payload: row.clone().into(),
        ..PushItem::default()
    });
    let pushed = stack.engine().push(items.collect()).await;
    pushed
        .into_iter()
        .map(|pushed| match pushed {
            Pushed::Queued { offset, .. } => offset + 1,
            other => panic!("not queued: {other:?}"),
        })
        .collect()
}

/// Rows `{"n":from}`, `{"n":from+1}`, and so on.
pub(crate) fn rows(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| format!("{{\"n\":{n}}}")).collect()
}

pub(crate) async fn connect(stack: &Stack, path: &str) -> Socket {
    connect_async(format!("ws://{}{path}", stack.address())).await.unwrap().0
}

/// What comes next, other than pings.
pub(crate) async fn receive(socket: &mut Socket) -> Message {
    loop {
        match socket.next().await.expect("the connection ended").expect("the connection failed") {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

pub(crate) async fn receive_json(socket: &mut Socket) -> Value {
    match receive(socket).await {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("not a text: {other:?}"),
    }
}

/// The next frame: offset and row.
pub(crate) async fn receive_row(socket: &mut Socket) -> (u64, Value) {
    let frame: (u64, i64, Value) = serde_json::from_value(receive_json(socket).await).unwrap();
    (frame.0, frame.2)
}

/// The code and reason of the close that comes next.
pub(crate) async fn receive_close(socket: &mut Socket) -> (u16, String) {
    match receive(socket).await {
        Message::Close(Some(frame)) => (frame.code.into(), frame.reason.to_string()),
        other => panic!("not a close: {other:?}"),
    }
}

/// One HTTP request: status and body.
pub(crate) async fn http(stack: &Stack, head: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(stack.address()).await.unwrap();
    let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
    let mut request = format!("{line} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.to_ascii_lowercase().contains("host:") {
        request += &format!("host: {}\r\n", stack.address());
    }
    for header in headers.lines() {
        request += &format!("{header}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
