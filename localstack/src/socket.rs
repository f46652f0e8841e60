//! Sockets: drives the gateway's state machine over WebSockets.
//!
//! One task per connection. It reads runs at the connection's position and feeds them to the socket; while the socket
//! takes its time, it keeps listening: to the client, to the log's tail (a reader that does not keep up is closed),
//! to the clock (pings), and to the server's end. No task waits for another's socket.
//!
//! Every connection is upgraded first and refused by a close code after that, because a client's library can tell
//! codes apart, and not what an HTTP status at the upgrade meant.

use std::{convert::Infallible, error::Error as _, future::pending, time::Duration};

use axum::{
    extract::{
        FromRequestParts, Request,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade},
    },
    http::{Method, header},
    response::{IntoResponse, Response},
};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tidewheel_gateway::{Accepted, Close, Gateway, Inbound, limits};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};
use tokio_tungstenite::tungstenite;

/// Between two pings. A client that gave no sign of life from one to the next is gone.
const PING_EVERY: Duration = Duration::from_secs(20);

/// What is buffered for a socket before the operating system is asked to take it: many small frames go in one write.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// How long a close frame may wait behind what the client has not read yet.
const CLOSE_SENT_WITHIN: Duration = Duration::from_secs(60);

/// How long the client may take to answer a close.
const CLOSE_ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Serves sockets. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sockets {
    gateway: Gateway,
    closing: watch::Receiver<bool>,
    /// Held by each connection: whoever holds the other end knows when the last has gone.
    open: mpsc::Sender<Infallible>,
}

/// True if a request asks to become a WebSocket.
pub(crate) fn is_upgrade(request: &Request) -> bool {
    let upgrade = request.headers().get(header::UPGRADE).and_then(|value| value.to_str().ok());
    request.method() == Method::GET
        && upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

impl Sockets {
    /// Sockets over a gateway, which close when `closing` turns true.
    pub(crate) fn new(
        gateway: Gateway,
        closing: watch::Receiver<bool>,
        open: mpsc::Sender<Infallible>,
    ) -> Self {
        Self { gateway, closing, open }
    }

    /// Answers a request for which [`is_upgrade`] holds.
    pub(crate) async fn upgrade(self, request: Request) -> Response {
        let (mut parts, _) = request.into_parts();
        let upgrade = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
            Ok(upgrade) => upgrade,
            Err(rejection) => return rejection.into_response(),
        };
        upgrade
            .max_message_size(limits::INBOUND_BYTES)
            .max_frame_size(limits::INBOUND_BYTES)
            .write_buffer_size(WRITE_BUFFER_BYTES)
            .on_failed_upgrade(|error| tracing::debug!(%error, "an upgrade failed"))
            .on_upgrade(async move |socket| {
                let (path, query) = (parts.uri.path(), parts.uri.query());
                self.serve(socket, path, query).await;
            })
    }

    async fn serve(self, socket: WebSocket, path: &str, query: Option<&str>) {
        let (mut sink, stream) = socket.split();
        let Self { gateway, closing, open: _open } = self;
        let mut events = Events::new(stream, closing);
        let close = match gateway.connect(path, query).await {
            Ok(accepted) => match follow(&gateway, accepted, &mut sink, &mut events).await {
                End::Close(close) => close,
                End::Closed => {
                    // The answer to the client's close waits in the buffer.
                    let _ = timeout(CLOSE_ANSWERED_WITHIN, sink.close()).await;
                    return;
                }
                End::Lost => return,
            },
            Err(close) => close,
        };
        tracing::debug!(path, code = close.code, reason = close.reason, "closing a socket");
        let frame = CloseFrame { code: close.code, reason: Utf8Bytes::from(close.reason) };
        let sent = timeout(CLOSE_SENT_WITHIN, sink.send(Message::Close(Some(frame)))).await;
        if matches!(sent, Ok(Ok(()))) {
            // Ending without reading what the client still sends could cost it the close frame.
            let answered = async { while let Some(Ok(_)) = events.stream.next().await {} };
            let _ = timeout(CLOSE_ANSWERED_WITHIN, answered).await;
        }
    }
}

/// How following ended.
enum End {
    /// We close.
    Close(Close),
    /// The client closed.
    Closed,
    /// The connection is no more.
    Lost,
}

/// What a connection hears of.
enum Event {
    Message(Message),
    Failed(axum::Error),
    Ended,
    Tick,
    Closing,
    Tail(u64),
}

struct Events {
    stream: SplitStream<WebSocket>,
    closing: watch::Receiver<bool>,
    ticks: Interval,
    tail: Option<watch::Receiver<u64>>,
    /// The client gave a sign of life since the last tick.
    heard: bool,
}

