//! Sockets: drives the gateway's state machine over WebSockets.
//!
//! One task per connection. A subscriber's reads runs at its position and writes them ([`follow`]); a publisher's reads
//! messages, has them committed and writes the answers ([`publish`]). While its socket takes its time, a task keeps
//! listening: to the client, to what it follows, to the clock (pings), and to the server's end. No task waits for
//! another's socket.
//!
//! Every connection is upgraded first and refused by a close code after that, because a client's library can tell
//! codes apart, and not what an HTTP status at the upgrade meant.

mod follow;
mod handshake;
mod publish;
mod wire;

use std::{convert::Infallible, time::Duration};

use axum::{extract::Request, http::StatusCode, response::Response};
use hyper_util::rt::TokioIo;
use tidewheel_gateway::{Close, Gateway, Opened, limits};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split},
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval_at, timeout},
};

pub(crate) use self::handshake::is_upgrade;
use self::wire::{Incoming, ReadError, Reader, Writer};

/// Between two pings. A client that gave no sign of life from one to the next is gone.
const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a close frame may wait behind what the client has not read yet.
const CLOSE_SENT_WITHIN: Duration = Duration::from_secs(60);

/// How long the client may take to answer a close.
const CLOSE_ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The normal end of a connection.
const NORMAL: u16 = 1000;

/// Serves sockets. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sockets {
    gateway: Gateway,
    closing: watch::Receiver<bool>,
    /// Held by each connection: whoever holds the other end knows when the last has gone.
    open: mpsc::Sender<Infallible>,
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
    pub(crate) fn upgrade(self, mut request: Request) -> Response {
        let response = handshake::answer(request.headers());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        let upgrading = hyper::upgrade::on(&mut request);
        let uri = request.uri().clone();
        tokio::spawn(async move {
            match upgrading.await {
                Ok(io) => self.serve(TokioIo::new(io), uri.path(), uri.query()).await,
                Err(error) => tracing::debug!(%error, "an upgrade failed"),
            }
        });
        response
    }

    async fn serve<S: AsyncRead + AsyncWrite>(self, io: S, path: &str, query: Option<&str>) {
        let Self { gateway, closing, open: _open } = self;
        let mut socket = Socket::new(io, closing);
        let end = match gateway.connect(path, query).await {
            Ok(Opened::Subscriber(subscriber)) => {
                follow::follow(&gateway, *subscriber, &mut socket).await
            }
            Ok(Opened::Publisher(session)) => {
                publish::publish(&gateway, *session, &mut socket).await
            }
            Err(close) => End::Close(close),
        };
        match end {
            End::Close(close) => {
                tracing::debug!(path, code = close.code, reason = close.reason, "closing a socket");
                socket.close(&close).await;
            }
            End::Closed(code) => {
                socket.writer.close(code.unwrap_or(NORMAL), "");
                let _ = timeout(CLOSE_ANSWERED_WITHIN, socket.writer.flush()).await;
            }
            End::Lost => {}
        }
    }
}

/// How serving a connection ended.
enum End {
    /// We close.
    Close(Close),
    /// The client closed, with this code.
    Closed(Option<u16>),
    /// The connection is no more.
    Lost,
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Refused(close) => End::Close(close),
            ReadError::Lost => End::Lost,
        }
    }
}

/// A connection, and what its task hears of beside it.
struct Socket<S> {
    reader: Reader<ReadHalf<S>>,
    writer: Writer<WriteHalf<S>>,
    closing: watch::Receiver<bool>,
    life: Life,
}

/// Signs of life.
struct Life {
    ticks: Interval,
    /// The client gave one since the last tick.
    heard: bool,
    /// A write was waiting at the last tick.
    held_up: bool,
}

impl<S: AsyncRead + AsyncWrite> Socket<S> {
    fn new(io: S, closing: watch::Receiver<bool>) -> Self {
        let (reader, writer) = split(io);
        let mut ticks = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            reader: Reader::new(reader, limits::INBOUND_BYTES),
            writer: Writer::new(writer),
            closing,
            life: Life { ticks, heard: true, held_up: false },
        }
    }

    /// A tick: pings, or finds that the client is gone.
    fn tick(&mut self) -> Result<(), Close> {
        if !std::mem::take(&mut self.life.heard) {
            return Err(Close::ping_timeout());
        }
        self.life.held_up = !self.writer.is_empty();
        self.writer.ping();
        Ok(())
    }

    /// Everything was written. If it waited over a tick and got through, the client reads.
    fn written(&mut self) {
        self.life.heard |= std::mem::take(&mut self.life.held_up);
    }

    /// Closes, behind what is still to be written.
    async fn close(&mut self, close: &Close) {
        self.writer.close(close.code, &close.reason);
        if !matches!(timeout(CLOSE_SENT_WITHIN, self.writer.flush()).await, Ok(Ok(()))) {
            return;
        }
        // Ending without reading what the client still sends could cost it the close frame.
        let answered = async {
            loop {
                match self.reader.drained().await {
                    Some(Incoming::Close(_)) | None => break,
                    Some(_) => {}
                }
            }
        };
        let _ = timeout(CLOSE_ANSWERED_WITHIN, answered).await;
    }
}

/// Waits until the server stops.
async fn stops(closing: &mut watch::Receiver<bool>) {
    // Without a sender there is nobody left who would serve.
    let _ = closing.wait_for(|closing| *closing).await;
}
