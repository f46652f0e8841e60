//! A subscriber's connection.

use futures_util::FutureExt;
use tidewheel_gateway::{Gateway, Subscriber, text_messages};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::yield_now,
};

use super::{End, Incoming, Socket, stops};

/// Sends the greeting and then rows, until somebody closes.
pub(super) async fn follow<S: AsyncRead + AsyncWrite>(
    gateway: &Gateway,
    subscriber: Subscriber,
    socket: &mut Socket<S>,
) -> End {
    let Subscriber { mut connection, greeting, mut tail, feed, following } = subscriber;
    // Counted for as long as it is served.
    let _following = following;
    socket.writer.push(text_messages([greeting]));
    // Whether the log may have rows that nobody announced here: those from before, and, at each tick, in case.
    let mut look = true;
    loop {
        let reaches = *tail.borrow_and_update();
        if let Some(close) = connection.on_tail(reaches) {
            return End::Close(close);
        }
        // One run at a time: what is not taken out of the log yet takes no memory.
        if socket.writer.is_empty() && (look || reaches > connection.position()) {
            match gateway.rows(&connection, &feed).await {
                Ok(Some(run)) => {
                    let frames = match connection.on_rows(&run) {
                        Ok(frames) => frames,
                        Err(close) => return End::Close(close),
                    };
                    frames.wire().for_each(|piece| socket.writer.push(piece));
                    if socket.writer.is_empty() {
                        yield_now().await;
                        continue;
                    }
                }
                Ok(None) => look = false,
                Err(close) => return End::Close(close),
            }
        }
        if !socket.writer.is_empty() {
            // Mostly the system takes it at once.
            match socket.writer.flush().now_or_never() {
                Some(Ok(())) => {
                    socket.written();
                    if look || *tail.borrow() > connection.position() {
                        yield_now().await;
                        continue;
                    }
                }
                Some(Err(_)) => return End::Lost,
                None => {}
            }
        }
        let waits = !socket.writer.is_empty();
        tokio::select! {
            biased;
            () = stops(&mut socket.closing) => return End::Close(connection.on_shutdown()),
            incoming = socket.reader.next() => {
                socket.life.heard = true;
                match incoming {
                    Ok(Incoming::Message(message)) => {
                        return End::Close(connection.on_message(&message));
                    }
                    Ok(Incoming::Ping(body)) => socket.writer.pong(&body),
                    Ok(Incoming::Pong) => {}
                    Ok(Incoming::Close(code)) => return End::Closed(code),
                    Err(error) => return error.into(),
                }
            }
            _ = socket.life.ticks.tick() => {
                if let Err(close) = socket.tick() {
                    return End::Close(close);
                }
                if let Err(close) = gateway.check(&connection).await {
                    return End::Close(close);
                }
                look = true;
            }
            () = moved(&mut tail) => {}
            written = socket.writer.flush(), if waits => match written {
                Ok(()) => socket.written(),
                Err(_) => return End::Lost,
            },
        }
    }
}

/// Waits until the tail moves. Dropping the future loses nothing: who looks finds it moved.
async fn moved(tail: &mut watch::Receiver<u64>) {
    if tail.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
