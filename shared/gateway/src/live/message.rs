//! What a client says: native requests in, replies out.
//!
//! Every failure is answered. What the answer must not be is a word that a streamcast publisher does not know, because
//! it deletes the row for it; `commit_failed` it knows, and tries again.

use serde_json::{Value, json, value::RawValue};
use tidewheel_engine::{Action, DEFAULT_PARTITION, Error, PushItem, Target};
use tidewheel_store::{Condition, Write};

use super::{
    Address, Live, Work, keys,
    native::{self, Begin, Envelope, Publish, Refusal, Subscribe, Unsubscribe},
    rows::{ConnectionRow, Follower, Kind, State, Subscription},
};
use crate::{Filter, Start, limits};

impl Live {
    /// Takes a message of a client. Answers the reply, if there is one to send at once: a subscription is answered by its
    /// first frame, so that the answer comes before any row.
    pub async fn message(&self, connection: &str, text: &str) -> Option<String> {
        let Some(envelope) = Envelope::read(text) else {
            return self.not_understood(connection, text).await;
        };
        let id = match envelope.id() {
            Ok(id) => id,
            Err(refusal) => return Some(refusal.frame(None)),
        };
        let answer = match envelope.op.as_deref() {
            Some("ping") => Ok(Some(("pong", json!(true)))),
            Some("publish") => {
                self.publish(connection, text).await.map(|published| Some(("published", published)))
            }
            Some("subscribe") => self.subscribe(connection, id, text).await.map(|()| None),
            Some("unsubscribe") => {
                self.unsubscribe(connection, text).await.map(|left| Some(("unsubscribed", left)))
            }
            other => Err(Refusal::bad(format!(
                "unknown op '{}': subscribe, unsubscribe, publish and ping are known",
                other.unwrap_or_default()
            ))),
        };
        match answer {
            Ok(reply) => reply.map(|(name, value)| native::reply(id.get(), name, &value)),
            Err(refusal) => Some(refusal.frame(Some(id))),
        }
    }

    /// The reply to a message that was not carried out to its end, for whatever reason.
    pub fn unanswered(text: &str) -> String {
        match Envelope::read(text) {
            Some(envelope) => {
                let message = "the request was not carried out in time: its outcome is unknown";
                Refusal::new("unknown_outcome", message).frame(envelope.id().ok())
            }
            None => json!({"error": "commit_failed", "detail": "no answer in time, try again"})
                .to_string(),
        }
    }

    /// A binary message. Nobody speaks so here.
    pub async fn binary_message(&self, connection: &str) -> Option<String> {
        self.not_understood(connection, "").await
    }

    async fn not_understood(&self, connection: &str, text: &str) -> Option<String> {
        match self.connection(connection).await {
            Ok((Some(row), _)) if row.kind == Kind::Streamcast => {
                // A subscriber has nothing to say. It cannot be told so: it takes no frame but rows.
                tracing::debug!(connection, "a subscriber sent a message");
                let address = Address { connection: connection.to_owned(), endpoint: row.endpoint };
                if !self.close(&address).await {
                    tracing::warn!(connection, "a connection could not be closed");
                }
                if let Err(error) = self.forget(connection).await {
                    tracing::warn!(%error, connection, "a closed connection is still recorded");
                }
                None
            }
            Ok(_) => {
                let why = match serde_json::from_str::<Value>(text) {
                    Ok(Value::Object(_)) => "a request needs an 'op'".to_owned(),
                    Ok(_) => "a request must be a JSON object".to_owned(),
                    Err(e) => format!("a request must be a JSON object: {e}"),
                };
                Some(Refusal::bad(why).frame(None))
            }
            Err(error) => {
                tracing::warn!(%error, connection, "a message could not be looked into");
                Some(Self::unanswered(text))
            }
        }
    }

    /// Checks that the key which a connection was opened with may do this. While there are no keys everybody may.
    async fn granted(&self, connection: &str, action: Action, stream: &str) -> Result<(), Refusal> {
        let engine = self.engine();
        if !engine.has_credentials().await.map_err(|e| Refusal::of(&e))? {
            return Ok(());
        }
        let place = keys::connection(connection);
        let row = self.get(&place).await.map_err(|e| Refusal::of(&e))?;
        let row = row.map(|item| ConnectionRow::decode(&place, &item)).transpose();
        let id = row.map_err(|e| Refusal::of(&e))?.and_then(|row| row.key);
        let key = match &id {
            Some(id) => engine.live_credential(id).await.map_err(|e| Refusal::of(&e))?,
            None => None,
        };
        match key.is_some_and(|key| key.allows(action, Target::Stream(stream))) {
            true => Ok(()),
            false => {
                let message = format!("the key has no grant '{action}' for '{stream}'");
                Err(Refusal::new("forbidden", message))
            }
        }
    }