impl Events {
    fn new(stream: SplitStream<WebSocket>, closing: watch::Receiver<bool>) -> Self {
        let mut ticks = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { stream, closing, ticks, tail: None, heard: true }
    }

    /// The next event. Dropping the future loses none.
    async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            _ = self.closing.wait_for(|closing| *closing) => Event::Closing,
            message = self.stream.next() => match message {
                Some(Ok(message)) => {
                    self.heard = true;
                    Event::Message(message)
                }
                Some(Err(error)) => Event::Failed(error),
                None => Event::Ended,
            },
            _ = self.ticks.tick() => Event::Tick,
            tail = changed(self.tail.as_mut()) => Event::Tail(tail),
        }
    }

    /// The tail that was announced last, now seen.
    fn tail(&mut self) -> u64 {
        self.tail.as_mut().map_or(0, |tail| *tail.borrow_and_update())
    }
}

async fn changed(tail: Option<&mut watch::Receiver<u64>>) -> u64 {
    let Some(tail) = tail else { return pending().await };
    match tail.changed().await {
        Ok(()) => *tail.borrow_and_update(),
        Err(_) => pending().await,
    }
}

/// Sends the greeting and then rows, until somebody closes.
async fn follow(
    gateway: &Gateway,
    accepted: Accepted,
    sink: &mut SplitSink<WebSocket, Message>,
    events: &mut Events,
) -> End {
    let Accepted { mut connection, greeting } = accepted;
    events.tail = Some(gateway.watch(&connection));
    let Some(greeting) = text(greeting) else { return End::Close(Close::unavailable()) };
    let mut batch = vec![greeting];
    // Whether the log may have rows that nobody announced here: those from before, and, at each tick, in case.
    let mut look = true;
    let mut ping = false;
    loop {
        let tail = events.tail();
        if let Some(close) = connection.on_tail(tail) {
            return End::Close(close);
        }
        let mut waiting = true;
        if look || tail > connection.position() {
            match gateway.rows(&connection).await {
                Ok(Some(run)) => {
                    match connection.on_rows(&run) {
                        Ok(frames) => batch.extend(frames.filter_map(text)),
                        Err(close) => return End::Close(close),
                    }
                    waiting = !look && tail <= connection.position();
                }
                Ok(None) => look = false,
                Err(close) => return End::Close(close),
            }
        }
        if std::mem::take(&mut ping) {
            batch.push(Message::Ping(bytes::Bytes::new()));
        }
        let flush = waiting;
        let write = async {
            for message in batch.drain(..) {
                sink.feed(message).await?;
            }
            // More is coming at once: it may go in the same write.
            if flush { sink.flush().await } else { Ok(()) }
        };
        tokio::pin!(write);
        let mut written = false;
        while waiting || !written {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                done = &mut write, if !written => {
                    if done.is_err() {
                        return End::Lost;
                    }
                    written = true;
                    // A write that waited over a tick and got through: the client reads.
                    events.heard |= ping;
                    if ping {
                        break;
                    }
                    continue;
                }
            };
            match event {
                Event::Tail(tail) => {
                    if let Some(close) = connection.on_tail(tail) {
                        return End::Close(close);
                    }
                    if written {
                        break;
                    }
                    waiting = false;
                }
                Event::Message(Message::Ping(_) | Message::Pong(_)) => {}
                Event::Message(Message::Text(text)) => {
                    return End::Close(connection.on_message(Inbound::Text(&text)));
                }
                Event::Message(Message::Binary(bytes)) => {
                    return End::Close(connection.on_message(Inbound::Binary(&bytes)));
                }
                Event::Message(Message::Close(_)) | Event::Ended => {
                    return End::Closed;
                }
                Event::Failed(error) => return failed(&error),
                Event::Closing => return End::Close(connection.on_shutdown()),
                Event::Tick if !std::mem::take(&mut events.heard) => {
                    return End::Close(Close::ping_timeout());
                }
                Event::Tick => {
                    if let Err(close) = gateway.check(&connection).await {
                        return End::Close(close);
                    }
                    ping = true;
                    look = true;
                    if written {
                        break;
                    }
                }
            }
        }
    }
}

/// A text message, or nothing if the bytes are no text, which frames never are.
fn text(bytes: bytes::Bytes) -> Option<Message> {
    Utf8Bytes::try_from(bytes).ok().map(Message::Text)
}

fn failed(error: &axum::Error) -> End {
    match error.source().and_then(|e| e.downcast_ref::<tungstenite::Error>()) {
        Some(tungstenite::Error::Capacity(_)) => End::Close(Close::too_big()),
        _ => {
            tracing::debug!(%error, "a socket was lost");
            End::Lost
        }
    }
}
