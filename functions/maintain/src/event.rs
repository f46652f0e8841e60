//! What invokes the function: the schedule, or a batch of the queue.

use aws_lambda_events::event::sqs::SqsEvent;
use serde_json::Value;

/// A message of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// By which a failure is answered.
    pub(crate) id: String,
    /// A piece of work, as JSON.
    pub(crate) body: String,
}

/// What an invocation is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The schedule: find the work of this minute.
    Round,
    /// Do this work.
    Batch(Vec<Message>),
}

/// The event is neither the schedule's nor a queue's.
#[derive(Debug, thiserror::Error)]
#[error("the event is neither a schedule's nor a batch of a queue: {0}")]
pub(crate) struct Strange(String);

impl Event {
    /// Reads an event. What is an object without `Records` is the schedule's, whatever else it says: an EventBridge
    /// rule, a scheduler with any input, a person.
    pub(crate) fn parse(event: Value) -> Result<Self, Strange> {
        match &event {
            Value::Object(fields) if !fields.contains_key("Records") => Ok(Event::Round),
            Value::Object(_) => {
                let batch: SqsEvent =
                    serde_json::from_value(event).map_err(|e| Strange(e.to_string()))?;
                let messages = batch.records.into_iter().map(|message| {
                    let id = message.message_id.ok_or_else(|| Strange("no messageId".into()))?;
                    Ok(Message { id, body: message.body.unwrap_or_default() })
                });
                Ok(Event::Batch(messages.collect::<Result<_, _>>()?))
            }
            _ => Err(Strange("it is no object".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schedule_and_a_batch_are_told_apart() {
        let rule = json!({"version": "0", "id": "5a", "detail-type": "Scheduled Event", "source": "aws.events",
            "account": "123456789012", "time": "2026-12-01T00:05:00Z", "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:123456789012:rule/minute"], "detail": {}});
        assert_eq!(Event::parse(rule).unwrap(), Event::Round);
        assert_eq!(Event::parse(json!({})).unwrap(), Event::Round);
        let batch = json!({"Records": [{"messageId": "m-1", "receiptHandle": "r", "body": "{\"work\":\"traces\"}",
            "attributes": {"ApproximateReceiveCount": "1"}, "messageAttributes": {}, "md5OfBody": "x",
            "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:work",
            "awsRegion": "us-east-1"}]});
        let message = Message { id: "m-1".into(), body: "{\"work\":\"traces\"}".into() };
        assert_eq!(Event::parse(batch).unwrap(), Event::Batch(vec![message]));
        for strange in [json!(7), json!({"Records": [{"body": "{}"}]}), json!({"Records": 7})] {
            assert!(Event::parse(strange).is_err());
        }
    }
}