    async fn publish(&self, connection: &str, text: &str) -> Result<Value, Refusal> {
        let Publish { stream, partition, rows, transaction_ids, .. } = native::parse(text)?;
        self.granted(connection, Action::Publish, &stream).await?;
        let limit = limits::PUBLISH_ROWS;
        if rows.len() > limit {
            return Err(Refusal::new(
                "too_large",
                format!("{} rows in one frame; the limit is {limit}", rows.len()),
            )
            .with("limit", limit));
        }
        if rows.is_empty() {
            return Err(Refusal::bad("rows must have at least one row"));
        }
        let ids = match transaction_ids {
            Some(ids) if ids.len() != rows.len() => {
                return Err(Refusal::bad("transaction_ids must have one id for each row"));
            }
            Some(ids) => ids.into_iter().map(Some).collect(),
            None => vec![None; rows.len()],
        };
        let item = |(row, transaction_id): (&str, Option<String>)| PushItem {
            stream: stream.clone(),
            partition: partition.clone(),
            payload: row.to_owned().into(),
            transaction_id,
            ..PushItem::default()
        };
        let items = rows.iter().map(|row| row.get()).zip(ids).map(item).collect();
        native::published(&self.engine().push(items).await)
    }

    async fn subscribe(&self, connection: &str, id: &RawValue, text: &str) -> Result<(), Refusal> {
        let request: Subscribe = native::parse(text)?;
        self.granted(connection, Action::Read, &request.stream).await?;
        if request.window_ms > limits::WINDOW_MS {
            let limit = limits::WINDOW_MS;
            let message = format!("window_ms is {}; the limit is {limit}", request.window_ms);
            return Err(Refusal::bad(message).with("limit", limit));
        }
        let filter = request.filter.map(|text| Filter::parse(text.get())).transpose();
        let filter = filter.map_err(|close| Refusal::of_close(&close))?;
        let (row, subscriptions) =
            self.connection(connection).await.map_err(|e| Refusal::of(&e))?;
        let Some(row) = row.filter(|row| row.kind == Kind::Native) else {
            return Err(Refusal::new("no_connection", "this connection takes no subscriptions"));
        };
        let limit = limits::SUBSCRIPTIONS;
        if subscriptions.len() >= limit {
            let message = format!("a connection has at most {limit} subscriptions");
            return Err(Refusal::new("too_many", message).with("limit", limit));
        }
        let partition = request.partition.as_deref().unwrap_or(DEFAULT_PARTITION);
        let placed = self.place(&request.stream, partition).await;
        let (place, extent) = placed.map_err(|e| Refusal::of(&e))?;
        let Begin { at, start, gapless } = request.from.begin(&place, extent)?;
        let subscription = Subscription {
            follower: Follower {
                connection: connection.to_owned(),
                subscription: id.get().to_owned(),
                kind: Kind::Native,
                endpoint: row.endpoint,
                filter,
                window_ms: request.window_ms,
                expires: row.expires,
            },
            place,
            at,
            end: extent.tail,
            live: start == Start::Live,
            earliest: start == Start::Earliest,
            gapless,
            greeted: false,
            since_us: row.since_us,
            state: State::Open,
        };
        let there = Write::check(keys::connection(connection)).when(Condition::Exists);
        match self.record(&subscription, there).await {
            Ok(true) => {}
            Ok(false) => {
                let message = format!("subscription {} is there already", id.get());
                return Err(Refusal::new("in_use", message));
            }
            Err(Error::Invalid(_)) => {
                return Err(Refusal::new("no_connection", "this connection has ended"));
            }
            Err(e) => return Err(Refusal::of(&e)),
        }
        let (connection, subscription) = (connection.to_owned(), id.get().to_owned());
        self.ask(&Work::Greet { connection, subscription }).await;
        Ok(())
    }

    async fn unsubscribe(&self, connection: &str, text: &str) -> Result<Value, Refusal> {
        let Unsubscribe { subscription, .. } = native::parse(text)?;
        let left = self.leave(connection, subscription.get()).await;
        left.map(Value::Bool).map_err(|e| Refusal::of(&e))
    }
}
