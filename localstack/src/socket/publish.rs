//! A publisher's connection.

use std::{pin::Pin, sync::Arc};

use futures_util::FutureExt;
use tidewheel_gateway::{Close, Gateway, Notice, Outcome, Session, limits, text_messages};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{End, Incoming, ReadError, Socket, stops};

/// A commit under way.
type Committing = Pin<Box<dyn Future<Output = Vec<Outcome>> + Send>>;

/// Sends the greeting, and then answers messages until somebody closes.
pub(super) async fn publish<S: AsyncRead + AsyncWrite>(
    gateway: &Gateway,
    mut session: Session,
    socket: &mut Socket<S>,
) -> End {
    socket.reader.expect_many(limits::PUBLISHED_BYTES);
    socket.writer.push(text_messages([session.greeting()]));
    let mut commit: Option<Committing> = None;
    let mut stopping = false;
    loop {
        start(gateway, &mut session, &mut commit);
        let replies = session.replies();
        if !replies.is_empty() {
            socket.writer.push(text_messages(replies));
        }
        if let Some(close) = session.ending() {
            return End::Close(close.clone());
        }
        if !socket.writer.is_empty() {
            match socket.writer.flush().now_or_never() {
                Some(Ok(())) => socket.written(),
                Some(Err(_)) => return End::Lost,
                None => {}
            }
        }
        let waits = !socket.writer.is_empty();
        // A client that does not read its answers is not read either.
        let reads = session.reads() && !waits;
        tokio::select! {
            biased;
            () = stops(&mut socket.closing), if !stopping => {
                stopping = true;
                session.on_end(Close::going_away());
            }
            notice = session.notice() => match notice {
                Notice::Superseded => session.on_superseded(),
                Notice::Room => {}
            },
            outcomes = committed(&mut commit) => session.on_outcomes(outcomes),
            _ = socket.life.ticks.tick() => {
                // One that waits for us has nothing to say.
                socket.life.heard |= !reads;
                if let Err(close) = socket.tick() {
                    return End::Close(close);
                }
                if let Err(close) = gateway.check_target(session.target()).await {
                    session.on_end(close);
                }
            }
            incoming = socket.reader.next(), if reads => {
                socket.life.heard = true;
                let mut incoming = incoming;
                // Whatever came in the same packet goes in the same commit.
                loop {
                    match incoming {
                        Ok(Incoming::Message(message)) => session.on_message(message),
                        Ok(Incoming::Ping(body)) => socket.writer.pong(&body),
                        Ok(Incoming::Pong) => {}
                        Ok(Incoming::Close(code)) => {
                            finish(gateway, &mut session, commit).await;
                            return End::Closed(code);
                        }
                        Err(ReadError::Refused(close)) => session.on_last(close),
                        Err(ReadError::Lost) => {
                            finish(gateway, &mut session, commit).await;
                            return End::Lost;
                        }
                    }
                    if !session.reads() {
                        break;
                    }
                    match socket.reader.buffered() {
                        Ok(Some(next)) => incoming = Ok(next),
                        Ok(None) => break,
                        Err(error) => incoming = Err(error),
                    }
                }
            }
            written = socket.writer.flush(), if waits => match written {
                Ok(()) => socket.written(),
                Err(_) => return End::Lost,
            },
        }
    }
}

/// Starts the next commit, if frames wait and none is under way.
fn start(gateway: &Gateway, session: &mut Session, commit: &mut Option<Committing>) {
    if commit.is_none() {
        let frames = session.take();
        if !frames.is_empty() {
            let (gateway, target) = (gateway.clone(), Arc::clone(session.target()));
            *commit = Some(Box::pin(async move { gateway.publish(&target, frames).await }));
        }
    }
}

/// Waits for the commit that is under way. Dropping the future loses nothing.
async fn committed(commit: &mut Option<Committing>) -> Vec<Outcome> {
    match commit {
        Some(committing) => {
            let outcomes = committing.await;
            *commit = None;
            outcomes
        }
        None => std::future::pending().await,
    }
}

/// The client went away: what it sent before lands all the same.
async fn finish(gateway: &Gateway, session: &mut Session, mut commit: Option<Committing>) {
    start(gateway, session, &mut commit);
    while commit.is_some() {
        let outcomes = committed(&mut commit).await;
        session.on_outcomes(outcomes);
        start(gateway, session, &mut commit);
    }
}
